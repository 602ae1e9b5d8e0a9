#include "core/model.h"

#include <float.h>
#include <math.h>

#include "core/error.h"

/* A field's name, value and range. */
typedef struct dims_range {
    const char *name;
    int64_t value, min, max;
} dims_range;

static rssm_status check_ranges(const rssm_dims *dims, rssm_error *err)
{
    const dims_range ranges[] = {
        {"family", dims->family, RSSM_FAMILY_KDA, RSSM_FAMILY_MAMBA2},
        {"num_layers", dims->num_layers, 1, RSSM_MAX_LAYERS},
        {"H", dims->H, 1, RSSM_MAX_HEADS},
        {"HV", dims->HV, 1, RSSM_MAX_HEADS},
        {"K", dims->K, 1, RSSM_MAX_HEAD_DIM},
        {"V", dims->V, 1, RSSM_MAX_HEAD_DIM},
        {"conv_kernel", dims->conv_kernel, 0, RSSM_MAX_CONV_KERNEL},
        {"has_lower_bound", dims->has_lower_bound, 0, 1},
        {"no_qk_norm", dims->no_qk_norm, 0, 1},
        {"allow_neg_eigval", dims->allow_neg_eigval, 0, 1},
        {"has_time_step_limit", dims->has_time_step_limit, 0, 1},
        {"reserved_", dims->reserved_, 0, 0},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (ranges[i].value < ranges[i].min || ranges[i].value > ranges[i].max)
            return rssm_fail(err, RSSM_ERR_ARGUMENT, "dims.%s is %lld, not in %lld .. %lld", ranges[i].name,
                             (long long)ranges[i].value, (long long)ranges[i].min, (long long)ranges[i].max);
    if (dims->HV % dims->H != 0)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "dims.HV = %d is not a multiple of dims.H = %d", dims->HV, dims->H);
    return RSSM_OK;
}

/* A number without its flag, or a flag of another family, is a host that believes in a gate that we would not apply. */
static rssm_status check_gates(const rssm_dims *dims, rssm_error *err)
{
    const bool mamba = dims->family == RSSM_FAMILY_MAMBA2;
    const double min = dims->time_step_limit_min, max = dims->time_step_limit_max;
    if (mamba && (dims->has_lower_bound || dims->no_qk_norm || dims->allow_neg_eigval))
        return rssm_fail(err, RSSM_ERR_ARGUMENT,
                         "dims: has_lower_bound, no_qk_norm and allow_neg_eigval are not for Mamba-2");
    if (!mamba && dims->has_time_step_limit)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "dims: has_time_step_limit is for Mamba-2 only");
    if (!dims->has_lower_bound && dims->lower_bound != 0)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "dims.lower_bound is set but has_lower_bound is 0");
    if (dims->has_lower_bound && !(dims->lower_bound < 0 && dims->lower_bound >= -FLT_MAX))
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "dims.lower_bound is %g, not a negative float32 number",
                         dims->lower_bound);
    if (!dims->has_time_step_limit && (min != 0 || max != 0))
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "dims.time_step_limit is set but has_time_step_limit is 0");
    if (dims->has_time_step_limit && !(min >= 0 && isfinite(min) && min <= max))
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "dims.time_step_limit is [%g, %g], not 0 <= min <= max", min, max);
    return RSSM_OK;
}

static rssm_status check_layers(const rssm_dims *dims, rssm_error *err)
{
    const int64_t count = dims->num_linear_layers;
    if (!dims->linear_layers && count != 0 && count != dims->num_layers)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "dims.linear_layers is NULL but num_linear_layers is %lld",
                         (long long)count);
    if (!dims->linear_layers)
        return RSSM_OK;
    if (count < 1 || count > dims->num_layers)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "dims.num_linear_layers is %lld, not in 1 .. %d", (long long)count,
                         dims->num_layers);
    for (int64_t i = 0; i < count; i++) {
        const int32_t layer = dims->linear_layers[i], before = i ? dims->linear_layers[i - 1] : -1;
        if (layer <= before || layer >= dims->num_layers)
            return rssm_fail(err, RSSM_ERR_ARGUMENT,
                             "dims.linear_layers[%lld] is %d: must ascend within 0 .. %d (the entry before is %d)",
                             (long long)i, layer, dims->num_layers - 1, before);
    }
    return RSSM_OK;
}

static rssm_status copy_layers(rssm_model *model, rssm_arena *arena, const rssm_dims *dims, rssm_error *err)
{
    model->num_linear = dims->linear_layers ? (int32_t)dims->num_linear_layers : dims->num_layers;
    int32_t *layers = rssm_arena_alloc(arena, (size_t)model->num_linear * sizeof(*layers));
    if (!layers)
        return rssm_out_of_memory(err);
    for (int32_t i = 0; i < model->num_linear; i++)
        layers[i] = dims->linear_layers ? dims->linear_layers[i] : i;
    model->linear_layers = layers;
    return RSSM_OK;
}

rssm_status rssm_model_from_dims(rssm_model *model, rssm_arena *arena, const rssm_dims *dims, rssm_error *err)
{
    rssm_status status = check_ranges(dims, err);
    if (!status)
        status = check_gates(dims, err);
    if (!status)
        status = check_layers(dims, err);
    if (status)
        return status;
    const bool mamba = dims->family == RSSM_FAMILY_MAMBA2;
    *model = (rssm_model){
        .family = dims->family,
        .model_type = "",
        .num_layers = dims->num_layers,
        .H = dims->H,
        .HV = dims->HV,
        .K = dims->K,
        .V = dims->V,
        .conv_kernel = dims->conv_kernel,
        .has_lower_bound = dims->has_lower_bound,
        .qk_norm = !mamba && !dims->no_qk_norm,
        .lower_bound = dims->lower_bound,
        .beta_scale = dims->allow_neg_eigval ? 2 : 1,
        .dt_min = dims->time_step_limit_min,
        .dt_max = mamba && !dims->has_time_step_limit ? INFINITY : dims->time_step_limit_max,
        .io_dtype = RSSM_DTYPE_BFLOAT16,
        .state_dtype = RSSM_DTYPE_FLOAT32,
    };
    status = copy_layers(model, arena, dims, err);
    if (!status && !rssm_strings_add(&model->assumed, arena, "dtype = bfloat16 (dims say none)"))
        status = rssm_out_of_memory(err);
    return status;
}
