/* The one exported symbol and its table. Here the boundary ends: struct sizes, NULLs and errors are dealt with, so that the
 * rest of core/ sees full-sized structs. */
#include <stddef.h>
#include <string.h>

#include "core/error.h"
#include "core/plugin.h"
#include "core/validate.h"
#include "rssm_conv.h"
#include "rssm_fault.h"
#include "rssm_slots.h"
#include "rssm_verify.h"
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

/* ---- errors and structs ----------------------------------------------------------------------------------------- */

/* A local full-sized error, whatever the caller gave; RSSM_OK unless his has no sane size. */
static rssm_status open_error(rssm_error *local, const rssm_error *theirs)
{
    local->struct_size = sizeof(*local);
    local->status = RSSM_OK;
    local->role = RSSM_T_NONE;
    local->dim = -1;
    local->cuda_error = 0;
    local->expected = local->got = 0;
    local->message[0] = 0;
    return theirs && theirs->struct_size < sizeof(rssm_error) ? RSSM_ERR_STRUCT_SIZE : RSSM_OK;
}

/* Gives the local error to the caller; the message's tail is not copied. One without a sane size is left alone. */
static rssm_status close_error(const rssm_error *local, rssm_error *theirs, rssm_status status)
{
    if (!theirs)
        return status;
    if (theirs->struct_size < sizeof(rssm_error))
        return RSSM_ERR_STRUCT_SIZE;
    size_t used = offsetof(rssm_error, message) + strlen(local->message) + 1;
    memcpy((char *)theirs + sizeof(uint64_t), (const char *)local + sizeof(uint64_t), used - sizeof(uint64_t));
    theirs->status = status;
    return status;
}

/* Copies a caller's struct of any size into a zeroed local of `known` bytes. v1 is its size in ABI 1.0. */
static rssm_status copy_in(void *local, const void *theirs, uint64_t known, uint64_t v1, const char *name,
                           rssm_error *err)
{
    if (!theirs)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "%s is NULL", name);
    uint64_t given;
    memcpy(&given, theirs, sizeof(given));
    if (given < v1)
        return rssm_fail(err, RSSM_ERR_STRUCT_SIZE, "%s.struct_size = %llu is below the 1.0 size %llu (was it set?)",
                         name, (unsigned long long)given, (unsigned long long)v1);
    if (given > RSSM_MAX_STRUCT_BYTES)
        return rssm_fail(err, RSSM_ERR_STRUCT_SIZE, "%s.struct_size = %llu is not a size", name,
                         (unsigned long long)given);
    for (uint64_t i = known; i < given; i++)
        if (((const char *)theirs)[i])
            return rssm_fail(err, RSSM_ERR_STRUCT_SIZE,
                             "%s is of a newer minor version: byte %llu, which this plugin does not know, is not zero",
                             name, (unsigned long long)i);
    memcpy(local, theirs, given < known ? given : known);
    if (given < known)
        memset((char *)local + given, 0, known - given);
    return RSSM_OK;
}

/* Writes min(sizes) into a caller's out-struct, whose struct_size stays his. */
static rssm_status check_out(const void *theirs, uint64_t v1, const char *name, rssm_error *err)
{
    if (!theirs)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "%s is NULL", name);
    uint64_t given;
    memcpy(&given, theirs, sizeof(given));
    if (given < v1 || given > RSSM_MAX_STRUCT_BYTES)
        return rssm_fail(err, RSSM_ERR_STRUCT_SIZE, "%s.struct_size = %llu; at least %llu (was it set?)", name,
                         (unsigned long long)given, (unsigned long long)v1);
    return RSSM_OK;
}

static void copy_out(void *theirs, const void *local, uint64_t known)
{
    uint64_t given;
    memcpy(&given, theirs, sizeof(given));
    uint64_t bytes = given < known ? given : known;
    memcpy((char *)theirs + sizeof(uint64_t), (const char *)local + sizeof(uint64_t), bytes - sizeof(uint64_t));
    if (given > known)
        memset((char *)theirs + known, 0, given - known);
}

static rssm_status check_plugin(const rssm_plugin *plugin, rssm_error *err)
{
    if (!plugin)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "plugin is NULL");
    if (plugin->magic != RSSM_PLUGIN_MAGIC)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "plugin is not a live instance (torn down?)");
    return RSSM_OK;
}

/* The start of every call on an instance; its end is close_error. */
static rssm_status open_call(rssm_error *local, const rssm_error *theirs, const rssm_plugin *plugin)
{
    rssm_status status = open_error(local, theirs);
    return status ? status : check_plugin(plugin, local);
}

/* ---- v1 --------------------------------------------------------------------------------------------------------- */

static rssm_status api_plugin_info(rssm_info *out, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = open_error(&err, theirs);
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
    status = check_out(out, sizeof(rssm_info), "info", &err);
    if (!status)
        copy_out(out, &info, sizeof(info));
    return close_error(&err, theirs, status);
}

static rssm_status init_with(const rssm_init_args *args, rssm_plugin **out, rssm_error *err)
{
    if (!out)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "the plugin pointer's address is NULL");
    rssm_init_args copy;
    rssm_dims dims;
    rssm_allocator allocator;
    rssm_status status = copy_in(&copy, args, sizeof(copy), sizeof(rssm_init_args), "init args", err);
    if (!status && copy.dims) {
        status = copy_in(&dims, copy.dims, sizeof(dims), sizeof(rssm_dims), "dims", err);
        copy.dims = &dims;
    }
    if (!status && copy.allocator) {
        status = copy_in(&allocator, copy.allocator, sizeof(allocator), sizeof(rssm_allocator), "allocator", err);
        copy.allocator = &allocator;
    }
    return status ? status : rssm_plugin_init(&copy, out, err);
}

static rssm_status api_init(const rssm_init_args *args, rssm_plugin **out, rssm_error *theirs)
{
    if (out)
        *out = NULL;
    rssm_error err;
    rssm_status status = open_error(&err, theirs);
    return status ? status : close_error(&err, theirs, init_with(args, out, &err));
}

static rssm_status api_describe(const rssm_plugin *plugin, rssm_description *out, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = open_call(&err, theirs, plugin);
    if (!status)
        status = check_out(out, sizeof(rssm_description), "description", &err);
    if (!status) {
        rssm_description description;
        rssm_plugin_describe(plugin, &description);
        copy_out(out, &description, sizeof(description));
    }
    return close_error(&err, theirs, status);
}

static rssm_status api_pool_layout(const rssm_plugin *plugin, rssm_layout *out, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = open_call(&err, theirs, plugin);
    if (!status)
        status = check_out(out, sizeof(rssm_layout), "layout", &err);
    if (!status)
        copy_out(out, &plugin->layout, sizeof(plugin->layout));
    return close_error(&err, theirs, status);
}

static rssm_status api_prepare(rssm_plugin *plugin, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = open_call(&err, theirs, plugin);
    return close_error(&err, theirs, status ? status : rssm_plugin_prepare(plugin, &err));
}

static rssm_status api_pool_create(rssm_plugin *plugin, const rssm_pool_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_pool_args copy = {.struct_size = sizeof(copy)};
    rssm_status status = open_call(&err, theirs, plugin);
    if (!status && args)
        status = copy_in(&copy, args, sizeof(copy), sizeof(rssm_pool_args), "pool args", &err);
    return close_error(&err, theirs, status ? status : rssm_plugin_pool_create(plugin, &copy, &err));
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
    rssm_status status = open_call(&err, theirs, plugin);
    return close_error(&err, theirs, status ? status : give_tensors(plugin, layer, tensors, num_tensors, &err));
}

static rssm_status api_reset(rssm_plugin *plugin, const rssm_reset_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_reset_args copy;
    rssm_status status = open_call(&err, theirs, plugin);
    if (!status)
        status = copy_in(&copy, args, sizeof(copy), sizeof(rssm_reset_args), "reset args", &err);
    return close_error(&err, theirs, status ? status : rssm_plugin_reset(plugin, &copy, &err));
}

static rssm_status api_step_begin(rssm_plugin *plugin, const rssm_step_begin_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_step_begin_args copy;
    rssm_status status = open_call(&err, theirs, plugin);
    if (!status)
        status = copy_in(&copy, args, sizeof(copy), sizeof(rssm_step_begin_args), "step_begin args", &err);
    return close_error(&err, theirs, status ? status : rssm_plugin_step_begin(plugin, &copy, &err));
}

static rssm_status api_validate(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_decode_args copy;
    rssm_status status = open_call(&err, theirs, plugin);
    if (!status)
        status = copy_in(&copy, args, sizeof(copy), sizeof(rssm_decode_args), "decode args", &err);
    return close_error(&err, theirs, status ? status : rssm_check_decode(plugin, &copy, &err));
}

static rssm_status api_decode(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_decode_args copy;
    rssm_status status = open_call(&err, theirs, plugin);
    if (!status)
        status = copy_in(&copy, args, sizeof(copy), sizeof(rssm_decode_args), "decode args", &err);
    return close_error(&err, theirs, status ? status : rssm_plugin_decode(plugin, &copy, &err));
}

static rssm_status api_teardown(rssm_plugin **plugin, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = open_error(&err, theirs);
    if (status)
        return status;
    if (plugin && *plugin) {
        status = check_plugin(*plugin, &err);
        if (!status) {
            rssm_plugin_free(*plugin);
            *plugin = NULL;
        }
    }
    return close_error(&err, theirs, status);
}

/* ---- extensions ------------------------------------------------------------------------------------------------- */

static rssm_status api_fault_read(rssm_plugin *plugin, void *stream, uint32_t *word, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = open_call(&err, theirs, plugin);
    if (!status && !word)
        status = rssm_fail(&err, RSSM_ERR_ARGUMENT, "word is NULL");
    if (!status && !plugin->ctx)
        status = rssm_fail(&err, RSSM_ERR_STATE, "fault read before prepare");
    return close_error(&err, theirs, status ? status : plugin->backend->fault_read(plugin->ctx, stream, word, &err));
}

static rssm_status api_fault_clear(rssm_plugin *plugin, void *stream, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = open_call(&err, theirs, plugin);
    if (!status && !plugin->ctx)
        status = rssm_fail(&err, RSSM_ERR_STATE, "fault clear before prepare");
    return close_error(&err, theirs, status ? status : plugin->backend->fault_clear(plugin->ctx, stream, &err));
}

static const rssm_fault_api fault_api = {
    .struct_size = sizeof(fault_api), .read = api_fault_read, .clear = api_fault_clear};

static rssm_status unsupported(rssm_error *theirs, const char *extension)
{
    rssm_error err;
    rssm_status status = open_error(&err, theirs);
    if (status)
        return status;
    rssm_fail(&err, RSSM_ERR_UNSUPPORTED, "%s is not in replayssm %s yet", extension, RSSM_VERSION);
    return close_error(&err, theirs, RSSM_ERR_UNSUPPORTED);
}

/* Drafts: each entry is there and says that it is not. */
static rssm_status slots_import_state(rssm_plugin *p, const rssm_state_args *a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_SLOTS);
}

static rssm_status slots_export_state(rssm_plugin *p, const rssm_state_args *a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_SLOTS);
}

static rssm_status slots_copy(rssm_plugin *p, const rssm_copy_args *a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_SLOTS);
}

static rssm_status slots_flush(rssm_plugin *p, const rssm_flush_args *a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_SLOTS);
}

static rssm_status slots_saved_bytes(const rssm_plugin *p, uint64_t *a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_SLOTS);
}

static rssm_status slots_save(rssm_plugin *p, int64_t a, void *b, uint64_t c, uint64_t *d, void *s, rssm_error *err)
{
    (void)p;
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    (void)s;
    return unsupported(err, RSSM_EXT_SLOTS);
}

static rssm_status slots_load(rssm_plugin *p, int64_t a, const void *b, uint64_t c, void *s, rssm_error *err)
{
    (void)p;
    (void)a;
    (void)b;
    (void)c;
    (void)s;
    return unsupported(err, RSSM_EXT_SLOTS);
}

static rssm_status slots_acquire(rssm_plugin *p, uint64_t *a, int64_t *b, rssm_error *err)
{
    (void)p;
    (void)a;
    (void)b;
    return unsupported(err, RSSM_EXT_SLOTS);
}

static rssm_status slots_release(rssm_plugin *p, uint64_t a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_SLOTS);
}

static rssm_status slots_check(const rssm_plugin *p, uint64_t a, int64_t *b, rssm_error *err)
{
    (void)p;
    (void)a;
    (void)b;
    return unsupported(err, RSSM_EXT_SLOTS);
}

static const rssm_slots_api slots_api = {.struct_size = sizeof(slots_api),
                                         .import_state = slots_import_state,
                                         .export_state = slots_export_state,
                                         .copy = slots_copy,
                                         .flush = slots_flush,
                                         .saved_bytes = slots_saved_bytes,
                                         .save = slots_save,
                                         .load = slots_load,
                                         .acquire = slots_acquire,
                                         .release = slots_release,
                                         .check = slots_check};

static rssm_status verify_verify_begin(rssm_plugin *p, const rssm_verify_begin_args *a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_VERIFY);
}

static rssm_status verify_validate(const rssm_plugin *p, const rssm_decode_args *a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_VERIFY);
}

static rssm_status verify_verify(rssm_plugin *p, const rssm_decode_args *a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_VERIFY);
}

static rssm_status verify_commit(rssm_plugin *p, const rssm_commit_args *a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_VERIFY);
}

static const rssm_verify_api verify_api = {.struct_size = sizeof(verify_api),
                                           .verify_begin = verify_verify_begin,
                                           .validate = verify_validate,
                                           .verify = verify_verify,
                                           .commit = verify_commit};

static rssm_status conv_validate(const rssm_plugin *p, const rssm_decode_args *a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_CONV);
}

static rssm_status conv_conv(rssm_plugin *p, const rssm_decode_args *a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_CONV);
}

static rssm_status conv_conv_verify(rssm_plugin *p, const rssm_decode_args *a, rssm_error *err)
{
    (void)p;
    (void)a;
    return unsupported(err, RSSM_EXT_CONV);
}

static const rssm_conv_api conv_api = {
    .struct_size = sizeof(conv_api), .validate = conv_validate, .conv = conv_conv, .conv_verify = conv_conv_verify};

static const void *api_get_extension(const char *id)
{
    static const struct {
        const char *id;
        const void *table;
    } extensions[] = {{RSSM_EXT_FAULT, &fault_api},
                      {RSSM_EXT_SLOTS, &slots_api},
                      {RSSM_EXT_VERIFY, &verify_api},
                      {RSSM_EXT_CONV, &conv_api}};
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
