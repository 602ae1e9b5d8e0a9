"""Outputs and states of every contender after one step, or one window, against float64 from the bytes it started from."""

import torch

import cases
from cases import Exact
from load import Unavailable

CHECKED_ROWS = 16  # of a batch


def bind(case, contenders, pool, inputs, cursors):
    """Steps of those that take this case, each run once; the others with their reason."""
    bound, unfit = [], []
    for contender in contenders:
        reason = contender.unfit(case)
        if reason is None:
            try:
                step = contender.bind(case, pool, inputs, cursors)
                step(0, 0)
                step.finish(0)
                if pool.device.type == "cuda":
                    torch.cuda.synchronize()
                bound.append((contender, step))
                continue
            except Exception as failure:  # a peer's own refusal: reported by name, the others go on
                if contender.source == "this tree" and not isinstance(failure, Unavailable):
                    raise
                text = str(failure).strip()
                reason = f"{type(failure).__name__}: {text.splitlines()[0] if text else ''}"
        if reason != "another family":
            unfit.append((contender.name, reason))
    return bound, unfit


class Check:
    """The first layer with every count among its rows. Phase 0 of the cursors is borrowed for it."""

    def __init__(self, case, pool, inputs, cursors, highest):
        self.case, self.pool, self.inputs, self.cursors = case, pool, inputs, cursors
        device = pool.device
        self.take = torch.arange(0, case.batch, max(1, case.batch // CHECKED_ROWS), device=device)
        self.kept = cursors.counts[0].clone()
        counts = highest - torch.arange(case.batch, device=device) // max(1, case.batch // CHECKED_ROWS) % case.L
        cursors.set(0, counts.to(torch.int32))
        self.saved = pool.save()

    def slots(self, contender):
        return self.pool.slots[self.take].long() if contender.by_slot else self.take + 1

    def begin(self, contender):
        """What the contender starts from: state and counts of the checked rows, the state with its records folded."""
        slots = self.slots(contender)
        exact, state = Exact(self.case, self.inputs, self.take), self.saved[0][slots].double()
        counts = contender.counts(self.cursors.counts[0][self.take], self.case.L)
        return exact, state, counts, exact.fold(state, [t[slots] for t in self.saved[1:]], counts)

    def launch(self, step):
        """Runs it on the pool as it was, with the outputs poisoned; the outputs of the checked rows, [n, tokens, HV, V]."""
        case, inputs = self.case, self.inputs
        self.pool.restore(self.saved)
        step.begin(0)
        inputs.out.fill_(float("nan"))
        inputs.last = inputs.new_state = None
        step(0, 0)
        step.finish(0)
        out = inputs.out if inputs.last is None else inputs.last
        return out.view(case.batch, case.tokens, case.HV, case.V)[self.take].clone()

    def states(self, contender):
        new, slots = self.inputs.new_state, self.slots(contender)
        return self.pool.state[0][slots] if new is None else new[slots - 1]

    def end(self, steps):
        self.pool.restore(self.saved)
        self.cursors.set(0, self.kept)
        for step in steps:
            step.begin(0)

    def found(self, out, exact_out, got, exact_state, held):
        found = dict(output_error=cases.error(out, exact_out), output_rounding=cases.rounding(exact_out, self.case.io))
        if bool(held.any()):
            found["state_error"] = cases.error(got[held], exact_state[held])
            found["state_rounding"] = cases.rounding(exact_state[held], self.case.state)
        return found


def compare_steps(case, bound, pool, inputs, cursors):
    """Errors of each contender's plain step, and how far its output is from ours of the same kind."""
    check, results, ours = Check(case, pool, inputs, cursors, case.L - 1), [], {}
    for contender, step in bound:
        out = check.launch(step)
        exact, state, counts, folded = check.begin(contender)
        state = folded if contender.kind == "replay" else state
        exact_out, after = exact.token(state)
        held = contender.flushed(counts, case.L)
        found = check.found(out, exact_out.unsqueeze(1), check.states(contender), after if contender.folds_token else state, held)
        if contender.source == "this tree":
            ours.setdefault(contender.kind, out)
            # Ours rounds a token's d and k once to the ring's dtype for whatever outlives it: the state of that contract.
            _, after = exact.token(state, record=case.io)
            if bool(held.any()):
                found["state_error_of_records"] = cases.error(check.states(contender)[held], after[held])
        if contender.by_slot:
            found["difference_from_ours"] = cases.error(out, ours["replay" if contender.kind == "replay" else "read-write"])
        results.append(found)
    check.end([step for _, step in bound])
    return results


def window_of_records(case, exact, start, held, take):
    """Ours, exactly: a folded state is rounded to its dtype, and later tokens of the window see d and k rounded to the ring's."""
    state, outs = torch.where(held.view(-1, 1, 1, 1), start.to(case.state).double(), start), []
    for t in range(case.tokens):
        out, state = exact.token(state, rows=take * case.tokens + t, record=case.io)
        outs.append(out)
    return torch.stack(outs, 1)


def compare_windows(case, bound, pool, inputs, cursors):
    """The same for a window: outputs of all its tokens, and the states of rows that folded (or that wrote theirs)."""
    check, results = Check(case, pool, inputs, cursors, case.L), []
    for contender, step in bound:
        if not contender.checked:
            results.append({})
            continue
        out = check.launch(step)
        exact, state, counts, folded = check.begin(contender)
        window = start = folded if contender.records_before else state
        outs = []
        for t in range(case.tokens):
            exact_out, window = exact.token(window, rows=check.take * case.tokens + t)
            outs.append(exact_out)
        held = contender.folds(counts, case) if contender.records_before else torch.ones_like(counts).bool()
        good = torch.ones_like(held) if contender.folds_checked else ~held
        if not bool(good.any()):
            results.append({})
            continue
        exact_outs = torch.stack(outs, 1)
        found = check.found(out[good], exact_outs[good], check.states(contender),
                            start if contender.records_before else window, held & good)
        if contender.source == "this tree":
            found["output_error_of_records"] = cases.error(out, window_of_records(case, exact, start, held, check.take))
        results.append(found)
    check.end([step for _, step in bound])
    return results
