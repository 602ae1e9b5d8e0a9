"""SGLang's ReplaySSM decode functions on replayssm.so: the call surface of sglang 0.5.23, tensors in place, nothing copied.

    import sglang.kernels.ops.attention.linear.fused_recurrent_linear_replayssm as theirs
    import sglang_adapter
    theirs.fused_recurrent_linear_replayssm_decode = sglang_adapter.fused_recurrent_linear_replayssm_decode

before SGLang's backends import it from there. RSSM_PLUGIN says where the plugin is. docs/adapters.md: what is the same, what is not.
"""

from __future__ import annotations

import torch

import adapter_common as common
from adapter_common import DeltaCall, Heads, close, instances, need, use  # noqa: F401


def fused_recurrent_linear_replayssm_decode(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor,
    d_cache: torch.Tensor,
    k_cache: torch.Tensor,
    g_cache: torch.Tensor,
    out: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    write_pos: torch.Tensor,
    force_flush: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    is_kda: bool = False,
    block_v: int | None = None,
    num_warps: int = 1,
    num_stages: int = 3,
    nk: int = 2,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row. mixed_qkv [B, 2HK + HV V]; a [B, HV] and dt_bias [HV], or with is_kda [B, HV, K] and [HV, K]; b [B, HV];
    A_log [HV]; initial_state [S, HV, V, K], the checkpoint, written by rows that flush; d_cache [S, HV, L, V], k_cache
    [S, H, L, K], g_cache float32 [S, HV, L] or [S, HV, L, K], where the other rows append at write_pos; out [B, 1, HV, V].
    A row flushes at write_pos = L - 1 or where force_flush is not 0. Rows of a negative state index are padding: out becomes 0.
    The caller moves write_pos. block_v, num_warps, num_stages and nk tune a kernel that does not run here.
    Returns out and initial_state."""
    call = DeltaCall(mixed_qkv, a, b, A_log, dt_bias, initial_state, d_cache, k_cache, g_cache, out, ssm_state_indices,
                     write_pos, force_flush)
    common.check_ranks(call)
    heads = common.heads_of(call)
    check_gates(call, heads, is_kda)
    common.check_rings(call, heads, is_kda)
    check_rows(call, heads)
    common.decode_delta("kda" if is_kda else "gdn", call, heads, scale, use_qk_l2norm_in_kernel)
    return out, initial_state


# The name under which the function began, for GDN alone.
fused_recurrent_gdn_replayssm_decode = fused_recurrent_linear_replayssm_decode


def helion_fused_recurrent_kda_replayssm_decode(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor,
    d_cache: torch.Tensor,
    k_cache: torch.Tensor,
    g_cache: torch.Tensor,
    out: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    write_pos: torch.Tensor,
    force_flush: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As above for KDA, with a [B, HV, K] or [B, HV K], dt_bias [HV, K] or [HV K], and with lower_bound the bounded gate
    g = lower_bound * sigmoid(exp(A_log) * (a + dt_bias))."""
    need(a.ndim in (2, 3) and a.is_contiguous(), "KDA: `a` must be a contiguous 2D or 3D tensor")
    need(dt_bias.ndim in (1, 2) and dt_bias.is_contiguous(), "KDA: `dt_bias` must be a contiguous 1D or 2D tensor")
    call = DeltaCall(mixed_qkv, a, b, A_log, dt_bias, initial_state, d_cache, k_cache, g_cache, out, ssm_state_indices,
                     write_pos, force_flush)
    check_devices(call)
    common.check_ranks(call)
    heads = common.heads_of(call)
    call = unflatten(call, heads)
    check_gates(call, heads, True)
    check_weights(call, heads)
    common.check_rings(call, heads, True)
    check_rows(call, heads)
    common.decode_delta("kda", call, heads, scale, use_qk_l2norm_in_kernel, lower_bound)
    return out, initial_state


def check_devices(call: DeltaCall) -> None:
    device = call.mixed_qkv.device
    for role, t in call._asdict().items():
        need(t is None or t.device == device, f"`{role}` is not on `mixed_qkv`'s device, {device}")


def unflatten(call: DeltaCall, heads: Heads) -> DeltaCall:
    B, (_, HV, K, _) = call.mixed_qkv.shape[0], heads
    need(call.a.shape[0] == B and call.a.numel() == B * HV * K, f"`a` must be {(B, HV, K)}; got {tuple(call.a.shape)}")
    need(call.dt_bias.numel() == HV * K, f"`dt_bias` must have {HV * K} elements; got {call.dt_bias.numel()}")
    return call._replace(a=call.a.view(B, HV, K), dt_bias=call.dt_bias.view(HV, K))


def check_gates(call: DeltaCall, heads: Heads, is_kda: bool) -> None:
    shape = (call.mixed_qkv.shape[0], heads.HV) + ((heads.K, ) if is_kda else ())
    need(tuple(call.a.shape) == shape, f"`a` must have shape {shape}; got {tuple(call.a.shape)}")
    need(tuple(call.dt_bias.shape) == shape[1:], f"`dt_bias` must have shape {shape[1:]}; got {tuple(call.dt_bias.shape)}")
    need(not is_kda or (call.a.is_contiguous() and call.dt_bias.is_contiguous()), "KDA: `a` and `dt_bias` must be contiguous")


def check_weights(call: DeltaCall, heads: Heads) -> None:
    B, HV = call.mixed_qkv.shape[0], heads.HV
    need(tuple(call.b.shape) == (B, HV), f"`b` must have shape {(B, HV)}; got {tuple(call.b.shape)}")
    need(call.A_log.numel() == HV, f"`A_log` must have {HV} elements; got {call.A_log.numel()}")
    need(call.ssm_state_indices.ndim == 1, f"`ssm_state_indices` must be 1D; it has {call.ssm_state_indices.ndim} dims")
    need(call.force_flush is None or call.force_flush.shape[0] == B, f"`force_flush` must have length {B}")


def check_rows(call: DeltaCall, heads: Heads) -> None:
    B, lengths = call.mixed_qkv.shape[0], (call.write_pos.shape[0], call.ssm_state_indices.shape[0])
    shape = (B, 1, heads.HV, heads.V)
    need(tuple(call.out.shape) == shape, f"`out` must have shape {shape}; got {tuple(call.out.shape)}")
    need(lengths == (B, B), f"`write_pos` and `ssm_state_indices` must have length {B}; got {lengths}")
