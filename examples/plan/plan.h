/* What the parts of replayssm-plan share: one plan, found through the plugin, and three ways to write it (text, JSON, a page).
 * No number is computed twice: all of them come from init, describe and pool_layout. */
#ifndef EXAMPLES_PLAN_H_
#define EXAMPLES_PLAN_H_

#include "../common/host.h"

#include <stdio.h>

typedef struct plan_options {
    rssm_init_args init;
    int64_t tp, rank, ring, draft;
    int64_t bandwidth; /* bytes per second of the modelled times; 0: PLAN_BANDWIDTH */
    int32_t conv, json;
    const char *plugin, *device, *html;
} plan_options;

/* The rate of the modelled times unless --bandwidth gives one: the data sheet of an H200. */
#define PLAN_BANDWIDTH      4800000000000
#define PLAN_BANDWIDTH_HELP "4.8TB/s: an H200's data sheet"

/* ---- plan_values.c: small things that all three writers say alike ---------------------------------------------------- */

/* "1.50 GiB"; by value, so that one printf may hold several. */
typedef struct size_text {
    char text[24];
} size_text;

/* KiB, MiB, ...: the largest that is not larger than `bytes`. */
typedef struct size_unit {
    const char *name;
    double bytes;
} size_unit;

size_unit unit_for(double bytes);
size_text human(int64_t bytes);
const char *dtype_name(int32_t id);
int is_mamba(const host *h);
double speed_up(const host *h);                                      /* bytes of read-and-write over bytes of replay */
void print_heads(FILE *out, const host *h);                          /* "H = 16, HV = 32, K = 128, V = 128" */
void print_ranges(FILE *out, const int32_t *numbers, int32_t count); /* 0,1,2,4,5 as "0-2, 4-5" */

/* ---- plan_variant.c: other plans beside this one --------------------------------------------------------------------- */

/* The numbers of a plan whose instance is gone again. */
typedef struct variant {
    rssm_status status; /* RSSM_OK, or the plugin refuses: `reason` says why and the rest is 0 */
    char reason[512];
    int32_t ring_length;
    int64_t step_bytes;
    rssm_layout layout; /* without its tensors */
} variant;

variant plan_variant(const host *h, const rssm_init_args *args);

/* What a window of T = drafts + 1 tokens costs in memory, over all layers of this rank. A server that writes its state at
 * every token needs T + 1 of them per session to go back to; replay needs room in the ring. */
typedef struct speculation {
    int64_t drafts, tokens;
    int64_t plain_bytes, bytes;     /* of a slot without and with room for drafts, the ring equally long */
    int64_t ring_bytes, conv_bytes; /* the difference: draft rows, convolution columns */
    int64_t snapshots, snapshot_bytes;
    int64_t budget; /* 0: not given; then no sessions */
    int64_t plain_sessions, sessions, snapshot_sessions;
} speculation;

int plan_speculation(const host *h, const plan_options *o, speculation *s);

/* ---- the writers; `s` is NULL without drafts ------------------------------------------------------------------------- */

void plan_print_json(const host *h, const speculation *s);
void plan_print_text(const host *h, const plan_options *o, const speculation *s);
/* Writes o->html whole or not at all. */
int plan_write_page(const host *h, const plan_options *o);

#endif
