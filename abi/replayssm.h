/* replayssm plugin ABI 1.0: the one symbol and its table. Includes all of v1; extensions have their own headers
 * (rssm_fault.h, rssm_slots.h, rssm_verify.h, rssm_conv.h).
 *
 *     void *lib = dlopen("replayssm.so", RTLD_NOW | RTLD_LOCAL);
 *     rssm_get_api_fn get = (rssm_get_api_fn)dlsym(lib, RSSM_GET_API_SYMBOL);
 *     const rssm_api *api = get(RSSM_ABI_MAJOR);          NULL: the plugin does not speak this major
 *     api->init -> describe -> pool_layout -> prepare -> pool_create -> (reset, step_begin, decode ...) -> teardown
 */
#ifndef REPLAYSSM_H_
#define REPLAYSSM_H_

#include "rssm_base.h"
#include "rssm_model.h"
#include "rssm_pool.h"
#include "rssm_step.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rssm_api {
    uint64_t struct_size; /* of the plugin's table: check it before a function of a later minor              */
    uint32_t abi_major, abi_minor;

    /* What this binary is. [any-thread] */
    rssm_status (*plugin_info)(rssm_info *out, rssm_error *err);

    /* Reads the model, decides the layout, allocates the instance. Touches no device and starts no thread: a host may
     * init, plan and then fork. *out is NULL on failure, and nothing is left behind. [any-thread]
     * ERR_JSON, ERR_CONFIG, ERR_MODEL, ERR_TP, ERR_IO, ERR_OVERFLOW, ERR_OUT_OF_MEMORY, ERR_ARGUMENT, ERR_UNSUPPORTED
     * (a CUDA device in a build without CUDA). */
    rssm_status (*init)(const rssm_init_args *args, rssm_plugin **out, rssm_error *err);

    /* What was read, assumed and decided. [any-thread] once init returned. */
    rssm_status (*describe)(const rssm_plugin *plugin, rssm_description *out, rssm_error *err);

    /* Every tensor of the pool and all sums. [any-thread] once init returned. */
    rssm_status (*pool_layout)(const rssm_plugin *plugin, rssm_layout *out, rssm_error *err);

    /* Makes the device ready: CPU threads, or the CUDA context, module and workspace. A second call does nothing.
     * After a fork both processes go on with CPU instances. A CUDA driver that anything in the process has initialised
     * serves that process alone: in a child, prepare and every call on the device are ERR_CUDA or ERR_DEVICE_LOST, while
     * describe, pool_layout, validate and teardown work. So fork before prepare.
     * [instance] [may-sync] ERR_UNSUPPORTED (no driver, no kernel for this GPU), ERR_CUDA, ERR_OUT_OF_MEMORY. */
    rssm_status (*prepare)(rssm_plugin *plugin, rssm_error *err);

    /* Binds or allocates the pool; args NULL = allocate. Once per instance, after prepare. [instance] [may-sync] */
    rssm_status (*pool_create)(rssm_plugin *plugin, const rssm_pool_args *args, rssm_error *err);

    /* Sets tensors[role] of the host's role array to the pool's tensors of a layer and leaves the other entries alone.
     * The DLTensors are the plugin's and live until teardown, so they may be kept per layer. A ring that the host left out
     * (L = 1) becomes NULL. The array must reach RSSM_T_CURSOR. [instance] */
    rssm_status (*pool_tensors)(const rssm_plugin *plugin, int32_t layer, const DLTensor **tensors,
                                uint32_t num_tensors, rssm_error *err);

    /* Fresh slots. [instance] [capture-safe] */
    rssm_status (*reset)(rssm_plugin *plugin, const rssm_reset_args *args, rssm_error *err);

    /* Once per forward pass, before the first layer: see rssm_step.h. Needs the pool. [instance] [capture-safe] */
    rssm_status (*step_begin)(rssm_plugin *plugin, const rssm_step_begin_args *args, rssm_error *err);

    /* All that decode checks, without decoding; touches no device (but with RSSM_CHECK_DEEP). Needs no prepare.
     * [instance] */
    rssm_status (*validate)(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);

    /* One layer of one step: validate, then enqueue (CPU: compute). An error means that nothing was written.
     * [instance] [capture-safe] */
    rssm_status (*decode)(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);

    /* The table of an extension, or NULL. Every extension table starts with struct_size. [any-thread] */
    const void *(*get_extension)(const char *id);

    /* Frees everything, joins threads, sets *plugin to NULL. Accepts NULL and a NULL handle. The caller guarantees
     * that no work of the instance is in flight. [instance] [may-sync] */
    rssm_status (*teardown)(rssm_plugin **plugin, rssm_error *err);

    /* Names for messages and logs, never NULL. [any-thread] */
    const char *(*status_name)(rssm_status status);
    const char *(*role_name)(int32_t role);
} rssm_api;

#define RSSM_GET_API_SYMBOL "replayssm_get_api"
typedef const rssm_api *(*rssm_get_api_fn)(uint32_t abi_major);

#ifdef __cplusplus
}

/* auto args = rssm_make<rssm_init_args>(); is a zeroed struct that knows its size. */
template <typename T> inline T rssm_make()
{
    T made = T();
    made.struct_size = sizeof(T);
    return made;
}
#endif
#endif
