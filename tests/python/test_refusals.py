"""Bad input of every kind that NumPy can make: an exception with the plugin's message and fields, and nothing changed."""

import os
import unittest

import numpy as np

import replayssm
import support as s
from replayssm import Dims, Status, Tensor, view


class Calls(s.Case):

    def setUp(self):
        self.plugin = s.open_plugin("gdn")
        self.addCleanup(self.plugin.close)
        rng = np.random.default_rng(1)
        self.rows = s.new_rows(2)
        self.plugin.step_begin(np.array([0, 1]), self.rows)
        self.tensors = {"rows": self.rows, **s.random_weights(rng, "gdn"), **s.random_inputs(rng, "gdn", 2)}

    def decode_refused(self, status, layer=0, says=None, role=None, **changed):
        """decode refuses it, and neither out nor the pool changed."""
        def everything():
            arrays = [t.numpy().copy() for i in range(s.LAYERS) for t in self.plugin.pool_tensors(i).values()]
            return arrays + [self.tensors["out"].copy()]
        before = everything()
        error = self.refused(status, self.plugin.decode, layer, says=says, role=role, **{**self.tensors, **changed})
        for old, new in zip(before, everything()):
            np.testing.assert_array_equal(old, new)
        return error

    def test_good(self):
        self.plugin.validate(0, **self.tensors)
        self.plugin.decode(0, **self.tensors)
        self.assertTrue(np.isfinite(self.tensors["out"]).all())

    def test_shape(self):
        out = np.zeros((2, s.SHAPE.HV + 1, s.SHAPE.V), np.float32)
        error = self.decode_refused(Status.SHAPE, role="out", out=out, says="`out` must have shape")
        self.assertEqual((error.dim, error.expected, error.got), (1, s.SHAPE.HV, s.SHAPE.HV + 1))
        self.decode_refused(Status.SHAPE, role="A_log", A_log=np.zeros((), np.float32))

    def test_dtype(self):
        error = self.decode_refused(Status.DTYPE, role="mixed_qkv", mixed_qkv=self.tensors["mixed_qkv"].astype(np.float16))
        self.assertEqual((error.expected, error.got), (32, 16))
        for dtype in (np.float64, np.complex64, np.int32):
            self.decode_refused(Status.DTYPE, role="a", a=self.tensors["a"].astype(dtype))
        self.decode_refused(Status.DTYPE, role="rows", rows=self.rows.astype(np.int64))
        self.decode_refused(Status.ARGUMENT, role="a", a=self.tensors["a"].astype("S4"))
        self.decode_refused(Status.ARGUMENT, role="a", a=self.tensors["a"].astype(">f4"))

    def test_stride(self):
        wide = np.zeros((2, 2 * s.channels()), np.float32)
        self.decode_refused(Status.STRIDE, role="mixed_qkv", mixed_qkv=wide[:, ::2])
        self.decode_refused(Status.STRIDE, role="mixed_qkv", mixed_qkv=self.tensors["mixed_qkv"][::-1])
        out = np.zeros((s.SHAPE.V, s.SHAPE.HV, 2), np.float32).T
        self.decode_refused(Status.STRIDE, role="out", out=out)
        one_row = np.broadcast_to(np.zeros((1, s.SHAPE.HV, s.SHAPE.V), np.float32), (2, s.SHAPE.HV, s.SHAPE.V))
        self.decode_refused(Status.ARGUMENT, role="out", out=one_row, says="read-only")
        one_row = np.lib.stride_tricks.as_strided(np.zeros(s.SHAPE.HV * s.SHAPE.V, np.float32), one_row.shape, one_row.strides)
        self.decode_refused(Status.STRIDE, role="out", out=one_row)

    def test_missing_and_foreign(self):
        self.decode_refused(Status.MISSING, role="A_log", A_log=None)
        self.decode_refused(Status.MISSING, out=None, role="out")
        self.decode_refused(Status.ROLE, z=self.tensors["out"], says="`z` is not a tensor of a gdn decode", role="z")
        self.decode_refused(Status.ROLE, says="no tensor role", mixed_kqv=self.tensors["mixed_qkv"])

    def test_read_only(self):
        for name in ("out", "state"):
            array = self.tensors["out"].copy() if name == "out" else self.plugin.pool_tensors(0)["state"].numpy().copy()
            array.flags.writeable = False
            self.decode_refused(Status.ARGUMENT, role=name, says="read-only", **{name: array})
        rows = s.new_rows(2)
        rows.flags.writeable = False
        self.refused(Status.ARGUMENT, self.plugin.step_begin, np.array([0, 1]), rows, says="read-only")
        t = self.tensors["out"]
        self.decode_refused(Status.ARGUMENT, role="out", says="read-only",
                            out=Tensor(t.ctypes.data, t.shape, "float32", owner=t, readonly=True))

    def test_read_only_inputs_are_fine(self):
        for t in (self.tensors["mixed_qkv"], self.tensors["a"], self.tensors["A_log"]):
            t.flags.writeable = False
        self.plugin.decode(0, **self.tensors)

    def test_overlap(self):
        self.decode_refused(Status.OVERLAP, role="out", out=self.tensors["mixed_qkv"][:, :s.SHAPE.HV * s.SHAPE.V])

    def test_device(self):
        t = self.tensors["out"]
        error = self.decode_refused(Status.DEVICE, role="out", says="`out` must be on cpu",
                                    out=Tensor(t.ctypes.data, t.shape, "float32", device=(2, 0)))
        self.assertEqual((error.expected, error.got), (1, 2))

    def test_null_and_alignment(self):
        t = self.tensors["out"]
        self.decode_refused(Status.ARGUMENT, role="out", says="NULL", out=Tensor(0, t.shape, "float32"))
        self.decode_refused(Status.ALIGNMENT, role="out", out=Tensor(t.ctypes.data + 1, t.shape, "float32"))
        memory = np.zeros(s.SLOTS * s.SHAPE.HV * s.SHAPE.V * s.SHAPE.K + 8, np.float32)
        shape = (s.SLOTS, s.SHAPE.HV, s.SHAPE.V, s.SHAPE.K)
        start = memory.ctypes.data + 16 - memory.ctypes.data % 16 + 4
        self.decode_refused(Status.ALIGNMENT, role="state", state=Tensor(start, shape, "float32", owner=memory))

    def test_not_a_tensor(self):
        for thing in (5, [1.0], "out", object(), np.float32):
            self.decode_refused(Status.ARGUMENT, role="a", a=thing)

    def test_broken_producers(self):
        class Producer:
            def __init__(self, made):
                self.made = made

            def __dlpack_device__(self):
                return 1, 0

            def __dlpack__(self, **_):
                if isinstance(self.made, Exception):
                    raise self.made
                return self.made

        used = np.zeros(2, np.float32).__dlpack__()
        np.from_dlpack(Producer(used))  # consumes it
        for made in (None, 7, used, BufferError("requires grad"), RuntimeError("sparse")):
            error = self.decode_refused(Status.ARGUMENT, role="a", a=Producer(made))
            if isinstance(made, Exception):
                self.assertIn(str(made), str(error))

    def test_layer(self):
        self.decode_refused(Status.ARGUMENT, layer=s.LAYERS, says="layer = 2 is not in 0..1")
        self.decode_refused(Status.ARGUMENT, layer=-1)
        with self.assertRaises(OverflowError):
            self.plugin.decode(2**32, **self.tensors)
        self.refused(Status.ARGUMENT, self.plugin.pool_tensors, s.LAYERS)

    def test_deep(self):
        self.refused(Status.VALUE, self.plugin.step_begin, np.array([2, 2]), s.new_rows(2), check=True)
        self.decode_refused(Status.VALUE, role="rows", rows=np.repeat(self.rows[:1], 2, 0), check=True)

    def test_faults(self):
        """A bad index without check is a padding row: zeros, and a fault word where the cursor is bad."""
        rows = s.new_rows(2)
        self.plugin.step_begin(np.array([s.SLOTS, -1]), rows)
        self.plugin.decode(0, **{**self.tensors, "rows": rows})
        self.assertFalse(self.tensors["out"].any())
        self.assertEqual(self.plugin.fault(), replayssm.Fault(0))
        rows[:] = [0, 99, 0, 0, 0, 0, 1, 0]
        self.plugin.decode(0, **{**self.tensors, "rows": rows})
        self.assertEqual(self.plugin.fault(), replayssm.Fault.CURSOR)
        self.plugin.clear_fault()
        self.assertEqual(self.plugin.fault(), replayssm.Fault(0))

    def test_closed(self):
        step = self.plugin.bind(0, **self.tensors)
        self.plugin.close()
        self.plugin.close()
        for call in (step, self.plugin.describe, self.plugin.prepare, self.plugin.reset, self.plugin.fault,
                     lambda: self.plugin.decode(0, **self.tensors), lambda: self.plugin.pool_tensors(0),
                     lambda: self.plugin.slots.save(0)):
            self.refused(Status.STATE, call, says="closed")

    def test_views(self):
        self.refused(Status.DTYPE, view, np.zeros(3, np.float32), "bfloat16")
        self.refused(Status.DTYPE, view, np.zeros(3, np.float32), "float8")
        self.refused(Status.STRIDE, Tensor, 16, (2, 3), "float32", strides=(1,))

    def test_stream_objects(self):
        self.refused(Status.ARGUMENT, self.plugin.decode, 0, stream="main", **self.tensors)


class Instances(s.Case):

    def test_init(self):
        init = s.library().init
        self.refused(Status.IO, init, "/nowhere/config.json", says="no such file")
        self.refused(Status.JSON, init, '{"a": 1,, "b": 2}')
        self.refused(Status.MODEL, init, {"model_type": "mamba", "architectures": ["MambaForCausalLM"]})
        self.refused(Status.TP, init, Dims("gdn", 2, 4, 8, 8), tp_size=3)
        self.refused(Status.MODEL, init, Dims("rwkv", 2, 4, 8, 8))
        self.refused(Status.DTYPE, init, Dims("gdn", 2, 4, 8, 8), io_dtype="float8")
        self.refused(Status.DTYPE, init, Dims("gdn", 2, 4, 8, 8), io_dtype=np.float64)
        self.refused(Status.DEVICE, init, Dims("gdn", 2, 4, 8, 8), device="tpu")
        self.refused(Status.ARGUMENT, init, "a\0b")
        for option in ("ring_length", "num_slots", "max_batch", "tp_rank"):
            with self.assertRaises(s.ReplayError):
                init(Dims("gdn", 2, 4, 8, 8), **{option: -1})
            with self.assertRaises(OverflowError):
                init(Dims("gdn", 2, 4, 8, 8), **{option: 2**64 + 4})

    def test_order(self):
        with s.open_plugin("gdn", pool=False) as plugin:
            self.refused(Status.STATE, plugin.reset)
            self.refused(Status.STATE, plugin.pool_tensors, 0)
            self.refused(Status.STATE, plugin.pool_create)
            plugin.prepare()
            plugin.prepare()
            plugin.pool_create()
            self.refused(Status.STATE, plugin.pool_create)

    def test_bad_pools(self):
        with s.open_plugin("gdn", pool=False) as plugin:
            plugin.prepare()
            layout = plugin.pool_layout()
            memory = np.zeros(layout.slab_bytes + 512, np.uint8)
            start = -memory.ctypes.data % 256
            aligned = memory[start:start + layout.slab_bytes]
            self.refused(Status.ALIGNMENT, plugin.pool_create, slab=memory[start + 8:][:layout.slab_bytes])
            with self.assertRaises(s.ReplayError):
                plugin.pool_create(slab=aligned[:-1])
            self.refused(Status.STRIDE, plugin.pool_create, slab=np.zeros((2, 2 * layout.slab_bytes), np.uint8)[:, ::2])
            self.refused(Status.ARGUMENT, plugin.pool_create, slab=aligned, tensors=[{}])
            self.refused(Status.SHAPE, plugin.pool_create, tensors=[{}])
            self.refused(Status.MISSING, plugin.pool_create, tensors=[{}, {}])
            self.refused(Status.ROLE, plugin.pool_create, tensors=[{"stat": aligned}, {}])
            gpu = Tensor(aligned.ctypes.data, aligned.shape, "uint8", device=(2, 0))
            self.refused(Status.DEVICE, plugin.pool_create, slab=gpu)
            aligned.flags.writeable = False
            self.refused(Status.ARGUMENT, plugin.pool_create, slab=aligned, says="read-only")
            plugin.pool_create()

    def test_cuda_that_is_not_there(self):
        if "cuda" in s.library().info.backends:
            self.skipTest("this plugin has CUDA")
        self.refused(Status.UNSUPPORTED, s.library().init, Dims("gdn", 2, 4, 8, 8), device="cuda:0")

    def test_not_a_plugin(self):
        self.assertRaises(OSError, replayssm.load, "/nowhere/replayssm.so")
        self.assertRaises(OSError, replayssm.load, os.fspath(s.ROOT / "README.md"))
        self.assertRaises(OSError, replayssm.load, "libc.so.6")


if __name__ == "__main__":
    unittest.main()
