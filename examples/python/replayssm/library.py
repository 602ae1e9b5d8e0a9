"""replayssm.so and its table."""

from __future__ import annotations

import ctypes as C
import json
import os
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

from . import structs
from .errors import ReplayError
from .model import Dims, Info, info_of
from .plugin import Plugin
from .structs import DType, InitFlags, Status
from .tensors import CPU, CUDA

Config = Union[str, bytes, "os.PathLike[str]", Mapping[str, Any], Dims]
Log = Callable[[int, str], None]

EXTENSIONS = {
    structs.EXT_FAULT: structs.FaultApi, structs.EXT_SLOTS: structs.SlotsApi, structs.EXT_VERIFY: structs.VerifyApi,
    structs.EXT_CONV: structs.ConvApi,
}


def load(path: Union[str, "os.PathLike[str]"]) -> Library:
    """dlopens the plugin. OSError: no such library, or not a plugin; ReplayError: it speaks another ABI."""
    return Library(os.fspath(path))


class Library:
    """The loaded plugin: what it is, and where instances come from. Safe to use from any threads."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._dll = C.CDLL(path)
        try:
            get_api = self._dll.replayssm_get_api
        except AttributeError:
            raise OSError(f"{path}: no replayssm plugin (it has no symbol replayssm_get_api)") from None
        get_api.argtypes, get_api.restype = [C.c_uint32], C.POINTER(structs.Api)
        table = get_api(structs.ABI_MAJOR)
        if not table:
            raise ReplayError(Status.UNSUPPORTED, f"{path} does not speak ABI {structs.ABI_MAJOR}")
        self.api = table.contents
        info = structs.Info()
        self.call(self.api.plugin_info, C.byref(info))
        self.info: Info = info_of(info)

    @property
    def families(self) -> Tuple[str, ...]:
        return self.info.families

    def extension(self, name: bytes) -> Any:
        """The table of an extension; ReplayError where the plugin has none."""
        table = self.api.get_extension(name)
        if not table:
            raise ReplayError(Status.UNSUPPORTED, f"this plugin has no {name.decode()}")
        return C.cast(table, C.POINTER(EXTENSIONS[name])).contents

    @staticmethod
    def call(function: Any, *args: Any) -> None:
        """Calls a function of a table; an error becomes a ReplayError."""
        error = structs.Error()
        if function(*args, C.byref(error)) != Status.OK:
            raise ReplayError.of(error)

    def init(self, config: Config, *, device: Any = "cpu", tp_size: int = 0, tp_rank: int = 0, layer_begin: int = 0,
             layer_end: int = 0, ring_length: int = 0, max_draft_tokens: int = 0, io_dtype: Any = None,
             state_dtype: Any = None, ring_dtype: Any = None, max_batch: int = 0, num_slots: int = 0,
             memory_budget_bytes: int = 0, pad_slot: Optional[int] = None, num_threads: int = 0, conv_state: bool = False,
             spread_flush: bool = False, flags: int = 0, log: Optional[Log] = None) -> Plugin:
        """Reads the model and decides the layout; touches no device.

        config   a path, the text or the dict of a config.json, or Dims. A str that starts with "{" is text.
        device   "cpu", "cuda", "cuda:1", a torch.device, or a DLPack pair (type, id)
        *_dtype  "float32", "bfloat16", "float16", a DType, or a framework's dtype of that name; None: the config's
        log      called with (level, line); default silence
        The rest as in rssm_init_args (abi/rssm_model.h); 0 is the default of each.
        """
        kind, index = device_of(device)
        if conv_state:
            flags |= InitFlags.CONV_STATE
        if spread_flush:
            flags |= InitFlags.SPREAD_FLUSH
        keep: Dict[str, Any] = config_fields(config)
        callback = structs.LOG(lambda _user, level, line: log(level, line.decode("utf-8", "replace"))) if log else None
        if callback:
            keep["log"] = callback
        args = structs.InitArgs(
            device_type=kind, device_id=index, tp_size=tp_size, tp_rank=tp_rank, layer_begin=layer_begin,
            layer_end=layer_end, ring_length=ring_length, max_draft_tokens=max_draft_tokens, io_dtype=dtype_of(io_dtype),
            state_dtype=dtype_of(state_dtype), ring_dtype=dtype_of(ring_dtype), max_batch=max_batch, num_slots=num_slots,
            memory_budget_bytes=memory_budget_bytes, has_pad_slot=int(pad_slot is not None), pad_slot=pad_slot or 0,
            num_threads=num_threads, flags=int(flags), **keep)
        handle = C.c_void_p()
        self.call(self.api.init, C.byref(args), C.byref(handle))
        return Plugin(self, handle, (kind, index), callback)


def config_fields(config: Config) -> Dict[str, Any]:
    """The one of config_json, config_path and dims that config is."""
    if isinstance(config, Dims):
        return {"dims": C.pointer(config.struct())}
    if isinstance(config, Mapping):
        config = json.dumps(config)
    if isinstance(config, str) and config.lstrip().startswith("{"):
        config = config.encode()
    if isinstance(config, bytes):
        return {"config_json": config, "config_json_len": len(config)}
    path = os.fsencode(config)
    if b"\0" in path:
        raise ReplayError(Status.ARGUMENT, "the config's path has a zero byte")
    return {"config_path": path}


def dtype_of(dtype: Any) -> DType:
    if dtype is None:
        return DType.DEFAULT
    if isinstance(dtype, DType):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.rpartition(".")[2]  # torch.bfloat16
    if name.upper() not in DType.__members__ or name.upper() == "DEFAULT":
        raise ReplayError(Status.DTYPE, f"dtype {dtype!r} is none of float32, bfloat16, float16")
    return DType[name.upper()]


def device_of(device: Any) -> Tuple[int, int]:
    if isinstance(device, tuple):
        return int(device[0]), int(device[1])
    name, _, index = str(device).partition(":")
    kinds = {"cpu": CPU, "cuda": CUDA}
    if name not in kinds or (index and not index.isdigit()):
        raise ReplayError(Status.DEVICE, f"device {device!r} is neither cpu nor cuda[:N]")
    return kinds[name], int(index or 0)
