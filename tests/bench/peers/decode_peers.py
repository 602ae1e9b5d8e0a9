"""The contenders of the plain step: ours through the ABI, and public kernels. Each binds to the same pool, inputs and
cursors and gives a function step(layer, phase) that enqueues one layer.

kind "replay": checkpoint and ring as ours; "read-write": state in place; "out of place": state read, a new one written.
"""

import importlib

import torch

import abi
import load
from load import Unavailable


class Contender:
    families = ("kda", "gdn", "mamba2")
    kind = "read-write"
    note = ""
    folds_token = True  # a flush folds the current token too
    whole_windows = True  # can be driven through whole windows by counts that start at 0
    by_slot = True  # row b works on slot slots[b]; else on slot b + 1

    def __init__(self, library):
        self.library = library
        self.load()

    def load(self):
        """Imports the kernel or raises Unavailable."""

    def unfit(self, case):
        """Why this case cannot be run, or None."""
        return None if case.family in self.families else "another family"

    def counts(self, counts, L):
        """Records before the step where ours has `counts`."""
        return counts

    def flushed(self, counts, L):
        """Rows whose state[slot] is the whole state after the step, or (folds_token False) was before it."""
        return counts >= L - 1 if self.kind == "replay" else torch.ones_like(counts).bool()

    def bind(self, case, pool, inputs, cursors):
        raise NotImplementedError


class Ours(Contender):
    """replayssm.so: step_begin makes the rows of each phase, decode enqueues a layer."""
    name, kind, source = "replayssm", "replay", "this tree"
    ring_length = 0

    def __init__(self, plugin):
        self.plugin = plugin

    def bind(self, case, pool, inputs, cursors):
        return OurStep(self.plugin, case, pool, inputs, cursors, case.L)


class OursReadWrite(Ours):
    """The same at ring length 1: the standard step, state read and written."""
    name, kind = "replayssm read-write", "read-write"

    def bind(self, case, pool, inputs, cursors):
        return OurStep(self.plugin, case, pool, inputs, cursors, 1)


def step_tensors(case, inputs):
    common = dict(A_log=inputs.A_log, dt_bias=inputs.dt_bias, out=inputs.out.squeeze(1))
    if case.delta:
        return dict(common, mixed_qkv=inputs.packed, a=inputs.gate, b=inputs.b)
    return dict(common, mixed_xbc=inputs.packed, dt=inputs.gate, D=inputs.D)


class OurStep:

    def __init__(self, plugin, case, pool, inputs, cursors, L):
        self.pool, self.cursors, self.L, device = pool, cursors, L, pool.device
        layers = range(pool.state.shape[0])
        bound = [pool.layer(i) if L > 1 else dict(state=pool.state[i]) for i in layers]
        self.cursor = torch.zeros(pool.state.shape[1], abi.CURSOR_WIDTH, dtype=torch.int32, device=device)
        self.instance = abi.Instance(plugin, case, bound, self.cursor, L)
        self.rows = [torch.zeros(case.batch, abi.ROW_WIDTH, dtype=torch.int32, device=device) for _ in cursors.counts]
        tensors = step_tensors(case, inputs)
        launch = {}
        for i in layers:
            for phase in self.phases_of(i):
                launch[i, phase] = self.instance.launcher(i, dict(tensors, **bound[i], rows=self.rows[phase]))
        self.launch = launch
        for phase in range(len(self.rows)):
            self.begin(phase)

    def phases_of(self, layer):
        return {layer % len(self.rows), 0}

    def begin(self, phase):
        """The rows of this phase's counts, as a forward pass would get them. The ring's origin stays at row 0, since the
        other contenders know no other."""
        self.cursor.zero_()
        if self.L > 1:
            self.cursor[self.pool.slots.long(), 1] = self.cursors.counts[phase]
        self.instance.step_begin(self.pool.slots, self.rows[phase])

    def __call__(self, layer, phase):
        self.launch[layer, phase]()

    def finish(self, phase):
        pass

    def close(self):
        self.instance.close()


class Function:
    """A contender's step: a closure, and nothing to close."""

    def __init__(self, function):
        self.function = function

    def begin(self, phase):
        pass

    def __call__(self, layer, phase):
        self.function(layer, phase)

    def finish(self, phase):
        pass

    def close(self):
        pass


class SglangReplay(Contender):
    name, kind, families = "SGLang ReplaySSM (Triton)", "replay", ("kda", "gdn")
    source = "sglang/kernels/ops/attention/linear/fused_recurrent_linear_replayssm.py"

    def load(self):
        self.run = self.library.module(
            "sglang.kernels.ops.attention.linear.fused_recurrent_linear_replayssm").fused_recurrent_linear_replayssm_decode

    def bind(self, case, pool, inputs, cursors):

        def step(layer, phase):
            self.run(inputs.packed, inputs.gate, inputs.b, inputs.A_log, inputs.dt_bias, case.scale, pool.state[layer],
                     pool.wide[layer], pool.narrow[layer], pool.gates[layer], inputs.out, pool.slots, cursors.counts[phase],
                     use_qk_l2norm_in_kernel=True, is_kda=case.family == "kda")

        return Function(step)


class HelionReplay(Contender):
    name, kind, families = "SGLang ReplaySSM (Helion)", "replay", ("kda", )
    source = "sglang/kernels/ops/attention/helion/kda_replayssm.py"

    def load(self):
        self.run = self.library.module(
            "sglang.kernels.ops.attention.helion.kda_replayssm").helion_fused_recurrent_kda_replayssm_decode

    def bind(self, case, pool, inputs, cursors):

        def step(layer, phase):
            self.run(inputs.packed, inputs.gate, inputs.b, inputs.A_log, inputs.dt_bias, case.scale, pool.state[layer],
                     pool.wide[layer], pool.narrow[layer], pool.gates[layer], inputs.out, pool.slots, cursors.counts[phase],
                     use_qk_l2norm_in_kernel=True)

        return Function(step)


class VllmReplay(Contender):
    name, kind, families = "ReplaySSM for vLLM (Triton)", "replay", ("gdn", )
    source = "ReplaySSM repository, vllm/model_executor/layers/fla/ops/fused_recurrent_replayssm.py"

    def load(self):
        self.run = self.library.isolated("vllm.model_executor.layers.fla.ops.fused_recurrent_replayssm",
                                         "replayssm").fused_recurrent_gated_delta_rule_replayssm

    def bind(self, case, pool, inputs, cursors):

        def step(layer, phase):
            self.run(inputs.packed, inputs.gate, inputs.b, inputs.A_log, inputs.dt_bias, case.scale, pool.state[layer],
                     pool.wide[layer], pool.narrow[layer], pool.gates[layer], inputs.out, pool.slots, cursors.counts[phase],
                     use_qk_l2norm_in_kernel=True)

        return Function(step)


def tied(inputs, case):
    """Mamba-2's per-head values as these kernels take them: expanded over head dim and state with stride 0."""
    A = -inputs.A_log.exp()
    return dict(A=A[:, None, None].expand(-1, case.V, case.K), D=inputs.D[:, None].expand(-1, case.V),
                dt_bias=inputs.dt_bias[:, None].expand(-1, case.V))


class VllmMambaReplay(Contender):
    name, kind, families = "vLLM ReplaySSM (Triton)", "replay", ("mamba2", )
    source = "vllm/model_executor/layers/mamba/ops/selective_state_update_replayssm_output_only.py"
    note = "two launches"

    def load(self):
        self.run = self.library.module("vllm.model_executor.layers.mamba.ops.selective_state_update_replayssm_output_only"
                                       ).selective_state_update_replayssm_output_only

    def bind(self, case, pool, inputs, cursors):
        weights, scratch = tied(inputs, case), torch.empty(case.batch, case.H, case.L, device=pool.device)
        B, C, x = inputs.parts()
        dt, out = inputs.gate[..., None].expand(-1, -1, case.V), inputs.out.squeeze(1)

        def step(layer, phase):
            self.run(pool.state[layer], x, dt, B=B, C=C, **weights, dt_softplus=True, x_cache=pool.wide[layer],
                     dt_cache=pool.gates[layer], B_cache=pool.narrow[layer], bc_pre=scratch, write_pos=cursors.counts[phase],
                     is_flush=cursors.flush[phase], max_cache_len=case.L, state_batch_indices=pool.slots, out=out)

        return Function(step)


class VllmMamba(Contender):
    name, families = "vLLM selective_state_update (Triton)", ("mamba2", )
    source = "vllm/model_executor/layers/mamba/ops/mamba_ssm.py"
    note = "the configuration that vLLM ships for this GPU, where there is one"

    def load(self):
        self.run = self.library.module("vllm.model_executor.layers.mamba.ops.mamba_ssm").selective_state_update

    def bind(self, case, pool, inputs, cursors):
        weights = tied(inputs, case)
        B, C, x = inputs.parts()
        dt, out = inputs.gate[..., None].expand(-1, -1, case.V), inputs.out.squeeze(1)

        def step(layer, phase):
            self.run(pool.state[layer], x, dt, B=B, C=C, **weights, dt_softplus=True, state_batch_indices=pool.slots, out=out)

        return Function(step)


class MambaSsm(Contender):
    name, families = "mamba_ssm selective_state_update (Triton)", ("mamba2", )
    source = "mamba_ssm/ops/triton/selective_state_update.py"

    def load(self):
        self.run = self.library.module("mamba_ssm.ops.triton.selective_state_update").selective_state_update

    def bind(self, case, pool, inputs, cursors):
        weights = tied(inputs, case)
        B, C, x = inputs.parts()
        dt = inputs.gate[..., None].expand(-1, -1, case.V)

        def step(layer, phase):
            inputs.last = self.run(pool.state[layer], x, dt, B=B, C=C, **weights, dt_softplus=True,
                                   state_batch_indices=pool.slots)

        return Function(step)


class SglangPacked(Contender):
    name, families = "SGLang packed step", ("kda", "gdn")
    source = "sglang/kernels/ops/attention/fla/fused_recurrent.py"
    note = "KDA with fp32 state from B = 8 on: SGLang's CUDA kernel where it could be built, else Triton"

    def load(self):
        module = self.library.module("sglang.kernels.ops.attention.fla.fused_recurrent")
        self.kda = module.fused_recurrent_kda_packed_decode
        self.gdn = module.fused_recurrent_gated_delta_rule_packed_decode

    def bind(self, case, pool, inputs, cursors):
        kda = case.family == "kda"
        run = self.kda if kda else self.gdn
        a = inputs.gate.view(case.batch, -1)

        def step(layer, phase):
            run(inputs.packed, a, inputs.b, inputs.A_log, inputs.dt_bias.view(-1), case.scale, pool.state[layer], inputs.out,
                pool.slots, use_qk_l2norm_in_kernel=True)

        return Function(step)


class HelionPacked(Contender):
    name, families = "SGLang packed step (Helion)", ("kda", )
    source = "sglang/kernels/ops/attention/helion/kda_decode.py"

    def load(self):
        self.run = self.library.module(
            "sglang.kernels.ops.attention.helion.kda_decode").helion_fused_recurrent_kda_packed_decode

    def bind(self, case, pool, inputs, cursors):
        a = inputs.gate.view(case.batch, -1)

        def step(layer, phase):
            self.run(inputs.packed, a, inputs.b, inputs.A_log, inputs.dt_bias.view(-1), case.scale, pool.state[layer],
                     inputs.out, pool.slots, use_qk_l2norm_in_kernel=True)

        return Function(step)


class VllmPacked(Contender):
    name, families = "vLLM packed step (Triton)", ("gdn", )
    source = "vllm/third_party/flash_linear_attention/ops/fused_recurrent.py"

    def load(self):
        self.run = self.library.module(
            "vllm.third_party.flash_linear_attention.ops.fused_recurrent").fused_recurrent_gated_delta_rule_packed_decode

    def bind(self, case, pool, inputs, cursors):

        def step(layer, phase):
            self.run(inputs.packed, inputs.gate, inputs.b, inputs.A_log, inputs.dt_bias, case.scale, pool.state[layer],
                     inputs.out, pool.slots, use_qk_l2norm_in_kernel=True)

        return Function(step)


class VllmKda(Contender):
    name, families = "vLLM fused_recurrent_kda (Triton)", ("kda", )
    source = "vllm/models/kimi_k3/nvidia/ops/third_party/kda/fused_recurrent.py"

    def load(self):
        self.run = self.library.module("vllm.models.kimi_k3.nvidia.ops.third_party.kda.fused_recurrent").fused_recurrent_kda

    def unfit(self, case):
        return super().unfit(case) or (None if case.H == case.HV else "needs as many key heads as value heads")

    def bind(self, case, pool, inputs, cursors):
        q, k, v = (part.unsqueeze(0) for part in inputs.parts())
        raw, beta = inputs.gate.unsqueeze(0), inputs.b.unsqueeze(0)
        starts = torch.arange(case.batch + 1, dtype=torch.int32, device=pool.device)
        out, bias = inputs.out.transpose(0, 1), inputs.dt_bias.view(-1)

        def step(layer, phase):
            self.run(q, k, v, raw, beta, inputs.A_log, bias, None, pool.state[layer], starts, pool.slots, out=out)

        return Function(step)


class FlaKda(Contender):
    name, families = "fla fused_recurrent_kda (Triton)", ("kda", )
    source = "fla/ops/kda/fused_recurrent.py"

    def load(self):
        self.run = self.library.module("fla.ops.kda.fused_recurrent").fused_recurrent_kda_fwd

    def bind(self, case, pool, inputs, cursors):
        q, k, v = inputs.apart
        raw, beta = inputs.gate.unsqueeze(1), inputs.b.unsqueeze(1)

        def step(layer, phase):
            self.run(q, k, v, raw, beta, inputs.A_log, inputs.dt_bias, pool.state[layer], case.scale, state_v_first=True,
                     ssm_state_indices=pool.slots, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
                     use_beta_sigmoid_in_kernel=True, out=inputs.out)

        return Function(step)


class FlaGdn(Contender):
    name, kind, families = "fla fused_recurrent_gated_delta_rule (Triton)", "out of place", ("gdn", )
    source = "fla/ops/gated_delta_rule/fused_recurrent.py"
    note = "no slots: row b is state b + 1; the new state goes to a new tensor in fp32"
    by_slot = False

    def load(self):
        self.run = self.library.module("fla.ops.gated_delta_rule.fused_recurrent").fused_recurrent_gated_delta_rule_fwd

    def unfit(self, case):
        return super().unfit(case) or (None if case.state == torch.float32 else "writes fp32 states only")

    def bind(self, case, pool, inputs, cursors):
        q, k, v = inputs.apart
        raw, beta = inputs.gate.unsqueeze(1), inputs.b.unsqueeze(1)

        def step(layer, phase):
            inputs.last, inputs.new_state = self.run(
                q, k, v, g=raw, beta=beta, A_log=inputs.A_log, dt_bias=inputs.dt_bias, scale=case.scale,
                initial_state=pool.state[layer, 1:], output_final_state=True, use_qk_l2norm_in_kernel=True,
                use_beta_sigmoid_in_kernel=True, state_v_first=True)

        return Function(step)


class FlashInferModule:
    """FlashInfer's compiled kernels: a module of its cache (NAME.so) in the peers' folder, or what FlashInfer itself compiles
    where it is installed."""

    def __init__(self, library, generator):
        self.folder = library.folder / "flashinfer_modules" if library.folder else None
        self.generator = generator
        if self.folder is None or not self.folder.is_dir():
            self.folder = None
            try:
                importlib.import_module("flashinfer")
            except ImportError as error:
                raise Unavailable(f"flashinfer: {error}") from error

    def get(self, name, *args):
        if self.folder:
            return load.compiled(self.folder, name)
        module, function = self.generator
        return getattr(importlib.import_module(module), function)(*args).build_and_load()


TYPE_NAME = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def checkpointing_ssu_module(modules, case, tokens, window):
    state, io, f32 = TYPE_NAME[case.state], TYPE_NAME[case.io], torch.float32
    return modules.get(
        f"checkpointing_ssu_s_{state}_i_{io}_dt_{io}_w_f32_a_f32_si_i32_d_{case.V}_ds_{case.K}_np_{tokens}_mw_{window}_hpg_"
        f"{case.HV // case.H}_ng_{case.H}", case.state, case.io, case.io, f32, f32, torch.int32, None, case.V, case.K, tokens,
        window, case.HV // case.H, case.H)


class CheckpointingSsu:
    """FlashInfer's checkpointing_ssu on rings of its own: `tokens` rows longer than its window, with the pool's records in
    front. Which of its ways to launch is best for a shape is left to its tuner; here they are all timed once."""
    WAYS = {"monolith": (1, False), "monolith, split 2": (2, False), "two kernels": (1, True)}

    def __init__(self, modules, case, pool, inputs, tokens=1):
        self.case, self.pool, self.inputs, self.tokens = case, pool, inputs, tokens
        self.module = checkpointing_ssu_module(modules, case, tokens, case.L)
        device, layers, slots = pool.device, pool.state.shape[0], pool.state.shape[1]
        length = case.L + tokens
        self.wide = torch.zeros(layers, slots, case.HV, length, case.V, dtype=case.io, device=device)
        self.narrow = torch.zeros(layers, slots, case.H, length, case.K, dtype=case.io, device=device)
        self.gates = torch.zeros(layers, slots, case.HV, length, device=device)
        self.take_records()
        self.start = torch.zeros(slots, dtype=torch.int32, device=device)
        batch = case.batch
        pad = lambda n, to: -(-n // to) * to
        self.scratch = (torch.empty(batch, case.HV, 32, pad(tokens, 16) // 2, dtype=case.io, device=device),
                        torch.empty(batch, case.HV, pad(tokens, 16), device=device),
                        torch.empty(batch, case.HV, 32, pad(case.L, 8) // 2, dtype=case.io, device=device))
        weights = tied(inputs, case)
        window = lambda t, *shape: t.view(batch, tokens, *shape) if t.is_contiguous() else t.unflatten(0, (batch, tokens))
        B, C, x = (window(part, *part.shape[1:]) for part in inputs.parts())
        dt = window(inputs.gate, case.HV)[..., None].expand(-1, -1, -1, case.V)
        out = inputs.out.view(batch, tokens, case.HV, case.V)
        self.inputs_of_call = (x, dt, weights["A"], B, C, out)
        self.weights = weights

    def take_records(self):
        """The pool's records into the rings."""
        for target, source in ((self.wide, self.pool.wide), (self.narrow, self.pool.narrow), (self.gates, self.pool.gates)):
            rows = min(source.shape[3], target.shape[3])
            target[:, :, :, :rows].copy_(source[:, :, :, :rows])

    def launch(self, layer, counts, way):
        split, two = way
        x, dt, A, B, C, out = self.inputs_of_call
        scratch = self.scratch if two else (None, None, None)
        self.module.checkpointing_ssu(self.pool.state[layer], x, dt, A, B, C, out, self.wide[layer], self.narrow[layer],
                                      self.gates[layer], self.start, counts, self.weights["D"], None, self.weights["dt_bias"],
                                      True, self.pool.slots, -1, None, None, split, None, *scratch, 0, 0, 0)

    def best_way(self, counts):
        """The fastest of the ways on this GPU; the first on a CPU."""
        if self.pool.device.type != "cuda":
            return self.WAYS["monolith"]
        times = {}
        for way in self.WAYS.values():
            for measured in (False, True):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                for layer in range(min(8, self.pool.state.shape[0])):
                    self.launch(layer, counts, way)
                end.record()
                end.synchronize()
            times[way] = begin.elapsed_time(end)
        return min(times, key=times.get)


class FlashInferReplay(Contender):
    name, kind, families = "FlashInfer checkpointing_ssu (CUDA)", "replay", ("mamba2", )
    source = "flashinfer/mamba/checkpointing_ssu.py"
    note = "a flush folds the 16 records before the token; the best of its ways to launch"
    folds_token = whole_windows = False

    def load(self):
        self.modules = FlashInferModule(self.library, ("flashinfer.jit.mamba.checkpointing_ssu", "gen_checkpointing_ssu_module"))

    def counts(self, counts, L):
        return torch.where(counts == 0, L, counts)

    def flushed(self, counts, L):
        return counts == L

    def bind(self, case, pool, inputs, cursors):
        return CheckpointingStep(self, CheckpointingSsu(self.modules, case, pool, inputs), cursors)


class CheckpointingStep:

    def __init__(self, contender, ssu, cursors):
        self.contender, self.ssu, self.cursors = contender, ssu, cursors
        # Its cursors are kept by slot.
        self.by_slot = [torch.zeros_like(ssu.start) for _ in cursors.counts]
        for phase in range(len(self.by_slot)):
            self.begin(phase)
        self.way = ssu.best_way(self.by_slot[0])

    def begin(self, phase):
        counts = self.contender.counts(self.cursors.counts[phase], self.ssu.case.L)
        self.by_slot[phase][self.ssu.pool.slots.long()] = counts
        self.ssu.take_records()

    def __call__(self, layer, phase):
        self.ssu.launch(layer, self.by_slot[phase], self.way)

    def finish(self, phase):
        pass

    def close(self):
        pass


class FlashInferMamba(Contender):
    name, families = "FlashInfer selective_state_update (CUDA)", ("mamba2", )
    source = "flashinfer/mamba/selective_state_update.py"

    def load(self):
        self.modules = FlashInferModule(self.library, ("flashinfer.mamba.selective_state_update", "get_module_of_this_machine"))
        if self.modules.folder is None:
            run = importlib.import_module("flashinfer.mamba").selective_state_update
            self.run = lambda state, x, dt, A, B, C, D, bias, slots, out, case: run(
                state, x, dt, A, B, C, D, dt_bias=bias, dt_softplus=True, state_batch_indices=slots, out=out)
        else:
            self.run = self.compiled

    def compiled(self, state, x, dt, A, B, C, D, bias, slots, out, case):
        module = self.modules.get(f"selective_state_update_s_{TYPE_NAME[case.state]}_i_{TYPE_NAME[case.io]}_w_f32_a_f32_si_i32_"
                                  f"d_{case.V}_ds_{case.K}_nt_1_cs_i32_na_i32")
        module.selective_state_update(state, x, dt, A, B, C, D, None, bias, True, slots, None, -1, None, out, False, None, None,
                                      None, None, 0, None, None, 0)

    def bind(self, case, pool, inputs, cursors):
        weights = tied(inputs, case)
        B, C, x = inputs.parts()
        dt, out = inputs.gate[..., None].expand(-1, -1, case.V), inputs.out.squeeze(1)

        def step(layer, phase):
            self.run(pool.state[layer], x, dt, weights["A"], B, C, weights["D"], weights["dt_bias"], pool.slots, out, case)

        return Function(step)


class FlashInferDelta(Contender):
    """FlashInfer's decode of the delta rule, written in CuTe DSL: only where flashinfer itself is installed with it."""
    module, function = "flashinfer", ""

    def load(self):
        try:
            self.run = getattr(importlib.import_module(self.module), self.function)
        except (ImportError, AttributeError) as error:
            raise Unavailable(f"needs flashinfer with nvidia-cutlass-dsl installed: {error}") from error


class FlashInferGdn(FlashInferDelta):
    name, families = "FlashInfer GDN decode (CuTe DSL)", ("gdn", )
    source = "flashinfer/gdn_decode.py, gated_delta_rule_decode_pretranspose"
    note = "fp32: row b is state b + 1, for only bf16 states have slots"
    module, function = "flashinfer.gdn_decode", "gated_delta_rule_decode_pretranspose"

    def bind(self, case, pool, inputs, cursors):
        q, k, v = inputs.apart
        a, b = inputs.gate.unsqueeze(1), inputs.b.unsqueeze(1)
        self.by_slot = case.state == torch.bfloat16

        def step(layer, phase):
            slots = dict(initial_state=pool.state[layer], initial_state_indices=pool.slots) if self.by_slot else {}
            state = None if self.by_slot else pool.state[layer, 1:]
            self.run(q, k, v, state, inputs.A_log, a, inputs.dt_bias, b, case.scale, inputs.out, **slots)

        return Function(step)


class FlashInferKda(FlashInferDelta):
    name, families = "FlashInfer recurrent_kda (CuTe DSL)", ("kda", )
    source = "flashinfer/kda_decode.py"
    module, function = "flashinfer.kda_decode", "recurrent_kda"

    def unfit(self, case):
        return super().unfit(case) or (None if case.state == torch.bfloat16 else "bf16 states only")

    def bind(self, case, pool, inputs, cursors):
        q, k, v = inputs.apart
        gate, beta = inputs.gate.unsqueeze(1), inputs.b.unsqueeze(1)

        def step(layer, phase):
            self.run(q, k, v, gate, beta, inputs.A_log, inputs.dt_bias.view(-1), case.scale, use_gate_in_kernel=True,
                     beta_is_logit=True, output=inputs.out, initial_state_source=pool.state[layer],
                     initial_state_indices=pool.slots)

        return Function(step)


PEERS = [
    SglangReplay, HelionReplay, VllmReplay, VllmMambaReplay, SglangPacked, HelionPacked, VllmPacked, VllmKda, FlaKda, FlaGdn,
    VllmMamba, MambaSsm, FlashInferReplay, FlashInferMamba, FlashInferGdn,
    FlashInferKda
]


def available(library, peers=tuple(PEERS)):
    """The peers that load, and for the others why not."""
    found, missing = [], []
    for peer in peers:
        try:
            found.append(peer(library))
        except Unavailable as reason:
            missing.append((peer.name, str(reason)))
        except Exception as reason:  # a file of another version may fail in any way: it is left out by name
            missing.append((peer.name, f"{type(reason).__name__}: {reason}"))
    return found, missing
