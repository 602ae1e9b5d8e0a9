"""What a run prints."""

import sys

from cases import SHORT

NAMES = {str(dtype).removeprefix("torch."): short for dtype, short in SHORT.items()}


def number(result, key, form="{:.2e}"):
    return form.format(result[key]) if result.get(key) is not None else "-"


def print_case(report, seconds):
    window = f" T {report['tokens']}" if "tokens" in report else ""
    print(f"\n[{seconds:.1f} s] {report['family']} {report['state']} batch {report['batch']}{window} ({report['layers']} layers, "
          f"floor {report['floor_us']:.2f} us)")
    for r in report["results"]:
        us = r["us"]
        print(f"  {r['name']:<46}{us['median']:9.2f} us ({us['p10']:.2f}-{us['p90']:.2f})  /floor {r['over_floor']:5.2f}  /ours "
              f"{number(r, 'over_ours', '{:.2f}')}  out {number(r, 'output_error')} ({number(r, 'output_rounding')}) state "
              f"{number(r, 'state_error')} ({number(r, 'state_rounding')}) from ours {number(r, 'difference_from_ours')}")
    for r in report["unfit"]:
        print(f"  {r['name']:<46}not run: {r['reason']}")
    sys.stdout.flush()


def print_trajectory(report):
    print(f"\n{report['family']} {report['state']}: {report['tokens']} tokens, batch {report['batch']}")
    for r in report["results"]:
        print(f"  {r['name']:<46}out {r['output_error']:.2e}  state {r['state_error']:.2e} ({r['state_rounding']:.1e})")
    sys.stdout.flush()


def print_ratios(reports, title):
    """Each contender's time over ours: a row for each, a column for each batch."""
    if not reports:
        return
    batches = sorted({r["batch"] for r in reports})
    print(f"\n{title}\n" + " " * 66 + "".join(f"{b:>8}" for b in batches))
    table = {}
    for report in reports:
        for r in report["results"]:
            key = report["family"], NAMES[report["state"]], report.get("tokens", 1), r["name"]
            table.setdefault(key, {})[report["batch"]] = r["over_ours"]
    for (family, state, tokens, name), row in table.items():
        cells = "".join(f"{row[b]:8.2f}" if row.get(b) is not None else "       -" for b in batches)
        print(f"{family:<7}{state:<5}T={tokens:<3}{name:<49}{cells}")
