"""Public steps of Mamba-2: vLLM's and mamba_ssm's."""

import torch

from contender import Contender, Function


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


PEERS = [VllmMambaReplay, VllmMamba, MambaSsm]
