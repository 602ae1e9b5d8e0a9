"""Tables and plots of docs/performance.md from the JSON in docs/data (replayssm-bench --json); the CUDA part is plots_gpu.py.

usage: python3 docs/plots.py        needs Matplotlib

The tables stand in performance.md between `<!-- table NAME -->` and `<!-- end -->`; the script rewrites them in place.
"""

import json
import pathlib
import re

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "replayssm"  # the same figures give the same file
import matplotlib.pyplot as plt

import plots_gpu

DOCS = pathlib.Path(__file__).resolve().parent
DATA = DOCS / "data"
ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2}
SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
BAR = 65
LEVELS = ["avx2", "avx512"]
SWEEP = [2, 4, 8, 16, 32]


def cases(pattern):
    found = []
    for path in sorted(DATA.glob(pattern)):
        found += json.loads(path.read_text())["cases"]
    return found


def predicted(case, L):
    """plugin/core/cost.c: the modelled time of a step at L over that of the read-and-write step, without inputs."""
    H, HV, K, V = (case["heads"][name] for name in ("H", "HV", "K", "V"))
    gates = HV * K if case["family"] == "kda" else HV
    state = HV * V * K * ELEMENT[case["state"]]
    row = (HV * V + H * K) * ELEMENT[case["ring"]] + 4 * gates
    read_write, replay, flush = (1.45, 1.10, 0.35) if case["state"] == "float32" else (3.2, 1.8, 0.9)
    if L == 1:
        return 1.0
    return (replay + flush / L + 2.2 * row * (L - 1) / 2 / state) / read_write


def measured(case, figure):
    """The time over that of the read-and-write step: the median over the rounds, or of medians in older files."""
    if "over_read_write" in case[figure]:
        return case[figure]["over_read_write"]["median"]
    return case[figure]["us"]["median"] / case["read_write"]["us"]["median"]


def over_better(case):
    """The automatic choice over the better of replay and read-and-write, which the medians tell apart."""
    over_replay = (case["automatic_over_replay"]["median"] if "automatic_over_replay" in case else
                   case["automatic"]["us"]["median"] / case["replay"]["us"]["median"])
    return max(measured(case, "automatic"), over_replay)


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def us(figure):
    s = figure["us"]
    return f"{s['median']:.0f} ({s['p10']:.0f}–{s['p90']:.0f})"


def bar_table():
    rows = []
    for c in cases("cpu-avx*.json"):
        replay, plain, auto = c["replay"], c["read_write"], c["automatic"]
        rows.append([
            c["family"], SHORT[c["io"]], c["kernel"], us(replay), f"{replay['floor_us']['median']:.0f}",
            f"{replay['ratio']['median']:.2f}", f"**{replay['percent_of_read']:.0f} %**", f"{replay['bytes'] / 1e6:.1f}",
            us(plain), f"{plain['ratio']['median']:.2f}", f"**{plain['percent_of_copy']:.0f} %**", f"{plain['bytes'] / 1e6:.1f}",
            f"{c['auto_ring_length']}: {us(auto)}", f"{over_better(c):.2f}"
        ])
    return table(["family", "io", "kernel", "replay L = 16, µs", "floor", "ratio", "of read", "MB", "read-write, µs",
                  "ratio", "of copy", "MB", "automatic L: µs", "/ better"], rows)


def together_table():
    rows = [[c["family"], c["kernel"], f"{c['worst_over_median_together']:.2f}", f"{c['worst_over_median_spread']:.2f}"]
            for c in cases("cpu-avx*.json") if "worst_over_median_together" in c]
    return table(["family", "kernel", "all rows together", "with RSSM_INIT_SPREAD_FLUSH"], rows)


def batch_table():
    rows = [[c["family"], c["batch"], us(c["replay"]), f"{c['replay']['percent_of_read']:.0f} %", us(c["read_write"]),
             f"{c['read_write']['percent_of_copy']:.0f} %", f"{c['auto_ring_length']}: {us(c['automatic'])}"]
            for c in cases("cpu-batches.json")]
    return table(["family", "batch", "replay L = 16, µs", "of read", "read-write, µs", "of copy", "automatic L: µs"], rows)


def sweep_groups():
    groups = {}
    for c in cases("sweep-*.json"):
        groups.setdefault((c["family"], c["state"], c["kernel"]), []).append(c)
    return groups


def sweep_table():
    rows = []
    for (family, state, level), group in sorted(sweep_groups().items()):
        by_L = {c["ring_length"]: c for c in group}
        cells = [f"{predicted(by_L[L], L):.2f} / {measured(by_L[L], 'replay'):.2f}" for L in SWEEP]
        at16 = by_L[16]
        rows.append([family, SHORT[state], level, *cells, f"{at16['auto_ring_length']}: {measured(at16, 'automatic'):.2f}",
                     f"{over_better(at16):.2f}"])
    return table(["family", "state", "kernel", *[f"L = {L}" for L in SWEEP], "automatic", "/ better"], rows)


def plot_bar():
    shown = cases("cpu-avx*.json")
    names = [f"{c['family']}\n{SHORT[c['io']]} io\n{c['kernel']}" for c in shown]
    places = range(len(shown))
    fig, ax = plt.subplots(figsize=(11, 3.6))
    ax.bar([p - 0.2 for p in places], [c["replay"]["percent_of_read"] for c in shown], 0.38,
           label="replay L = 16, % of read bandwidth")
    ax.bar([p + 0.2 for p in places], [c["read_write"]["percent_of_copy"] for c in shown], 0.38,
           label="read-and-write, % of copy bandwidth")
    ax.axhline(BAR, color="black", linewidth=1, linestyle="--")
    ax.set_xticks(list(places), names, fontsize=8)
    ax.set_ylim(0, 100)
    ax.legend(loc="lower right", fontsize=8)
    ax.set_title("CPU steps against the memory, fp32 state", fontsize=10)
    fig.tight_layout()
    save(fig, "cpu-bar.svg")


def plot_sweep():
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True)
    colours = {"float32": "tab:blue", "bfloat16": "tab:orange", "float16": "tab:green"}
    for ax, family in zip(axes, ["kda", "gdn", "mamba2"]):
        for (name, state, level), group in sorted(sweep_groups().items()):
            if name != family:
                continue
            points = sorted((c["ring_length"], measured(c, "replay")) for c in group)
            ax.plot(*zip(*points), "o" if level == "avx512" else "x", color=colours[state], label=f"{SHORT[state]} {level}")
            if level == "avx512" and state != "float16":
                lengths = list(range(2, 33))
                ax.plot(lengths, [predicted(group[0], L) for L in lengths], color=colours[state], linewidth=1)
        ax.axhline(1, color="black", linewidth=1, linestyle="--")
        ax.set_xscale("log", base=2)
        ax.set_xticks(SWEEP, [str(L) for L in SWEEP])
        ax.set_title(f"{family}: step at L / read-and-write step", fontsize=10)
        ax.set_ylim(0, 1.4)
    axes[0].legend(fontsize=7, loc="lower left")
    fig.tight_layout()
    save(fig, "cpu-cost-model.svg")


def save(fig, name):
    fig.savefig(DOCS / name, metadata={"Date": None})
    plt.close(fig)


def fill(page, tables):
    """Writes each table between its marks."""
    text = page.read_text()
    for name, new in tables.items():
        pattern = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.S)
        text, replaced = pattern.subn(lambda m: m[1] + new + "\n" + m[2], text)
        assert replaced == 1, f"{page.name} has no place for table {name}"
    page.write_text(text)


def main():
    made = {"bar": bar_table(), "together": together_table(), "batches": batch_table(), "sweep": sweep_table()}
    fill(DOCS / "performance.md", {**made, **plots_gpu.tables(DATA)})
    fill(DOCS.parent / "README.md", plots_gpu.readme_tables(DATA))
    plot_bar()
    plot_sweep()
    for name, fig in plots_gpu.plots(DATA).items():
        save(fig, name)


main()
