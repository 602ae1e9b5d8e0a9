#include "bench.h"

const family_shape bench_families[NUM_FAMILIES] = {
    {"kda", RSSM_FAMILY_KDA, {32, 32, 128, 128}},
    {"gdn", RSSM_FAMILY_GDN, {16, 32, 128, 128}},
    {"mamba2", RSSM_FAMILY_MAMBA2, {8, 64, 128, 64}},
};

int64_t bench_ring_row_bytes(const host *h)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < h->layout.num_tensors; i++) {
        const rssm_tensor_info *t = host_tensor(h, i);
        if (t->per_layer && t->role != RSSM_T_STATE && t->role != RSSM_T_CONV)
            bytes += t->bytes_per_slot / h->model.ring_rows;
    }
    return bytes;
}

int64_t bench_state_bytes(const host *h)
{
    return h->layout.slot_state_bytes / h->layout.num_layers;
}

int64_t bench_io_bytes(const workload *w)
{
    int64_t bytes = w->packed.bytes + w->gate.bytes + w->out.bytes;
    if (w->host->model.family != RSSM_FAMILY_MAMBA2)
        bytes += w->beta.bytes;
    return bytes / w->batch;
}

int64_t bench_layer_bytes(const workload *w, int64_t batch)
{
    const host *h = w->host;
    const int64_t L = h->model.ring_length, state = bench_state_bytes(h), row = bench_ring_row_bytes(h);
    if (L == 1)
        return batch * (2 * state + bench_io_bytes(w));
    return batch * (state + state / L + (L - 1) * row / 2 + row + bench_io_bytes(w));
}

void bench_count_rows(const workload *w, const int32_t *rows, int64_t batch, int windows, row_count *count)
{
    const int64_t state = bench_state_bytes(w->host), ring_row = bench_ring_row_bytes(w->host);
    const int64_t io = bench_io_bytes(w);
    count->steps++;
    for (int64_t b = 0; b < batch; b++, rows += RSSM_ROW_WIDTH) {
        const int64_t records = rows[2], flush = rows[3] != 0, tokens = rows[6];
        const int64_t stored = windows ? tokens : 1 - flush;
        count->flushes += flush;
        count->bytes += state + records * ring_row + flush * state + stored * ring_row + tokens * io;
    }
}

summary bench_paired(const double *us, const double *other_us, int64_t samples)
{
    double ratio[BENCH_MAX_SAMPLES];
    for (int64_t i = 0; i < samples; i++)
        ratio[i] = us[i] / other_us[i];
    return stats_summary(ratio, samples);
}

void bench_json_summary(json *out, const char *key, const summary *s)
{
    json_object(out, key);
    json_number(out, "median", s->median);
    json_number(out, "p10", s->p10);
    json_number(out, "p90", s->p90);
    json_end(out);
}

void bench_json_figure(json *out, const char *key, const figure *f, const char *percent_key)
{
    json_object(out, key);
    bench_json_summary(out, "us", &f->us);
    bench_json_summary(out, "floor_us", &f->floor_us);
    bench_json_summary(out, "ratio", &f->ratio);
    bench_json_summary(out, "over_read_write", &f->over_read_write);
    json_int(out, "bytes", f->bytes);
    json_number(out, "bytes_counted", f->counted_bytes);
    json_number(out, percent_key, 100.0 / f->ratio.median);
    json_int(out, "steps", f->steps);
    json_int(out, "flushes", f->flushes);
}

void bench_json_heads(json *out, const int64_t heads[4])
{
    static const char *const names[] = {"H", "HV", "K", "V"};
    json_object(out, "heads");
    for (int i = 0; i < 4; i++)
        json_int(out, names[i], heads[i]);
    json_end(out);
}
