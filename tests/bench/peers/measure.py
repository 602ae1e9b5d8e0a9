"""The clock: CUDA-graph replays of several layers with separate pools, contenders in turn, medians over rounds."""

import statistics
import time

import torch

from cases import Case

# Together the layers' states are many times a GPU's L2 (H200: 60 MB), so that nothing stays in it from layer to layer
# or from replay to replay.
WORKING_SET = 320e6
MOST_LAYERS = 192


def layers_for(case: Case):
    """At least 2, and a multiple of L where a batch is too small to hold every count at once."""
    wanted = min(MOST_LAYERS, max(2, -int(-WORKING_SET // (case.batch * case.state_bytes))))
    return -(-wanted // case.L) * case.L if case.batch < case.L else wanted


def copy_bandwidth(device, size=2 << 30, rounds=15):
    """Bytes read and written per second by a large device-to-device copy."""
    source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    source.fill_(1)
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return 2 * size / statistics.median(times[3:])


def capture(step, layers, phases):
    """A graph of one step of every layer, each with its phase."""
    for phase in range(min(phases, layers)):
        step(phase, phase)
    step.finish(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(layers):
            step(layer, layer % phases)
        step.finish(0)
    return graph


def replay(graph):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    return begin, end


def interleaved(graphs, rounds, launches):
    """Microseconds of each graph per round; the contenders take turns inside a round. The GPU is kept busy first, for as long
    as the host needs to enqueue a round of so many launches, so that no graph waits for the host between its events."""
    head_start = int(2e9 * (1e-4 + 2e-6 * launches) * len(graphs))  # cycles
    for graph in graphs:
        graph.replay()
    events = []
    for _ in range(rounds):
        torch.cuda._sleep(head_start)
        events.append([replay(graph) for graph in graphs])
        torch.cuda.synchronize()
    return [[events[r][i][0].elapsed_time(events[r][i][1]) * 1e3 for r in range(rounds)] for i in range(len(graphs))]


def summary(values):
    ordered = sorted(values)
    pick = lambda part: ordered[round(part * (len(ordered) - 1))]
    return dict(median=statistics.median(ordered), p10=pick(0.1), p90=pick(0.9))


def wall(step, layers, phases, rounds):
    """On a CPU, for trying the harness: wall time of the same, without graphs."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for layer in range(layers):
            step(layer, layer % phases)
        step.finish(0)
        times.append((time.perf_counter() - begin) * 1e6)
    return times
