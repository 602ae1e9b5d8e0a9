#include "plan_html.h"

#include "../common/utf8.h"

#include <inttypes.h>
#include <string.h>

void html_text(FILE *out, const char *text)
{
    for (const unsigned char *s = (const unsigned char *)text; *s != 0;) {
        const int length = utf8_length(s);
        if (length == 0 || (*s < 0x20 && *s != '\n' && *s != '\t') || *s == 0x7f)
            fputs("\xef\xbf\xbd", out);
        else if (strchr("<>&\"'", *s) != NULL)
            fprintf(out, "&#%d;", *s);
        else
            fwrite(s, 1, (size_t)length, out);
        s += length == 0 ? 1 : length;
    }
}

/* The space at `c` ties its neighbours: "L = 5", "40.00 MiB". */
static int ties(const char *text, const char *c)
{
    return *c == ' ' && c > text && ((c[-1] >= '0' && c[-1] <= '9') || c[-1] == '=' || c[1] == '=');
}

void html_heading(FILE *out, const char *text)
{
    char run[512]; /* titles are shorter */
    size_t length = 0;
    for (const char *c = text; *c != 0; c++) {
        if (!ties(text, c) && length + 1 < sizeof run) {
            run[length++] = *c;
            continue;
        }
        run[length] = 0;
        html_text(out, run);
        fputs("&nbsp;", out);
        length = 0;
    }
    run[length] = 0;
    html_text(out, run);
}

void html_int(FILE *out, int64_t value)
{
    char digits[24];
    const int length = snprintf(digits, sizeof digits, "%" PRId64, value);
    for (int i = 0; i < length; i++) {
        fputc(digits[i], out);
        if (digits[i] != '-' && i + 1 < length && (length - i - 1) % 3 == 0)
            fputc(',', out);
    }
}

void html_table(FILE *out, const char *id, const char *caption, const char *const *columns, int num_columns)
{
    fprintf(out, "<details><summary>Numbers</summary>\n<div class=\"scroll\" tabindex=\"0\"><table id=\"%s\"><caption>",
            id);
    html_text(out, caption);
    fprintf(out, "</caption>\n<thead><tr>");
    for (int i = 0; i < num_columns; i++) {
        fprintf(out, "<th scope=\"col\">");
        html_text(out, columns[i]);
        fprintf(out, "</th>");
    }
    fprintf(out, "</tr></thead>\n<tbody>\n");
}

void html_row(FILE *out, int64_t head, int is_plan)
{
    fprintf(out, "<tr%s><th scope=\"row\">", is_plan ? " class=\"plan\"" : "");
    html_int(out, head);
    fprintf(out, "</th>");
}

void html_cell(FILE *out, int64_t value)
{
    fprintf(out, "<td>");
    html_int(out, value);
    fprintf(out, "</td>");
}

void html_cell_number(FILE *out, double value)
{
    fprintf(out, "<td>%.2f</td>", value);
}

void html_cell_percent(FILE *out, double value)
{
    fprintf(out, "<td>%.1f %%</td>", value);
}

void html_cell_text(FILE *out, const char *text, int columns)
{
    fprintf(out, "<td colspan=\"%d\" class=\"text\">", columns);
    html_text(out, text);
    fprintf(out, "</td>");
}

void html_row_end(FILE *out)
{
    fprintf(out, "</tr>\n");
}

void html_table_end(FILE *out)
{
    fprintf(out, "</tbody></table></div></details>\n");
}
