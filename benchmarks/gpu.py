"""GPU: training steps of GPT-2 124M, BERT-base (ragged and full) and T5-base, formers and transformers in one run.

    make gpu
    python -m benchmarks.gpu gpt2 bert t5 --no-peer --profile

A step is forward, backward and AdamW on fp32 weights with bf16 autocast, random tokens, the peer's dropout; the figure
is real tokens per second (padding not counted), the median of twelve steps after four.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch

import formers
from benchmarks.harness import Timing, machine, median, say
from formers.batch import Batch
from formers.objectives.tokens import IGNORED
from formers.training.step import Step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = DEVICE == "cpu"  # a dry run of the script itself
torch.set_float32_matmul_precision("high")


def pick(big: Any, small: Any) -> Any:
    return small if TINY else big


class Places:
    """An objective that asks for a token at the chosen places, whatever hid them."""

    def __init__(self, part: str):
        self.part = part

    def loss(self, model: Any, batch: Batch) -> dict[str, Any]:
        from formers.objectives.tokens import token_loss

        return {self.part: token_loss(model, batch, self.part)}


def timed(
    name: str, tokens: int, build: Callable[[], tuple[Any, Callable[[], torch.Tensor]]], repeat: int = 12
) -> Timing | None:
    """Time one candidate; `build` gives the module whose weights are trained, and a function for the loss."""
    try:
        torch._dynamo.reset()
        gc.collect()
        if not TINY:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(0)
        model, loss_of = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = loss_of()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        began = time.time()
        step()
        first = time.time() - began
        seconds = median(step, 4, repeat)
        detail = {"first_step_s": round(first, 1)}
        if not TINY:
            detail["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        if "--profile" in sys.argv and name == "formers":
            profile(step)
        return Timing(name, seconds, tokens / seconds, detail)
    except Exception as error:  # one candidate that fails must not take the others with it
        print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return None


def profile(step: Callable[[], None], steps: int = 3) -> None:
    """Where the time goes: the kernels that take most of it, per step."""
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    kernels = [e for e in seen.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    total = sum(e.self_device_time_total for e in kernels)
    print(f"  {total / steps / 1e3:.2f} ms of kernels per step")
    for e in sorted(kernels, key=lambda e: -e.self_device_time_total)[:16]:
        own = e.self_device_time_total
        print(f"  {own / total:6.1%} {own / steps / 1e3:8.3f} ms {e.count // steps:4d}x {e.key[:100]}")


def ours(former: Any, part: str, batch: Batch) -> Callable[[], tuple[Any, Callable[[], torch.Tensor]]]:
    """A compiled step of ours."""

    def build() -> tuple[Any, Callable[[], torch.Tensor]]:
        f = former()
        step = torch.compile(Step(f.model.train(), Places(part)), fullgraph=True, mode="reduce-overhead")
        moved = batch.to(DEVICE)

        def loss() -> torch.Tensor:
            total, count = step(moved)[part]
            return total / count

        return f.model, loss

    return build


def theirs(
    model: Callable[[], Any], given: dict[str, torch.Tensor], compiled: bool
) -> Callable[[], tuple[Any, Callable[[], torch.Tensor]]]:
    """A step of the peer's, compiled or not."""

    def build() -> tuple[Any, Callable[[], torch.Tensor]]:
        made = model().to(DEVICE).train()
        run = torch.compile(made) if compiled else made
        moved = {key: value.to(DEVICE) for key, value in given.items()}
        return made, lambda: run(**moved).loss

    return build


def compare(
    work: str, tokens: int, peer: Callable[[], Any], given: dict[str, torch.Tensor], mine: Any, part: str, batch: Batch
) -> None:
    """The peer eager and compiled, then formers."""
    candidates = {}
    if "--no-peer" not in sys.argv:
        candidates = {"transformers": theirs(peer, given, False), "transformers compiled": theirs(peer, given, True)}
    candidates["formers"] = ours(mine, part, batch)
    timings = [t for name, build in candidates.items() if (t := timed(name, tokens, build)) is not None]
    say(work, timings)


def built(family: str, **settings: Any) -> Callable[[], Any]:
    """A model of ours on the device."""

    def make() -> Any:
        with torch.device(DEVICE):
            return formers.build(family, **settings)

    return make


def uniform(ids: torch.Tensor) -> Batch:
    """Rows of one length, each token predicted from those before it."""
    labels = torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], IGNORED)), 1)
    return Batch.of(ids).replace(labels=labels.flatten())


def gpt2() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    rows, columns = pick(32, 2), pick(1024, 32)
    ids = torch.randint(5, 50000, (rows, columns))
    small = pick({}, {"n_layer": 2, "n_embd": 64, "n_head": 2})
    quiet = {"attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0, "use_cache": False}
    mine = {"dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0} | pick(
        {}, {"layers": 2, "dim": 64, "heads": 2}
    )
    compare(
        "GPT-2 124M train 32×1024", rows * columns,
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=50304, n_positions=columns, **small, **quiet)),
        {"input_ids": ids, "labels": ids}, built("gpt2", vocab=50304, context=columns, **mine), "lm", uniform(ids),
    )  # fmt: skip


def bert() -> None:
    from transformers import BertConfig, BertForMaskedLM

    rows, columns = pick(64, 2), pick(512, 32)
    small = pick({}, {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128})
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.0}
    mine = {"dropout": 0.1, "attention_dropout": 0.0, "vocab": 30528} | pick(
        {}, {"layers": 2, "dim": 64, "heads": 2, "ff": 128}
    )
    g = torch.Generator().manual_seed(0)
    lengths = (torch.rand(rows, generator=g) * 2 * pick(180, 20)).long().clamp(8, columns)
    ids = torch.randint(5, 30000, (rows, columns))
    keep = torch.arange(columns)[None] < lengths[:, None]
    hidden = torch.rand(rows, columns) < 0.15
    for name, real in (("ragged", keep), ("full", torch.ones_like(keep))):
        labels = torch.where(hidden & real, ids, IGNORED)
        given = {"input_ids": ids, "labels": labels} | ({"attention_mask": real.long()} if name == "ragged" else {})
        compare(
            f"BERT-base MLM train 64×512 {name}", int(real.sum()),
            lambda: BertForMaskedLM(BertConfig(vocab_size=30528, **small, **rates)),
            given, built("bert", head="mlm", **mine), "mlm", packed(ids, real, labels),
        )  # fmt: skip


def packed(ids: torch.Tensor, keep: torch.Tensor, labels: torch.Tensor) -> Batch:
    """Rows packed to a multiple of 128 tokens (the rest is a dummy document), places to a multiple of 64."""
    whole = bool(keep.all())
    batch = Batch.of(ids, None if whole else keep)
    flat = labels[keep]
    chosen = (flat != IGNORED).nonzero().flatten()
    rest = -len(chosen) % 64
    chosen, answers = (
        torch.cat((chosen, chosen.new_zeros(rest))),
        torch.cat((flat[chosen], flat.new_full((rest,), IGNORED))),
    )
    fill = -len(batch.ids) % 128
    if fill:
        starts = torch.cat((batch.starts, batch.starts[-1:] + fill))
        ids = torch.cat((batch.ids, batch.ids.new_zeros(fill)))
        batch = batch.replace(ids=ids, starts=starts, longest=max(batch.longest, fill))
    return batch.replace(chosen=chosen, labels=answers, keep=None)


def t5() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    rows, columns, target = pick(32, 2), pick(512, 32), pick(128, 16)
    ids, labels = torch.randint(5, 30000, (rows, columns)), torch.randint(5, 30000, (rows, target))
    big = {"num_layers": 12, "d_model": 768, "d_ff": 3072, "num_heads": 12}
    small = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 2, "d_kv": 32}
    mine = pick({"preset": "t5-base"}, {"layers": 2, "dim": 64, "ff": 128, "heads": 2, "head_dim": 32})
    shifted = torch.cat((torch.zeros_like(labels[:, :1]), labels[:, :-1]), 1)
    batch = Batch.of(shifted, source=Batch.of(ids)).replace(
        chosen=torch.arange(labels.numel()), labels=labels.flatten()
    )
    settings = pick(big, small) | {"vocab_size": 32128, "decoder_start_token_id": 0, "dropout_rate": 0.1}
    compare(
        "T5-base train 32×(512+128)", rows * (columns + target),
        lambda: T5ForConditionalGeneration(T5Config(**settings)),
        {"input_ids": ids, "labels": labels}, built("t5", **mine), "lm", batch,
    )  # fmt: skip


WORKS = {"gpt2": gpt2, "bert": bert, "t5": t5}


def main() -> None:
    """Run the works that are named, or all."""
    import transformers

    print(machine() | {"transformers": transformers.__version__}, flush=True)
    for name in [word for word in sys.argv[1:] if word in WORKS] or WORKS:
        WORKS[name]()


if __name__ == "__main__":
    main()
