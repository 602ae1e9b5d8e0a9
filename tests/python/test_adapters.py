"""The functions of sglang_adapter and vllm_adapter by their contract: against plain.py's float64 recurrence, state written at every
token; in place; refusals. Skipped where PyTorch cannot be imported. contract.py runs their own tests."""

import inspect
import threading
import unittest

import support as s

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch cannot be imported") from None

import adapter_common as common  # noqa: E402
import plain  # noqa: E402
import sglang_adapter as sglang  # noqa: E402
import vllm_adapter as vllm  # noqa: E402

H, HV, K, V, SLOTS, RING = 2, 4, 16, 8, 7, 4


def distance(got, exact):
    return float((got.double() - exact.double()).norm() / exact.double().norm())


class Delta:
    """KDA or GDN: an adapter's pool beside the exact one. Rows of `slots` decode; cursors are kept per slot, as a host does."""

    def __init__(self, family, seed=0, ring=torch.float32, state=torch.float32, io=torch.float32, L=RING):
        self.kda, self.L, self.io, self.random = family == "kda", L, io, torch.Generator().manual_seed(seed)
        gate = (HV, K) if self.kda else (HV, )
        self.A_log, self.dt_bias = self.draw(HV) * 0.3, self.draw(*gate) * 0.1
        self.state = self.draw(SLOTS, HV, V, K).to(state)
        self.exact = self.state.double()
        self.d, self.k = torch.zeros(SLOTS, HV, L, V, dtype=ring), torch.zeros(SLOTS, H, L, K, dtype=ring)
        self.g = torch.zeros(SLOTS, HV, L, *gate[1:])
        self.count = torch.zeros(SLOTS, dtype=torch.int32)

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.random)

    def inputs(self, batch):
        a = self.draw(batch, HV, K) if self.kda else self.draw(batch, HV)
        return [t.to(self.io) for t in (self.draw(batch, 2 * H * K + HV * V), a, self.draw(batch, HV))]

    def arguments(self, batch, slots, write_pos=None):
        """Of a call, by name."""
        mixed_qkv, a, b = self.inputs(batch)
        slots = torch.as_tensor(slots, dtype=torch.int32)
        write_pos = self.count[slots.clamp(min=0)] if write_pos is None else write_pos
        return dict(mixed_qkv=mixed_qkv,
                    a=a,
                    b=b,
                    A_log=self.A_log,
                    dt_bias=self.dt_bias,
                    scale=K**-0.5,
                    initial_state=self.state,
                    d_cache=self.d,
                    k_cache=self.k,
                    g_cache=self.g,
                    out=torch.full((batch, 1, HV, V), 7.0, dtype=self.io),
                    ssm_state_indices=slots,
                    write_pos=write_pos,
                    use_qk_l2norm_in_kernel=True)

    def exact_out(self, call, first_slot=0, **options):
        out = torch.zeros(call["out"].shape, dtype=torch.float64)
        plain.packed_decode(*[call[n] for n in ("mixed_qkv", "a", "b", "A_log", "dt_bias", "scale")],
                            self.exact,
                            out,
                            call["ssm_state_indices"],
                            call["use_qk_l2norm_in_kernel"],
                            first_slot=first_slot,
                            **options)
        return out

    def advance(self, call, first_slot=0):
        """The host's part; the slots that flushed."""
        forced = call.get("force_flush")
        flushed = []
        for row, slot in enumerate(call["ssm_state_indices"].tolist()):
            if slot < first_slot:
                continue
            flush = int(self.count[slot]) == self.L - 1 or (forced is not None and bool(forced[row]))
            self.count[slot] = 0 if flush else self.count[slot] + 1
            flushed += [slot] if flush else []
        return flushed


class Case(s.Case):

    @classmethod
    def setUpClass(cls):
        common.use(s.library())

    def tearDown(self):
        common.close()

    def run_delta(self, function, pool, steps=3 * RING, bound=2e-6, first_slot=0, force=False, exact_options=None, **options):
        """Random batches of slots, padding among them, and random forced flushes."""
        for _ in range(steps):
            slots = torch.randperm(SLOTS, generator=pool.random)[:4].tolist() + [-1]
            call = {**pool.arguments(5, slots), **options}
            if force:
                call["force_flush"] = (pool.draw(5) > 0.5).int()
            before, given = pool.state.clone(), [call["write_pos"].clone(), call["ssm_state_indices"].clone()]
            out, state = function(**call)
            self.assertIs(out, call["out"])
            self.assertIs(state, pool.state)
            exact = pool.exact_out(call, first_slot, **(exact_options or {}))
            padding = torch.tensor([slot < first_slot for slot in slots])
            self.assertEqual(int(out[padding].count_nonzero()), 0)
            self.assertLess(distance(out[~padding], exact[~padding]), bound)
            flushed = pool.advance(call, first_slot)
            for slot in range(SLOTS):  # the checkpoint moves in slots that flush, and there alone
                if slot in flushed:
                    self.assertLess(distance(state[slot], pool.exact[slot]), bound)
                else:
                    self.assertTrue(torch.equal(state[slot], before[slot]))
            self.assertTrue(torch.equal(call["write_pos"], given[0]) and torch.equal(call["ssm_state_indices"], given[1]))

    def raises(self, exception, function, call, says=None, **changed):
        """Refused, and nothing changed."""
        call = {**call, **changed}
        before = {name: t.clone() for name, t in call.items() if isinstance(t, torch.Tensor)}
        with self.assertRaises(exception) as caught:
            function(**call)
        if says:
            self.assertIn(says, str(caught.exception))
        for name, t in before.items():
            self.assertTrue(torch.equal(t, call[name]), name)


class SGLang(Case):

    def test_decode(self):
        for family in ("gdn", "kda"):
            for force in (False, True):
                with self.subTest(family=family, force=force):
                    pool = Delta(family)
                    self.run_delta(sglang.fused_recurrent_linear_replayssm_decode, pool, force=force, is_kda=pool.kda)

    def test_bfloat16(self):
        """io and ring in bfloat16: one rounding of d, k and of the output each, 2^-9 of the largest."""
        for family in ("gdn", "kda"):
            with self.subTest(family):
                pool = Delta(family, ring=torch.bfloat16, io=torch.bfloat16)
                self.run_delta(sglang.fused_recurrent_linear_replayssm_decode, pool, is_kda=pool.kda, bound=4e-3)

    def test_helion(self):
        pool = Delta("kda")
        self.run_delta(sglang.helion_fused_recurrent_kda_replayssm_decode, pool, force=True)
        pool = Delta("kda", seed=1)
        self.run_delta(sglang.helion_fused_recurrent_kda_replayssm_decode,
                       pool,
                       force=True,
                       lower_bound=-5.0,
                       exact_options=dict(lower_bound=-5.0))

    def test_helion_flat_gates(self):
        pool, other = Delta("kda"), Delta("kda")
        call, flat = pool.arguments(3, [1, 2, -1]), other.arguments(3, [1, 2, -1])
        flat.update(a=flat["a"].view(3, -1), dt_bias=flat["dt_bias"].view(-1))
        sglang.helion_fused_recurrent_kda_replayssm_decode(**call)
        sglang.helion_fused_recurrent_kda_replayssm_decode(**flat)
        self.assertTrue(torch.equal(call["out"], flat["out"]))

    def test_records(self):
        """A row that does not flush writes d, k and g at write_pos and nothing else; one that flushes writes no record."""
        pool = Delta("gdn")
        for tensor in (pool.d, pool.k, pool.g):
            tensor.fill_(float("nan"))  # beyond write_pos nothing is read
        pool.d[1, :, 0], pool.k[1, :, 0], pool.g[1, :, 0] = 0, 0, 0
        call = pool.arguments(2, [1, 2], torch.tensor([1, 0], dtype=torch.int32))
        call["force_flush"] = torch.tensor([0, 1], dtype=torch.int32)
        sglang.fused_recurrent_linear_replayssm_decode(**call)
        for tensor in (pool.d, pool.k, pool.g):
            written = ~torch.isnan(tensor.reshape(SLOTS, tensor.shape[1], RING, -1)).any(1).any(-1)
            self.assertEqual(written.nonzero().tolist(), [[1, 0], [1, 1]])
        g = plain.log_gate(call["a"][0], pool.A_log, pool.dt_bias)
        k = plain.unit(call["mixed_qkv"][0, H * K:2 * H * K].view(H, K).double())
        self.assertLess(distance(pool.g[1, :, 1], g), 1e-6)
        self.assertLess(distance(pool.k[1, :, 1], k), 1e-6)

    def test_ring_of_one(self):
        """The token is folded unrounded whatever the ring's dtypes, beta in float32; the ring stays as it was."""
        pool = Delta("gdn", L=1, io=torch.bfloat16, ring=torch.bfloat16)
        pool.d = pool.d.float()  # of another dtype than k
        call = pool.arguments(3, [1, -1, 2])
        exact = pool.exact_out(call)
        sglang.fused_recurrent_linear_replayssm_decode(**call)
        self.assertLess(distance(pool.state[[1, 2]], pool.exact[[1, 2]]), 1e-6)
        self.assertLess(distance(call["out"], exact), 3e-3)
        self.assertEqual(int(pool.d.count_nonzero() + pool.k.count_nonzero() + pool.g.count_nonzero()), 0)

    def test_layouts(self):
        """Rows and slots with gaps; state and ring interleaved slot by slot in one buffer; parameters; other dtypes of gates, output
        and weights."""
        plain_pool, pool = Delta("kda", seed=3), Delta("kda", seed=3)
        call, want = pool.arguments(4, [5, 0, -1, 3]), plain_pool.arguments(4, [5, 0, -1, 3])
        sizes = [HV * V * K, HV * RING * V, H * RING * K, HV * RING * K]
        pages = torch.zeros(SLOTS, sum(sizes) + 4).split(sizes + [4], 1)
        for name, page in zip(("initial_state", "d_cache", "k_cache", "g_cache"), pages):
            call[name] = page.view(SLOTS, *call[name].shape[1:]).copy_(call[name])
        wide = torch.zeros(4, call["mixed_qkv"].shape[1] + 3)[:, :-3]
        call.update(mixed_qkv=wide.copy_(call["mixed_qkv"]),
                    A_log=torch.nn.Parameter(call["A_log"]),
                    dt_bias=torch.nn.Parameter(call["dt_bias"]),
                    ssm_state_indices=call["ssm_state_indices"].long())
        sglang.fused_recurrent_linear_replayssm_decode(**call, is_kda=True)
        sglang.fused_recurrent_linear_replayssm_decode(**want, is_kda=True)
        for name in ("out", "initial_state", "d_cache", "k_cache", "g_cache"):
            self.assertTrue(torch.equal(call[name], want[name]), name)

        half = dict(want,
                    b=want["b"].half(),
                    a=want["a"].half(),
                    out=want["out"].bfloat16(),
                    write_pos=torch.ones(4, dtype=torch.int32))
        full = dict(half, b=half["b"].float(), a=half["a"].float(), out=want["out"].clone())
        for one in (half, full):
            one.update({name: want[name].clone() for name in ("initial_state", "d_cache", "k_cache", "g_cache")})
            sglang.fused_recurrent_linear_replayssm_decode(**one, is_kda=True)
        self.assertTrue(torch.equal(half["out"], full["out"].bfloat16()))

    def test_same_surface(self):
        """Names, order and defaults, as sglang 0.5.23 has them."""
        names = ("mixed_qkv a b A_log dt_bias scale initial_state d_cache k_cache g_cache out ssm_state_indices write_pos "
                 "force_flush use_qk_l2norm_in_kernel").split()
        tails = {
            sglang.fused_recurrent_linear_replayssm_decode: dict(is_kda=False, block_v=None, num_warps=1, num_stages=3, nk=2),
            sglang.helion_fused_recurrent_kda_replayssm_decode: dict(lower_bound=None)
        }
        for function, tail in tails.items():
            parameters = inspect.signature(function).parameters
            self.assertEqual(list(parameters), names + list(tail))
            given = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
            self.assertEqual(given, {"force_flush": None, "use_qk_l2norm_in_kernel": False, **tail})

    def test_bad_shapes(self):
        """ValueError, as theirs, and nothing has changed."""
        function = sglang.fused_recurrent_linear_replayssm_decode
        pool = Delta("gdn")
        call = pool.arguments(3, [0, 1, 2])
        bad = dict(mixed_qkv=[
            call["mixed_qkv"][None], call["mixed_qkv"][:, :-1], call["mixed_qkv"].t().contiguous().t(),
            call["mixed_qkv"][:, :HV * V]
        ],
                   a=[call["a"][:2], call["a"][..., None]],
                   b=[call["b"][0], call["b"][:, :2]],
                   A_log=[pool.A_log[None], pool.A_log[:2]],
                   dt_bias=[pool.dt_bias[:2], pool.dt_bias[None]],
                   initial_state=[pool.state[0], pool.state.transpose(2, 3)],
                   d_cache=[pool.d[..., :-1], pool.d[:, :2], pool.d[0]],
                   k_cache=[pool.k[:, :1], pool.k[:, :, :2]],
                   g_cache=[pool.g.double(), pool.g[:, :, :2], pool.g[..., None]],
                   out=[call["out"][:, 0], call["out"][:2],
                        torch.zeros(3, 1, V, HV).transpose(2, 3)],
                   ssm_state_indices=[call["ssm_state_indices"][:2]],
                   write_pos=[call["write_pos"].long(), call["write_pos"][:2], call["write_pos"][None]],
                   force_flush=[torch.zeros(3), torch.zeros(3, 1, dtype=torch.int32)])
        for name, values in bad.items():
            for value in values:
                with self.subTest(name, shape=tuple(value.shape)):
                    self.raises(ValueError, function, call, **{name: value})
        self.raises(ValueError, function, call, is_kda=True)
        self.raises(ValueError, function, call, says="shares memory", out=pool.d.view(-1)[:3 * HV * V].view(3, 1, HV, V))
        self.raises(NotImplementedError, function, call, d_cache=pool.d.half())
        self.raises(NotImplementedError, function, call, mixed_qkv=call["mixed_qkv"].double())
        function(**call)  # and the call itself is fine

    def test_bad_shapes_helion(self):
        function = sglang.helion_fused_recurrent_kda_replayssm_decode
        pool = Delta("kda")
        call = pool.arguments(3, [0, 1, 2])
        bad = dict(a=[call["a"][..., :-1], call["a"][:2], call["a"].transpose(1, 2)],
                   dt_bias=[pool.dt_bias.t(), pool.dt_bias[:2]],
                   b=[call["b"][:, :2], call["b"][None]],
                   A_log=[pool.A_log[:2]],
                   d_cache=[pool.d[..., :-1]],
                   k_cache=[pool.k[:, :1]],
                   g_cache=[pool.g[..., :-1], pool.g.double()],
                   out=[call["out"][:2]],
                   write_pos=[call["write_pos"].long()],
                   force_flush=[torch.zeros(2, dtype=torch.int32)],
                   ssm_state_indices=[call["ssm_state_indices"][:, None]],
                   initial_state=[pool.state[0], pool.state.to("meta")])
        for name, values in bad.items():
            for value in values:
                with self.subTest(name, shape=tuple(value.shape)):
                    with self.assertRaises(ValueError):
                        function(**{**call, name: value})
        function(**call)

    def test_empty_batch(self):
        pool = Delta("gdn")
        before = pool.state.clone()
        sglang.fused_recurrent_linear_replayssm_decode(**pool.arguments(0, torch.zeros(0)))
        self.assertTrue(torch.equal(before, pool.state))


class VllmGdn(Case):

    def test_decode(self):
        self.run_delta(vllm.fused_recurrent_gated_delta_rule_replayssm, Delta("gdn"), first_slot=1)
        self.run_delta(vllm.fused_recurrent_gated_delta_rule_replayssm,
                       Delta("gdn", state=torch.float16, ring=torch.float16, io=torch.float16),
                       first_slot=1,
                       bound=2e-3)

    def test_null_block(self):
        """Slot 0 is padding here, and a slot in SGLang's."""
        pool = Delta("gdn")
        call = pool.arguments(1, [0])
        vllm.fused_recurrent_gated_delta_rule_replayssm(**call)
        self.assertEqual(int(call["out"].count_nonzero()), 0)
        sglang.fused_recurrent_linear_replayssm_decode(**call)
        self.assertGreater(int(call["out"].count_nonzero()), 0)

    def test_bad_shapes(self):
        pool = Delta("gdn")
        call = pool.arguments(2, [1, 2])
        for name, value in dict(a=call["a"][0],
                                dt_bias=pool.dt_bias[None],
                                g_cache=pool.g.double(),
                                k_cache=pool.k[:, :1],
                                out=call["out"][:1],
                                write_pos=call["write_pos"].long()).items():
            with self.subTest(name):
                self.raises(ValueError, vllm.fused_recurrent_gated_delta_rule_replayssm, call, **{name: value})


NH, P, NG, N = 4, 8, 2, 16


class Mamba:
    """As Delta, for Mamba-2."""

    def __init__(self, seed=0, dtype=torch.float32, D="tied", L=RING):
        self.random, self.L, self.dtype = torch.Generator().manual_seed(seed), L, dtype
        self.A = (-self.draw(NH).exp()).view(NH, 1, 1).expand(NH, P, N)
        self.dt_bias = (self.draw(NH) - 2).view(NH, 1).expand(NH, P)
        self.D = self.draw(NH).view(NH, 1).expand(NH, P) if D == "tied" else self.draw(NH, P)
        self.state = self.draw(SLOTS, NH, P, N)
        self.exact = self.state.double()
        self.rings = dict(x_cache=torch.zeros(SLOTS, NH, L, P, dtype=dtype),
                          dt_cache=torch.zeros(SLOTS, NH, L),
                          B_cache=torch.zeros(SLOTS, NG, L, N, dtype=dtype))
        self.count = torch.zeros(SLOTS, dtype=torch.int32)

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.random)

    def arguments(self, batch, slots, z=False, force=False):
        """slots None: row b is slot b."""
        x, B, C = self.draw(batch, NH, P), self.draw(batch, NG, N), self.draw(batch, NG, N)
        dt = self.draw(batch, NH, 1).to(self.dtype).expand(batch, NH, P)
        indices = None if slots is None else torch.tensor(slots, dtype=torch.int32)
        write_pos = self.count[torch.arange(batch) if slots is None else indices.long()]
        flush = write_pos == self.L - 1
        flush = flush | (self.draw(batch) > 0.5) if force else flush
        call = dict(state=self.state, x=x, B=B, C=C, z=self.draw(batch, NH, P) if z else None)
        call = {n: t if t is None or n == "state" else t.to(self.dtype) for n, t in call.items()}
        return dict(call,
                    dt=dt,
                    A=self.A,
                    D=self.D,
                    dt_bias=self.dt_bias,
                    dt_softplus=True,
                    **self.rings,
                    write_pos=write_pos,
                    is_flush=flush,
                    max_cache_len=self.L,
                    state_batch_indices=indices,
                    out=torch.full((batch, NH, P), 42.0, dtype=self.dtype))

    def exact_out(self, call):
        out = torch.full(call["out"].shape, 42.0, dtype=torch.float64)
        names = "x dt A B C D z dt_bias dt_softplus state_batch_indices".split()
        return plain.selective_state_update(self.exact, **{n: call[n] for n in names}, out=out)

    def advance(self, call):
        slots = range(call["x"].shape[0]) if call["state_batch_indices"] is None else call["state_batch_indices"].tolist()
        for row, slot in enumerate(slots):
            if slot or call["state_batch_indices"] is None:
                self.count[slot] = 0 if call["is_flush"][row] else self.count[slot] + 1
        return [
            slot for row, slot in enumerate(slots) if call["is_flush"][row] and (slot or call["state_batch_indices"] is None)
        ]


class VllmMamba(Case):

    def routes(self, batch=5):
        scratch = torch.zeros(batch, NG, RING)
        return {
            "output_only": lambda **call: vllm.selective_state_update_replayssm_output_only(bc_pre=scratch, **call),
            "state_and_output": vllm.selective_state_update_replayssm_state_and_output
        }

    def run_mamba(self, function, pool, bound=2e-6, indexed=True, **options):
        for _ in range(3 * RING):
            slots = (1 + torch.randperm(SLOTS - 1, generator=pool.random)[:4]).tolist() + [0] if indexed else None
            call = pool.arguments(5, slots, **options)
            before = pool.state.clone()
            self.assertIs(function(**call), call["out"])
            self.assertLess(distance(call["out"], pool.exact_out(call)), bound)
            if indexed:  # padding rows keep what they had
                self.assertTrue((call["out"][-1] == 42).all())
            flushed = pool.advance(call)
            for slot in range(SLOTS):
                if slot in flushed:
                    self.assertLess(distance(pool.state[slot], pool.exact[slot]), bound)
                else:
                    self.assertTrue(torch.equal(pool.state[slot], before[slot]))

    def test_decode(self):
        for route, function in self.routes().items():
            for D in ("tied", "per channel"):
                for z in (False, True):
                    with self.subTest(route, D=D, z=z):
                        self.run_mamba(function, Mamba(D=D), z=z, force=z)

    def test_without_indices(self):
        """Row b is slot b, slot 0 among them."""
        self.run_mamba(self.routes()["output_only"], Mamba(), indexed=False, z=True)
        self.run_mamba(self.routes()["output_only"], Mamba(D="per channel"), indexed=False, z=True)

    def test_bfloat16(self):
        self.run_mamba(self.routes()["output_only"], Mamba(dtype=torch.bfloat16), z=True, bound=4e-3)

    def test_zero_padding_rows(self):
        vllm.KEEP_PADDING_ROWS = False
        try:
            call = Mamba().arguments(2, [3, 0])
            self.routes()["state_and_output"](**call)
        finally:
            vllm.KEEP_PADDING_ROWS = True
        self.assertEqual(int(call["out"][1].count_nonzero()), 0)

    def test_without_heads(self):
        """state [S, dim, N]: one head without its dim."""
        pool, L, rows = Mamba(), RING, 3
        draw = pool.draw
        state = draw(SLOTS, P, N)
        exact = state.double()[:, None].clone()
        call = dict(x=draw(rows, P),
                    dt=draw(rows, 1).expand(rows, P),
                    A=(-draw(1).exp()).view(1, 1).expand(P, N),
                    B=draw(rows, N),
                    C=draw(rows, N),
                    D=draw(1).expand(P),
                    dt_bias=draw(1).expand(P),
                    dt_softplus=True)
        heads = {n: t if n == "dt_softplus" else t[None] if n in ("A", "D", "dt_bias") else t[:, None] for n, t in call.items()}
        out = torch.zeros(rows, P)
        got = vllm.selective_state_update_replayssm_state_and_output(state,
                                                                     **call,
                                                                     x_cache=torch.zeros(SLOTS, 1, L, P),
                                                                     dt_cache=torch.zeros(SLOTS, 1, L),
                                                                     B_cache=torch.zeros(SLOTS, 1, L, N),
                                                                     write_pos=torch.zeros(rows, dtype=torch.int32),
                                                                     is_flush=torch.ones(rows, dtype=torch.int8),
                                                                     max_cache_len=L,
                                                                     out=out)
        want = plain.selective_state_update(exact, **heads, out=torch.zeros(rows, 1, P, dtype=torch.float64))
        self.assertEqual(got.shape, (rows, P))
        self.assertEqual(vllm.returned(out[:, None], state).shape, (rows, P))
        self.assertLess(distance(out, want[:, 0]), 2e-6)
        self.assertLess(distance(state, exact[:, 0]), 2e-6)

    def test_strided_inputs_and_long_arrays(self):
        """Parts of one packed row; an output with gaps; cursors and indices longer than the batch, indices [batch, 1]."""
        pool, other = Mamba(seed=5), Mamba(seed=5)
        call, want = pool.arguments(3, [1, 2, 0], z=True), other.arguments(3, [1, 2, 0], z=True)
        row = torch.cat([call[n].flatten(1) for n in ("x", "B", "C")], 1)
        x, B, C = row.split([NH * P, NG * N, NG * N], 1)
        more = lambda t: torch.cat([t, t[:2]])  # noqa: E731
        call.update(x=x.view(3, NH, P),
                    B=B.view(3, NG, N),
                    C=C.view(3, NG, N),
                    z=call["z"].transpose(1, 2).contiguous().transpose(1, 2),
                    write_pos=more(call["write_pos"]),
                    is_flush=more(call["is_flush"]).to(torch.int8),
                    state_batch_indices=more(call["state_batch_indices"])[:, None],
                    out=torch.full((3, P, NH), 42.0).transpose(1, 2))
        self.routes()["output_only"](**call)
        self.routes()["output_only"](**want)
        self.assertTrue(torch.equal(call["out"], want["out"]))
        self.assertTrue(torch.equal(pool.rings["x_cache"], other.rings["x_cache"]))

    def test_bad_shapes(self):
        """AssertionError, as theirs; what cannot be expressed: NotImplementedError."""
        pool = Mamba()
        call = pool.arguments(3, [1, 2, 3], z=True)
        contiguous = {name: call[name].contiguous() for name in ("A", "dt", "dt_bias")}
        bad = dict(x=[call["x"][:, :2]],
                   dt=[call["dt"][:2], contiguous["dt"]],
                   A=[call["A"][:2], contiguous["A"]],
                   B=[call["B"][..., :-1], call["B"].repeat(1, 2, 1)[:, :3]],
                   C=[call["C"][:, :1]],
                   D=[call["D"][:2]],
                   z=[call["z"][:2]],
                   dt_bias=[contiguous["dt_bias"]],
                   out=[None, call["out"][:2]],
                   x_cache=[None, call["x_cache"][:, :, :2]],
                   dt_cache=[None, call["dt_cache"][:, :2]],
                   B_cache=[None, call["B_cache"][:, :1]],
                   write_pos=[None, call["write_pos"][:2], call["write_pos"].long()],
                   is_flush=[None, call["is_flush"].int()],
                   state_batch_indices=[call["state_batch_indices"][:2]],
                   max_cache_len=[RING + 1])
        function = self.routes(3)["state_and_output"]
        for name, values in bad.items():
            for value in values:
                with self.subTest(name):
                    self.raises(AssertionError, function, call, **{name: value})
        for scratch in (None, torch.zeros(3, NG, RING + 1), torch.zeros(3, NG, RING).half()):
            with self.assertRaises(AssertionError):
                vllm.selective_state_update_replayssm_output_only(**call, bc_pre=scratch)
        self.raises(NotImplementedError, function, call, dt_softplus=False)
        self.raises(NotImplementedError, function, call, x_cache=call["x_cache"].half())
        with self.assertRaises(NotImplementedError):
            vllm.selective_state_update_replayssm_output_only(**call,
                                                              bc_pre=torch.zeros(3, NG, RING),
                                                              enable_stochastic_rounding=True)
        self.raises(ValueError, function, call, says="compact", x_cache=torch.zeros(SLOTS, NH, P, RING).transpose(2, 3))
        function(**call)


class Cache(Case):

    def test_one_instance_per_shape(self):
        for _ in range(3):
            for L in (2, 4):
                pool = Delta("gdn", L=L)
                sglang.fused_recurrent_linear_replayssm_decode(**pool.arguments(2, [0, 1]))
        self.assertEqual(len(common.instances), 2)
        common.close()
        self.assertEqual(len(common.instances), 0)
        sglang.fused_recurrent_linear_replayssm_decode(**Delta("gdn").arguments(2, [0, 1]))  # a new one
        self.assertEqual(len(common.instances), 1)

    def test_bounded(self):
        cache = common.Instances(limit=2)
        cache.use(s.library())
        keys = [common.Key("gdn", 1, 1, 8, 8, L, "float32", "float32", "float32", (1, 0)) for L in (1, 2, 3)]
        plugins = []
        for key in keys[:2] + keys[:1] + keys[2:]:  # the first was used after the second
            with cache.lease(key) as plugin:
                plugins.append(plugin)
        self.assertEqual(len(cache), 2)
        self.assertEqual([p.closed for p in plugins], [False, True, False, False])
        with cache.lease(keys[0]), cache.lease(keys[2]):
            with self.assertRaisesRegex(RuntimeError, "in use"):
                with cache.lease(keys[1]):
                    pass
        cache.close()
        self.assertTrue(all(p.closed for p in plugins))

    def test_what_the_plugin_cannot_do(self):
        self.assertRaisesRegex(NotImplementedError, "ring", sglang.fused_recurrent_linear_replayssm_decode,
                               **Delta("gdn", L=65).arguments(1, [0]))

    def test_one_caller_at_a_time(self):
        entered, key = threading.Event(), common.Key("gdn", 1, 1, 8, 8, 2, "float32", "float32", "float32", (1, 0))

        def other():
            with common.instances.lease(key):
                entered.set()

        with common.instances.lease(key):
            thread = threading.Thread(target=other)
            thread.start()
            self.assertFalse(entered.wait(0.1))
        thread.join()
        self.assertTrue(entered.is_set())

    def test_threads(self):
        """Many callers of one shape: each gets the numbers of a lone one."""
        pools = [Delta("kda", seed=9) for _ in range(4)]
        calls = [[pool.arguments(3, [1, 2, 3], torch.full((3, ), n % RING, dtype=torch.int32)) for n in range(4 * RING)]
                 for pool in pools]
        failures = []

        def work(calls):
            try:
                for call in calls:
                    sglang.fused_recurrent_linear_replayssm_decode(**call, is_kda=True)
            except Exception as error:  # reported below
                failures.append(error)

        threads = [threading.Thread(target=work, args=(one, )) for one in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        for pool, one in zip(pools[1:], calls[1:]):
            self.assertTrue(torch.equal(pool.state, pools[0].state))
            self.assertTrue(all(torch.equal(x["out"], y["out"]) for x, y in zip(one, calls[0])))


@unittest.skipUnless(torch.cuda.is_available(), "PyTorch sees no GPU")
class Cuda(Case):

    def setUp(self):
        if "cuda" not in s.library().info.backends:
            self.skipTest("this plugin has no CUDA")

    def test_stream_and_graph(self):
        """On the current stream, in a graph whose cursors move, no first call in a capture."""
        pool = Delta("gdn", io=torch.bfloat16, ring=torch.bfloat16)
        call = {n: t.cuda() if isinstance(t, torch.Tensor) else t for n, t in pool.arguments(3, [1, -1, 4]).items()}
        function = sglang.fused_recurrent_linear_replayssm_decode
        with self.assertRaisesRegex(RuntimeError, "capture"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                function(**call)
        first = call["initial_state"].clone()
        function(**call)  # loads the kernels
        call["initial_state"].copy_(first)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function(**call)
        for step in range(2 * RING):
            call["write_pos"].fill_(step % RING)
            graph.replay()
            exact = pool.exact_out({n: t.cpu() if isinstance(t, torch.Tensor) else t for n, t in call.items()})
            self.assertLess(distance(call["out"].cpu(), exact), 4e-3)
        self.assertLess(distance(call["initial_state"].cpu()[[1, 4]], pool.exact[[1, 4]]), 4e-3)

    def test_wrong_device(self):
        pool = Delta("gdn")
        call = {n: t.cuda() if isinstance(t, torch.Tensor) else t for n, t in pool.arguments(3, [1, -1, 4]).items()}
        for name in ("b", "initial_state", "write_pos", "out"):
            with self.assertRaises(ValueError):
                sglang.fused_recurrent_linear_replayssm_decode(**{**call, name: call[name].cpu()})


if __name__ == "__main__":
    unittest.main()
