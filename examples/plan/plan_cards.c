#include "plan_chart.h"
#include "plan_html.h"
#include "plan_page.h"

#include <inttypes.h>
#include <math.h>

/* One chart with its heading and table. */
typedef struct card {
    const char *id;
    const char *shows; /* a line below the heading */
    char title[256];
} card;

static const char *plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

static chart_text text_of(const char *format, double value)
{
    chart_text out;
    snprintf(out.text, sizeof out.text, format, value);
    return out;
}

static chart_text bytes_text(int64_t bytes)
{
    chart_text out;
    snprintf(out.text, sizeof out.text, "%s", human(bytes).text);
    return out;
}

static chart_text length_text(int32_t length)
{
    chart_text out;
    snprintf(out.text, sizeof out.text, "L = %" PRId32, length);
    return out;
}

/* "412 µs", "1.25 ms" */
static size_text time_text(double us)
{
    size_text out;
    if (us >= 1e6)
        snprintf(out.text, sizeof out.text, "%.2f s", us / 1e6);
    else if (us >= 1e3)
        snprintf(out.text, sizeof out.text, "%.2f ms", us / 1e3);
    else
        snprintf(out.text, sizeof out.text, us >= 10 ? "%.0f \xc2\xb5s" : "%.2f \xc2\xb5s", us);
    return out;
}

static chart_text rate_text(double bandwidth)
{
    return bandwidth >= 1e12 ? text_of("%g TB/s", bandwidth / 1e12) : text_of("%g GB/s", bandwidth / 1e9);
}

static void card_begin(const page *p, const card *c)
{
    fprintf(p->out, "<section class=\"card\" aria-labelledby=\"%s-h\">\n<h2 id=\"%s-h\">", c->id, c->id);
    html_heading(p->out, c->title);
    fprintf(p->out, "</h2>\n<p class=\"shows\">");
    html_text(p->out, c->shows);
    fprintf(p->out, "</p>\n");
}

static void card_end(const page *p)
{
    fprintf(p->out, "</section>\n");
}

static chart_frame frame_of(const card *c, const char *description, const char *across, const char *down)
{
    return (chart_frame){.id = c->id, .title = c->title, .description = description, .across = across, .down = down};
}

/* ---- the pool per rank ----------------------------------------------------------------------------------------------- */

static void bar_parts(chart_bar *bar, const rssm_layout *pool, double unit)
{
    const int64_t slots = pool->num_slots;
    const double whole = (double)pool->pool_bytes;
    bar->parts[0] = (double)slots * (double)pool->slot_state_bytes / unit;
    bar->parts[1] = (double)slots * (double)pool->slot_ring_bytes / unit;
    bar->parts[2] = (double)slots * (double)pool->slot_conv_bytes / unit;
    bar->parts[3] = fmax(0, whole / unit - bar->parts[0] - bar->parts[1] - bar->parts[2]);
}

static void legend(const page *p, int others)
{
    static const char *const names[CHART_PARTS] = {"state", "ring", "convolution", "cursors, workspace"};
    fprintf(p->out, "<ul class=\"legend\">");
    for (int i = 0; i < CHART_PARTS; i++) {
        if ((i == 2 && !p->o->conv) || (i == 3 && !others))
            continue;
        fprintf(p->out,
                "<li><svg width=\"14\" height=\"14\" aria-hidden=\"true\"><rect class=\"part p%d\" width=\"14\" "
                "height=\"14\"/></svg>%s</li>",
                i, names[i]);
    }
    fprintf(p->out, "<li>\xe2\x86\x92 this plan</li></ul>\n");
}

static void ranks_title(const page *p, card *c)
{
    const study_rank *first = NULL, *last = NULL;
    for (int i = 0; i < p->s->num_ranks; i++) {
        if (p->s->ranks[i].plan.status != RSSM_OK)
            continue;
        if (first == NULL)
            first = &p->s->ranks[i];
        last = &p->s->ranks[i];
    }
    if (first == NULL || first == last)
        snprintf(c->title, sizeof c->title, "%" PRId32 " rank%s: %s each, and no other split shown is possible",
                 p->h->model.tp_size, plural(p->h->model.tp_size), human(p->h->layout.pool_bytes).text);
    else
        snprintf(c->title, sizeof c->title, "A rank's pool shrinks from %s (tp = %" PRId32 ") to %s (tp = %" PRId32 ")",
                 human(first->plan.layout.pool_bytes).text, first->tp, human(last->plan.layout.pool_bytes).text,
                 last->tp);
}

/* A session's parts, as columns of a table: the convolution's only where the pool holds it. */
static void head_parts(const page *p, const char *columns[5], const char *first, const char *last, int *count)
{
    const char *const all[] = {first, "state", "ring", p->o->conv ? "conv" : NULL, last};
    *count = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] != NULL)
            columns[(*count)++] = all[i];
}

static void cell_parts(const page *p, const rssm_layout *pool, int64_t last)
{
    html_cell(p->out, pool->slot_state_bytes);
    html_cell(p->out, pool->slot_ring_bytes);
    if (p->o->conv)
        html_cell(p->out, pool->slot_conv_bytes);
    html_cell(p->out, last);
}

static void ranks_table(const page *p)
{
    const char *columns[5];
    int count;
    char caption[160];
    snprintf(caption, sizeof caption, "Bytes on one rank: the parts of a session, and the pool of %" PRId64 ".",
             p->h->layout.num_slots);
    head_parts(p, columns, "tp", "pool", &count);
    html_table(p->out, "ranks-n", caption, columns, count);
    for (int i = 0; i < p->s->num_ranks; i++) {
        const study_rank *r = &p->s->ranks[i];
        html_row(p->out, r->tp, r->tp == p->h->model.tp_size);
        if (r->plan.status != RSSM_OK)
            html_cell_text(p->out, r->plan.reason, count - 1);
        else
            cell_parts(p, &r->plan.layout, r->plan.layout.pool_bytes);
        html_row_end(p->out);
    }
    html_table_end(p->out);
}

static void ranks(const page *p)
{
    card c = {.id = "ranks"};
    char shows[160];
    snprintf(shows, sizeof shows, "The pool of %" PRId64 " session%s on each rank of a tensor-parallel group.",
             p->h->layout.num_slots, plural(p->h->layout.num_slots));
    c.shows = shows;
    ranks_title(p, &c);

    double longest = 0;
    for (int i = 0; i < p->s->num_ranks; i++)
        longest = fmax(longest, (double)p->s->ranks[i].plan.layout.pool_bytes);
    const size_unit unit = unit_for(longest);
    chart_bar bars[STUDY_RANKS];
    for (int i = 0; i < p->s->num_ranks; i++) {
        const study_rank *r = &p->s->ranks[i];
        bars[i] = (chart_bar){.is_plan = r->tp == p->h->model.tp_size};
        snprintf(bars[i].name.text, sizeof bars[i].name.text, "tp = %" PRId32, r->tp);
        bars[i].value = bytes_text(r->plan.layout.pool_bytes);
        if (r->plan.status == RSSM_OK)
            bar_parts(&bars[i], &r->plan.layout, unit.bytes);
        else
            snprintf(bars[i].value.text, sizeof bars[i].value.text, "refused");
    }
    chart_frame frame =
        frame_of(&c, "One bar for each number of ranks: state, ring and the rest of one rank's pool.", unit.name, "");
    chart_linear_ticks(&frame, longest / unit.bytes);
    card_begin(p, &c);
    legend(p, 1);
    chart_bars(p->out, &frame, bars, p->s->num_ranks);
    ranks_table(p);
    card_end(p);
}

/* ---- state against ring ---------------------------------------------------------------------------------------------- */

static double ring_share(const variant *v)
{
    return 100 * (double)v->layout.slot_ring_bytes / (double)v->layout.slot_total_bytes;
}

static void ring_table(const page *p)
{
    const char *columns[5];
    int count;
    head_parts(p, columns, "L", "session", &count);
    html_table(p->out, "ring-n", "Bytes of one session by ring length.", columns, count);
    for (int i = 0; i < p->s->num_rows; i++) {
        const rssm_layout *pool = &study_length(p->s, p->s->rows[i])->layout;
        html_row(p->out, p->s->rows[i], p->s->rows[i] == p->h->model.ring_length);
        cell_parts(p, pool, pool->slot_total_bytes);
        html_row_end(p->out);
    }
    html_table_end(p->out);
}

static void ring(const page *p)
{
    card c = {.id = "ring", .shows = "One session on this rank by ring length L, all its linear layers."};
    const study *s = p->s;
    const int32_t chosen = p->h->model.ring_length, last = s->rows[s->num_rows - 1];
    snprintf(c.title, sizeof c.title,
             "The ring is %.0f %% of a session at L = %" PRId32 ", and %.0f %% at L = %" PRId32,
             ring_share(study_length(s, chosen)), chosen, ring_share(study_length(s, last)), last);

    const double longest = (double)study_length(s, last)->layout.slot_total_bytes;
    const size_unit unit = unit_for(longest);
    chart_bar bars[STUDY_ROWS];
    for (int i = 0; i < s->num_rows; i++) {
        const rssm_layout *pool = &study_length(s, s->rows[i])->layout;
        bars[i] = (chart_bar){.name = length_text(s->rows[i]),
                              .value = bytes_text(pool->slot_total_bytes),
                              .is_plan = s->rows[i] == chosen,
                              .parts = {(double)pool->slot_state_bytes / unit.bytes,
                                        (double)pool->slot_ring_bytes / unit.bytes,
                                        (double)pool->slot_conv_bytes / unit.bytes}};
    }
    chart_frame frame = frame_of(&c, "One bar for each ring length: the state stays, the ring grows.", unit.name, "");
    chart_linear_ticks(&frame, longest / unit.bytes);
    card_begin(p, &c);
    legend(p, 0);
    chart_bars(p->out, &frame, bars, s->num_rows);
    ring_table(p);
    card_end(p);
}

/* ---- sessions against memory ----------------------------------------------------------------------------------------- */

static void sessions_table(const page *p)
{
    const study *s = p->s;
    chart_text names[STUDY_LINES];
    const char *columns[STUDY_LINES + 1] = {"bytes"};
    for (int i = 0; i < s->num_lines; i++) {
        names[i] = length_text(s->lines[i]);
        columns[i + 1] = names[i].text;
    }
    html_table(p->out, "sessions-n", "Sessions that fit, by memory of this rank and ring length.", columns,
               s->num_lines + 1);
    for (int b = 0; b < STUDY_BUDGETS; b++) {
        html_row(p->out, s->budgets[b], s->budgets[b] == p->o->init.memory_budget_bytes);
        for (int i = 0; i < s->num_lines; i++)
            html_cell(p->out, s->sessions[i][b]);
        html_row_end(p->out);
    }
    html_table_end(p->out);
}

static void sessions(const page *p)
{
    card c = {.id = "sessions", .shows = "Sessions alive at once on this rank, for some ring lengths."};
    if (p->o->init.memory_budget_bytes == 0)
        c.shows =
            "Sessions alive at once on this rank, for some ring lengths. The memory is an example: --memory sets it.";
    const study *s = p->s;
    const int32_t chosen = p->h->model.ring_length;
    const size_unit unit = unit_for((double)s->memory);
    const int64_t at_last = s->sessions[s->num_lines - 1][STUDY_BUDGETS - 1];
    chart_line lines[STUDY_LINES];
    int others = 0;
    for (int i = 0; i < s->num_lines; i++) {
        const int64_t most = s->sessions[i][STUDY_BUDGETS - 1];
        lines[i] = (chart_line){.name = length_text(s->lines[i]), .style = s->lines[i] == chosen ? 0 : ++others};
        if (s->lines[i] == chosen)
            snprintf(c.title, sizeof c.title,
                     "%s hold %" PRId64 " session%s at L = %" PRId32 ", and %" PRId64 " at L = %" PRId32,
                     human(s->memory).text, most, plural(most), chosen, at_last, s->lines[s->num_lines - 1]);
        if (s->lines[i] == 1)
            snprintf(lines[i].name.text, sizeof lines[i].name.text, "L = 1, no ring");
        snprintf(lines[i].value.text, sizeof lines[i].value.text, "%" PRId64, most);
        lines[i].num_points = 1; /* from nothing */
        for (int b = 0; b < STUDY_BUDGETS; b++) {
            chart_point *point = &lines[i].points[lines[i].num_points++];
            *point = (chart_point){
                .x = (double)s->budgets[b] / (double)s->memory, .y = (double)s->sessions[i][b], .mark = 1};
            snprintf(point->hover.text, sizeof point->hover.text, "L = %" PRId32 ", %s: %" PRId64, s->lines[i],
                     human(s->budgets[b]).text, s->sessions[i][b]);
        }
    }
    char across[64];
    snprintf(across, sizeof across, "memory of this rank, %s", unit.name);
    chart_frame frame = frame_of(&c, "Lines of sessions over memory, one for each ring length.", across, "sessions");
    chart_linear_ticks(&frame, (double)s->memory / unit.bytes);
    card_begin(p, &c);
    chart_lines(p->out, &frame, lines, s->num_lines);
    sessions_table(p);
    card_end(p);
}

/* ---- modelled time --------------------------------------------------------------------------------------------------- */

static void time_title(const page *p, card *c)
{
    const double ratio = speed_up(p->h);
    const int32_t chosen = p->h->model.ring_length;
    if (ratio >= 1.005)
        snprintf(c->title, sizeof c->title, "Replay at L = %" PRId32 " needs %.0f %% of the read-and-write step's time",
                 chosen, 100 / ratio);
    else if (ratio > 0.995)
        snprintf(c->title, sizeof c->title, "At L = %" PRId32 " a step takes as long as read-and-write", chosen);
    else
        snprintf(c->title, sizeof c->title, "At L = %" PRId32 " replay takes %.0f %% longer than read-and-write",
                 chosen, 100 / ratio - 100);
}

static void time_table(const page *p)
{
    static const char *const columns[] = {"batch", "replay", "read-write"};
    html_table(p->out, "time-n", "Modelled microseconds of a step through all linear layers of this rank.", columns, 3);
    for (int i = 0; i < STUDY_BATCHES; i++) {
        const int64_t batch = p->s->batches[i];
        html_row(p->out, batch, 0);
        html_cell_number(p->out, study_step_us(p->s, p->h, p->h->model.step_bytes, batch));
        html_cell_number(p->out, study_step_us(p->s, p->h, p->h->model.step_bytes_read_write, batch));
        html_row_end(p->out);
    }
    html_table_end(p->out);
}

static void time_line(const page *p, chart_line *line, int64_t step_bytes, double unit)
{
    const int64_t last = p->s->batches[STUDY_BATCHES - 1];
    snprintf(line->value.text, sizeof line->value.text, "%s",
             time_text(study_step_us(p->s, p->h, step_bytes, last)).text);
    line->num_points = 1; /* from nothing */
    for (int i = 0; i < STUDY_BATCHES; i++) {
        const int64_t batch = p->s->batches[i];
        const double us = study_step_us(p->s, p->h, step_bytes, batch);
        chart_point *point = &line->points[line->num_points++];
        *point = (chart_point){.x = (double)batch / (double)last, .y = us / unit, .mark = 1};
        snprintf(point->hover.text, sizeof point->hover.text, "%" PRId64 " rows: %s", batch, time_text(us).text);
    }
}

static void step_time(const page *p)
{
    char shows[320];
    snprintf(shows, sizeof shows,
             "A model, not a measurement: the fewest bytes of a step through all linear layers of this rank, at %s "
             "(%s). Small "
             "batches take longer: launches and latency are not in it.",
             rate_text(p->s->bandwidth).text,
             p->o->bandwidth > 0 ? "--bandwidth" : "the default, an H200's data sheet");
    card c = {.id = "time", .shows = shows};
    time_title(p, &c);
    const rssm_description *m = &p->h->model;
    const int64_t most = m->step_bytes > m->step_bytes_read_write ? m->step_bytes : m->step_bytes_read_write;
    const double slowest = study_step_us(p->s, p->h, most, p->s->batches[STUDY_BATCHES - 1]);
    const double unit = slowest >= 1e6 ? 1e6 : slowest >= 1e3 ? 1e3 : 1;
    chart_line lines[2] = {{.name = {"replay"}, .style = 0}, {.name = {"read-write"}, .style = 1}};
    time_line(p, &lines[0], m->step_bytes, unit);
    time_line(p, &lines[1], m->step_bytes_read_write, unit);
    chart_frame frame = frame_of(&c, "Two straight lines of modelled time over batch: replay and read-and-write.",
                                 "batch, rows of one step",
                                 unit > 1e3 ? "s a step"
                                 : unit > 1 ? "ms a step"
                                            : "\xc2\xb5s a step");
    for (int64_t batch = 0; batch <= 512; batch += 128) {
        frame.ticks[frame.num_ticks].at = (double)batch / 512;
        frame.ticks[frame.num_ticks++].text = text_of("%g", (double)batch);
    }
    card_begin(p, &c);
    chart_lines(p->out, &frame, lines, 2);
    time_table(p);
    card_end(p);
}

/* ---- bytes of a step by ring length ---------------------------------------------------------------------------------- */

static void bytes_title(const page *p, card *c)
{
    const int32_t chosen = p->h->model.ring_length, best = p->s->fewest_bytes;
    if (best == chosen)
        snprintf(c->title, sizeof c->title, "L = %" PRId32 ", this plan's, moves the fewest bytes", best);
    else
        snprintf(c->title, sizeof c->title,
                 "L = %" PRId32 " moves the fewest bytes; this plan's L = %" PRId32 " moves %.1f %% more", best, chosen,
                 100.0 * (double)p->h->model.step_bytes / (double)study_length(p->s, best)->step_bytes - 100);
}

static void bytes_table(const page *p)
{
    static const char *const columns[] = {"L", "bytes", "of read-write"};
    html_table(p->out, "bytes-n", "Modelled bytes of a step: one row in one layer.", columns, 3);
    for (int i = 0; i < p->s->num_rows; i++) {
        const int64_t bytes = study_length(p->s, p->s->rows[i])->step_bytes;
        html_row(p->out, p->s->rows[i], p->s->rows[i] == p->h->model.ring_length);
        html_cell(p->out, bytes);
        html_cell_percent(p->out, 100.0 * (double)bytes / (double)p->h->model.step_bytes_read_write);
        html_row_end(p->out);
    }
    html_table_end(p->out);
}

/* A ring length has its place by its logarithm. */
static double place_of(int32_t length)
{
    return length > 1 ? log2(length) / log2(STUDY_LENGTHS) : 0;
}

static void bytes_curve(const page *p, chart_line *line, double unit)
{
    const study *s = p->s;
    *line = (chart_line){.name = {"replay"}, .value = bytes_text(study_length(s, STUDY_LENGTHS)->step_bytes)};
    for (int32_t L = s->min_length; L <= STUDY_LENGTHS; L++) {
        chart_point *point = &line->points[line->num_points++];
        *point = (chart_point){.x = place_of(L), .y = (double)study_length(s, L)->step_bytes / unit};
        if (L == p->h->model.ring_length)
            point->above = length_text(L);
        else if (L == s->fewest_bytes)
            point->below = length_text(L);
        point->mark = point->above.text[0] != 0 || point->below.text[0] != 0;
        snprintf(point->hover.text, sizeof point->hover.text, "L = %" PRId32 ": %s", L,
                 human(study_length(s, L)->step_bytes).text);
    }
}

static void step_bytes(const page *p)
{
    card c = {.id = "bytes",
              .shows =
                  "Modelled bytes of a step, one row in one layer: a longer ring writes the state less often, but is "
                  "read itself."};
    bytes_title(p, &c);
    const int64_t read_write = p->h->model.step_bytes_read_write;
    const size_unit unit = unit_for((double)read_write);
    chart_line lines[2];
    bytes_curve(p, &lines[0], unit.bytes);
    lines[1] = (chart_line){.name = {"read-write"}, .value = bytes_text(read_write), .style = 1, .num_points = 2};
    for (int i = 0; i < 2; i++)
        lines[1].points[i] = (chart_point){.x = i, .y = (double)read_write / unit.bytes};
    char down[32];
    snprintf(down, sizeof down, "%s a step", unit.name);
    chart_frame frame =
        frame_of(&c, "A curve of bytes over ring length, and the level line of read-and-write.", "ring length L", down);
    for (int32_t L = 1; L <= STUDY_LENGTHS; L *= 2) {
        frame.ticks[frame.num_ticks].at = place_of(L);
        frame.ticks[frame.num_ticks++].text = text_of("%g", L);
    }
    card_begin(p, &c);
    chart_lines(p->out, &frame, lines, 2);
    bytes_table(p);
    card_end(p);
}

/* ---- what drafts cost ------------------------------------------------------------------------------------------------ */

static void drafts_table(const page *p)
{
    static const char *const columns[] = {"drafts", "replay", "snapshots", "their bytes"};
    html_table(p->out, "drafts-n", "Bytes of one session by drafts in a window: room in the ring, or T + 1 states.",
               columns, 4);
    for (int D = 1; D <= p->s->num_drafts; D++) {
        const study_drafts *d = &p->s->drafts[D];
        html_row(p->out, D, D == p->h->model.max_draft_tokens);
        html_cell(p->out, d->plan.layout.slot_total_bytes);
        html_cell(p->out, d->snapshots);
        html_cell(p->out, d->snapshot_bytes);
        html_row_end(p->out);
    }
    html_table_end(p->out);
}

static void drafts_point(const page *p, chart_line *line, int D, int64_t bytes, double unit)
{
    chart_point *point = &line->points[line->num_points++];
    *point = (chart_point){
        .x = (double)(D - 1) / (p->s->num_drafts - 1), .y = (double)bytes / unit, .mark = p->s->num_drafts <= 16};
    snprintf(point->hover.text, sizeof point->hover.text, "%d draft%s: %s", D, plural(D), human(bytes).text);
    line->value = bytes_text(bytes);
}

static void drafts(const page *p)
{
    const study *s = p->s;
    const study_drafts *example = &s->drafts[s->example_drafts];
    const double plain = (double)s->drafts[0].plan.layout.slot_total_bytes;
    card c = {.id = "drafts"};
    char shows[224];
    snprintf(shows, sizeof shows,
             "One session with room to go back: drafts in the ring, or a state for each token. Without drafts it takes "
             "%s.%s",
             human(s->drafts[0].plan.layout.slot_total_bytes).text,
             p->o->draft == 0 ? " (An example: --draft plans for some.)" : "");
    c.shows = shows;
    snprintf(c.title, sizeof c.title,
             "%d draft%s: %.2f \xc3\x97 the memory of plain decoding in the ring, %.2f \xc3\x97 as %" PRId64
             " state snapshots",
             s->example_drafts, plural(s->example_drafts), (double)example->plan.layout.slot_total_bytes / plain,
             (double)example->snapshot_bytes / plain, example->snapshots);

    const size_unit unit = unit_for((double)s->drafts[s->num_drafts].snapshot_bytes);
    chart_line lines[2] = {{.name = {"replay"}, .style = 0}, {.name = {"snapshots"}, .style = 1}};
    for (int D = 1; D <= s->num_drafts; D++) {
        drafts_point(p, &lines[0], D, s->drafts[D].plan.layout.slot_total_bytes, unit.bytes);
        drafts_point(p, &lines[1], D, s->drafts[D].snapshot_bytes, unit.bytes);
    }
    char down[32];
    snprintf(down, sizeof down, "%s a session", unit.name);
    chart_frame frame = frame_of(&c, "Two lines of memory over drafts: replay stays low, snapshots climb.",
                                 "draft tokens in a window", down);
    const int step = s->num_drafts > 16 ? 16 : 5;
    for (int D = 1; D <= s->num_drafts; D = D == 1 ? step : D + step) {
        frame.ticks[frame.num_ticks].at = (double)(D - 1) / (s->num_drafts - 1);
        frame.ticks[frame.num_ticks++].text = text_of("%g", D);
    }
    card_begin(p, &c);
    chart_lines(p->out, &frame, lines, 2);
    drafts_table(p);
    card_end(p);
}

void plan_cards(const page *p)
{
    static void (*const cards[])(const page *p) = {ranks, ring, sessions, step_time, step_bytes, drafts};
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++)
        cards[i](p);
}
