"""What sglang_adapter and vllm_adapter share: the plugin, its instances by shape, and torch tensors as it takes them.

The plugin is $RSSM_PLUGIN, or what use() was given. An instance is made at the first call of a shape; make that call before a
CUDA graph is captured (a server's warm-up does). Instances hold no request's data: every tensor is the caller's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from typing import Dict, Iterator, NamedTuple, Optional, Tuple, Union

import torch

import replayssm
from replayssm import Dims, ReplayError, Status

DTYPE_NAMES = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.int32: "int32",
    torch.int64: "int64",
}
# A tensor of the call is wrong; other statuses are faults of the machine or of the plugin.
OF_A_TENSOR = {
    Status.ARGUMENT,
    Status.ROLE,
    Status.MISSING,
    Status.SHAPE,
    Status.DTYPE,
    Status.DEVICE,
    Status.STRIDE,
    Status.ALIGNMENT,
    Status.OVERLAP,
    Status.VALUE,
    Status.OVERFLOW,
}


class Key(NamedTuple):
    """All that an instance depends on. Mamba-2 reads H = n_groups, HV = heads, K = state size, V = head dim."""

    family: str
    H: int
    HV: int
    K: int
    V: int
    L: int
    io: str
    state: str
    ring: str
    device: Tuple[int, int]
    qk_norm: bool = True
    pad_slot: Optional[int] = None


class Entry:
    """An instance takes one caller at a time: hold `lock` while calling it."""

    def __init__(self, plugin: replayssm.Plugin) -> None:
        self.plugin, self.lock = plugin, threading.Lock()
        self.users = 0
        self.captured = False  # a CUDA graph has its kernels: it stays until close()


class Instances:
    """Prepared instances, at most `limit`: the one that was unused for longest goes first. Any threads may call."""

    def __init__(self, limit: int = 16) -> None:
        self.limit = limit
        self._library: Optional[replayssm.Library] = None
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def use(self, library: Union[replayssm.Library, str, os.PathLike[str]]) -> None:
        self.close()
        with self._lock:
            self._library = library if isinstance(library, replayssm.Library) else replayssm.load(library)

    @contextlib.contextmanager
    def lease(self, key: Key) -> Iterator[replayssm.Plugin]:
        """The instance of a key, for this thread alone."""
        capturing = is_capturing(key)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = self._make(key, capturing)
            self._entries.move_to_end(key)
            entry.users += 1
            entry.captured |= capturing
        try:
            with entry.lock:
                yield entry.plugin
        finally:
            with self._lock:
                entry.users -= 1

    def close(self) -> None:
        """Frees every instance, when the calls in progress are through. Graphs captured over them must not run any more; the
        next call makes new ones."""
        with self._lock:
            entries = list(self._entries.items())
            self._entries.clear()
        for key, entry in entries:
            with entry.lock:
                close_idle(key, entry)

    def _make(self, key: Key, capturing: bool) -> Entry:
        if capturing:
            raise RuntimeError(f"the first call of {key} is within a CUDA graph capture, which cannot load kernels: call once "
                               "before")
        while len(self._entries) >= self.limit:
            self._evict()
        if self._library is None:
            path = os.environ.get("RSSM_PLUGIN")
            if not path:
                raise RuntimeError("RSSM_PLUGIN does not say where replayssm.so is, and use() was not called")
            self._library = replayssm.load(path)
        return Entry(open_instance(self._library, key))

    def _evict(self) -> None:
        for key, entry in self._entries.items():
            if entry.users == 0 and not entry.captured:
                del self._entries[key]
                close_idle(key, entry)
                return
        raise RuntimeError(f"all of {self.limit} instances are in use or part of CUDA graphs: raise instances.limit, or "
                           "close() them")


instances = Instances()


def use(library: Union[replayssm.Library, str, os.PathLike[str]]) -> None:
    """Which plugin serves the calls from now on: a path, or a loaded library."""
    instances.use(library)


def close() -> None:
    """Frees every instance (Instances.close)."""
    instances.close()


def is_capturing(key: Key) -> bool:
    return key.device[0] == replayssm.tensors.CUDA and torch.cuda.is_current_stream_capturing()


def close_idle(key: Key, entry: Entry) -> None:
    """Its last kernels may still be queued."""
    if key.device[0] == replayssm.tensors.CUDA:
        torch.cuda.synchronize(key.device[1])
    entry.plugin.close()


def open_instance(library: replayssm.Library, key: Key) -> replayssm.Plugin:
    """One layer and no pool: a call brings its tensors, and with them the number of slots."""
    dims = Dims(key.family, key.H, key.HV, key.K, key.V, qk_norm=key.qk_norm)
    try:
        plugin = library.init(dims,
                              device=key.device,
                              ring_length=key.L,
                              io_dtype=key.io,
                              state_dtype=key.state,
                              ring_dtype=key.ring,
                              pad_slot=key.pad_slot)
        plugin.prepare()
    except ReplayError as error:
        if error.status in (Status.OUT_OF_MEMORY, Status.CUDA, Status.DEVICE_LOST, Status.INTERNAL):
            raise
        raise NotImplementedError(f"replayssm does not serve this layer: {error}") from error
    return plugin


def device_of(t: torch.Tensor) -> Tuple[int, int]:
    if t.device.type == "cpu":
        return replayssm.tensors.CPU, 0
    if t.device.type == "cuda":
        return replayssm.tensors.CUDA, t.device.index
    raise ValueError(f"a tensor is on {t.device}; the plugin serves cpu and cuda")


def dtype_name(role: str, t: torch.Tensor) -> str:
    if t.dtype not in DTYPE_NAMES:
        raise NotImplementedError(f"`{role}` of {t.dtype}: the plugin knows {', '.join(DTYPE_NAMES.values())}")
    return DTYPE_NAMES[t.dtype]


def borrow(role: str, t: torch.Tensor) -> replayssm.Tensor:
    """The same memory. Not by way of DLPack: an nn.Parameter is welcome, and it is three times faster."""
    return replayssm.Tensor(t.data_ptr(), t.shape, dtype_name(role, t), t.stride(), device_of(t), t)


def gate_input(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """a, b and dt come in the inputs' dtype or float32; from another one they are widened, which is exact."""
    return t if t.dtype in (like.dtype, torch.float32) else t.float()


def first_rows(t: torch.Tensor, count: int) -> torch.Tensor:
    """Rows, or slots, beyond those of the call take no part."""
    return t if t.shape[0] <= count else t[:count]


def decode(key: Key,
           like: torch.Tensor,
           scale: Optional[float] = None,
           lower_bound: Optional[float] = None,
           **tensors: Optional[torch.Tensor]) -> None:
    """One step on the device and current stream of `like`; tensors by role."""
    borrowed = {role: borrow(role, t) for role, t in tensors.items() if t is not None}
    stream = torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else None
    try:
        with instances.lease(key) as plugin:
            plugin.decode(0, stream=stream, scale=scale, lower_bound=lower_bound, **borrowed)
    except ReplayError as error:
        if error.status == Status.UNSUPPORTED:
            raise NotImplementedError(str(error)) from error
        if error.status in OF_A_TENSOR:
            raise ValueError(str(error)) from error
        raise


class Ring(NamedTuple):
    """The ring as the plugin takes it."""

    dtype: str
    tensors: Dict[str, torch.Tensor]


def ring_of(length: int, **tensors: torch.Tensor) -> Ring:
    """d and k (x and B) first, then the gates. At length 1 it is always empty and stays with the caller, and the token that each
    step folds is not rounded to its dtype: neither is it there."""
    if length == 1:
        return Ring("float32", {})
    (wide_role, wide), (narrow_role, narrow), _ = tensors.items()
    if wide.dtype != narrow.dtype:
        raise NotImplementedError(
            f"`{wide_role}` is {wide.dtype} and `{narrow_role}` {narrow.dtype}: the plugin's ring has one "
            "dtype")
    return Ring(dtype_name(wide_role, wide), tensors)


# ---- KDA and GDN, which SGLang and vLLM call alike


class DeltaCall(NamedTuple):
    """The tensors of a call, under the names that both give them."""

    mixed_qkv: torch.Tensor  # [B, 2HK + HV V]
    a: torch.Tensor  # KDA [B, HV, K], GDN [B, HV]
    b: torch.Tensor  # [B, HV]
    A_log: torch.Tensor  # [HV]
    dt_bias: torch.Tensor  # KDA [HV, K], GDN [HV]
    initial_state: torch.Tensor  # [S, HV, V, K], the checkpoint
    d_cache: torch.Tensor  # [S, HV, L, V]
    k_cache: torch.Tensor  # [S, H, L, K]
    g_cache: torch.Tensor  # KDA [S, HV, L, K], GDN [S, HV, L]
    out: torch.Tensor  # [B, 1, HV, V]
    ssm_state_indices: torch.Tensor  # [B]
    write_pos: torch.Tensor  # [B]
    force_flush: Optional[torch.Tensor] = None  # [B]


class Heads(NamedTuple):
    H: int
    HV: int
    K: int
    V: int


def need(holds: bool, message: str) -> None:
    """What the originals refuse, with their type."""
    if not holds:
        raise ValueError(message)


def check_ranks(call: DeltaCall) -> None:
    need(call.mixed_qkv.ndim == 2, f"`mixed_qkv` must be 2D; it has {call.mixed_qkv.ndim} dims")
    need(call.mixed_qkv.stride(-1) == 1, "`mixed_qkv` must be contiguous in its last dim")
    need(call.b.ndim == 2, f"`b` must be 2D; it has {call.b.ndim} dims")
    need(call.A_log.ndim == 1, f"`A_log` must be 1D; it has {call.A_log.ndim} dims")
    need(call.initial_state.ndim == 4, f"`initial_state` must be 4D; it has {call.initial_state.ndim} dims")
    need(call.out.is_contiguous(), "`out` must be contiguous")
    need(is_index(call.write_pos), "`write_pos` must be a 1D int32 tensor")
    need(call.force_flush is None or is_index(call.force_flush), "`force_flush` must be a 1D int32 tensor or None")


def is_index(t: torch.Tensor) -> bool:
    return t.ndim == 1 and t.dtype == torch.int32


def heads_of(call: DeltaCall) -> Heads:
    """The packed width says how many key heads there are."""
    _, HV, V, K = call.initial_state.shape
    width = call.mixed_qkv.shape[1]
    keys = width - HV * V
    need(keys > 0 and keys % (2 * K) == 0, f"`mixed_qkv` of width {width} is no q | k | v for HV={HV}, V={V}, K={K}")
    H = keys // (2 * K)
    need(HV % H == 0, f"`mixed_qkv` of width {width} has {H} key heads, which do not divide {HV} value heads")
    return Heads(H, HV, K, V)


def check_rings(call: DeltaCall, heads: Heads, is_kda: bool) -> None:
    H, HV, K, V = heads
    L = call.d_cache.shape[2] if call.d_cache.ndim > 2 else 0
    need(L >= 1, f"`d_cache` must be [slots, HV, L, V]; got {tuple(call.d_cache.shape)}")
    shapes = {"d_cache": (HV, L, V), "k_cache": (H, L, K), "g_cache": (HV, L, K) if is_kda else (HV, L)}
    for role, shape in shapes.items():
        got = tuple(getattr(call, role).shape[1:])
        need(got == shape, f"`{role}` must have {shape} per slot; got {got}")
    need(call.g_cache.dtype == torch.float32, f"`g_cache` must be float32; got {call.g_cache.dtype}")


def decode_delta(family: str,
                 call: DeltaCall,
                 heads: Heads,
                 scale: float,
                 qk_norm: bool,
                 lower_bound: Optional[float] = None,
                 pad_slot: Optional[int] = None) -> None:
    """One step of a call whose shapes were checked."""
    B = call.mixed_qkv.shape[0]
    slots = min(t.shape[0] for t in (call.initial_state, call.d_cache, call.k_cache, call.g_cache))
    pool = {role: first_rows(getattr(call, role), slots) for role in ("initial_state", "d_cache", "k_cache", "g_cache")}
    state = pool.pop("initial_state")
    ring = ring_of(call.d_cache.shape[2], **pool)
    key = Key(family, *heads, call.d_cache.shape[2], dtype_name("mixed_qkv", call.mixed_qkv),
              dtype_name("initial_state", state), ring.dtype, device_of(call.mixed_qkv), qk_norm, pad_slot)
    rows = {
        "state_indices": call.ssm_state_indices,
        "write_pos": call.write_pos,
        "force_flush": call.force_flush,
        "a": gate_input(call.a, call.mixed_qkv),
        "b": gate_input(call.b, call.mixed_qkv)
    }
    rows = {role: first_rows(t, B) for role, t in rows.items() if t is not None}
    out = call.out.view(B, heads.HV, heads.V)
    written = output_for(out, call.mixed_qkv)
    decode(key,
           call.mixed_qkv,
           float(scale),
           lower_bound,
           mixed_qkv=call.mixed_qkv,
           A_log=call.A_log,
           dt_bias=call.dt_bias,
           out=written,
           state=state,
           **rows,
           **ring.tensors)
    if written is not out:
        out.copy_(written)


def output_for(out: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The plugin writes the inputs' dtype or float32; another one is rounded from float32."""
    return out if out.dtype in (like.dtype, torch.float32) else torch.empty_like(out, dtype=torch.float32)
