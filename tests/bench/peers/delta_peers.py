"""Public steps of KDA and GDN: SGLang's, vLLM's and fla's."""

import torch

from contender import Contender, Function


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


PEERS = [SglangReplay, HelionReplay, VllmReplay, SglangPacked, HelionPacked, VllmPacked, VllmKda, FlaKda, FlaGdn]
