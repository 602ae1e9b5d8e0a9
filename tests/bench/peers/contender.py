"""What a contender is, and ours.

A contender binds to a pool, inputs and cursors that all share, and gives a Step that enqueues one layer. kind "replay":
checkpoint and ring; "read-write": state in place; "out of place": state read, a new one written.
"""

import torch

import abi
from load import Unavailable


class Contender:
    families = ("kda", "gdn", "mamba2")
    kind = "read-write"
    note = ""
    folds_token = True  # a flush folds the current token too
    whole_windows = True  # can be driven through whole windows by counts that start at 0
    by_slot = True  # row b works on slot slots[b]; else on slot b + 1

    def __init__(self, library):
        self.library = library
        self.load()

    def load(self):
        """Imports the kernel or raises Unavailable."""

    def unfit(self, case):
        """Why this case cannot be run, or None."""
        return None if case.family in self.families else "another family"

    def counts(self, counts, L):
        """Records before the step where ours has `counts`."""
        return counts

    def flushed(self, counts, L):
        """Rows whose state[slot] is the whole state after the step, or (folds_token False) was before it."""
        return counts >= L - 1 if self.kind == "replay" else torch.ones_like(counts).bool()

    def bind(self, case, pool, inputs, cursors):
        raise NotImplementedError


class Step:
    """step(layer, phase) enqueues one layer with the counts of that phase of the cursors."""

    def begin(self, phase):
        """Takes over the counts of a phase and the pool's records, where it keeps its own."""

    def finish(self, phase):
        """What a pass does to the states of all layers at its end."""

    def close(self):
        """Frees what it holds."""


class Function(Step):
    """A Step that is one function of layer and phase."""

    def __init__(self, function):
        self.function = function

    def __call__(self, layer, phase):
        self.function(layer, phase)


class BeginFunction(Function):
    """One that has something to take over first."""

    def __init__(self, function, begin):
        super().__init__(function)
        self.begin = begin


class Ours(Contender):
    """replayssm.so: step_begin makes the rows of each phase, decode enqueues a layer."""
    name, kind, source = "replayssm", "replay", "this tree"

    def __init__(self, plugin):
        self.plugin, self.small = plugin, False

    def bind(self, case, pool, inputs, cursors):
        step = OurStep(self.plugin, case, pool, inputs, cursors, case.L)
        self.small = step.small
        return step

    def counts(self, counts, L):
        return torch.zeros_like(counts) if self.small else counts

    def flushed(self, counts, L):
        return torch.ones_like(counts).bool() if self.small else super().flushed(counts, L)


class OursReadWrite(Ours):
    """The same at ring length 1: the standard step, state read and written."""
    name, kind = "replayssm read-write", "read-write"

    def bind(self, case, pool, inputs, cursors):
        return OurStep(self.plugin, case, pool, inputs, cursors, 1)


class OursKeptRecords(Ours):
    """With RSSM_INIT_NO_SMALL_FLUSH: a small batch keeps its records, so that a 16-bit state is rounded once per window."""
    name = "replayssm, RSSM_INIT_NO_SMALL_FLUSH"

    def unfit(self, case):
        return "for the accuracy of 16-bit states" if case.state == torch.float32 else super().unfit(case)

    def bind(self, case, pool, inputs, cursors):
        usual = OurStep(self.plugin, case, pool, inputs, cursors, case.L)
        usual.close()
        if not usual.small:
            raise Unavailable("no small batch")
        return OurStep(self.plugin, case, pool, inputs, cursors, case.L, flags=abi.NO_SMALL_FLUSH)


def step_tensors(case, inputs):
    common = dict(A_log=inputs.A_log, dt_bias=inputs.dt_bias, out=inputs.out.squeeze(1))
    if case.delta:
        return dict(common, mixed_qkv=inputs.packed, a=inputs.gate, b=inputs.b)
    return dict(common, mixed_xbc=inputs.packed, dt=inputs.gate, D=inputs.D)


class OurStep(Step):

    def __init__(self, plugin, case, pool, inputs, cursors, L, flags=0):
        self.pool, self.cursors, self.L, device = pool, cursors, L, pool.device
        layers = range(pool.state.shape[0])
        bound = [pool.layer(i) if L > 1 else dict(state=pool.state[i]) for i in layers]
        self.cursor = torch.zeros(pool.state.shape[1], abi.CURSOR_WIDTH, dtype=torch.int32, device=device)
        self.instance = abi.Instance(plugin, case, bound, self.cursor, L, flags=flags)
        self.rows = [torch.zeros(case.batch, abi.ROW_WIDTH, dtype=torch.int32, device=device) for _ in cursors.counts]
        tensors = step_tensors(case, inputs)
        launch = {}
        for i in layers:
            for phase in self.phases_of(i):
                launch[i, phase] = self.instance.launcher(i, dict(tensors, **bound[i], rows=self.rows[phase]))
        self.launch = launch
        self.small = L > 1 and self.flushes_at_once()
        for phase in range(len(self.rows)):
            self.begin(phase)

    def phases_of(self, layer):
        return {layer % len(self.rows), 0}

    def flushes_at_once(self):
        """Whether this is a small batch, of which step_begin flushes every row: no row has records then."""
        self.cursor.zero_()
        self.instance.step_begin(self.pool.slots, self.rows[0])
        return bool((self.rows[0][:, 3] != 0).all())

    def begin(self, phase):
        """The rows of this phase's counts, as a forward pass would get them. The ring's origin stays at row 0, since the
        other contenders know no other."""
        self.cursor.zero_()
        if self.L > 1 and not self.small:
            self.cursor[self.pool.slots.long(), 1] = self.cursors.counts[phase]
        self.instance.step_begin(self.pool.slots, self.rows[phase])

    def __call__(self, layer, phase):
        self.launch[layer, phase]()

    def close(self):
        self.instance.close()


def available(library, peers):
    """The peers that load, and for the others why not."""
    found, missing = [], []
    for peer in peers:
        try:
            found.append(peer(library))
        except Unavailable as reason:
            missing.append((peer.name, str(reason)))
        except Exception as reason:  # a file of another version may fail in any way: it is left out by name
            missing.append((peer.name, f"{type(reason).__name__}: {reason}"))
    return found, missing
