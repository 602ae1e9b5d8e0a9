"""Runs replayssm-bench and judges what does not depend on the machine: the bytes and flushes that it claims.

usage: check.py replayssm-bench PLUGIN [options of the benchmark]

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


def check_figure(name, case, figure, L):
    B = case["batch"]
    state, row, io = shape_bytes(case)
    model = B * (2 * state + io if L == 1 else state * (1 + 1 / L) + row * ((L - 1) / 2 + 1) + io)
    unstored = 0 if L == 1 else B * row / L
    check(figure["steps"] > 0, f"{name}: no steps")
    check(figure["flushes"] * L == figure["steps"] * B,
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
    check_figure(name + " replay", case, case["replay"], case["ring_length"])
    check_figure(name + " read-write", case, case["read_write"], 1)
    check_figure(name + " automatic", case, case["automatic"], case["auto_ring_length"])
    if "worst_over_median_together" in case:
        check(case["worst_over_median_together"] >= 1, name + ": worst below median")
        check(case["worst_over_median_spread"] >= 1, name + ": worst below median")
    print(f"{name}: replay {case['replay']['us']['median']:.0f} us, {case['replay']['percent_of_read']:.0f} % of read; "
          f"read-write {case['read_write']['us']['median']:.0f} us, "
          f"{case['read_write']['percent_of_copy']:.0f} % of copy; "
          f"automatic (L = {case['auto_ring_length']}) {case['automatic']['us']['median']:.0f} us")


def main():
    bench, plugin, *options = sys.argv[1:]
    run = subprocess.run([bench, "--plugin", plugin, "--json", *options], stdout=subprocess.PIPE, check=False)
    check(run.returncode == 0, f"exit code {run.returncode}")
    if run.returncode == 0:
        cases = json.loads(run.stdout)["cases"]
        check(len(cases) > 0, "no cases")
        for case in cases:
            check_case(case)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
