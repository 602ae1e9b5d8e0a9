"""Ours beside public kernels, on the same tensors in the same run: outputs, states and time. See README.md.

    python3 tests/bench/peers/run.py --plugin build/plugin/replayssm.so --peers FOLDER [--json FILE]
"""

import argparse
import datetime
import fcntl
import gc
import importlib.metadata
import json
import os
import sys
import time

import torch

import abi
import cases
import compare
import contender
import delta_peers
import flashinfer_peers
import load
import mamba_peers
import measure
import tables
import verify_peers
from cases import SHAPES, Case, Exact, Inputs, Pool

STATES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TRAJECTORY_BATCH, TRAJECTORY_WINDOWS = 16, 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugin", required=True, help="replayssm.so")
    parser.add_argument("--peers", default=os.environ.get("REPLAYSSM_PEERS"), help="folder of the peers' sources (README.md)")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: a trial with TRITON_INTERPRET=1")
    parser.add_argument("--family", default="kda,gdn,mamba2")
    parser.add_argument("--state", default="float32,bfloat16")
    parser.add_argument("--io", default="bfloat16", help="dtype of inputs, outputs and rings")
    parser.add_argument("--batch", default="1,8,32,64,128,256,512,1024", help="of plain steps; empty: none")
    parser.add_argument("--verify-batch", default="1,8,32,64,128,256", help="of windows; empty: none")
    parser.add_argument("--tokens", default="2,4,8", help="window lengths")
    parser.add_argument("--shape", default="", help="other heads and dims for all families: H,HV,K,V")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--only", default="", help="peers whose name contains this")
    parser.add_argument("--no-trajectory", action="store_true")
    parser.add_argument("--together", metavar="FILE", help="a lock: several runs prepare side by side, then measure in turn")
    parser.add_argument("--json", help="write the figures here")
    return parser.parse_args()


class Turn:
    """Runs that share a GPU: while one of them prepares (compiles, mostly) none measures, and one measures at a time."""

    def __init__(self, path):
        self.begin, self.file = time.perf_counter(), open(path, "a") if path else None
        self.lock(fcntl.LOCK_SH)

    def lock(self, kind):
        if self.file:
            fcntl.flock(self.file, kind)

    def take(self):
        prepared = time.perf_counter() - self.begin
        self.lock(fcntl.LOCK_EX)
        if self.file:
            print(f"prepared after {prepared:.1f} s, measures from {time.perf_counter() - self.begin:.1f} s on")


def numbers(text):
    return [int(part) for part in text.split(",") if part]


def case_of(options, family, state, batch, tokens=1):
    fields = dict(SHAPES[family])
    if options.shape:
        fields.update(zip(("H", "HV", "K", "V"), numbers(options.shape)))
    return Case(state=STATES[state], io=STATES[options.io], batch=batch, tokens=tokens, **fields)


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def case_report(case, layers, unfit):
    return dict(family=case.family, heads=dict(H=case.H, HV=case.HV, K=case.K, V=case.V), state=name_of(case.state),
                io=name_of(case.io), ring=name_of(case.io), ring_length=case.L, batch=case.batch, layers=layers, results=[],
                unfit=[dict(name=name, reason=reason) for name, reason in unfit])


def timed(steps, layers, phases, rounds, device):
    """Microseconds per layer of each step."""
    if device.type == "cuda":
        graphs = [measure.capture(step, layers, phases) for step in steps]
        times = measure.interleaved(graphs, rounds, layers)
    else:
        times = [measure.wall(step, layers, phases, 2) for step in steps]
    return [measure.summary([t / layers for t in taken]) for taken in times]


def fill(report, bound, errors, times, floor_of, ours):
    for (peer, _), found, us in zip(bound, errors, times):
        report["results"].append(
            dict(name=peer.name, kind=peer.kind, us=us, over_floor=us["median"] / floor_of(peer.kind), **found))
    base = [r["us"]["median"] for r in report["results"] if r["name"] == ours]
    for result in report["results"]:
        result["over_ours"] = result["us"]["median"] / base[0] if base else None


def step_case(case, contenders, device, rounds, bandwidth):
    layers = measure.layers_for(case) if device.type == "cuda" else 2
    pool, inputs, cursors = Pool(case, layers, device), Inputs(case, device), cases.Cursors(case, device)
    bound, unfit = compare.bind(case, contenders, pool, inputs, cursors)
    errors = compare.compare_steps(case, bound, pool, inputs, cursors)
    steps = [step for _, step in bound]
    report = case_report(case, layers, unfit)
    report["floor_us"] = case.floor_bytes() / bandwidth * 1e6
    report["floor_read_write_us"] = case.floor_bytes(False) / bandwidth * 1e6
    floor_of = lambda kind: report["floor_us" if kind == "replay" else "floor_read_write_us"]
    fill(report, bound, errors, timed(steps, layers, len(cursors.counts), rounds, device), floor_of, contender.Ours.name)
    for step in steps:
        step.close()
    return report


def window_case(case, contenders, device, rounds, bandwidth):
    layers = measure.layers_for(case) if device.type == "cuda" else 2
    pool = Pool(case, layers, device, ring_rows=case.L + case.tokens)
    inputs = Inputs(case, device, rows=case.batch * case.tokens)
    cursors = verify_peers.VerifyCursors(case, device)
    bound, unfit = compare.bind(case, contenders, pool, inputs, cursors)
    errors = compare.compare_windows(case, bound, pool, inputs, cursors)
    steps = [step for _, step in bound]
    report = dict(case_report(case, layers, unfit), tokens=case.tokens, floor_us=case.verify_floor_bytes() / bandwidth * 1e6)
    fill(report, bound, errors, timed(steps, layers, len(cursors.counts), rounds, device), lambda kind: report["floor_us"],
         verify_peers.Ours.name)
    for step in steps:
        step.close()
    return report


def trajectory(case, contenders, device):
    """Whole windows from one state and an empty ring: the error of all outputs together, and of the state at the end,
    where every window has just been flushed."""
    pool, cursors, report = Pool(case, 1, device), cases.Cursors(case, device), []
    driven = [c for c in contenders if c.kind != "out of place" and c.whole_windows]
    bound, _ = compare.bind(case, driven, Pool(case, 1, device), Inputs(case, device), cursors)
    for _, step in bound:
        step.close()
    rows, start = torch.arange(case.batch, device=device), pool.save()
    for peer, _ in bound:
        pool.restore(start)
        inputs = Inputs(case, device)
        step = peer.bind(case, pool, inputs, cursors)
        exact = Exact(case, inputs, rows)
        state, off, norm = pool.state[0][pool.slots.long()].double(), 0.0, 0.0
        for t in range(TRAJECTORY_WINDOWS * case.L):
            inputs.fresh()
            inputs.last = None
            cursors.set(0, torch.full_like(cursors.counts[0], t % case.L))
            step.begin(0)
            step(0, 0)
            out, state = exact.token(state)
            got = (inputs.out if inputs.last is None else inputs.last).view(out.shape).double()
            off, norm = off + float((got - out).square().sum()), norm + float(out.square().sum())
        end = pool.state[0][pool.slots.long()]
        report.append(dict(name=peer.name, kind=peer.kind, output_error=(off / norm)**0.5,
                           state_error=cases.error(end, state), state_rounding=cases.rounding(state, case.state)))
        step.close()
    return dict(family=case.family, state=name_of(case.state), io=name_of(case.io), batch=case.batch, ring_length=case.L,
                tokens=TRAJECTORY_WINDOWS * case.L, results=report)


def header(plugin, device, bandwidth, tables_of_peers):
    versions = dict(torch=torch.__version__)
    for package in ("triton", "helion"):
        if package in sys.modules:
            versions[package] = importlib.metadata.version(package)
    peers = []
    for table, (found, missing) in tables_of_peers.items():
        peers += [dict(table=table, name=p.name, kind=p.kind, source=p.source, note=p.note, ran=True) for p in found]
        peers += [dict(table=table, name=name, ran=False, reason=reason) for name, reason in missing]
    return dict(schema="replayssm-peers/1", date=datetime.date.today().isoformat(),
                device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu", cuda=torch.version.cuda,
                versions=versions, plugin=dict(version=plugin.version, revision=plugin.revision),
                copy_bytes_per_second=bandwidth, peers=peers, decode=[], trajectory=[], verify=[])


def save(report, path):
    """After each family and dtype: a run that is cut short leaves what it has."""
    if path:
        with open(path, "w") as file:
            json.dump(report, file, indent=1)


def tidy():
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run_cases(report, key, make, cases_to_run):
    for case in cases_to_run:
        begin = time.perf_counter()
        report[key].append(make(case))
        tables.print_case(report[key][-1], time.perf_counter() - begin)
        tidy()


def prepare(steps, windows, plain_cases, window_cases, device):
    """Every peer once in every case, so that what it compiles is there when it is measured."""
    layers = lambda case: measure.layers_for(case) if device.type == "cuda" else 2
    peers = lambda contenders: [c for c in contenders if c.source != "this tree"]
    for case in plain_cases:
        compare.bind(case, peers(steps), Pool(case, layers(case), device), Inputs(case, device), cases.Cursors(case, device))
        tidy()
    for case in window_cases:
        pool = Pool(case, layers(case), device, ring_rows=case.L + case.tokens)
        inputs = Inputs(case, device, rows=case.batch * case.tokens)
        compare.bind(case, peers(windows), pool, inputs, verify_peers.VerifyCursors(case, device))
        tidy()


def verify_works(plugin, device):
    """Whether verify answers at all: a plugin of an older build has the extension and refuses."""
    case = Case(batch=1, tokens=2, state=torch.float32, **SHAPES["gdn"])
    pool, inputs = Pool(case, 1, device, ring_rows=case.L + 2), Inputs(case, device, rows=2)
    try:
        step = verify_peers.ours(plugin).bind(case, pool, inputs, verify_peers.VerifyCursors(case, device))
        step(0, 0)
        step.close()
        return True
    except (abi.PluginError, load.Unavailable) as reason:
        print(f"skipped: replayssm verify: {reason}")
        return False


def main():
    options = arguments()
    turn = Turn(options.together)
    device = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    plugin, library = abi.Plugin(options.plugin), load.Library(options.peers)
    found = {"decode": contender.available(library, delta_peers.PEERS + mamba_peers.PEERS + flashinfer_peers.PEERS),
             "verify": contender.available(library, verify_peers.PEERS)}
    wanted = {table: [peer for peer in peers if options.only in peer.name] for table, (peers, _) in found.items()}
    for table, (_, missing) in found.items():
        for name, reason in missing:
            print(f"skipped ({table}): {name}: {reason}")
    gc.freeze()  # what is imported stays: the collections of every capture need not look at it
    steps = [contender.Ours(plugin), contender.OursReadWrite(plugin), contender.OursKeptRecords(plugin), *wanted["decode"]]
    windows = [verify_peers.OursPlain(plugin), *wanted["verify"]]
    if options.verify_batch and verify_works(plugin, device):
        windows.insert(0, verify_peers.Ours(plugin))
    groups = {(family, state): ([case_of(options, family, state, batch) for batch in numbers(options.batch)],
                                [case_of(options, family, state, batch, tokens) for tokens in numbers(options.tokens)
                                 for batch in numbers(options.verify_batch)])
              for family in options.family.split(",") for state in options.state.split(",")}
    if options.together:
        for of_steps, of_windows in groups.values():
            prepare(steps, windows, of_steps, of_windows, device)
    turn.take()
    bandwidth = measure.copy_bandwidth(device) if device.type == "cuda" else 1e9
    report = header(plugin, device, bandwidth, found)
    print(f"{report['device']}, copy {bandwidth / 1e12:.2f} TB/s, {report['versions']}, plugin {plugin.revision}")
    for (family, state), (of_steps, of_windows) in groups.items():
        if not options.no_trajectory:
            report["trajectory"].append(trajectory(case_of(options, family, state, TRAJECTORY_BATCH), steps, device))
            tables.print_trajectory(report["trajectory"][-1])
        run_cases(report, "decode", lambda case: step_case(case, steps, device, options.rounds, bandwidth), of_steps)
        run_cases(report, "verify", lambda case: window_case(case, windows, device, options.rounds, bandwidth), of_windows)
        save(report, options.json)
    tables.print_ratios(report["decode"], "plain step: time over replayssm's, by batch")
    tables.print_ratios(report["verify"], "windows: time over replayssm verify's, by batch")


main()
