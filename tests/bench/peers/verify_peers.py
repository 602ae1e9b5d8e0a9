"""The contenders of a speculative window of T tokens a row: ours through replayssm.verify/1, our T plain steps, and public
verify kernels. A step(layer, phase) enqueues one layer; finish(phase) what a pass does to all layers' states at its end.

Token t of row b is row b * T + t of the inputs. Every window is accepted whole, so counts before a window lie in 1 .. L and
T of L rows fold their records first.
"""

import types

import torch

import abi
from contender import Contender, Function, OurStep, Step, step_tensors
from flashinfer_peers import CheckpointingSsu, FlashInferModule
from load import Unavailable
from mamba_peers import tied


class VerifyCursors:
    """Counts before the window, by phase: 1 .. L, spread over rows and phases."""

    def __init__(self, case, device):
        self.case = case
        step = max(1, case.L // case.batch)
        row = torch.arange(case.batch, device=device)
        self.counts = [((row * step + phase) % case.L + 1).to(torch.int32) for phase in range(case.L)]
        self.starts = torch.arange(case.batch + 1, dtype=torch.int32, device=device) * case.tokens

    def set(self, phase, counts):
        self.counts[phase].copy_(counts)


class VerifyContender(Contender):
    records_before = True  # reads records of earlier windows; else the state is whole before every window
    checked = True  # against float64
    folds_checked = True  # rows that fold, too

    def folds(self, counts, case):
        """Rows whose state[slot] holds all `counts` records once the window has run."""
        return counts + case.tokens > case.L


class Ours(VerifyContender):
    name, kind, source = "replayssm verify", "replay", "this tree"

    def __init__(self, plugin):
        self.plugin = plugin

    def unfit(self, case):
        return None if case.tokens <= case.L else "a window longer than the ring"

    def bind(self, case, pool, inputs, cursors):
        return OurVerify(self.plugin, case, pool, inputs, cursors)


class OurVerify(Step):

    def __init__(self, plugin, case, pool, inputs, cursors):
        self.case, self.pool, self.cursors, device = case, pool, cursors, pool.device
        layers = [pool.layer(i) for i in range(pool.state.shape[0])]
        self.cursor = torch.zeros(pool.state.shape[1], abi.CURSOR_WIDTH, dtype=torch.int32, device=device)
        self.instance = abi.Instance(plugin, case, layers, self.cursor, case.L, case.tokens - 1)
        self.rows = [torch.zeros(case.batch, abi.ROW_WIDTH, dtype=torch.int32, device=device) for _ in cursors.counts]
        tensors = step_tensors(case, inputs)
        self.launch = {(i, phase): self.instance.launcher(i, dict(tensors, **layers[i], rows=self.rows[phase]), verify=True)
                       for i in range(len(layers)) for phase in {i % len(self.rows), 0}}
        for phase in range(len(self.rows)):
            self.begin(phase)

    def begin(self, phase):
        self.cursor.zero_()
        self.cursor[self.pool.slots.long(), 1] = self.cursors.counts[phase]
        self.instance.verify_begin(self.pool.slots, self.cursors.starts, self.rows[phase], self.case.tokens)

    def __call__(self, layer, phase):
        self.launch[layer, phase]()

    def close(self):
        self.instance.close()


class OursPlain(VerifyContender):
    """T plain steps one after another: what a host without verify would run (and could not take back)."""
    name, kind, source = "replayssm, T plain steps", "replay", "this tree"
    checked = False

    def __init__(self, plugin):
        self.plugin = plugin

    def bind(self, case, pool, inputs, cursors):
        return OurPlainSteps(self.plugin, case, pool, inputs, cursors)


class OurPlainSteps(OurStep):
    """Layer steps of a window: token t of all rows with the rows of phase + t."""

    def __init__(self, plugin, case, pool, inputs, cursors):
        self.pool, self.cursors, self.L, self.tokens = pool, cursors, case.L, case.tokens
        layers = [dict(pool.layer(i)) for i in range(pool.state.shape[0])]
        for layer in layers:  # a plain instance has L ring rows: a view of the pool's L + T
            for name in pool.ring(0):
                layer[name] = layer[name][:, :, :case.L].contiguous()
        device = pool.device
        self.cursor = torch.zeros(pool.state.shape[1], abi.CURSOR_WIDTH, dtype=torch.int32, device=device)
        self.instance = abi.Instance(plugin, case, layers, self.cursor, case.L)
        self.rows = [torch.zeros(case.batch, abi.ROW_WIDTH, dtype=torch.int32, device=device) for _ in cursors.counts]
        token = lambda t, name, tensor: tensor if name in ("A_log", "dt_bias", "D") else tensor.unflatten(
            0, (case.batch, case.tokens))[:, t]
        tensors = [{name: token(t, name, tensor) for name, tensor in step_tensors(case, inputs).items()}
                   for t in range(case.tokens)]
        count = len(self.rows)
        make = lambda i, phase, t: self.instance.launcher(i, dict(tensors[t], **layers[i], rows=self.rows[(phase + t) % count]))
        self.launch = {(i, phase, t): make(i, phase, t)
                       for i in range(len(layers)) for phase in {i % count, 0} for t in range(case.tokens)}
        self.small = self.flushes_at_once()
        for phase in range(count):
            self.begin(phase)

    def begin(self, phase):
        self.cursor.zero_()
        if not self.small:
            self.cursor[self.pool.slots.long(), 1] = self.cursors.counts[phase] - 1
        self.instance.step_begin(self.pool.slots, self.rows[phase])

    def __call__(self, layer, phase):
        for t in range(self.tokens):
            self.launch[layer, phase, t]()


class VerifyFunction(Function):

    def __init__(self, function, begin=None, finish=None):
        super().__init__(function)
        self.on_begin, self.on_finish = begin, finish

    def begin(self, phase):
        if self.on_begin:
            self.on_begin(phase)

    def finish(self, phase):
        if self.on_finish:
            self.on_finish(phase)


def power_of_two(n):
    return 1 << (n - 1).bit_length()


class SlotCursors:
    """Cursors kept by slot, as some kernels want them, with their own rule of when a row folds."""

    def __init__(self, contender, case, pool, cursors):
        self.contender, self.case, self.pool, self.cursors = contender, case, pool, cursors
        slots = pool.state.shape[1]
        make = lambda dtype: [torch.zeros(slots, dtype=dtype, device=pool.device) for _ in cursors.counts]
        self.position, self.flush = make(torch.int32), make(torch.int8)
        self.base = torch.zeros(slots, dtype=torch.int32, device=pool.device)
        for phase in range(len(cursors.counts)):
            self.begin(phase)

    def begin(self, phase):
        counts = self.contender.counts(self.cursors.counts[phase], self.case.L)
        self.position[phase][self.pool.slots.long()] = counts
        self.flush[phase][self.pool.slots.long()] = self.contender.folds(counts, self.case).to(torch.int8)


def own_ring(pool, name, rows):
    """A ring of the pool with another number of rows, its records in front."""
    source = getattr(pool, name)
    target = torch.zeros(*source.shape[:3], rows, *source.shape[4:], dtype=source.dtype, device=source.device)
    taken = min(rows, source.shape[3])
    target[:, :, :, :taken].copy_(source[:, :, :, :taken])
    return target


class VllmGdnVerify(VerifyContender):
    name, kind, families = "ReplaySSM for vLLM (Triton)", "replay", ("gdn", )
    source = "ReplaySSM repository, vllm/model_executor/layers/fla/ops/gdn_replayssm_spec_decode.py"
    note = "two launches"

    def load(self):
        self.run = self.library.isolated("vllm.model_executor.layers.fla.ops.gdn_replayssm_spec_decode",
                                         "replayssm").gdn_replayssm_spec_decode

    def bind(self, case, pool, inputs, cursors):
        slot, rows = SlotCursors(self, case, pool, cursors), power_of_two(case.L + case.tokens)
        rings = [own_ring(pool, name, rows) for name in ("wide", "narrow", "gates")]
        out = inputs.out.squeeze(1)

        def step(layer, phase):
            self.run(inputs.packed, inputs.gate, inputs.b, inputs.A_log, inputs.dt_bias, pool.state[layer],
                     *(ring[layer] for ring in rings), out, cursors.starts, pool.slots, slot.position[phase], slot.base,
                     slot.flush[phase], case.L + case.tokens, case.tokens)

        def begin(phase):
            slot.begin(phase)
            for ring, name in zip(rings, ("wide", "narrow", "gates")):
                ring.copy_(own_ring(pool, name, rows))

        return VerifyFunction(step, begin)


class SglangGdnVerify(VerifyContender):
    name, kind, families = "SGLang ReplaySSM circular (Triton)", "replay", ("gdn", )
    source = "sglang/kernels/ops/attention/linear/gdn_replayssm_spec_decode.py"
    note = "three launches; its ring of 16 holds the window too, so it folds more often; folds raw inputs, which are not checked"

    def load(self):
        self.run = self.library.module(
            "sglang.kernels.ops.attention.linear.gdn_replayssm_spec_decode").gdn_replayssm_spec_decode

    def counts(self, counts, L):
        return (counts - 1) % max(1, L - self.tokens) + 1

    def folds(self, counts, case):
        return counts + 2 * case.tokens > case.L

    folds_checked = False

    def bind(self, case, pool, inputs, cursors):
        self.tokens = case.tokens
        slot = SlotCursors(self, case, pool, cursors)
        names = ("wide", "narrow", "gates")
        rings = [own_ring(pool, name, case.L) for name in names]
        raw = [torch.zeros_like(rings[0]), torch.zeros_like(rings[1]), torch.zeros_like(rings[2])]
        q, k, v = inputs.parts()
        out = inputs.out.squeeze(1)

        def step(layer, phase):
            self.run(q, k, v, inputs.gate, inputs.b, inputs.A_log, inputs.dt_bias, pool.state[layer],
                     *(ring[layer] for ring in rings), raw[0][layer], raw[1][layer], raw[2][layer], out, cursors.starts,
                     pool.slots, pool.slots, slot.position[phase], slot.base, slot.flush[phase], case.L, case.tokens)

        def begin(phase):
            slot.begin(phase)
            for ring, name in zip(rings, names):
                ring.copy_(own_ring(pool, name, case.L))

        return VerifyFunction(step, begin)


class SglangKdaVerify(VerifyContender):
    """The recurrent verify that records raw inputs, and the fold of the accepted window into the state."""
    name, kind, families = "SGLang ReplaySSM verify + fold (Triton)", "read-write", ("kda", )
    source = "sglang/kernels/ops/attention/linear/{fused_sigmoid_gating_recurrent,kda_replayssm_spec_decode}.py"
    note = "reads and writes the state once a window"
    records_before = False

    def load(self):
        place = "sglang.kernels.ops.attention.linear."
        self.run = self.library.module(place + "fused_sigmoid_gating_recurrent").fused_sigmoid_gating_delta_rule_update
        self.commit = self.library.module(place + "kda_replayssm_spec_decode").commit_kda_replayssm_spec

    def folds(self, counts, case):
        return torch.zeros_like(counts).bool()

    def bind(self, case, pool, inputs, cursors):
        q, k, v = (part.unsqueeze(0) for part in inputs.parts())
        a, b = inputs.gate.view(1, -1, case.HV * case.K), inputs.b.unsqueeze(0)
        ring = lambda dtype, *shape: torch.zeros(*pool.state.shape[:2], *shape, dtype=dtype, device=pool.device)
        rawv, rawk = ring(case.io, case.HV, case.tokens, case.V), ring(case.io, case.H, case.tokens, case.K)
        gates, beta = ring(torch.float32, case.HV, case.tokens, case.K), ring(torch.float32, case.HV, case.tokens)
        accepted = torch.full_like(pool.slots, case.tokens)

        def step(layer, phase):
            out = self.run(inputs.A_log, a, inputs.dt_bias, 1.0, 20.0, q, k, v, b, pool.state[layer], pool.slots,
                           use_qk_l2norm_in_kernel=True, cu_seqlens=cursors.starts, is_kda=True, disable_state_update=True,
                           cache_steps=case.tokens, cache_ring=True, replayssm_rawv=rawv[layer], replayssm_rawk=rawk[layer],
                           replayssm_g=gates[layer], replayssm_beta=beta[layer])
            inputs.last = out
            self.commit(pool.state[layer], rawv[layer], rawk[layer], gates[layer], beta[layer], pool.slots, accepted,
                        case.tokens, case.H)

        return VerifyFunction(step)


class VllmKdaVerify(VerifyContender):
    """RecoverSSM: a verify that records corrections, keys and gates, and one commit for all layers of a pass."""
    name, kind, families = "vLLM RecoverSSM verify + commit (Triton)", "read-write", ("kda", )
    source = "vllm/models/kimi_k3/nvidia/ops/recoverssm.py"
    note = "reads and writes the state once a window"
    records_before = False

    def load(self):
        module = self.library.module("vllm.models.kimi_k3.nvidia.ops.recoverssm")
        self.run, self.context = module.kda_recoverssm_verify, module.KDARecoverSSMCommitContext

    def folds(self, counts, case):
        return torch.zeros_like(counts).bool()

    def unfit(self, case):
        return super().unfit(case) or (None if case.H == case.HV else "needs as many key heads as value heads")

    def bind(self, case, pool, inputs, cursors):
        q, k, v = (part.unsqueeze(0) for part in inputs.parts())
        raw, beta, bias = inputs.gate.unsqueeze(0), inputs.b.unsqueeze(0), inputs.dt_bias.view(-1)
        make = lambda dtype, *shape: torch.zeros(*pool.state.shape[:2], *shape, dtype=dtype, device=pool.device)
        corrections = make(torch.float32, case.HV, case.tokens, case.V)
        keys = make(case.io, case.HV, case.tokens, 2 * case.K)
        conv = make(case.io, case.tokens + 2, 16)  # the least that its commit takes: convolution is not compared here
        out = inputs.out.squeeze(1).unsqueeze(0)
        layers = [types.SimpleNamespace(kv_cache=(conv[i], pool.state[i], corrections[i], keys[i]), A_log=inputs.A_log,
                                        dt_bias=inputs.dt_bias, local_num_heads=case.HV, head_dim=case.K, gate_lower_bound=None)
                  for i in range(pool.state.shape[0])]
        context = self.context.create(layers, spec_query_len=case.tokens, max_num_reqs=case.batch)
        accepted = torch.full_like(pool.slots, case.tokens)

        def step(layer, phase):
            self.run(q, k, v, raw, beta, inputs.A_log, bias, None, pool.state[layer], corrections[layer], keys[layer],
                     cursors.starts, pool.slots, case.tokens, out)

        return VerifyFunction(step, finish=lambda phase: context.commit(accepted, pool.slots, cursors.starts))


class VllmMambaVerify(VerifyContender):
    name, kind, families = "ReplaySSM for vLLM (Triton)", "replay", ("mamba2", )
    source = "ReplaySSM repository, vllm/model_executor/layers/mamba/ops/selective_state_update_replayssm_spec.py"
    note = "three launches; its ring holds dt before bias and softplus"

    def load(self):
        self.run = self.library.isolated("vllm.model_executor.layers.mamba.ops.selective_state_update_replayssm_spec",
                                         "replayssm").selective_state_update_replayssm_spec

    def bind(self, case, pool, inputs, cursors):
        slot, rows = SlotCursors(self, case, pool, cursors), power_of_two(case.L + case.tokens)
        layers, slots = pool.state.shape[:2]
        weights, wide = tied(inputs, case), case.HV * case.V
        ring = torch.zeros(layers, slots, rows, wide + case.H * case.K, dtype=case.io, device=pool.device)
        dt = torch.zeros(layers, slots, case.HV, rows, device=pool.device)
        scratch = torch.empty(case.batch, case.H, rows, power_of_two(case.tokens), dtype=case.io, device=pool.device)
        out = inputs.out.squeeze(1)

        def begin(phase):
            slot.begin(phase)
            n = case.L
            ring[:, :, :n, :wide] = pool.wide[:, :, :, :n].transpose(2, 3).flatten(3)
            ring[:, :, :n, wide:] = pool.narrow[:, :, :, :n].transpose(2, 3).flatten(3)
            raw = torch.log(torch.expm1(pool.gates[:, :, :, :n].double())) - inputs.dt_bias.double()[:, None]
            dt[:, :, :, :n] = raw.float()

        def step(layer, phase):
            self.run(pool.state[layer], ring[layer], dt[layer], inputs.packed, inputs.gate, weights["A"], slot.position[phase],
                     slot.base, slot.flush[phase], cursors.starts, pool.slots, case.L + case.tokens, case.tokens, wide, case.H,
                     case.K, D=weights["D"], dt_bias=weights["dt_bias"], out=out, bc_pre=scratch)

        begin(0)
        return VerifyFunction(step, begin)


class FlashInferVerify(VerifyContender):
    name, kind, families = "FlashInfer checkpointing_ssu (CUDA)", "replay", ("mamba2", )
    source = "flashinfer/mamba/checkpointing_ssu.py"
    note = "the best of its ways to launch"

    def load(self):
        self.modules = FlashInferModule(self.library, ("flashinfer.jit.mamba.checkpointing_ssu", "gen_checkpointing_ssu_module"))

    def bind(self, case, pool, inputs, cursors):
        ssu, slot = CheckpointingSsu(self.modules, case, pool, inputs, case.tokens), SlotCursors(self, case, pool, cursors)
        way = ssu.best_way(slot.position[0])

        def begin(phase):
            slot.begin(phase)
            ssu.take_records()

        return VerifyFunction(lambda layer, phase: ssu.launch(layer, slot.position[phase], way), begin)


PEERS = [VllmGdnVerify, SglangGdnVerify, SglangKdaVerify, VllmKdaVerify, VllmMambaVerify, FlashInferVerify]


def ours(plugin):
    """Ours, and why not where the plugin has no verify."""
    if plugin.verify_api() is None:
        raise Unavailable("the plugin has no replayssm.verify/1")
    return Ours(plugin)
