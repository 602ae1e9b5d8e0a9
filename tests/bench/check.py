"""Runs replayssm-bench and judges what does not depend on the machine: the bytes and flushes that it claims.

usage: check.py replayssm-bench PLUGIN [options of the benchmark]
       check.py REPORT.json                                           (of a run that is over)

Bytes are modelled here once more from the shapes; the run's own count must differ by the record that a flush does not
store, and by nothing else. Figures are printed, not judged: only a quiet machine may be held to them.
"""

import json
import subprocess
import sys

ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2}
passed = failed = 0


def check(holds, text):
    global passed, failed
    passed += holds
    failed += not holds
    if not holds:
        print("FAILED:", text)


def shape_bytes(case):
    """Bytes of one layer's state, ring row, inputs and outputs, for one row of the batch."""
    H, HV, K, V = (case["heads"][name] for name in ("H", "HV", "K", "V"))
    io, ring = ELEMENT[case["io"]], ELEMENT[case["ring"]]
    gates = HV * K if case["family"] == "kda" else HV
    betas = 0 if case["family"] == "mamba2" else HV
    state = HV * V * K * ELEMENT[case["state"]]
    row = (HV * V + H * K) * ring + 4 * gates
    return state, row, io * (2 * H * K + 2 * HV * V + gates + betas)


def check_summary(name, summary):
    check(0 < summary["p10"] <= summary["median"] <= summary["p90"], f"{name}: {summary}")


def model_bytes(case, L, T):
    """Of one layer and pass, and what the run's own count has less: a plain step that flushes stores no record."""
    B = case["batch"]
    state, row, io = shape_bytes(case)
    if T > 1:
        return B * (state * (1 + T / L) + row * ((L + T) / 2 + T) + T * io), 0
    if L == 1:
        return B * (2 * state + io), 0
    return B * (state * (1 + 1 / L) + row * ((L - 1) / 2 + 1) + io), B * row / L


def check_figure(name, case, figure, L, T=1):
    B = case["batch"]
    model, unstored = model_bytes(case, L, T)
    window = L
    if L > 1 and "_small_" in figure.get("kernel", ""):  # a small batch flushes every row; the floor stays what it is
        window, unstored = 1, model - model_bytes(case, 1, 1)[0]
    check(figure["steps"] > 0, f"{name}: no steps")
    check(figure["flushes"] * window == figure["steps"] * B * T,
          f"{name}: {figure['flushes']} flushes in {figure['steps']} steps of {B} rows, L = {L}")
    check(abs(figure["bytes"] - model) <= B, f"{name}: {figure['bytes']} bytes, {model} by the shapes")
    check(abs(figure["bytes_counted"] + unstored - model) <= B,
          f"{name}: counted {figure['bytes_counted']}, modelled {model}, a flush leaves out {unstored}")
    for key in ("us", "floor_us", "ratio"):
        check_summary(f"{name} {key}", figure[key])


def check_case(case):
    name = f"{case['family']} {case['state']} batch {case['batch']} L {case['ring_length']}"
    for key in ("read_bytes_per_second", "copy_bytes_per_second"):
        check_summary(f"{name} {key}", case[key])
    figures = [("replay", case["ring_length"], case.get("tokens", 1)), ("read_write", 1, 1)]
    if "automatic" in case:
        figures.append(("automatic", case["auto_ring_length"], 1))
    for key, L, T in figures:
        check_figure(f"{name} {key}", case, case[key], L, T)
        if "kernels_per_layer" in case[key]:
            most = 2 if T > 1 else 1
            check(1 <= case[key]["kernels_per_layer"] <= most, f"{name}: {case[key]['kernels_per_layer']} kernels per layer")
    if "worst_over_median_together" in case:
        check(case["worst_over_median_together"] >= 1, name + ": worst below median")
        check(case["worst_over_median_spread"] >= 1, name + ": worst below median")
    print(name + ":", "; ".join(f"{key} (L = {L}) {case[key]['us']['median']:.2f} us, ratio {case[key]['ratio']['median']:.2f}"
                                for key, L, _ in figures))


def check_slots(case):
    """A slot operation: bytes that one call reads and writes, by the shapes; pending records of slot s are s mod 16 where spread."""
    H, HV, K, V = (case["heads"][name] for name in ("H", "HV", "K", "V"))
    state, row, _ = shape_bytes({**case, "io": "bfloat16", "ring": "bfloat16"})
    history = (2 * H * K + HV * V) * 3 * 2
    n, calls, layers, what = case["slots"], case["calls"], case["layers"], case["operation"]
    pending = {"0": [0] * n * calls, "15": [15] * n * calls, "0..15": [s % 16 for s in range(n * calls)]}[case["records"]]
    records = sum(pending) / calls * row
    model = {"fork": 2 * n * (state + 16 * row + history), "flush": 2 * n * state + records}.get(
        what, 2 * n * (state + history) + records) * layers
    check(abs(case["bytes"] - model) < 1, f"{case['name']}: {case['bytes']} bytes, {model} by the shapes")
    check(what in ("fork", "export", "flush") or case["records"] == "0", f"{case['name']}: an import with records")
    for key in ("us", "of_copy", "of_same_copy", "copy_bytes_per_second"):
        check_summary(f"{case['name']} {key}", case[key])


def check_conv(case):
    """A layer of the convolution: inputs, outputs, weights and what must move of the ring."""
    channels, columns, B, T = (case[name] for name in ("channels", "columns", "batch", "tokens"))
    moved = columns + 1 if columns == case["width"] - 1 else 2 * columns
    model = ELEMENT[case["io"]] * channels * (B * (2 * T + moved) + case["width"])
    check(case["bytes"] == model, f"{case['name']}: {case['bytes']} bytes, {model} by the shapes")
    check(T == 1 or columns >= case["width"] + T - 1, f"{case['name']}: {columns} columns for windows of {T}")
    check(case["goal_us"] > 5, f"{case['name']}: goal {case['goal_us']}")
    for key in ("us", "over_goal", "copy_bytes_per_second"):
        check_summary(f"{case['name']} {key}", case[key])


def check_operations(report):
    for part, judge in (("slots", check_slots), ("conv", check_conv)):
        for case in report.get(part, []):
            judge(case)
        if part in report:
            check(len(report[part]) > 0, f"no cases of {part}")
            check(len({case["name"] for case in report[part]}) == len(report[part]), f"{part}: two cases of one name")
            print(f"{part}: {len(report[part])} cases")


def report_of(arguments):
    """The benchmark's report, None when it did not run."""
    if len(arguments) == 1:
        with open(arguments[0], encoding="utf-8") as file:
            return json.load(file)
    bench, plugin, *options = arguments
    for option in {"--slots", "--conv"} & {*options}:
        check(subprocess.run([bench, option], stderr=subprocess.PIPE, check=False).returncode == 64, f"{option} without --device cuda")
    run = subprocess.run([bench, "--plugin", plugin, "--json", *options], stdout=subprocess.PIPE, check=False)
    check(run.returncode == 0, f"exit code {run.returncode}")
    return json.loads(run.stdout) if run.returncode == 0 else None


def main():
    report = report_of(sys.argv[1:])
    if report is not None:
        check_operations(report)
        check(len(report.get("cases", [])) > 0 or "slots" in report or "conv" in report, "no cases")
        for case in report.get("cases", []):
            check_case(case)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
