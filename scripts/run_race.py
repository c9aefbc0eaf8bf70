"""Run the race of docs/en/race.md on one GPU, or see that all of it works on a CPU:

    python scripts/run_race.py plan CORPORA DATA --out race     # anywhere: the text, the tokenizers, the models' sizes
    python scripts/run_race.py run CORPORA DATA --out race --together 8 --minutes 24
    python scripts/run_race.py speed CORPORA DATA --out race    # afterwards: a few steps of each family, alone
    python scripts/run_race.py plan CORPORA DATA --out tiny --tiny; python scripts/run_race.py run … --out tiny --tiny

CORPORA is the folder of scripts/prepare_corpora.py, DATA that of the evaluation sets. `plan` prints the steps, the
tokens and the operations of every run and trains nothing. What it made can be taken to another machine: comparison.json
and records, without which it is done again, and data/*/tokenizer, without which the tokenizers are trained again; token
stores are made anew there, in seconds. `run` continues what was stopped, with the same command. Needs formers' core
dependencies, without the command line's.

Why these settings: 22 families, two budgets and three seeds for five families are 64 pretraining runs. At 10 epochs of
10 million words, with bodies of 8 million parameters, they take an H200 more than an hour. Here they are to take 25
minutes, starts and fine-tuning included:

- Bodies of 3.15 million parameters in 4 layers (256 wide), batches of 32,768 tokens. A step
  then has 5 to 8 ms of work for the GPU if it is compiled, more than it takes to launch it; of smaller batches the GPU
  would see little but launches. Each process compiles its own model while the others train.
- Budget A is 3 epochs of 10 million words: 1,467 steps of GPT-2, 1,740 of BERT.
- Two learning rates are tried, the recipe's and twice as much: the recipes were chosen for smaller batches.
- A run is evaluated every 500 steps on an eighth of a million tokens, and saved at its end alone. One that is killed
  begins again; one that is asked to stop is saved.
- Three tasks with 8,000 examples at most: sentiment (sst2), kinds of questions (trec) and inference between two
  sentences (snli, whose test examples are cut to 2,000). CoLA is left out: the published BERT of 4 layers of 256 has
  a correlation of 0 there (Turc et al. 2019), after far more text.
- ELMo, whose steps follow one another in time, is the slowest by far and comes first.
"""

from __future__ import annotations

import argparse
import lzma
import os
import time
from pathlib import Path

import formers
from formers.comparison.api import PLAN_COLUMNS, plan_comparison

FAMILIES = (
    "elmo", "bert", "gpt2", "t5", "albert", "transformer_xl", "roberta", "xlnet", "gptj", "bloom", "gpt_neox", "switch",
    "gpt_neo", "gpt3", "gpt", "ernie", "bart", "mbart", "mt5", "seq2seq", "gnmt", "transformer",
)  # fmt: skip
HEADLINE = ("bert", "gpt2", "t5", "albert", "transformer_xl")
TEXTS = ("wikipedia", "books", "addresses")  # of CORPORA
SETTINGS = {
    "budgets": ("epochs:3", "flops:bert"), "words": 10_000_000, "body_size": 3_150_000, "layers": 4, "seq_length": 128,
    "batch_tokens": 32_768, "vocab_size": 8000, "lr_factors": (1.0, 2.0), "headline": HEADLINE, "measure_speed": False,
    "tune_batch_size": 64,
    # compile None: on a GPU alone
    "train": {"compile": None, "eval_every": 500, "eval_batches": 4, "save_every": 1_000_000},
}  # fmt: skip
SMALL = {  # --scale cpu
    **SETTINGS, "budgets": ("epochs:2", "flops:bert"), "words": 300_000, "body_size": 200_000, "layers": 2,
    "seq_length": 64, "batch_tokens": 2048, "vocab_size": 2000, "tune_batch_size": 32, "tolerance": 0.1,
    "score_characters": 100_000, "masked_characters": 10_000,
    "train": {"compile": None, "eval_every": 200, "eval_batches": 4, "save_every": 1_000_000},
}  # fmt: skip
TINY_FAMILIES, TINY_HEADLINE = ("elmo", "bert", "gpt2"), ("gpt2",)
TINY = {
    **SETTINGS, "budgets": ("epochs:0.3", "flops:bert"), "words": 60_000, "body_size": 80_000, "layers": 2,
    "seq_length": 32, "batch_tokens": 1024, "vocab_size": 600, "headline": TINY_HEADLINE, "headline_seeds": 2,
    "tune_epochs": 1.0, "tolerance": 0.25, "score_characters": 4000, "masked_characters": 400,
    "train": {"compile": None, "eval_every": 20, "eval_batches": 1, "save_every": 1_000_000},
}  # fmt: skip
TASKS = (("trec", "classify"), ("snli", "pair"))  # beside sst2, with their folders
SMALL_TASKS = TASKS[:1]  # after so little text, all families would stay near chance with pairs of sentences
MAX_TRAIN_ROWS, MAX_TEST_ROWS, SMALL_TRAIN_ROWS = 8000, 2000, 3000  # of a task


def read_rows(path: Path, most: int | None = None) -> list[dict[str, str]]:
    """Return the first rows of a compressed table."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        header, *lines = (line.rstrip("\n").split("\t") for line in file)
    rows = [dict(zip(header, line, strict=True)) for line in lines if len(line) == len(header)]
    return rows[:most]


def list_tasks(data: Path, tiny: bool, scale: str = "gpu") -> dict[str, dict[str, list[dict[str, str]]]]:
    """Return the examples of the tasks. Validation examples that a task lacks are taken from the training examples."""
    sources, max_rows = (TASKS, MAX_TRAIN_ROWS) if scale == "gpu" else (SMALL_TASKS, SMALL_TRAIN_ROWS)
    most = 80 if tiny else None
    files = {"train": "train", "valid": "dev", "test": "test"}
    sst2 = {part: read_rows(data / f"classify/sst2.{name}.tsv.xz", most) for part, name in files.items()}
    tasks = {"sst2": {**sst2, "train": sst2["train"][:max_rows], "test": sst2["test"][:MAX_TEST_ROWS]}}
    for name, place in sources:
        train = read_rows(data / place / f"{name}.train.tsv.xz", most)
        share = max(1, min(1000, len(train) // 8))
        test = read_rows(data / place / f"{name}.test.tsv.xz", most or MAX_TEST_ROWS)
        tasks[name] = {"train": train[share:][:max_rows], "valid": train[:share], "test": test}
    return tasks


def main() -> None:
    """Plan or run the race."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("plan", "run", "speed"))
    parser.add_argument("corpora", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--together", type=int, default=1, help="processes that work at once")
    parser.add_argument("--minutes", type=float, help="stop after so many, and save")
    parser.add_argument("--tiny", action="store_true", help="three families, very small, to see that everything runs")
    parser.add_argument("--scale", choices=("gpu", "cpu"), default="gpu", help="cpu: what one core does in two hours")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, help="these alone")
    asked = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # of each process
    began, settings = time.perf_counter(), dict(TINY if asked.tiny else SMALL if asked.scale == "cpu" else SETTINGS)
    if asked.stage == "speed":
        settings["measure_speed"] = True

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - began:5.0f} s] {text}", flush=True)

    families = asked.families or list(TINY_FAMILIES if asked.tiny else FAMILIES)
    texts = [asked.corpora / f"{name}.train.txt.xz" for name in TEXTS]
    tasks = list_tasks(asked.data, asked.tiny, asked.scale)
    common = {"out": asked.out, "tasks": tasks, "together": asked.together, "say": say}
    if asked.stage == "plan":
        rows, notes = plan_comparison(families, texts, **common, **settings)
        for row in (PLAN_COLUMNS, *rows):
            print("  ".join(f"{cell:>14}" for cell in row))
        for note in notes:
            print(note)
        return
    done = formers.compare(families, texts, minutes=asked.minutes, **common, **settings)
    for job, why in {**done.outcome.refused, **done.outcome.failed}.items():
        print(f"{job}: {why}")
    say(f"{len(done.outcome.done)} jobs done, {done.num_left} left: {done.report}")


if __name__ == "__main__":
    main()
