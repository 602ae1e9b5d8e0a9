#include "core/json.h"

#include <string.h>

#include "core/config.h"

/* cJSON knows no Infinity. In a private copy of the text `Infinity` becomes this string of the same length: U+FDD0 is a
 * noncharacter, and the scan refuses it in the text itself, so the mark cannot be forged. */
#define INFINITY_WORD          "Infinity"
#define INFINITY_MARK          "\"\\ufdd0\""
#define NEGATIVE_INFINITY_WORD "-" INFINITY_WORD
#define NEGATIVE_INFINITY_MARK "\"-\\ufdd0\""
#define MARK_TEXT              "\xEF\xB7\x90"
enum { MARK_CODE_POINT = 0xFDD0, MAX_NUMBER_CHARS = 400 };

/* ---- memory: blocks of the instance's allocator, freed as a whole ---- */

enum { BLOCK_BYTES = 32 << 10, UNIT = 16 };

/* A block's units follow its header. */
struct rssm_json_block {
    rssm_json_block *next;
    size_t size, used; /* bytes, header included */
    char *last;        /* the newest allocation, which alone can be taken back */
};

_Static_assert(sizeof(struct rssm_json_block) % UNIT == 0, "units stay aligned");

/* The parse that this thread is in. cJSON's hooks take no user pointer. */
static _Thread_local rssm_json *current;

void *rssm_json_malloc(size_t bytes)
{
    rssm_json *json = current;
    if (!json || bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + UNIT - 1) / UNIT * UNIT;
    rssm_json_block *block = json->blocks;
    if (!block || block->size - block->used < bytes) {
        size_t size = sizeof(*block) + bytes;
        if (size < BLOCK_BYTES)
            size = BLOCK_BYTES;
        block = rssm_mem_alloc(json->mem, size, UNIT);
        if (!block) {
            json->out_of_memory = true;
            return NULL;
        }
        *block = (rssm_json_block){.next = json->blocks, .size = size, .used = sizeof(*block)};
        json->blocks = block;
    }
    block->last = (char *)block + block->used;
    block->used += bytes;
    return block->last;
}

/* Only the newest allocation returns to its block (cJSON's number buffers); the rest goes with rssm_json_close. */
void rssm_json_free(void *ptr)
{
    rssm_json_block *block = current ? current->blocks : NULL;
    if (!block || !ptr || block->last != ptr)
        return;
    block->used = (size_t)(block->last - (char *)block);
    block->last = NULL;
}

/* cJSON reallocates when it prints, and we never print. */
void *rssm_json_realloc(void *ptr, size_t bytes)
{
    (void)ptr;
    (void)bytes;
    return NULL;
}

void rssm_json_close(rssm_json *json)
{
    for (rssm_json_block *block = json->blocks, *next; block; block = next) {
        next = block->next;
        rssm_mem_free(json->mem, block, block->size);
    }
    json->blocks = NULL;
    json->root = NULL;
}

/* ---- the scan: strict, allocates nothing ---- */

typedef struct scan {
    const char *text;
    uint64_t length, at;
    int64_t values; /* keys and array elements so far */
    int32_t depth;
    int64_t infinities;
    rssm_error *err;
} scan;

/* Line and column count from 1, the column in characters. */
static rssm_status fail_here(const scan *s, const char *what)
{
    int64_t line = 1, column = 1;
    for (uint64_t i = 0; i < s->at && i < s->length; i++) {
        unsigned char c = (unsigned char)s->text[i];
        if (c == '\n') {
            line++;
            column = 1;
        } else if ((c & 0xC0) != 0x80) {
            column++;
        }
    }
    return rssm_fail(s->err, RSSM_ERR_JSON, "config: line %lld, column %lld: %s", (long long)line, (long long)column,
                     what);
}

static int peek(const scan *s)
{
    return s->at < s->length ? (unsigned char)s->text[s->at] : -1;
}

static void skip_space(scan *s)
{
    for (int c = peek(s); c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = peek(s))
        s->at++;
}

/* Steps over the word when it is here. */
static bool take_word(scan *s, const char *word)
{
    size_t n = strlen(word);
    if (s->length - s->at < n || memcmp(s->text + s->at, word, n) != 0)
        return false;
    s->at += n;
    return true;
}

static int hex_digit(int c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Four hex digits; -1 if they are not there. */
static int32_t take_hex4(scan *s)
{
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(peek(s));
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
        s->at++;
    }
    return value;
}

/* After the backslash. */
static rssm_status scan_escape(scan *s)
{
    int c = peek(s);
    if (c < 0 || !strchr("\"\\/bfnrtu", c))
        return fail_here(s, "unknown escape in a string");
    s->at++;
    if (c != 'u')
        return RSSM_OK;
    int32_t unit = take_hex4(s);
    if (unit < 0)
        return fail_here(s, "\\u needs four hex digits");
    if (unit == 0)
        return fail_here(s, "\\u0000 in a string");
    if (unit == MARK_CODE_POINT)
        return fail_here(s, "\\ufdd0 in a string is not a character");
    if (unit >= 0xDC00 && unit <= 0xDFFF)
        return fail_here(s, "a lone low surrogate in a string");
    if (unit < 0xD800 || unit > 0xDBFF)
        return RSSM_OK;
    int32_t low = take_word(s, "\\u") ? take_hex4(s) : -1;
    return low >= 0xDC00 && low <= 0xDFFF ? RSSM_OK : fail_here(s, "a lone high surrogate in a string");
}

/* One UTF-8 sequence of 2 to 4 bytes: shortest form, no surrogates, at most U+10FFFF. */
static rssm_status scan_utf8(scan *s)
{
    static const struct {
        unsigned char mask, lead, more;
        int32_t least;
    } forms[] = {{0xE0, 0xC0, 1, 0x80}, {0xF0, 0xE0, 2, 0x800}, {0xF8, 0xF0, 3, 0x10000}};
    int c = peek(s);
    for (size_t f = 0; f < sizeof(forms) / sizeof(forms[0]); f++) {
        if ((c & forms[f].mask) != forms[f].lead)
            continue;
        if (s->length - s->at <= forms[f].more)
            return fail_here(s, "a UTF-8 sequence is cut off");
        int32_t point = c & (0xFF & ~forms[f].mask);
        for (int i = 1; i <= forms[f].more; i++) {
            int next = (unsigned char)s->text[s->at + (uint64_t)i];
            if ((next & 0xC0) != 0x80)
                return fail_here(s, "not valid UTF-8");
            point = (point << 6) | (next & 0x3F);
        }
        if (point < forms[f].least)
            return fail_here(s, "an overlong UTF-8 sequence");
        if (point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF) || point == MARK_CODE_POINT)
            return fail_here(s, "a UTF-8 sequence that is no character");
        s->at += 1u + forms[f].more;
        return RSSM_OK;
    }
    return fail_here(s, "not valid UTF-8");
}

static rssm_status scan_string(scan *s)
{
    s->at++; /* the quote */
    for (;;) {
        int c = peek(s);
        rssm_status status = RSSM_OK;
        if (c < 0)
            return fail_here(s, "the text ends inside a string");
        if (c < 0x20)
            return fail_here(s, c ? "a control character in a string" : "a NUL byte in a string");
        if (c >= 0x80) {
            status = scan_utf8(s);
        } else {
            s->at++;
            if (c == '"')
                return RSSM_OK;
            if (c == '\\')
                status = scan_escape(s);
        }
        if (status)
            return status;
    }
}

static uint64_t skip_digits(scan *s)
{
    uint64_t from = s->at;
    while (peek(s) >= '0' && peek(s) <= '9')
        s->at++;
    return s->at - from;
}

static rssm_status scan_number(scan *s)
{
    uint64_t from = s->at;
    if (peek(s) == '-')
        s->at++;
    int first = peek(s);
    uint64_t digits = skip_digits(s);
    if (!digits)
        return fail_here(s, "a value was expected");
    if (first == '0' && digits > 1)
        return fail_here(s, "a number with a leading zero");
    if (peek(s) == '.') {
        s->at++;
        if (!skip_digits(s))
            return fail_here(s, "a number without digits after its point");
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-')
            s->at++;
        if (!skip_digits(s))
            return fail_here(s, "a number without digits in its exponent");
    }
    return s->at - from <= MAX_NUMBER_CHARS ? RSSM_OK : fail_here(s, "a number of more than 400 characters");
}

static rssm_status scan_value(scan *s);

/* Counts a key or an element. */
static rssm_status count_value(scan *s)
{
    return ++s->values <= RSSM_CONFIG_MAX_VALUES ? RSSM_OK : fail_here(s, "more than 262144 values");
}

static rssm_status scan_member(scan *s)
{
    if (peek(s) != '"')
        return fail_here(s, "a key in double quotes was expected");
    rssm_status status = scan_string(s);
    if (status)
        return status;
    skip_space(s);
    if (peek(s) != ':')
        return fail_here(s, "':' was expected after a key");
    s->at++;
    return scan_value(s);
}

/* An object or an array; they differ in their brackets and in what an entry is. */
static rssm_status scan_container(scan *s, int close, rssm_status (*entry)(scan *))
{
    if (++s->depth > RSSM_CONFIG_MAX_DEPTH)
        return fail_here(s, "nested deeper than 64 levels");
    s->at++; /* the opening bracket */
    skip_space(s);
    bool first = true;
    while (peek(s) != close) {
        if (!first) {
            if (peek(s) != ',')
                return fail_here(s, close == '}' ? "',' or '}' was expected" : "',' or ']' was expected");
            s->at++;
            skip_space(s);
        }
        first = false;
        rssm_status status = count_value(s);
        if (!status)
            status = entry(s);
        if (status)
            return status;
        skip_space(s);
    }
    s->at++;
    s->depth--;
    return RSSM_OK;
}

/* A literal word, or a number. */
static rssm_status scan_plain(scan *s)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (take_word(s, words[i]))
            return RSSM_OK;
    if (take_word(s, INFINITY_WORD) || take_word(s, NEGATIVE_INFINITY_WORD)) {
        s->infinities++;
        return RSSM_OK;
    }
    scan before = *s;
    if (take_word(s, "NaN") || take_word(s, "-NaN"))
        return fail_here(&before, "NaN is not a number that a config may hold");
    return scan_number(s);
}

static rssm_status scan_value(scan *s)
{
    skip_space(s);
    switch (peek(s)) {
    case '{':
        return scan_container(s, '}', scan_member);
    case '[':
        return scan_container(s, ']', scan_value);
    case '"':
        return scan_string(s);
    case -1:
        return fail_here(s, s->length ? "the text ends where a value was expected" : "the text is empty");
    case 0:
        return fail_here(s, "a NUL byte");
    default:
        return scan_plain(s);
    }
}

static rssm_status scan_text(scan *s)
{
    if (s->length > RSSM_CONFIG_MAX_BYTES)
        return rssm_fail(s->err, RSSM_ERR_JSON, "config: %llu bytes, more than the limit of %d",
                         (unsigned long long)s->length, RSSM_CONFIG_MAX_BYTES);
    take_word(s, "\xEF\xBB\xBF"); /* byte-order mark */
    rssm_status status = scan_value(s);
    if (status)
        return status;
    skip_space(s);
    return s->at == s->length ? RSSM_OK : fail_here(s, "trailing bytes after the JSON value");
}

/* ---- duplicate keys ---- */

/* A key and its hash: most comparisons need not touch the text. Colliding hashes only cost time. */
typedef struct hashed_key {
    uint64_t hash;
    const char *text;
} hashed_key;

static uint64_t hash_of(const char *text) /* FNV-1a */
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001B3u;
    return hash;
}

static int compare_keys(const hashed_key *a, const hashed_key *b)
{
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    return strcmp(a->text, b->text);
}

static void sift_down(hashed_key *keys, int64_t root, int64_t count)
{
    for (int64_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && compare_keys(&keys[child], &keys[child + 1]) < 0)
            child++;
        if (compare_keys(&keys[root], &keys[child]) >= 0)
            return;
        const hashed_key swap = keys[root];
        keys[root] = keys[child];
        keys[child] = swap;
    }
}

/* A heap sort: in place and n log n for any input; qsort may allocate. */
static void sort_keys(hashed_key *keys, int64_t count)
{
    for (int64_t root = count / 2; root-- > 0;)
        sift_down(keys, root, count);
    for (int64_t end = count - 1; end > 0; end--) {
        const hashed_key largest = keys[0];
        keys[0] = keys[end];
        keys[end] = largest;
        sift_down(keys, 0, end);
    }
}

/* The key that object holds twice, or NULL. keys has room for all of the document's. */
static const char *duplicate_of(const cJSON *object, hashed_key *keys)
{
    int64_t count = 0;
    for (const cJSON *item = object->child; item; item = item->next)
        keys[count++] = (hashed_key){hash_of(item->string), item->string};
    sort_keys(keys, count);
    for (int64_t i = 1; i < count; i++)
        if (compare_keys(&keys[i - 1], &keys[i]) == 0)
            return keys[i].text;
    return NULL;
}

/* path[depth]: the containers from the root down. Writes "text_config.rope." before a key; array steps show as []. */
static void path_text(char *text, size_t size, const cJSON *const *path, int32_t depth)
{
    size_t used = 0;
    text[0] = 0;
    for (int32_t i = 1; i <= depth && used + 1 < size; i++) {
        const char *name = path[i]->string ? path[i]->string : "[]";
        size_t room = size - used - 1, n = strlen(name);
        n = n < room ? n : room;
        memcpy(text + used, name, n);
        used += n;
        if (used + 1 < size)
            text[used++] = '.';
        text[used] = 0;
    }
}

static rssm_status refuse_duplicates(const cJSON *root, hashed_key *keys, rssm_error *err)
{
    const cJSON *path[RSSM_CONFIG_MAX_DEPTH + 1] = {root};
    int32_t depth = 0;
    for (;;) {
        const cJSON *item = path[depth];
        const char *twice = cJSON_IsObject(item) ? duplicate_of(item, keys) : NULL;
        if (twice) {
            char where[128];
            path_text(where, sizeof(where), path, depth);
            return rssm_fail(err, RSSM_ERR_JSON, "config: duplicate key `%s%.100s`", where, twice);
        }
        if (item->child) {
            path[++depth] = item->child;
            continue;
        }
        while (depth > 0 && !path[depth]->next)
            depth--;
        if (depth == 0)
            return RSSM_OK;
        path[depth] = path[depth]->next;
    }
}

/* ---- building the tree ---- */

/* Copies the text with every bare Infinity marked. Only called when there is one, and after the scan. */
static const char *mark_infinities(const char *text, uint64_t length)
{
    char *copy = rssm_json_malloc(length);
    if (!copy)
        return NULL;
    memcpy(copy, text, length);
    bool in_string = false;
    for (uint64_t i = 0; i < length; i++) {
        if (copy[i] == '"') {
            in_string = !in_string;
        } else if (in_string) {
            i += copy[i] == '\\'; /* the next character is escaped */
        } else if (copy[i] == 'I') {
            memcpy(copy + i, INFINITY_MARK, sizeof(INFINITY_MARK) - 1);
            i += sizeof(INFINITY_MARK) - 2;
        } else if (copy[i] == '-' && copy[i + 1] == 'I') {
            memcpy(copy + i, NEGATIVE_INFINITY_MARK, sizeof(NEGATIVE_INFINITY_MARK) - 1);
            i += sizeof(NEGATIVE_INFINITY_MARK) - 2;
        }
    }
    return copy;
}

_Static_assert(sizeof(INFINITY_WORD) == sizeof(INFINITY_MARK), "marked in place");
_Static_assert(sizeof(NEGATIVE_INFINITY_WORD) == sizeof(NEGATIVE_INFINITY_MARK), "marked in place");

int rssm_json_is_infinity(const cJSON *item)
{
    if (!cJSON_IsString(item))
        return 0;
    if (strcmp(item->valuestring, MARK_TEXT) == 0)
        return 1;
    return strcmp(item->valuestring, "-" MARK_TEXT) == 0 ? -1 : 0;
}

static rssm_status build(rssm_json *json, const scan *s)
{
    const char *text = s->infinities ? mark_infinities(s->text, s->length) : s->text;
    json->root = text ? cJSON_ParseWithLengthOpts(text, s->length, NULL, 0) : NULL;
    if (!json->root)
        return json->out_of_memory ? rssm_out_of_memory(s->err)
                                   : rssm_fail(s->err, RSSM_ERR_JSON, "config: the JSON text cannot be parsed");
    hashed_key *keys = rssm_json_malloc((size_t)(s->values + 1) * sizeof(*keys));
    return keys ? refuse_duplicates(json->root, keys, s->err) : rssm_out_of_memory(s->err);
}

rssm_status rssm_json_parse(rssm_json *json, const rssm_allocator *mem, const char *text, uint64_t length,
                            rssm_error *err)
{
    *json = (rssm_json){.mem = mem};
    scan s = {.text = text, .length = length, .err = err};
    rssm_status status = scan_text(&s);
    if (status)
        return status;
    rssm_json *outer = current; /* a host's allocator may call us again */
    current = json;
    status = build(json, &s);
    current = outer;
    if (status)
        rssm_json_close(json);
    return status;
}
