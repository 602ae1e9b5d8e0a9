"""JAX arrays: inputs without a copy; as outputs they are refused, being immutable. Skipped where JAX cannot be imported."""

import unittest

import numpy as np

import support as s
from replayssm import Status

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = None


@unittest.skipUnless(jax, "JAX cannot be imported")
class Jax(s.Case):

    def test_decode(self):
        rng = np.random.default_rng(4)
        for family in s.FAMILIES:
            with self.subTest(family), s.open_plugin(family) as plugin:
                weights, inputs, rows = s.random_weights(rng, family), s.random_inputs(rng, family, 2), s.new_rows(2)
                tensors = {name: jnp.asarray(t) for name, t in {**weights, **inputs}.items()}
                plugin.step_begin(jnp.array([1, 4]), rows)
                self.refused(Status.ARGUMENT, plugin.decode, 0, rows=rows, **tensors, says="read-only", role="out")
                tensors["out"] = inputs["out"]
                plugin.decode(0, rows=rows, **tensors)
                self.assertLess(s.distance(inputs["out"], s.Recurrence(family, weights).step([1, 4], inputs)), 2e-6)

    def test_bfloat16(self):
        """JAX's own bfloat16 in, a view of uint16 out."""
        with s.open_plugin("gdn", io_dtype=jnp.bfloat16) as plugin:
            rng = np.random.default_rng(4)
            weights, inputs, rows = s.random_weights(rng, "gdn"), s.random_inputs(rng, "gdn", 2), s.new_rows(2)
            tensors = {name: jnp.asarray(t).astype(jnp.bfloat16) for name, t in inputs.items()}
            exact = {name: np.asarray(t.astype(jnp.float32)) for name, t in tensors.items()}
            out = np.zeros(inputs["out"].shape, np.uint16)
            tensors["out"] = s.replayssm.view(out, "bfloat16")
            plugin.step_begin(np.array([1, 4]), rows)
            plugin.decode(0, rows=rows, **weights, **tensors)
            got = (out.astype(np.uint32) << 16).view(np.float32)
            self.assertLess(s.distance(got, s.Recurrence("gdn", weights).step([1, 4], exact)), 2.5e-3)


if __name__ == "__main__":
    unittest.main()
