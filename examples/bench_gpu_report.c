/* What replayssm-bench says about its cases on a GPU: a table, a report in JSON. */
#include "bench_gpu.h"

#include <inttypes.h>
#include <stdio.h>

void bench_gpu_print_head(const gpu_bench *b)
{
    fprintf(b->text,
            "%s, %d multiprocessors, L2 %" PRId64 " MiB, driver %d.%d; %d rounds; us per layer: median (p10-p90)\n"
            "floor: bytes at the copy bandwidth of the same round; goal: from B = %d on; WORSE: more than %.2f x the "
            "read-and-write step\n",
            b->g.name, b->g.multiprocessors, b->g.l2_bytes >> 20, b->g.driver_version / 1000,
            b->g.driver_version % 1000 / 10, BENCH_GPU_ROUNDS, GOAL_BATCH, GOAL_NO_WORSE);
    fprintf(b->text, "copy: %s; read: %s\n", gpu_copy_loop(&b->g), gpu_read_loop(&b->g));
    fprintf(b->text, "%-30s %2s %9s | %-24s %8s %6s %8s %-6s %11s | %-24s %6s %6s %-5s | %8s %6s | %4s %9s | %s\n",
            "case", "L", "passes x", "step", "floor", "ratio", "goal", "", "bytes", "read-write", "ratio", "/ rw", "",
            "in pass", "begin", "GB/s", "", "kernel; read-write kernel");
}

static void print_us(FILE *text, const summary *us)
{
    char cell[64];
    snprintf(cell, sizeof cell, "%.2f (%.2f-%.2f)", us->median, us->p10, us->p90);
    fprintf(text, "%-24s ", cell);
}

static int holds_goal(const gpu_outcome *c)
{
    return c->what.batch < GOAL_BATCH || c->step.us.median <= c->goal_us;
}

static int no_worse(const gpu_outcome *c)
{
    return c->what.tokens > 1 || c->step.over_read_write.median <= GOAL_NO_WORSE;
}

static void print_extras(FILE *text, const gpu_outcome *c)
{
    if (c->together > 0.0)
        fprintf(text, "    all rows together: worst / median step of a window %.2f; with RSSM_INIT_SPREAD_FLUSH %.2f\n",
                c->together, c->spread);
    if (c->host.empty.median > 0.0)
        fprintf(text,
                "    host, ns: validate %.0f, decode %.0f (validated before: %.0f), launch of an empty kernel %.0f, "
                "decode over it %.0f\n",
                c->host.validate.median, c->host.decode.median, c->host.decode_skip.median, c->host.empty.median,
                c->host.over_empty.median);
}

void bench_gpu_print_case(const gpu_bench *b, const gpu_outcome *c)
{
    FILE *text = b->text;
    char size[32], verdict[16] = "";
    snprintf(size, sizeof size, "%" PRId64 " x %" PRId64, c->passes, c->layers);
    if (c->what.batch >= GOAL_BATCH)
        snprintf(verdict, sizeof verdict, holds_goal(c) ? "ok" : "+%.0f%%",
                 100.0 * (c->step.us.median / c->goal_us - 1.0));
    fprintf(text, "%-30s %2" PRId64 " %9s | ", c->name, c->what.ring_length, size);
    print_us(text, &c->step.us);
    fprintf(text, "%8.2f %6.2f %8.2f %-6s %11" PRId64 " | ", c->step.floor_us.median, c->step.ratio.median, c->goal_us,
            verdict, c->step.bytes);
    print_us(text, &c->read_write.us);
    fprintf(text, "%6.2f %6.2f %-5s | %8.2f %6.2f | %4.0f %9.0f | %s; %s\n", c->read_write.ratio.median,
            c->step.over_read_write.median, no_worse(c) ? "" : "WORSE", c->whole_us.median, c->begin_us.median,
            1e-9 * c->copy.median, 1e-9 * c->read.median, c->kernel, c->read_write_kernel);
    print_extras(text, c);
    fflush(text);
}

void bench_gpu_print_bars(const gpu_bench *b)
{
    int64_t held = 0, judged = 0, worse = 0, plain = 0;
    for (int64_t i = 0; i < b->count; i++) {
        const gpu_outcome *c = &b->outcomes[i];
        judged += c->what.batch >= GOAL_BATCH;
        held += c->what.batch >= GOAL_BATCH && holds_goal(c);
        plain += c->what.tokens == 1;
        worse += !no_worse(c);
    }
    fprintf(b->text,
            "%" PRId64 " cases; from B = %d on %" PRId64 " of %" PRId64 " within the goal; %" PRId64 " of %" PRId64
            " plain steps slower than %.2f x the read-and-write step; %" PRId64 " cases left out\n",
            b->count, GOAL_BATCH, held, judged, worse, plain, GOAL_NO_WORSE, b->skipped);
}

static void json_together(json *out, const gpu_outcome *c)
{
    if (c->together <= 0.0)
        return;
    json_number(out, "worst_over_median_together", c->together);
    json_number(out, "worst_over_median_spread", c->spread);
}

static void json_host(json *out, const host_cost *cost)
{
    if (cost->empty.median <= 0.0)
        return;
    json_object(out, "host_ns");
    bench_json_summary(out, "validate", &cost->validate);
    bench_json_summary(out, "decode", &cost->decode);
    bench_json_summary(out, "decode_skip_validate", &cost->decode_skip);
    bench_json_summary(out, "empty_launch", &cost->empty);
    bench_json_summary(out, "decode_over_empty_launch", &cost->over_empty);
    json_end(out);
}

static void json_steps(json *out, const gpu_outcome *c)
{
    bench_json_figure(out, "replay", &c->step, "percent_of_copy");
    json_string(out, "kernel", c->kernel);
    json_number(out, "kernels_per_layer", c->launches);
    json_number(out, "goal_us", c->goal_us);
    json_end(out);
    bench_json_figure(out, "read_write", &c->read_write, "percent_of_copy");
    json_string(out, "kernel", c->read_write_kernel);
    json_end(out);
    bench_json_summary(out, "in_pass_us", &c->whole_us);
    bench_json_summary(out, "step_begin_us", &c->begin_us);
    if (c->what.tokens > 1)
        bench_json_summary(out, "commit_us", &c->end_us);
}

static void json_case(json *out, const gpu_outcome *c)
{
    json_object(out, NULL);
    json_string(out, "name", c->name);
    json_string(out, "shape", c->what.shape->name);
    json_string(out, "family", bench_gpu_family(c->what.shape));
    json_string(out, "state", dtype_find(c->state)->name);
    json_string(out, "io", dtype_find(c->io)->name);
    json_string(out, "ring", dtype_find(c->ring_dtype)->name);
    bench_json_heads(out, c->what.shape->heads);
    json_int(out, "batch", c->what.batch);
    json_int(out, "tokens", c->what.tokens);
    json_int(out, "ring_length", c->what.ring_length);
    json_int(out, "auto_ring_length", c->auto_ring_length);
    json_int(out, "layers", c->layers);
    json_int(out, "passes", c->passes);
    json_int(out, "pool_bytes", c->pool_bytes);
    bench_json_summary(out, "copy_bytes_per_second", &c->copy);
    bench_json_summary(out, "read_bytes_per_second", &c->read);
    json_steps(out, c);
    json_number(out, "speedup", 1.0 / c->step.over_read_write.median);
    json_together(out, c);
    json_host(out, &c->host);
    json_end(out);
}

json bench_gpu_json_begin(const gpu_bench *b, int rounds)
{
    rssm_info info = {.struct_size = sizeof info};
    json out = json_to(stdout);
    b->common->base.api->plugin_info(&info, NULL);
    json_object(&out, NULL);
    json_string(&out, "version", info.version);
    json_string(&out, "git_revision", info.git_revision);
    json_string(&out, "device", b->common->o->device);
    json_string(&out, "device_name", b->g.name);
    json_int(&out, "driver_version", b->g.driver_version);
    json_int(&out, "multiprocessors", b->g.multiprocessors);
    json_int(&out, "last_level_cache_bytes", b->g.l2_bytes);
    json_int(&out, "samples", rounds);
    json_string(&out, "copy_loop", gpu_copy_loop(&b->g));
    json_string(&out, "read_loop", gpu_read_loop(&b->g));
    json_int(&out, "cases_left_out", b->skipped);
    return out;
}

void bench_gpu_json(const gpu_bench *b)
{
    json out = bench_gpu_json_begin(b, BENCH_GPU_ROUNDS);
    json_array(&out, "cases");
    for (int64_t i = 0; i < b->count; i++)
        json_case(&out, &b->outcomes[i]);
    json_end(&out);
    json_end(&out);
}
