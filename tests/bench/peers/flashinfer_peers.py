"""FlashInfer's kernels: compiled CUDA for Mamba-2, CuTe DSL for the delta rule."""

import importlib

import torch

import load
from contender import BeginFunction, Contender, Function, Step
from load import Unavailable
from mamba_peers import tied

TYPE_NAME = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class FlashInferModule:
    """FlashInfer's compiled kernels: a module of its cache (NAME.so) in the peers' folder, or what FlashInfer itself compiles
    where it is installed."""

    def __init__(self, library, generator):
        self.folder = library.folder / "flashinfer_modules" if library.folder else None
        self.generator = generator
        if self.folder is None or not self.folder.is_dir():
            self.folder = None
            try:
                importlib.import_module("flashinfer")
            except ImportError as error:
                raise Unavailable(f"flashinfer: {error}") from error

    def get(self, name, *args):
        if self.folder:
            return load.compiled(self.folder, name)
        module, function = self.generator
        return getattr(importlib.import_module(module), function)(*args).build_and_load()


def checkpointing_ssu_module(modules, case, tokens, window):
    state, io, f32 = TYPE_NAME[case.state], TYPE_NAME[case.io], torch.float32
    return modules.get(
        f"checkpointing_ssu_s_{state}_i_{io}_dt_{io}_w_f32_a_f32_si_i32_d_{case.V}_ds_{case.K}_np_{tokens}_mw_{window}_hpg_"
        f"{case.HV // case.H}_ng_{case.H}", case.state, case.io, case.io, f32, f32, torch.int32, None, case.V, case.K, tokens,
        window, case.HV // case.H, case.H)


class CheckpointingSsu:
    """FlashInfer's checkpointing_ssu on rings of its own: `tokens` rows longer than its window, with the pool's records in
    front. Which of its ways to launch is best for a shape is left to its tuner; here they are all timed once."""
    WAYS = {"monolith": (1, False), "monolith, split 2": (2, False), "two kernels": (1, True)}

    def __init__(self, modules, case, pool, inputs, tokens=1):
        self.case, self.pool, self.inputs, self.tokens = case, pool, inputs, tokens
        self.module = checkpointing_ssu_module(modules, case, tokens, case.L)
        device, layers, slots = pool.device, pool.state.shape[0], pool.state.shape[1]
        length = case.L + tokens
        self.wide = torch.zeros(layers, slots, case.HV, length, case.V, dtype=case.io, device=device)
        self.narrow = torch.zeros(layers, slots, case.H, length, case.K, dtype=case.io, device=device)
        self.gates = torch.zeros(layers, slots, case.HV, length, device=device)
        self.take_records()
        self.start = torch.zeros(slots, dtype=torch.int32, device=device)
        batch = case.batch
        pad = lambda n, to: -(-n // to) * to
        self.scratch = (torch.empty(batch, case.HV, 32, pad(tokens, 16) // 2, dtype=case.io, device=device),
                        torch.empty(batch, case.HV, pad(tokens, 16), device=device),
                        torch.empty(batch, case.HV, 32, pad(case.L, 8) // 2, dtype=case.io, device=device))
        weights = tied(inputs, case)
        window = lambda t, *shape: t.view(batch, tokens, *shape) if t.is_contiguous() else t.unflatten(0, (batch, tokens))
        B, C, x = (window(part, *part.shape[1:]) for part in inputs.parts())
        dt = window(inputs.gate, case.HV)[..., None].expand(-1, -1, -1, case.V)
        out = inputs.out.view(batch, tokens, case.HV, case.V)
        self.inputs_of_call = (x, dt, weights["A"], B, C, out)
        self.weights = weights

    def take_records(self):
        """The pool's records into the rings."""
        for target, source in ((self.wide, self.pool.wide), (self.narrow, self.pool.narrow), (self.gates, self.pool.gates)):
            rows = min(source.shape[3], target.shape[3])
            target[:, :, :, :rows].copy_(source[:, :, :, :rows])

    def launch(self, layer, counts, way):
        split, two = way
        x, dt, A, B, C, out = self.inputs_of_call
        scratch = self.scratch if two else (None, None, None)
        self.module.checkpointing_ssu(self.pool.state[layer], x, dt, A, B, C, out, self.wide[layer], self.narrow[layer],
                                      self.gates[layer], self.start, counts, self.weights["D"], None, self.weights["dt_bias"],
                                      True, self.pool.slots, -1, None, None, split, None, *scratch, 0, 0, 0)

    def best_way(self, counts):
        """The fastest of the ways on this GPU; the first on a CPU."""
        if self.pool.device.type != "cuda":
            return self.WAYS["monolith"]
        times = {}
        for way in self.WAYS.values():
            for measured in (False, True):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                for layer in range(min(8, self.pool.state.shape[0])):
                    self.launch(layer, counts, way)
                end.record()
                end.synchronize()
            times[way] = begin.elapsed_time(end)
        return min(times, key=times.get)


class FlashInferReplay(Contender):
    name, kind, families = "FlashInfer checkpointing_ssu (CUDA)", "replay", ("mamba2", )
    source = "flashinfer/mamba/checkpointing_ssu.py"
    note = "a flush folds the 16 records before the token; the best of its ways to launch"
    folds_token = whole_windows = False

    def load(self):
        self.modules = FlashInferModule(self.library, ("flashinfer.jit.mamba.checkpointing_ssu", "gen_checkpointing_ssu_module"))

    def counts(self, counts, L):
        return torch.where(counts == 0, L, counts)

    def flushed(self, counts, L):
        return counts == L

    def bind(self, case, pool, inputs, cursors):
        return CheckpointingStep(self, CheckpointingSsu(self.modules, case, pool, inputs), cursors)


class CheckpointingStep(Step):

    def __init__(self, contender, ssu, cursors):
        self.contender, self.ssu, self.cursors = contender, ssu, cursors
        # Its cursors are kept by slot.
        self.by_slot = [torch.zeros_like(ssu.start) for _ in cursors.counts]
        for phase in range(len(self.by_slot)):
            self.begin(phase)
        self.way = ssu.best_way(self.by_slot[0])

    def begin(self, phase):
        counts = self.contender.counts(self.cursors.counts[phase], self.ssu.case.L)
        self.by_slot[phase][self.ssu.pool.slots.long()] = counts
        self.ssu.take_records()

    def __call__(self, layer, phase):
        self.ssu.launch(layer, self.by_slot[phase], self.way)


class FlashInferMamba(Contender):
    name, families = "FlashInfer selective_state_update (CUDA)", ("mamba2", )
    source = "flashinfer/mamba/selective_state_update.py"
    note = "takes dt in the dtype of its weights, float32: widened outside the clock"

    def load(self):
        self.modules = FlashInferModule(self.library, ("flashinfer.mamba.selective_state_update", "get_module_of_this_machine"))
        if self.modules.folder is None:
            run = importlib.import_module("flashinfer.mamba").selective_state_update
            self.run = lambda state, x, dt, A, B, C, D, bias, slots, out, case: run(
                state, x, dt, A, B, C, D, dt_bias=bias, dt_softplus=True, state_batch_indices=slots, out=out)
        else:
            self.run = self.compiled

    def compiled(self, state, x, dt, A, B, C, D, bias, slots, out, case):
        module = self.modules.get(f"selective_state_update_s_{TYPE_NAME[case.state]}_i_{TYPE_NAME[case.io]}_w_f32_a_f32_si_i32_"
                                  f"d_{case.V}_ds_{case.K}_nt_1_cs_i32_na_i32")
        module.selective_state_update(state, x, dt, A, B, C, D, None, bias, True, slots, None, -1, None, out, False, None, None,
                                      None, None, 0, None, None, 0)

    def bind(self, case, pool, inputs, cursors):
        weights = tied(inputs, case)
        B, C, x = inputs.parts()
        raw = inputs.gate.float()
        dt, out = raw[..., None].expand(-1, -1, case.V), inputs.out.squeeze(1)

        def step(layer, phase):
            self.run(pool.state[layer], x, dt, weights["A"], B, C, weights["D"], weights["dt_bias"], pool.slots, out, case)

        return BeginFunction(step, lambda phase: raw.copy_(inputs.gate))


class FlashInferDelta(Contender):
    """FlashInfer's decode of the delta rule, written in CuTe DSL: only where flashinfer itself is installed with it."""
    module, function = "flashinfer", ""

    def load(self):
        try:
            self.run = getattr(importlib.import_module(self.module), self.function)
        except (ImportError, AttributeError) as error:
            raise Unavailable(f"needs flashinfer with nvidia-cutlass-dsl installed: {error}") from error


class FlashInferGdn(FlashInferDelta):
    name, families = "FlashInfer GDN decode (CuTe DSL)", ("gdn", )
    source = "flashinfer/gdn_decode.py, gated_delta_rule_decode_pretranspose"
    note = "fp32: row b is state b + 1, for only bf16 states have slots"
    module, function = "flashinfer.gdn_decode", "gated_delta_rule_decode_pretranspose"

    def bind(self, case, pool, inputs, cursors):
        q, k, v = inputs.apart
        a, b = inputs.gate.unsqueeze(1), inputs.b.unsqueeze(1)
        self.by_slot = case.state == torch.bfloat16

        def step(layer, phase):
            slots = dict(initial_state=pool.state[layer], initial_state_indices=pool.slots) if self.by_slot else {}
            state = None if self.by_slot else pool.state[layer, 1:]
            self.run(q, k, v, state, inputs.A_log, a, inputs.dt_bias, b, case.scale, inputs.out, **slots)

        return Function(step)


class FlashInferKda(FlashInferDelta):
    name, families = "FlashInfer recurrent_kda (CuTe DSL)", ("kda", )
    source = "flashinfer/kda_decode.py"
    module, function = "flashinfer.kda_decode", "recurrent_kda"

    def unfit(self, case):
        return super().unfit(case) or (None if case.state == torch.bfloat16 else "bf16 states only")

    def bind(self, case, pool, inputs, cursors):
        q, k, v = inputs.apart
        gate, beta = inputs.gate.unsqueeze(1), inputs.b.unsqueeze(1)

        def step(layer, phase):
            self.run(q, k, v, gate, beta, inputs.A_log, inputs.dt_bias.view(-1), case.scale, use_gate_in_kernel=True,
                     beta_is_logit=True, output=inputs.out, initial_state_source=pool.state[layer],
                     initial_state_indices=pool.slots)

        return Function(step)


PEERS = [FlashInferReplay, FlashInferMamba, FlashInferGdn, FlashInferKda]
