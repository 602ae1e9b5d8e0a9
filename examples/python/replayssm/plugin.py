"""One instance: one model on one device."""

from __future__ import annotations

import ctypes as C
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from . import structs
from .errors import ReplayError
from .model import Description, Layout, description_of, layout_of
from .structs import ROLE_COUNT, ROLE_NAMES, ROLES, TENSOR, TENSORS, WRITTEN, Fault, Status, StepFlags
from .tensors import DTYPE_NAMES, Borrowed, Tensor, stream_pointer, torch_stream

if TYPE_CHECKING:
    from .extensions import Conv, Slots, Verify
    from .library import Library

RoleArray = TENSOR * ROLE_COUNT


class Instance:
    """The handle. It is torn down by close(), or, where views of its pool are still alive then, with the last of them, which
    any thread may drop: hence set and list operations that are atomic."""

    def __init__(self, library: Library, handle: C.c_void_p, keep: Any) -> None:
        self.library, self.handle, self.keep = library, handle, [keep]
        self.leases: Set[int] = set()
        self.closed = False
        self._owned = [handle]

    @property
    def alive(self) -> bool:
        return bool(self._owned)

    def close(self) -> None:
        self.closed = True
        if not self.leases:
            self._teardown()

    def _teardown(self) -> None:
        try:
            handle = self._owned.pop()
        except IndexError:
            return
        self.library.call(self.library.api.teardown, C.byref(handle))
        self.keep.clear()

    def __del__(self) -> None:
        self._teardown()


class Lease:
    """Keeps the pool's memory while a view of it is alive."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        instance.leases.add(id(self))

    def __del__(self) -> None:
        self.instance.leases.discard(id(self))
        if self.instance.closed:
            self.instance.close()


class Plugin:
    """An instance, from Library.init. One caller at a time; different instances at once are fine.

    Life: prepare, pool_create, reset, then per forward pass step_begin and one decode per layer; close (or a with block).
    Tensors are anything with __dlpack__, or replayssm.Tensor; nothing is copied and nothing is kept after a call, but the
    pool's own memory. On CUDA the work is enqueued on `stream`: an integer, a stream object, or None for PyTorch's current
    stream where one of the tensors is PyTorch's, else the legacy default stream. Keep the tensors' memory until it has run.

    Errors are ReplayError, with the tensor at fault and both sides; nothing has changed then.
    """

    def __init__(self, library: Library, handle: C.c_void_p, device: Tuple[int, int], keep: Any) -> None:
        self.library, self.device = library, device
        self._instance = Instance(library, handle, keep)
        self._pool: Dict[int, Any] = {}  # layer -> role array of the pool's tensors
        self._has_pool = False
        self._extensions: Dict[bytes, Any] = {}

    def __enter__(self) -> Plugin:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Frees everything; no work may be in flight. A second call does nothing, any other call raises. Memory that arrays
        made from pool_tensors still show is freed with the last of them."""
        self._pool.clear()
        self._instance.close()

    @property
    def closed(self) -> bool:
        return self._instance.closed

    def call(self, function: Any, *args: Any) -> None:
        """function(handle, *args, error) of a table."""
        if self.closed:
            raise ReplayError(Status.STATE, "the plugin instance was closed")
        self.library.call(function, self._instance.handle, *args)

    # ---- before the first step

    def describe(self) -> Description:
        """What was read, assumed and decided."""
        out = structs.Description()
        self.call(self.library.api.describe, C.byref(out))
        return description_of(out)

    def pool_layout(self) -> Layout:
        """Every tensor of the pool and all sums."""
        out = structs.Layout()
        self.call(self.library.api.pool_layout, C.byref(out))
        return layout_of(out)

    def prepare(self) -> None:
        """Makes the device ready: CPU threads, or the CUDA module and workspace. A second call does nothing."""
        self.call(self.library.api.prepare)

    def pool_create(self, slab: Any = None, tensors: Optional[Sequence[Mapping[str, Any]]] = None,
                    stream: Any = None) -> None:
        """Allocates the pool, or binds the caller's memory: one slab (a compact tensor of at least slab_bytes, 256-byte
        aligned), or per layer a mapping from role to tensor ("cursor" with layer 0). Given memory is bound as it is: reset()
        before its first use. The tensors are kept until close."""
        if slab is not None and tensors is not None:
            raise ReplayError(Status.ARGUMENT, "pool_create takes a slab or tensors, not both")
        args = structs.PoolArgs()
        keep: List[Any] = []
        sources = [slab] if slab is not None else [t for layer in tensors or () for t in layer.values()]
        args.stream = self.stream(stream, sources)
        if slab is not None:
            borrowed = Borrowed(slab, "slab", True, args.stream)
            keep.append(borrowed)
            args.slab, args.slab_bytes = memory_of(borrowed.dltensor, self.device)
        elif tensors is not None:
            layers = self.describe().num_linear_layers
            if len(tensors) != layers:
                raise ReplayError(Status.SHAPE, f"tensors of {len(tensors)} layers; the instance has {layers}",
                                  expected=layers, got=len(tensors))
            array = (TENSOR * (ROLE_COUNT * layers))()
            for i, layer in enumerate(tensors):
                keep += fill(array, layer, args.stream, i * ROLE_COUNT)
            args.tensors, args.num_roles = C.cast(array, TENSORS), ROLE_COUNT
            keep.append(array)
        self.call(self.library.api.pool_create, C.byref(args))
        self._instance.keep.append(keep)
        self._has_pool = True

    def pool_tensors(self, layer: int) -> Dict[str, Tensor]:
        """Views of the pool's tensors of a layer, by role, with the shapes of pool_layout; numpy() of each
        and torch.from_dlpack make arrays of them."""
        array, views, lease = self._pool_roles(layer), {}, Lease(self._instance)
        for role in range(ROLE_COUNT):
            if array[role]:
                t = array[role].contents
                device = (t.device.device_type, t.device.device_id)
                views[ROLE_NAMES[role]] = Tensor((t.data or 0) + t.byte_offset, t.shape[:t.ndim],
                                                 DTYPE_NAMES[(t.dtype.code, t.dtype.bits)],
                                                 t.strides[:t.ndim] if t.strides else None, device, lease)
        return views

    def _pool_roles(self, layer: int) -> Any:
        """The pool's part of a layer's role array; the DLTensors are the plugin's."""
        if layer not in self._pool or self.closed:
            array = RoleArray()
            structs.fits(C.c_int32, "layer", layer)
            self.call(self.library.api.pool_tensors, layer, C.cast(array, TENSORS), ROLE_COUNT)
            self._pool[layer] = array
        return self._pool[layer]

    # ---- steps

    def reset(self, slots: Any = None, stream: Any = None) -> None:
        """Fresh slots [n]: state 0, ring empty, in all layers; None: every slot."""
        b = Batch(self, stream, slots=slots)
        args = structs.ResetArgs(slots=b["slots"], stream=b.stream)
        self.call(self.library.api.reset, C.byref(args))

    def step_begin(self, slots: Any, rows_out: Any, force_flush: Any = None, stream: Any = None, check: bool = False) -> None:
        """Once per forward pass: slots int32|int64 [B], force_flush int32|int64 [B], rows_out int32 [B, 8]. check:
        RSSM_CHECK_DEEP."""
        b = Batch(self, stream, slots=slots, force_flush=force_flush, rows_out=rows_out)
        args = structs.StepBeginArgs(slots=b["slots"], force_flush=b["force_flush"], rows_out=b["rows_out"],
                                     stream=b.stream, flags=StepFlags.CHECK_DEEP if check else 0)
        self.call(self.library.api.step_begin, C.byref(args))

    def decode(self, layer: int, *, stream: Any = None, scale: Optional[float] = None, lower_bound: Optional[float] = None,
               check: bool = False, **tensors: Any) -> None:
        """One layer of one step. Tensors by role (abi/rssm_base.h has the shapes):
        KDA and GDN: mixed_qkv [B, 2HK + HV V] (or q, k, v), a, b, A_log, dt_bias, out [B, HV, V];
        Mamba-2: mixed_xbc [B, nh P + 2 ng N] (or x, B, C), dt, A_log (or A), dt_bias, D, z, out [B, nh, P];
        and rows of step_begin, or write_pos (with state_indices, force_flush). The pool's tensors are filled in where the
        call names none. None is absent."""
        self.bind(layer, stream=stream, scale=scale, lower_bound=lower_bound, check=check, **tensors)(stream)

    def validate(self, layer: int, *, scale: Optional[float] = None, lower_bound: Optional[float] = None,
                 check: bool = False, **tensors: Any) -> None:
        """All that decode checks, without decoding."""
        step = Step(self, self.library.api.validate, layer, None, scale, lower_bound, check, tensors)
        step()

    def bind(self, layer: int, *, stream: Any = None, scale: Optional[float] = None, lower_bound: Optional[float] = None,
             check: bool = False, **tensors: Any) -> Step:
        """decode's arguments, kept for many calls: step = plugin.bind(...); step(stream). The tensors are kept alive."""
        return Step(self, self.library.api.decode, layer, stream, scale, lower_bound, check, tensors)

    # ---- extensions

    def extension(self, name: bytes) -> Any:
        if name not in self._extensions:
            self._extensions[name] = self.library.extension(name)
        return self._extensions[name]

    def fault(self, stream: Any = None) -> Fault:
        """The sticky fault word since the last clear, after the work on stream. Waits for it."""
        word = C.c_uint32()
        self.call(self.extension(structs.EXT_FAULT).read, self.stream(stream), C.byref(word))
        return Fault(word.value)

    def clear_fault(self, stream: Any = None) -> None:
        self.call(self.extension(structs.EXT_FAULT).clear, self.stream(stream))

    @property
    def slots(self) -> Slots:
        """Import, export, copy, flush, save, load, acquire and release slots."""
        from .extensions import Slots
        return Slots(self)

    @property
    def verify(self) -> Verify:
        """Speculative decoding."""
        from .extensions import Verify
        return Verify(self)

    @property
    def conv(self) -> Conv:
        """The short convolution."""
        from .extensions import Conv
        return Conv(self)

    def stream(self, stream: Any, sources: Sequence[Any] = ()) -> Optional[int]:
        """The stream of a call, as a number; None is the legacy default."""
        return stream_pointer(stream, self.device) if stream is not None else torch_stream(sources)


class Step:
    """A bound call: its tensors and arguments, ready to be made again. The memory stays, the values in it may change."""

    def __init__(self, plugin: Plugin, function: Callable[..., int], layer: int, stream: Any, scale: Optional[float],
                 lower_bound: Optional[float], check: bool, tensors: Mapping[str, Any],
                 pool_roles: Optional[Sequence[str]] = None) -> None:
        """pool_roles: the pool's tensors that the call takes; None: all of them."""
        self.plugin, self._function = plugin, function
        self._sources = [t for t in tensors.values() if t is not None]
        number = plugin.stream(stream, self._sources)
        self._array = RoleArray()
        if plugin._has_pool and 0 <= layer < 2**31:
            try:
                pool = plugin._pool_roles(layer)
                if pool_roles is None:
                    C.memmove(self._array, pool, C.sizeof(pool))
                for name in pool_roles or ():
                    if pool[ROLES[name]]:
                        self._array[ROLES[name]] = pool[ROLES[name]]
            except ReplayError as error:
                if error.status != Status.ARGUMENT:  # of a layer that is not there, the call itself tells more
                    raise
        self._keep = fill(self._array, tensors, number)
        self._args = structs.DecodeArgs(
            tensors=C.cast(self._array, TENSORS), num_tensors=ROLE_COUNT, layer=layer, stream=number,
            flags=StepFlags.CHECK_DEEP if check else 0, has_scale=scale is not None, scale=scale or 0.0,
            has_lower_bound=lower_bound is not None, lower_bound=lower_bound or 0.0)

    def __call__(self, stream: Any = None) -> None:
        """Runs it on stream; None: the current one, as of now."""
        self._args.stream = self.plugin.stream(stream, self._sources)
        self.plugin.call(self._function, C.byref(self._args))


class Batch:
    """The index tensors of a call, by argument name; those of `outputs` are written."""

    OUTPUTS = frozenset(("rows_out",))

    def __init__(self, plugin: Plugin, stream: Any, **tensors: Any) -> None:
        given = {name: t for name, t in tensors.items() if t is not None}
        self.stream = plugin.stream(stream, list(given.values()))
        self._borrowed = {name: Borrowed(t, name, name in self.OUTPUTS, self.stream) for name, t in given.items()}

    def __getitem__(self, name: str) -> Any:
        return C.pointer(self._borrowed[name].dltensor) if name in self._borrowed else None


def fill(array: Any, tensors: Mapping[str, Any], stream: Optional[int], first: int = 0) -> List[Borrowed]:
    """array[first + role] = tensor; what must stay alive meanwhile."""
    keep = []
    for name, tensor in tensors.items():
        if name not in ROLES:
            raise ReplayError(Status.ROLE, f"`{name}` is no tensor role ({', '.join(ROLES)})", name)
        if tensor is None:
            continue
        borrowed = Borrowed(tensor, name, name in WRITTEN, stream)
        keep.append(borrowed)
        array[first + ROLES[name]] = C.pointer(borrowed.dltensor)
    return keep


def memory_of(t: structs.DLTensor, device: Tuple[int, int]) -> Tuple[int, int]:
    """Address and bytes of a slab."""
    size, expected = (t.dtype.bits * t.dtype.lanes + 7) // 8, 1
    for i in reversed(range(t.ndim)):
        if t.strides and t.shape[i] > 1 and t.strides[i] != expected:
            raise ReplayError(Status.STRIDE, "the slab must be contiguous", "slab", i, expected, t.strides[i])
        expected *= t.shape[i]
    if (t.device.device_type, t.device.device_id) != tuple(device):
        raise ReplayError(Status.DEVICE, f"the slab is on device {t.device.device_type}:{t.device.device_id}, the instance "
                          f"on {device[0]}:{device[1]} (DLPack's numbers)", "slab", -1, device[0], t.device.device_type)
    return (t.data or 0) + t.byte_offset, size * expected
