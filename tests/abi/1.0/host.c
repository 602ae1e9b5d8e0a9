/* The smallest host: one request, a few tokens through the linear layers of a model, all with the same made-up inputs.
 *
 *     cc -Iabi examples/minimal.c -ldl -o minimal && ./minimal build/plugin/replayssm.so config.json */
#include <dlfcn.h>
#include <replayssm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A compact float32 tensor [1, n, m] (or fewer dims) of its own memory, filled with x. */
static DLTensor tensor(int ndim, int64_t *shape, float x)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= shape[i];
    float *data = calloc((size_t)n, sizeof *data);
    for (int64_t i = 0; data != NULL && i < n; i++)
        data[i] = x * (float)(i % 7 - 3);
    return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {kDLFloat, 32, 1}, .shape = shape};
}

#define TRY(call)                                        \
    if ((call) != RSSM_OK) {                             \
        fprintf(stderr, "%s: %s\n", #call, err.message); \
        return 1;                                        \
    }

int main(int argc, char **argv)
{
    if (argc != 3)
        return fprintf(stderr, "usage: %s PLUGIN.so CONFIG.json\n", argv[0]), 64;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, RSSM_GET_API_SYMBOL) : NULL;
    if (symbol == NULL)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    rssm_get_api_fn get_api;
    memcpy(&get_api, &symbol, sizeof get_api);
    const rssm_api *api = get_api(RSSM_ABI_MAJOR);
    if (api == NULL)
        return fprintf(stderr, "the plugin does not speak ABI %d\n", RSSM_ABI_MAJOR), 1;

    rssm_error err = {.struct_size = sizeof err};
    rssm_plugin *ssm = NULL;
    rssm_description m = {.struct_size = sizeof m};
    rssm_init_args init = {
        .struct_size = sizeof init, .config_path = argv[2], .io_dtype = RSSM_DTYPE_FLOAT32, .num_slots = 1};
    TRY(api->init(&init, &ssm, &err));
    TRY(api->describe(ssm, &m, &err));
    TRY(api->prepare(ssm, &err));
    TRY(api->pool_create(ssm, NULL, &err));

    /* Inputs and weights of one layer for one row; KDA gates every channel, the others every head. */
    int mamba = m.family == RSSM_FAMILY_MAMBA2;
    int64_t gates = m.family == RSSM_FAMILY_KDA ? (int64_t)m.HV * m.K : m.HV;
    int64_t packed[] = {1, 2 * (int64_t)m.H * m.K + (int64_t)m.HV * m.V}, gate[] = {1, gates}, head[] = {1, m.HV};
    int64_t out_shape[] = {1, m.HV, m.V}, one[] = {1}, rows_shape[] = {1, RSSM_ROW_WIDTH};
    int32_t slot = 0, row[RSSM_ROW_WIDTH];
    DLDataType i32 = {kDLInt, 32, 1};
    DLTensor in = tensor(2, packed, .1f), a = tensor(2, gate, .1f), b = tensor(2, head, .1f),
             out = tensor(3, out_shape, 0);
    DLTensor A_log = tensor(1, head + 1, .1f), dt_bias = tensor(1, gate + 1, .1f);
    DLTensor slots = {.data = &slot, .device = {kDLCPU, 0}, .ndim = 1, .dtype = i32, .shape = one};
    DLTensor rows = {.data = row, .device = {kDLCPU, 0}, .ndim = 2, .dtype = i32, .shape = rows_shape};

    const DLTensor *t[RSSM_T_COUNT] = {[RSSM_T_A_LOG] = &A_log, [RSSM_T_DT_BIAS] = &dt_bias, [RSSM_T_OUT] = &out};
    t[mamba ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV] = &in;
    t[mamba ? RSSM_T_DT : RSSM_T_A] = &a;
    t[RSSM_T_B] = mamba ? NULL : &b;
    t[RSSM_T_ROWS] = &rows;

    rssm_step_begin_args begin = {.struct_size = sizeof begin, .slots = &slots, .rows_out = &rows};
    rssm_decode_args step = {.struct_size = sizeof step, .tensors = t, .num_tensors = RSSM_T_COUNT};
    for (int token = 0; token < 5; token++) {
        TRY(api->step_begin(ssm, &begin, &err));
        for (step.layer = 0; step.layer < m.num_linear_layers; step.layer++) {
            TRY(api->pool_tensors(ssm, step.layer, t, RSSM_T_COUNT, &err)); /* state and ring of this layer */
            TRY(api->decode(ssm, &step, &err));
        }
        const float *o = out.data;
        printf("%s token %d: out = %g %g %g %g ...\n", m.family_name, token, o[0], o[1], o[2], o[3]);
    }
    TRY(api->teardown(&ssm, &err));
    const DLTensor *owned[] = {&in, &a, &b, &out, &A_log, &dt_bias};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++)
        free(owned[i]->data);
    return dlclose(library);
}
