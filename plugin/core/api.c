/* The one exported symbol and its table. Here the boundary ends (with api_call.c and the extensions' api_*.c): struct sizes,
 * NULLs and errors are dealt with, so that the rest of core/ sees full-sized structs. */
#include <stddef.h>
#include <string.h>

#include "core/api_call.h"
#include "core/decode.h"
#include "core/error.h"
#include "core/validate.h"
#include "revision.h"
#include "version.h"

/* core/step.h repeats these so that kernels need no public header. */
_Static_assert((int)RSSM_STEP_ROW_WIDTH == (int)RSSM_ROW_WIDTH, "rows");
_Static_assert((int)RSSM_FAULTBIT_CURSOR == (int)RSSM_FAULT_CURSOR, "fault word");
_Static_assert((int)RSSM_FAULTBIT_ACCEPTED == (int)RSSM_FAULT_ACCEPTED, "fault word");
_Static_assert((int)RSSM_FAULTBIT_OUTPUT == (int)RSSM_FAULT_OUTPUT, "fault word");
_Static_assert((int)RSSM_FAULTBIT_STATE == (int)RSSM_FAULT_STATE, "fault word");
_Static_assert((int)RSSM_FAULTBIT_RING == (int)RSSM_FAULT_RING, "fault word");
_Static_assert((int)RSSM_FAULTBIT_SLOTS == (int)RSSM_FAULT_SLOTS, "fault word");
_Static_assert((int)RSSM_FAULTBIT_SEQLENS == (int)RSSM_FAULT_SEQLENS, "fault word");

/* ---- v1 --------------------------------------------------------------------------------------------------------- */

static rssm_status api_plugin_info(rssm_info *out, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_error(&err, theirs);
    if (status)
        return status;
    const rssm_info info = {
        .struct_size = sizeof(info),
        .name = "replayssm",
        .version = RSSM_VERSION,
        .git_revision = RSSM_GIT_REVISION,
        .families = "kda,gdn,mamba2",
        .backends = rssm_cuda_backend() ? "cpu,cuda" : "cpu",
        .cuda_archs = RSSM_CUDA_ARCHS,
    };
    status = rssm_check_out(out, sizeof(rssm_info), "info", &err);
    if (!status)
        rssm_copy_out(out, &info, sizeof(info));
    return rssm_close_error(&err, theirs, status);
}

static rssm_status init_with(const rssm_init_args *args, rssm_plugin **out, rssm_error *err)
{
    if (!out)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "the plugin pointer's address is NULL");
    rssm_init_args copy;
    rssm_dims dims;
    rssm_allocator allocator;
    rssm_status status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_init_args), "init args", err);
    if (!status && copy.dims) {
        status = rssm_copy_in(&dims, copy.dims, sizeof(dims), sizeof(rssm_dims), "dims", err);
        copy.dims = &dims;
    }
    if (!status && copy.allocator) {
        status = rssm_copy_in(&allocator, copy.allocator, sizeof(allocator), sizeof(rssm_allocator), "allocator", err);
        copy.allocator = &allocator;
    }
    return status ? status : rssm_plugin_init(&copy, out, err);
}

static rssm_status api_init(const rssm_init_args *args, rssm_plugin **out, rssm_error *theirs)
{
    if (out)
        *out = NULL;
    rssm_error err;
    rssm_status status = rssm_open_error(&err, theirs);
    return status ? status : rssm_close_error(&err, theirs, init_with(args, out, &err));
}

static rssm_status api_describe(const rssm_plugin *plugin, rssm_description *out, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_check_out(out, sizeof(rssm_description), "description", &err);
    if (!status) {
        rssm_description description;
        rssm_plugin_describe(plugin, &description);
        rssm_copy_out(out, &description, sizeof(description));
    }
    return rssm_close_error(&err, theirs, status);
}

static rssm_status api_pool_layout(const rssm_plugin *plugin, rssm_layout *out, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_check_out(out, sizeof(rssm_layout), "layout", &err);
    if (!status)
        rssm_copy_out(out, &plugin->layout, sizeof(plugin->layout));
    return rssm_close_error(&err, theirs, status);
}

static rssm_status api_prepare(rssm_plugin *plugin, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    return rssm_close_error(&err, theirs, status ? status : rssm_plugin_prepare(plugin, &err));
}

static rssm_status api_pool_create(rssm_plugin *plugin, const rssm_pool_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_pool_args copy = {.struct_size = sizeof(copy)};
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status && args)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_pool_args), "pool args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_plugin_pool_create(plugin, &copy, &err));
}

static rssm_status give_tensors(const rssm_plugin *plugin, int32_t layer, const DLTensor **tensors,
                                uint32_t num_tensors, rssm_error *err)
{
    if (!plugin->pool.regions)
        return rssm_fail(err, RSSM_ERR_STATE, "pool_tensors before pool_create");
    if (layer < 0 || layer >= plugin->rank.num_linear)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "layer = %d is not in 0..%d (linear layers of this instance)", layer,
                         plugin->rank.num_linear - 1);
    if (!tensors || num_tensors <= RSSM_T_CURSOR)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "tensors needs room for roles up to RSSM_T_CURSOR = %d; got %u",
                         RSSM_T_CURSOR, tensors ? num_tensors : 0);
    for (int32_t i = 0; i < plugin->layout.num_tensors; i++) {
        const DLTensor *view = &plugin->views[(int64_t)layer * plugin->layout.num_tensors + i].tensor;
        tensors[plugin->tensors[i].role] = view->data ? view : NULL; /* a ring that was left out at L = 1 */
    }
    return RSSM_OK;
}

static rssm_status api_pool_tensors(const rssm_plugin *plugin, int32_t layer, const DLTensor **tensors,
                                    uint32_t num_tensors, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    return rssm_close_error(&err, theirs, status ? status : give_tensors(plugin, layer, tensors, num_tensors, &err));
}

static rssm_status api_reset(rssm_plugin *plugin, const rssm_reset_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_reset_args copy;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_reset_args), "reset args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_plugin_reset(plugin, &copy, &err));
}

static rssm_status api_step_begin(rssm_plugin *plugin, const rssm_step_begin_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_step_begin_args copy;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_step_begin_args), "step_begin args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_step_begin_call(plugin, &copy, &err));
}

static rssm_status api_validate(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_decode_args copy;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_decode_args), "decode args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_check_call(plugin, RSSM_CALL_DECODE, &copy, &err));
}

static rssm_status api_decode(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_decode_args copy;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_decode_args), "decode args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_decode_call(plugin, &copy, &err));
}

static rssm_status api_teardown(rssm_plugin **plugin, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_error(&err, theirs);
    if (status)
        return status;
    if (plugin && *plugin) {
        status = rssm_check_plugin(*plugin, &err);
        if (!status) {
            rssm_plugin_free(*plugin);
            *plugin = NULL;
        }
    }
    return rssm_close_error(&err, theirs, status);
}

/* ---- extensions ------------------------------------------------------------------------------------------------- */

static const void *api_get_extension(const char *id)
{
    static const struct {
        const char *id;
        const void *table;
    } extensions[] = {{RSSM_EXT_FAULT, &rssm_fault_table},
                      {RSSM_EXT_SLOTS, &rssm_slots_table},
                      {RSSM_EXT_VERIFY, &rssm_verify_table},
                      {RSSM_EXT_CONV, &rssm_conv_table}};
    for (size_t i = 0; id && i < sizeof(extensions) / sizeof(extensions[0]); i++)
        if (strcmp(id, extensions[i].id) == 0)
            return extensions[i].table;
    return NULL;
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static const rssm_api api = {
    .struct_size = sizeof(api),
    .abi_major = RSSM_ABI_MAJOR,
    .abi_minor = RSSM_ABI_MINOR,
    .plugin_info = api_plugin_info,
    .init = api_init,
    .describe = api_describe,
    .pool_layout = api_pool_layout,
    .prepare = api_prepare,
    .pool_create = api_pool_create,
    .pool_tensors = api_pool_tensors,
    .reset = api_reset,
    .step_begin = api_step_begin,
    .validate = api_validate,
    .decode = api_decode,
    .get_extension = api_get_extension,
    .teardown = api_teardown,
    .status_name = rssm_status_name,
    .role_name = rssm_role_name,
};

__attribute__((visibility("default"))) const rssm_api *replayssm_get_api(uint32_t abi_major);

const rssm_api *replayssm_get_api(uint32_t abi_major)
{
    return abi_major == RSSM_ABI_MAJOR ? &api : NULL;
}
