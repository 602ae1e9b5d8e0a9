#include "plan.h"

#include "../common/dtype.h"

#include <inttypes.h>

size_unit unit_for(double bytes)
{
    static const size_unit units[] = {{"B", 1.0},      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                                      {"TiB", 0x1p40}, {"PiB", 0x1p50}, {"EiB", 0x1p60}};
    size_t unit = 0;
    while (unit + 1 < sizeof units / sizeof units[0] && bytes >= units[unit + 1].bytes)
        unit++;
    return units[unit];
}

size_text human(int64_t bytes)
{
    const size_unit unit = unit_for((double)bytes);
    size_text out;
    snprintf(out.text, sizeof out.text, unit.bytes > 1.0 ? "%.2f %s" : "%.0f %s", (double)bytes / unit.bytes,
             unit.name);
    return out;
}

const char *dtype_name(int32_t id)
{
    const dtype_info *type = dtype_find(id);
    return type != NULL ? type->name : "?";
}

int is_mamba(const host *h)
{
    return h->model.family == RSSM_FAMILY_MAMBA2;
}

double speed_up(const host *h)
{
    return h->model.step_bytes > 0 ? (double)h->model.step_bytes_read_write / (double)h->model.step_bytes : 1.0;
}

void print_heads(FILE *out, const host *h)
{
    const rssm_description *m = &h->model;
    if (is_mamba(h))
        fprintf(out, "%" PRId32 " heads of %" PRId32 ", %" PRId32 " groups, state size %" PRId32, m->HV, m->V, m->H,
                m->K);
    else
        fprintf(out, "H = %" PRId32 ", HV = %" PRId32 ", K = %" PRId32 ", V = %" PRId32, m->H, m->HV, m->K, m->V);
}

void print_ranges(FILE *out, const int32_t *numbers, int32_t count)
{
    for (int32_t i = 0; i < count;) {
        int32_t last = i;
        while (last + 1 < count && numbers[last + 1] == numbers[last] + 1)
            last++;
        fprintf(out, "%s%" PRId32, i == 0 ? "" : ", ", numbers[i]);
        if (last > i)
            fprintf(out, "-%" PRId32, numbers[last]);
        i = last + 1;
    }
}
