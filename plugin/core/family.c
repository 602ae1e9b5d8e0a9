#include "core/family.h"

#include <stdbool.h>
#include <stddef.h>

#define S_(x) RSSM_SYM_##x

/* role, place, calls, need, kinds, shape, second shape */
#define ROLE(r, p, c, n, k, ...)                                                                                    \
    {                                                                                                               \
        .role = RSSM_T_##r, .place = RSSM_PLACE_##p, .calls = (c), .need = RSSM_NEED_##n, .kinds = (k), __VA_ARGS__ \
    }

enum {
    NO_CALL = 0, /* storage of the pool */
    PLAIN = RSSM_CALL_DECODE,
    STEP = RSSM_CALL_DECODE | RSSM_CALL_VERIFY,
    CONVOLVE = RSSM_CALL_CONV | RSSM_CALL_CONV_VERIFY,
    ANY_CALL = STEP | CONVOLVE
};

enum {
    IO = RSSM_KIND_IO,
    GATE_IN = RSSM_KIND_IO | RSSM_KIND_F32,
    ANY_FLOAT = RSSM_KIND_FLOAT,
    INT = RSSM_KIND_I32 | RSSM_KIND_I64
};

/* The rows of a step or window, alike in all families. */
#define ROW_ROLES                                                                         \
    ROLE(CURSOR, CURSOR, NO_CALL, OPTIONAL, RSSM_KIND_I32, .shape = {S_(S), S_(CURSOR)}), \
        ROLE(ROWS, INDEX, ANY_CALL, ROWS, RSSM_KIND_I32, .shape = {S_(B), S_(ROW)}),      \
        ROLE(WRITE_POS, INDEX, PLAIN, HOST_POS, INT, .shape = {S_(B)}),                   \
        ROLE(FORCE_FLUSH, INDEX, PLAIN, WITH_POS, INT, .shape = {S_(B)}),                 \
        ROLE(STATE_INDICES, INDEX, PLAIN, WITH_POS, INT, .shape = {S_(B)})

#define DELTA_INPUTS                                                                                    \
    ROLE(MIXED_QKV, INPUT, STEP, PACKED, IO, .shape = {S_(T), S_(PACKED)}),                             \
        ROLE(Q, INPUT, STEP, APART, IO, .shape = {S_(T), S_(H), S_(K)}, .alt_shape = {S_(T), S_(HxK)}), \
        ROLE(K, INPUT, STEP, APART, IO, .shape = {S_(T), S_(H), S_(K)}, .alt_shape = {S_(T), S_(HxK)}), \
        ROLE(V, INPUT, STEP, APART, IO, .shape = {S_(T), S_(HV), S_(V)}, .alt_shape = {S_(T), S_(HVxV)})

#define OUT_ROLE \
    ROLE(OUT, OUTPUT, STEP, ALWAYS, GATE_IN, .shape = {S_(T), S_(HV), S_(V)}, .alt_shape = {S_(T), S_(HVxV)})

#define STATE_ROLE ROLE(STATE, STATE, STEP, ALWAYS, RSSM_KIND_STATE, .shape = {S_(S), S_(HV), S_(V), S_(K)})

/* The short convolution in front. */
#define CONV_ROLES                                                                            \
    ROLE(CONV_IN, INPUT, CONVOLVE, ALWAYS, IO, .shape = {S_(T), S_(PACKED)}),                 \
        ROLE(CONV_WEIGHT, WEIGHT, CONVOLVE, ALWAYS, ANY_FLOAT, .shape = {S_(PACKED), S_(W)}), \
        ROLE(CONV_BIAS, WEIGHT, CONVOLVE, OPTIONAL, ANY_FLOAT, .shape = {S_(PACKED)}),        \
        ROLE(CONV_OUT, OUTPUT, CONVOLVE, ALWAYS, IO, .shape = {S_(T), S_(PACKED)}),           \
        ROLE(CONV, CONV, CONVOLVE, ALWAYS, IO, .shape = {S_(S), S_(PACKED), S_(CONV)})

static const rssm_role_spec kda_roles[] = {
    DELTA_INPUTS,
    ROLE(A, INPUT, STEP, ALWAYS, GATE_IN, .shape = {S_(T), S_(HV), S_(K)}, .alt_shape = {S_(T), S_(HVxK)}),
    ROLE(B, INPUT, STEP, ALWAYS, GATE_IN, .shape = {S_(T), S_(HV)}),
    ROLE(A_LOG, WEIGHT, STEP, A_LOG, ANY_FLOAT, .shape = {S_(HV)}),
    ROLE(DT_BIAS, WEIGHT, STEP, ALWAYS, ANY_FLOAT, .shape = {S_(HVxK)}, .alt_shape = {S_(HV), S_(K)}),
    OUT_ROLE,
    STATE_ROLE,
    ROLE(D_CACHE, RING, STEP, RING, RSSM_KIND_RING, .shape = {S_(S), S_(HV), S_(R), S_(V)}),
    ROLE(K_CACHE, RING, STEP, RING, RSSM_KIND_RING, .shape = {S_(S), S_(H), S_(R), S_(K)}),
    ROLE(G_CACHE, RING, STEP, RING, RSSM_KIND_F32, .shape = {S_(S), S_(HV), S_(R), S_(K)}),
    CONV_ROLES,
    ROW_ROLES,
};

static const rssm_role_spec gdn_roles[] = {
    DELTA_INPUTS,
    ROLE(A, INPUT, STEP, ALWAYS, GATE_IN, .shape = {S_(T), S_(HV)}),
    ROLE(B, INPUT, STEP, ALWAYS, GATE_IN, .shape = {S_(T), S_(HV)}),
    ROLE(A_LOG, WEIGHT, STEP, A_LOG, ANY_FLOAT, .shape = {S_(HV)}),
    ROLE(DT_BIAS, WEIGHT, STEP, ALWAYS, ANY_FLOAT, .shape = {S_(HV)}),
    OUT_ROLE,
    STATE_ROLE,
    ROLE(D_CACHE, RING, STEP, RING, RSSM_KIND_RING, .shape = {S_(S), S_(HV), S_(R), S_(V)}),
    ROLE(K_CACHE, RING, STEP, RING, RSSM_KIND_RING, .shape = {S_(S), S_(H), S_(R), S_(K)}),
    ROLE(G_CACHE, RING, STEP, RING, RSSM_KIND_F32, .shape = {S_(S), S_(HV), S_(R)}),
    CONV_ROLES,
    ROW_ROLES,
};

static const rssm_role_spec mamba2_roles[] = {
    ROLE(MIXED_XBC, INPUT, STEP, PACKED, IO, .shape = {S_(T), S_(PACKED)}),
    ROLE(X, INPUT, STEP, APART, IO, .shape = {S_(T), S_(HV), S_(V)}, .alt_shape = {S_(T), S_(HVxV)}),
    ROLE(BM, INPUT, STEP, APART, IO, .shape = {S_(T), S_(H), S_(K)}, .alt_shape = {S_(T), S_(HxK)}),
    ROLE(CM, INPUT, STEP, APART, IO, .shape = {S_(T), S_(H), S_(K)}, .alt_shape = {S_(T), S_(HxK)}),
    ROLE(DT, INPUT, STEP, ALWAYS, GATE_IN, .shape = {S_(T), S_(HV)}),
    ROLE(Z, INPUT, STEP, OPTIONAL, IO, .shape = {S_(T), S_(HV), S_(V)}, .alt_shape = {S_(T), S_(HVxV)}),
    ROLE(A_LOG, WEIGHT, STEP, A_LOG, ANY_FLOAT, .shape = {S_(HV)}),
    ROLE(A_DECAY, WEIGHT, STEP, A_DECAY, ANY_FLOAT, .shape = {S_(HV)}),
    ROLE(DT_BIAS, WEIGHT, STEP, OPTIONAL, ANY_FLOAT, .shape = {S_(HV)}),
    ROLE(D, WEIGHT, STEP, OPTIONAL, ANY_FLOAT, .shape = {S_(HV)}),
    OUT_ROLE,
    STATE_ROLE,
    ROLE(X_CACHE, RING, STEP, RING, RSSM_KIND_RING, .shape = {S_(S), S_(HV), S_(R), S_(V)}),
    ROLE(B_CACHE, RING, STEP, RING, RSSM_KIND_RING, .shape = {S_(S), S_(H), S_(R), S_(K)}),
    ROLE(DT_CACHE, RING, STEP, RING, RSSM_KIND_F32, .shape = {S_(S), S_(HV), S_(R)}),
    CONV_ROLES,
    ROW_ROLES,
};

#define COUNT(a) ((int32_t)(sizeof(a) / sizeof((a)[0])))

#define DELTA_SYMBOLS                                                                                           \
    {                                                                                                           \
        "", "B", "slots", "R", "H", "HV", "K", "V", "H*K", "HV*V", "HV*K", "2*H*K + HV*V", "w'", "4", "8", "n", \
            "tokens", "B + 1", "w", "w - 1"                                                                     \
    }

/* How a shape is spelled in messages and docs. R is called L by layout.c when no draft rows are added. */
static const rssm_family_spec families[] = {
    {.family = RSSM_FAMILY_KDA,
     .name = "kda",
     .roles = kda_roles,
     .num_roles = COUNT(kda_roles),
     .sym_name = DELTA_SYMBOLS},
    {.family = RSSM_FAMILY_GDN,
     .name = "gdn",
     .roles = gdn_roles,
     .num_roles = COUNT(gdn_roles),
     .sym_name = DELTA_SYMBOLS},
    {.family = RSSM_FAMILY_MAMBA2,
     .name = "mamba2",
     .roles = mamba2_roles,
     .num_roles = COUNT(mamba2_roles),
     .sym_name = {"",   "B", "slots", "R", "ng",     "nh",    "N", "P",    "ng*N", "nh*P", "nh*N", "nh*P + 2*ng*N",
                  "w'", "4", "8",     "n", "tokens", "B + 1", "w", "w - 1"}},
};

const rssm_family_spec *rssm_family(int32_t family)
{
    for (int32_t i = 0; i < COUNT(families); i++)
        if (families[i].family == family)
            return &families[i];
    return NULL;
}

const rssm_role_spec *rssm_family_role(const rssm_family_spec *family, int32_t role)
{
    for (int32_t i = 0; i < family->num_roles; i++)
        if (family->roles[i].role == role)
            return &family->roles[i];
    return NULL;
}

static bool in_pool(const rssm_role_spec *spec)
{
    return spec->place == RSSM_PLACE_STATE || spec->place == RSSM_PLACE_RING || spec->place == RSSM_PLACE_CONV ||
           spec->place == RSSM_PLACE_CURSOR;
}

_Static_assert(RSSM_T_COUNT <= 64, "one bit per role");
_Static_assert(COUNT(kda_roles) <= RSSM_MAX_CALL_ROLES, "a call may take all of them");
_Static_assert(COUNT(gdn_roles) <= RSSM_MAX_CALL_ROLES, "likewise");
_Static_assert(COUNT(mamba2_roles) <= RSSM_MAX_CALL_ROLES, "likewise");

void rssm_call_table_make(rssm_call_table *table, const rssm_family_spec *family, rssm_call call)
{
    bool windows = call == RSSM_CALL_VERIFY || call == RSSM_CALL_CONV_VERIFY;
    *table = (rssm_call_table){0};
    for (int32_t i = 0; i < family->num_roles; i++) {
        rssm_role_spec spec = family->roles[i];
        if (spec.calls & call || in_pool(&spec))
            table->accepted |= (uint64_t)1 << spec.role;
        if (!(spec.calls & call))
            continue;
        for (int k = 0; !windows && k < RSSM_SPEC_MAX_DIMS; k++) {
            if (spec.shape[k] == RSSM_SYM_T)
                spec.shape[k] = RSSM_SYM_B;
            if (spec.alt_shape[k] == RSSM_SYM_T)
                spec.alt_shape[k] = RSSM_SYM_B;
        }
        table->roles[table->num_roles++] = spec;
    }
}

static const char *const role_names[RSSM_T_COUNT] = {
    [RSSM_T_NONE] = "none",
    [RSSM_T_MIXED_QKV] = "mixed_qkv",
    [RSSM_T_Q] = "q",
    [RSSM_T_K] = "k",
    [RSSM_T_V] = "v",
    [RSSM_T_MIXED_XBC] = "mixed_xbc",
    [RSSM_T_X] = "x",
    [RSSM_T_BM] = "B",
    [RSSM_T_CM] = "C",
    [RSSM_T_A] = "a",
    [RSSM_T_B] = "b",
    [RSSM_T_DT] = "dt",
    [RSSM_T_Z] = "z",
    [RSSM_T_A_LOG] = "A_log",
    [RSSM_T_A_DECAY] = "A",
    [RSSM_T_DT_BIAS] = "dt_bias",
    [RSSM_T_D] = "D",
    [RSSM_T_OUT] = "out",
    [RSSM_T_STATE] = "state",
    [RSSM_T_D_CACHE] = "d_cache",
    [RSSM_T_K_CACHE] = "k_cache",
    [RSSM_T_G_CACHE] = "g_cache",
    [RSSM_T_X_CACHE] = "x_cache",
    [RSSM_T_DT_CACHE] = "dt_cache",
    [RSSM_T_B_CACHE] = "B_cache",
    [RSSM_T_CONV] = "conv",
    [RSSM_T_CURSOR] = "cursor",
    [RSSM_T_ROWS] = "rows",
    [RSSM_T_WRITE_POS] = "write_pos",
    [RSSM_T_FORCE_FLUSH] = "force_flush",
    [RSSM_T_STATE_INDICES] = "state_indices",
    [RSSM_T_SLOTS] = "slots",
    [RSSM_T_CU_SEQLENS] = "cu_seqlens",
    [RSSM_T_ACCEPTED] = "accepted",
    [RSSM_T_CONV_IN] = "conv_in",
    [RSSM_T_CONV_WEIGHT] = "conv_weight",
    [RSSM_T_CONV_BIAS] = "conv_bias",
    [RSSM_T_CONV_OUT] = "conv_out",
    [RSSM_T_SRC_SLOTS] = "src_slots",
    [RSSM_T_DST_SLOTS] = "dst_slots",
};

const char *rssm_role_name(int32_t role)
{
    return role < 0 || role >= RSSM_T_COUNT ? "unknown" : role_names[role];
}

int32_t rssm_dtype_bytes(int32_t dtype)
{
    return dtype == RSSM_DTYPE_FLOAT32 ? 4 : 2;
}

const char *rssm_dtype_name(int32_t dtype)
{
    switch (dtype) {
    case RSSM_DTYPE_FLOAT32:
        return "float32";
    case RSSM_DTYPE_BFLOAT16:
        return "bfloat16";
    case RSSM_DTYPE_FLOAT16:
        return "float16";
    default:
        return "default";
    }
}
