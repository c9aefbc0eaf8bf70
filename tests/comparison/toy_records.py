"""Records of a comparison that nobody ran, with numbers that can be chosen."""

from __future__ import annotations

from formers.comparison.records import Record

BUDGETS = ("epochs-10", "flops-bert")
KINDS = {"bert": "masked", "roberta": "masked", "albert": "masked", "gpt2": "causal", "bloom": "causal",
         "transformer_xl": "causal", "t5": "encoder-decoder", "xlnet": "other"}  # fmt: skip


def make_plan(family, **more):
    plan = {
        "kind": KINDS[family], "objective": "causal", "layers": 4, "decoder_layers": 0, "dim": 64, "unrolled": 1000,
        "body": 1000, "parameters": 5000, "flops_per_token": 6000.0, "step_tokens": 100.0, "step_flops": 6e5,
        "epoch_steps": 10, "note": "", "tokenizer": "bpe",
    }  # fmt: skip
    return Record(f"plan/{family}", "plan", "done", family, result={**plan, **more})


def make_pretrain(family, seed=0, budget="epochs-10", loss=3.0):
    result = {
        "steps": 100, "epochs": 10.0, "tokens": 1e4, "flops": 6e7, "train_seconds": 60.0, "lr": 1e-3, "factor": 1.0,
        "loss": loss, "is_capped": False, "curve": [[10, loss + 1], [100, loss]],
    }  # fmt: skip
    return Record(f"pretrain/{budget}/{family}/seed{seed}", "pretrain", "done", family, budget, seed, result=result)


def make_score(family, bits, seed=0, budget="epochs-10", sentences=None):
    parts = {"documents": bits, "sentences": bits if sentences is None else sentences}
    result = {name: {"bits_byte": value, "perplexity": 2.0**value} for name, value in parts.items()}
    job = f"score/{budget}/{family}/seed{seed}"
    return Record(job, "score", "done", family, budget, seed, result={"kind": KINDS[family], **result})


def make_tune(family, score, seed=0, budget="epochs-10", task="reviews"):
    result = {"metric": "accuracy", "score": score, "baseline": {"accuracy": 0.6}, "majority": {"accuracy": 0.5}}
    job = f"tune/{budget}/{family}/seed{seed}/{task}"
    return Record(job, "tune", "done", family, budget, seed, task, result=result)


def make_race(scores, **bits):
    """Make the records of families with these fine-tuning scores (one for each seed), and bits per byte of some."""
    records = []
    for family, values in scores.items():
        records.append(make_plan(family))
        for seed, value in enumerate(values):
            records += [make_pretrain(family, seed), make_tune(family, value, seed)]
            if family in bits:
                records.append(make_score(family, bits[family], seed))
    return records
