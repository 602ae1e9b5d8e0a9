/* config.json -> rssm_model: every published spelling, as a table (config.c). The text is untrusted. */
#ifndef RSSM_CORE_CONFIG_H_
#define RSSM_CORE_CONFIG_H_

#include "core/model.h"

enum {
    RSSM_CONFIG_MAX_BYTES = 8 << 20, /* a longer text is refused before it is parsed */
    RSSM_CONFIG_MAX_DEPTH = 64,
    RSSM_CONFIG_MAX_VALUES = 1 << 18 /* keys and array elements in all */
};

/* All strings and arrays of *model live in the arena. On failure *model is undefined, err says key and place.
 * ERR_JSON, ERR_CONFIG, ERR_MODEL, ERR_OUT_OF_MEMORY. */
rssm_status rssm_config_read(rssm_model *model, rssm_arena *arena, const char *text, uint64_t length, rssm_error *err);

/* The same for a file. Also ERR_IO (a directory, unreadable, larger than the limit). */
rssm_status rssm_config_read_file(rssm_model *model, rssm_arena *arena, const char *path, rssm_error *err);

#endif
