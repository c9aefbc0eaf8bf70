"""Does the training loop itself have a part in a run that learns nothing? One BERT, the same token store, the same
batches and the same settings, trained three ways: by `formers.pretrain`, by a plain loop over our model, and by a plain
loop over transformers' model with our initial weights.

    formers prepare articles.jsonl --tokenizer TOKENIZER --out wiki        # and wiki-valid from other articles
    python -m benchmarks.plain_loop wiki wiki-valid --lr 4e-4 --seeds 0 1 2

Prints the validation loss of the masked tokens over steps, a line for each run. A GPU takes one run at a time or all
together (--together).
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import formers
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.data.store import Store
from formers.interop.tokenizer_files import load_tokenizer
from formers.objectives.registry import build_objective
from formers.training.validation import compute_unigram_baseline

MODEL_SIZES = {"dim": 512, "layers": 12, "heads": 8, "ff": 2048, "context": 128, "init": 0.02, "dropout": 0.0,
         "attention_dropout": 0.0}  # fmt: skip
SEQ_LENGTH, BATCH_TOKENS, EVAL_EVERY, EVAL_BATCHES = 128, 32_768, 250, 8


def build_train_settings(lr: float, steps: int, warmup: int, seed: int) -> dict[str, Any]:
    """The `train:` table of the run, and what the plain loops follow."""
    return {"steps": steps, "batch_tokens": BATCH_TOKENS, "seq_length": SEQ_LENGTH, "lr": lr, "schedule": "linear",
            "warmup_steps": warmup, "weight_decay": 0.01, "betas": (0.9, 0.98), "eps": 1e-8, "grad_clip": 1.0,
            "seed": seed, "eval_every": EVAL_EVERY, "eval_batches": EVAL_BATCHES, "save_every": steps, "samples": 0,
            "workers": 1}  # fmt: skip


def train_with_formers(folders: list[str], train: dict[str, Any], size: dict[str, Any]) -> list[tuple[int, float]]:
    """`formers.pretrain` with its own loop."""
    with tempfile.TemporaryDirectory() as out:
        run = formers.pretrain(
            "bert", Store.open(folders[0]), valid=Store.open(folders[1]), tokenizer=load_tokenizer(folders[0]),
            out=Path(out) / "run", model=size, train=train,
        )  # fmt: skip
        return [(row["step"], row["valid"]["mlm"]) for row in run.history if "valid" in row]


def train_with_plain_loop(
    folders: list[str], train: dict[str, Any], size: dict[str, Any], peer: bool = False
) -> list[tuple[int, float]]:
    """The loop of a tutorial: AdamW, a linear schedule, bf16, clipping, cross-entropy of both parts."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    store, valid = Store.open(folders[0]), Store.open(folders[1])
    tokenizer = load_tokenizer(folders[0])
    goal, seed = build_objective("nsp", tokenizer, SEQ_LENGTH), train["seed"]
    config = {**size, "vocab": len(tokenizer), **{role: tokenizer.id(role) for role in ("pad", "bos", "eos")}}
    former = formers.build("bert", head="pretraining", seed=seed, **config)
    forward = (TransformersForward if peer else FormersForward)(former, device)
    parameters = [p for p in forward.parameters if p.requires_grad]
    groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": train["weight_decay"]},
              {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0}]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=train["lr"], betas=train["betas"], eps=train["eps"])
    valid_batches = [
        b
        for b, _ in itertools.islice(
            load_batches(TokenSource(valid, goal), train["batch_tokens"], seed + 1, epochs=1), EVAL_BATCHES
        )
    ]
    rows, source = [], load_batches(TokenSource(store, goal), train["batch_tokens"], seed, workers=1)
    for step in range(train["steps"]):
        batch = next(source)[0].to(device)
        warm, rest = (
            (step + 1) / train["warmup_steps"],
            (train["steps"] - step) / (train["steps"] - train["warmup_steps"]),
        )
        for group in optimizer.param_groups:
            group["lr"] = train["lr"] * (warm if step < train["warmup_steps"] else rest)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            mlm, nsp = forward(batch)
        loss = F.cross_entropy(mlm.float(), batch.labels) + F.cross_entropy(nsp.float(), batch.document_labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, train["grad_clip"])
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % EVAL_EVERY == 0 or step + 1 == train["steps"]:
            rows.append((step + 1, measure_mlm_loss(forward, valid_batches, device)))
    return rows


@torch.no_grad()
def measure_mlm_loss(forward: Any, valid_batches: list[Any], device: str) -> float:
    """The mean loss of all masked tokens of some batches."""
    total, count = 0.0, 0
    for one in valid_batches:
        batch = one.to(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            mlm, _ = forward(batch)
        total += float(F.cross_entropy(mlm.float(), batch.labels, reduction="sum"))
        count += int((batch.labels >= 0).sum())
    return total / count


class FormersForward:
    """Our model: packed tokens in, logits of the masked places and of the pairs out."""

    def __init__(self, former: Any, device: str):
        self.model = former.model.to(device)
        self.parameters = list(self.model.parameters())
        self.compiled_run = (
            torch.compile(self.compute_logits, dynamic=False) if device == "cuda" else self.compute_logits
        )

    def compute_logits(self, batch: Any) -> tuple[Any, Any]:
        """One pass."""
        hidden = self.model(batch)
        masked = self.model.logits(hidden.index_select(0, batch.chosen), part="mlm")
        return masked, self.model.logits(hidden, batch, part="nsp")

    def __call__(self, batch: Any) -> tuple[Any, Any]:
        return self.compiled_run(batch)


class TransformersForward:
    """transformers' BERT with the same initial weights, on padded rows of the same tokens."""

    def __init__(self, former: Any, device: str):
        from transformers import BertForPreTraining

        with tempfile.TemporaryDirectory() as folder:
            formers.export(former, folder)
            self.model: Any = BertForPreTraining.from_pretrained(folder).to(device).train()
        self.parameters = list(self.model.parameters())

    def __call__(self, batch: Any) -> tuple[Any, Any]:
        layout = batch.layout
        ids, segments, keep = (layout.unpack(x) for x in (batch.ids, batch.segments, torch.ones_like(batch.ids)))
        out = self.model(input_ids=ids, token_type_ids=segments, attention_mask=keep)
        return layout.pack(out.prediction_logits)[batch.chosen], out.seq_relationship_logits


TRAINING_LOOPS = {
    "formers": train_with_formers,
    "plain": train_with_plain_loop,
    "transformers": lambda *a: train_with_plain_loop(*a, peer=True),
}


def run_job(job: tuple[str, list[str], dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """A run in a process of its own."""
    way, folders, train, size = job
    began = time.perf_counter()
    curve = TRAINING_LOOPS[way](folders, train, size)
    row = {"way": way, "lr": train["lr"], "init": size["init"], "seed": train["seed"]}
    seconds = round(time.perf_counter() - began, 1)
    return {**row, "seconds": seconds, "curve": [(step, round(loss, 4)) for step, loss in curve]}


def main() -> None:
    """All ways and seeds; a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("valid")
    parser.add_argument("--lr", type=float, nargs="+", default=[4e-4])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--init", type=float, default=MODEL_SIZES["init"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--ways", nargs="+", choices=TRAINING_LOOPS, default=["formers", "plain"])
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the script")
    given = parser.parse_args()
    size = {
        **MODEL_SIZES,
        "init": given.init,
        **({"dim": 32, "layers": 2, "heads": 2, "ff": 64} if given.small else {}),
    }
    store, valid = Store.open(given.store), Store.open(given.valid)
    goal = build_objective("nsp", load_tokenizer(given.store), SEQ_LENGTH)
    valid_batches = [
        b for b, _ in itertools.islice(load_batches(TokenSource(valid, goal), BATCH_TOKENS, 1, epochs=1), EVAL_BATCHES)
    ]
    print(
        json.dumps(
            {
                "tokens": len(store.tokens),
                "unigram": round(compute_unigram_baseline(store, goal, valid_batches).loss, 4),
            }
        ),
        flush=True,
    )
    jobs = [
        (way, [given.store, given.valid], build_train_settings(lr, given.steps, given.warmup, seed), size)
        for lr in given.lr for seed in given.seeds for way in given.ways
    ]  # fmt: skip
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.together, mp_context=spawn, max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(run_job, job) for job in jobs]):
            print(json.dumps(done.result()), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
