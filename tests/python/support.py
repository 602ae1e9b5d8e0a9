"""What the tests share: the plugin under test, small models, random inputs, and the recurrence in float64."""

import os
import pathlib
import sys
import unittest
from collections import namedtuple

ROOT = pathlib.Path(os.environ.get("RSSM_SOURCE_ROOT", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "examples" / "python"))
sys.dont_write_bytecode = True

import numpy as np  # noqa: E402

import replayssm  # noqa: E402
from replayssm import Dims, ReplayError, Status  # noqa: E402,F401

FAMILIES = ("kda", "gdn", "mamba2")
Shape = namedtuple("Shape", "H HV K V")
SHAPE = Shape(H=2, HV=4, K=8, V=5)
LAYERS, SLOTS, RING = 2, 6, 4
_library = []

if "RSSM_PLUGIN" not in os.environ:
    sys.exit("RSSM_PLUGIN must say where replayssm.so is")


def library():
    if not _library:
        _library.append(replayssm.load(os.environ["RSSM_PLUGIN"]))
    return _library[0]


def open_plugin(family, pool=True, **options):
    """An instance of LAYERS layers in float32 on the CPU; pool: prepared, with a pool."""
    given = dict(num_slots=SLOTS, ring_length=RING, io_dtype="float32", state_dtype="float32", ring_dtype="float32")
    conv = options.pop("conv_kernel", 0)
    plugin = library().init(Dims(family, *SHAPE, num_layers=LAYERS, conv_kernel=conv), **{**given, **options})
    if pool:
        plugin.prepare()
        plugin.pool_create()
    return plugin


def packed_name(family):
    return "mixed_xbc" if family == "mamba2" else "mixed_qkv"


def channels():
    """2HK + HV V, and 2 ng N + nh P just so."""
    return 2 * SHAPE.H * SHAPE.K + SHAPE.HV * SHAPE.V


def random_weights(rng, family):
    """Per layer."""
    bias = SHAPE.HV * (SHAPE.K if family == "kda" else 1)
    weights = {"A_log": rng.uniform(-1, 1, SHAPE.HV), "dt_bias": rng.uniform(-1, 1, bias)}
    if family == "mamba2":
        weights["D"] = rng.uniform(-1, 1, SHAPE.HV)
    return {name: w.astype(np.float32) for name, w in weights.items()}


def random_inputs(rng, family, rows):
    """Of one layer and step: tensors by role, out among them (NaN)."""
    heads = (rows, SHAPE.HV)
    gates = {"kda": {"a": heads + (SHAPE.K,), "b": heads}, "gdn": {"a": heads, "b": heads}, "mamba2": {"dt": heads}}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in gates[family].items()}
    inputs[packed_name(family)] = rng.standard_normal((rows, channels())).astype(np.float32)
    inputs["out"] = np.full(heads + (SHAPE.V,), np.nan, np.float32)
    return inputs


def new_rows(count):
    return np.full((count, replayssm.ROW_WIDTH), -7, np.int32)


def softplus(x):
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


class Recurrence:
    """One layer in float64, the state written at every token: S [slots, HV, V, K]."""

    def __init__(self, family, weights):
        self.family = family
        self.weights = {name: w.astype(np.float64) for name, w in weights.items()}
        self.S = np.zeros((SLOTS, SHAPE.HV, SHAPE.V, SHAPE.K))

    def step(self, slots, inputs):
        """out [B, HV, V] for rows of these slots."""
        return np.stack([self._token(slot, {name: t[row].astype(np.float64) for name, t in inputs.items() if name != "out"})
                         for row, slot in enumerate(slots)])

    def _token(self, slot, t):
        H, HV, K, V = SHAPE
        packed = t[packed_name(self.family)]
        groups = np.arange(HV) // (HV // H)
        if self.family == "mamba2":
            x, B, C = np.split(packed, [HV * V, HV * V + H * K])
            return self._mamba(slot, x.reshape(HV, V), B.reshape(H, K)[groups], C.reshape(H, K)[groups], t["dt"])
        q, k, v = np.split(packed, [H * K, 2 * H * K])
        q, k = unit(q.reshape(H, K))[groups] * K**-0.5, unit(k.reshape(H, K))[groups]
        bias = self.weights["dt_bias"].reshape(t["a"].shape)
        rate = np.exp(self.weights["A_log"]).reshape(HV, *[1] * (bias.ndim - 1))
        alpha = np.exp(-rate * softplus(t["a"] + bias)).reshape(HV, 1, -1)
        S = self.S[slot] * alpha
        d = sigmoid(t["b"])[:, None] * (v.reshape(HV, V) - np.einsum("hvk,hk->hv", S, k))
        self.S[slot] = S + np.einsum("hv,hk->hvk", d, k)
        return np.einsum("hvk,hk->hv", self.S[slot], q)

    def _mamba(self, slot, x, B, C, dt):
        dt = softplus(dt + self.weights["dt_bias"])
        decay = np.exp(-np.exp(self.weights["A_log"]) * dt)[:, None, None]
        self.S[slot] = self.S[slot] * decay + np.einsum("h,hv,hk->hvk", dt, x, B)
        return np.einsum("hvk,hk->hv", self.S[slot], C) + self.weights["D"][:, None] * x


def distance(got, exact):
    """Relative L2."""
    return np.linalg.norm(got - exact) / np.linalg.norm(exact)


class Case(unittest.TestCase):

    def refused(self, status, function, *args, says=None, role=None, **kwargs):
        """function must raise ReplayError of that status; the error, for more checks."""
        with self.assertRaises(ReplayError) as caught:
            function(*args, **kwargs)
        error = caught.exception
        self.assertEqual(error.status, status, str(error))
        if role is not None:
            self.assertEqual(error.role, role, str(error))
        if says is not None:
            self.assertIn(says, str(error))
        return error
