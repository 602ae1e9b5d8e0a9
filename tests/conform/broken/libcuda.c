/* A libcuda.so.1 that knows of contexts alone, without a GPU and without CUDA's headers: what the judge needs to see that a
 * plugin leaves the host's current context, and with it the current device, as it was. One device, one thread. */
enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, MAX_DEPTH = 16 };

static void *stack[MAX_DEPTH];
static int depth, retained;
static char primary;

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxGetCurrent(void **context);
int cuCtxSetCurrent(void *context);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);

int cuInit(unsigned flags)
{
    return flags ? INVALID_VALUE : SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? SUCCESS : INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &primary;
    retained++;
    return device == 0 ? SUCCESS : INVALID_VALUE;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    return device == 0 && retained-- > 0 ? SUCCESS : INVALID_CONTEXT;
}

int cuCtxGetCurrent(void **context)
{
    *context = depth ? stack[depth - 1] : (void *)0;
    return SUCCESS;
}

/* In place of the top; NULL takes it away. */
int cuCtxSetCurrent(void *context)
{
    if (depth > 0)
        depth--;
    return context ? cuCtxPushCurrent_v2(context) : SUCCESS;
}

int cuCtxPushCurrent_v2(void *context)
{
    if (!context || depth == MAX_DEPTH)
        return INVALID_CONTEXT;
    stack[depth++] = context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context)
{
    if (depth == 0)
        return INVALID_CONTEXT;
    *context = stack[--depth];
    return SUCCESS;
}
