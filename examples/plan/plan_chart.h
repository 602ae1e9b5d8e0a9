/* Two kinds of chart as SVG that is readable without a script. Across, everything stands at a percentage of the plot's width, and
 * down at pixels: so the plot follows the window and its text keeps its size. Colours are classes of the page's style. */
#ifndef EXAMPLES_PLAN_CHART_H_
#define EXAMPLES_PLAN_CHART_H_

#include "plan.h"

enum { CHART_MAX_POINTS = 64, CHART_MAX_LINES = 4, CHART_MAX_BARS = 16, CHART_MAX_TICKS = 8, CHART_PARTS = 4 };

/* A short text by value. */
typedef struct chart_text {
    char text[64];
} chart_text;

typedef struct chart_tick {
    double at; /* 0 .. 1 */
    chart_text text;
} chart_tick;

/* What stands around a plot. */
typedef struct chart_frame {
    const char *id;
    const char *title, *description; /* for those who cannot see it */
    const char *across, *down;       /* what the axes are, with unit; bars have no `down` */
    chart_tick ticks[CHART_MAX_TICKS];
    int num_ticks;
} chart_frame;

typedef struct chart_point {
    double x; /* 0 .. 1 */
    double y; /* in units of the axis */
    int mark; /* with a mark, and `hover` where a pointer rests on it */
    chart_text hover;
    chart_text above, below; /* "": nothing is written beside it */
} chart_point;

typedef struct chart_line {
    chart_text name, value; /* beside its end */
    int style;              /* 0 .. 3: colour and dashes */
    chart_point points[CHART_MAX_POINTS];
    int num_points;
} chart_line;

typedef struct chart_bar {
    chart_text name, value; /* before and behind it */
    int is_plan;
    double parts[CHART_PARTS]; /* left to right, in units of the axis; all 0: `value` alone */
} chart_bar;

/* Round numbers from 0 to at least `max` (lines), or not beyond it (bars). */
double chart_step(double max);
void chart_linear_ticks(chart_frame *frame, double max);

void chart_lines(FILE *out, const chart_frame *frame, const chart_line *lines, int num_lines);
void chart_bars(FILE *out, const chart_frame *frame, const chart_bar *bars, int num_bars);

#endif
