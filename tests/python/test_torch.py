"""PyTorch tensors, and the operators under torch.compile. Skipped where PyTorch cannot be imported."""

import gc
import unittest

import numpy as np

import support as s
from replayssm import Status

try:
    import torch
except ImportError:
    torch = None


@unittest.skipUnless(torch, "PyTorch cannot be imported")
class Torch(s.Case):

    def case(self, family, rows):
        rng = np.random.default_rng(9)
        weights = s.random_weights(rng, family)
        inputs = s.random_inputs(rng, family, rows)
        tensors = {name: torch.from_numpy(t) for name, t in {**weights, **inputs}.items()}
        return s.Recurrence(family, weights), inputs, tensors

    def test_decode(self):
        for family in s.FAMILIES:
            with self.subTest(family), s.open_plugin(family) as plugin:
                exact, inputs, tensors = self.case(family, 2)
                slots, rows = torch.tensor([1, 4]), torch.zeros((2, 8), dtype=torch.int32)
                for _ in range(2 * s.RING):
                    plugin.step_begin(slots, rows)
                    plugin.decode(0, rows=rows, **tensors)
                    plugin.decode(1, rows=rows, **{**tensors, "out": tensors["out"].clone()})
                    self.assertLess(s.distance(tensors["out"].numpy(), exact.step([1, 4], inputs)), 2e-6)

    def test_bfloat16(self):
        """bfloat16 rounds the output once: by at most half a unit in the last of 8 bits."""
        with s.open_plugin("kda", io_dtype=torch.bfloat16) as plugin:
            exact, inputs, tensors = self.case("kda", 2)
            for name in inputs:
                tensors[name] = tensors[name].bfloat16()
                inputs[name] = tensors[name].float().numpy()
            rows = torch.zeros((2, 8), dtype=torch.int32)
            plugin.step_begin(torch.tensor([0, 1]), rows)
            plugin.decode(0, rows=rows, **tensors)
            self.assertLess(s.distance(tensors["out"].float().numpy(), exact.step([0, 1], inputs)), 2.5e-3)

    def test_pool_views(self):
        with s.open_plugin("gdn", state_dtype="bfloat16") as plugin:
            state = torch.from_dlpack(plugin.pool_tensors(0)["state"])
            self.assertEqual(state.dtype, torch.bfloat16)
            state.fill_(3)
            again = torch.from_dlpack(plugin.pool_tensors(0)["state"])
        self.assertTrue((again == 3).all())  # after close

    def test_refusals(self):
        with s.open_plugin("gdn") as plugin:
            _, _, tensors = self.case("gdn", 2)
            rows = torch.zeros((2, 8), dtype=torch.int32)
            plugin.step_begin(torch.tensor([0, 1]), rows)

            def refused(status, **changed):
                (role, _), = changed.items()
                return self.refused(status, plugin.decode, 0, role=role, rows=rows, **{**tensors, **changed})

            error = refused(Status.ARGUMENT, A_log=tensors["A_log"].clone().requires_grad_())
            self.assertIn("grad", str(error))
            refused(Status.STRIDE, mixed_qkv=tensors["mixed_qkv"].t().contiguous().t())
            refused(Status.DTYPE, a=tensors["a"].double())
            refused(Status.ARGUMENT, a=tensors["a"].to_sparse())
            refused(Status.ARGUMENT, a=tensors["a"].to("meta"))
            plugin.decode(0, rows=rows, **tensors)

    def test_operators(self):
        """Eager and compiled give the recurrence; opcheck finds the declared effects true."""
        from replayssm import torch_ops
        for family in s.FAMILIES:
            with self.subTest(family), s.open_plugin(family) as plugin:
                exact, inputs, t = self.case(family, 2)
                handle = torch_ops.register(plugin)
                slots, rows = torch.tensor([1, 4]), torch.zeros((2, 8), dtype=torch.int32)

                def layers(slots, rows, packed, gate, beta):
                    torch.ops.replayssm.step_begin(handle, slots, rows, None)
                    for layer in range(s.LAYERS):
                        out = torch.empty(t["out"].shape)
                        torch.ops.replayssm.decode(handle, layer, packed * 1, gate, beta, t["A_log"], t["dt_bias"], t.get("D"),
                                                   None, rows, out)
                    return out * 2

                compiled = torch.compile(layers, backend="aot_eager", fullgraph=True)
                gate = t["dt" if family == "mamba2" else "a"]
                for step in range(2 * s.RING):
                    run = compiled if step % 2 else layers
                    got = run(slots, rows, t[s.packed_name(family)], gate, t.get("b"))
                    self.assertLess(s.distance(got.numpy() / 2, exact.step([1, 4], inputs)), 2e-6)
                args = (handle, 0, t[s.packed_name(family)], gate, t.get("b"), t["A_log"], t["dt_bias"], t.get("D"), None,
                        rows, t["out"])
                torch.library.opcheck(torch.ops.replayssm.decode.default, args,
                                      test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))
        del plugin, layers, compiled
        gc.collect()  # the compiler's caches hold the closure in cycles
        self.refused(Status.HANDLE, torch.ops.replayssm.step_begin, handle, slots, rows, None)


@unittest.skipUnless(torch and torch.cuda.is_available(), "PyTorch sees no GPU")
class TorchCuda(s.Case):

    def setUp(self):
        if "cuda" not in s.library().info.backends:
            self.skipTest("this plugin has no CUDA")

    def test_streams_and_graph(self):
        """On the current stream, whichever that is, and in a CUDA graph."""
        case = Torch.case
        with s.open_plugin("gdn", device="cuda:0") as plugin:
            exact, inputs, tensors = case(self, "gdn", 2)
            tensors = {name: t.cuda() for name, t in tensors.items()}
            slots, rows = torch.tensor([1, 4]).cuda(), torch.zeros((2, 8), dtype=torch.int32).cuda()

            def step():
                plugin.step_begin(slots, rows)
                for layer in range(s.LAYERS):
                    plugin.decode(layer, rows=rows, **tensors)

            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step()
            stream.synchronize()
            self.assertLess(s.distance(tensors["out"].cpu().numpy(), exact.step([1, 4], inputs)), 2e-6)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            for _ in range(2 * s.RING):
                graph.replay()
                torch.cuda.synchronize()
                self.assertLess(s.distance(tensors["out"].cpu().numpy(), exact.step([1, 4], inputs)), 2e-6)

    def test_wrong_device(self):
        with s.open_plugin("gdn", device="cuda:0") as plugin:
            error = self.refused(Status.DEVICE, plugin.step_begin, torch.tensor([0]), torch.zeros((1, 8), dtype=torch.int32))
            self.assertEqual((error.expected, error.got), (2, 1))
            if torch.cuda.device_count() > 1:
                other = torch.cuda.Stream(device=1)
                self.refused(Status.DEVICE, plugin.reset, stream=other, says="the stream is of cuda:1")


if __name__ == "__main__":
    unittest.main()
