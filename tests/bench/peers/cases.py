"""Shapes, inputs, pools and cursors that every contender reads, and the same step in float64."""

import dataclasses

import torch

ELEMENT = {torch.float32: 4, torch.bfloat16: 2, torch.float16: 2}
SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclasses.dataclass(frozen=True)
class Case:
    """Mamba-2 reads H = groups, HV = heads, K = state size, V = head dim."""
    family: str
    H: int
    HV: int
    K: int
    V: int
    state: torch.dtype
    batch: int
    L: int = 16
    io: torch.dtype = torch.bfloat16
    tokens: int = 1  # of a verify window

    @property
    def delta(self):
        return self.family != "mamba2"

    @property
    def gates(self):
        return self.HV * self.K if self.family == "kda" else self.HV

    @property
    def width(self):
        """Of the packed input row: q | k | v, or x | B | C."""
        return 2 * self.H * self.K + self.HV * self.V

    @property
    def scale(self):
        return self.K**-0.5

    @property
    def state_bytes(self):
        return self.HV * self.V * self.K * ELEMENT[self.state]

    @property
    def row_bytes(self):
        """One ring row: d and k, or x and B, in the io dtype, and the gates in float32."""
        return (self.HV * self.V + self.H * self.K) * ELEMENT[self.io] + 4 * self.gates

    @property
    def token_bytes(self):
        """Inputs and output of one token."""
        return ELEMENT[self.io] * (self.width + self.gates + (self.HV if self.delta else 0) + self.HV * self.V)

    def floor_bytes(self, replay=True):
        """Fewest bytes of one layer of one plain step: docs/performance.md."""
        if not replay:
            return self.batch * (2 * self.state_bytes + self.token_bytes)
        L = self.L
        return self.batch * (self.state_bytes * (1 + 1 / L) + self.row_bytes * ((L - 1) / 2 + 1) + self.token_bytes)

    def verify_floor_bytes(self):
        """One layer of one window: the checkpoint once, the folds of T of L rows, the ring's mean of (L + 1) / 2 records, T
        records, inputs and outputs."""
        L, T = self.L, self.tokens
        return self.batch * (self.state_bytes * (1 + T / L) + self.row_bytes * ((L + 1) / 2 + T) + self.token_bytes * T)

    def name(self):
        return f"{self.family} {self.H}/{self.HV} {self.V}x{self.K} {SHORT[self.state]} B={self.batch}"


# Name -> shapes of models: KDA of Kimi-Linear, GDN of Qwen3-Next, Mamba-2 of Nemotron-H.
SHAPES = {
    "kda": dict(family="kda", H=32, HV=32, K=128, V=128),
    "gdn": dict(family="gdn", H=16, HV=32, K=128, V=128),
    "mamba2": dict(family="mamba2", H=8, HV=64, K=128, V=64),
}


class Inputs:
    """Inputs, weights and output of one layer's step; `rows` = batch, or the tokens of all windows. The packed row is what
    the convolution leaves behind; contenders that want q, k, v apart get contiguous copies, made outside the clock."""

    def __init__(self, case, device, seed=1, rows=None):
        self.case, self.rows = case, rows or case.batch
        self.generator = torch.Generator(device).manual_seed(seed)
        self.device = device
        n, io = self.rows, case.io
        self.packed = torch.empty(n, case.width, dtype=io, device=device)
        self.gate = torch.empty((n, case.HV, case.K) if case.family == "kda" else (n, case.HV), dtype=io, device=device)
        self.b = torch.empty(n, case.HV, dtype=io, device=device)
        self.out = torch.zeros(n, 1, case.HV, case.V, dtype=io, device=device)
        uniform = lambda low, high, *shape: low + (high - low) * torch.rand(*shape, generator=self.generator, device=device)
        self.A_log = uniform(-1, 1, case.HV)
        self.dt_bias = uniform(-4, -1, *((case.HV, case.K) if case.family == "kda" else (case.HV, )))
        self.D = uniform(-1, 1, case.HV)
        self.apart = [torch.empty(n, 1, *shape, dtype=io, device=device)
                      for shape in ((case.H, case.K), (case.H, case.K), (case.HV, case.V))]
        self.fresh()

    def fresh(self):
        """New random inputs in the same memory."""
        for tensor in (self.packed, self.gate, self.b):
            tensor.normal_(generator=self.generator)
        for apart, part in zip(self.apart, self.parts()):
            apart.copy_(part.unsqueeze(1))

    def parts(self):
        """Views of the packed row: q, k, v; or B, C, x."""
        case, n = self.case, self.rows
        narrow, wide = case.H * case.K, case.HV * case.V
        if case.delta:
            q, k, v = self.packed.split([narrow, narrow, wide], 1)
            return q.view(n, case.H, case.K), k.view(n, case.H, case.K), v.view(n, case.HV, case.V)
        x, b, c = self.packed.split([wide, narrow, narrow], 1)
        return b.view(n, case.H, case.K), c.view(n, case.H, case.K), x.view(n, case.HV, case.V)


class Pool:
    """States and rings of `layers` layers: slot 0 is nobody's (the padding slot of some contenders), row b owns slots[b]."""

    RINGS = {True: ("d_cache", "k_cache", "g_cache"), False: ("x_cache", "B_cache", "dt_cache")}

    def __init__(self, case, layers, device, seed=2, ring_rows=None):
        self.case, self.device, self.ring_rows = case, device, ring_rows or case.L
        self.generator = torch.Generator(device).manual_seed(seed)
        slots, rows = case.batch + 1, self.ring_rows
        normal = lambda dtype, *shape: torch.empty(layers, slots, *shape, dtype=dtype, device=device).normal_(
            generator=self.generator)
        self.state = normal(case.state, case.HV, case.V, case.K).mul_(0.5)
        self.wide = normal(case.io, case.HV, rows, case.V)
        self.narrow = normal(case.io, case.H, rows, case.K)
        self.gates = normal(torch.float32, case.HV, rows, case.K) if case.family == "kda" else normal(
            torch.float32, case.HV, rows)
        if case.delta:
            self.narrow.mul_(case.K**-0.5)
            self.gates.abs_().mul_(-0.1)
        else:
            self.gates.abs_().mul_(0.1)
        self.slots = (torch.randperm(case.batch, generator=self.generator, device=device) + 1).to(torch.int32)

    def ring(self, layer):
        return dict(zip(self.RINGS[self.case.delta], (self.wide[layer], self.narrow[layer], self.gates[layer])))

    def layer(self, layer):
        return dict(self.ring(layer), state=self.state[layer])

    def save(self, layer=0):
        return [t[layer].clone() for t in (self.state, self.wide, self.narrow, self.gates)]

    def restore(self, saved, layer=0):
        for tensor, values in zip((self.state, self.wide, self.narrow, self.gates), saved):
            tensor[layer].copy_(values)


class Cursors:
    """How far each row stands in its window, one set per phase: layer i of a graph takes phase i mod L, so that over the
    layers (and over the rows of a larger batch) every count 0 .. L-1 comes up equally often, the flush among them."""

    def __init__(self, case, device):
        self.case = case
        step = max(1, case.L // case.batch)
        row = torch.arange(case.batch, device=device)
        self.counts = [((row * step + phase) % case.L).to(torch.int32) for phase in range(case.L)]
        self.flush = [(c >= case.L - 1).to(torch.int8) for c in self.counts]

    def set(self, phase, counts):
        self.counts[phase].copy_(counts)
        self.flush[phase].copy_(counts >= self.case.L - 1)


def softplus(x):
    return torch.where(x > 20, x, torch.log1p(x.clamp(max=20).exp()))


class Exact:
    """The step in float64, for the rows `take` of a batch; states are [n, HV, V, K]."""

    def __init__(self, case, inputs, take):
        self.case, self.inputs, self.take = case, inputs, take
        self.rate = inputs.A_log.double().exp()

    def per_value_head(self, x):
        return x.repeat_interleave(self.case.HV // self.case.H, 1)

    def advance(self, state, gate, wide, narrow):
        """One record: decay, then the outer product. gate is the log decay, per channel or head, or Mamba-2's dt."""
        if self.case.family == "kda":
            decay = gate.exp().unsqueeze(2)
        elif self.case.family == "gdn":
            decay = gate.exp()[..., None, None]
        else:
            decay, wide = (-self.rate * gate).exp()[..., None, None], gate.unsqueeze(-1) * wide
        return state * decay + wide.unsqueeze(-1) * narrow.unsqueeze(2)

    def fold(self, state, ring, counts):
        """The state after the first counts[i] records of ring = (d, k, g) or (x, B, dt), each [n, heads, rows, ...]."""
        wide, narrow, gates = (t.double() for t in ring)
        narrow = self.per_value_head(narrow)
        for j in range(int(counts.max())):
            after = self.advance(state, gates[:, :, j], wide[:, :, j], narrow[:, :, j])
            state = torch.where((counts > j).view(-1, 1, 1, 1), after, state)
        return state

    def token(self, state, rows=None, record=torch.float64):
        """One token: output [n, HV, V] and the state after it. rows: which rows of the inputs, else `take`. record: the
        dtype that d and k of the token are rounded to before the state sees them (ours: the ring's)."""
        case, inputs, rows = self.case, self.inputs, self.take if rows is None else rows
        first, second, wide = (part[rows].double() for part in inputs.parts())
        gate = inputs.gate[rows].double() + inputs.dt_bias.double()
        if not case.delta:
            state = self.advance(state, softplus(gate), wide, self.per_value_head(first))
            out = (state * self.per_value_head(second).unsqueeze(2)).sum(-1)
            return out + inputs.D.double()[None, :, None] * wide, state
        q, k = (self.per_value_head(x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()) for x in (first, second))
        g = -softplus(gate) * (self.rate[:, None] if case.family == "kda" else self.rate)
        decayed = state * (g.exp().unsqueeze(2) if case.family == "kda" else g.exp()[..., None, None])
        d = torch.sigmoid(inputs.b[rows].double()).unsqueeze(-1) * (wide - (decayed * k.unsqueeze(2)).sum(-1))
        after = decayed + d.unsqueeze(-1) * k.unsqueeze(2)
        out = (after * (q * case.scale).unsqueeze(2)).sum(-1)
        if record != torch.float64:
            after = decayed + d.to(record).double().unsqueeze(-1) * k.to(record).double().unsqueeze(2)
        return out, after


def error(got, exact):
    """Relative L2, infinite where a value is not finite."""
    got, exact = got.double(), exact.double()
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    return float((got - exact).norm() / exact.norm())


def rounding(exact, dtype):
    """Relative L2 of rounding the exact values once to dtype."""
    return error(exact.to(dtype), exact)
