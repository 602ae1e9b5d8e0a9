"""replayssm: recurrent layers (KDA, GDN, Mamba-2) decoded by replayssm.so, from Python. Ctypes over the C ABI; tensors of any
framework that speaks DLPack, zero-copy.

    lib = replayssm.load("replayssm.so")
    with lib.init("config.json", num_slots=64) as plugin:
        plugin.prepare()
        plugin.pool_create()
        plugin.step_begin(slots, rows)
        plugin.decode(layer, mixed_qkv=x, a=a, b=b, A_log=A_log, dt_bias=dt_bias, rows=rows, out=out)
"""

from .errors import ReplayError
from .extensions import Conv, Slots, Verify
from .library import Library, load
from .model import Description, Dims, Info, Layout, PoolTensor
from .plugin import Plugin, Step
from .structs import CURSOR_WIDTH, ROW_WIDTH, DType, Family, Fault, InitFlags, StateOrder, Status, StepFlags
from .tensors import Tensor, view

__all__ = [
    "CURSOR_WIDTH", "Conv", "DType", "Description", "Dims", "Family", "Fault", "Info", "InitFlags", "Layout", "Library",
    "Plugin", "PoolTensor", "ROW_WIDTH", "ReplayError", "Slots", "StateOrder", "Status", "Step", "StepFlags", "Tensor",
    "Verify", "load", "view",
]
