/* The plan as one page: charts that say in their titles what was found, a table behind each. No script, nothing from a
 * network: the page's own policy forbids both. */
#include "plan_page.h"

#include "plan_file.h"
#include "plan_html.h"
#include "plan_style.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STRIP_LAYERS = 256 };

/* ---- the head -------------------------------------------------------------------------------------------------------- */

static void tile(const page *p, const char *name, const char *value, const char *note)
{
    fprintf(p->out, "<div class=\"tile\"><dt>");
    html_text(p->out, name);
    fprintf(p->out, "</dt><dd><b>");
    html_text(p->out, value);
    fprintf(p->out, "</b><span>");
    html_text(p->out, note);
    fprintf(p->out, "</span></dd></div>\n");
}

static void tiles(const page *p)
{
    const rssm_layout *pool = &p->h->layout;
    char value[64], note[192];
    fprintf(p->out, "<dl class=\"tiles\">\n");

    snprintf(note, sizeof note, "state %s + ring %s%s%s", human(pool->slot_state_bytes).text,
             human(pool->slot_ring_bytes).text, p->o->conv ? " + conv " : "",
             p->o->conv ? human(pool->slot_conv_bytes).text : "");
    tile(p, "One session", human(pool->slot_total_bytes).text, note);

    snprintf(value, sizeof value, "%" PRId64 " session%s", pool->num_slots, pool->num_slots == 1 ? "" : "s");
    snprintf(note, sizeof note, "%s on rank %" PRId32 " of %" PRId32 "%s", human(pool->pool_bytes).text,
             p->h->model.tp_rank, p->h->model.tp_size,
             p->o->init.memory_budget_bytes > 0 ? ": what fits the budget" : "");
    tile(p, "The pool", value, note);

    snprintf(value, sizeof value, "L = %" PRId32, p->h->model.ring_length);
    const char *why = p->o->ring != 0                     ? "as asked"
                      : strcmp(p->o->device, "cuda") == 0 ? "least modelled cost on a GPU"
                                                          : "least modelled cost on a CPU";
    snprintf(note, sizeof note, "%s; %" PRId32 " rows", why, p->h->model.ring_rows);
    tile(p, "The ring", value, note);

    snprintf(value, sizeof value, "%.2f \xc3\x97", speed_up(p->h));
    tile(p, "Fewer bytes a step", value, "than reading and writing the state (modelled)");
    fprintf(p->out, "</dl>\n");
}

/* A cell for each layer of the model, the linear ones filled. */
static void strip(const page *p)
{
    const rssm_description *m = &p->h->model;
    if (m->num_layers > MAX_STRIP_LAYERS)
        return;
    fprintf(p->out, "<svg class=\"strip\" role=\"img\" aria-labelledby=\"strip-t\" width=\"100%%\" height=\"14\">"
                    "<title id=\"strip-t\">The model's layers from first to last: filled are linear</title>\n");
    int next = 0;
    for (int32_t layer = 0; layer < m->num_layers; layer++) {
        const int linear = next < m->num_linear_layers && m->linear_layers[next] == layer;
        next += linear;
        fprintf(p->out, "<rect class=\"%s\" x=\"%.3f%%\" y=\"1\" width=\"%.3f%%\" height=\"12\"/>",
                linear ? "linear" : "other", 100.0 * layer / m->num_layers, 75.0 / m->num_layers);
    }
    fprintf(p->out, "</svg>\n");
}

static void head(const page *p)
{
    const rssm_description *m = &p->h->model;
    const char *name = m->model_type[0] != 0 ? m->model_type : m->family_name;
    fprintf(p->out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                    "<meta name=\"color-scheme\" content=\"light dark\">\n"
                    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                    "'unsafe-inline'\">\n<title>");
    html_text(p->out, name);
    fprintf(p->out, ": the state pool</title>\n<style>\n");
    for (size_t i = 0; i < sizeof plan_style / sizeof plan_style[0]; i++)
        fprintf(p->out, "%s\n", plan_style[i]);
    fprintf(p->out,
            "</style></head>\n<body>\n"
            "<svg width=\"0\" height=\"0\" aria-hidden=\"true\"><defs><pattern id=\"hatch\" width=\"6\" height=\"6\" "
            "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect class=\"soft\" width=\"6\" "
            "height=\"6\"/><rect class=\"hard\" width=\"3\" height=\"6\"/></pattern></defs></svg>\n"
            "<header>\n<p class=\"over\">replayssm-plan</p>\n<h1>");
    html_text(p->out, name);
    fprintf(p->out,
            "</h1>\n<p class=\"lead\">The pool of its recurrent layers: %" PRId32 " of %" PRId32
            " layers are linear (%s).</p>\n",
            m->num_linear_layers, m->num_layers, m->family_name);
    strip(p);
    tiles(p);
    fprintf(p->out, "</header>\n<main>\n");
}

/* ---- the foot -------------------------------------------------------------------------------------------------------- */

static void fact(const page *p, const char *name, const char *value)
{
    fprintf(p->out, "<dt>");
    html_text(p->out, name);
    fprintf(p->out, "</dt><dd>");
    html_text(p->out, value);
    fprintf(p->out, "</dd>\n");
}

static void facts(const page *p)
{
    const rssm_description *m = &p->h->model;
    char text[160];
    fprintf(p->out,
            "<section class=\"card wide\" aria-labelledby=\"facts-h\">\n<h2 id=\"facts-h\">What the plan stands "
            "on</h2>\n<dl class=\"facts\">\n");
    fact(p, "config", p->o->init.config_path);
    fprintf(p->out, "<dt>linear layers</dt><dd>");
    print_ranges(p->out, m->linear_layers, m->num_linear_layers);
    fprintf(p->out, "</dd>\n<dt>heads</dt><dd>");
    print_heads(p->out, p->h);
    fprintf(p->out, " on rank %" PRId32 " of %" PRId32 "</dd>\n", m->tp_rank, m->tp_size);
    snprintf(text, sizeof text, "state %s, ring %s, inputs and outputs %s", dtype_name(m->state_dtype),
             dtype_name(m->ring_dtype), dtype_name(m->io_dtype));
    fact(p, "types", text);
    fact(p, "ring", m->ring_reason);
    fact(p, "convolution",
         p->o->conv ? "its history is in the pool (--conv)" : "its history is not in the pool: --conv adds it");
    fact(p, "modelled bytes",
         "of a step: state \xc2\xb7 (1 + 1/L) + (L \xe2\x88\x92 1)/2 ring rows read + 1 ring row written + "
         "inputs + output; read-and-write: 2 \xc2\xb7 state + inputs + output");
    snprintf(text, sizeof text, "%016" PRIx64 ", equal on all ranks", m->layout_hash);
    fact(p, "layout", text);
    for (int32_t i = 0; i < m->num_assumed; i++)
        fact(p, i == 0 ? "assumed" : "", m->assumed[i]);
    if (m->num_assumed == 0)
        fact(p, "assumed", "nothing, all of it is in the config");
    fprintf(p->out, "</dl></section>\n");
}

static void write_page(const page *p)
{
    head(p);
    plan_cards(p);
    facts(p);
    fprintf(
        p->out,
        "</main>\n<footer>Every number comes from the plugin, as in replayssm-plan --json. Times and bytes of a step "
        "are modelled.</footer>\n</body></html>\n");
}

int plan_write_page(const host *h, const plan_options *o)
{
    study *s = malloc(sizeof *s);
    if (s == NULL)
        return host_refuse(h, "out of memory");
    int code = study_make(s, h, o);
    if (code == EXIT_OK) {
        plan_file file;
        int failed = plan_file_open(&file, o->html);
        if (!failed) {
            write_page(&(page){.out = file.out, .h = h, .o = o, .s = s});
            failed = plan_file_close(&file);
        }
        if (failed)
            code = host_refuse(h, "cannot write %s: %s", o->html, strerror(errno));
    }
    free(s);
    return code;
}
