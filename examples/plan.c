/* replayssm-plan: what the state pool of a model will be, from its config.json alone. Touches no device.
 *
 * Stands on init, describe and pool_layout; the numbers are the plugin's own, nothing is computed twice here. */
#include "plan/plan.h"

#include <string.h>

static int plan(host *h, plan_options *o)
{
    o->init.struct_size = sizeof o->init;
    o->init.tp_size = (int32_t)o->tp;
    o->init.tp_rank = (int32_t)o->rank;
    o->init.ring_length = (int32_t)o->ring;
    o->init.max_draft_tokens = (int32_t)o->draft;
    o->init.device_type = strcmp(o->device, "cuda") == 0 ? kDLCUDA : kDLCPU;
    o->init.flags = o->conv ? RSSM_INIT_CONV_STATE : 0;
    int code = host_load(h, o->plugin);
    if (code == EXIT_OK)
        code = host_init(h, &o->init);
    speculation cost;
    if (code == EXIT_OK && o->draft > 0)
        code = plan_speculation(h, o, &cost);
    if (code == EXIT_OK && o->html != NULL)
        code = plan_write_page(h, o);
    if (code != EXIT_OK)
        return code;
    if (o->json)
        plan_print_json(h, o->draft > 0 ? &cost : NULL);
    else
        plan_print_text(h, o, o->draft > 0 ? &cost : NULL);
    return EXIT_OK;
}

int main(int argc, char **argv)
{
    plan_options o = {.tp = 1, .device = "cpu"};
    /* Ranges here are what an int32 holds: whether a number makes sense is the plugin's to say. */
    const option_row rows[] = {
        {"tp", OPTION_INT, &o.tp, "N", "tensor-parallel ranks [1]", 1, INT32_MAX},
        {"rank", OPTION_INT, &o.rank, "R", "this rank [0]", INT32_MIN, INT32_MAX},
        {"ring", OPTION_INT, &o.ring, "L", "ring length, 1 to 64 [0 = least modelled cost on the device]", INT32_MIN,
         INT32_MAX},
        {"state", OPTION_DTYPE, &o.init.state_dtype, "DTYPE", "of the state [the config's]", 0, 0},
        {"io", OPTION_DTYPE, &o.init.io_dtype, "DTYPE", "of inputs and outputs [the config's]", 0, 0},
        {"ring-dtype", OPTION_DTYPE, &o.init.ring_dtype, "DTYPE", "of the ring's rows [as --io]", 0, 0},
        {"slots", OPTION_INT, &o.init.num_slots, "N", "requests alive at once [1]", INT64_MIN, INT64_MAX},
        {"memory", OPTION_BYTES, &o.init.memory_budget_bytes, "BYTES", "as many slots as fit (80GiB, 512M, 1000000)", 0,
         0},
        {"draft", OPTION_INT, &o.draft, "D", "draft tokens besides the bonus token, and what they cost [0]", INT32_MIN,
         INT32_MAX},
        {"conv", OPTION_FLAG, &o.conv, NULL, "the pool also holds the convolution's history", 0, 0},
        {"json", OPTION_FLAG, &o.json, NULL, "for programs", 0, 0},
        {"html", OPTION_TEXT, &o.html, "FILE", "also writes the plan, and others beside it, as a page for a browser", 0,
         0},
        {"bandwidth", OPTION_RATE, &o.bandwidth, "RATE",
         "the memory's, for the page's modelled times [" PLAN_BANDWIDTH_HELP "]", 0, 0},
        {"plugin", OPTION_TEXT, &o.plugin, "PATH", "the plugin to load", 0, 0},
        {"device", OPTION_CHOICE, &o.device, "cpu|cuda", "whose pool: it decides the ring length of --ring 0 [cpu]", 0,
         0},
    };
    const option_table table = {"replayssm-plan", "Says what the state pool of a model will be.", "CONFIG", rows,
                                sizeof rows / sizeof rows[0]};
    int code = options_parse(&table, argc, argv, &o.init.config_path);
    if (code >= 0)
        return code;
    host h = {.program = table.program, .json = o.json};
    code = plan(&h, &o);
    host_close(&h);
    return code;
}
