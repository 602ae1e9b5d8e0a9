#!/usr/bin/env python3
"""Greedy generation with a transformers model, its recurrent layers as they are and then in replayssm.so: are the tokens the
same, and how fast is either?

    generate.py configs/qwen3-next-80b-a3b.json --plugin build/plugin/replayssm.so --batch 8

The config is any published config.json; a small model of its kind gets random weights (small_models.py). In float32 the exit
status is 1 unless every token is the same.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
from typing import Any, List, NamedTuple, Tuple

import torch
import transformers

import replayssm
import replayssm_transformers
import small_models


class Run(NamedTuple):
    tokens: torch.Tensor  # [B, N]
    logits: torch.Tensor  # [B, N, vocabulary]
    rate: float           # new tokens per second over all rows, by the median step
    cpu: float            # CPU time of the median step, all threads, in milliseconds


class Clock(transformers.StoppingCriteria):  # type: ignore[misc]
    """Stops nothing: notes when each token is there."""

    def __init__(self) -> None:
        self.times: List[Tuple[float, float]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if input_ids.is_cuda:
            torch.cuda.synchronize()
        self.times.append((time.perf_counter(), time.process_time()))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def greedy(model: Any, prompts: torch.Tensor, count: int, mask: Any = None) -> Run:
    """prompts [B, T], left-padded where mask is 0."""
    clock = Clock()
    result = model.generate(prompts, attention_mask=torch.ones_like(prompts) if mask is None else mask, max_new_tokens=count,
                            do_sample=False, return_dict_in_generate=True, output_logits=True, stopping_criteria=[clock])
    wall, cpu = (statistics.median(after - before for before, after in zip(times, times[1:])) for times in zip(*clock.times))
    return Run(result.sequences[:, prompts.shape[1]:], torch.stack(result.logits, 1), len(prompts) / wall, 1000 * cpu)


@torch.no_grad()
def along(model: Any, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The logits [B, N, vocabulary] on the way along given tokens [B, N]: two models stay comparable after they would part."""
    step = model(prompts, use_cache=True)
    logits = [step.logits[:, -1]]
    for column in tokens[:, :-1].split(1, dim=1):
        step = model(column, cache=step.cache, use_cache=True)
        logits.append(step.logits[:, -1])
    return torch.stack(logits, 1)


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2."""
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def smallest_margin(logits: torch.Tensor) -> float:
    """Between the best and the second-best token of any step."""
    best = logits.float().topk(2, -1).values
    return float((best[..., 0] - best[..., 1]).min())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("--plugin", required=True, help="replayssm.so")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (%(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=24, help="length (%(default)s)")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--divisor", type=int, default=8, help="of the recurrent layers' head dims (%(default)s)")
    parser.add_argument("--ring-length", type=int, default=16)
    parser.add_argument("--ring-dtype", default="float32")
    parser.add_argument("--conv", action="store_true", help="the plugin runs the short convolution too")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch and of the plugin; 0: their defaults")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    transformers.logging.set_verbosity_error()
    if args.threads:
        torch.set_num_threads(args.threads)
    config = small_models.shrink(json.loads(args.config.read_text()), args.layers, args.hidden, args.divisor)
    model = small_models.build(config, args.seed, getattr(torch, args.dtype), args.device)
    prompts = small_models.prompts(args.batch, args.prompt, args.seed).to(args.device)

    plain = greedy(model, prompts, args.tokens)
    expected = along(model, prompts, plain.tokens)
    decoder = replayssm_transformers.attach(model, replayssm.load(args.plugin), max_batch=args.batch, config=config,
                                            conv=args.conv, ring_length=args.ring_length, ring_dtype=args.ring_dtype,
                                            num_threads=args.threads)
    m = decoder.plugin.describe()
    print(f"{m.model_type}: {m.family_name}, {m.num_linear_layers} of {m.num_layers} layers recurrent, H {m.H} HV {m.HV} "
          f"K {m.K} V {m.V}, ring {m.ring_length} {m.ring_dtype.name.lower()}; {args.dtype} on {args.device}, "
          f"batch {args.batch}, {args.tokens} tokens after {args.prompt}{', with conv' if args.conv else ''}")
    patched = greedy(model, prompts, args.tokens)
    got = along(model, prompts, plain.tokens)
    decoder.detach()

    same = patched.tokens == plain.tokens
    for who, run in (("transformers", plain), ("replayssm", patched)):
        print(f"{who:<13} {run.rate:8.1f} tokens/s, {run.cpu:.2f} ms of CPU per step")
    print(f"tokens        {int(same.sum())} of {same.numel()} equal; smallest top-2 margin {smallest_margin(plain.logits):.1e}")
    print(f"logits        along the same tokens: relative L2 {distance(got, expected):.1e}, "
          f"largest difference {float((got.float() - expected.float()).abs().max()):.1e}")
    return int(args.dtype == "float32" and not bool(same.all()))


if __name__ == "__main__":
    sys.exit(main())
