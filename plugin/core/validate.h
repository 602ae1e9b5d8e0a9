/* DLTensors of a call against the family table: shape, dtype, device, strides, alignment, overlap. One place for all
 * calls; the messages name the tensor and both sides. */
#ifndef RSSM_CORE_VALIDATE_H_
#define RSSM_CORE_VALIDATE_H_

#include "core/plugin.h"

/* One tensor against its line of the table. Symbols of *dims that are -1 are bound by it. */
rssm_status rssm_check_tensor(const rssm_plugin *plugin, const rssm_role_spec *spec, const DLTensor *tensor,
                              rssm_dims_of *dims, rssm_error *err);

/* A list that belongs to no family: slots, accepted, ... of shape [symbol]. */
rssm_status rssm_check_list(const rssm_plugin *plugin, int32_t role, rssm_sym length, const DLTensor *tensor,
                            rssm_dims_of *dims, rssm_error *err);

/* A whole decode call; RSSM_CHECK_DEEP also reads the index arrays. */
rssm_status rssm_check_decode(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);

/* step_begin's slots, force_flush and rows_out. */
rssm_status rssm_check_step_begin(const rssm_plugin *plugin, const rssm_step_begin_args *args, rssm_error *err);

/* Two tensors of which one is written: may they share memory? Interleaved pages of equal stride are told apart. */
bool rssm_tensors_overlap(const DLTensor *a, const DLTensor *b);

/* Where the first element is. */
void *rssm_tensor_data(const DLTensor *tensor);
/* Elements from one index of the first dimension to the next. */
int64_t rssm_tensor_stride0(const DLTensor *tensor);
rssm_index rssm_index_of(const DLTensor *tensor); /* NULL gives an absent one */
int32_t rssm_dtype_of(const DLTensor *tensor);    /* RSSM_DTYPE_* of a valid float tensor */

#endif
