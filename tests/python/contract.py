#!/usr/bin/env python3
"""Runs SGLang's or vLLM's own tests of their ReplaySSM decode functions against the adapters of examples/python.

    RSSM_PLUGIN=build/plugin/replayssm.so python3 tests/python/contract.py TEST_FILE [--theirs FOLDER] [options] [-- PYTEST OPTIONS]

TEST_FILE is theirs, as fetched. Wherever it imports one of the functions from, it gets the adapter's. The kernels that it compares
with come from their sources, FOLDER/sglang or FOLDER/vllm (on the CPU: Triton's interpreter), or with --oracle plain from plain.py,
this project's float64 recurrence. What is in neither is skipped where a test calls it, by name. Needs PyTorch and pytest.
docs/adapters.md has the outcomes.
"""

import argparse
import collections
import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "examples" / "python"), str(ROOT / "tests" / "bench" / "peers"), str(HERE)]
sys.dont_write_bytecode = True

ADAPTED = {
    "sglang": ("fused_recurrent_linear_replayssm_decode", "fused_recurrent_gdn_replayssm_decode",
               "helion_fused_recurrent_kda_replayssm_decode"),
    "vllm": ("fused_recurrent_gated_delta_rule_replayssm", "selective_state_update_replayssm_output_only",
             "selective_state_update_replayssm_state_and_output"),
}
PLAIN = {
    "sglang": {
        "fused_recurrent_gated_delta_rule_packed_decode": "packed_decode",
        "fused_recurrent_kda_packed_decode": "packed_decode",
        "helion_fused_recurrent_kda_packed_decode": "packed_decode"
    },
    "vllm": {
        "fused_recurrent_gated_delta_rule_packed_decode": "vllm_packed_decode",
        "selective_state_update": "selective_state_update"
    },
}
# What their packages' __init__ passes on, which is not run.
PASSED_ON = {
    "fused_recurrent_gated_delta_rule_packed_decode": "vllm.model_executor.layers.fla.ops.fused_recurrent",
    "chunk_gated_delta_rule": "vllm.model_executor.layers.fla.ops.chunk",
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test_file", type=pathlib.Path)
    parser.add_argument("--theirs", type=pathlib.Path, help="folder with their package, sglang/ or vllm/")
    parser.add_argument("--oracle", choices=("theirs", "plain"), default="theirs")
    parser.add_argument("--replace", action="append", metavar="NAME", help="only this function by the adapter's (default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--package", choices=tuple(ADAPTED), help="(default: what the file imports)")
    args, rest = parser.parse_known_args()
    return args, [option for option in rest if option != "--"]


class Absent:
    """Something of theirs that is not there: a test that uses it is skipped."""

    def __init__(self, name, reason):
        self._name, self._reason = name, reason

    def _skip(self, *args, **kwargs):
        import pytest
        pytest.skip(f"needs {self._name} ({self._reason})")

    __call__ = _skip
    __signature__ = property(_skip)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}", self._reason)


def stand_ins():
    """Of their test harness."""
    import torch
    nothing = dict(register_cuda_ci=lambda **_: None, register_amd_ci=lambda **_: None)
    return {
        "sglang.test.ci.ci_register": nothing,
        "sglang.test.test_utils": dict(CustomTestCase=unittest.TestCase),
        "vllm.utils.torch_utils": dict(set_random_seed=torch.manual_seed),
        "vllm.v1.attention.backends.utils": dict(NULL_BLOCK_ID=0, PAD_SLOT_ID=-1),
    }


def device_name():
    import torch
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


class Package:
    """Finds every module of `name`: theirs where there is a source that can be run here, else one whose every name is Absent. In
    each, `overlay` goes before what it has."""

    def __init__(self, name, folder, overlay):
        self.name, self.overlay, self.stand_ins, self.specs = name, overlay, stand_ins(), {}
        self.inner, self.why = None, "no --theirs"
        if folder:
            import load
            load.Platform.get_device_name = lambda self, index=0: device_name()
            self.inner = load.Finder(name, folder / name, {**load.stand_ins(name, folder), **self.stand_ins})
            self.why = f"not in {folder.name}/{name}"

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != self.name:
            return None
        inner = self.inner.find_spec(name) if self.inner and name not in self.stand_ins else None
        folders = None if inner and inner.submodule_search_locations is None else []
        spec = importlib.machinery.ModuleSpec(name, self, is_package=folders is not None)
        self.specs[name] = inner
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        inner, why = self.specs[module.__name__], self.why
        module.__dict__.update(self.stand_ins.get(module.__name__, {}))
        try:
            if inner and inner.loader:
                module.__file__ = getattr(inner, "origin", None)
                inner.loader.exec_module(module)
        except Exception as error:  # needs a compiler, a GPU, a package that is not here
            why = f"{type(error).__name__}: {error}"
        module.__dict__.update({name: interpretable(value) for name, value in module.__dict__.items()})
        module.__dict__.update({name: made for name, made in self.overlay.items() if name in module.__dict__})
        module.__getattr__ = lambda name: self.missing(module.__name__, name, why)

    def missing(self, module, name, why):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.overlay:
            return self.overlay[name]
        if self.inner and self.inner.find_spec(f"{module}.{name}"):
            return importlib.import_module(f"{module}.{name}")
        if name in PASSED_ON and PASSED_ON[name] != module and self.name == "vllm":
            return getattr(importlib.import_module(PASSED_ON[name]), name)
        return Absent(f"{module}.{name}", why)


def interpretable(value):
    """A built-in of Triton under a name of theirs (exp = tl.exp), which the interpreter does not see to."""
    if os.environ.get("TRITON_INTERPRET") != "1" or getattr(value, "__triton_builtin__", None) is not True:
        return value
    from triton.runtime.interpreter import interpreter_semantic
    return lambda *args, **kwargs: value(*args, **{**kwargs, "_semantic": interpreter_semantic})


class Outcomes:
    """A pytest plugin: what became of each test, by function."""

    def __init__(self):
        self.of = collections.defaultdict(collections.Counter)
        self.reasons = collections.defaultdict(collections.Counter)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            name = report.nodeid.split("::")[-1].split("[")[0]
            self.of[name][report.outcome] += 1
            if report.outcome != "passed":
                self.reasons[name][reason_of(report)] += 1

    def table(self):
        print("\n| test | passed | failed | skipped | why |\n| --- | ---: | ---: | ---: | --- |")
        for name, count in self.of.items():
            why = "; ".join(f"{text} ({n})" for text, n in self.reasons[name].most_common(3))
            print(f"| {name} | {count['passed']} | {count['failed']} | {count['skipped']} | {why} |")


def reason_of(report):
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E  ")]
    return (lines or [str(report.longrepr)])[0].removeprefix("E").strip()[:160]


def on_cpu(text, torch):
    """Their test with "cpu" for "cuda"; what only a GPU can do is skipped."""

    def needs_gpu(*args, **kwargs):
        import pytest
        pytest.skip("needs a GPU")

    torch.accelerator.device_index = contextlib.nullcontext
    torch.cuda.CUDAGraph = torch.cuda.graph = torch.cuda.synchronize = needs_gpu
    return text.replace('"cuda"', '"cpu"').replace("torch.cuda.is_available()", "True")


def mend_interpreter():
    """Three faults of Triton 3.9's interpreter: masks that `&` of a tensor and a scalar made integers are refused; a dot takes
    bfloat16 operands, which are kept as uint16, for integers; float32 is cut to bfloat16 where a GPU rounds to nearest."""
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def masked_load(self, ptrs, mask, *rest):
        return load(self, ptrs, TensorHandle(mask.data.astype(bool), tl.int1), *rest)

    def masked_store(self, ptrs, value, mask, *rest):
        return store(self, ptrs, value, TensorHandle(mask.data.astype(bool), tl.int1), *rest)

    def widened(t):
        if t.dtype.scalar != tl.bfloat16:
            return t
        return TensorHandle((t.data.astype(numpy.uint32) << 16).view(numpy.float32), tl.float32)

    def rounding_cast(self, src, dst_type):
        if src.dtype.scalar != tl.float32 or dst_type.scalar != tl.bfloat16:
            return cast(self, src, dst_type)
        bits = numpy.ascontiguousarray(src.data).view(numpy.uint32)
        return TensorHandle(((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(numpy.uint16), tl.bfloat16)

    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = masked_load, masked_store
    InterpreterBuilder.cast_impl = rounding_cast
    InterpreterBuilder.create_dot = lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)


def main():
    args, options = arguments()
    if args.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    try:
        import pytest
        import torch
    except ImportError as error:
        sys.exit(f"SKIP: {error}")
    import plain
    import sglang_adapter
    import vllm_adapter
    if args.device == "cpu" and args.theirs:
        mend_interpreter()
    text = args.test_file.read_text()
    package = args.package or next(name for name in ADAPTED if f"from {name}." in text)
    adapter = {"sglang": sglang_adapter, "vllm": vllm_adapter}[package]
    overlay = {name: getattr(adapter, name) for name in args.replace or ADAPTED[package]}
    if args.oracle == "plain":
        overlay.update({theirs: getattr(plain, ours) for theirs, ours in PLAIN[package].items()})
    sys.meta_path.insert(0, Package(package, args.theirs and args.theirs.resolve(), overlay))
    if importlib.util.find_spec("helion") is None:
        sys.modules["helion"] = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("helion", None))
    root = next((p for p in args.test_file.resolve().parents if p.name == "tests"), None)
    if root:
        sys.path.insert(0, str(root.parent))  # for what tests import from tests
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / args.test_file.name
        copy.write_text(on_cpu(text, torch) if args.device == "cpu" else text)
        code = pytest.main(
            [str(copy), "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", f"--rootdir={folder}", *options],
            plugins=[outcomes])
    outcomes.table()
    print(
        f"\nadapted: {', '.join(sorted(set(overlay) & set(ADAPTED[package])))}; oracle: {args.oracle}; device: {args.device}; "
        f"torch {torch.__version__}; instances made and kept: {len(adapter.instances)}")
    adapter.close()
    sys.exit(int(code))


if __name__ == "__main__":
    main()
