/* Text, numbers and tables of the page. Every string that is not a literal of this program goes through html_text. */
#ifndef EXAMPLES_PLAN_HTML_H_
#define EXAMPLES_PLAN_HTML_H_

#include <stdint.h>
#include <stdio.h>

/* Escaped for text and attributes; whatever is not printable UTF-8 becomes U+FFFD. */
void html_text(FILE *out, const char *text);
/* The same, and no line breaks after a number or around "=". */
void html_heading(FILE *out, const char *text);
void html_int(FILE *out, int64_t value); /* 1,234,567 */

/* A table folded away behind "Numbers". The first column heads the rows. */
void html_table(FILE *out, const char *id, const char *caption, const char *const *columns, int num_columns);
void html_row(FILE *out, int64_t head, int is_plan); /* is_plan: this row is the plan that was asked for */
void html_cell(FILE *out, int64_t value);
void html_cell_number(FILE *out, double value); /* two decimals */
void html_cell_percent(FILE *out, double value);
void html_cell_text(FILE *out, const char *text, int columns);
void html_row_end(FILE *out);
void html_table_end(FILE *out);

#endif
