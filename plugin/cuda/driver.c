#include "cuda/driver.h"

#include <dlfcn.h>
#include <string.h>

#include "core/error.h"

rssm_status rssm_cuda_driver_load(rssm_cuda_driver *driver, rssm_error *err)
{
    memset(driver, 0, sizeof(*driver));
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver->library)
        return rssm_fail(err, RSSM_ERR_UNSUPPORTED, "no CUDA driver on this machine (libcuda.so.1 cannot be loaded)");
    static const char *const symbols[] = {
#define X(field, symbol, parameters) #symbol,
        RSSM_CUDA_ENTRIES(X)
#undef X
    };
    void **entry = (void **)(void *)((char *)driver + sizeof(driver->library));
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        entry[i] = dlsym(driver->library, symbols[i]);
        if (!entry[i]) {
            rssm_cuda_driver_close(driver);
            return rssm_fail(err, RSSM_ERR_UNSUPPORTED, "the CUDA driver is too old: libcuda.so.1 has no %s",
                             symbols[i]);
        }
    }
    return RSSM_OK;
}

void rssm_cuda_driver_close(rssm_cuda_driver *driver)
{
    if (driver->library)
        dlclose(driver->library);
    memset(driver, 0, sizeof(*driver));
}

/* After these the context is of no more use (the driver reports them from every later call). */
static int is_fatal(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
        return 1;
    default:
        return 0;
    }
}

rssm_status rssm_cuda_fail(const rssm_cuda_driver *driver, CUresult result, const char *what, rssm_error *err)
{
    const char *text = NULL;
    if (driver->error_string(result, &text) || !text)
        text = "unknown CUDA error";
    rssm_status status = is_fatal(result)                     ? RSSM_ERR_DEVICE_LOST
                         : result == CUDA_ERROR_OUT_OF_MEMORY ? RSSM_ERR_OUT_OF_MEMORY
                                                              : RSSM_ERR_CUDA;
    rssm_fail(err, status, "%s: CUDA error %d (%s)", what, (int)result, text);
    err->cuda_error = status == RSSM_ERR_OUT_OF_MEMORY ? 0 : (int32_t)result; /* as rssm_error promises */
    return status;
}
