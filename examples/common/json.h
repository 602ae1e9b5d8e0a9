/* A small JSON writer. It writes to a stream as it goes; keys are NULL inside arrays. Strings of any bytes come out as
 * valid JSON (bad UTF-8 becomes U+FFFD), numbers that JSON cannot hold come out as null. */
#ifndef EXAMPLES_JSON_H_
#define EXAMPLES_JSON_H_

#include <stdint.h>
#include <stdio.h>

enum { JSON_MAX_DEPTH = 16 };

typedef struct json {
    FILE *stream;
    int depth;
    char close[JSON_MAX_DEPTH]; /* closing bracket of each open level       */
    int items[JSON_MAX_DEPTH];  /* members written so far on each level     */
    int broken[JSON_MAX_DEPTH]; /* a member of the level has its own line         */
} json;

json json_to(FILE *stream);
void json_object(json *j, const char *key);
void json_array(json *j, const char *key);
void json_end(json *j); /* closes the innermost object or array; after the outermost a newline */

void json_string(json *j, const char *key, const char *text);
void json_int(json *j, const char *key, int64_t value);
void json_number(json *j, const char *key, double value);
void json_null(json *j, const char *key);

#endif
