/* libFuzzer: any bytes as a config.json. Whatever they are, init answers with an instance whose plan adds up, or with a
 * status and a message; never a crash, a leak or a read past the end (the text is not zero-terminated). */
#include <stdlib.h>
#include <string.h>

#include "../unit/harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition)
{
    if (!condition)
        abort();
}

static void look_at(rssm_plugin *plugin)
{
    rssm_description description = {.struct_size = sizeof(description)};
    rssm_layout layout = {.struct_size = sizeof(layout)};
    require(h_api()->describe(plugin, &description, NULL) == RSSM_OK);
    require(h_api()->pool_layout(plugin, &layout, NULL) == RSSM_OK);
    int64_t per_slot = 0;
    for (int32_t i = 0; i < layout.num_tensors; i++)
        per_slot += layout.tensors[i].bytes_per_slot * (layout.tensors[i].per_layer ? layout.num_layers : 0);
    require(per_slot == layout.slot_total_bytes);
    require(description.num_linear_layers > 0 && description.ring_length >= 1);
    for (int32_t i = 0; i < description.num_linear_layers; i++)
        require(description.linear_layers[i] >= 0 && description.linear_layers[i] < description.num_layers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    char *text = malloc(size); /* exact, so that the sanitizer sees the first byte behind it */
    memcpy(text, data, size);
    const uint8_t how = data[size - 1];
    rssm_init_args args = {.struct_size = sizeof(args),
                           .config_json = text,
                           .config_json_len = size,
                           .tp_size = 1 + how % 4,
                           .ring_length = how % 3 ? 0 : 4,
                           .max_draft_tokens = how % 5 ? 0 : 2,
                           .flags = how & 1 ? RSSM_INIT_CONV_STATE : 0};
    rssm_plugin *plugin = NULL;
    rssm_error err = h_error();
    rssm_status status = h_api()->init(&args, &plugin, &err);
    require((status == RSSM_OK) == (plugin != NULL) && err.status == status);
    require(memchr(err.message, 0, sizeof(err.message)) && (status == RSSM_OK) == !err.message[0]);
    if (plugin)
        look_at(plugin);
    require(h_api()->teardown(&plugin, NULL) == RSSM_OK);
    free(text);
    return 0;
}
