"""The ReplaySSM decode functions of vLLM's lineage on replayssm.so: the call surface of Dao AI Lab's ReplaySSM for vLLM (GDN,
Mamba-2) and of vLLM 0.32 (Mamba-2), tensors in place.

    import vllm.model_executor.layers.mamba.mamba_mixer2 as mixer
    import vllm_adapter
    mixer.selective_state_update_replayssm_output_only = vllm_adapter.selective_state_update_replayssm_output_only

RSSM_PLUGIN says where the plugin is. docs/adapters.md: what is the same, what is not.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional

import torch

import adapter_common as common
from adapter_common import DeltaCall, Key, close, instances, need, use  # noqa: F401

NULL_BLOCK_ID = 0  # the slot that stands for none

# vLLM's Mamba-2 kernels leave `out` of padding rows alone. False: it becomes 0 there, which saves two small kernels a call where
# the host reads no padding rows (vLLM does not).
KEEP_PADDING_ROWS = True


def fused_recurrent_gated_delta_rule_replayssm(
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
    use_qk_l2norm_in_kernel: bool = False,
    block_v: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
    nk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GDN, one token per row. mixed_qkv [B, 2HK + HV V]; a, b [B, HV]; A_log, dt_bias [HV]; initial_state [S, HV, V, K], written by
    rows at write_pos = L - 1; d_cache [S, HV, L, V], k_cache [S, H, L, K], g_cache float32 [S, HV, L], where the others append;
    out [B, 1, HV, V]. Rows of state index 0 or less are padding: out becomes 0. The caller moves write_pos. The last four
    arguments tune a kernel that does not run here. Returns out and initial_state."""
    call = DeltaCall(mixed_qkv, a, b, A_log, dt_bias, initial_state, d_cache, k_cache, g_cache, out, ssm_state_indices,
                     write_pos)
    need(a.ndim == 2, f"`a` must be 2D; it has {a.ndim} dims")
    need(dt_bias.ndim == 1, f"`dt_bias` must be 1D; it has {dt_bias.ndim} dims")
    common.check_ranks(call)
    heads = common.heads_of(call)
    common.check_rings(call, heads, False)
    rows = mixed_qkv.shape[0] * heads.HV * heads.V
    need(out.numel() == rows, f"`out` must have {rows} elements; got {out.numel()}")
    common.decode_delta("gdn", call, heads, scale, use_qk_l2norm_in_kernel, pad_slot=NULL_BLOCK_ID)
    return out, initial_state


def selective_state_update_replayssm_output_only(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    dt_softplus: bool = False,
    x_cache: torch.Tensor | None = None,
    dt_cache: torch.Tensor | None = None,
    B_cache: torch.Tensor | None = None,
    bc_pre: torch.Tensor | None = None,
    write_pos: torch.Tensor | None = None,
    is_flush: torch.Tensor | None = None,
    max_cache_len: int = 16,
    state_batch_indices: torch.Tensor | None = None,
    null_block_id: int = NULL_BLOCK_ID,
    out: torch.Tensor | None = None,
    enable_stochastic_rounding: bool = False,
    cache_philox_rounds: int = 0,
) -> torch.Tensor:
    """Mamba-2, one token per row. state [S, nh, P, N], written by rows with is_flush; x, z, out [batch, nh, P]; dt [batch, nh, P] and
    dt_bias [nh, P] with one value per head (stride 0), A [nh, P, N] likewise; B, C [batch, ng, N]; D [nh, P]; x_cache [S, nh, L, P],
    dt_cache float32 [S, nh, L], B_cache [S, ng, L, N], where the other rows append at write_pos; L = max_cache_len. A row of
    null_block_id is padding. bc_pre, scratch of theirs, is checked and not used. The caller moves write_pos. Returns out."""
    refuse_rounding(enable_stochastic_rounding)
    call = with_heads(
        MambaCall(state, x, dt, A, B, C, D, dt_bias, z, x_cache, dt_cache, B_cache, write_pos, is_flush, out, state_batch_indices))
    check_mamba(call, max_cache_len)
    batch, groups = call.x.shape[0], call.B.shape[1]
    ours(
        bc_pre is not None and bc_pre.ndim == 3 and bc_pre.shape[0] >= batch and bc_pre.shape[1] >= groups
        and bc_pre.shape[2] == max_cache_len, f"bc_pre must be [{batch}, {groups}, {max_cache_len}]")
    ours(bc_pre.dtype == torch.float32, "bc_pre must be float32")
    decode_mamba(call, max_cache_len, dt_softplus, null_block_id)
    return returned(out, state)


def selective_state_update_replayssm_state_and_output(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    dt_softplus: bool = False,
    x_cache: torch.Tensor | None = None,
    dt_cache: torch.Tensor | None = None,
    B_cache: torch.Tensor | None = None,
    write_pos: torch.Tensor | None = None,
    is_flush: torch.Tensor | None = None,
    max_cache_len: int = 16,
    state_batch_indices: torch.Tensor | None = None,
    null_block_id: int = NULL_BLOCK_ID,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same step by the other of their two routes: without bc_pre."""
    call = with_heads(
        MambaCall(state, x, dt, A, B, C, D, dt_bias, z, x_cache, dt_cache, B_cache, write_pos, is_flush, out, state_batch_indices))
    check_mamba(call, max_cache_len)
    decode_mamba(call, max_cache_len, dt_softplus, null_block_id)
    return returned(out, state)


class MambaCall(NamedTuple):
    """The tensors of a call; with_heads gives those that come without a head dim one of 1."""

    state: torch.Tensor  # [S, nh, P, N]
    x: torch.Tensor  # [batch, nh, P]
    dt: torch.Tensor  # [batch, nh, P], one value per head
    A: torch.Tensor  # [nh, P, N], one value per head
    B: torch.Tensor  # [batch, ng, N]
    C: torch.Tensor
    D: Optional[torch.Tensor]  # [nh, P]
    dt_bias: Optional[torch.Tensor]  # [nh, P], one value per head
    z: Optional[torch.Tensor]  # [batch, nh, P]
    x_cache: Optional[torch.Tensor]  # [S, nh, L, P]
    dt_cache: Optional[torch.Tensor]  # [S, nh, L]
    B_cache: Optional[torch.Tensor]  # [S, ng, L, N]
    write_pos: Optional[torch.Tensor]  # [batch] or longer
    is_flush: Optional[torch.Tensor]
    out: Optional[torch.Tensor]  # [batch, nh, P]
    indices: Optional[torch.Tensor]  # [batch] or longer


# Dims that a tensor has without heads, and where its head dim goes then.
HEADLESS = {
    "state": (3, 1),
    "x": (2, 1),
    "dt": (2, 1),
    "A": (2, 0),
    "B": (2, 1),
    "C": (2, 1),
    "D": (1, 0),
    "z": (2, 1),
    "dt_bias": (1, 0),
    "out": (2, 1)
}


def with_heads(call: MambaCall) -> MambaCall:
    given = {role: getattr(call, role) for role in HEADLESS}
    heads = {role: t.unsqueeze(HEADLESS[role][1]) for role, t in given.items() if t is not None and t.dim() == HEADLESS[role][0]}
    flat = call.indices is not None and call.indices.dim() == 2
    return call._replace(**heads, indices=call.indices[:, 0] if flat else call.indices)


def returned(out: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """`out` as it came; without heads it comes back without a head dim."""
    return out.squeeze(1) if state.dim() <= 3 and out.dim() == 3 else out


def ours(holds: bool, message: str) -> None:
    """What vLLM's functions assert."""
    if not holds:
        raise AssertionError(message)


def check_mamba(call: MambaCall, L: int) -> None:
    ours(call.state.dim() == 4, f"state must be [S, nh, P, N]; got {tuple(call.state.shape)}")
    _, nh, P, N = call.state.shape
    batch, groups = call.x.shape[0], call.B.shape[1]
    check_shape("x", call.x, (batch, nh, P))
    check_shape("dt", call.dt, (batch, nh, P))
    check_shape("A", call.A, (nh, P, N))
    ours(groups > 0 and nh % groups == 0, f"{groups} groups do not divide {nh} heads")
    for role in ("B", "C"):
        check_shape(role, getattr(call, role), (batch, groups, N))
    for role, shape in {"D": (nh, P), "z": (batch, nh, P), "dt_bias": (nh, P)}.items():
        if getattr(call, role) is not None:
            check_shape(role, getattr(call, role), shape)
    check_shape("out", call.out, (batch, nh, P))
    check_tied(call)
    for role, shape in {"x_cache": (nh, L, P), "dt_cache": (nh, L), "B_cache": (groups, L, N)}.items():
        t = getattr(call, role)
        ours(t is not None and tuple(t.shape[1:]) == shape, f"{role} must have {shape} per slot")
    check_index("write_pos", call.write_pos, batch, (torch.int32, ))
    check_index("is_flush", call.is_flush, batch, (torch.bool, torch.int8))
    ours(call.indices is None or call.indices.shape[0] >= batch, f"state_batch_indices must have {batch} rows")


def check_shape(role: str, t: Optional[torch.Tensor], shape: tuple) -> None:
    ours(t is not None and tuple(t.shape) == shape,
         f"{role} must have shape {shape}; got {None if t is None else tuple(t.shape)}")


def check_tied(call: MambaCall) -> None:
    """One value per head, expanded."""
    ours(call.A.stride(-1) == 0 and call.A.stride(-2) == 0, "A must be one value per head, expanded (stride 0)")
    for role in ("dt", "dt_bias"):
        t = getattr(call, role)
        ours(t is None or t.stride(-1) == 0, f"{role} must be one value per head, expanded (stride 0)")


def check_index(role: str, t: Optional[torch.Tensor], batch: int, dtypes: tuple) -> None:
    ours(t is not None and t.shape[0] >= batch and t.dtype in dtypes, f"{role} must have {batch} elements of {dtypes}")


def refuse_rounding(enabled: bool) -> None:
    if enabled:
        raise NotImplementedError("enable_stochastic_rounding: the plugin rounds its checkpoint to nearest")


def decode_mamba(call: MambaCall, L: int, dt_softplus: bool, null_block_id: int) -> None:
    if not dt_softplus:
        raise NotImplementedError("dt_softplus=False: the plugin's step is softplus(dt + dt_bias)")
    batch, slots = call.x.shape[0], min(t.shape[0] for t in (call.state, call.x_cache, call.dt_cache, call.B_cache))
    pool = {role: common.first_rows(getattr(call, role), slots) for role in ("state", "x_cache", "B_cache", "dt_cache")}
    state = pool.pop("state")
    ring = common.ring_of(L, **pool)
    rows = {"state_indices": call.indices, "write_pos": call.write_pos, "force_flush": call.is_flush.to(torch.int32)}
    rows = {role: common.first_rows(t, batch) for role, t in rows.items() if t is not None}
    apart = D_is_per_channel(call)
    written = output_of_plugin(call, apart)
    common.decode(mamba_key(call, L, ring.dtype, null_block_id),
                  call.x,
                  **inputs_of(call, apart),
                  **weights_of(call, apart),
                  out=written,
                  state=state,
                  **rows,
                  **ring.tensors)
    if written is not call.out:
        store(call, written, apart, null_block_id)


def mamba_key(call: MambaCall, L: int, ring: str, null_block_id: int) -> Key:
    """Without indices row b is slot b, and no row is padding; a negative index always is."""
    _, nh, P, N = call.state.shape
    pad_slot = null_block_id if call.indices is not None and null_block_id >= 0 else None
    return Key("mamba2",
               call.B.shape[1],
               nh,
               N,
               P,
               L,
               common.dtype_name("x", call.x),
               common.dtype_name("state", call.state),
               ring,
               common.device_of(call.x),
               pad_slot=pad_slot)


def inputs_of(call: MambaCall, apart: bool) -> Dict[str, torch.Tensor]:
    inputs = {"x": call.x, "B": call.B, "C": call.C, "dt": common.gate_input(call.dt[..., 0], call.x)}
    if call.z is not None and not apart:
        inputs["z"] = call.z
    return {role: t if is_compact(t) else t.contiguous() for role, t in inputs.items()}


def weights_of(call: MambaCall, apart: bool) -> Dict[str, torch.Tensor]:
    """Of each head its one value."""
    weights = {"A": call.A[:, 0, 0]}
    if call.dt_bias is not None:
        weights["dt_bias"] = call.dt_bias[:, 0]
    if call.D is not None and not apart:
        weights["D"] = call.D[:, 0]
    return {role: w.contiguous() for role, w in weights.items()}


def is_compact(t: torch.Tensor) -> bool:
    """Within a row."""
    return t.shape[0] == 0 or t[0].is_contiguous()


def D_is_per_channel(call: MambaCall) -> bool:
    """The plugin has one D per head. Where it differs within a head, D x and the gate z, which follows it, are added here."""
    return call.D is not None and call.D.stride(-1) != 0 and call.D.shape[-1] > 1


def output_of_plugin(call: MambaCall, apart: bool) -> torch.Tensor:
    """`out` itself where nothing is left to do to it."""
    if apart or not is_compact(call.out):
        return torch.empty(call.out.shape, dtype=torch.float32, device=call.out.device)
    if KEEP_PADDING_ROWS and call.indices is not None:
        return torch.empty_like(call.out, dtype=torch.float32)
    return common.output_for(call.out, call.x)


def store(call: MambaCall, written: torch.Tensor, apart: bool, null_block_id: int) -> None:
    if apart:
        written += call.x.float() * call.D.float()
        if call.z is not None:
            written *= torch.nn.functional.silu(call.z.float())
    if KEEP_PADDING_ROWS and call.indices is not None:
        padding = call.indices[:call.out.shape[0], None, None] == null_block_id
        written = torch.where(padding, call.out, written.to(call.out.dtype))
    call.out.copy_(written)
