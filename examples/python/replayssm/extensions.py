"""The extensions slots/1, verify/1 and conv/1 of an instance: Plugin.slots, Plugin.verify, Plugin.conv."""

from __future__ import annotations

import ctypes as C
from typing import Any, Optional, Sequence, Tuple

from . import structs
from .errors import ReplayError
from .plugin import Batch, Plugin, Step
from .structs import TENSOR, TENSORS, StateOrder, Status, StepFlags, fits
from .tensors import Borrowed


class LayerList:
    """One tensor per layer as the array that a call takes; None stays NULL."""

    def __init__(self, tensors: Optional[Sequence[Any]], role: str, written: bool, stream: Optional[int]) -> None:
        self.borrowed = [Borrowed(t, role, written, stream) for t in tensors or ()]
        self.array = (TENSOR * len(self.borrowed))(*[C.pointer(b.dltensor) for b in self.borrowed])
        self.pointer = C.cast(self.array, TENSORS) if tensors is not None else None


def layer_count(**lists: Optional[Sequence[Any]]) -> int:
    counts = {name: len(tensors) for name, tensors in lists.items() if tensors is not None}
    if len(set(counts.values())) > 1:
        raise ReplayError(Status.ARGUMENT, f"lists of one tensor per layer differ in length: {counts}")
    return next(iter(counts.values()), 0)


def flags(check: bool) -> int:
    return StepFlags.CHECK_DEEP if check else 0


class Slots:
    """What a server does to slots besides decoding (abi/rssm_slots.h). Every call covers all layers; slot lists are
    int32|int64 [n] tensors on the instance's device. check: RSSM_CHECK_DEEP, bad slots are errors."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin, self._api = plugin, plugin.extension(structs.EXT_SLOTS)

    def import_state(self, slots: Any, states: Sequence[Any], *, order: StateOrder = StateOrder.VK,
                     conv: Optional[Sequence[Any]] = None, stream: Any = None, check: bool = False) -> None:
        """states: per layer [n, HV, V, K] (KV: [n, HV, K, V]), any float type; conv: per layer [n, channels, w - 1], oldest
        first. Ring empty, cursor 0."""
        self._states(self._api.import_state, False, slots, states, order, conv, None, None, stream, check)

    def export_state(self, slots: Any, states: Sequence[Any], *, order: StateOrder = StateOrder.VK,
                     conv: Optional[Sequence[Any]] = None, A_log: Optional[Sequence[Any]] = None,
                     A: Optional[Sequence[Any]] = None, stream: Any = None, check: bool = False) -> None:
        """Fills states (and conv) with the materialised state; the slots stay. A_log or A per layer: Mamba-2 only."""
        self._states(self._api.export_state, True, slots, states, order, conv, A_log, A, stream, check)

    def _states(self, function: Any, written: bool, slots: Any, states: Sequence[Any], order: StateOrder, conv: Any,
                A_log: Any, A: Any, stream: Any, check: bool) -> None:
        count = layer_count(states=states, conv=conv, A_log=A_log, A=A)
        at = self._plugin.stream(stream, [slots, *states])
        slot_list = Borrowed(slots, "slots", False, at)
        lists = {"states": (states, "state", written), "conv": (conv, "conv", written), "A_log": (A_log, "A_log", False),
                 "A": (A, "A", False)}
        made = {name: LayerList(tensors, role, writes, at) for name, (tensors, role, writes) in lists.items()}
        args = structs.StateArgs(slots=C.pointer(slot_list.dltensor), num_layers=count, order=int(order),
                                 flags=flags(check), stream=at, **{name: m.pointer for name, m in made.items()})
        self._plugin.call(function, C.byref(args))

    def copy(self, src: Any, dst: Any, *, stream: Any = None, check: bool = False) -> None:
        """dst[i] <- src[i] with pending ring and cursor."""
        b = Batch(self._plugin, stream, src_slots=src, dst_slots=dst)
        args = structs.CopyArgs(src=b["src_slots"], dst=b["dst_slots"], flags=flags(check), stream=b.stream)
        self._plugin.call(self._api.copy, C.byref(args))

    def flush(self, slots: Any, *, A_log: Optional[Sequence[Any]] = None, A: Optional[Sequence[Any]] = None,
              stream: Any = None, check: bool = False) -> None:
        """Folds the pending records into the checkpoint. A_log or A per layer: Mamba-2 only."""
        count = layer_count(A_log=A_log, A=A)
        at = self._plugin.stream(stream, [slots])
        slot_list = Borrowed(slots, "slots", False, at)
        decay, plain = LayerList(A_log, "A_log", False, at), LayerList(A, "A", False, at)
        args = structs.FlushArgs(slots=C.pointer(slot_list.dltensor), A_log=decay.pointer, A=plain.pointer,
                                 num_layers=count, flags=flags(check), stream=at)
        self._plugin.call(self._api.flush, C.byref(args))

    def saved_bytes(self) -> int:
        size = C.c_uint64()
        self._plugin.call(self._api.saved_bytes, C.byref(size))
        return size.value

    def save(self, slot: int, stream: Any = None) -> bytes:
        """One slot as a self-describing byte stream. Waits for the device."""
        size, written = self.saved_bytes(), C.c_uint64()
        buffer = C.create_string_buffer(size)
        self._plugin.call(self._api.save, fits(C.c_int64, "slot", slot), buffer, size, C.byref(written),
                          self._plugin.stream(stream))
        return C.string_at(buffer, written.value)

    def load(self, slot: int, data: bytes, stream: Any = None) -> None:
        """The slot as saved; ReplayError (STREAM_DATA) and no change where data is damaged or of another layout."""
        self._plugin.call(self._api.load, fits(C.c_int64, "slot", slot), C.cast(C.c_char_p(bytes(data)), C.c_void_p),
                          len(data), self._plugin.stream(stream))

    def acquire(self) -> Tuple[int, int]:
        """(handle, slot) of a free slot; it holds what its last tenant left."""
        handle, slot = C.c_uint64(), C.c_int64()
        self._plugin.call(self._api.acquire, C.byref(handle), C.byref(slot))
        return handle.value, slot.value

    def release(self, handle: int) -> None:
        self._plugin.call(self._api.release, fits(C.c_uint64, "handle", handle))

    def check(self, handle: int) -> int:
        """The slot of a handle that is still held."""
        slot = C.c_int64()
        self._plugin.call(self._api.check, fits(C.c_uint64, "handle", handle), C.byref(slot))
        return slot.value


class Verify:
    """Speculative decoding (abi/rssm_verify.h): begin, decode per layer, commit."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin, self._api = plugin, plugin.extension(structs.EXT_VERIFY)

    def begin(self, slots: Any, cu_seqlens: Any, rows_out: Any, max_T: int, *, stream: Any = None,
              check: bool = False) -> None:
        """slots [B], cu_seqlens [B + 1], rows_out int32 [B, 8]; no window is longer than max_T."""
        b = Batch(self._plugin, stream, slots=slots, cu_seqlens=cu_seqlens, rows_out=rows_out)
        args = structs.VerifyBeginArgs(slots=b["slots"], cu_seqlens=b["cu_seqlens"], rows_out=b["rows_out"],
                                       stream=b.stream, max_T=max_T, flags=flags(check))
        self._plugin.call(self._api.verify_begin, C.byref(args))

    def decode(self, layer: int, *, stream: Any = None, scale: Optional[float] = None,
               lower_bound: Optional[float] = None, check: bool = False, **tensors: Any) -> None:
        """As Plugin.decode, with one row per token in inputs and out, and rows of begin."""
        self.bind(layer, stream=stream, scale=scale, lower_bound=lower_bound, check=check, **tensors)(stream)

    def bind(self, layer: int, *, stream: Any = None, scale: Optional[float] = None, lower_bound: Optional[float] = None,
             check: bool = False, **tensors: Any) -> Step:
        return Step(self._plugin, self._api.verify, layer, stream, scale, lower_bound, check, tensors)

    def commit(self, rows: Any, accepted: Any, *, stream: Any = None, check: bool = False) -> None:
        """accepted int32|int64 [B]: tokens of each row's window that are kept."""
        b = Batch(self._plugin, stream, rows=rows, accepted=accepted)
        args = structs.CommitArgs(rows=b["rows"], accepted=b["accepted"], stream=b.stream, flags=flags(check))
        self._plugin.call(self._api.commit, C.byref(args))


class Conv:
    """The short convolution (abi/rssm_conv.h); the instance needs conv_state=True. Tensors: conv_in and conv_out [N,
    channels], conv_weight [channels, w], conv_bias [channels] (optional), rows."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin, self._api = plugin, plugin.extension(structs.EXT_CONV)

    def decode(self, layer: int, *, stream: Any = None, check: bool = False, **tensors: Any) -> None:
        """For the rows of step_begin, before the layer's decode."""
        self._bind(self._api.conv, layer, stream, check, tensors)(stream)

    def verify(self, layer: int, *, stream: Any = None, check: bool = False, **tensors: Any) -> None:
        """For the windows of Verify.begin, before the layer's Verify.decode."""
        self._bind(self._api.conv_verify, layer, stream, check, tensors)(stream)

    def _bind(self, function: Any, layer: int, stream: Any, check: bool, tensors: Any) -> Step:
        return Step(self._plugin, function, layer, stream, None, None, check, tensors, ("conv",))
