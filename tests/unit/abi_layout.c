/* The ABI as it was frozen: size and offset of every field of every struct, and the value of every constant. A change
 * here breaks hosts that are out there already: fields are only appended, values never reused. It is checked by the
 * compiler; the program itself has nothing to do. For LP64, little or big endian alike. */
#include <stddef.h>

#include "replayssm.h"
#include "rssm_conv.h"
#include "rssm_fault.h"
#include "rssm_slots.h"
#include "rssm_verify.h"

#define SIZE(type, bytes)         _Static_assert(sizeof(type) == (bytes), #type " has another size")
#define FIELD(type, field, bytes) _Static_assert(offsetof(type, field) == (bytes), #type "." #field " has moved")
#define VALUE(name, number)       _Static_assert((name) == (number), #name " has another value")

#if defined(__LP64__)
SIZE(DLTensor, 48); /* of DLPack 0.6 to 1.1 */
FIELD(DLTensor, data, 0);
FIELD(DLTensor, device, 8);
FIELD(DLTensor, ndim, 16);
FIELD(DLTensor, dtype, 20);
FIELD(DLTensor, shape, 24);
FIELD(DLTensor, strides, 32);
FIELD(DLTensor, byte_offset, 40);

SIZE(rssm_error, 552);
FIELD(rssm_error, struct_size, 0);
FIELD(rssm_error, status, 8);
FIELD(rssm_error, role, 12);
FIELD(rssm_error, dim, 16);
FIELD(rssm_error, cuda_error, 20);
FIELD(rssm_error, expected, 24);
FIELD(rssm_error, got, 32);
FIELD(rssm_error, message, 40);

SIZE(rssm_info, 56);
FIELD(rssm_info, struct_size, 0);
FIELD(rssm_info, name, 8);
FIELD(rssm_info, version, 16);
FIELD(rssm_info, git_revision, 24);
FIELD(rssm_info, families, 32);
FIELD(rssm_info, backends, 40);
FIELD(rssm_info, cuda_archs, 48);

SIZE(rssm_allocator, 48);
FIELD(rssm_allocator, struct_size, 0);
FIELD(rssm_allocator, user, 8);
FIELD(rssm_allocator, alloc, 16);
FIELD(rssm_allocator, free, 24);
FIELD(rssm_allocator, device_alloc, 32);
FIELD(rssm_allocator, device_free, 40);

SIZE(rssm_dims, 96);
FIELD(rssm_dims, struct_size, 0);
FIELD(rssm_dims, family, 8);
FIELD(rssm_dims, num_layers, 12);
FIELD(rssm_dims, linear_layers, 16);
FIELD(rssm_dims, num_linear_layers, 24);
FIELD(rssm_dims, H, 32);
FIELD(rssm_dims, HV, 36);
FIELD(rssm_dims, K, 40);
FIELD(rssm_dims, V, 44);
FIELD(rssm_dims, conv_kernel, 48);
FIELD(rssm_dims, has_lower_bound, 52);
FIELD(rssm_dims, lower_bound, 56);
FIELD(rssm_dims, no_qk_norm, 64);
FIELD(rssm_dims, allow_neg_eigval, 68);
FIELD(rssm_dims, has_time_step_limit, 72);
FIELD(rssm_dims, reserved_, 76);
FIELD(rssm_dims, time_step_limit_min, 80);
FIELD(rssm_dims, time_step_limit_max, 88);

SIZE(rssm_init_args, 152);
FIELD(rssm_init_args, struct_size, 0);
FIELD(rssm_init_args, config_json, 8);
FIELD(rssm_init_args, config_json_len, 16);
FIELD(rssm_init_args, config_path, 24);
FIELD(rssm_init_args, dims, 32);
FIELD(rssm_init_args, device_type, 40);
FIELD(rssm_init_args, device_id, 44);
FIELD(rssm_init_args, tp_size, 48);
FIELD(rssm_init_args, tp_rank, 52);
FIELD(rssm_init_args, layer_begin, 56);
FIELD(rssm_init_args, layer_end, 60);
FIELD(rssm_init_args, ring_length, 64);
FIELD(rssm_init_args, max_draft_tokens, 68);
FIELD(rssm_init_args, io_dtype, 72);
FIELD(rssm_init_args, state_dtype, 76);
FIELD(rssm_init_args, ring_dtype, 80);
FIELD(rssm_init_args, max_batch, 84);
FIELD(rssm_init_args, num_slots, 88);
FIELD(rssm_init_args, memory_budget_bytes, 96);
FIELD(rssm_init_args, has_pad_slot, 104);
FIELD(rssm_init_args, num_threads, 108);
FIELD(rssm_init_args, pad_slot, 112);
FIELD(rssm_init_args, flags, 120);
FIELD(rssm_init_args, cpu_level, 124);
FIELD(rssm_init_args, allocator, 128);
FIELD(rssm_init_args, log, 136);
FIELD(rssm_init_args, log_user, 144);

SIZE(rssm_description, 272);
FIELD(rssm_description, struct_size, 0);
FIELD(rssm_description, family, 8);
FIELD(rssm_description, gate_kind, 12);
FIELD(rssm_description, family_name, 16);
FIELD(rssm_description, model_type, 24);
FIELD(rssm_description, num_layers, 32);
FIELD(rssm_description, num_linear_layers, 36);
FIELD(rssm_description, linear_layers, 40);
FIELD(rssm_description, model_H, 48);
FIELD(rssm_description, model_HV, 52);
FIELD(rssm_description, H, 56);
FIELD(rssm_description, HV, 60);
FIELD(rssm_description, K, 64);
FIELD(rssm_description, V, 68);
FIELD(rssm_description, head_begin, 72);
FIELD(rssm_description, group_begin, 76);
FIELD(rssm_description, tp_size, 80);
FIELD(rssm_description, tp_rank, 84);
FIELD(rssm_description, conv_kernel, 88);
FIELD(rssm_description, conv_channels, 92);
FIELD(rssm_description, has_lower_bound, 96);
FIELD(rssm_description, qk_norm, 100);
FIELD(rssm_description, lower_bound, 104);
FIELD(rssm_description, scale, 112);
FIELD(rssm_description, norm_eps, 120);
FIELD(rssm_description, beta_scale, 128);
FIELD(rssm_description, time_step_limit_min, 136);
FIELD(rssm_description, time_step_limit_max, 144);
FIELD(rssm_description, ring_length, 152);
FIELD(rssm_description, ring_rows, 156);
FIELD(rssm_description, max_draft_tokens, 160);
FIELD(rssm_description, io_dtype, 164);
FIELD(rssm_description, state_dtype, 168);
FIELD(rssm_description, ring_dtype, 172);
FIELD(rssm_description, device_type, 176);
FIELD(rssm_description, device_id, 180);
FIELD(rssm_description, layout_version, 184);
FIELD(rssm_description, small_batch, 188);
FIELD(rssm_description, layout_hash, 192);
FIELD(rssm_description, layout_text, 200);
FIELD(rssm_description, ring_reason, 208);
FIELD(rssm_description, read, 216);
FIELD(rssm_description, assumed, 224);
FIELD(rssm_description, num_read, 232);
FIELD(rssm_description, num_assumed, 236);
FIELD(rssm_description, step_bytes, 240);
FIELD(rssm_description, step_bytes_read_write, 248);
FIELD(rssm_description, cpu_level, 256);
FIELD(rssm_description, num_threads, 264);
FIELD(rssm_description, reserved_, 268);

SIZE(rssm_tensor_info, 176);
FIELD(rssm_tensor_info, struct_size, 0);
FIELD(rssm_tensor_info, role, 8);
FIELD(rssm_tensor_info, dtype_code, 12);
FIELD(rssm_tensor_info, dtype_bits, 16);
FIELD(rssm_tensor_info, ndim, 20);
FIELD(rssm_tensor_info, name, 24);
FIELD(rssm_tensor_info, dtype_name, 32);
FIELD(rssm_tensor_info, symbolic_shape, 40);
FIELD(rssm_tensor_info, shape, 48);
FIELD(rssm_tensor_info, strides, 96);
FIELD(rssm_tensor_info, bytes_per_slot, 144);
FIELD(rssm_tensor_info, offset, 152);
FIELD(rssm_tensor_info, layer_stride, 160);
FIELD(rssm_tensor_info, alignment, 168);
FIELD(rssm_tensor_info, per_layer, 172);

SIZE(rssm_layout, 120);
FIELD(rssm_layout, struct_size, 0);
FIELD(rssm_layout, layout_version, 8);
FIELD(rssm_layout, num_tensors, 12);
FIELD(rssm_layout, tensors, 16);
FIELD(rssm_layout, num_slots, 24);
FIELD(rssm_layout, num_layers, 32);
FIELD(rssm_layout, reserved_, 36);
FIELD(rssm_layout, slot_state_bytes, 40);
FIELD(rssm_layout, slot_ring_bytes, 48);
FIELD(rssm_layout, slot_conv_bytes, 56);
FIELD(rssm_layout, slot_total_bytes, 64);
FIELD(rssm_layout, slot_cursor_bytes, 72);
FIELD(rssm_layout, layer_bytes, 80);
FIELD(rssm_layout, slab_bytes, 88);
FIELD(rssm_layout, workspace_bytes, 96);
FIELD(rssm_layout, pool_bytes, 104);
FIELD(rssm_layout, layout_hash, 112);

SIZE(rssm_pool_args, 48);
FIELD(rssm_pool_args, struct_size, 0);
FIELD(rssm_pool_args, slab, 8);
FIELD(rssm_pool_args, slab_bytes, 16);
FIELD(rssm_pool_args, tensors, 24);
FIELD(rssm_pool_args, num_roles, 32);
FIELD(rssm_pool_args, flags, 36);
FIELD(rssm_pool_args, stream, 40);

SIZE(rssm_reset_args, 32);
FIELD(rssm_reset_args, struct_size, 0);
FIELD(rssm_reset_args, slots, 8);
FIELD(rssm_reset_args, stream, 16);
FIELD(rssm_reset_args, flags, 24);
FIELD(rssm_reset_args, reserved_, 28);

SIZE(rssm_step_begin_args, 48);
FIELD(rssm_step_begin_args, struct_size, 0);
FIELD(rssm_step_begin_args, slots, 8);
FIELD(rssm_step_begin_args, force_flush, 16);
FIELD(rssm_step_begin_args, rows_out, 24);
FIELD(rssm_step_begin_args, stream, 32);
FIELD(rssm_step_begin_args, flags, 40);
FIELD(rssm_step_begin_args, reserved_, 44);

SIZE(rssm_decode_args, 64);
FIELD(rssm_decode_args, struct_size, 0);
FIELD(rssm_decode_args, tensors, 8);
FIELD(rssm_decode_args, num_tensors, 16);
FIELD(rssm_decode_args, layer, 20);
FIELD(rssm_decode_args, stream, 24);
FIELD(rssm_decode_args, flags, 32);
FIELD(rssm_decode_args, has_scale, 36);
FIELD(rssm_decode_args, has_lower_bound, 40);
FIELD(rssm_decode_args, reserved_, 44);
FIELD(rssm_decode_args, scale, 48);
FIELD(rssm_decode_args, lower_bound, 56);

SIZE(rssm_api, 136);
FIELD(rssm_api, struct_size, 0);
FIELD(rssm_api, abi_major, 8);
FIELD(rssm_api, abi_minor, 12);
FIELD(rssm_api, plugin_info, 16);
FIELD(rssm_api, init, 24);
FIELD(rssm_api, describe, 32);
FIELD(rssm_api, pool_layout, 40);
FIELD(rssm_api, prepare, 48);
FIELD(rssm_api, pool_create, 56);
FIELD(rssm_api, pool_tensors, 64);
FIELD(rssm_api, reset, 72);
FIELD(rssm_api, step_begin, 80);
FIELD(rssm_api, validate, 88);
FIELD(rssm_api, decode, 96);
FIELD(rssm_api, get_extension, 104);
FIELD(rssm_api, teardown, 112);
FIELD(rssm_api, status_name, 120);
FIELD(rssm_api, role_name, 128);

SIZE(rssm_fault_api, 24);
FIELD(rssm_fault_api, struct_size, 0);
FIELD(rssm_fault_api, read, 8);
FIELD(rssm_fault_api, clear, 16);

SIZE(rssm_state_args, 72);
FIELD(rssm_state_args, struct_size, 0);
FIELD(rssm_state_args, slots, 8);
FIELD(rssm_state_args, states, 16);
FIELD(rssm_state_args, conv, 24);
FIELD(rssm_state_args, A_log, 32);
FIELD(rssm_state_args, A, 40);
FIELD(rssm_state_args, num_layers, 48);
FIELD(rssm_state_args, order, 52);
FIELD(rssm_state_args, flags, 56);
FIELD(rssm_state_args, reserved_, 60);
FIELD(rssm_state_args, stream, 64);

SIZE(rssm_flush_args, 48);
FIELD(rssm_flush_args, struct_size, 0);
FIELD(rssm_flush_args, slots, 8);
FIELD(rssm_flush_args, A_log, 16);
FIELD(rssm_flush_args, A, 24);
FIELD(rssm_flush_args, num_layers, 32);
FIELD(rssm_flush_args, flags, 36);
FIELD(rssm_flush_args, stream, 40);

SIZE(rssm_copy_args, 40);
FIELD(rssm_copy_args, struct_size, 0);
FIELD(rssm_copy_args, src, 8);
FIELD(rssm_copy_args, dst, 16);
FIELD(rssm_copy_args, flags, 24);
FIELD(rssm_copy_args, reserved_, 28);
FIELD(rssm_copy_args, stream, 32);

SIZE(rssm_slots_api, 88);
FIELD(rssm_slots_api, struct_size, 0);
FIELD(rssm_slots_api, import_state, 8);
FIELD(rssm_slots_api, export_state, 16);
FIELD(rssm_slots_api, copy, 24);
FIELD(rssm_slots_api, flush, 32);
FIELD(rssm_slots_api, saved_bytes, 40);
FIELD(rssm_slots_api, save, 48);
FIELD(rssm_slots_api, load, 56);
FIELD(rssm_slots_api, acquire, 64);
FIELD(rssm_slots_api, release, 72);
FIELD(rssm_slots_api, check, 80);

SIZE(rssm_verify_begin_args, 48);
FIELD(rssm_verify_begin_args, struct_size, 0);
FIELD(rssm_verify_begin_args, slots, 8);
FIELD(rssm_verify_begin_args, cu_seqlens, 16);
FIELD(rssm_verify_begin_args, rows_out, 24);
FIELD(rssm_verify_begin_args, stream, 32);
FIELD(rssm_verify_begin_args, max_T, 40);
FIELD(rssm_verify_begin_args, flags, 44);

SIZE(rssm_commit_args, 40);
FIELD(rssm_commit_args, struct_size, 0);
FIELD(rssm_commit_args, rows, 8);
FIELD(rssm_commit_args, accepted, 16);
FIELD(rssm_commit_args, stream, 24);
FIELD(rssm_commit_args, flags, 32);
FIELD(rssm_commit_args, reserved_, 36);

SIZE(rssm_verify_api, 40);
FIELD(rssm_verify_api, struct_size, 0);
FIELD(rssm_verify_api, verify_begin, 8);
FIELD(rssm_verify_api, validate, 16);
FIELD(rssm_verify_api, verify, 24);
FIELD(rssm_verify_api, commit, 32);

SIZE(rssm_conv_api, 32);
FIELD(rssm_conv_api, struct_size, 0);
FIELD(rssm_conv_api, validate, 8);
FIELD(rssm_conv_api, conv, 16);
FIELD(rssm_conv_api, conv_verify, 24);
#endif

/* rssm_base.h */
VALUE(RSSM_OK, 0);
VALUE(RSSM_ERR_ARGUMENT, 1);
VALUE(RSSM_ERR_STRUCT_SIZE, 2);
VALUE(RSSM_ERR_UNSUPPORTED, 3);
VALUE(RSSM_ERR_OUT_OF_MEMORY, 4);
VALUE(RSSM_ERR_OVERFLOW, 5);
VALUE(RSSM_ERR_IO, 6);
VALUE(RSSM_ERR_JSON, 7);
VALUE(RSSM_ERR_CONFIG, 8);
VALUE(RSSM_ERR_MODEL, 9);
VALUE(RSSM_ERR_TP, 10);
VALUE(RSSM_ERR_STATE, 11);
VALUE(RSSM_ERR_ROLE, 12);
VALUE(RSSM_ERR_MISSING, 13);
VALUE(RSSM_ERR_SHAPE, 14);
VALUE(RSSM_ERR_DTYPE, 15);
VALUE(RSSM_ERR_DEVICE, 16);
VALUE(RSSM_ERR_STRIDE, 17);
VALUE(RSSM_ERR_ALIGNMENT, 18);
VALUE(RSSM_ERR_OVERLAP, 19);
VALUE(RSSM_ERR_VALUE, 20);
VALUE(RSSM_ERR_STREAM_DATA, 21);
VALUE(RSSM_ERR_CUDA, 22);
VALUE(RSSM_ERR_DEVICE_LOST, 23);
VALUE(RSSM_ERR_INTERNAL, 24);
VALUE(RSSM_ERR_NO_SLOT, 25);
VALUE(RSSM_ERR_HANDLE, 26);
VALUE(RSSM_FAMILY_NONE, 0);
VALUE(RSSM_FAMILY_KDA, 1);
VALUE(RSSM_FAMILY_GDN, 2);
VALUE(RSSM_FAMILY_MAMBA2, 3);
VALUE(RSSM_DTYPE_DEFAULT, 0);
VALUE(RSSM_DTYPE_FLOAT32, 1);
VALUE(RSSM_DTYPE_BFLOAT16, 2);
VALUE(RSSM_DTYPE_FLOAT16, 3);
VALUE(RSSM_T_NONE, 0);
VALUE(RSSM_T_MIXED_QKV, 1);
VALUE(RSSM_T_Q, 2);
VALUE(RSSM_T_K, 3);
VALUE(RSSM_T_V, 4);
VALUE(RSSM_T_MIXED_XBC, 5);
VALUE(RSSM_T_X, 6);
VALUE(RSSM_T_BM, 7);
VALUE(RSSM_T_CM, 8);
VALUE(RSSM_T_A, 9);
VALUE(RSSM_T_B, 10);
VALUE(RSSM_T_DT, 11);
VALUE(RSSM_T_Z, 12);
VALUE(RSSM_T_A_LOG, 13);
VALUE(RSSM_T_A_DECAY, 14);
VALUE(RSSM_T_DT_BIAS, 15);
VALUE(RSSM_T_D, 16);
VALUE(RSSM_T_OUT, 17);
VALUE(RSSM_T_STATE, 18);
VALUE(RSSM_T_D_CACHE, 19);
VALUE(RSSM_T_K_CACHE, 20);
VALUE(RSSM_T_G_CACHE, 21);
VALUE(RSSM_T_X_CACHE, 22);
VALUE(RSSM_T_DT_CACHE, 23);
VALUE(RSSM_T_B_CACHE, 24);
VALUE(RSSM_T_CONV, 25);
VALUE(RSSM_T_CURSOR, 26);
VALUE(RSSM_T_ROWS, 27);
VALUE(RSSM_T_WRITE_POS, 28);
VALUE(RSSM_T_FORCE_FLUSH, 29);
VALUE(RSSM_T_STATE_INDICES, 30);
VALUE(RSSM_T_SLOTS, 31);
VALUE(RSSM_T_CU_SEQLENS, 32);
VALUE(RSSM_T_ACCEPTED, 33);
VALUE(RSSM_T_CONV_IN, 34);
VALUE(RSSM_T_CONV_WEIGHT, 35);
VALUE(RSSM_T_CONV_BIAS, 36);
VALUE(RSSM_T_CONV_OUT, 37);
VALUE(RSSM_T_SRC_SLOTS, 38);
VALUE(RSSM_T_DST_SLOTS, 39);
VALUE(RSSM_T_COUNT, 40);

/* rssm_model.h */
VALUE(RSSM_LOG_DEBUG, 0);
VALUE(RSSM_LOG_INFO, 1);
VALUE(RSSM_LOG_WARN, 2);
VALUE(RSSM_LOG_ERROR, 3);
VALUE(RSSM_INIT_CONV_STATE, 1);
VALUE(RSSM_INIT_SPREAD_FLUSH, 2);
VALUE(RSSM_INIT_CPU_REFERENCE, 4);
VALUE(RSSM_INIT_NO_SMALL_FLUSH, 16);
VALUE(RSSM_INIT_NO_EARLY_START, 32);
VALUE(RSSM_CPU_BEST, 0);
VALUE(RSSM_CPU_SCALAR, 1);
VALUE(RSSM_CPU_AVX2, 2);
VALUE(RSSM_CPU_AVX512, 3);
VALUE(RSSM_CPU_NEON, 4);
VALUE(RSSM_GATE_SOFTPLUS, 1);
VALUE(RSSM_GATE_BOUNDED, 2);
VALUE(RSSM_GATE_MAMBA2, 3);

/* rssm_pool.h */
VALUE(RSSM_MAX_DIMS, 6);
VALUE(RSSM_POOL_ALIGNMENT, 256);

/* rssm_step.h */
VALUE(RSSM_ROW_WIDTH, 8);
VALUE(RSSM_CURSOR_WIDTH, 4);
VALUE(RSSM_SKIP_VALIDATE, 1);
VALUE(RSSM_CHECK_DEEP, 2);

/* rssm_fault.h */
VALUE(RSSM_FAULT_CURSOR, 1);
VALUE(RSSM_FAULT_ACCEPTED, 2);
VALUE(RSSM_FAULT_OUTPUT, 4);
VALUE(RSSM_FAULT_STATE, 8);
VALUE(RSSM_FAULT_RING, 16);
VALUE(RSSM_FAULT_SLOTS, 32);
VALUE(RSSM_FAULT_SEQLENS, 64);

/* rssm_slots.h */
VALUE(RSSM_STATE_VK, 0);
VALUE(RSSM_STATE_KV, 1);
VALUE(sizeof(rssm_status), 4);

int main(void)
{
    return 0;
}
