"""DLPack capsules in both directions, with ctypes alone."""

from __future__ import annotations

import ctypes as C
from typing import Any, Dict, Sequence, Tuple

from .structs import DLTensor

LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"
READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


class Managed(C.Structure):
    """DLManagedTensor."""

    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", C.c_void_p), ("deleter", C.c_void_p)]


class ManagedVersioned(C.Structure):
    """DLManagedTensorVersioned, DLPack 1.0."""

    _fields_ = [("major", C.c_uint32), ("minor", C.c_uint32), ("manager_ctx", C.c_void_p), ("deleter", C.c_void_p),
                ("flags", C.c_uint64), ("dl_tensor", DLTensor)]


def _prototype(name: str, result: Any, *args: Any) -> Any:
    """Calls with the GIL held and passes exceptions on."""
    return C.PYFUNCTYPE(result, *args)((name, C.pythonapi))


_is_valid = _prototype("PyCapsule_IsValid", C.c_int, C.py_object, C.c_char_p)
_pointer = _prototype("PyCapsule_GetPointer", C.c_void_p, C.py_object, C.c_char_p)
_new = _prototype("PyCapsule_New", C.py_object, C.c_void_p, C.c_char_p, C.c_void_p)
# The same for a capsule that is being destroyed and must not be referenced any more.
_dying_is_valid = _prototype("PyCapsule_IsValid", C.c_int, C.c_void_p, C.c_char_p)
_dying_pointer = _prototype("PyCapsule_GetPointer", C.c_void_p, C.c_void_p, C.c_char_p)


def read_capsule(capsule: Any) -> Tuple[DLTensor, bool]:
    """The capsule's DLTensor, and whether it is read-only. The capsule is not consumed: it frees its tensor when it goes, so
    keep it for as long as the DLTensor is used."""
    if _is_valid(capsule, VERSIONED):
        managed = ManagedVersioned.from_address(_pointer(capsule, VERSIONED))
        if managed.major != 1:
            raise BufferError(f"DLPack {managed.major}.{managed.minor}")
        return managed.dl_tensor, bool(managed.flags & READ_ONLY)
    if _is_valid(capsule, LEGACY):
        return Managed.from_address(_pointer(capsule, LEGACY)).dl_tensor, False
    raise BufferError("no DLPack capsule, or one that was used before")


# Tensors that we gave out, by address: (struct, its arrays, owner), until their consumer calls the deleter.
_exported: Dict[int, Any] = {}


def _forget(address: int, exported: Dict[int, Any] = _exported) -> None:
    exported.pop(address, None)


def _drop(capsule: int, is_valid: Any = _dying_is_valid, pointer: Any = _dying_pointer,
             exported: Dict[int, Any] = _exported, names: Tuple[bytes, bytes] = (LEGACY, VERSIONED)) -> None:
    """A capsule that nobody consumed: the consumer would have renamed it."""
    for name in names:
        if is_valid(capsule, name):
            exported.pop(pointer(capsule, name), None)


_delete = C.CFUNCTYPE(None, C.c_void_p)(_forget)  # takes the GIL: a consumer may call it from any thread
_destroy = C.PYFUNCTYPE(None, C.c_void_p)(_drop)

# Arrays may outlive this module at the interpreter's end; so must their deleter.
for _callback in (_delete, _destroy):
    C.pythonapi.Py_IncRef(C.py_object(_callback))


def export(pointer: int, shape: Sequence[int], strides: Sequence[int], dtype: Tuple[int, int], device: Tuple[int, int],
           owner: Any, versioned: bool, readonly: bool) -> Any:
    """A capsule over memory that `owner` keeps. Only a versioned one can say read-only."""
    if readonly and not versioned:
        raise BufferError("read-only memory, for a consumer of DLPack before 1.0")
    managed = ManagedVersioned(major=1, flags=READ_ONLY if readonly else 0) if versioned else Managed()
    sizes, steps = (C.c_int64 * len(shape))(*shape), (C.c_int64 * len(shape))(*strides)
    tensor = managed.dl_tensor
    tensor.data, tensor.ndim, tensor.shape, tensor.strides = pointer, len(shape), sizes, steps
    tensor.device.device_type, tensor.device.device_id = device
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = *dtype, 1
    managed.deleter = C.cast(_delete, C.c_void_p)
    address = C.addressof(managed)
    _exported[address] = (managed, sizes, steps, owner)
    return _new(address, VERSIONED if versioned else LEGACY, C.cast(_destroy, C.c_void_p))
