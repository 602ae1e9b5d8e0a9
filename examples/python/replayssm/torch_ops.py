"""The forward pass as PyTorch operators, so that torch.compile and CUDA graphs see opaque calls with known effects.

    handle = torch_ops.register(plugin)                   # a number: what an operator can take; weak, close as ever
    torch.ops.replayssm.step_begin(handle, slots, rows, None)
    torch.ops.replayssm.decode(handle, layer, x, gate, beta, A_log, dt_bias, None, None, rows, out)

The pool is the plugin's own and no argument: `rows` stands for it. decode declares that it changes rows, although it
leaves the values alone, so that the calls of a pass stay in order and none of them is dropped.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Optional

import torch

from .errors import ReplayError
from .plugin import Plugin
from .structs import Family, Status

_plugins: weakref.WeakValueDictionary[int, Plugin] = weakref.WeakValueDictionary()
_families: weakref.WeakKeyDictionary[Plugin, Family] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)


def register(plugin: Plugin) -> int:
    """A number for the operators' first argument; it holds as long as the plugin lives."""
    number = next(_numbers)
    _families[plugin] = plugin.describe().family
    _plugins[number] = plugin
    return number


def _find(handle: int) -> Plugin:
    plugin = _plugins.get(handle)
    if plugin is None:
        raise ReplayError(Status.HANDLE, f"no plugin is registered as {handle}, or it is gone")
    return plugin


@torch.library.custom_op("replayssm::step_begin", mutates_args=("rows",))
def step_begin(handle: int, slots: torch.Tensor, rows: torch.Tensor, force_flush: Optional[torch.Tensor] = None) -> None:
    """slots int32|int64 [B], rows int32 [B, 8], force_flush int32|int64 [B]. Once per pass, and not within a part that is
    recomputed."""
    _find(handle).step_begin(slots, rows, force_flush)


@torch.library.custom_op("replayssm::decode", mutates_args=("rows", "out"))
def decode(handle: int, layer: int, packed: torch.Tensor, gate: torch.Tensor, beta: Optional[torch.Tensor],
           A_log: Optional[torch.Tensor], dt_bias: Optional[torch.Tensor], D: Optional[torch.Tensor],
           z: Optional[torch.Tensor], rows: torch.Tensor, out: torch.Tensor) -> None:
    """packed [B, mixed_qkv or mixed_xbc], gate: a or dt, beta: b; D and z: Mamba-2; out [B, HV, V]."""
    plugin = _find(handle)
    mamba = _families[plugin] == Family.MAMBA2
    plugin.decode(layer, **{"mixed_xbc" if mamba else "mixed_qkv": packed, "dt" if mamba else "a": gate}, b=beta, A_log=A_log,
                  dt_bias=dt_bias, D=D, z=z, rows=rows, out=out)
