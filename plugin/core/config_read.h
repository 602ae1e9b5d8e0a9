/* Typed reads from a config's objects, shared by config*.c. Every read that is used leaves a note in model->read, every
 * default one in model->assumed, and every failure names key, place and value. */
#ifndef RSSM_CORE_CONFIG_READ_H_
#define RSSM_CORE_CONFIG_READ_H_

#include "core/json.h"
#include "core/model.h"

/* The objects that keys are looked for in. */
typedef enum rssm_place_id {
    RSSM_IN_NONE = 0, /* ends a list of keys */
    RSSM_IN_DECODER,  /* the top level, or text_config and the like */
    RSSM_IN_TOP,
    RSSM_IN_LINEAR_ATTN, /* the decoder's linear_attn_config */
    RSSM_IN_SSM_CFG,     /* the decoder's ssm_cfg            */
    RSSM_IN_COUNT
} rssm_place_id;

typedef struct rssm_key {
    rssm_place_id in;
    const char *name;
} rssm_key;

/* All spellings of one thing; where several are present they must agree. */
enum { RSSM_MAX_KEYS = 8 };
typedef struct rssm_keys {
    rssm_key of[RSSM_MAX_KEYS]; /* ends at RSSM_IN_NONE */
} rssm_keys;

typedef struct rssm_reader {
    rssm_model *model;
    rssm_arena *arena;
    rssm_error *err;
    struct {
        const cJSON *object; /* NULL if the config has none */
        const char *path;    /* "text_config.linear_attn_config"; "top level" */
        const char *prefix;  /* "text_config.linear_attn_config."; "" */
    } places[RSSM_IN_COUNT];
    const char *subject; /* the decoder's model_type, short, or "config"; starts every message */
    const char *type;    /* the decoder's model_type or "" */
} rssm_reader;

/* The value, or NULL when the key is absent or null. Case-sensitive. */
const cJSON *rssm_find(const rssm_reader *r, rssm_key key);
bool rssm_has(const rssm_reader *r, rssm_key key);

/* Reads an integer in [min, max]. *found tells whether any key was there (else *out is unchanged); with found NULL a
 * missing key is an error. */
rssm_status rssm_read_int(rssm_reader *r, const rssm_keys *keys, int64_t min, int64_t max, int32_t *out, bool *found);

/* The same for a finite number, true or false, and a string (in the tree). */
rssm_status rssm_read_real(rssm_reader *r, const rssm_keys *keys, double *out, bool *found);
rssm_status rssm_read_bool(rssm_reader *r, const rssm_keys *keys, bool *out, bool *found);
rssm_status rssm_read_string(const rssm_reader *r, rssm_key key, const char **out);

/* "model: `a` unknown: no `a` or `b` in text_config". */
rssm_status rssm_fail_missing(const rssm_reader *r, const rssm_keys *keys);

/* "model: `path.key` is VALUE, NEED". `element` is an array's element or -1. */
rssm_status rssm_fail_value(const rssm_reader *r, rssm_key key, int64_t element, const cJSON *item, const char *need);

/* Whether item is a whole number in [min, max]. */
bool rssm_exact_int(const cJSON *item, int64_t min, int64_t max, int64_t *out);

/* Locale-free "128.5", "1e+308", "inf". */
enum { RSSM_NUMBER_TEXT = 40 };
const char *rssm_number_text(char text[RSSM_NUMBER_TEXT], double value);

/* Notes. ERR_OUT_OF_MEMORY. */
rssm_status rssm_note_read(rssm_reader *r, rssm_key key, const char *format, ...) __attribute__((format(printf, 3, 4)));
rssm_status rssm_note_assumed(rssm_reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* How a spelling says which layers are linear, beside the lists that any may have. */
typedef struct rssm_layer_rules {
    rssm_keys count;      /* num_hidden_layers                                         */
    rssm_keys lists;      /* where its layer list should be, for the error             */
    bool kda_lists;       /* kda_layers, full_attn_layers                              */
    bool attention_lists; /* attn_layer_indices, attn_layer_idx: the attention layers  */
    bool interval;        /* else every full_attention_interval-th layer is full       */
    bool all;             /* else all layers are linear                                */
    rssm_key all_if;      /* ... or only if this key is there, and marked as assumed   */
} rssm_layer_rules;

/* config_layers.c: fills num_layers, num_linear and linear_layers of the model, whose family is set. */
rssm_status rssm_read_layers(rssm_reader *r, const rssm_layer_rules *rules);

/* config_spellings.c: the table of spellings. */
typedef struct rssm_spelling rssm_spelling;

/* Finds the spelling by model_type and keys. *out is NULL when nothing tells. ERR_CONFIG if two contradict. */
rssm_status rssm_find_spelling(const rssm_reader *r, const rssm_spelling **out);

/* Whether one of the table's telling keys is in the decoder's object. */
bool rssm_has_any_sign(const rssm_reader *r);

/* Fills the rest of the model. */
rssm_status rssm_read_spelling(rssm_reader *r, const rssm_spelling *s);

#endif
