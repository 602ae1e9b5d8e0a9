"""The plugin's ABI (abi/*.h) through ctypes, on the memory of torch tensors: as much of it as a comparison needs."""

import ctypes as C

import torch

ABI_MAJOR = 1
FAMILY = {"kda": 1, "gdn": 2, "mamba2": 3}
DTYPE = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
ROLES = {
    "mixed_qkv": 1, "mixed_xbc": 5, "a": 9, "b": 10, "dt": 11, "A_log": 13, "dt_bias": 15, "D": 16, "out": 17,
    "state": 18, "d_cache": 19, "k_cache": 20, "g_cache": 21, "x_cache": 22, "dt_cache": 23, "B_cache": 24,
    "cursor": 26, "rows": 27
}
ROLE_COUNT = 40
ROW_WIDTH, CURSOR_WIDTH = 8, 4
SKIP_VALIDATE = 1
EXT_VERIFY = b"replayssm.verify/1"
UNSUPPORTED = 3
KIND = {torch.float32: (2, 32), torch.bfloat16: (4, 16), torch.float16: (2, 16), torch.int32: (0, 32), torch.int64: (0, 64)}


class DLTensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("device_type", C.c_int32), ("device_id", C.c_int32), ("ndim", C.c_int32),
                ("code", C.c_uint8), ("bits", C.c_uint8), ("lanes", C.c_uint16), ("shape", C.POINTER(C.c_int64)),
                ("strides", C.POINTER(C.c_int64)), ("byte_offset", C.c_uint64)]


TENSOR = C.POINTER(DLTensor)
TENSORS = C.POINTER(TENSOR)


class Sized(C.Structure):
    """A struct of the ABI: zeroed, and knows its size."""

    def __init__(self, **fields):
        super().__init__(struct_size=C.sizeof(self), **fields)


class Error(Sized):
    _fields_ = [("struct_size", C.c_uint64), ("status", C.c_int32), ("role", C.c_int32), ("dim", C.c_int32),
                ("cuda_error", C.c_int32), ("expected", C.c_int64), ("got", C.c_int64), ("message", C.c_char * 512)]


class Info(Sized):
    _fields_ = [("struct_size", C.c_uint64)] + [(name, C.c_char_p) for name in (
        "name", "version", "git_revision", "families", "backends", "cuda_archs")]


class Dims(Sized):
    _fields_ = [("struct_size", C.c_uint64), ("family", C.c_int32), ("num_layers", C.c_int32),
                ("linear_layers", C.c_void_p), ("num_linear_layers", C.c_int64), ("H", C.c_int32), ("HV", C.c_int32),
                ("K", C.c_int32), ("V", C.c_int32), ("conv_kernel", C.c_int32), ("has_lower_bound", C.c_int32),
                ("lower_bound", C.c_double), ("no_qk_norm", C.c_int32), ("allow_neg_eigval", C.c_int32),
                ("has_time_step_limit", C.c_int32), ("reserved_", C.c_int32), ("time_step_limit_min", C.c_double),
                ("time_step_limit_max", C.c_double)]


class InitArgs(Sized):
    _fields_ = [("struct_size", C.c_uint64), ("config_json", C.c_char_p), ("config_json_len", C.c_uint64),
                ("config_path", C.c_char_p), ("dims", C.POINTER(Dims)), ("device_type", C.c_int32),
                ("device_id", C.c_int32), ("tp_size", C.c_int32), ("tp_rank", C.c_int32), ("layer_begin", C.c_int32),
                ("layer_end", C.c_int32), ("ring_length", C.c_int32), ("max_draft_tokens", C.c_int32),
                ("io_dtype", C.c_int32), ("state_dtype", C.c_int32), ("ring_dtype", C.c_int32), ("max_batch", C.c_int32),
                ("num_slots", C.c_int64), ("memory_budget_bytes", C.c_int64), ("has_pad_slot", C.c_int32),
                ("num_threads", C.c_int32), ("pad_slot", C.c_int64), ("flags", C.c_uint32), ("cpu_level", C.c_int32),
                ("allocator", C.c_void_p), ("log", C.c_void_p), ("log_user", C.c_void_p)]


class PoolArgs(Sized):
    _fields_ = [("struct_size", C.c_uint64), ("slab", C.c_void_p), ("slab_bytes", C.c_uint64), ("tensors", TENSORS),
                ("num_roles", C.c_uint32), ("flags", C.c_uint32), ("stream", C.c_void_p)]


class StepBeginArgs(Sized):
    _fields_ = [("struct_size", C.c_uint64), ("slots", TENSOR), ("force_flush", TENSOR), ("rows_out", TENSOR),
                ("stream", C.c_void_p), ("flags", C.c_uint32), ("reserved_", C.c_uint32)]


class DecodeArgs(Sized):
    _fields_ = [("struct_size", C.c_uint64), ("tensors", TENSORS), ("num_tensors", C.c_uint32), ("layer", C.c_int32),
                ("stream", C.c_void_p), ("flags", C.c_uint32), ("has_scale", C.c_int32), ("has_lower_bound", C.c_int32),
                ("reserved_", C.c_int32), ("scale", C.c_double), ("lower_bound", C.c_double)]


class VerifyBeginArgs(Sized):
    _fields_ = [("struct_size", C.c_uint64), ("slots", TENSOR), ("cu_seqlens", TENSOR), ("rows_out", TENSOR),
                ("stream", C.c_void_p), ("max_T", C.c_int32), ("flags", C.c_uint32)]


class CommitArgs(Sized):
    _fields_ = [("struct_size", C.c_uint64), ("rows", TENSOR), ("accepted", TENSOR), ("stream", C.c_void_p),
                ("flags", C.c_uint32), ("reserved_", C.c_uint32)]


def call(*args):
    return C.CFUNCTYPE(C.c_int32, *args, C.POINTER(Error))


HANDLE = C.c_void_p


class Api(C.Structure):
    _fields_ = [("struct_size", C.c_uint64), ("abi_major", C.c_uint32), ("abi_minor", C.c_uint32),
                ("plugin_info", call(C.POINTER(Info))), ("init", call(C.POINTER(InitArgs), C.POINTER(HANDLE))),
                ("describe", C.c_void_p), ("pool_layout", C.c_void_p), ("prepare", call(HANDLE)),
                ("pool_create", call(HANDLE, C.POINTER(PoolArgs))), ("pool_tensors", C.c_void_p), ("reset", C.c_void_p),
                ("step_begin", call(HANDLE, C.POINTER(StepBeginArgs))),
                ("validate", call(HANDLE, C.POINTER(DecodeArgs))), ("decode", call(HANDLE, C.POINTER(DecodeArgs))),
                ("get_extension", C.CFUNCTYPE(C.c_void_p, C.c_char_p)), ("teardown", call(C.POINTER(HANDLE)))]


class VerifyApi(C.Structure):
    _fields_ = [("struct_size", C.c_uint64), ("verify_begin", call(HANDLE, C.POINTER(VerifyBeginArgs))),
                ("validate", call(HANDLE, C.POINTER(DecodeArgs))), ("verify", call(HANDLE, C.POINTER(DecodeArgs))),
                ("commit", call(HANDLE, C.POINTER(CommitArgs)))]


class PluginError(RuntimeError):

    def __init__(self, error):
        super().__init__(f"status {error.status}: {error.message.decode()}")
        self.status = error.status


def describe_tensor(tensor):
    """A DLTensor over the memory of a torch tensor. The caller keeps both alive."""
    code, bits = KIND[tensor.dtype]
    shape = (C.c_int64 * tensor.dim())(*tensor.shape)
    strides = (C.c_int64 * tensor.dim())(*tensor.stride())
    on_gpu = tensor.device.type == "cuda"
    made = DLTensor(tensor.data_ptr(), 2 if on_gpu else 1, tensor.device.index or 0 if on_gpu else 0, tensor.dim(), code,
                    bits, 1, shape, strides, 0)
    made.keep = tensor
    return made


class RoleArray:
    """DLTensor pointers indexed by role, `count` such arrays in a row."""

    def __init__(self, *roles):
        self.made = []
        self.array = (TENSOR * (ROLE_COUNT * len(roles)))()
        for i, named in enumerate(roles):
            for name, tensor in named.items():
                self.made.append(describe_tensor(tensor))
                self.array[i * ROLE_COUNT + ROLES[name]] = C.pointer(self.made[-1])

    def pointer(self):
        return C.cast(self.array, TENSORS)


def stream_of(device):
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


NO_SMALL_FLUSH = 1 << 4  # RSSM_INIT_NO_SMALL_FLUSH


class Plugin:
    """replayssm.so and its table."""

    def __init__(self, path):
        self.library = C.CDLL(path)
        self.library.replayssm_get_api.restype = C.POINTER(Api)
        table = self.library.replayssm_get_api(C.c_uint32(ABI_MAJOR))
        if not table:
            raise RuntimeError(f"{path} does not speak ABI {ABI_MAJOR}")
        self.api = table.contents
        info = Info()
        self.check(self.api.plugin_info(C.byref(info), None))
        self.version = info.version.decode()
        self.revision = info.git_revision.decode()

    def verify_api(self):
        table = self.api.get_extension(EXT_VERIFY)
        return C.cast(table, C.POINTER(VerifyApi)).contents if table else None

    @staticmethod
    def check(status, error=None):
        if status:
            raise PluginError(error) if error is not None else RuntimeError(f"status {status}")


class Instance:
    """One model on one device, on pool tensors of the caller: layers is a list of {role name: tensor}, cursor int32 [S, 4]."""

    def __init__(self, plugin, case, layers, cursor, ring_length, max_draft=0, flags=0):
        self.plugin, self.device, self.handle, self.error = plugin, cursor.device, HANDLE(), Error()
        self.keep = []
        dims = Dims(family=FAMILY[case.family], num_layers=len(layers), H=case.H, HV=case.HV, K=case.K, V=case.V)
        on_gpu = self.device.type == "cuda"
        args = InitArgs(dims=C.pointer(dims), device_type=2 if on_gpu else 1, device_id=self.device.index or 0 if on_gpu else 0,
                        ring_length=ring_length, max_draft_tokens=max_draft, io_dtype=DTYPE[case.io],
                        state_dtype=DTYPE[case.state], ring_dtype=DTYPE[case.io], max_batch=cursor.shape[0],
                        num_slots=cursor.shape[0], flags=flags)
        self.do(plugin.api.init, C.byref(args), C.byref(self.handle))
        self.do(plugin.api.prepare, self.handle)
        roles = RoleArray(*[dict(layer, cursor=cursor) if i == 0 else layer for i, layer in enumerate(layers)])
        pool = PoolArgs(tensors=roles.pointer(), num_roles=ROLE_COUNT, stream=stream_of(self.device))
        self.do(plugin.api.pool_create, self.handle, C.byref(pool))
        self.keep += [roles, cursor, layers]

    def do(self, function, *args):
        self.plugin.check(function(*args, C.byref(self.error)), self.error)

    def step_begin(self, slots, rows):
        tensors = [describe_tensor(slots), describe_tensor(rows)]
        args = StepBeginArgs(slots=C.pointer(tensors[0]), rows_out=C.pointer(tensors[1]), stream=stream_of(self.device))
        self.do(self.plugin.api.step_begin, self.handle, C.byref(args))

    def verify_begin(self, slots, cu_seqlens, rows, max_tokens):
        tensors = [describe_tensor(t) for t in (slots, cu_seqlens, rows)]
        args = VerifyBeginArgs(slots=C.pointer(tensors[0]), cu_seqlens=C.pointer(tensors[1]),
                               rows_out=C.pointer(tensors[2]), stream=stream_of(self.device), max_T=max_tokens)
        self.do(self.plugin.verify_api().verify_begin, self.handle, C.byref(args))

    def commit(self, rows, accepted):
        tensors = [describe_tensor(t) for t in (rows, accepted)]
        args = CommitArgs(rows=C.pointer(tensors[0]), accepted=C.pointer(tensors[1]), stream=stream_of(self.device))
        self.do(self.plugin.verify_api().commit, self.handle, C.byref(args))

    def launcher(self, layer, tensors, verify=False):
        """A function that enqueues this layer's step with these tensors ({role name: tensor}) on the current stream."""
        roles = RoleArray(tensors)
        args = DecodeArgs(tensors=roles.pointer(), num_tensors=ROLE_COUNT, layer=layer)
        api = self.plugin.verify_api() if verify else self.plugin.api
        step = api.verify if verify else api.decode

        def launch():
            args.stream = stream_of(self.device)
            self.do(step, self.handle, C.byref(args))

        launch.keep = roles, args
        return launch

    def close(self):
        self.do(self.plugin.api.teardown, C.byref(self.handle))
