"""The model and the pool in Python's terms."""

from __future__ import annotations

import ctypes as C
from dataclasses import dataclass, fields
from typing import Any, Optional, Sequence, Tuple, Type, TypeVar

from . import structs
from .structs import DType, Family, Status
from .errors import ReplayError

T = TypeVar("T")


@dataclass(frozen=True)
class Info:
    """What the binary is."""

    name: str
    version: str
    git_revision: str
    families: Tuple[str, ...]
    backends: Tuple[str, ...]
    cuda_archs: Tuple[str, ...]


@dataclass(frozen=True)
class Dims:
    """A model without a config.json: the whole model, before tensor parallelism. Mamba-2 reads H = n_groups, HV = heads,
    K = state size, V = head dim."""

    family: str  # "kda", "gdn", "mamba2"
    H: int
    HV: int
    K: int
    V: int
    num_layers: int = 1
    linear_layers: Optional[Sequence[int]] = None  # None: all
    conv_kernel: int = 0
    lower_bound: Optional[float] = None
    qk_norm: bool = True
    allow_neg_eigval: bool = False
    time_step_limit: Optional[Tuple[float, float]] = None

    def struct(self) -> structs.Dims:
        layers = list(self.linear_layers or ())
        low, high = self.time_step_limit or (0.0, 0.0)
        try:
            family = Family[self.family.upper()]
        except KeyError:
            raise ReplayError(Status.MODEL, f"family {self.family!r} is none of kda, gdn, mamba2") from None
        array = (C.c_int32 * len(layers))(*layers) if self.linear_layers is not None else None
        return structs.Dims(
            family=family, num_layers=self.num_layers, linear_layers=array, num_linear_layers=len(layers), H=self.H,
            HV=self.HV, K=self.K, V=self.V, conv_kernel=self.conv_kernel,
            has_lower_bound=self.lower_bound is not None, lower_bound=self.lower_bound or 0.0,
            no_qk_norm=not self.qk_norm, allow_neg_eigval=self.allow_neg_eigval,
            has_time_step_limit=self.time_step_limit is not None, time_step_limit_min=low, time_step_limit_max=high)


@dataclass(frozen=True)
class Description:
    """What the instance is; the fields of rssm_description (abi/rssm_model.h). Heads are this rank's unless model_."""

    family: Family
    gate_kind: int
    family_name: str
    model_type: str
    num_layers: int
    num_linear_layers: int
    linear_layers: Tuple[int, ...]
    model_H: int
    model_HV: int
    H: int
    HV: int
    K: int
    V: int
    head_begin: int
    group_begin: int
    tp_size: int
    tp_rank: int
    conv_kernel: int
    conv_channels: int
    has_lower_bound: bool
    qk_norm: bool
    lower_bound: float
    scale: float
    norm_eps: float
    beta_scale: float
    time_step_limit_min: float
    time_step_limit_max: float
    ring_length: int
    ring_rows: int
    max_draft_tokens: int
    io_dtype: DType
    state_dtype: DType
    ring_dtype: DType
    device_type: int
    device_id: int
    layout_version: int
    layout_hash: int
    layout_text: str
    ring_reason: str
    read: Tuple[str, ...]
    assumed: Tuple[str, ...]
    step_bytes: int
    step_bytes_read_write: int
    cpu_level: str
    num_threads: int


@dataclass(frozen=True)
class PoolTensor:
    """One tensor of the pool; in the slab, layer i of it starts at offset + i * layer_stride bytes."""

    role: str
    dtype_name: str
    symbolic_shape: str
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]  # elements
    bytes_per_slot: int
    offset: int
    layer_stride: int
    alignment: int
    per_layer: bool


@dataclass(frozen=True)
class Layout:
    """The whole pool of this rank, in bytes."""

    layout_version: int
    num_slots: int
    num_layers: int
    slot_state_bytes: int
    slot_ring_bytes: int
    slot_conv_bytes: int
    slot_total_bytes: int
    slot_cursor_bytes: int
    layer_bytes: int
    slab_bytes: int
    workspace_bytes: int
    pool_bytes: int
    layout_hash: int
    tensors: Tuple[PoolTensor, ...] = ()


def gather(kind: Type[T], struct: Any, **given: Any) -> T:
    """A dataclass from the fields of the same name; text is decoded."""
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        value = given[field.name] if field.name in given else getattr(struct, field.name)
        values[field.name] = text(value) if isinstance(value, bytes) else value
    return kind(**values)


def text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def info_of(struct: structs.Info) -> Info:
    lists = {name: tuple(filter(None, text(getattr(struct, name)).split(","))) for name in
             ("families", "backends", "cuda_archs")}
    return gather(Info, struct, **lists)


def description_of(d: structs.Description) -> Description:
    return gather(Description, d, family=Family(d.family), linear_layers=tuple(d.linear_layers[:d.num_linear_layers]),
                  has_lower_bound=bool(d.has_lower_bound), qk_norm=bool(d.qk_norm), io_dtype=DType(d.io_dtype),
                  state_dtype=DType(d.state_dtype), ring_dtype=DType(d.ring_dtype),
                  read=tuple(text(d.read[i]) for i in range(d.num_read)),
                  assumed=tuple(text(d.assumed[i]) for i in range(d.num_assumed)))


def layout_of(layout: structs.Layout) -> Layout:
    tensors = []
    if layout.num_tensors:
        first = C.addressof(layout.tensors.contents)
        width = layout.tensors[0].struct_size
        for i in range(layout.num_tensors):
            t = structs.TensorInfo.from_address(first + i * width)
            tensors.append(gather(PoolTensor, t, role=text(t.name), shape=tuple(t.shape[:t.ndim]),
                                  strides=tuple(t.strides[:t.ndim]), per_layer=bool(t.per_layer)))
    return gather(Layout, layout, tensors=tuple(tensors))
