"""The public read-and-write steps that ReplaySSM stands for, written plainly in float64: the state is written at every token.
Oracles of test_adapters.py and, under the names that SGLang and vLLM give them, of contract.py."""

import torch


def softplus(x):
    return torch.where(x > 20, x, torch.log1p(torch.exp(torch.clamp(x, max=20))))


def unit(x):
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def log_gate(a, A_log, dt_bias, lower_bound=None):
    """a: GDN [.., HV], KDA [.., HV, K]."""
    rate = A_log.double().exp()
    rate = rate.view(-1, 1) if dt_bias.dim() == 2 else rate
    x = a.double() + dt_bias.double()
    return -rate * softplus(x) if lower_bound is None else lower_bound * torch.sigmoid(rate * x)


def delta_token(S, q, k, v, g, beta):
    """S [HV, V, K] in float64 before the token; the output, and S after it. q, k [HV, K], v [HV, V], g [HV] or [HV, K]."""
    S = S * g.exp().reshape(S.shape[0], 1, -1)
    d = beta[:, None] * (v - torch.einsum("hvk,hk->hv", S, k))
    S = S + torch.einsum("hv,hk->hvk", d, k)
    return torch.einsum("hvk,hk->hv", S, q), S


def packed_decode(mixed_qkv,
                  a,
                  b,
                  A_log,
                  dt_bias,
                  scale,
                  initial_state,
                  out,
                  ssm_state_indices,
                  use_qk_l2norm_in_kernel=False,
                  lower_bound=None,
                  first_slot=0):
    """GDN and KDA (there a and dt_bias may be flat). Rows of a slot below first_slot are padding: zeros."""
    _, HV, V, K = initial_state.shape
    H = (mixed_qkv.shape[1] - HV * V) // (2 * K)
    if a.numel() == mixed_qkv.shape[0] * HV * K and a.dim() + dt_bias.dim() > 3 or dt_bias.numel() == HV * K != HV:
        a, dt_bias = a.reshape(-1, HV, K), dt_bias.reshape(HV, K)
    g, beta = log_gate(a, A_log, dt_bias, lower_bound), torch.sigmoid(b.double())
    q, k, v = mixed_qkv.double().split([H * K, H * K, HV * V], dim=-1)
    q, k = (t.reshape(-1, H, K).repeat_interleave(HV // H, 1) for t in (q, k))
    q, k = (unit(q), unit(k)) if use_qk_l2norm_in_kernel else (q, k)
    rows = out.view(-1, HV, V)
    for row, slot in enumerate(ssm_state_indices.tolist()):
        if slot < first_slot:
            rows[row] = 0
            continue
        o, S = delta_token(initial_state[slot].double(), q[row] * scale, k[row], v[row].view(HV, V), g[row], beta[row])
        rows[row], initial_state[slot] = o.to(out.dtype), S.to(initial_state.dtype)
    return out, initial_state


def vllm_packed_decode(*args, **kwargs):
    """Slot 0 is vLLM's null block."""
    return packed_decode(*args, **kwargs, first_slot=1)


def selective_state_update(state,
                           x,
                           dt,
                           A,
                           B,
                           C,
                           D=None,
                           z=None,
                           dt_bias=None,
                           dt_softplus=False,
                           state_batch_indices=None,
                           null_block_id=0,
                           out=None):
    """Mamba-2 with heads: state [S, nh, P, N], x [batch, nh, P], B, C [batch, ng, N]."""
    groups = torch.arange(x.shape[1]) // (x.shape[1] // B.shape[1])
    dt = dt.double() + (0 if dt_bias is None else dt_bias.double())
    dt = softplus(dt) if dt_softplus else dt
    slots = range(x.shape[0]) if state_batch_indices is None else state_batch_indices.flatten().tolist()
    for row, slot in enumerate(slots):
        if state_batch_indices is not None and slot == null_block_id:
            continue
        decay = torch.exp(A.double() * dt[row][..., None])
        S = state[slot].double() * decay + (dt[row] * x[row].double())[..., None] * B[row].double()[groups][:, None]
        o = torch.einsum("hpn,hn->hp", S, C[row].double()[groups])
        o = o if D is None else o + D.double() * x[row].double()
        o = o if z is None else o * torch.nn.functional.silu(z[row].double())
        out[row], state[slot] = o.to(out.dtype), S.to(state.dtype)
    return out
