/* A host that has its own cJSON, exports every name of it, and has set hooks that abort: none of it may reach the plugin,
 * nor may names of the plugin's inside that the host happens to export too. Link with exported symbols (-rdynamic). */
#define _GNU_SOURCE
#include "harness.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRAP(name)                                                             \
    void name(void);                                                           \
    void name(void)                                                            \
    {                                                                          \
        static const char text[] = "the plugin called the host's " #name "\n"; \
        if (write(2, text, sizeof(text) - 1) < 0)                              \
            _exit(3);                                                          \
        abort();                                                               \
    }

/* All of cJSON's API that parses, walks, makes or frees. */
TRAP(cJSON_Version)
TRAP(cJSON_InitHooks)
TRAP(cJSON_Parse)
TRAP(cJSON_ParseWithLength)
TRAP(cJSON_ParseWithOpts)
TRAP(cJSON_ParseWithLengthOpts)
TRAP(cJSON_Print)
TRAP(cJSON_PrintUnformatted)
TRAP(cJSON_PrintBuffered)
TRAP(cJSON_PrintPreallocated)
TRAP(cJSON_Delete)
TRAP(cJSON_GetArraySize)
TRAP(cJSON_GetArrayItem)
TRAP(cJSON_GetObjectItem)
TRAP(cJSON_GetObjectItemCaseSensitive)
TRAP(cJSON_HasObjectItem)
TRAP(cJSON_GetErrorPtr)
TRAP(cJSON_GetStringValue)
TRAP(cJSON_GetNumberValue)
TRAP(cJSON_IsInvalid)
TRAP(cJSON_IsFalse)
TRAP(cJSON_IsTrue)
TRAP(cJSON_IsBool)
TRAP(cJSON_IsNull)
TRAP(cJSON_IsNumber)
TRAP(cJSON_IsString)
TRAP(cJSON_IsArray)
TRAP(cJSON_IsObject)
TRAP(cJSON_IsRaw)
TRAP(cJSON_Duplicate)
TRAP(cJSON_Compare)
TRAP(cJSON_Minify)
TRAP(cJSON_malloc)
TRAP(cJSON_free)

/* Names of the plugin's inside. */
TRAP(rssm_json_malloc)
TRAP(rssm_json_free)
TRAP(rssm_config_read)
TRAP(rssm_mem_alloc)
TRAP(rssm_mem_free)
TRAP(rssm_arena_alloc)
TRAP(rssm_fail)
TRAP(rssm_cpu_backend)
TRAP(rssm_status_name)
TRAP(rssm_role_name)

static const char config[] =
    "{\"model_type\": \"kimi_linear\", \"dtype\": \"bfloat16\", \"num_hidden_layers\": 3, \"hidden_size\": 64,\n"
    " \"linear_attn_config\": {\"num_heads\": 4, \"head_dim\": 8, \"short_conv_kernel_size\": 4,\n"
    "  \"kda_layers\": [1, 2], \"full_attn_layers\": [3]}}";

static const int modes[] = {RTLD_NOW | RTLD_LOCAL, RTLD_NOW | RTLD_GLOBAL, RTLD_LAZY | RTLD_LOCAL,
                            RTLD_LAZY | RTLD_GLOBAL};

/* A life from a config text, with an error on the way. */
static void live(const rssm_api *api)
{
    rssm_init_args args = {.struct_size = sizeof(args), .config_json = config, .num_slots = 4};
    rssm_plugin *plugin = NULL;
    rssm_error err = h_error();
    args.config_json_len = sizeof(config) - 2;
    ck_assert_int_eq(api->init(&args, &plugin, &err), RSSM_ERR_JSON);
    args.config_json_len = sizeof(config) - 1;
    ck_assert_msg(api->init(&args, &plugin, &err) == RSSM_OK, "%s", err.message);
    ck_assert_msg(api->prepare(plugin, &err) == RSSM_OK, "%s", err.message);
    ck_assert_msg(api->pool_create(plugin, NULL, &err) == RSSM_OK, "%s", err.message);
    rssm_description d = {.struct_size = sizeof(d)};
    ck_assert_int_eq(api->describe(plugin, &d, NULL), RSSM_OK);
    ck_assert_int_eq(d.num_linear_layers, 2);
    ck_assert_int_eq(d.K, 8);
    ck_assert_str_eq(api->role_name(RSSM_T_STATE), "state");
    ck_assert_int_eq(api->teardown(&plugin, NULL), RSSM_OK);
}

START_TEST(test_host_cjson)
{
    ck_assert_msg(dlsym(RTLD_DEFAULT, "cJSON_ParseWithLengthOpts") != NULL && dlsym(RTLD_DEFAULT, "rssm_fail") != NULL,
                  "this host exports nothing: link it with -rdynamic");
    const char *path = getenv("RSSM_PLUGIN");
    ck_assert_ptr_nonnull(path);
    void *library = dlopen(path, modes[_i]);
    ck_assert_msg(library != NULL, "%s", dlerror());
    rssm_get_api_fn get = NULL;
    *(void **)&get = dlsym(library, RSSM_GET_API_SYMBOL);
    ck_assert(get != NULL);
    live(get(RSSM_ABI_MAJOR));
    ck_assert_int_eq(dlclose(library), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("host with its own cJSON");
    TCase *tcase = tcase_create("each dlopen mode");
    tcase_add_loop_test(tcase, test_host_cjson, 0, (int)(sizeof(modes) / sizeof(modes[0])));
    suite_add_tcase(suite, tcase);
    return h_run(suite);
}
