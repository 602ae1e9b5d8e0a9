"""PyTorch's recurrent step on the CPU, for comparison with replayssm-bench: the plain delta rule (KDA, GDN) and Mamba-2
update of one token, written as modelling code without kernels writes it: whole-tensor operations, float32 state.

    python3 tests/bench/torch_cpu.py            prints microseconds per layer and step, batch 32, median of 15
"""
import statistics
import time

import torch


def gated_delta_step(state, q, k, v, g, beta):
    """state [B, HV, K, V]; q, k [B, HV, K]; v [B, HV, V]; g [B, HV] or [B, HV, K]; beta [B, HV]"""
    decay = g.exp()[..., None, None] if g.dim() == 2 else g.exp()[..., None]
    state.mul_(decay)
    memory = (state * k[..., None]).sum(-2)
    delta = (v - memory) * beta[..., None]
    state.add_(k[..., None] * delta[..., None, :])
    return (state * q[..., None]).sum(-2)


def mamba2_step(state, x, dt, a, b, c):
    """state [B, nh, P, N]; x [B, nh, P]; dt [B, nh]; a [nh]; b, c [B, nh, N]"""
    state.mul_((dt * a).exp()[..., None, None]).add_((dt[..., None] * x)[..., None] * b[..., None, :])
    return (state * c[..., None, :]).sum(-1)


def measure(step, states, inputs):
    """Median over rounds; a step per layer, each with a state of its own, so that none stays in the cache."""
    times = []
    for _ in range(15):
        begin = time.perf_counter()
        for state in states:
            step(state, *inputs)
        times.append((time.perf_counter() - begin) / len(states) * 1e6)
    return statistics.median(times)


def main():
    torch.manual_seed(1)
    batch, layers = 32, 4
    for name, heads, gate in (("kda", 32, (128,)), ("gdn", 32, ())):
        states = [torch.randn(batch, heads, 128, 128) for _ in range(layers)]
        inputs = [torch.randn(batch, heads, 128) * 0.1 for _ in range(3)]
        inputs += [-torch.rand(batch, heads, *gate), torch.rand(batch, heads)]
        print(f"{name}: {measure(gated_delta_step, states, inputs):.0f} us per layer")
    states = [torch.randn(batch, 64, 64, 128) for _ in range(layers)]
    inputs = [torch.randn(batch, 64, 64), torch.rand(batch, 64), -torch.rand(64)]
    inputs += [torch.randn(batch, 64, 128) for _ in range(2)]
    print(f"mamba2: {measure(mamba2_step, states, inputs):.0f} us per layer")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
