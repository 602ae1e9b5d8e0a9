"""Tensors of any framework as the plugin sees them: a DLTensor over the owner's memory, never a copy."""

from __future__ import annotations

import ctypes as C
import sys
from typing import Any, Optional, Sequence, Tuple

from .dlpack import export, read_capsule
from .errors import ReplayError
from .structs import DLTensor, Status

CPU, CUDA = 1, 2
DEVICE_NAMES = {CPU: "cpu", CUDA: "cuda"}

# DLDataTypeCode and bits by name.
DTYPES = {
    "int32": (0, 32), "int64": (0, 64), "uint8": (1, 8), "float16": (2, 16), "float32": (2, 32), "float64": (2, 64),
    "bfloat16": (4, 16),
}
DTYPE_NAMES = {pair: name for name, pair in DTYPES.items()}
INTERFACE_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # kinds of __array_interface__'s typestr


class Tensor:
    """Memory with a shape: what a call takes when no framework has a type for it, and what pool_tensors gives.

    Tensor(array.ctypes.data, array.shape, "bfloat16", owner=array) passes a NumPy uint16 array as bfloat16, which
    view(array, "bfloat16") does in short. strides count elements; None = compact. Speaks DLPack itself, so that
    torch.from_dlpack(t) is a view of the same memory; t.numpy() is one for NumPy. Keeps its owner alive.
    """

    def __init__(self, pointer: int, shape: Sequence[int], dtype: str, strides: Optional[Sequence[int]] = None,
                 device: Tuple[int, int] = (CPU, 0), owner: Any = None, readonly: bool = False) -> None:
        if dtype not in DTYPES:
            raise ReplayError(Status.DTYPE, f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
        if strides is not None and len(strides) != len(shape):
            raise ReplayError(Status.STRIDE, f"{len(strides)} strides for {len(shape)} dimensions")
        self.pointer, self.shape, self.dtype, self.device = int(pointer or 0), tuple(map(int, shape)), dtype, device
        self.strides = compact_strides(self.shape) if strides is None else tuple(map(int, strides))
        self.owner, self.readonly = owner, readonly

    def __repr__(self) -> str:
        device = f"{DEVICE_NAMES.get(self.device[0], self.device[0])}:{self.device[1]}"
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, device={device})"

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        """The caller orders streams: work of the plugin runs on the stream that was given to it."""
        if copy or (dl_device is not None and tuple(dl_device) != tuple(self.device)):
            raise BufferError("a Tensor of the plugin is a view: no copies, no other device")
        versioned = max_version is not None and max_version[0] >= 1
        return export(self.pointer, self.shape, self.strides, DTYPES[self.dtype], self.device, self, versioned,
                      self.readonly)

    def numpy(self) -> Any:
        """A NumPy array over the same memory, writable unless readonly; bfloat16 comes as uint16. (numpy.from_dlpack makes
        read-only arrays in many versions.)"""
        import numpy
        if self.device[0] != CPU:
            raise ReplayError(Status.DEVICE, f"{self!r} is not in host memory", expected=CPU, got=self.device[0])
        return numpy.asarray(ArrayInterface(self))

    def dltensor(self) -> DLTensor:
        return make_dltensor(self.pointer, self.shape, self.strides, DTYPES[self.dtype], self.device)


class ArrayInterface:
    """A Tensor in NumPy's terms; the array keeps this, and this the Tensor."""

    def __init__(self, tensor: Tensor) -> None:
        code, bits = DTYPES[tensor.dtype]
        letter = {0: "i", 1: "u", 2: "f", 4: "u"}[code]
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3, "shape": tensor.shape, "typestr": f"{'<' if sys.byteorder == 'little' else '>'}{letter}{bits // 8}",
            "data": (tensor.pointer, tensor.readonly), "strides": tuple(bits // 8 * step for step in tensor.strides)}


def compact_strides(shape: Sequence[int]) -> Tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def make_dltensor(pointer: int, shape: Sequence[int], strides: Sequence[int], dtype: Tuple[int, int],
                  device: Tuple[int, int]) -> DLTensor:
    """ctypes keeps the two arrays alive with the struct."""
    made = DLTensor(data=pointer, ndim=len(shape), shape=(C.c_int64 * len(shape))(*shape),
                    strides=(C.c_int64 * len(shape))(*strides))
    made.device.device_type, made.device.device_id = device
    made.dtype.code, made.dtype.bits, made.dtype.lanes = *dtype, 1
    return made


def view(array: Any, dtype: str) -> Tensor:
    """The same elements under another dtype of the same width: view(uint16_array, "bfloat16")."""
    borrowed = Borrowed(array, "tensor", written=False, stream=None)
    t = borrowed.dltensor
    if dtype not in DTYPES or DTYPES[dtype][1] != t.dtype.bits:
        raise ReplayError(Status.DTYPE, f"a tensor of {t.dtype.bits}-bit elements is no {dtype}", got=t.dtype.bits)
    shape = t.shape[:t.ndim]
    strides = t.strides[:t.ndim] if t.strides else None
    return Tensor((t.data or 0) + t.byte_offset, shape, dtype, strides, (t.device.device_type, t.device.device_id),
                  (array, borrowed), borrowed.readonly)


class Borrowed:
    """A DLTensor over an object's memory, for as long as this lives."""

    __slots__ = ("dltensor", "readonly", "owner")

    def __init__(self, source: Any, role: str, written: bool, stream: Optional[int]) -> None:
        self.owner: Any = source
        if isinstance(source, Tensor):
            self.dltensor, self.readonly = source.dltensor(), source.readonly
        elif hasattr(source, "__dlpack__"):
            self._read_dlpack(source, role, stream)
        else:
            raise ReplayError(Status.ARGUMENT, f"`{role}` must be a DLPack tensor (NumPy, PyTorch, JAX, CuPy or "
                              f"replayssm.Tensor); got {type(source).__name__}", role)
        if written and self.readonly:
            raise ReplayError(Status.ARGUMENT, f"`{role}` is written by this call and is read-only", role)

    def _read_dlpack(self, source: Any, role: str, stream: Optional[int]) -> None:
        try:
            if is_numpy(source) and not source.flags.writeable:
                # NumPy before 2.1 has no way to say read-only in a capsule and refuses; the memory is readable all the same.
                self.dltensor, self.readonly = from_interface(source), True
                return
            capsule = capsule_of(source, stream)
            self.dltensor, self.readonly = read_capsule(capsule)
            self.owner = (source, capsule)
        except ReplayError:
            raise
        except Exception as error:  # whatever the framework says: requires grad, sparse, not exportable
            raise ReplayError(Status.ARGUMENT, f"`{role}` cannot be passed: {type(source).__name__}: {error}",
                              role) from error
        self.readonly = self.readonly or is_jax(source)


def is_numpy(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] == "numpy"


def is_jax(source: Any) -> bool:
    """JAX arrays are immutable; its capsules of some versions do not say so."""
    return type(source).__module__.partition(".")[0] in ("jax", "jaxlib")


def is_torch(source: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def from_interface(source: Any) -> DLTensor:
    interface = source.__array_interface__
    kind, size = interface["typestr"][1], int(interface["typestr"][2:])
    if kind not in INTERFACE_CODES or interface["typestr"][0] == ">":
        raise BufferError(f"elements of type {interface['typestr']}")
    if any(stride % size for stride in source.strides):
        raise BufferError("strides that are no multiple of an element")
    strides = [stride // size for stride in source.strides]
    return make_dltensor(interface["data"][0], source.shape, strides, (INTERFACE_CODES[kind], 8 * size), (CPU, 0))


def capsule_of(source: Any, stream: Optional[int]) -> Any:
    """A capsule, made so that the data is there for work on `stream` (None: the framework's current one)."""
    options = {}
    if tuple(source.__dlpack_device__())[0] == CUDA:
        if stream is None:
            options["stream"] = -1 if is_torch(source) else 1  # -1: in order already; 1: the legacy default stream
        else:
            options["stream"] = stream or 1
    try:
        return source.__dlpack__(max_version=(1, 1), **options)
    except TypeError:  # before DLPack 1.0
        return source.__dlpack__(**options)


def torch_stream(sources: Sequence[Any]) -> Optional[int]:
    """The current stream of PyTorch where one of its CUDA tensors takes part."""
    torch = sys.modules.get("torch")
    if torch is not None:
        for source in sources:
            if isinstance(source, torch.Tensor) and source.is_cuda:
                return int(torch.cuda.current_stream(source.device).cuda_stream)
    return None


def stream_pointer(stream: Any, device: Tuple[int, int]) -> int:
    """A cudaStream_t from an integer, or a stream object of PyTorch (cuda_stream), CuPy (ptr) or __cuda_stream__."""
    if isinstance(stream, int):
        return stream
    place = getattr(stream, "device", None)
    index = getattr(place, "index", None)
    if index is not None and device[0] == CUDA and index != device[1]:
        raise ReplayError(Status.DEVICE, f"the stream is of cuda:{index}; the instance is on cuda:{device[1]}",
                          expected=device[1], got=index)
    if hasattr(stream, "__cuda_stream__"):
        found = stream.__cuda_stream__
        return int((found() if callable(found) else found)[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise ReplayError(Status.ARGUMENT, f"a stream is an integer or a stream object; got {type(stream).__name__}")
