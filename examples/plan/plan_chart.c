#include "plan_chart.h"

#include "plan_html.h"

#include <math.h>
#include <string.h>

enum { HEIGHT = 232, LABEL_GAP = 34, BAR_PITCH = 26, BAR_HEIGHT = 16 };

/* ---- around the plot ------------------------------------------------------------------------------------------------- */

static void begin(FILE *out, const chart_frame *f, const char *kind, int height)
{
    fprintf(out,
            "<div class=\"plot %s\"><svg role=\"img\" aria-labelledby=\"%s-t %s-d\" width=\"100%%\" height=\"%d\">\n",
            kind, f->id, f->id, height);
    fprintf(out, "<title id=\"%s-t\">", f->id);
    html_text(out, f->title);
    fprintf(out, "</title><desc id=\"%s-d\">", f->id);
    html_text(out, f->description);
    fprintf(out, "</desc>\n");
}

static void across(FILE *out, const chart_frame *f, int height)
{
    for (int i = 0; i < f->num_ticks; i++) {
        const double x = 100 * f->ticks[i].at;
        fprintf(out, "<line class=\"grid\" x1=\"%.2f%%\" x2=\"%.2f%%\" y1=\"0\" y2=\"%d\"/>", x, x, height);
        fprintf(out, "<text class=\"tick mid\" x=\"%.2f%%\" y=\"%d\">%s</text>\n", x, height + 18,
                f->ticks[i].text.text);
    }
    fprintf(out, "<text class=\"axis mid\" x=\"50%%\" y=\"%d\">", height + 38);
    html_text(out, f->across);
    fprintf(out, "</text>\n");
}

double chart_step(double max)
{
    static const double nice[] = {1, 2, 5, 10};
    if (!(max > 0))
        return 1;
    const double rough = max / 5, power = pow(10, floor(log10(rough)));
    for (size_t i = 0; i < sizeof nice / sizeof nice[0]; i++)
        if (nice[i] * power >= rough * 0.999)
            return nice[i] * power;
    return 10 * power;
}

/* 250, 0.5, 2.5 M */
static chart_text tick_text(double value)
{
    chart_text out;
    if (value >= 1e6)
        snprintf(out.text, sizeof out.text, "%g M", value / 1e6);
    else
        snprintf(out.text, sizeof out.text, "%g", value);
    return out;
}

void chart_linear_ticks(chart_frame *f, double max)
{
    const double step = chart_step(max);
    f->num_ticks = 0;
    for (int i = 0; i < CHART_MAX_TICKS && i * step <= max * 1.0001; i++) {
        chart_tick *tick = &f->ticks[f->num_ticks++];
        tick->at = max > 0 ? i * step / max : 0;
        tick->text = tick_text(i * step);
    }
}

/* ---- lines ----------------------------------------------------------------------------------------------------------- */

static double top_of(const chart_line *lines, int num_lines)
{
    double top = 0;
    for (int i = 0; i < num_lines; i++)
        for (int p = 0; p < lines[i].num_points; p++)
            top = fmax(top, lines[i].points[p].y);
    const double step = chart_step(top);
    return fmax(step, ceil(top / step * 0.9999) * step);
}

static void down(FILE *out, const chart_frame *f, double top)
{
    const double step = chart_step(top);
    for (int i = 0; i * step <= top * 1.0001; i++) {
        const double y = HEIGHT - HEIGHT * i * step / top;
        fprintf(out, "<line class=\"%s\" x1=\"0\" x2=\"100%%\" y1=\"%.1f\" y2=\"%.1f\"/>", i == 0 ? "base" : "grid", y,
                y);
        fprintf(out, "<text class=\"tick end\" x=\"-8\" y=\"%.1f\">%s</text>\n", y + 4, tick_text(i * step).text);
    }
    fprintf(out, "<text class=\"axis\" x=\"-44\" y=\"-18\">");
    html_text(out, f->down);
    fprintf(out, "</text>\n");
}

static void draw_mark(FILE *out, const chart_point *point, double top)
{
    const double x = 100 * point->x, y = HEIGHT - HEIGHT * point->y / top;
    fprintf(out, "<g><title>");
    html_text(out, point->hover.text);
    fprintf(out, "</title><circle class=\"touch\" cx=\"%.2f%%\" cy=\"%.1f\" r=\"11\"/>", x, y);
    fprintf(out, "<circle class=\"mark\" cx=\"%.2f%%\" cy=\"%.1f\" r=\"3.5\"/></g>\n", x, y);
    if (point->above.text[0] != 0)
        fprintf(out, "<text class=\"name mid\" x=\"%.2f%%\" y=\"%.1f\">%s</text>\n", x, y - 12, point->above.text);
    if (point->below.text[0] != 0)
        fprintf(out, "<text class=\"name mid\" x=\"%.2f%%\" y=\"%.1f\">%s</text>\n", x, y + 21, point->below.text);
}

static void draw_line(FILE *out, const chart_line *l, double top)
{
    fprintf(out, "<g class=\"series s%d\">\n", l->style);
    for (int p = 0; p + 1 < l->num_points; p++)
        fprintf(out, "<line x1=\"%.2f%%\" y1=\"%.1f\" x2=\"%.2f%%\" y2=\"%.1f\"/>\n", 100 * l->points[p].x,
                HEIGHT - HEIGHT * l->points[p].y / top, 100 * l->points[p + 1].x,
                HEIGHT - HEIGHT * l->points[p + 1].y / top);
    for (int p = 0; p < l->num_points; p++)
        if (l->points[p].mark)
            draw_mark(out, &l->points[p], top);
    fprintf(out, "</g>\n");
}

/* Labels beside the lines' ends, moved apart where the ends are too close. order[]: lines from the top down. */
static void place_labels(const double *ends, const int *order, int n, double *at)
{
    for (int i = 0; i < n; i++) {
        at[order[i]] = ends[order[i]];
        if (i > 0 && at[order[i]] < at[order[i - 1]] + LABEL_GAP)
            at[order[i]] = at[order[i - 1]] + LABEL_GAP;
    }
    double limit = HEIGHT - 14;
    for (int i = n - 1; i >= 0; i--) {
        at[order[i]] = fmin(at[order[i]], limit);
        limit = at[order[i]] - LABEL_GAP;
    }
}

static void label_lines(FILE *out, const chart_line *lines, int n, double top)
{
    double ends[CHART_MAX_LINES], at[CHART_MAX_LINES];
    int order[CHART_MAX_LINES];
    for (int i = 0; i < n; i++) {
        ends[i] = HEIGHT - HEIGHT * lines[i].points[lines[i].num_points - 1].y / top;
        int k = i;
        for (; k > 0 && ends[order[k - 1]] > ends[i]; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
    place_labels(ends, order, n, at);
    fprintf(out, "<svg x=\"100%%\" overflow=\"visible\">\n"); /* from here on across is pixels, too */
    for (int i = 0; i < n; i++) {
        fprintf(out, "<g class=\"series s%d\"><line class=\"leader\" x1=\"5\" y1=\"%.1f\" x2=\"13\" y2=\"%.1f\"/></g>",
                lines[i].style, ends[i], at[i]);
        fprintf(out, "<text class=\"name\" x=\"16\" y=\"%.1f\">", at[i] + 1);
        html_text(out, lines[i].name.text);
        fprintf(out, "</text><text class=\"value\" x=\"16\" y=\"%.1f\">", at[i] + 16);
        html_text(out, lines[i].value.text);
        fprintf(out, "</text>\n");
    }
    fprintf(out, "</svg>\n");
}

void chart_lines(FILE *out, const chart_frame *f, const chart_line *lines, int num_lines)
{
    const double top = top_of(lines, num_lines);
    begin(out, f, "lines", HEIGHT);
    across(out, f, HEIGHT);
    down(out, f, top);
    for (int i = num_lines - 1; i >= 0; i--)
        draw_line(out, &lines[i], top);
    label_lines(out, lines, num_lines, top);
    fprintf(out, "</svg></div>\n");
}

/* ---- bars ------------------------------------------------------------------------------------------------------------ */

static double length_of(const chart_bar *bar)
{
    double sum = 0;
    for (int i = 0; i < CHART_PARTS; i++)
        sum += bar->parts[i];
    return sum;
}

static void draw_bar(FILE *out, const chart_bar *bar, double longest, int y)
{
    double x = 0;
    fprintf(out, "<text class=\"name end%s\" x=\"-8\" y=\"%d\">%s", bar->is_plan ? " plan" : "", y + 13,
            bar->is_plan ? "\xe2\x86\x92 " : "");
    html_text(out, bar->name.text);
    fprintf(out, "</text>");
    for (int i = 0; i < CHART_PARTS; i++) {
        const double width = 100 * bar->parts[i] / longest;
        if (width > 0)
            fprintf(out, "<rect class=\"part p%d\" x=\"%.2f%%\" y=\"%d\" width=\"%.2f%%\" height=\"%d\"/>", i, x, y,
                    width, BAR_HEIGHT);
        x += width;
    }
    fprintf(out, "<svg x=\"%.2f%%\" overflow=\"visible\"><text class=\"value%s\" x=\"8\" y=\"%d\">", x,
            bar->is_plan ? " plan" : "", y + 13);
    html_text(out, bar->value.text);
    fprintf(out, "</text></svg>\n");
}

void chart_bars(FILE *out, const chart_frame *f, const chart_bar *bars, int num_bars)
{
    const int height = num_bars * BAR_PITCH;
    double longest = 0;
    for (int i = 0; i < num_bars; i++)
        longest = fmax(longest, length_of(&bars[i]));
    begin(out, f, "bars", height);
    across(out, f, height);
    for (int i = 0; i < num_bars; i++)
        draw_bar(out, &bars[i], longest > 0 ? longest : 1, i * BAR_PITCH + (BAR_PITCH - BAR_HEIGHT) / 2);
    fprintf(out, "<line class=\"base\" x1=\"0\" x2=\"0\" y1=\"0\" y2=\"%d\"/></svg></div>\n", height);
}
