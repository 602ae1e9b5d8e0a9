"""The structs and constants of abi/*.h, written down once. tests/python/test_structs.py compares sizes and offsets of
every field and every number here with what a C compiler says of the headers."""

from __future__ import annotations

import ctypes as C
from enum import IntEnum, IntFlag
from typing import Any, List, Tuple

ABI_MAJOR = 1
ROW_WIDTH = 8
CURSOR_WIDTH = 4
POOL_ALIGNMENT = 256

EXT_FAULT = b"replayssm.fault/1"
EXT_SLOTS = b"replayssm.slots/1"
EXT_VERIFY = b"replayssm.verify/1"
EXT_CONV = b"replayssm.conv/1"


class Status(IntEnum):
    """RSSM_OK and RSSM_ERR_*."""

    OK = 0
    ARGUMENT = 1
    STRUCT_SIZE = 2
    UNSUPPORTED = 3
    OUT_OF_MEMORY = 4
    OVERFLOW = 5
    IO = 6
    JSON = 7
    CONFIG = 8
    MODEL = 9
    TP = 10
    STATE = 11
    ROLE = 12
    MISSING = 13
    SHAPE = 14
    DTYPE = 15
    DEVICE = 16
    STRIDE = 17
    ALIGNMENT = 18
    OVERLAP = 19
    VALUE = 20
    STREAM_DATA = 21
    CUDA = 22
    DEVICE_LOST = 23
    INTERNAL = 24
    NO_SLOT = 25
    HANDLE = 26


class Family(IntEnum):
    """RSSM_FAMILY_*."""

    KDA = 1
    GDN = 2
    MAMBA2 = 3


class DType(IntEnum):
    """RSSM_DTYPE_*: element types of state, io and ring."""

    DEFAULT = 0
    FLOAT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3


class InitFlags(IntFlag):
    """RSSM_INIT_*."""

    CONV_STATE = 1
    SPREAD_FLUSH = 2
    CPU_REFERENCE = 4
    NO_SMALL_FLUSH = 16
    NO_EARLY_START = 32


class StepFlags(IntFlag):
    """RSSM_SKIP_VALIDATE and RSSM_CHECK_DEEP."""

    SKIP_VALIDATE = 1
    CHECK_DEEP = 2


class Fault(IntFlag):
    """RSSM_FAULT_*: bits of the sticky fault word."""

    CURSOR = 1
    ACCEPTED = 2
    OUTPUT = 4
    STATE = 8
    RING = 16
    SLOTS = 32
    SEQLENS = 64


class StateOrder(IntEnum):
    """RSSM_STATE_*: [.., V, K] as the pool, or [.., K, V]."""

    VK = 0
    KV = 1


# RSSM_T_*, by the names that messages and the pool's layout use; role 7 is Mamba-2's input matrix B, 10 the beta input b.
ROLES = {
    "mixed_qkv": 1, "q": 2, "k": 3, "v": 4, "mixed_xbc": 5, "x": 6, "B": 7, "C": 8, "a": 9, "b": 10, "dt": 11, "z": 12,
    "A_log": 13, "A": 14, "dt_bias": 15, "D": 16, "out": 17, "state": 18, "d_cache": 19, "k_cache": 20, "g_cache": 21,
    "x_cache": 22, "dt_cache": 23, "B_cache": 24, "conv": 25, "cursor": 26, "rows": 27, "write_pos": 28,
    "force_flush": 29, "state_indices": 30, "slots": 31, "cu_seqlens": 32, "accepted": 33, "conv_in": 34,
    "conv_weight": 35, "conv_bias": 36, "conv_out": 37, "src_slots": 38, "dst_slots": 39,
}
ROLE_COUNT = 40
ROLE_NAMES = {number: name for name, number in ROLES.items()}

# What some call writes: these must not be read-only.
WRITTEN = frozenset(("out", "state", "d_cache", "k_cache", "g_cache", "x_cache", "dt_cache", "B_cache", "conv", "cursor",
                     "conv_out"))

I32, I64, U32, U64, F64, TEXT, PTR = C.c_int32, C.c_int64, C.c_uint32, C.c_uint64, C.c_double, C.c_char_p, C.c_void_p


def fields(*groups: Tuple[Any, str]) -> List[Tuple[str, Any]]:
    """Fields of a struct from (type, "name name ...") pairs."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class DLDevice(C.Structure):
    _fields_ = fields((I32, "device_type device_id"))


class DLDataType(C.Structure):
    _fields_ = [("code", C.c_uint8), ("bits", C.c_uint8), ("lanes", C.c_uint16)]


class DLTensor(C.Structure):
    _fields_ = [("data", PTR), ("device", DLDevice), ("ndim", I32), ("dtype", DLDataType), ("shape", C.POINTER(I64)),
                ("strides", C.POINTER(I64)), ("byte_offset", U64)]


TENSOR = C.POINTER(DLTensor)
TENSORS = C.POINTER(TENSOR)


def fits(kind: Any, name: str, value: int) -> int:
    """value, when it is an integer of that type: ctypes itself would cut it."""
    if kind(value).value != value:
        raise OverflowError(f"{name} = {value} does not fit in {8 * C.sizeof(kind)} bits")
    return value


class Sized(C.Structure):
    """A struct of the ABI: zeroed, and knows its size."""

    def __init__(self, **values: Any) -> None:
        kinds = {field[0]: field[1] for field in self._fields_}
        for name, value in values.items():
            if kinds[name] in (I32, I64, U32, U64):
                fits(kinds[name], name, value)
        super().__init__(struct_size=C.sizeof(self), **values)


class Error(Sized):
    _fields_ = fields((U64, "struct_size"), (I32, "status role dim cuda_error"), (I64, "expected got"),
                      (C.c_char * 512, "message"))


class Info(Sized):
    _fields_ = fields((U64, "struct_size"), (TEXT, "name version git_revision families backends cuda_archs"))


class Dims(Sized):
    _fields_ = fields((U64, "struct_size"), (I32, "family num_layers"), (C.POINTER(I32), "linear_layers"),
                      (I64, "num_linear_layers"), (I32, "H HV K V conv_kernel has_lower_bound"), (F64, "lower_bound"),
                      (I32, "no_qk_norm allow_neg_eigval has_time_step_limit reserved_"),
                      (F64, "time_step_limit_min time_step_limit_max"))


LOG = C.CFUNCTYPE(None, PTR, I32, TEXT)


class InitArgs(Sized):
    _fields_ = fields((U64, "struct_size"), (TEXT, "config_json"), (U64, "config_json_len"), (TEXT, "config_path"),
                      (C.POINTER(Dims), "dims"),
                      (I32, "device_type device_id tp_size tp_rank layer_begin layer_end ring_length max_draft_tokens "
                            "io_dtype state_dtype ring_dtype max_batch"),
                      (I64, "num_slots memory_budget_bytes"), (I32, "has_pad_slot num_threads"), (I64, "pad_slot"),
                      (U32, "flags"), (I32, "cpu_level"), (PTR, "allocator"), (LOG, "log"), (PTR, "log_user"))


class Description(Sized):
    _fields_ = fields((U64, "struct_size"), (I32, "family gate_kind"), (TEXT, "family_name model_type"),
                      (I32, "num_layers num_linear_layers"), (C.POINTER(I32), "linear_layers"),
                      (I32, "model_H model_HV H HV K V head_begin group_begin tp_size tp_rank conv_kernel conv_channels "
                            "has_lower_bound qk_norm"),
                      (F64, "lower_bound scale norm_eps beta_scale time_step_limit_min time_step_limit_max"),
                      (I32, "ring_length ring_rows max_draft_tokens io_dtype state_dtype ring_dtype device_type device_id "
                            "layout_version small_batch"),
                      (U64, "layout_hash"), (TEXT, "layout_text ring_reason"), (C.POINTER(TEXT), "read assumed"),
                      (I32, "num_read num_assumed"), (I64, "step_bytes step_bytes_read_write"), (TEXT, "cpu_level"),
                      (I32, "num_threads reserved_"))


class TensorInfo(Sized):
    _fields_ = fields((U64, "struct_size"), (I32, "role dtype_code dtype_bits ndim"),
                      (TEXT, "name dtype_name symbolic_shape"), (I64 * 6, "shape strides"),
                      (I64, "bytes_per_slot offset layer_stride"), (I32, "alignment per_layer"))


class Layout(Sized):
    _fields_ = fields((U64, "struct_size"), (I32, "layout_version num_tensors"), (C.POINTER(TensorInfo), "tensors"),
                      (I64, "num_slots"), (I32, "num_layers reserved_"),
                      (I64, "slot_state_bytes slot_ring_bytes slot_conv_bytes slot_total_bytes slot_cursor_bytes "
                            "layer_bytes slab_bytes workspace_bytes pool_bytes"), (U64, "layout_hash"))


class PoolArgs(Sized):
    _fields_ = fields((U64, "struct_size"), (PTR, "slab"), (U64, "slab_bytes"), (TENSORS, "tensors"),
                      (U32, "num_roles flags"), (PTR, "stream"))


class ResetArgs(Sized):
    _fields_ = fields((U64, "struct_size"), (TENSOR, "slots"), (PTR, "stream"), (U32, "flags reserved_"))


class StepBeginArgs(Sized):
    _fields_ = fields((U64, "struct_size"), (TENSOR, "slots force_flush rows_out"), (PTR, "stream"),
                      (U32, "flags reserved_"))


class DecodeArgs(Sized):
    _fields_ = fields((U64, "struct_size"), (TENSORS, "tensors"), (U32, "num_tensors"), (I32, "layer"), (PTR, "stream"),
                      (U32, "flags"), (I32, "has_scale has_lower_bound reserved_"), (F64, "scale lower_bound"))


class StateArgs(Sized):
    _fields_ = fields((U64, "struct_size"), (TENSOR, "slots"), (TENSORS, "states conv A_log A"), (U32, "num_layers"),
                      (I32, "order"), (U32, "flags reserved_"), (PTR, "stream"))


class FlushArgs(Sized):
    _fields_ = fields((U64, "struct_size"), (TENSOR, "slots"), (TENSORS, "A_log A"), (U32, "num_layers flags"),
                      (PTR, "stream"))


class CopyArgs(Sized):
    _fields_ = fields((U64, "struct_size"), (TENSOR, "src dst"), (U32, "flags reserved_"), (PTR, "stream"))


class VerifyBeginArgs(Sized):
    _fields_ = fields((U64, "struct_size"), (TENSOR, "slots cu_seqlens rows_out"), (PTR, "stream"), (I32, "max_T"),
                      (U32, "flags"))


class CommitArgs(Sized):
    _fields_ = fields((U64, "struct_size"), (TENSOR, "rows accepted"), (PTR, "stream"), (U32, "flags reserved_"))


def call(*args: Any) -> Any:
    """A function of a table: its arguments, then the error."""
    return C.CFUNCTYPE(I32, *args, C.POINTER(Error))


def on(*args: Any) -> Any:
    """A function on an instance."""
    return call(PTR, *args)


def ref(kind: Any) -> Any:
    return C.POINTER(kind)


class Api(C.Structure):
    _fields_ = fields((U64, "struct_size"), (U32, "abi_major abi_minor"), (call(ref(Info)), "plugin_info"),
                      (call(ref(InitArgs), ref(PTR)), "init"), (on(ref(Description)), "describe"),
                      (on(ref(Layout)), "pool_layout"), (on(), "prepare"), (on(ref(PoolArgs)), "pool_create"),
                      (on(I32, TENSORS, U32), "pool_tensors"), (on(ref(ResetArgs)), "reset"),
                      (on(ref(StepBeginArgs)), "step_begin"), (on(ref(DecodeArgs)), "validate decode"),
                      (C.CFUNCTYPE(PTR, TEXT), "get_extension"), (call(ref(PTR)), "teardown"),
                      (C.CFUNCTYPE(TEXT, I32), "status_name role_name"))


class FaultApi(C.Structure):
    _fields_ = fields((U64, "struct_size"), (on(PTR, ref(U32)), "read"), (on(PTR), "clear"))


class SlotsApi(C.Structure):
    _fields_ = fields((U64, "struct_size"), (on(ref(StateArgs)), "import_state export_state"), (on(ref(CopyArgs)), "copy"),
                      (on(ref(FlushArgs)), "flush"), (on(ref(U64)), "saved_bytes"),
                      (on(I64, PTR, U64, ref(U64), PTR), "save"), (on(I64, PTR, U64, PTR), "load"),
                      (on(ref(U64), ref(I64)), "acquire"), (on(U64), "release"), (on(U64, ref(I64)), "check"))


class VerifyApi(C.Structure):
    _fields_ = fields((U64, "struct_size"), (on(ref(VerifyBeginArgs)), "verify_begin"),
                      (on(ref(DecodeArgs)), "validate verify"), (on(ref(CommitArgs)), "commit"))


class ConvApi(C.Structure):
    _fields_ = fields((U64, "struct_size"), (on(ref(DecodeArgs)), "validate conv conv_verify"))


# C name -> struct, for the test that compares them.
C_STRUCTS = {
    "DLDevice": DLDevice, "DLDataType": DLDataType, "DLTensor": DLTensor, "rssm_error": Error, "rssm_info": Info,
    "rssm_dims": Dims, "rssm_init_args": InitArgs, "rssm_description": Description, "rssm_tensor_info": TensorInfo,
    "rssm_layout": Layout, "rssm_pool_args": PoolArgs, "rssm_reset_args": ResetArgs,
    "rssm_step_begin_args": StepBeginArgs, "rssm_decode_args": DecodeArgs, "rssm_state_args": StateArgs,
    "rssm_flush_args": FlushArgs, "rssm_copy_args": CopyArgs, "rssm_verify_begin_args": VerifyBeginArgs,
    "rssm_commit_args": CommitArgs, "rssm_api": Api, "rssm_fault_api": FaultApi, "rssm_slots_api": SlotsApi,
    "rssm_verify_api": VerifyApi, "rssm_conv_api": ConvApi,
}
