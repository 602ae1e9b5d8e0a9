"""Tensor parallelism with torch.distributed: every rank decodes its heads, the output projection is summed by all_reduce,
rank 0 compares with one rank. gloo on CPUs, NCCL on GPUs.

    torchrun --nproc-per-node 4 examples/tp/tp_torch.py config.json --plugin replayssm.so
    torchrun --nproc-per-node 2 examples/tp/tp_torch.py config.json --plugin replayssm.so --device cuda --time --batch 256
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast: not every machine lets a process have it

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import replayssm  # noqa: E402

# Columns of the input projection by family: (tensor, heads, width of a head). Each is cut by head on its own.
QKV = [("packed", "H", "K"), ("packed", "H", "K"), ("packed", "HV", "V")]
PIECES = {
    "kda": QKV + [("gate", "HV", "K"), ("beta", "HV", "1")],
    "gdn": QKV + [("gate", "HV", "1"), ("beta", "HV", "1")],
    "mamba2": [("packed", "HV", "V"), ("packed", "H", "K"), ("packed", "H", "K"), ("gate", "HV", "1")],
}
ROLES = {"kda": ("mixed_qkv", "a", "b"), "gdn": ("mixed_qkv", "a", "b"), "mamba2": ("mixed_xbc", "dt", None)}
OUT, A_LOG, DT_BIAS, D = 5, 6, 7, 8  # what is drawn besides pieces 0 .. 4

# Relative L2. On a CPU heads are the same bits. GPU kernels are chosen by the number of heads and add in other orders: each
# keeps the accuracy bar of its ring's type (docs/abi.md), so two are at most twice that apart.
HEADS_BAR = {"float32": 2 * 2e-6, "bfloat16": 2 * 6e-3, "float16": 2 * 8e-4}
SUM_BAR = 2e-6


@dataclass
class Layer:
    inputs: Dict[str, torch.Tensor]  # packed, gate, beta
    W_in: Any  # [hidden, columns], or None where inputs stay as they are
    W_out: torch.Tensor  # [HV * V, hidden]
    out: torch.Tensor  # [B, HV, V]
    step: replayssm.Step


class Shard:
    """One rank's heads of all layers. Weights are drawn by layer, use and head of the whole model."""

    def __init__(self, library: replayssm.Library, o: argparse.Namespace, tp: int, rank: int, ring: int) -> None:
        self.o = o
        self.plugin = library.init(o.config, device=o.device, tp_size=tp, tp_rank=rank, layer_end=o.layers, ring_length=ring,
                                   io_dtype=o.io, num_slots=o.batch + 1, max_batch=o.batch, num_threads=o.threads,
                                   spread_flush=o.time)
        self.plugin.prepare()
        self.plugin.pool_create()
        self.m = self.plugin.describe()
        self.io = getattr(torch, self.m.io_dtype.name.lower())
        self.rows = self.empty(o.batch, replayssm.ROW_WIDTH, dtype=torch.int32)
        self.layers = [self.layer(i) for i in range(self.m.num_linear_layers)]

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.o.device)

    def size(self, name: str) -> int:
        return 1 if name == "1" else int(getattr(self.m, name))

    def heads(self, name: str) -> range:
        """Of the whole model, those that are here."""
        first = self.m.group_begin if name == "H" else self.m.head_begin
        return range(first, first + self.size(name))

    def generator(self, layer: int, what: int, head: int) -> torch.Generator:
        number = (self.o.seed * 65536 + self.m.linear_layers[layer]) * 16 + what
        return torch.Generator().manual_seed(number * 65536 + head)

    def drawn(self, layer: int, what: int, heads: str, *shape: int,
              draw: Callable[..., torch.Tensor] = torch.randn) -> torch.Tensor:
        """A block of numbers for each head, beside each other in the last dimension."""
        blocks = [draw(*shape, generator=self.generator(layer, what, head)) for head in self.heads(heads)]
        return torch.cat(blocks, dim=-1)

    def weights(self, layer: int) -> Dict[str, torch.Tensor]:
        gates = self.size(PIECES[self.m.family_name][3][2])
        step = torch.exp(self.drawn(layer, DT_BIAS, "HV", gates, draw=torch.rand) * 4.6 - 6.9)  # 0.001 .. 0.1
        made = {"A_log": torch.log1p(15 * self.drawn(layer, A_LOG, "HV", 1, draw=torch.rand)),
                "dt_bias": step + torch.log(-torch.expm1(-step))}
        if self.m.family_name == "mamba2":
            made["D"] = 1 + self.drawn(layer, D, "HV", 1) / 10
        return {name: t.float().to(self.o.device) for name, t in made.items()}

    def projection_in(self, layer: int) -> torch.Tensor:
        """In double precision: rounded to the io type, a column is the same whatever columns are beside it."""
        pieces = PIECES[self.m.family_name]
        columns = [self.drawn(layer, i, heads, self.o.hidden, self.size(width)) for i, (_, heads, width) in enumerate(pieces)]
        return (torch.cat(columns, dim=1).double() / self.o.hidden**0.5).to(self.o.device)

    def projection_out(self, layer: int) -> torch.Tensor:
        """Rows by head: [V, hidden] of each."""
        blocks = [torch.randn(self.m.V, self.o.hidden, generator=self.generator(layer, OUT, head)) for head in self.heads("HV")]
        scale = (self.m.model_HV * self.m.V) ** -0.5
        return (torch.cat(blocks) * scale).to(self.o.device, self.io if self.o.time else torch.float32)

    def layer(self, layer: int) -> Layer:
        m, B = self.m, self.o.batch
        width = {name: sum(self.size(h) * self.size(w) for to, h, w in PIECES[m.family_name] if to == name)
                 for name in ("packed", "gate", "beta")}
        inputs = {name: torch.randn(B, n).to(self.o.device, self.io) for name, n in width.items() if n}
        out = self.empty(B, m.HV, m.V, dtype=self.io if self.o.time else torch.float32)
        roles = {role: inputs[name] for role, name in zip(ROLES[m.family_name], inputs)}
        if m.family_name == "kda":
            roles["a"] = roles["a"].view(B, m.HV, m.K)
        step = self.plugin.bind(layer, **roles, **self.weights(layer), rows=self.rows, out=out)
        return Layer(inputs, None if self.o.time else self.projection_in(layer), self.projection_out(layer), out, step)

    def begin(self, slots: torch.Tensor) -> None:
        self.plugin.step_begin(slots, self.rows)

    def decode(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of the layer's y, from x [B, hidden]."""
        u = x.double()
        u = u * torch.rsqrt(u.square().mean(dim=1, keepdim=True) + 1e-6)
        row = (u @ layer.W_in).to(self.io)
        for part, to in zip(row.split([t.shape[1] for t in layer.inputs.values()], dim=1), layer.inputs.values()):
            to.copy_(part)
        layer.step()
        return layer.out.flatten(1) @ layer.W_out


# ---- before the first token


def card_of(shard: Shard, info: replayssm.Info, o: argparse.Namespace) -> Dict[str, str]:
    """What all ranks must have alike."""
    m = shard.m
    return {"ABI": f"{shard.plugin.library.api.abi_major}.{shard.plugin.library.api.abi_minor}",
            "plugin": f"{info.version} {info.git_revision}", "tp size": str(m.tp_size),
            "options": f"steps={o.steps} batch={o.batch} hidden={o.hidden} seed={o.seed} time={o.time}",
            "layout hash": f"{m.layout_hash:016x}", "layout": m.layout_text}


def differences(cards: List[Dict[str, str]]) -> List[str]:
    found = []
    for name in cards[0]:
        texts = [card[name] for card in cards]
        usual = max(texts, key=texts.count)
        for rank, text in enumerate(texts):
            if text != usual:
                ours, theirs = text.split(), usual.split()
                words = ", ".join(f"{a} (rank {texts.index(usual)}: {b})" for a, b in zip(ours, theirs) if a != b)
                found.append(f"rank {rank} differs in {name}: {words}")
    return found


def open_together(library: replayssm.Library, o: argparse.Namespace, control: Any) -> Shard:
    """Every rank opens its shard and hears of the others; all go on or all leave."""
    rank, tp = dist.get_rank(), dist.get_world_size()
    shard, refusal = None, None
    try:
        shard = Shard(library, o, tp, rank, o.ring)
    except replayssm.ReplayError as error:
        refusal = f"rank {rank}: {error}"
        print(refusal, file=sys.stderr, flush=True)
    cards: List[Any] = [None] * tp
    dist.all_gather_object(cards, refusal or card_of(shard, library.info, o), group=control)
    refused = sum(isinstance(card, str) for card in cards)
    found = [f"{refused} of {tp} ranks refused"] if refused else differences(cards)
    if found:
        if rank == 0:
            print("\n".join(found + ["no token was decoded"]), file=sys.stderr, flush=True)
        dist.barrier(group=control)  # nobody leaves before it is said
        dist.destroy_process_group()
        sys.exit(2)
    return shard


# ---- equal to one rank


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest relative L2 of a row; padding rows are 0."""
    error, norm = (a - b).double().flatten(1).norm(dim=1), b.double().flatten(1).norm(dim=1)
    return float(torch.where(error == 0, error, error / norm).max())


def gathered_heads(out: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(out) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, out)
    return torch.cat(parts, dim=1)


def compare(shard: Shard, library: replayssm.Library, o: argparse.Namespace) -> bool:
    """Rank 0 decodes every layer with all heads from the activations that the ranks had."""
    first = dist.get_rank() == 0
    whole = Shard(library, o, 1, 0, shard.m.ring_length) if first else None
    worst = {"heads": 0.0, "sums": 0.0}
    rows = torch.arange(o.batch, device=o.device)
    for step in range(o.steps):
        slots = torch.where(rows <= step, o.batch - rows, -1)  # requests join one after the other
        x = torch.randn(o.batch, o.hidden, generator=torch.Generator().manual_seed(o.seed * 65536 + step)).to(o.device)
        for one in filter(None, (shard, whole)):
            one.begin(slots)
        for i, layer in enumerate(shard.layers):
            y = shard.decode(layer, x)
            dist.all_reduce(y)
            heads = gathered_heads(layer.out)
            if whole:
                whole.decode(whole.layers[i], x)
                worst["heads"] = max(worst["heads"], relative(heads, whole.layers[i].out), key=nan_first)
                worst["sums"] = max(worst["sums"], relative(y, heads.flatten(1) @ whole.layers[i].W_out), key=nan_first)
            x = x + y
    if not whole:
        return True
    bar = 0.0 if o.device == "cpu" else HEADS_BAR[shard.m.ring_dtype.name.lower()]
    m = shard.m
    print(f"{m.family_name}, {m.model_type}: tp {m.tp_size}, {m.HV} of {m.model_HV} heads on a rank; "
          f"{len(shard.layers)} linear layers, {o.steps} steps of {o.batch} rows, {o.device}")
    print(f"heads: worst relative L2 {worst['heads']:.2g} (bar {bar:.2g}); sums: {worst['sums']:.2g} (bar {SUM_BAR:.2g})")
    passed = worst["heads"] <= bar and worst["sums"] <= SUM_BAR
    print("equal to one rank" if passed else "NOT equal to one rank", flush=True)
    return passed


def nan_first(value: float) -> float:
    return value if value == value else float("inf")


# ---- time


def passes_of(shard: Shard, with_projection: bool, with_sum: bool) -> Callable[[], None]:
    """A pass over all layers; inputs stay as they are."""
    slots = torch.arange(1, shard.o.batch + 1, device=shard.o.device)

    def one_pass() -> None:
        shard.begin(slots)
        for layer in shard.layers:
            layer.step()
            if with_projection:
                y = layer.out.flatten(1) @ layer.W_out
            if with_sum:
                dist.all_reduce(y)

    return one_pass


def as_graph(one_pass: Callable[[], None]) -> Callable[[], None]:
    """Recorded once and replayed, so that Python's own time is not in it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            one_pass()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog asks the driver meanwhile
        one_pass()
    return graph.replay


def seconds_of(one_pass: Callable[[], None], passes: int, cuda: bool) -> float:
    if not cuda:
        begun = time.perf_counter()
        for _ in range(passes):
            one_pass()
        return (time.perf_counter() - begun) / passes
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(passes):
        one_pass()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / passes


def measure(shard: Shard, kinds: Dict[str, Any], wait: Callable[[], None]) -> Dict[str, float]:
    """Median us per layer-step of each kind of pass, in turns; whole windows of the ring, so that flushes have their share."""
    o, cuda = shard.o, shard.o.device != "cpu"
    bodies = {name: passes_of(shard, *flags) for name, flags in kinds.items()}
    if cuda and not o.no_graph:
        bodies = {name: as_graph(body) for name, body in bodies.items()}
    times: Dict[str, List[float]] = {name: [] for name in kinds}
    for turn in range(o.rounds + 1):
        for name, body in bodies.items():
            wait()
            seconds = seconds_of(body, o.windows * shard.m.ring_length, cuda)
            if turn > 0:  # the first one warms up
                times[name].append(1e6 * seconds / len(shard.layers))
    return {name: statistics.median(values) for name, values in times.items()}


def time_ranks(shard: Shard, library: replayssm.Library, o: argparse.Namespace, control: Any) -> bool:
    rank, tp = dist.get_rank(), dist.get_world_size()
    kinds = {"recurrence": (False, False), "with projection": (True, False), "with all-reduce": (True, True)}
    mine = measure(shard, kinds, lambda: dist.barrier(group=control))
    everyone: List[Any] = [None] * tp
    dist.all_gather_object(everyone, mine, group=control)
    passed = True
    if rank == 0:
        shard.plugin.close()
        whole = Shard(library, o, 1, 0, shard.m.ring_length)
        one = measure(whole, {name: kinds[name] for name in ("recurrence", "with projection")}, lambda: None)
        report_times(shard, o, one, everyone)
        passed = all(one["recurrence"] / us["recurrence"] >= o.fewer for us in everyone)
    dist.barrier(group=control)
    return passed


def report_times(shard: Shard, o: argparse.Namespace, one: Dict[str, float], everyone: List[Dict[str, float]]) -> None:
    m = shard.m
    print(f"{m.family_name}, {m.model_type}: {len(shard.layers)} layers, batch {o.batch}, ring {m.ring_length}, "
          f"hidden {o.hidden}, {o.device}; us per layer-step, median of {o.rounds}")
    print(f"{'':12} {'recurrence':>12} {'fewer':>7} {'+ projection':>14} {'+ all-reduce':>14} {'its share':>10}")
    print(f"{'tp 1':12} {one['recurrence']:12.2f} {'':7} {one['with projection']:14.2f}")
    for rank, us in enumerate(everyone):
        share = 1 - us["with projection"] / us["with all-reduce"]
        print(f"{f'rank {rank} of {len(everyone)}':12} {us['recurrence']:12.2f} {one['recurrence'] / us['recurrence']:6.2f}x "
              f"{us['with projection']:14.2f} {us['with all-reduce']:14.2f} {100 * share:9.1f}%")
    if o.json:
        print(json.dumps({"config": Path(o.config).stem, "batch": o.batch, "ring": m.ring_length, "hidden": o.hidden,
                          "device": o.device, "tp1_us": one, "ranks_us": everyone}))
    sys.stdout.flush()


# ---- the program


def hidden_size(path: str) -> int:
    config = json.loads(Path(path).read_text())
    return int(config.get("text_config", config).get("hidden_size") or config["d_model"])


def options() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config")
    p.add_argument("--plugin", default=os.environ.get("REPLAYSSM_PLUGIN", "replayssm.so"))
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--layers", type=int, default=0, help="the model's first N layers, linear or not [all]")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--hidden", type=int, default=0, help="width of the activations [64; with --time the model's]")
    p.add_argument("--ring", type=int, default=0)
    p.add_argument("--io", default=None, help="float32, bfloat16, float16 [the config's]")
    p.add_argument("--threads", type=int, default=1, help="CPU threads of a rank")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--timeout", type=int, default=60, help="seconds to wait for another rank")
    p.add_argument("--time", action="store_true", help="measure instead of comparing")
    p.add_argument("--fewer", type=float, default=0.0, help="with --time: fail where a rank's recurrence is not so much faster")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--windows", type=int, default=4, help="ring lengths in a round")
    p.add_argument("--no-graph", action="store_true", help="on a GPU, without CUDA graphs")
    p.add_argument("--json", action="store_true", help="with --time: a line of JSON as well")
    o = p.parse_args()
    o.hidden = o.hidden or (hidden_size(o.config) if o.time else 64)
    return o


def main() -> int:
    o = options()
    torch.set_num_threads(o.threads)
    if o.device == "cuda":
        o.device = f"cuda:{int(os.environ['LOCAL_RANK'])}"
        torch.cuda.set_device(o.device)
    wait = timedelta(seconds=o.timeout)
    dist.init_process_group("gloo" if o.device == "cpu" else "nccl", timeout=wait)
    # Waits of minutes are in order while rank 0 measures alone.
    control = dist.new_group(backend="gloo", timeout=timedelta(minutes=10) if o.time else wait)
    library = replayssm.load(o.plugin)
    shard = open_together(library, o, control)
    passed = time_ranks(shard, library, o, control) if o.time else compare(shard, library, o)
    dist.destroy_process_group()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
