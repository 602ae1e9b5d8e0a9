#include "json.h"

#include "utf8.h"

#include <inttypes.h>
#include <math.h>

static void write_text(FILE *stream, const char *text)
{
    fputc('"', stream);
    for (const unsigned char *s = (const unsigned char *)text; *s != 0;) {
        int length = utf8_length(s);
        if (length == 0)
            fputs("\\ufffd", stream);
        else if (*s == '"' || *s == '\\')
            fprintf(stream, "\\%c", *s);
        else if (*s < 0x20 || *s == 0x7f)
            fprintf(stream, "\\u%04x", (unsigned)*s);
        else
            fwrite(s, 1, (size_t)length, stream);
        s += length == 0 ? 1 : length;
    }
    fputc('"', stream);
}

/* Comma, line, indent and key: everything before a value. Plain values of an array share a line. */
static void begin_value(json *j, const char *key, int nested)
{
    if (j->depth > 0) {
        const int level = j->depth - 1, first = j->items[level]++ == 0;
        if (!first)
            fputc(',', j->stream);
        if (nested || j->close[level] == '}') {
            fprintf(j->stream, "\n%*s", j->depth, "");
            j->broken[level] = 1;
        } else if (!first) {
            fputc(' ', j->stream);
        }
    }
    if (key != NULL) {
        write_text(j->stream, key);
        fputs(": ", j->stream);
    }
}

static void open_level(json *j, const char *key, char open, char close)
{
    begin_value(j, key, 1);
    fputc(open, j->stream);
    j->close[j->depth] = close;
    j->items[j->depth] = 0;
    j->broken[j->depth] = 0;
    j->depth++;
}

json json_to(FILE *stream)
{
    json j = {.stream = stream};
    return j;
}

void json_object(json *j, const char *key)
{
    open_level(j, key, '{', '}');
}

void json_array(json *j, const char *key)
{
    open_level(j, key, '[', ']');
}

void json_end(json *j)
{
    j->depth--;
    if (j->broken[j->depth])
        fprintf(j->stream, "\n%*s", j->depth, "");
    fputc(j->close[j->depth], j->stream);
    if (j->depth == 0)
        fputc('\n', j->stream);
}

void json_string(json *j, const char *key, const char *text)
{
    if (text == NULL) {
        json_null(j, key);
        return;
    }
    begin_value(j, key, 0);
    write_text(j->stream, text);
}

void json_int(json *j, const char *key, int64_t value)
{
    begin_value(j, key, 0);
    fprintf(j->stream, "%" PRId64, value);
}

void json_number(json *j, const char *key, double value)
{
    if (!isfinite(value)) {
        json_null(j, key);
        return;
    }
    begin_value(j, key, 0);
    fprintf(j->stream, "%.17g", value);
}

void json_null(json *j, const char *key)
{
    begin_value(j, key, 0);
    fputs("null", j->stream);
}
