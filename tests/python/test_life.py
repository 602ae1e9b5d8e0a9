"""The whole life of an instance on the CPU, in the three families, against the recurrence in float64."""

import json
import os
import subprocess
import sys
import threading
import unittest

import numpy as np

import support as s
from replayssm import Dims, Fault, Status, view


class Life(s.Case):

    def run_steps(self, family, plugin, steps=3 * s.RING + 1):
        """Random batches; the worst distance of an output, and the recurrences."""
        rng = np.random.default_rng(7)
        weights = [s.random_weights(rng, family) for _ in range(s.LAYERS)]
        exact = [s.Recurrence(family, w) for w in weights]
        worst = 0
        for _ in range(steps):
            slots = rng.permutation(s.SLOTS)[:4].astype(np.int32)
            rows = s.new_rows(4)
            plugin.step_begin(slots, rows, check=True)
            for layer in range(s.LAYERS):
                inputs = s.random_inputs(rng, family, 4)
                plugin.decode(layer, rows=rows, check=True, **weights[layer], **inputs)
                worst = max(worst, s.distance(inputs["out"], exact[layer].step(slots, inputs)))
        return worst, weights, exact

    def test_decode_and_export(self):
        for family in s.FAMILIES:
            with self.subTest(family), s.open_plugin(family) as plugin:
                worst, weights, exact = self.run_steps(family, plugin)
                self.assertLess(worst, 2e-6)
                slots = np.arange(s.SLOTS)
                states = [np.full(r.S.shape, np.nan, np.float32) for r in exact]
                more = {"A_log": [w["A_log"] for w in weights]} if family == "mamba2" else {}
                plugin.slots.export_state(slots, states, **more)
                for state, r in zip(states, exact):
                    self.assertLess(s.distance(state, r.S), 1e-6)
                self.assertEqual(plugin.fault(), Fault(0))

    def test_own_memory(self):
        """A slab, and tensors one by one, work as the plugin's own memory does, bit for bit."""
        for family in s.FAMILIES:
            with self.subTest(family):
                results = []
                for kind in ("own", "slab", "tensors"):
                    with s.open_plugin(family, pool=False) as plugin:
                        plugin.prepare()
                        layout = plugin.pool_layout()
                        if kind == "slab":
                            memory = np.full(layout.slab_bytes + 256, 0xff, np.uint8)
                            start = -memory.ctypes.data % 256
                            plugin.pool_create(slab=memory[start:start + layout.slab_bytes])
                        elif kind == "tensors":
                            plugin.pool_create(tensors=self.tensors_of(layout))
                        else:
                            plugin.pool_create()
                        plugin.reset()
                        self.run_steps(family, plugin)
                        results.append(plugin.pool_tensors(1)["state"].numpy().copy())
                self.assertTrue(results[0].any())
                for other in results[1:]:
                    np.testing.assert_array_equal(results[0], other)

    @staticmethod
    def tensors_of(layout):
        types = {"float32": np.float32, "int32": np.int32}
        make = lambda t: np.full(t.shape, -1, types[t.dtype_name])  # noqa: E731
        return [{t.role: make(t) for t in layout.tensors if t.per_layer or layer == 0} for layer in range(layout.num_layers)]

    def test_host_kept_cursor_and_bind(self):
        """write_pos instead of rows, through a bound step, on one slot of row numbers."""
        for family in s.FAMILIES:
            with self.subTest(family), s.open_plugin(family) as plugin:
                rng = np.random.default_rng(3)
                weights = s.random_weights(rng, family)
                exact, inputs = s.Recurrence(family, weights), s.random_inputs(rng, family, 2)
                position, slots = np.zeros(2, np.int32), np.array([5, 1])
                step = plugin.bind(0, write_pos=position, state_indices=slots, **weights, **inputs)
                for _ in range(2 * s.RING):
                    for name, fresh in s.random_inputs(rng, family, 2).items():
                        inputs[name][...] = fresh
                    step()
                    self.assertLess(s.distance(inputs["out"], exact.step(slots, inputs)), 2e-6)
                    position[...] = np.where(position >= s.RING - 1, 0, position + 1)

    def test_bfloat16_as_uint16(self):
        """16-bit tensors that NumPy has no type for, and strided rows."""
        with s.open_plugin("gdn", io_dtype="bfloat16") as plugin:
            rng = np.random.default_rng(5)
            weights, exact_inputs, inputs = s.random_weights(rng, "gdn"), s.random_inputs(rng, "gdn", 3), {}
            for name, x in exact_inputs.items():
                bits = np.ascontiguousarray(x).view(np.uint32)
                exact_inputs[name] = (bits & 0xffff0000).view(np.float32)
                wide = np.zeros((3, *x.shape[1:-1], 2 * x.shape[-1]) if x.ndim == 2 else x.shape, np.uint16)
                part = wide[..., :x.shape[-1]]
                part[...] = bits >> 16
                inputs[name] = part
            rows = s.new_rows(3)
            plugin.step_begin(np.array([0, 4, 2]), rows)
            plugin.decode(0, rows=rows, **weights, **{name: view(x, "bfloat16") for name, x in inputs.items()})
            got = (inputs["out"].astype(np.uint32) << 16).view(np.float32)
            exact = s.Recurrence("gdn", weights).step([0, 4, 2], exact_inputs)
            self.assertLess(s.distance(got, exact), 2.5e-3)  # half a unit of 8 bits, at the root mean square

    def test_describe_and_layout(self):
        with s.open_plugin("kda", pool=False) as plugin:
            d, layout = plugin.describe(), plugin.pool_layout()
            self.assertEqual((d.family_name, d.H, d.HV, d.K, d.V, d.ring_length), ("kda", *s.SHAPE, s.RING))
            self.assertEqual(d.linear_layers, (0, 1))
            self.assertTrue(d.assumed or d.read or d.layout_text)
            tensors = {t.role: t for t in layout.tensors}
            self.assertEqual(tensors["d_cache"].shape, (s.SLOTS, s.SHAPE.HV, s.RING, s.SHAPE.V))
            self.assertEqual(tensors["cursor"].shape, (s.SLOTS, 4))
            self.assertEqual(layout.layout_hash, d.layout_hash)

    def test_config_forms(self):
        path = s.ROOT / "configs" / "qwen3.5-35b-a3b.json"
        text = path.read_text()
        hashes = set()
        for config in (path, str(path), text, text.encode(), json.loads(text)):
            with s.library().init(config, tp_size=4, num_slots=3) as plugin:
                self.assertEqual(plugin.describe().family_name, "gdn")
                hashes.add(plugin.describe().layout_hash)
        self.assertEqual(len(hashes), 1)

    def test_log(self):
        lines = []
        with s.library().init(Dims("gdn", *s.SHAPE), num_slots=2, log=lambda level, line: lines.append((level, line))) as plugin:
            plugin.prepare()
        for level, line in lines:
            self.assertIn(level, (0, 1, 2, 3))
            self.assertNotIn("\n", line)

    def test_views_outlive_close(self):
        """Memory of the plugin's own pool stays while an array shows it."""
        plugin = s.open_plugin("gdn")
        plugin_tensor = plugin.pool_tensors(0)["state"]
        array = plugin_tensor.numpy()
        array[...] = 5
        plugin.close()
        self.assertTrue(plugin.closed)
        self.assertTrue((array == 5).all())
        again = np.from_dlpack(plugin_tensor)
        self.assertEqual(again.ctypes.data, array.ctypes.data)
        self.assertTrue((again == 5).all())
        self.assertTrue(plugin._instance.alive)
        instance = plugin._instance
        del array, plugin_tensor
        self.assertTrue(instance.alive)
        del again
        self.assertFalse(instance.alive)

    def test_forgotten_and_many(self):
        """Instances that nobody closes, and capsules that nobody consumes, leave nothing behind."""
        from replayssm import dlpack
        before = len(dlpack._exported)
        for _ in range(50):
            plugin = s.open_plugin("kda")
            for version in (None, (1, 0)):
                plugin.pool_tensors(0)["state"].__dlpack__(max_version=version)
        del plugin
        self.assertEqual(len(dlpack._exported), before)

    def test_end_of_the_process(self):
        """Views and instances that are alive when the interpreter ends."""
        code = ("import numpy as np, support as s; p = s.open_plugin('gdn'); t = p.pool_tensors(0)['state']; "
                "a, b, c = t.numpy(), np.from_dlpack(t), t.__dlpack__(); a[...] = 1; print(int(b[0, 0, 0, 0]))")
        done = subprocess.run([sys.executable, "-B", "-c", code], cwd=os.path.dirname(os.path.abspath(__file__)), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "1\n", ""))

    def test_threads(self):
        """Instances side by side."""
        failed = []

        def work(family):
            try:
                with s.open_plugin(family) as plugin:
                    if self.run_steps(family, plugin)[0] > 2e-6:
                        failed.append(family)
            except Exception as error:  # in a thread: reported below
                failed.append(error)

        threads = [threading.Thread(target=work, args=(family,)) for family in s.FAMILIES * 2]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failed, [])


class Extensions(s.Case):

    def test_verify_and_commit(self):
        """Windows of which a part is kept, against the recurrence fed with the kept tokens."""
        for family in s.FAMILIES:
            with self.subTest(family), s.open_plugin(family, max_draft_tokens=2) as plugin:
                rng = np.random.default_rng(11)
                weights = [s.random_weights(rng, family) for _ in range(s.LAYERS)]
                exact = [s.Recurrence(family, w) for w in weights]
                slots = np.array([3, 0])
                for _ in range(8):
                    lengths = rng.integers(1, 4, 2)
                    seqlens = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
                    accepted = np.array([rng.integers(0, n + 1) for n in lengths], np.int32)
                    rows = s.new_rows(2)
                    plugin.verify.begin(slots, seqlens, rows, max_T=3, check=True)
                    for layer in range(s.LAYERS):
                        inputs = s.random_inputs(rng, family, int(seqlens[-1]))
                        plugin.verify.decode(layer, rows=rows, check=True, **weights[layer], **inputs)
                        self.check_window(exact[layer], slots, seqlens, accepted, inputs)
                    plugin.verify.commit(rows, accepted, check=True)
                self.assertEqual(plugin.fault(), Fault(0))

    def check_window(self, exact, slots, seqlens, accepted, inputs):
        for row, slot in enumerate(slots):
            first, end, kept = seqlens[row], seqlens[row + 1], exact.S[slot].copy()
            for i in range(first, end):
                out = exact.step([slot], {name: t[i:i + 1] for name, t in inputs.items()})
                self.assertLess(s.distance(inputs["out"][i], out[0]), 2e-6)
                if i - first + 1 == accepted[row]:
                    kept = exact.S[slot].copy()
            exact.S[slot] = kept

    def test_save_load_copy_flush_import(self):
        for family in s.FAMILIES:
            with self.subTest(family), s.open_plugin(family) as plugin:
                _, weights, exact = Life.run_steps(self, family, plugin)
                more = {"A_log": [w["A_log"] for w in weights]} if family == "mamba2" else {}
                saved = plugin.slots.save(2)
                self.assertEqual(len(saved), plugin.slots.saved_bytes())
                plugin.slots.load(5, saved)
                self.assertEqual(plugin.slots.save(5), saved)
                plugin.slots.copy(np.array([2]), np.array([4]), check=True)
                self.assertEqual(plugin.slots.save(4), saved)
                plugin.slots.flush(np.array([4]), **more)
                state = plugin.pool_tensors(0)["state"].numpy()
                self.assertLess(s.distance(state[4], exact[0].S[2]), 1e-6)
                turned = [np.ascontiguousarray(r.S[2:3].swapaxes(2, 3).astype(np.float32)) for r in exact]
                plugin.slots.import_state(np.array([0]), turned, order=1)
                np.testing.assert_array_equal(state[0], exact[0].S[2].astype(np.float32))
                broken = bytearray(saved)
                broken[-1] ^= 1
                self.refused(Status.STREAM_DATA, plugin.slots.load, 1, bytes(broken), says="damaged")
                self.refused(Status.VALUE, plugin.slots.save, s.SLOTS)

    def test_acquire_release(self):
        with s.open_plugin("gdn", pad_slot=3) as plugin:
            held = dict(plugin.slots.acquire() for _ in range(s.SLOTS - 1))
            self.assertEqual(sorted(held.values()), [0, 1, 2, 4, 5])
            self.refused(Status.NO_SLOT, plugin.slots.acquire)
            handle, slot = held.popitem()
            self.assertEqual(plugin.slots.check(handle), slot)
            plugin.slots.release(handle)
            self.refused(Status.HANDLE, plugin.slots.release, handle)
            self.refused(Status.HANDLE, plugin.slots.check, handle)

    def test_conv(self):
        """The convolution against its formula, with history."""
        width, channels, steps = 4, s.channels(), 9
        with s.open_plugin("gdn", conv_kernel=width, conv_state=True) as plugin:
            rng = np.random.default_rng(2)
            weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((channels, width), channels))
            slots = np.array([4, 1])
            past = np.zeros((2, channels, width))
            for _ in range(steps):
                x, rows = rng.standard_normal((2, channels)).astype(np.float32), s.new_rows(2)
                y = np.zeros((2, channels), np.float32)
                plugin.step_begin(slots, rows)
                for layer in range(s.LAYERS):
                    plugin.conv.decode(layer, conv_in=x, conv_weight=weight, conv_bias=bias, conv_out=y, rows=rows)
                past = np.concatenate((past[..., 1:], x[..., None]), -1)
                z = bias + (past * weight).sum(-1)
                self.assertLess(s.distance(y, z * s.sigmoid(z)), 2e-6)

    run_steps = Life.run_steps

    def test_without(self):
        """What an instance was not made for says so."""
        with s.open_plugin("gdn") as plugin:
            rows, i = s.new_rows(1), np.array([0])
            self.refused(Status.UNSUPPORTED, plugin.verify.begin, i, np.array([0, 1]), rows, 1)
            x = np.zeros((1, s.channels()), np.float32)
            self.refused(Status.UNSUPPORTED, plugin.conv.decode, 0, conv_in=x, conv_weight=x, conv_out=x.copy(), rows=rows)


if __name__ == "__main__":
    unittest.main()
