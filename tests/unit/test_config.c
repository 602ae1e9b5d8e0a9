/* The config reader: every spelling and rule, every hostile text, every failing allocation. */
#define _XOPEN_SOURCE 700
#include <check.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/config.h"
#include "core/error.h"

/* ---- an allocator that counts, and fails its k-th allocation ---- */

typedef struct counter {
    int64_t calls, fail_at; /* fail_at: 0 = never */
    int64_t live, peak;     /* bytes */
    int64_t blocks;
} counter;

static void *counting_alloc(void *user, uint64_t bytes, uint64_t alignment)
{
    counter *c = user;
    if (++c->calls == c->fail_at)
        return NULL;
    void *ptr = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    ck_assert_ptr_nonnull(ptr);
    c->blocks++;
    c->live += (int64_t)bytes;
    if (c->live > c->peak)
        c->peak = c->live;
    return ptr;
}

static void counting_free(void *user, void *ptr, uint64_t bytes)
{
    counter *c = user;
    c->blocks--;
    c->live -= (int64_t)bytes;
    free(ptr);
}

/* One read with all it needs. */
typedef struct fixture {
    counter counts;
    rssm_allocator mem;
    rssm_arena arena;
    rssm_model model;
    rssm_error err;
    rssm_status status;
} fixture;

static void open_fixture(fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->mem = (rssm_allocator){
        .struct_size = sizeof(f->mem), .user = &f->counts, .alloc = counting_alloc, .free = counting_free};
    f->arena.mem = &f->mem;
    f->err.struct_size = sizeof(f->err);
}

/* Everything must be given back, whatever happened. */
static void close_fixture(fixture *f)
{
    rssm_arena_free(&f->arena);
    ck_assert_int_eq(f->counts.blocks, 0);
    ck_assert_int_eq(f->counts.live, 0);
}

static void read_bytes(fixture *f, const char *text, uint64_t length)
{
    open_fixture(f);
    f->status = rssm_config_read(&f->model, &f->arena, text, length, &f->err);
}

/* Reads a text in which ' stands for ". */
static void read_text(fixture *f, const char *text)
{
    char *json = strdup(text);
    for (char *c = json; *c; c++)
        if (*c == '\'')
            *c = '"';
    read_bytes(f, json, strlen(json));
    free(json); /* nothing may point into the text */
}

static void expect_failure(fixture *f, const char *text, rssm_status status, const char *message)
{
    ck_assert_msg(f->status == status, "%s, not %s, for %.300s: %s", rssm_status_name(f->status),
                  rssm_status_name(status), text, f->err.message);
    ck_assert_int_eq(f->err.status, status);
    ck_assert_msg(strstr(f->err.message, message) != NULL, "\"%s\" lacks \"%s\" for %.300s", f->err.message, message,
                  text);
    close_fixture(f);
}

/* ---- texts ---- */

#define KDA(lists)                                                                                             \
    "{'model_type':'kimi_linear','dtype':'bfloat16','num_hidden_layers':8,'head_dim':72,'linear_attn_config':" \
    "{'num_heads':4,'head_dim':16,'short_conv_kernel_size':4," lists "}}"
#define KDA_NEW(inner, outer)                                                                      \
    "{'model_type':'new','num_hidden_layers':4,'linear_attn_config':{'num_heads':4,'head_dim':16," \
    "'short_conv_kernel_size':4" inner "}" outer "}"
#define KDA_FLAT(more)                                                                                   \
    "{'model_type':'flat','num_hidden_layers':2,'layer_types':['linear_attention','indexed_attention']," \
    "'linear_num_heads':4,'linear_head_dim':16,'linear_conv_kernel_dim':4" more "}"
#define GDN_SIZES                                                                                               \
    "'linear_num_key_heads':2,'linear_num_value_heads':4,'linear_key_head_dim':96,'linear_value_head_dim':192," \
    "'linear_conv_kernel_dim':4"
#define GDN(more)    "{'model_type':'qwen3_next','num_hidden_layers':8," GDN_SIZES more "}"
#define GDN_HEADS(n) "{'num_hidden_layers':8,'linear_num_key_heads':" n ",'linear_num_value_heads':4}"
#define NEMOTRON_SIZES                                                                               \
    "'hidden_size':100,'expand':2,'mamba_num_heads':8,'mamba_head_dim':16,'n_groups':2,'n_group':3," \
    "'ssm_state_size':32,'conv_kernel':4"
#define NEMOTRON(more)      "{'model_type':'nemotron_h'," NEMOTRON_SIZES more "}"
#define NEMOTRON_LIMIT(lim) NEMOTRON(",'hybrid_override_pattern':'M*-E','time_step_limit':" lim)
#define BAMBA_SIZES(head)                                                      \
    "'hidden_size':64,'mamba_expand':2,'mamba_n_heads':8,'mamba_d_head':" head \
    ",'mamba_n_groups':2,'mamba_d_state':32,'mamba_d_conv':4"
#define BAMBA(more) "{'model_type':'bamba','num_hidden_layers':4," BAMBA_SIZES("16") more "}"
#define GRANITE(head) \
    "{'model_type':'granitemoehybrid','num_hidden_layers':2,'layer_types':['mamba','attention']," BAMBA_SIZES(head) "}"
#define FALCON(more)                                                                                       \
    "{'model_type':'falcon_h1','num_hidden_layers':3,'hidden_size':64,'mamba_expand':2,'mamba_n_heads':6," \
    "'mamba_d_head':16,'mamba_n_groups':2,'mamba_d_state':32,'mamba_d_conv':4" more "}"
#define ZAMBA(sizes)                                                                                                \
    "{'model_type':'zamba2','num_hidden_layers':3,'layers_block_type':['mamba','hybrid','mamba'],'hidden_size':64," \
    "'mamba_headdim':16,'mamba_ngroups':2," sizes "}"
#define MAMBA2(more)                                                                                        \
    "{'model_type':'mamba2','num_hidden_layers':3,'hidden_size':64,'expand':2,'num_heads':8,'head_dim':16," \
    "'n_groups':2,'state_size':32,'conv_kernel':4,'time_step_rank':4" more "}"
#define SSM_CFG(inner, more) "{'d_model':64,'n_layer':3,'ssm_cfg':{" inner "}" more "}"

/* ---- what must be read ---- */

typedef struct good_case {
    const char *text;
    int32_t family, num_layers;
    const char *linear; /* one character a layer: 1 = linear */
    int32_t H, HV, K, V, conv;
    double bound; /* 0 = none */
    double beta_scale;
    double dt_max; /* 0 stands for infinity in Mamba-2 */
    int32_t io, state;
    const char *read, *assumed; /* a note that must be there, or NULL */
} good_case;

#define KDA_IS(map, bound)                                                                             \
    RSSM_FAMILY_KDA, (int32_t)sizeof(map) - 1, map, 4, 4, 16, 16, 4, bound, 1, 0, RSSM_DTYPE_BFLOAT16, \
        RSSM_DTYPE_FLOAT32
#define GDN_IS(map, bound, beta, io, state) \
    RSSM_FAMILY_GDN, (int32_t)sizeof(map) - 1, map, 2, 4, 96, 192, 4, bound, beta, 0, io, state
#define MAMBA_IS(map, nh, dim, dt_max, state) \
    RSSM_FAMILY_MAMBA2, (int32_t)sizeof(map) - 1, map, 2, nh, 32, dim, 4, 0, 1, dt_max, RSSM_DTYPE_BFLOAT16, state
#define TEN_ARRAYS "[],[],[],[],[],[],[],[],[],[]"
#define F32        RSSM_DTYPE_FLOAT32
#define BF16       RSSM_DTYPE_BFLOAT16
#define F16        RSSM_DTYPE_FLOAT16

static const good_case good[] = {
    /* KDA: lists counted from 1, from 0, from elsewhere */
    {KDA("'kda_layers':[1,2,3,5],'full_attn_layers':[4,6,7,8]"), KDA_IS("11101000", 0),
     "kda_layers = 4 of 8 layers linear (linear_attn_config)", NULL},
    {KDA("'kda_layers':[5,3,2,1]"), KDA_IS("11101000", 0), "kda_layers = counted from 1 (linear_attn_config)", NULL},
    {KDA("'kda_layers':[1,2,3,5],'full_attn_layers':[4,8]"), KDA_IS("11101000", 0), NULL,
     "2 layers in neither kda_layers nor full_attn_layers = not linear"},
    {KDA("'kda_layers':[1,8],'gate_lower_bound':-5.0"), KDA_IS("10000001", -5),
     "gate_lower_bound = -5 (linear_attn_config)", NULL},
    {KDA_NEW(",'kda_layers':[1,2,4]", ""), KDA_IS("1101", 0), "num_heads = 4 (linear_attn_config)",
     "dtype = bfloat16 (not in the config)"},
    {KDA_NEW(",'kda_layers':[0,1,3],'full_attn_layers':[2]",
             ",'layer_types':['linear_attention','linear_attention','full_attention','linear_attention']"),
     KDA_IS("1101", 0), "kda_layers = counted from 0 (linear_attn_config)", NULL},
    {KDA_NEW(",'kda_layers':[1,2,4],'full_attn_layers':[3]",
             ",'layer_types':['linear_attention','linear_attention','deepseek_sparse_attention','linear_attention']"),
     KDA_IS("1101", 0), "kda_layers = counted from 1 (linear_attn_config)", NULL},
    {KDA_NEW("", ",'layer_types':['linear_attention','sliding_attention','full_attention','linear_attention']"),
     KDA_IS("1001", 0), NULL, NULL},
    {"{'model_type':'glm5_next','num_hidden_layers':2,'linear_attn_config':{'num_heads':4,'head_dim':16,"
     "'short_conv_kernel_size':4,'kda_layers':[0]}}",
     KDA_IS("10", 0), "kda_layers = counted from 0 (linear_attn_config)", NULL},
    {KDA_FLAT(""), KDA_IS("10", 0), "linear_num_heads = 4 (top level)", NULL},
    {KDA_FLAT(",'linear_lower_bound':-5,'linear_attn_config':null"), KDA_IS("10", -5), NULL, NULL},
    {KDA_FLAT(",'lower_bound':-2.5,'safe_gate':true"), KDA_IS("10", -2.5), "safe_gate = true (top level)", NULL},
    {KDA_FLAT(",'lower_bound':null,'safe_gate':false"), KDA_IS("10", 0), NULL, NULL},
    {KDA_FLAT(",'linear_attn_config':{'num_heads':4,'head_dim':16}"), KDA_IS("10", 0), NULL, NULL},
    {KDA_FLAT(",'mamba_ssm_dtype':'bfloat16'"), KDA_IS("10", 0), NULL, NULL}, /* KDA's state is float32 */
    {"{'model_type':'outer','torch_dtype':'float16','vision_config':{'num_heads':99},'text_config':" KDA(
         "'kda_layers':[1]") "}",
     KDA_IS("10000000", 0), "num_heads = 4 (text_config.linear_attn_config)", NULL},

    /* GDN */
    {GDN(""), GDN_IS("11101110", 0, 1, BF16, F32), NULL, "full_attention_interval = 4 (not in the config)"},
    {GDN(",'full_attention_interval':3"), GDN_IS("11011011", 0, 1, BF16, F32),
     "full_attention_interval = 3 (top level)", NULL},
    {GDN(",'linear_allow_neg_eigval':true,'dtype':'float32'"), GDN_IS("11101110", 0, 2, F32, F32),
     "linear_allow_neg_eigval = true (top level)", NULL},
    {GDN(",'linear_allow_neg_eigval':false,'torch_dtype':'torch.float16','mamba_ssm_dtype':'bfloat16'"),
     GDN_IS("11101110", 0, 1, F16, BF16), "mamba_ssm_dtype = bfloat16 (top level)", NULL},
    {GDN(",'dtype':'auto','mamba_ssm_dtype':'auto'"), GDN_IS("11101110", 0, 1, BF16, F32), NULL,
     "dtype = bfloat16 (not in the config)"},
    {"{'model_type':'brand_new','num_hidden_layers':2,'layer_types':['linear_attention','full_attention']," GDN_SIZES
     "}",
     GDN_IS("10", 0, 1, BF16, F32), NULL, NULL},
    {"{'layer_types':['full_attention','linear_attention']," GDN_SIZES "}", GDN_IS("01", 0, 1, BF16, F32),
     "layer_types = 1 of 2 layers linear (top level)", NULL},
    {"{'llm_config':" GDN(",'dtype':'float16'") ",'dtype':'float32'}", GDN_IS("11101110", 0, 1, F16, F32),
     "dtype = float16 (llm_config)", NULL},
    {"{'language_config':" GDN("") ",'dtype':'float32'}", GDN_IS("11101110", 0, 1, F32, F32),
     "dtype = float32 (top level)", NULL},
    {"{'text_config':{'hidden_size':1},'language_config':" GDN("") "}", GDN_IS("11101110", 0, 1, BF16, F32), NULL,
     NULL},
    {"{'num_hidden_layers':8,'text_config':" GDN("") "}", GDN_IS("11101110", 0, 1, BF16, F32), NULL, NULL},
    {"\xEF\xBB\xBF " GDN(",'\\u00e9\\ud83d\\ude00':'\xF0\x9F\x98\x80',"
                         "'x':[-0,1E5,0.5e-3,{},[]],'y':Infinity,'z':-Infinity") "\n\t ",
     GDN_IS("11101110", 0, 1, BF16, F32), NULL, NULL},
    /* brackets and infinities in strings, escaped quotes, more siblings than levels */
    {GDN(",'x':'[[{\\\"Infinity, -Infinity\\\\','y':Infinity,'z':[" TEN_ARRAYS "," TEN_ARRAYS "," TEN_ARRAYS
         "," TEN_ARRAYS "," TEN_ARRAYS "," TEN_ARRAYS "," TEN_ARRAYS "]"),
     GDN_IS("11101110", 0, 1, BF16, F32), NULL, NULL},
    {"{'num_hidden_layers':8.0,'linear_num_key_heads':2e0,'linear_num_value_heads':4,'linear_key_head_dim':0.96e2,"
     "'linear_value_head_dim':192,'linear_conv_kernel_dim':4}",
     GDN_IS("11101110", 0, 1, BF16, F32), NULL, NULL},

    /* Mamba-2: Nemotron-H */
    {NEMOTRON(",'hybrid_override_pattern':'M*-E','num_hidden_layers':9,'mtp_hybrid_override_pattern':'*E'"),
     MAMBA_IS("1000", 8, 16, 0, F32), "hybrid_override_pattern = 1 of 4 layers linear (top level)", NULL},
    {NEMOTRON(",'layers_block_type':['mamba','moe','attention'],'mamba_ssm_cache_dtype':'float16'"),
     MAMBA_IS("100", 8, 16, 0, F16), "mamba_ssm_cache_dtype = float16 (top level)", NULL},
    {NEMOTRON(",'layers_block_type':['linear_attention','moe','full_attention','mlp']"),
     MAMBA_IS("1000", 8, 16, 0, F32), NULL, NULL},
    {NEMOTRON(",'layers_block_type':['mamba','moe'],'hybrid_override_pattern':'ME'"), MAMBA_IS("10", 8, 16, 0, F32),
     NULL, NULL},
    {NEMOTRON_LIMIT("[0.0, Infinity]"), MAMBA_IS("1000", 8, 16, 0, F32), "time_step_limit = [0, inf] (top level)",
     NULL},
    {NEMOTRON_LIMIT("[0.0,{'__float__':'Infinity'}]"), MAMBA_IS("1000", 8, 16, 0, F32), NULL, NULL},
    {NEMOTRON_LIMIT("[0.0,1e+308]"), MAMBA_IS("1000", 8, 16, 1e308, F32), "time_step_limit = [0, 1e+308] (top level)",
     NULL},
    {NEMOTRON_LIMIT("[0,0.25]"), MAMBA_IS("1000", 8, 16, .25, F32), NULL, NULL},
    {NEMOTRON_LIMIT("null,'time_step_min':0.001,'time_step_max':0.1"), MAMBA_IS("1000", 8, 16, 0, F32), NULL, NULL},

    /* Mamba-2: Bamba, Granite, Falcon-H1 */
    {BAMBA(",'attn_layer_indices':[2,0]"), MAMBA_IS("0101", 8, 16, 0, F32),
     "attn_layer_indices = 2 of 4 layers linear (top level)", NULL},
    {BAMBA(",'attn_layer_indices':[]"), MAMBA_IS("1111", 8, 16, 0, F32), NULL, NULL},
    {BAMBA(",'attn_layer_indices':[1],'layers_block_type':['mamba','attention','mamba','mamba']"),
     MAMBA_IS("1011", 8, 16, 0, F32), NULL, NULL},
    {GRANITE("16"), MAMBA_IS("10", 8, 16, 0, F32), NULL, NULL},
    {GRANITE("'auto'"), MAMBA_IS("10", 8, 16, 0, F32), NULL, NULL},
    {FALCON(",'mamba_d_ssm':96"), MAMBA_IS("111", 6, 16, 0, F32), "mamba_d_ssm = 96 (top level)", NULL},
    {"{'model_type':'falcon_h9','num_hidden_layers':2,'mamba_d_ssm':96,'mamba_n_heads':6,'mamba_d_head':'auto',"
     "'mamba_n_groups':2,'mamba_d_state':32,'mamba_d_conv':4}",
     MAMBA_IS("11", 6, 16, 0, F32), NULL, "all layers linear (no layer_types in the config)"},

    /* Mamba-2: Zamba2, transformers', the original */
    {ZAMBA("'n_mamba_heads':8,'mamba_d_state':32,'mamba_d_conv':4,'mamba_expand':2"), MAMBA_IS("111", 8, 16, 0, F32),
     "n_mamba_heads = 8 (top level)", NULL},
    {ZAMBA("'state_size':32,'conv_dimension':4,'expansion_factor':2"), MAMBA_IS("111", 8, 16, 0, F32),
     "expansion_factor = 2 (top level)", NULL},
    {MAMBA2(""), MAMBA_IS("111", 8, 16, 0, F32), NULL, NULL},
    {"{'num_hidden_layers':2,'num_heads':8,'head_dim':16,'n_groups':2,'state_size':32,'conv_kernel':4}",
     MAMBA_IS("11", 8, 16, 0, F32), NULL, NULL},
    {SSM_CFG("'layer':'Mamba2','headdim':16,'ngroups':2,'d_state':32", ",'attn_layer_idx':[1]"),
     MAMBA_IS("101", 8, 16, 0, F32), "headdim = 16 (ssm_cfg)", "d_conv = 4 (not in ssm_cfg)"},
    {SSM_CFG("'layer':'Mamba2','headdim':16,'ngroups':2,'d_state':32,'d_conv':4,'expand':2,'dt_limit':[0,0.5]", ""),
     MAMBA_IS("111", 8, 16, .5, F32), NULL, NULL},
    {SSM_CFG("'layer':'Mamba2','ngroups':2,'d_state':32", ",'dtype':'bfloat16'"), MAMBA_IS("111", 2, 64, 0, F32), NULL,
     "expand = 2 (not in ssm_cfg)"},
};

static bool has_note(const rssm_strings *notes, const char *note)
{
    for (int32_t i = 0; i < notes->count; i++)
        if (strcmp(notes->items[i], note) == 0)
            return true;
    return false;
}

static void expect_layers(const rssm_model *m, const char *linear)
{
    int32_t at = 0;
    for (int32_t i = 0; linear[i]; i++)
        if (linear[i] == '1') {
            ck_assert_int_lt(at, m->num_linear);
            ck_assert_int_eq(m->linear_layers[at++], i);
        }
    ck_assert_int_eq(at, m->num_linear);
}

START_TEST(test_good)
{
    const good_case *c = &good[_i];
    fixture f;
    read_text(&f, c->text);
    ck_assert_msg(f.status == RSSM_OK, "%s for %s", f.err.message, c->text);
    const rssm_model *m = &f.model;
    ck_assert_int_eq(m->family, c->family);
    ck_assert_int_eq(m->num_layers, c->num_layers);
    expect_layers(m, c->linear);
    ck_assert_int_eq(m->H, c->H);
    ck_assert_int_eq(m->HV, c->HV);
    ck_assert_int_eq(m->K, c->K);
    ck_assert_int_eq(m->V, c->V);
    ck_assert_int_eq(m->conv_kernel, c->conv);
    ck_assert_int_eq(m->has_lower_bound, c->bound != 0);
    ck_assert_double_eq(m->lower_bound, c->bound);
    ck_assert_double_eq(m->beta_scale, c->beta_scale);
    ck_assert_int_eq(m->qk_norm, c->family != RSSM_FAMILY_MAMBA2);
    if (c->family == RSSM_FAMILY_MAMBA2) {
        ck_assert_double_eq(m->dt_min, 0);
        ck_assert(m->dt_max == (c->dt_max != 0 ? c->dt_max : INFINITY));
    }
    ck_assert_int_eq(m->io_dtype, c->io);
    ck_assert_int_eq(m->state_dtype, c->state);
    ck_assert_msg(!c->read || has_note(&m->read, c->read), "no note \"%s\" for %s", c->read, c->text);
    ck_assert_msg(!c->assumed || has_note(&m->assumed, c->assumed), "no note \"%s\" for %s", c->assumed, c->text);
    close_fixture(&f);
}
END_TEST

/* ---- what must be refused, and how ---- */

typedef struct bad_case {
    const char *text;
    rssm_status status;
    const char *message; /* a part of it */
} bad_case;

#define HEADS_ARE(value) GDN_HEADS(value), RSSM_ERR_CONFIG, "linear_num_key_heads (top level) is "

static const bad_case bad[] = {
    /* not ours, by name */
    {"{'model_type':'mamba','state_size':16}", RSSM_ERR_MODEL, "mamba: Mamba-1 (per-channel A, no heads)"},
    {"{'model_type':'falcon_mamba'}", RSSM_ERR_MODEL, "falcon_mamba: Mamba-1"},
    {"{'model_type':'jamba','mamba_d_state':16}", RSSM_ERR_MODEL, "jamba: Mamba-1"},
    {"{'model_type':'rwkv7','head_dim':64}", RSSM_ERR_MODEL, "rwkv7: RWKV is not KDA/GDN/Mamba-2"},
    {"{'model_type':'minimax_text_01'}", RSSM_ERR_MODEL, "minimax_text_01: lightning attention is not KDA/GDN/Mamba-2"},
    {"{'text_config':{'model_type':'jamba'}}", RSSM_ERR_MODEL, "jamba: Mamba-1"},
    {"{'model_type':'kda','num_heads':16,'head_dim':128}", RSSM_ERR_MODEL, "kda: the config spelling of flash-linear"},
    /* ... by their keys */
    {"{'model_type':'new','mamba_dt_rank':16}", RSSM_ERR_MODEL, "new: Mamba-1"},
    {"{'model_type':'new','state_size':16,'conv_kernel':4}", RSSM_ERR_MODEL, "new: Mamba-1"},
    {"{'attn_type_list':[0,1]}", RSSM_ERR_MODEL, "config: lightning attention"},
    {SSM_CFG("", ""), RSSM_ERR_MODEL, "ssm_cfg.layer is absent, which means Mamba1"},
    {SSM_CFG("'layer':'Mamba1'", ""), RSSM_ERR_MODEL, "ssm_cfg.layer is Mamba1"},
    {SSM_CFG("'layer':'Mamba3'", ""), RSSM_ERR_CONFIG, "layer (ssm_cfg) is the string \"Mamba3\""},
    /* ... no linear layer */
    {"{'model_type':'llama','num_hidden_layers':2}", RSSM_ERR_MODEL, "llama: no KDA/GDN/Mamba-2 layer in this model"},
    {"{}", RSSM_ERR_MODEL, "no KDA/GDN/Mamba-2 layer in this model"},
    {"{'model_type':'granitemoehybrid','num_hidden_layers':2,'layer_types':['attention','attention'],"
     "'mamba_d_head':'auto'}",
     RSSM_ERR_MODEL, "granitemoehybrid: no KDA/GDN/Mamba-2 layer in this model"},
    {KDA("'kda_layers':[]"), RSSM_ERR_MODEL, "no KDA/GDN/Mamba-2 layer"},
    {GDN(",'full_attention_interval':1"), RSSM_ERR_MODEL, "no KDA/GDN/Mamba-2 layer"},
    {NEMOTRON(",'hybrid_override_pattern':'*-E'"), RSSM_ERR_MODEL, "no KDA/GDN/Mamba-2 layer"},
    {"{'layer_types':['linear_attention'],'num_hidden_layers':1}", RSSM_ERR_CONFIG, "heads unknown"},

    /* missing keys name themselves and the place */
    {"{'model_type':'kimi_linear'}", RSSM_ERR_CONFIG, "num_hidden_layers unknown: there is no num_hidden_layers"},
    {"{'model_type':'kimi_linear','num_hidden_layers':2}", RSSM_ERR_CONFIG,
     "kda_layers unknown: there is no linear_attn_config.kda_layers, or layer_types (looked in top level)"},
    {KDA("'full_attn_layers':[1]"), RSSM_ERR_CONFIG, "kda_layers unknown"},
    {"{'text_config':{'num_hidden_layers':2,'linear_attn_config':{'kda_layers':[1],'head_dim':4}}}", RSSM_ERR_CONFIG,
     "num_heads unknown: there is no text_config.linear_attn_config.num_heads, or text_config.linear_num_heads (looked "
     "in text_config)"},
    {"{'num_hidden_layers':2,'linear_attn_config':{'kda_layers':[1],'num_heads':4},'head_dim':72}", RSSM_ERR_CONFIG,
     "head_dim unknown"},
    {"{'num_hidden_layers':2,'linear_attn_config':{'kda_layers':[1],'num_heads':4,'head_dim':8}}", RSSM_ERR_CONFIG,
     "short_conv_kernel_size unknown"},
    {"{'model_type':'qwen3_next','num_hidden_layers':2}", RSSM_ERR_CONFIG, "linear_num_key_heads unknown"},
    {"{'num_hidden_layers':2,'linear_num_key_heads':2}", RSSM_ERR_CONFIG, "linear_num_value_heads unknown"},
    {"{'num_hidden_layers':2,'Linear_Num_Key_Heads':2,'linear_num_value_heads':2}", RSSM_ERR_CONFIG,
     "linear_num_key_heads unknown"},
    {"{'linear_num_key_heads':2}", RSSM_ERR_CONFIG, "num_hidden_layers unknown"},
    {"{'num_hidden_layers':null,'linear_num_key_heads':2}", RSSM_ERR_CONFIG, "num_hidden_layers unknown"},
    {NEMOTRON(",'num_hidden_layers':4"), RSSM_ERR_CONFIG, "hybrid_override_pattern unknown"},
    {NEMOTRON(",'mtp_hybrid_override_pattern':'M','num_hidden_layers':1"), RSSM_ERR_CONFIG,
     "hybrid_override_pattern unknown"},
    {"{'model_type':'nemotron_h','hybrid_override_pattern':'M','mamba_num_heads':8,'mamba_head_dim':16,'n_group':1,"
     "'ssm_state_size':32,'conv_kernel':4}",
     RSSM_ERR_CONFIG, "n_groups unknown"},
    {BAMBA(""), RSSM_ERR_CONFIG,
     "layer_types unknown: there is no layer_types, or layers_block_type, or "
     "attn_layer_indices"},
    {"{'model_type':'granitemoehybrid','num_hidden_layers':1,'layer_types':['mamba'],'hidden_size':64,"
     "'mamba_n_heads':8,'mamba_d_head':'auto','mamba_n_groups':1,'mamba_d_state':32,'mamba_d_conv':4}",
     RSSM_ERR_CONFIG, "mamba_d_head cannot be derived: mamba_expand and hidden_size unknown"},
    {"{'model_type':'falcon_h1','num_hidden_layers':3,'mamba_n_heads':6,'mamba_d_head':16,'mamba_d_state':32,"
     "'mamba_d_conv':4}",
     RSSM_ERR_CONFIG, "falcon_h1: mamba_n_groups unknown"},
    {ZAMBA("'mamba_d_state':32"), RSSM_ERR_CONFIG, "zamba2: n_mamba_heads unknown"},
    {"{'num_heads':8,'state_size':32,'num_hidden_layers':1}", RSSM_ERR_CONFIG, "head_dim unknown"},
    {"{'n_layer':3,'ssm_cfg':{'layer':'Mamba2'}}", RSSM_ERR_CONFIG, "d_model unknown"},

    /* whole numbers, exactly */
    {HEADS_ARE("128.5") "128.5, not an integer in 1 .. 65536"},
    {HEADS_ARE("4294967296") "4294967296, not an integer in 1 .. 65536"},
    {HEADS_ARE("9223372036854775808") "9.22337203685478e+18, not an integer"},
    {HEADS_ARE("-1") "-1, not an integer in 1"},
    {HEADS_ARE("0") "0, not an integer in 1"},
    {HEADS_ARE("-0") "-0, not an integer in 1"},
    {HEADS_ARE("65537") "65537, not an integer in 1 .. 65536"},
    {HEADS_ARE("1e308") "1e+308, not an integer"},
    {HEADS_ARE("1e400") "a number beyond the range of a double, not an integer"},
    {HEADS_ARE("1e-400") "0, not an integer"},
    {HEADS_ARE("Infinity") "Infinity, not an integer"},
    {HEADS_ARE("-Infinity") "-Infinity, not an integer"},
    {HEADS_ARE("'128'") "the string \"128\", not an integer"},
    {HEADS_ARE("true") "the boolean true, not an integer"},
    {HEADS_ARE("[2]") "an array, not an integer"},
    {HEADS_ARE("{}") "an object, not an integer"},
    {GDN_HEADS("3"), RSSM_ERR_CONFIG, "linear_key_head_dim unknown"},
    {"{'num_hidden_layers':8,'linear_num_key_heads':3,'linear_num_value_heads':4,'linear_key_head_dim':8,"
     "'linear_value_head_dim':8,'linear_conv_kernel_dim':4}",
     RSSM_ERR_CONFIG, "linear_num_value_heads = 4 is not a multiple of linear_num_key_heads = 3"},
    {"{'num_hidden_layers':65537,'linear_num_key_heads':2}", RSSM_ERR_CONFIG, "not an integer in 1 .. 65536"},
    {"{'text_config':{'num_hidden_layers':2,'linear_num_key_heads':'x'}}", RSSM_ERR_CONFIG,
     "linear_num_key_heads (text_config) is the string \"x\""},
    {MAMBA2(",'time_step_limit':[0,1],'conv_bias':1") "x", RSSM_ERR_JSON, "trailing bytes"},
    {GDN(",'full_attention_interval':0"), RSSM_ERR_CONFIG, "full_attention_interval (top level) is 0"},
    {GDN(",'linear_allow_neg_eigval':1"), RSSM_ERR_CONFIG,
     "linear_allow_neg_eigval (top level) is 1, not true or false"},
    {GDN(",'linear_allow_neg_eigval':'true'"), RSSM_ERR_CONFIG, "is the string \"true\""},
    {GDN(",'dtype':'int8'"), RSSM_ERR_CONFIG, "dtype (top level) is the string \"int8\", not float32, bfloat16 or"},
    {GDN(",'dtype':16"), RSSM_ERR_CONFIG, "dtype (top level) is 16, not a string"},
    {GDN(",'dtype':'float16','torch_dtype':'bfloat16'"), RSSM_ERR_CONFIG, "its other spelling is not"},
    {GDN(",'mamba_ssm_dtype':'fp8'"), RSSM_ERR_CONFIG, "mamba_ssm_dtype (top level) is the string \"fp8\""},
    {"{'model_type':7}", RSSM_ERR_CONFIG, "model_type (top level) is 7, not a string"},
    {"[]", RSSM_ERR_CONFIG, "not an object"},
    {"'text'", RSSM_ERR_CONFIG, "not an object"},
    {"Infinity", RSSM_ERR_CONFIG, "not an object"},
    {"{'text_config':[]}", RSSM_ERR_CONFIG, "text_config (top level) is an array, not an object"},
    {"{'linear_attn_config':7}", RSSM_ERR_CONFIG, "linear_attn_config (top level) is 7, not an object"},

    /* KDA's lists */
    {KDA("'kda_layers':[0,1,2]"), RSSM_ERR_CONFIG,
     "kda_layers[0] (linear_attn_config) is 0, not a layer number in 1 .. 8 (the list counts from 1)"},
    {KDA("'kda_layers':[1,9]"), RSSM_ERR_CONFIG, "kda_layers[1] (linear_attn_config) is 9"},
    {KDA("'kda_layers':[1,1.5]"), RSSM_ERR_CONFIG, "kda_layers[1] (linear_attn_config) is 1.5"},
    {KDA("'kda_layers':[1,'2']"), RSSM_ERR_CONFIG, "kda_layers[1] (linear_attn_config) is the string \"2\""},
    {KDA("'kda_layers':[1,2,1]"), RSSM_ERR_CONFIG, "kda_layers[2] (linear_attn_config) is 1, listed twice"},
    {KDA("'kda_layers':5"), RSSM_ERR_CONFIG, "kda_layers (linear_attn_config) is 5, not an array"},
    {KDA("'kda_layers':[1,2],'full_attn_layers':[2,3]"), RSSM_ERR_CONFIG,
     "layer number 2 (counted from 1) is in both kda_layers and full_attn_layers"},
    {KDA("'kda_layers':[1,2],'full_attn_layers':[9]"), RSSM_ERR_CONFIG,
     "full_attn_layers[0] (linear_attn_config) is 9"},
    {KDA("'kda_layers':[1],'full_attn_layers':7"), RSSM_ERR_CONFIG, "full_attn_layers (linear_attn_config) is 7"},
    {KDA_NEW(",'kda_layers':[1,2]", ",'layer_types':['linear_attention','full_attention','full_attention',"
                                    "'linear_attention']"),
     RSSM_ERR_CONFIG, "layer 1 (from 0) is not linear by layer_types but linear by kda_layers"},
    {"{'model_type':'kimi_linear','num_hidden_layers':2,'layer_types':['full_attention','linear_attention'],"
     "'linear_attn_config':{'num_heads':4,'head_dim':16,'short_conv_kernel_size':4,'kda_layers':[1]}}",
     RSSM_ERR_CONFIG, "layer 0 (from 0) is not linear by layer_types but linear by kda_layers"},
    {"{'model_type':'glm5_next','num_hidden_layers':2,'linear_attn_config':{'kda_layers':[2]}}", RSSM_ERR_CONFIG,
     "kda_layers[0] (linear_attn_config) is 2, not a layer number in 0 .. 1"},

    /* layer words and lengths */
    {"{'num_hidden_layers':3,'layer_types':['linear_attention']," GDN_SIZES "}", RSSM_ERR_CONFIG,
     "layer_types (top level) has 1 entries but num_hidden_layers says 3"},
    {"{'layer_types':[]," GDN_SIZES "}", RSSM_ERR_CONFIG, "layer_types (top level) has 0 entries"},
    {"{'layer_types':'linear_attention'," GDN_SIZES "}", RSSM_ERR_CONFIG, "not an array of layer words"},
    {"{'layer_types':['linear_attention','quadratic']," GDN_SIZES "}", RSSM_ERR_CONFIG,
     "layer_types[1] (top level) is the string \"quadratic\", not a layer word"},
    {"{'layer_types':['mamba']," GDN_SIZES "}", RSSM_ERR_CONFIG, "layer_types[0] (top level) is the string \"mamba\""},
    {"{'layer_types':[1]," GDN_SIZES "}", RSSM_ERR_CONFIG, "layer_types[0] (top level) is 1"},
    {NEMOTRON(",'hybrid_override_pattern':'MX'"), RSSM_ERR_CONFIG,
     "hybrid_override_pattern[1] (top level) is 'X', none of M * - E"},
    {NEMOTRON(",'hybrid_override_pattern':'M\xC3\xA9'"), RSSM_ERR_CONFIG, "is 'a non-ASCII byte'"},
    {NEMOTRON(",'hybrid_override_pattern':''"), RSSM_ERR_CONFIG, "has 0 entries"},
    {NEMOTRON(",'hybrid_override_pattern':['M']"), RSSM_ERR_CONFIG, "is an array, not a string"},
    {NEMOTRON(",'layers_block_type':['mamba','moe'],'hybrid_override_pattern':'EM'"), RSSM_ERR_CONFIG,
     "layer 0 (from 0) is not linear by hybrid_override_pattern but linear by layers_block_type"},
    {NEMOTRON(",'layers_block_type':['mamba'],'hybrid_override_pattern':'ME'"), RSSM_ERR_CONFIG,
     "layers_block_type (top level) has 1 entries but hybrid_override_pattern says 2"},
    {BAMBA(",'attn_layer_indices':[4]"), RSSM_ERR_CONFIG, "attn_layer_indices[0] (top level) is 4, not a layer number"},
    {BAMBA(",'attn_layer_indices':[1],'layer_types':['attention','mamba','mamba','mamba']"), RSSM_ERR_CONFIG,
     "layer 0 (from 0) is not linear by layer_types but linear by attn_layer_indices"},
    {SSM_CFG("'layer':'Mamba2'", ",'attn_layer_idx':[3]"), RSSM_ERR_CONFIG, "attn_layer_idx[0] (top level) is 3"},

    /* the bound */
    {KDA("'kda_layers':[1],'safe_gate':true"), RSSM_ERR_CONFIG, "safe_gate is true but lower_bound unknown"},
    {KDA("'kda_layers':[1],'safe_gate':false,'lower_bound':-5"), RSSM_ERR_CONFIG,
     "safe_gate is false but there is a lower bound -5"},
    {KDA("'kda_layers':[1],'safe_gate':1"), RSSM_ERR_CONFIG, "safe_gate (linear_attn_config) is 1, not true or false"},
    {KDA("'kda_layers':[1],'gate_lower_bound':5"), RSSM_ERR_CONFIG, "lower bound is 5, not a negative"},
    {KDA("'kda_layers':[1],'gate_lower_bound':0"), RSSM_ERR_CONFIG, "lower bound is 0, not a negative"},
    {KDA("'kda_layers':[1],'gate_lower_bound':-1e300"), RSSM_ERR_CONFIG,
     "lower bound is -1e+300, not a negative float32"},
    {KDA("'kda_layers':[1],'gate_lower_bound':-Infinity"), RSSM_ERR_CONFIG,
     "gate_lower_bound (linear_attn_config) is -Infinity, not a finite number"},
    {KDA("'kda_layers':[1],'gate_lower_bound':'-5'"), RSSM_ERR_CONFIG, "is the string \"-5\", not a finite number"},
    {KDA("'kda_layers':[1],'gate_lower_bound':-5,'lower_bound':-4"), RSSM_ERR_CONFIG,
     "linear_attn_config.gate_lower_bound is -5 but linear_attn_config.lower_bound is -4"},
    {KDA_FLAT(",'linear_attn_config':{'num_heads':5}"), RSSM_ERR_CONFIG,
     "linear_attn_config.num_heads is 5 but linear_num_heads is 4"},

    /* Mamba-2's width and clamp */
    {"{'model_type':'mamba2','num_hidden_layers':3,'hidden_size':64,'expand':2,'num_heads':8,'head_dim':32,"
     "'n_groups':2,'state_size':32,'conv_kernel':4}",
     RSSM_ERR_CONFIG, "num_heads * head_dim = 8 * 32, but the inner width is 128 (expand)"},
    {"{'model_type':'mamba2','num_hidden_layers':3,'num_heads':8,'head_dim':32,'n_groups':3,'state_size':32,"
     "'conv_kernel':4}",
     RSSM_ERR_CONFIG, "num_heads = 8 is not a multiple of n_groups = 3"},
    {FALCON(",'mamba_d_ssm':128"), RSSM_ERR_CONFIG, "6 * 16, but the inner width is 128 (mamba_d_ssm)"},
    {FALCON(""), RSSM_ERR_CONFIG, "6 * 16, but the inner width is 128 (mamba_expand)"},
    {GRANITE("'Auto'"), RSSM_ERR_CONFIG, "mamba_d_head (top level) is the string \"Auto\", not an integer"},
    {FALCON(",'mamba_d_ssm':100,'mamba_d_head':'auto'"), RSSM_ERR_JSON, "duplicate key `mamba_d_head`"},
    {"{'model_type':'falcon_h1','num_hidden_layers':3,'mamba_d_ssm':100,'mamba_n_heads':6,'mamba_d_head':'auto'}",
     RSSM_ERR_CONFIG, "the inner width 100 divided by mamba_n_heads = 6 leaves a rest"},
    {ZAMBA("'state_size':32,'conv_dimension':4,'expansion_factor':1.1"), RSSM_ERR_CONFIG,
     "mamba_expand * hidden_size = 70.4, not an integer"},
    {ZAMBA("'state_size':32,'conv_dimension':4,'expansion_factor':1e300"), RSSM_ERR_CONFIG, "not an integer in 1 .."},
    {ZAMBA("'state_size':32,'conv_dimension':4,'expansion_factor':-1"), RSSM_ERR_CONFIG, "not an integer in 1 .."},
    {ZAMBA("'n_mamba_heads':8,'state_size':32,'mamba_d_state':64,'conv_dimension':4"), RSSM_ERR_CONFIG,
     "mamba_d_state is 64 but state_size is 32"},
    {NEMOTRON_LIMIT("[0.0]"), RSSM_ERR_CONFIG, "time_step_limit (top level) is an array, not an array of two numbers"},
    {NEMOTRON_LIMIT("[0,1,2]"), RSSM_ERR_CONFIG, "not an array of two numbers"},
    {NEMOTRON_LIMIT("{'a':0,'b':1}"), RSSM_ERR_CONFIG, "is an object, not an array of two numbers"},
    {NEMOTRON_LIMIT("0.5"), RSSM_ERR_CONFIG, "is 0.5, not an array of two numbers"},
    {NEMOTRON_LIMIT("[0.0,'Infinity']"), RSSM_ERR_CONFIG, "time_step_limit[1] (top level) is the string \"Infinity\""},
    {NEMOTRON_LIMIT("[0.0,1e400]"), RSSM_ERR_CONFIG, "time_step_limit[1] (top level) is a number beyond the range"},
    {NEMOTRON_LIMIT("[0.0,{'__float__':'NaN'}]"), RSSM_ERR_CONFIG, "time_step_limit[1] (top level) is an object"},
    {NEMOTRON_LIMIT("[0.0,{'__float__':'Infinity','x':1}]"), RSSM_ERR_CONFIG, "time_step_limit[1]"},
    {NEMOTRON_LIMIT("[0.0,{'__int__':'Infinity'}]"), RSSM_ERR_CONFIG, "time_step_limit[1]"},
    {NEMOTRON_LIMIT("[0.0,{}]"), RSSM_ERR_CONFIG, "time_step_limit[1]"},
    {NEMOTRON_LIMIT("[1,0.5]"), RSSM_ERR_CONFIG, "is [1, 0.5], not 0 <= min <= max"},
    {NEMOTRON_LIMIT("[-1,0.5]"), RSSM_ERR_CONFIG, "is [-1, 0.5], not 0 <= min <= max"},
    {NEMOTRON_LIMIT("[-Infinity,Infinity]"), RSSM_ERR_CONFIG, "is [-inf, inf], not 0 <= min <= max"},
    {NEMOTRON_LIMIT("[Infinity,Infinity]"), RSSM_ERR_CONFIG, "not 0 <= min <= max"},
    {NEMOTRON_LIMIT("[0,{'__float__':'-Infinity'}]"), RSSM_ERR_CONFIG, "is [0, -inf], not 0 <= min <= max"},

    /* signals that contradict */
    {"{'linear_attn_config':{},'linear_num_key_heads':2}", RSSM_ERR_CONFIG,
     "linear_attn_config and linear_num_key_heads (top level) belong to different kinds of layers"},
    {"{'mamba_n_heads':8,'n_mamba_heads':8}", RSSM_ERR_CONFIG, "belong to different kinds of layers"},
    {"{'model_type':'qwen3_next','mamba_num_heads':8}", RSSM_ERR_CONFIG,
     "model_type and mamba_num_heads (top level) belong to different kinds of layers"},
    {"{'model_type':'kimi_linear','linear_num_key_heads':8}", RSSM_ERR_CONFIG, "belong to different kinds of layers"},
    {"{'text_config':" GDN("") ",'llm_config':" GDN("") "}", RSSM_ERR_CONFIG,
     "both text_config and llm_config describe linear layers"},
    {"{'linear_num_key_heads':4,'text_config':" GDN("") "}", RSSM_ERR_CONFIG,
     "linear_num_key_heads has different values in the top level and in text_config"},
    {"{'num_hidden_layers':9,'text_config':" GDN("") "}", RSSM_ERR_CONFIG,
     "num_hidden_layers has different values in the top level and in text_config"},
    {"{'layer_types':['linear_attention'],'text_config':{'layer_types':['full_attention']," GDN_SIZES "}}",
     RSSM_ERR_CONFIG, "layer_types has different values"},

    /* JSON */
    {"", RSSM_ERR_JSON, "line 1, column 1: the text is empty"},
    {"  ", RSSM_ERR_JSON, "line 1, column 3: the text ends where a value was expected"},
    {"{", RSSM_ERR_JSON, "a key in double quotes was expected"},
    {"{'a'", RSSM_ERR_JSON, "':' was expected after a key"},
    {"{'a':", RSSM_ERR_JSON, "the text ends where a value was expected"},
    {"{'a':1", RSSM_ERR_JSON, "',' or '}' was expected"},
    {"[1", RSSM_ERR_JSON, "',' or ']' was expected"},
    {"{'a':1,}", RSSM_ERR_JSON, "a key in double quotes was expected"},
    {"[1,]", RSSM_ERR_JSON, "a value was expected"},
    {"[,1]", RSSM_ERR_JSON, "a value was expected"},
    {"[1 2]", RSSM_ERR_JSON, "',' or ']' was expected"},
    {"{a:1}", RSSM_ERR_JSON, "a key in double quotes was expected"},
    {"{1:1}", RSSM_ERR_JSON, "a key in double quotes was expected"},
    {"{\n 'a': nul}", RSSM_ERR_JSON, "line 2, column 7: a value was expected"},
    {"[tru]", RSSM_ERR_JSON, "a value was expected"},
    {"[True]", RSSM_ERR_JSON, "a value was expected"},
    {"['a", RSSM_ERR_JSON, "the text ends inside a string"},
    {"['a\\", RSSM_ERR_JSON, "unknown escape"},
    {"['\\x41']", RSSM_ERR_JSON, "unknown escape"},
    {"['\\u12g4']", RSSM_ERR_JSON, "\\u needs four hex digits"},
    {"['\\u0000']", RSSM_ERR_JSON, "\\u0000 in a string"},
    {"{'a\\u0000b':1}", RSSM_ERR_JSON, "\\u0000 in a string"},
    {"['\\ud800']", RSSM_ERR_JSON, "lone high surrogate"},
    {"['\\ud800\\u0041']", RSSM_ERR_JSON, "lone high surrogate"},
    {"['\\udc00']", RSSM_ERR_JSON, "lone low surrogate"},
    {"['\\ufdd0']", RSSM_ERR_JSON, "not a character"},
    {"['\xEF\xB7\x90']", RSSM_ERR_JSON, "a UTF-8 sequence that is no character"},
    {"['\x1f']", RSSM_ERR_JSON, "a control character in a string"},
    {"['\n']", RSSM_ERR_JSON, "a control character in a string"},
    {"['\xC0\x80']", RSSM_ERR_JSON, "overlong"},
    {"['\xC1\xBF']", RSSM_ERR_JSON, "overlong"},
    {"['\xE0\x80\xAF']", RSSM_ERR_JSON, "overlong"},
    {"['\xF0\x80\x80\xAF']", RSSM_ERR_JSON, "overlong"},
    {"['\xED\xA0\x80']", RSSM_ERR_JSON, "no character"},
    {"['\xF4\x90\x80\x80']", RSSM_ERR_JSON, "no character"},
    {"['\xFF']", RSSM_ERR_JSON, "not valid UTF-8"},
    {"['\x80']", RSSM_ERR_JSON, "not valid UTF-8"},
    {"['\xC3", RSSM_ERR_JSON, "cut off"},
    {"['\xC3']", RSSM_ERR_JSON, "not valid UTF-8"},
    {"\xC3\xA9", RSSM_ERR_JSON, "a value was expected"},
    {"[01]", RSSM_ERR_JSON, "leading zero"},
    {"[-]", RSSM_ERR_JSON, "a value was expected"},
    {"[+1]", RSSM_ERR_JSON, "a value was expected"},
    {"[.5]", RSSM_ERR_JSON, "a value was expected"},
    {"[1.]", RSSM_ERR_JSON, "without digits after its point"},
    {"[1e]", RSSM_ERR_JSON, "without digits in its exponent"},
    {"[1e+]", RSSM_ERR_JSON, "without digits in its exponent"},
    {"[0x10]", RSSM_ERR_JSON, "',' or ']' was expected"},
    {"[1,5.0.0]", RSSM_ERR_JSON, "',' or ']' was expected"},
    {"[NaN]", RSSM_ERR_JSON, "line 1, column 2: NaN is not a number"},
    {"[-NaN]", RSSM_ERR_JSON, "NaN is not a number"},
    {"[nan]", RSSM_ERR_JSON, "a value was expected"},
    {"[inf]", RSSM_ERR_JSON, "a value was expected"},
    {"[+Infinity]", RSSM_ERR_JSON, "a value was expected"},
    {"[Infinit]", RSSM_ERR_JSON, "a value was expected"},
    {"[Infinity1]", RSSM_ERR_JSON, "',' or ']' was expected"},
    {"{Infinity:1}", RSSM_ERR_JSON, "a key in double quotes was expected"},
    {"{'x':1} // comment", RSSM_ERR_JSON, "trailing bytes after the JSON value"},
    {"{'x':1}{'x':1}", RSSM_ERR_JSON, "line 1, column 8: trailing bytes"},
    {"{'\xC3\xA9':1}x", RSSM_ERR_JSON, "line 1, column 8: trailing bytes"},

    /* duplicate keys, anywhere */
    {GDN(",'num_hidden_layers':8"), RSSM_ERR_JSON, "duplicate key `num_hidden_layers`"},
    {"{'text_config':{'a':1,'b':2,'a':1}}", RSSM_ERR_JSON, "duplicate key `text_config.a`"},
    {"{'x':[{'y':1},{'z':{'k':1,'k':2}}]}", RSSM_ERR_JSON, "duplicate key `x.[].z.k`"},
    {"{'hidden_size':1,'hidden\\u005fsize':2}", RSSM_ERR_JSON, "duplicate key `hidden_size`"},
    {"{'':1,'':2}", RSSM_ERR_JSON, "duplicate key ``"},
};

START_TEST(test_bad)
{
    fixture f;
    read_text(&f, bad[_i].text);
    expect_failure(&f, bad[_i].text, bad[_i].status, bad[_i].message);
}
END_TEST

/* Texts that a C string cannot hold. */
START_TEST(test_bytes)
{
    static const struct {
        const char *text;
        uint64_t length;
        const char *message;
    } cases[] = {
        {"{}\0", 3, "trailing bytes"},
        {"\0{}", 3, "a NUL byte"},
        {"[\0]", 3, "a NUL byte"},
        {"[\"a\0b\"]", 7, "a NUL byte in a string"},
        {"{\"a\":1}x", 8, "trailing bytes"},
        {NULL, 0, "the text is empty"},
        {"{\"a\":12}", 7, "',' or '}' was expected"}, /* the 12 ends with the text */
    };
    fixture f;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        read_bytes(&f, cases[i].text, cases[i].length);
        expect_failure(&f, "bytes", RSSM_ERR_JSON, cases[i].message);
    }
}
END_TEST

/* Nothing is read behind the length: the text ends at the end of a block that the sanitizer watches. */
START_TEST(test_every_prefix)
{
    const char *whole = "{\"a\":[-1.5e3,true,null,Infinity,-Infinity,\"\\u00e9\\ud83d\\ude00\xF0\x9F\x98\x80\"]}";
    const uint64_t length = strlen(whole);
    for (uint64_t n = 0; n <= length; n++) {
        char *text = malloc(n ? n : 1);
        memcpy(text, whole, n);
        fixture f;
        read_bytes(&f, text, n);
        ck_assert_int_eq(f.status, n == length ? RSSM_ERR_MODEL : RSSM_ERR_JSON);
        close_fixture(&f);
        free(text);
    }
}
END_TEST

/* ---- hostile sizes: an error within 1 s and 64 MB ---- */

/* The sanitizers slow everything down. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TIME_LIMIT 5.0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define TIME_LIMIT 5.0
#endif
#endif
#ifndef TIME_LIMIT
#define TIME_LIMIT 1.0
#endif

/* Of this process: the machine may be busy. */
static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A text that grows. */
typedef struct builder {
    char *text;
    uint64_t length, room;
} builder;

static void append(builder *b, const char *piece)
{
    const uint64_t n = strlen(piece);
    if (b->length + n > b->room) {
        b->room = 2 * (b->length + n);
        b->text = realloc(b->text, b->room);
        ck_assert_ptr_nonnull(b->text);
    }
    memcpy(b->text + b->length, piece, n);
    b->length += n;
}

static void append_times(builder *b, const char *piece, int64_t times)
{
    for (int64_t i = 0; i < times; i++)
        append(b, piece);
}

/* n members with different keys. */
static void append_members(builder *b, const char *prefix, int64_t n)
{
    char member[96];
    for (int64_t i = 0; i < n; i++) {
        snprintf(member, sizeof(member), "%s\"%s%lld\":%lld", i ? "," : "", prefix, (long long)i, (long long)i);
        append(b, member);
    }
}

static void expect_fast(builder *b, rssm_status status, const char *message)
{
    fixture f;
    const double start = seconds();
    read_bytes(&f, b->text, b->length);
    const double took = seconds() - start;
    const double limit = getenv("RSSM_SLOW") ? 100 * TIME_LIMIT : TIME_LIMIT; /* set under valgrind */
    ck_assert_msg(took < limit, "%s took %g s", message, took);
    ck_assert_msg(f.counts.peak <= 64 << 20, "%s took %lld bytes", message, (long long)f.counts.peak);
    if (status) {
        expect_failure(&f, "a hostile text", status, message);
    } else {
        ck_assert_msg(f.status == RSSM_OK, "%s", f.err.message);
        close_fixture(&f);
    }
    free(b->text);
}

static void append_text(builder *b, const char *text)
{
    char one[2] = {0};
    for (; *text; text++) {
        one[0] = *text == '\'' ? '"' : *text;
        append(b, one);
    }
}

START_TEST(test_huge)
{
    builder b = {0};
    switch (_i) {
    case 0: /* 50 MB */
        append_times(&b, "                                                  ", 1 << 20);
        expect_fast(&b, RSSM_ERR_JSON, "bytes, more than the limit of 8388608");
        break;
    case 1:
        append_times(&b, "[", 100000);
        expect_fast(&b, RSSM_ERR_JSON, "nested deeper than 64 levels");
        break;
    case 2:
        append_times(&b, "{\"a\":", 100000);
        expect_fast(&b, RSSM_ERR_JSON, "nested deeper than 64 levels");
        break;
    case 3: /* 10 MB of nesting */
        append_times(&b, "[[[[[[[[[[", 1 << 20);
        expect_fast(&b, RSSM_ERR_JSON, "bytes, more than the limit");
        break;
    case 4: /* 10^6 keys */
        append(&b, "{");
        append_members(&b, "", 1000000);
        append(&b, "}");
        expect_fast(&b, RSSM_ERR_JSON, "bytes, more than the limit");
        break;
    case 5: /* 10^6 keys in 8 MB */
        append(&b, "{\"a\":0");
        append_times(&b, ",\"a\":0", 1000000);
        append(&b, "}");
        expect_fast(&b, RSSM_ERR_JSON, "more than 262144 values");
        break;
    case 6:
        append(&b, "[0");
        append_times(&b, ",0", 1000000);
        append(&b, "]");
        expect_fast(&b, RSSM_ERR_JSON, "more than 262144 values");
        break;
    case 7: /* as many keys as are allowed, and one twice */
        append(&b, "{\"x\":{\"last\":1,");
        append_members(&b, "a-common-prefix", 250000);
        append(&b, ",\"last\":1}}");
        expect_fast(&b, RSSM_ERR_JSON, "duplicate key `x.last`");
        break;
    case 8: /* the same without the duplicate, in an object that is searched */
        append(&b, "{");
        append_members(&b, "a-common-prefix", 250000);
        append(&b, "}");
        expect_fast(&b, RSSM_ERR_CONFIG, "250000 keys in the top level, more than 4096");
        break;
    case 9: /* a good config beside 8 MB of ballast */
        append(&b, "{\"x\":[Infinity");
        append_times(&b, ",0.000000000000000000001", 250000);
        append(&b, "],\"text_config\":");
        append_text(&b, GDN(""));
        append(&b, "}");
        expect_fast(&b, RSSM_OK, "ballast");
        break;
    case 10: /* one string of 8 MB */
        append(&b, "{\"x\":\"");
        append_times(&b, "\xF0\x9F\x98\x80", 2000000);
        append(&b, "\",\"model_type\":\"llama\"}");
        expect_fast(&b, RSSM_ERR_MODEL, "llama: no KDA/GDN/Mamba-2 layer");
        break;
    case 11: /* a long model_type is cut in messages */
        append(&b, "{\"model_type\":\"");
        append_times(&b, "\xC3\xA9", 1000000);
        append(&b, "\"}");
        expect_fast(&b, RSSM_ERR_MODEL, ": no KDA/GDN/Mamba-2 layer");
        break;
    case 12: /* one number of 1 MB */
        append(&b, "[1");
        append_times(&b, "0", 1 << 20);
        append(&b, "]");
        expect_fast(&b, RSSM_ERR_JSON, "a number of more than 400 characters");
        break;
    case 13:
        append(&b, "{\"layers_block_type\":[\"mamba\"");
        append_times(&b, ",\"mamba\"", 65536);
        append_text(&b, "]," NEMOTRON_SIZES "}");
        expect_fast(&b, RSSM_ERR_CONFIG, "has 65537 entries, not 1 .. 65536");
        break;
    default: /* the most layers, and the most keys of one nested object */
        append(&b, "{\"layers_block_type\":[\"mamba\"");
        append_times(&b, ",\"mamba\"", 65535);
        append_text(&b, "]," NEMOTRON_SIZES ",");
        append_members(&b, "x", 4000);
        append(&b, "}");
        expect_fast(&b, RSSM_OK, "65536 layers");
        break;
    }
}
END_TEST
enum { NUM_HUGE = 15 };

/* 64 levels are allowed, 65 are not. */
START_TEST(test_depth)
{
    for (int deep = 0; deep < 2; deep++) {
        builder b = {0};
        append(&b, "{\"x\":");
        append_times(&b, "[", 63 + deep);
        append_times(&b, "]", 63 + deep);
        append(&b, "}");
        expect_fast(&b, deep ? RSSM_ERR_JSON : RSSM_ERR_MODEL, deep ? "nested deeper than 64" : "no KDA/GDN/Mamba-2");
    }
}
END_TEST

/* ---- failing allocations ---- */

/* Every allocation in turn: out of memory each time, nothing leaked, and as many failures as there are allocations. */
START_TEST(test_failing_allocations)
{
    builder b = {0};
    append(&b, "{\"x\":[Infinity");
    append_times(&b, ",0.5", 4000);
    append(&b, "],\"layers_block_type\":[\"mamba\"");
    append_times(&b, ",\"mamba\"", 30000);
    append_text(&b, "],'long':'");
    append_times(&b, "abcdefgh", 10000);
    append_text(&b, "'," NEMOTRON_SIZES ",'model_type':'nemotron_h'}");
    fixture f;
    read_bytes(&f, b.text, b.length);
    ck_assert_msg(f.status == RSSM_OK, "%s", f.err.message);
    const int64_t calls = f.counts.calls;
    close_fixture(&f);
    ck_assert_int_gt(calls, 20);
    for (int64_t k = 1; k <= calls; k++) {
        open_fixture(&f);
        f.counts.fail_at = k;
        f.status = rssm_config_read(&f.model, &f.arena, b.text, b.length, &f.err);
        ck_assert_msg(f.status == RSSM_ERR_OUT_OF_MEMORY, "allocation %lld of %lld: %s", (long long)k, (long long)calls,
                      rssm_status_name(f.status));
        close_fixture(&f);
    }
    free(b.text);
}
END_TEST

/* The same over all good configs: small ones have few allocations, but each has a first. */
START_TEST(test_failing_allocations_of)
{
    fixture f;
    read_text(&f, good[_i].text);
    const int64_t calls = f.counts.calls;
    close_fixture(&f);
    for (int64_t k = 1; k <= calls; k++) {
        char *json = strdup(good[_i].text);
        for (char *c = json; *c; c++)
            *c = *c == '\'' ? '"' : *c;
        open_fixture(&f);
        f.counts.fail_at = k;
        f.status = rssm_config_read(&f.model, &f.arena, json, strlen(json), &f.err);
        ck_assert_int_eq(f.status, RSSM_ERR_OUT_OF_MEMORY);
        close_fixture(&f);
        free(json);
    }
}
END_TEST

/* ---- locale ---- */

/* A locale with a decimal comma, from the system or made for this test; false if neither works. */
static bool comma_locale(char *folder)
{
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR", "ru_RU.UTF-8", "nl_NL.UTF-8"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (setlocale(LC_ALL, names[i]))
            return true;
    char command[512];
    if (!mkdtemp(folder))
        return false;
    snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 %s/comma.utf8 >/dev/null 2>&1", folder);
    if (system(command) != 0)
        return false;
    setenv("LOCPATH", folder, 1);
    return setlocale(LC_ALL, "comma.utf8") != NULL;
}

START_TEST(test_decimal_comma)
{
    char folder[] = "/tmp/rssm-locale-XXXXXX", command[128];
    if (!comma_locale(folder)) {
        printf("test_decimal_comma: no locale with a decimal comma here, skipped\n");
        return;
    }
    ck_assert_str_eq(localeconv()->decimal_point, ",");
    fixture f;
    read_text(&f, KDA("'kda_layers':[1],'gate_lower_bound':-2.5"));
    ck_assert_msg(f.status == RSSM_OK, "%s", f.err.message);
    ck_assert_double_eq(f.model.lower_bound, -2.5);
    ck_assert(has_note(&f.model.read, "gate_lower_bound = -2.5 (linear_attn_config)"));
    close_fixture(&f);
    read_text(&f, NEMOTRON_LIMIT("[0.125,1e-1]"));
    expect_failure(&f, "a limit", RSSM_ERR_CONFIG, "is [0.125, 0.1], not");
    read_text(&f, GDN_HEADS("128.5"));
    expect_failure(&f, "a half", RSSM_ERR_CONFIG, "is 128.5, not an integer");
    read_text(&f, "[128,5.5]");
    expect_failure(&f, "an array", RSSM_ERR_CONFIG, "not an object");
    setlocale(LC_ALL, "C");
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* ---- files ---- */

typedef struct file_fixture {
    fixture f;
    char folder[32], path[64];
} file_fixture;

static void open_file_fixture(file_fixture *x)
{
    strcpy(x->folder, "/tmp/rssm-config-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(x->folder));
    snprintf(x->path, sizeof(x->path), "%s/config.json", x->folder);
}

static void close_file_fixture(file_fixture *x)
{
    unlink(x->path);
    ck_assert_int_eq(rmdir(x->folder), 0);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    for (; *text; text++)
        fputc(*text == '\'' ? '"' : *text, file);
    ck_assert_int_eq(fclose(file), 0);
}

static void read_path(fixture *f, const char *path, int64_t fail_at)
{
    open_fixture(f);
    f->counts.fail_at = fail_at;
    f->status = rssm_config_read_file(&f->model, &f->arena, path, &f->err);
}

START_TEST(test_file)
{
    file_fixture x;
    open_file_fixture(&x);
    read_path(&x.f, x.path, 0);
    expect_failure(&x.f, "a missing file", RSSM_ERR_IO, "no such file");
    read_path(&x.f, x.folder, 0);
    expect_failure(&x.f, "a folder", RSSM_ERR_IO, "is a directory");
    read_path(&x.f, "", 0);
    expect_failure(&x.f, "no path", RSSM_ERR_IO, "no such file");

    write_file(x.path, "");
    read_path(&x.f, x.path, 0);
    expect_failure(&x.f, "an empty file", RSSM_ERR_JSON, "the text is empty");

    write_file(x.path, GDN(""));
    read_path(&x.f, x.path, 0);
    ck_assert_msg(x.f.status == RSSM_OK, "%s", x.f.err.message);
    ck_assert_int_eq(x.f.model.HV, 4);
    const int64_t calls = x.f.counts.calls;
    close_fixture(&x.f);
    for (int64_t k = 1; k <= calls; k++) {
        read_path(&x.f, x.path, k);
        expect_failure(&x.f, "a failing allocation", RSSM_ERR_OUT_OF_MEMORY, "memory");
    }

    char below[96];
    snprintf(below, sizeof(below), "%s/x", x.path);
    read_path(&x.f, below, 0);
    expect_failure(&x.f, "a path below a file", RSSM_ERR_IO, "not a directory");

    ck_assert_int_eq(truncate(x.path, RSSM_CONFIG_MAX_BYTES + 1), 0);
    read_path(&x.f, x.path, 0);
    ck_assert_int_eq(x.f.counts.calls, 0);
    expect_failure(&x.f, "a large file", RSSM_ERR_IO, "larger than the limit");
    ck_assert_int_eq(truncate(x.path, (off_t)1 << 40), 0);
    read_path(&x.f, x.path, 0);
    expect_failure(&x.f, "a terabyte", RSSM_ERR_IO, "larger than the limit");
    close_file_fixture(&x);
}
END_TEST

/* A FIFO without a writer must not hang. */
START_TEST(test_fifo)
{
    file_fixture x;
    open_file_fixture(&x);
    ck_assert_int_eq(mkfifo(x.path, 0600), 0);
    read_path(&x.f, x.path, 0);
    expect_failure(&x.f, "a FIFO", RSSM_ERR_IO, "not a regular file");
    close_file_fixture(&x);
    read_path(&x.f, "/dev/zero", 0);
    expect_failure(&x.f, "a device", RSSM_ERR_IO, "not a regular file");
}
END_TEST

/* ---- the explicit dims ---- */

static const int32_t two_layers[] = {0, 2};

static rssm_dims good_dims(void)
{
    return (rssm_dims){.struct_size = sizeof(rssm_dims),
                       .family = RSSM_FAMILY_KDA,
                       .num_layers = 3,
                       .linear_layers = two_layers,
                       .num_linear_layers = 2,
                       .H = 2,
                       .HV = 4,
                       .K = 4,
                       .V = 6,
                       .conv_kernel = 4,
                       .has_lower_bound = 1,
                       .lower_bound = -5,
                       .allow_neg_eigval = 1};
}

static void read_dims(fixture *f, const rssm_dims *dims)
{
    open_fixture(f);
    f->status = rssm_model_from_dims(&f->model, &f->arena, dims, &f->err);
}

START_TEST(test_dims)
{
    fixture f;
    rssm_dims dims = good_dims();
    read_dims(&f, &dims);
    ck_assert_msg(f.status == RSSM_OK, "%s", f.err.message);
    expect_layers(&f.model, "101");
    ck_assert_ptr_ne(f.model.linear_layers, two_layers);
    ck_assert_int_eq(f.model.HV, 4);
    ck_assert_double_eq(f.model.lower_bound, -5);
    ck_assert_double_eq(f.model.beta_scale, 2);
    ck_assert(f.model.qk_norm);
    ck_assert_str_eq(f.model.model_type, "");
    close_fixture(&f);

    dims = (rssm_dims){.family = RSSM_FAMILY_MAMBA2, .num_layers = 2, .H = 1, .HV = 1, .K = 1, .V = 1};
    read_dims(&f, &dims);
    ck_assert_msg(f.status == RSSM_OK, "%s", f.err.message);
    expect_layers(&f.model, "11");
    ck_assert(isinf(f.model.dt_max) && f.model.dt_min == 0 && !f.model.qk_norm && f.model.beta_scale == 1);
    const int64_t calls = f.counts.calls;
    close_fixture(&f);
    for (int64_t k = 1; k <= calls; k++) {
        open_fixture(&f);
        f.counts.fail_at = k;
        f.status = rssm_model_from_dims(&f.model, &f.arena, &dims, &f.err);
        expect_failure(&f, "dims", RSSM_ERR_OUT_OF_MEMORY, "memory");
    }
    dims.has_time_step_limit = 1;
    dims.time_step_limit_min = .01;
    dims.time_step_limit_max = INFINITY;
    read_dims(&f, &dims);
    ck_assert_msg(f.status == RSSM_OK, "%s", f.err.message);
    ck_assert(f.model.dt_min == .01 && isinf(f.model.dt_max));
    close_fixture(&f);
}
END_TEST

#define WRONG(field, value, text)                                         \
    do {                                                                  \
        rssm_dims dims = good_dims();                                     \
        dims.field = value;                                               \
        fixture f;                                                        \
        read_dims(&f, &dims);                                             \
        expect_failure(&f, #field " = " #value, RSSM_ERR_ARGUMENT, text); \
    } while (0)

START_TEST(test_wrong_dims)
{
    static const int32_t repeated[] = {1, 1}, falling[] = {2, 1}, beyond[] = {0, 3}, negative[] = {-1, 0};
    WRONG(family, 0, "dims.family is 0");
    WRONG(family, 4, "dims.family is 4");
    WRONG(num_layers, 0, "dims.num_layers is 0");
    WRONG(num_layers, 65537, "dims.num_layers is 65537");
    WRONG(H, 0, "dims.H is 0");
    WRONG(H, -1, "dims.H is -1");
    WRONG(H, 3, "dims.HV = 4 is not a multiple of dims.H = 3");
    WRONG(HV, 65538, "dims.HV is 65538");
    WRONG(K, 4097, "dims.K is 4097, not in 1 .. 4096");
    WRONG(V, INT32_MIN, "dims.V is -2147483648");
    WRONG(conv_kernel, 65, "dims.conv_kernel is 65");
    WRONG(conv_kernel, -1, "dims.conv_kernel is -1");
    WRONG(has_lower_bound, 2, "dims.has_lower_bound is 2");
    WRONG(has_lower_bound, 0, "lower_bound is set but has_lower_bound is 0");
    WRONG(lower_bound, 0, "dims.lower_bound is 0");
    WRONG(lower_bound, 1, "dims.lower_bound is 1");
    WRONG(lower_bound, -INFINITY, "dims.lower_bound is -inf");
    WRONG(lower_bound, (double)NAN, "dims.lower_bound is ");
    WRONG(no_qk_norm, 7, "dims.no_qk_norm is 7");
    WRONG(allow_neg_eigval, -1, "dims.allow_neg_eigval is -1");
    WRONG(reserved_, 1, "dims.reserved_ is 1");
    WRONG(has_time_step_limit, 1, "has_time_step_limit is for Mamba-2 only");
    WRONG(time_step_limit_max, .5, "time_step_limit is set but");
    WRONG(family, RSSM_FAMILY_MAMBA2, "are not for Mamba-2");
    WRONG(linear_layers, NULL, "linear_layers is NULL but num_linear_layers is 2");
    WRONG(num_linear_layers, 0, "num_linear_layers is 0, not in 1 .. 3");
    WRONG(num_linear_layers, 4, "num_linear_layers is 4, not in 1 .. 3");
    WRONG(num_linear_layers, INT64_MIN, "num_linear_layers is -9223372036854775808");
    WRONG(linear_layers, repeated, "dims.linear_layers[1] is 1: must ascend");
    WRONG(linear_layers, falling, "dims.linear_layers[1] is 1: must ascend");
    WRONG(linear_layers, beyond, "dims.linear_layers[1] is 3");
    WRONG(linear_layers, negative, "dims.linear_layers[0] is -1");
    rssm_dims limits = {.family = RSSM_FAMILY_MAMBA2,
                        .num_layers = 1,
                        .H = 1,
                        .HV = 1,
                        .K = 1,
                        .V = 1,
                        .has_time_step_limit = 1,
                        .time_step_limit_min = 1,
                        .time_step_limit_max = .5};
    fixture f;
    read_dims(&f, &limits);
    expect_failure(&f, "limits", RSSM_ERR_ARGUMENT, "time_step_limit is [1, 0.5]");
    limits.time_step_limit_max = (double)NAN;
    read_dims(&f, &limits);
    expect_failure(&f, "limits", RSSM_ERR_ARGUMENT, "not 0 <= min <= max");
}
END_TEST

static Suite *config_suite(void)
{
    Suite *suite = suite_create("config");
    TCase *spellings = tcase_create("spellings");
    tcase_add_loop_test(spellings, test_good, 0, (int)(sizeof(good) / sizeof(good[0])));
    suite_add_tcase(suite, spellings);

    TCase *refusals = tcase_create("refusals");
    tcase_add_loop_test(refusals, test_bad, 0, (int)(sizeof(bad) / sizeof(bad[0])));
    tcase_add_test(refusals, test_bytes);
    tcase_add_test(refusals, test_every_prefix);
    tcase_add_test(refusals, test_depth);
    suite_add_tcase(suite, refusals);

    TCase *huge = tcase_create("huge");
    tcase_set_timeout(huge, 60);
    tcase_add_loop_test(huge, test_huge, 0, NUM_HUGE);
    suite_add_tcase(suite, huge);

    TCase *memory = tcase_create("memory");
    tcase_set_timeout(memory, 60);
    tcase_add_test(memory, test_failing_allocations);
    tcase_add_loop_test(memory, test_failing_allocations_of, 0, (int)(sizeof(good) / sizeof(good[0])));
    suite_add_tcase(suite, memory);

    TCase *outside = tcase_create("files and locale");
    tcase_set_timeout(outside, 60);
    tcase_add_test(outside, test_decimal_comma);
    tcase_add_test(outside, test_file);
    tcase_add_test(outside, test_fifo);
    suite_add_tcase(suite, outside);

    TCase *dims = tcase_create("dims");
    tcase_add_test(dims, test_dims);
    tcase_add_test(dims, test_wrong_dims);
    suite_add_tcase(suite, dims);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(config_suite());
    srunner_run_all(runner, CK_NORMAL);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
