"""The CUDA part of docs/performance.md, from docs/data/gpu-*.json (replayssm-bench --device cuda --json) and, where it is there,
docs/data/peers-*.json (tests/bench/peers). plots.py calls it."""

import json

import matplotlib.pyplot as plt

FAMILIES = ["kda", "gdn", "mamba2"]
SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
GOAL_BATCH = 32  # from here on a step is held to its goal
NO_WORSE = 1.03  # at any batch: than the read-and-write step


def load(data):
    """Cases by name; of a name that is in two files the later file's."""
    reports, cases = [], {}
    for path in sorted(data.glob("gpu-*.json")):
        report = json.loads(path.read_text())
        if "cases" not in report:  # of --slots or --conv
            continue
        reports.append(report)
        for case in report["cases"]:
            cases[case["name"]] = case
    return reports, list(cases.values())


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def plain(cases):
    return [c for c in cases if c["tokens"] == 1]


def us(case, figure="replay"):
    return case[figure]["us"]["median"]


def number(x):
    return f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


def misses_goal(case):
    return case["batch"] >= GOAL_BATCH and us(case) > case["replay"]["goal_us"]


def is_worse(case):
    return case["tokens"] == 1 and case["replay"]["over_read_write"]["median"] > NO_WORSE


def grid(cases):
    """{(shape, state): {batch: case}} in the order of the file, and all batches."""
    rows = {}
    for c in cases:
        rows.setdefault((c["shape"], c["state"]), {})[c["batch"]] = c
    return rows, sorted({c["batch"] for c in cases})


def main_shapes(cases):
    """The shape of each family whose host cost was taken."""
    found = {}
    for c in cases:
        if "host_ns" in c:
            found.setdefault(c["family"], c["shape"])
    return found


def machine_text(reports, cases):
    r = reports[-1]
    copies = [c["copy_bytes_per_second"]["median"] for c in cases]
    reads = [c["read_bytes_per_second"]["median"] for c in cases]
    return (f"{r['device_name']}, {r['multiprocessors']} multiprocessors, L2 {r['last_level_cache_bytes'] >> 20} MiB, driver "
            f"API {r['driver_version'] // 1000}.{r['driver_version'] % 1000 // 10}; revision {r['git_revision']}. Copy "
            f"{min(copies) / 1e12:.2f}–{max(copies) / 1e12:.2f} TB/s, read {min(reads) / 1e12:.2f}–{max(reads) / 1e12:.2f} TB/s "
            f"(medians of the cases).")


def times_table(reports, cases):
    rows, batches = grid(plain(cases))
    shapes = main_shapes(cases)
    columns = [(shapes[f], s) for s in ("float32", "bfloat16") for f in FAMILIES if f in shapes and (shapes[f], s) in rows]

    def cell(column, batch):
        c = rows[column].get(batch)
        if c is None:
            return ""
        time = number(us(c))
        time = f"**{time}**" if misses_goal(c) or is_worse(c) else time
        goal = number(c["replay"]["goal_us"]) if batch >= GOAL_BATCH else "–"
        return f"{time} / {goal} / {number(us(c, 'read_write'))}"

    return table(["B", *[f"{shape} {SHORT[state]}" for shape, state in columns]],
                 [[b, *[cell(column, b) for column in columns]] for b in batches])


def mark(case):
    text = f"{case['replay']['ratio']['median']:.2f}"
    return text + ("\\*" if misses_goal(case) else "") + ("†" if is_worse(case) else "")


def ratio_table(reports, cases):
    rows, batches = grid(plain(cases))
    return table(["shape", "state", *batches],
                 [[shape, SHORT[state], *[mark(row[b]) if b in row else "" for b in batches]] for (shape, state), row in rows.items()])


def read_write_table(reports, cases):
    rows, batches = grid(plain(cases))
    return table(["shape", "state", *batches],
                 [[shape, SHORT[state],
                   *[f"{row[b]['replay']['over_read_write']['median']:.2f}" if b in row else "" for b in batches]]
                  for (shape, state), row in rows.items()])


def missed_table(reports, cases):
    rows = []
    for c in cases:
        if misses_goal(c):
            over = us(c) / c["replay"]["goal_us"] - 1
            rows.append([c["name"], f"{number(us(c))} µs", f"goal {number(c['replay']['goal_us'])} µs", f"+{100 * over:.1f} %",
                         f"`{short_kernel(c)}`"])
        if is_worse(c):
            over = c["replay"]["over_read_write"]["median"] - 1
            rows.append([c["name"], f"{number(us(c))} µs", f"read-and-write {number(us(c, 'read_write'))} µs",
                         f"+{100 * over:.1f} %", f"`{short_kernel(c)}`"])
    return table(["case", "time", "against", "by", "kernel"], rows) if rows else "Every bar holds."


def together_table(reports, cases):
    found = [c for c in cases if "worst_over_median_together" in c]
    rows, batches = grid(found)
    return table(["shape", "state", *[f"B = {b}" for b in batches]],
                 [[shape, SHORT[state], *[f"{row[b]['worst_over_median_together']:.2f} / {row[b]['worst_over_median_spread']:.2f}"
                                          if b in row else "" for b in batches]] for (shape, state), row in rows.items()])


def begin_table(reports, cases):
    """step_begin of a pass, and what a layer takes in passes of so many layers that begin with it; float32 states."""
    found = [c for c in plain(cases) if c["state"] == "float32"]
    rows, batches = grid(found)
    main = main_shapes(cases).values()
    lines = [[f"{shape}: step_begin, µs a pass", *[f"{row[b]['step_begin_us']['median']:.2f}" if b in row else "" for b in batches]]
             for (shape, _), row in rows.items() if shape in main]
    rows, _ = grid(found)
    lines += [[f"{shape}: a layer alone / in passes of n layers", *[
        f"{number(us(row[b]))} / {number(row[b]['in_pass_us']['median'])} ({row[b]['layers']})" if b in row else "" for b in batches
    ]] for (shape, _), row in rows.items()]
    return table(["", *batches], lines)


def host_table(reports, cases):
    rows, batches = grid([c for c in cases if "host_ns" in c])
    lines = []
    for (shape, _), row in rows.items():
        for key, text in (("validate", "validate"), ("decode", "decode"), ("decode_skip_validate", "decode, validated before"),
                          ("empty_launch", "an empty launch"), ("decode_over_empty_launch", "decode over it, in its round")):
            if any(key not in c["host_ns"] for c in row.values()):
                continue  # of a program that did not say
            lines.append([shape, text, *[f"{row[b]['host_ns'][key]['median']:.0f}" if b in row else "" for b in batches]])
    return table(["shape", "ns", *batches], lines)


def short_kernel(case, figure="replay"):
    """Without the beginning that all kernels of a family and dtype share."""
    name = case[figure]["kernel"].removeprefix("rssm_")
    return name.removeprefix(f"step_{case['family']}_")


def ranges(row, figure):
    """Which kernel ran from which batch on."""
    parts, last = [], None
    for batch, case in sorted(row.items()):
        name = short_kernel(case, figure)
        if name != last:
            parts.append(f"`{name}` from {batch}")
        last = name
    return ", ".join(parts)


def kernel_table(reports, cases):
    rows, _ = grid(plain(cases))
    return table(["shape", "state", "replay: kernel and the batch it runs from", "read-and-write"],
                 [[shape, SHORT[state], ranges(row, "replay"), ranges(row, "read_write")] for (shape, state), row in rows.items()])


def window_table(reports, cases):
    found = [c for c in cases if c["tokens"] > 1]
    rows = {}
    for c in found:
        rows.setdefault((c["shape"], c["state"], c["tokens"]), {})[c["batch"]] = c
    batches = sorted({c["batch"] for c in found})
    return table(["shape", "state", "T", *batches],
                 [[shape, SHORT[state], tokens, *[f"{number(us(row[b]))} ({mark(row[b])})" if b in row else "" for b in batches]]
                  for (shape, state, tokens), row in rows.items()])


def load_peers(data, what="decode"):
    found = []
    for path in sorted(data.glob("peers-*.json")):
        found += json.loads(path.read_text()).get(what, [])
    return found


OURS = ("replayssm", "replayssm verify")
KEPT = "replayssm, RSSM_INIT_NO_SMALL_FLUSH"  # shown in us as ours are, but what is compared is the default
FAMILY_NAME = {"kda": "KDA", "gdn": "GDN", "mamba2": "Mamba-2"}


def best_of(report, ours):
    """The least time of a case, of ours or of theirs; a read-and-write step of ours counts for neither."""
    times = [r["us"]["median"] for r in report["results"]
             if (r["name"] in OURS if ours else not r["name"].startswith("replayssm"))]
    return min(times, default=None)


def peers_table(peers):
    """Ours in us; theirs over the best of ours in the same run, bold where that is less than 1."""
    rows = {}
    batches = sorted({report["batch"] for report in peers})
    for report in peers:
        ours = best_of(report, True)
        for result in report["results"]:
            key = report["family"], report["state"], report.get("tokens", 1), result["name"]
            time = result["us"]["median"]
            over = f"{time / ours:.2f}"
            ahead = time < ours and not result["name"].startswith("replayssm")
            rows.setdefault(key, {})[report["batch"]] = (
                f"{number(time)} µs" if result["name"] in (*OURS, KEPT) else f"**{over}**" if ahead else over)
    windows = any("tokens" in report for report in peers)
    order = sorted(rows, key=lambda key: (FAMILIES.index(key[0]), key[1] != "float32", key[2]))
    return table(["family", "state", *["T"][:windows], "", *batches],
                 [[FAMILY_NAME[family], SHORT[state], *[tokens][:windows], name, *[rows[family, state, tokens, name].get(b, "")
                                                                                for b in batches]]
                  for family, state, tokens, name in order])


def behind_table(peers, windows):
    """Where one of them is ahead of ours."""
    rows = []
    for report in peers + windows:
        ours = best_of(report, True)
        for r in report["results"]:
            if not r["name"].startswith("replayssm") and r["us"]["median"] < ours:
                rows.append([f"{FAMILY_NAME[report['family']]} {SHORT[report['state']]}", report["batch"], report.get("tokens", 1),
                             r["name"], f"{number(r['us']['median'])} µs", f"{number(ours)} µs",
                             f"{100 * (1 - r['us']['median'] / ours):.1f} %"])
    return table(["", "B", "T", "kernel", "takes", "ours", "ahead by"], rows) if rows else "None of them is ahead of ours anywhere."


def readme_table(peers):
    """Ours (the best that is theirs) in us."""
    cells = {}
    for report in peers:
        theirs = best_of(report, False)
        text = number(best_of(report, True)) + (f" ({number(theirs)})" if theirs else "")
        cells.setdefault((report["family"], report["state"]), {})[report["batch"]] = text
    columns = sorted(cells, key=lambda key: (FAMILIES.index(key[0]), key[1] != "float32"))
    batches = sorted({b for row in cells.values() for b in row})
    return table(["batch", *[f"{FAMILY_NAME[family]} {SHORT[state]}" for family, state in columns]],
                 [[b, *[cells[column].get(b, "") for column in columns]] for b in batches])


def small_table(data):
    """Small batches with RSSM_INIT_NO_SMALL_FLUSH: their records kept."""
    rows, batches = grid(json.loads((data / "small-h200.json").read_text())["cases"])
    return table(["shape", "state", *[f"B = {b}" for b in batches]],
                 [[shape, SHORT[state], *[number(us(row[b])) if b in row else "" for b in batches]] for (shape, state), row in rows.items()])


SLOTS_BAR, SLOTS_BAR_BYTES = 0.70, 32e6  # of the large copy's bandwidth, from so many bytes on
SLOTS_COLUMNS = [("fork", [("fork", "VK", "15")]),
                 ("export [V, K]: 0 / 0 … 15 / 15", [("export", "VK", records) for records in ("0", "0..15", "15")]),
                 ("export [K, V]: the same", [("export", "KV", records) for records in ("0", "0..15", "15")]),
                 ("import [V, K] / [K, V]", [("import", order, "0") for order in ("VK", "KV")]),
                 ("flush in place: 15", [("flush", "VK", "15")])]


def slots_rows(report):
    rows = {}
    for c in report["slots"]:
        rows.setdefault((c["shape"], c["state"], c["slots"]), {})[c["operation"], c["order"], c["records"]] = c
    return rows


def megabytes(cases):
    return f"{min(c['bytes'] for c in cases) / 1e6:.0f}–{max(c['bytes'] for c in cases) / 1e6:.0f}"


def slots_table(report):
    """Parts of the large copy's bandwidth, in brackets of copies of as many bytes; bold: below the bar."""

    def part(case):
        value = case["of_copy"]["median"]
        if case["bytes"] < SLOTS_BAR_BYTES or value >= SLOTS_BAR:
            return f"{value:.2f}"
        return f"**{value:.2f}**" if value < SLOTS_BAR - 0.005 else f"**{value:.3f}**"

    def cell(row, kinds):
        found = [row[kind] for kind in kinds if kind in row]
        same = " / ".join(f"{case['of_same_copy']['median']:.2f}" for case in found)
        return " / ".join(part(case) for case in found) + f" ({same})" if found else ""

    return table(["shape", "state", "slots", "MB", *[head for head, _ in SLOTS_COLUMNS]],
                 [[shape, SHORT[state], n, megabytes(row.values()), *[cell(row, kinds) for _, kinds in SLOTS_COLUMNS]]
                  for (shape, state, n), row in slots_rows(report).items()])


def slots_times_table(report):
    """Microseconds of a call."""
    return table(["shape", "state", "slots", *[head for head, _ in SLOTS_COLUMNS]],
                 [[shape, SHORT[state], n, *[" / ".join(number(row[kind]["us"]["median"]) for kind in kinds if kind in row)
                                             for _, kinds in SLOTS_COLUMNS]] for (shape, state, n), row in slots_rows(report).items()])


def conv_table(report):
    """Time / goal; bold: above the goal."""
    rows = {}
    for c in report["conv"]:
        rows.setdefault((c["io"], c["channels"], c["columns"], c["tokens"]), {})[c["batch"]] = c
    batches = sorted({c["batch"] for c in report["conv"]})

    def cell(case):
        text = f"{number(case['us']['median'])} / {number(case['goal_us'])}"
        over = case["over_goal"]["median"] - 1
        return f"**{text}** (+{100 * over:.1f} %)" if over > 0 else text

    return table(["io", "channels", "columns", "T", *[f"B = {b}" for b in batches]],
                 [[SHORT[io], channels, columns, "plain" if tokens == 1 else tokens, *[cell(row[b]) if b in row else "" for b in batches]]
                  for (io, channels, columns, tokens), row in rows.items()])


def operation_tables(data):
    """Of --slots and --conv."""
    made = {}
    for name, makers in (("slots", {"gpu-slots": slots_table, "gpu-slots-times": slots_times_table}), ("conv", {"gpu-conv": conv_table})):
        path = data / f"gpu-h200-{name}.json"
        if path.exists():
            report = json.loads(path.read_text())
            made.update({place: make(report) for place, make in makers.items()})
    return made


def draw_peers(ax, peers, family, state, floors):
    lines = {}
    for report in peers:
        if report["family"] != family or report["state"] != state:
            continue
        for result in report["results"]:
            if not result["name"].startswith("replayssm"):
                lines.setdefault(result["name"], []).append((report["batch"], result["us"]["median"] / report["floor_us"]))
    for i, (name, points) in enumerate(sorted(lines.items())):
        ax.plot(*zip(*sorted(points)), "--", marker="x", markersize=4, linewidth=1, color=f"C{2 + i % 8}", label=name)


def plot_floor(cases, peers):
    rows, batches = grid(plain(cases))
    shapes = main_shapes(cases)
    fig, axes = plt.subplots(2, 3, figsize=(12, 7), sharex=True, sharey=True)
    for line, state in zip(axes, ("float32", "bfloat16")):
        for ax, family in zip(line, FAMILIES):
            row = sorted((b, c) for b, c in rows.get((shapes.get(family), state), {}).items())
            ax.set_title(f"{shapes.get(family, family)}, {SHORT[state]} state", fontsize=9)
            if not row:
                continue
            at = [b for b, _ in row]
            floors = [c["replay"]["floor_us"]["median"] for _, c in row]
            ax.plot(at, [us(c) / f for (_, c), f in zip(row, floors)], "o-", color="C0", label="replay, L = 16")
            ax.plot(at, [us(c, "read_write") / f for (_, c), f in zip(row, floors)], "s-", color="C1", label="read-and-write step")
            goal = [(b, c["replay"]["goal_us"] / f) for (b, c), f in zip(row, floors) if b >= GOAL_BATCH]
            if goal:
                ax.plot(*zip(*goal), ":", color="black", label="goal")
            draw_peers(ax, peers, family, state, floors)
            ax.axhline(1, color="black", linewidth=1)
            ax.set_xscale("log", base=2)
            ax.set_yscale("log", base=2)
            ax.set_xticks(batches, [str(b) for b in batches], fontsize=7)
            ax.set_yticks([1, 1.25, 1.5, 2, 3, 4, 6, 8, 16], ["1", "1.25", "1.5", "2", "3", "4", "6", "8", "16"], fontsize=7)
            ax.minorticks_off()
            ax.set_ylim(0.9, 18)
            ax.grid(alpha=0.3)
    handles = {}
    for ax in axes.flat:
        for handle, label in zip(*ax.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    fig.legend(handles.values(), handles.keys(), fontsize=7, loc="lower center", ncol=4)
    fig.suptitle("time of a step / floor of the replay step, against the batch", fontsize=10)
    fig.tight_layout(rect=(0, 0.08, 1, 1))
    return fig


def plot_shapes(cases):
    """Every shape: replay over its floor, from the batch on where a floor can be reached."""
    rows, batches = grid([c for c in plain(cases) if c["batch"] >= GOAL_BATCH])
    fig, axes = plt.subplots(1, 3, figsize=(12, 3.6), sharey=True)
    styles = {"float32": "o-", "bfloat16": "s--", "float16": "^:"}
    for ax, family in zip(axes, FAMILIES):
        names = []
        for (shape, state), row in rows.items():
            if next(iter(row.values()))["family"] != family:
                continue
            if shape not in names:
                names.append(shape)
            points = sorted((b, c["replay"]["ratio"]["median"]) for b, c in row.items())
            ax.plot(*zip(*points), styles[state], color=f"C{names.index(shape)}", markersize=4, linewidth=1,
                    label=f"{shape} {SHORT[state]}")
        ax.axhline(1, color="black", linewidth=1)
        ax.set_xscale("log", base=2)
        ax.set_xticks(batches, [str(b) for b in batches], fontsize=7)
        ax.set_title(f"{family}: replay / floor", fontsize=9)
        ax.grid(alpha=0.3)
        ax.legend(fontsize=6)
    fig.tight_layout()
    return fig


TABLES = {
    "gpu-machine": machine_text,
    "gpu-times": times_table,
    "gpu-ratios": ratio_table,
    "gpu-read-write": read_write_table,
    "gpu-missed": missed_table,
    "gpu-together": together_table,
    "gpu-begin": begin_table,
    "gpu-host": host_table,
    "gpu-kernels": kernel_table,
}


def tables(data):
    """{place in the page: text}; nothing without data."""
    reports, cases = load(data)
    peers = load_peers(data)
    made = {name: make(reports, cases) for name, make in TABLES.items()} if cases else {}
    if any(c["tokens"] > 1 for c in cases):
        made["gpu-windows"] = window_table(reports, cases)
    if (data / "small-h200.json").exists():
        made["gpu-small"] = small_table(data)
    windows = load_peers(data, "verify")
    if peers:
        made["gpu-peers"] = peers_table(peers)
        made["gpu-behind"] = behind_table(peers, windows)
    if windows:
        made["gpu-peers-windows"] = peers_table(windows)
    return made | operation_tables(data)


def readme_tables(data):
    peers = load_peers(data)
    return {"gpu-readme": readme_table(peers)} if peers else {}


def plots(data):
    _, cases = load(data)
    return {"gpu-floor.svg": plot_floor(cases, load_peers(data)), "gpu-shapes.svg": plot_shapes(cases)} if cases else {}
