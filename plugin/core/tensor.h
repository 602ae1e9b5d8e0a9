/* A DLTensor: reading it, and checking one against its line of the family table. The messages name the tensor and both
 * sides. */
#ifndef RSSM_CORE_TENSOR_H_
#define RSSM_CORE_TENSOR_H_

#include "core/plugin.h"

/* The addresses that a tensor spans, gaps included; first == end when it is empty. */
typedef struct rssm_span {
    uintptr_t first, end;
} rssm_span;

/* One tensor against its line of the table. Symbols of *dims that are -1 are bound by it; after a failure *dims is of no
 * further use. */
rssm_status rssm_check_tensor(const rssm_plugin *plugin, const rssm_role_spec *spec, const DLTensor *tensor,
                              rssm_dims_of *dims, rssm_error *err);

/* The same, and where it lies. */
rssm_status rssm_check_tensor_at(const rssm_plugin *plugin, const rssm_role_spec *spec, const DLTensor *tensor,
                                 rssm_dims_of *dims, rssm_span *span, rssm_error *err);

/* A list that belongs to no family: slots, accepted, ... of shape [symbol]. */
rssm_status rssm_check_list(const rssm_plugin *plugin, int32_t role, rssm_sym length, const DLTensor *tensor,
                            rssm_dims_of *dims, rssm_error *err);

/* Do two tensors share a byte? Exact, for inner dims that are compact and any strides of the first dim. */
bool rssm_tensors_overlap(const DLTensor *a, const DLTensor *b);

/* Where the first element is. */
void *rssm_tensor_data(const DLTensor *tensor);
int64_t rssm_element_bytes(const DLTensor *tensor);
/* Bytes from the first element to behind the last, gaps included; -1 when they do not fit. */
int64_t rssm_tensor_bytes(const DLTensor *tensor);
/* Elements from one index of the first dimension to the next. */
int64_t rssm_tensor_stride0(const DLTensor *tensor);
rssm_index rssm_index_of(const DLTensor *tensor); /* NULL gives an absent one */
int32_t rssm_dtype_of(const DLTensor *tensor);    /* RSSM_DTYPE_* of a valid float tensor */

/* The tensor of a role, NULL when the call has none. */
static inline const DLTensor *rssm_given(const rssm_decode_args *args, int32_t role)
{
    return role > 0 && (uint32_t)role < args->num_tensors ? args->tensors[role] : NULL;
}

#endif
