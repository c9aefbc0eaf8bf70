"""GPU: training steps of nine members of the family, formers and transformers in one run.

    make gpu
    python -m benchmarks.gpu gpt2 t5 --no-peer --profile
    python -m benchmarks.gpu --together 6

A step is forward, backward and AdamW on fp32 weights with bf16 autocast, random tokens, the peer's dropout; the figure
is real tokens per second (padding not counted), the median of twelve steps after four. With --together, so many
processes compile at a time, and are then timed one by one while the others wait. --by-block adds a step whose blocks
are compiled one by one.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_works import DEVICE, IS_DRY_RUN, TRAINING_CASES, TrainingCase
from benchmarks.harness import (
    Timing,
    describe_machine,
    exit_with_help,
    print_timings,
    run_in_turns,
    synchronise_gpu,
    time_median,
    wait_for_turn,
)
from formers.batch import Batch
from formers.training.executor import GraphedStep, Step, list_compile_regions

torch.set_float32_matmul_precision("high")
StepBuilder = Callable[[], Callable[[], Any]]


class ChosenTokenLoss:
    """An objective that asks for a token at the chosen places, whatever hid them."""

    def __init__(self, part: str):
        self.part = part

    def loss(self, model: Any, batch: Batch) -> dict[str, Any]:
        from formers.objectives.token_losses import compute_token_loss

        return {self.part: compute_token_loss(model, batch, self.part)}


def time_candidate(name: str, tokens: int, build: StepBuilder, repeat: int = 12) -> Timing | None:
    """Time one candidate; `build` gives a training step."""
    try:
        torch._dynamo.reset()
        gc.collect()
        if not IS_DRY_RUN:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(0)
        step = build()
        began = time.time()
        step()
        synchronise_gpu()
        first = time.time() - began
        for _ in range(4):
            step()
        wait_for_turn()
        seconds = time_median(step, 2, repeat)
        detail = {"first_step_s": round(first, 1)}
        if not IS_DRY_RUN:
            detail["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        if "--profile" in sys.argv and name == "formers":
            print_profile(step)
        return Timing(name, seconds, tokens / seconds, detail)
    except Exception as error:  # one candidate that fails must not take the others with it
        print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return None


def print_profile(step: Callable[[], None], steps: int = 3) -> None:
    """Where the time goes: the kernels that take most of it, per step."""
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    kernels = [e for e in seen.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    kernels = [e for e in kernels if not e.key.startswith("Optimizer.")]  # a mark around kernels that are there already
    total = sum(e.self_device_time_total for e in kernels)
    print(f"  {total / steps / 1e3:.2f} ms of kernels per step")
    for e in sorted(kernels, key=lambda e: -e.self_device_time_total)[:24]:
        own = e.self_device_time_total
        print(f"  {own / total:6.1%} {own / steps / 1e3:8.3f} ms {e.count // steps:4d}x {e.key[:100]}")


def build_update(model: torch.nn.Module, **how: Any) -> Callable[[], None]:
    """AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, **how)

    def update_weights() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return update_weights


def build_our_step(former: Any, part: str, batch: Batch, by_block: bool = False) -> StepBuilder:
    """A compiled step of ours, as a whole or block by block, recorded as one CUDA graph."""

    def build() -> Callable[[], Any]:
        model = former().model.train()
        step, moved = Step(model, ChosenTokenLoss(part)), batch.to(DEVICE)
        for region in list_compile_regions(model) if by_block else [step]:
            region.compile(fullgraph=True, dynamic=False)

        update = build_update(model, capturable=not IS_DRY_RUN)

        def run(batch: Batch) -> torch.Tensor:
            with torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=False):
                total, count = step(batch)[part]
                loss = total / count
            loss.backward()
            update()
            return loss.detach()

        return partial(run if IS_DRY_RUN else GraphedStep(run), moved)

    return build


def build_peer_step(model: Callable[[], Any], given: dict[str, torch.Tensor], compiled: bool) -> StepBuilder:
    """A step of the peer's, compiled or not."""

    def build() -> Callable[[], Any]:
        made = model().to(DEVICE).train()
        run, update = torch.compile(made) if compiled else made, build_update(made)
        moved = {key: value.to(DEVICE) for key, value in given.items()}

        def step() -> None:
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = run(**moved).loss
            loss.backward()
            update()

        return step

    return build


def build_candidates(work: TrainingCase) -> dict[str, StepBuilder]:
    """The peer eager and compiled, then formers."""
    peers = {"transformers": build_peer_step(work.build_peer, work.peer_inputs, False)}
    peers["transformers compiled"] = build_peer_step(work.build_peer, work.peer_inputs, True)
    ours = work.build_ours, work.head_part, work.batch
    by_block = {"formers by block": build_our_step(*ours, by_block=True)} if "--by-block" in sys.argv else {}
    return ({} if "--no-peer" in sys.argv else peers) | {"formers": build_our_step(*ours)} | by_block


def run_in_processes(names: list[str], at_once: int, only: str | None) -> None:
    """Every candidate in a process of its own; so many compile at a time."""
    flags = [word for word in sys.argv[1:] if word in ("--profile", "--no-peer", "--by-block")]
    jobs = [(name, one) for name in names for one in build_candidates(TRAINING_CASES[name]()) if only in (None, one)]
    commands = [[sys.executable, "-m", "benchmarks.gpu", name, "--only", one, *flags] for name, one in jobs]
    for output in run_in_turns(commands, at_once):
        print("".join(output.splitlines(keepends=True)[1:]), end="", flush=True)


def main() -> None:
    """Run the cases that are named, or all."""
    exit_with_help(__doc__)
    import transformers

    words = sys.argv[1:]
    names = [word for word in words if word in TRAINING_CASES] or list(TRAINING_CASES)
    print(describe_machine() | {"transformers": transformers.__version__}, flush=True)
    only = words[words.index("--only") + 1] if "--only" in words else None
    if "--together" in words:
        return run_in_processes(names, int(words[words.index("--together") + 1]), only)
    for name in names:
        work = TRAINING_CASES[name]()
        chosen = {key: build for key, build in build_candidates(work).items() if only in (None, key)}
        print_timings(
            work.name,
            [t for key, build in chosen.items() if (t := time_candidate(key, work.tokens, build)) is not None],
        )


if __name__ == "__main__":
    main()
