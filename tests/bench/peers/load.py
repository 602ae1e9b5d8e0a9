"""Imports single kernel files of serving frameworks without the frameworks.

A kernel file of, say, vLLM imports its neighbours and a handful of framework helpers (platform, logger, an environment
variable). Here its package is found in a folder (or where it is installed), no __init__ on the way is executed but those
listed, and the helpers are replaced by what a CUDA machine would answer.
"""

import functools
import importlib
import importlib.machinery
import importlib.util
import pathlib
import sys
import types

import torch


class Unavailable(Exception):
    """Why a peer cannot run."""


def capability():
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)


class Platform:
    """current_platform of vLLM on a CUDA machine."""

    def is_cuda(self):
        return True

    is_cuda_alike = is_cuda

    def is_rocm(self):
        return False

    is_cpu = is_xpu = is_tpu = is_rocm

    def is_arch_support_pdl(self):
        return capability()[0] >= 9

    def is_device_capability_family(self, family):
        return capability()[0] == family // 10

    def is_device_capability(self, wanted):
        return capability() == tuple(divmod(wanted, 10) if isinstance(wanted, int) else wanted)

    def has_device_capability(self, wanted):
        return capability() >= tuple(divmod(wanted, 10) if isinstance(wanted, int) else wanted)


class Quiet:
    """A logger that says nothing, under any name."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def compiled(folder, name):
    """A module that a framework's own run-time compiler made: NAME.so, loaded as the framework would."""
    file = pathlib.Path(folder) / (name + ".so")
    if not file.exists():
        raise Unavailable(f"no {file.name} in {file.parent.name}/")
    try:
        return importlib.import_module("tvm_ffi").load_module(str(file))
    except ImportError as error:
        raise Unavailable(f"{file.name} needs tvm_ffi: {error}") from error


def stand_ins(name, folder=None):
    import triton
    import triton.language as tl
    import triton.language.extra.libdevice as tldevice
    if name == "vllm":
        return {
            "vllm.triton_utils": dict(triton=triton, tl=tl, tldevice=tldevice, HAS_TRITON=True),
            "vllm.platforms": dict(current_platform=Platform()),
            "vllm.logger": dict(init_logger=lambda name: Quiet()),
            "vllm.envs": dict(VLLM_TUNED_CONFIG_FOLDER=None),
            "vllm._custom_ops": {},
            "vllm.v1.attention.backends.utils": dict(NULL_BLOCK_ID=0, PAD_SLOT_ID=-1),
            "vllm.utils.platform_utils": dict(
                get_device_name_as_file_name=lambda: torch.cuda.get_device_name().replace(" ", "_")),
            "vllm.utils.math_utils": dict(cdiv=triton.cdiv, next_power_of_2=triton.next_power_of_2),
            "vllm.model_executor.layers.mamba.mamba_utils": dict(is_conv_state_dim_first=lambda: False),
        }
    if name == "sglang":
        no = lambda: False
        kernel = pathlib.Path(folder or ".") / "sglang_modules" / "kda_packed_decode.so"
        made = {
            "sglang.srt.utils": dict(is_gfx95_supported=no, is_cpu=no, is_npu=no, is_xpu=no, is_hip=no, is_cuda=lambda: True,
                                     get_device_sm=lambda: 10 * capability()[0] + capability()[1],
                                     is_sm90_supported=lambda: capability()[0] == 9),
            "sglang.srt.utils.common": dict(torch_release=tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])),
            "sglang.kernels.jit.utils": dict(
                is_arch_support_pdl=lambda: capability()[0] >= 9, cache_once=functools.cache, make_cpp_args=lambda *args: args,
                load_jit=lambda *args, **kwargs: compiled(kernel.parent, kernel.stem)),
        }
        if not kernel.exists():  # SGLang's CUDA kernel of the packed KDA step: without it Triton serves every case
            made["sglang.kernels.ops.attention.kda_packed_decode"] = dict(covered=lambda *args: False)
        return made
    if name == "fla":
        return {"fla": dict(__version__="unknown")}
    return {}


# Packages whose __init__ holds something that the kernel files need.
EXECUTED = {"sglang.kernels.ops.attention.helion", "fla.utils"}


class Finder:
    """Finds `package` under `root`; its folders become bare packages, modules that stand in come from a table."""

    def __init__(self, package, root, stand_ins):
        self.package, self.root, self.stand_ins = package, pathlib.Path(root), stand_ins

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != self.package:
            return None
        place = self.root.joinpath(*name.split(".")[1:])
        if name in self.stand_ins:
            spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        if place.is_dir():
            if name in EXECUTED and (place / "__init__.py").exists():
                return importlib.util.spec_from_file_location(name, place / "__init__.py",
                                                              submodule_search_locations=[str(place)])
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        file = place.with_suffix(".py")
        if file.exists():
            return importlib.util.spec_from_file_location(name, file)
        if any(known.startswith(name + ".") for known in self.stand_ins):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return types.ModuleType(spec.name)

    def exec_module(self, module):
        module.__dict__.update(self.stand_ins.get(module.__name__, {}))


class Library:
    """Where peers live: folders of the user first, then what is installed."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve() if folder else None
        self.finders = {}

    def root(self, package, under="."):
        if self.folder:
            place = self.folder / under / package
            if place.is_dir():
                return place
        if under == ".":
            spec = importlib.util.find_spec(package)
            if spec is not None and spec.submodule_search_locations:
                return pathlib.Path(list(spec.submodule_search_locations)[0])
        raise Unavailable(f"{package} is not installed and not in the peers' folder" +
                          ("" if under == "." else f" under {under}/"))

    def module(self, name):
        """A module of a framework, which stays importable (its kernels may import more when they are called)."""
        package = name.split(".")[0]
        if package not in self.finders:
            finder = Finder(package, self.root(package), stand_ins(package, self.folder))
            self.finders[package] = finder
            sys.meta_path.insert(0, finder)
        return self.fetch(name)

    def isolated(self, name, under):
        """A module of another tree of the same package: its modules are forgotten again."""
        package = name.split(".")[0]
        kept = {n: sys.modules.pop(n) for n in list(sys.modules) if n.split(".")[0] == package}
        finder = Finder(package, self.root(package, under), stand_ins(package))
        sys.meta_path.insert(0, finder)
        try:
            return self.fetch(name)
        finally:
            sys.meta_path.remove(finder)
            for n in [n for n in sys.modules if n.split(".")[0] == package]:
                del sys.modules[n]
            sys.modules.update(kept)

    @staticmethod
    def fetch(name):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise Unavailable(f"{name}: {error}") from error
