"""The works behind benchmarks/claims.py: what is trained and measured for one arm of a claim with one seed."""

from __future__ import annotations

import itertools
import json
import lzma
import math
import os
import random
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import formers
from benchmarks.claims import Scale, complete_settings
from benchmarks.loop import read_documents
from formers.config import get_schema
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.data.store import Store
from formers.evaluation.likelihood import compute_id_log_probs
from formers.experiments.why_attention import make_pairs, measure_accuracy
from formers.inspection.objective_steps import build_pair_store
from formers.interop.tokenizer_files import load_tokenizer
from formers.models import gnmt
from formers.objectives.registry import build_objective
from formers.registry import find_family, train_tokenizer
from formers.text.tokenizer import Tokenizer
from formers.training.recipes import has_post_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RECURRENT_FAMILIES = ("seq2seq", "gnmt", "elmo")  # compiled, an LSTM is unrolled step by step
UNIGRAM_BATCHES = 60  # of validation, for the loss of token frequencies
TOKENIZER_LINES = 12_000  # of the text: about two million characters of articles
RUN_SETTINGS = (  # what makes a model
    "family", "model", "objective", "train", "steps", "step_share", "length_share", "plain_layers",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """One arm with one seed: the scale, where to write, where the data is, and the arm's settings."""

    scale: Scale
    scale_name: str
    seed: int
    folder: Path  # of all works: prepared text is kept here
    data: Path
    text: Path | None  # a file or folder of other English text (*.txt, *.txt.xz), in place of WikiText-2
    claim: str
    arm: Mapping[str, Any]

    @property
    def length(self) -> int:
        """Tokens of a training example."""
        return int(self.scale.length * self.arm.get("length_share", 1))

    def name_run(self, part: str, *settings: str) -> Path:
        """Return the folder of a run; arms with the same settings in these tables share it."""
        code = zlib.crc32(json.dumps([self.arm.get(name) for name in settings]).encode())
        return self.folder / f"{self.scale_name}-{self.claim}-{self.seed}" / f"{part}-{code:08x}"

    def prepare_text(self, family: str, corpus: str = "english") -> Path:
        """Return a token store of a corpus for a family's tokenizer; made once, for all works of a scale."""
        where = self.folder / f"{self.scale_name}-{corpus}-{family}"
        if (where / "done").is_file():
            return where / "store"
        texts = self.read_corpus(corpus)
        made = where.with_name(f"{where.name}.{os.getpid()}")  # another process may be making the same
        made.mkdir(parents=True)
        sample = itertools.islice((line for text in texts for line in text.split("\n")), TOKENIZER_LINES)
        tokenizer = train_tokenizer(family, sample, self.scale.vocab)
        units = {"units": "learn"} if corpus == "korean" else {}
        formers.prepare(texts, tokenizer, made / "store", validation=0.05, **units)
        (made / "done").touch()
        try:
            made.rename(where)
        except OSError:
            shutil.rmtree(made)
        return where / "store"

    def read_corpus(self, corpus: str) -> list[str]:
        """Read documents up to the scale's size: Korean reviews (thirty to a document), or English articles."""
        if corpus == "korean":
            lines = read_lines(self.data / "lm" / "movie_reviews_ko.txt.xz")
            texts = ["\n".join(lines[i : i + 30]) for i in range(0, len(lines), 30)]
        elif self.text is not None:
            files = sorted(self.text.glob("*.txt*")) if self.text.is_dir() else [self.text]
            texts = [text for file in files for text in read_whole(file).split("\n\n") if text.strip()]
        else:
            texts = read_documents(by_paragraph=False)
        sizes = np.cumsum([len(text) for text in texts])
        kept = texts[: int(np.searchsorted(sizes, self.scale.characters)) + 1]
        return kept if len(kept) >= 30 else split_texts(kept)

    def read_rows(self, name: str) -> list[list[str]]:
        """Read a table of the data folder without its header."""
        lines = read_lines(self.data / f"{name}.tsv.xz")[1:]
        return [row for row in (line.split("\t") for line in lines) if len(row) == 2 and all(map(str.strip, row))]

    def pretrain(
        self, family: str, text: Path | Store, part: str, *, steps: int | None = None, valid: Store | None = None,
        tokenizer: Tokenizer | None = None, longer: int = 1, **more: Any,
    ) -> Any:  # fmt: skip
        """Train a model of a family; settings of the arm (model, objective, train) win over those of the scale."""
        s = self.scale
        steps = steps or int(s.steps * longer * self.arm.get("step_share", 1))
        known = get_schema(find_family(family).definition.config_class)
        model: dict[str, Any] = (
            {} if more.get("init") else {**s.sizes, "context": self.length * self.arm.get("context", 1), "dropout": 0.0}
        )
        model |= {} if more.get("init") else {"attention_dropout": 0.0, "embed_dropout": 0.0}
        model |= {} if more.get("init") else {"embed": s.dim if family == "seq2seq" else s.dim // 2}  # ALBERT: narrow
        model |= {} if more.get("init") else {"sparse": s.layers // 2}  # Switch: experts in every other layer
        model = {key: value for key, value in model.items() if key in known} | dict(self.arm.get("model", {}))
        train = {
            "steps": steps, "batch_tokens": s.rows * s.length * longer, "accumulate": 1, "seq_length": self.length,
            "short_length": None, "optimizer": "adamw", "lr": self.choose_rate(family), "schedule": "linear",
            "warmup_steps": max(1, steps // 10), "weight_decay": 0.01, "seed": self.seed, "eval_every": 10 * steps,
            "save_every": 10 * steps, "eval_batches": 60, "samples": 0,
            "workers": int(DEVICE == "cuda"),  # a step of a GPU takes as long as making its batch
            "compile": False if family in RECURRENT_FAMILIES else None,  # None: on a GPU
            **self.arm.get("train", {}),
        }  # fmt: skip
        overrides = {f"train.{key}": value for key, value in train.items()}
        overrides |= {f"model.{key}": value for key, value in model.items()}
        objective = more.pop("objective", self.arm.get("objective", {}))
        overrides |= {f"objective.{key}": value for key, value in objective.items()}
        return formers.pretrain(
            family, text, out=self.name_run(part, *RUN_SETTINGS), overwrite=True, overrides=overrides, device=DEVICE,
            **({} if valid is None else {"valid": valid, "tokenizer": tokenizer}), **more,
        )  # fmt: skip

    def choose_rate(self, family: str) -> float:
        """Return the highest learning rate: blocks with their norms after the sums tolerate less at a GPU's width."""
        is_post = has_post_norm(find_family(family).definition, self.arm.get("model", {}))
        return 7e-4 if is_post and self.scale.dim > 128 else 1e-3

    def prepare_pairs(self, family: str, name: str, swap: bool = False) -> tuple[Tokenizer, Store, Store]:
        """Return a tokenizer of a family and the pairs of a table in the data folder, for training and validation."""
        parts = {"translate/multi30k": ("train.en-de", "val.en-de"), "summarise/email_subject": ("train", "dev")}
        pairs = [self.read_rows(f"{name}.{part}") for part in parts[name]]
        pairs[0] = pairs[0][: 200 * self.scale.examples // 24] if self.scale_name == "dry" else pairs[0]
        lines = [["\t".join(cut_words(row[::-1] if swap else row, 80)) for row in some] for some in pairs]
        where = self.folder / f"{self.scale_name}-{name.replace('/', '-')}-{family}.json"
        if not where.is_file():
            made = train_tokenizer(family, [side for line in lines[0] for side in line.split("\t")], self.scale.vocab)
            partial = where.with_name(f"{where.name}.{os.getpid()}")
            partial.write_text(made.json_text, encoding="utf-8")
            partial.rename(where)
        tokenizer = load_tokenizer(where)
        return tokenizer, build_pair_store(lines[0], tokenizer), build_pair_store(lines[1][:1000], tokenizer)


def read_lines(path: Path) -> list[str]:
    """Read the lines of a packed text file."""
    return read_whole(path).split("\n")


def read_whole(path: Path) -> str:
    """Read a text file, packed or not."""
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as stream:
        return stream.read()


def split_texts(texts: list[str], size: int = 4000) -> list[str]:
    """Cut few long texts into many, at the ends of lines, so that some can be held out."""
    cut: list[str] = []
    for text in texts:
        part: list[str] = []
        for line in text.split("\n"):
            part.append(line)
            if sum(map(len, part)) >= size:
                cut.append("\n".join(part))
                part = []
        cut += ["\n".join(part)] if part else []
    return cut


def cut_words(row: list[str], words: int) -> list[str]:
    """Cut every text of a row to so many words."""
    return [" ".join(text.split()[:words]) for text in row]


def measure_text_loss(work: Work) -> dict[str, float]:
    """Pretrain on English; the validation loss in nats a token."""
    store = work.prepare_text(work.arm.get("tokenizer", work.arm["family"]))
    run = work.pretrain(work.arm["family"], store, "pretrain")
    value = run.score.metrics[work.arm["metric"]] if "metric" in work.arm else run.score.loss
    return {
        "value": float(value), "unigram loss": compute_unigram_loss(work, store),
        "parameters": sum(p.numel() for p in run.former.model.parameters()),
    }  # fmt: skip


def compute_unigram_loss(work: Work, store: Path) -> float:
    """Return the loss, in nats a label, on the validation text, of predicting by the training text's token frequencies
    alone; labels that no text has (sentinels) cost nothing. A model whose loss is no lower has learned nothing else."""
    text, held = Store.open(store), Store.open(store, "validation")
    options = complete_settings(work.arm)["objective"]
    objective = build_objective(
        options["name"],
        load_tokenizer(store / "tokenizer.json"),
        work.length,
        **{k: v for k, v in options.items() if k != "name"},
    )
    batches = load_batches(TokenSource(held, objective), work.scale.rows * work.length, epochs=1)
    labels = np.concatenate([objective.select_labels(batch) for batch, _ in itertools.islice(batches, UNIGRAM_BATCHES)])
    counts = np.bincount(np.asarray(text.tokens), minlength=text.vocab)
    losses = np.where(counts > 0, -np.log(np.maximum(counts, 1) / counts.sum()), 0.0)
    return float(losses[labels].mean())


def measure_extrapolation(work: Work) -> dict[str, float]:
    """Train on windows of a length; the loss on windows `factor` times as long, less that at the length itself."""
    store = work.prepare_text(work.arm.get("tokenizer", work.arm["family"]))
    run = work.pretrain(work.arm["family"], store, "pretrain")
    held = Store.open(store, "validation")
    ids = np.asarray(held.tokens[: 400 * work.scale.length]).astype(np.int64)
    former = formers.load(run.folder / "model", device=DEVICE)
    losses = []
    for factor in (1, work.arm["factor"]):
        length = factor * work.length
        rows = [ids[i : i + length] for i in range(0, len(ids) - length, length)]
        logs = compute_id_log_probs(former, rows)
        # The last quarter of a window: tokens with a long context before them.
        losses.append(-float(torch.cat([row[-length // 4 :] for row in logs]).double().mean()))
    return {
        "value": losses[1] - losses[0], "loss at the length": losses[0], "loss beyond it": losses[1],
        "unigram loss": compute_unigram_loss(work, store),
    }  # fmt: skip


def measure_reversal(work: Work) -> dict[str, float]:
    """Train an encoder-decoder to reverse symbols; the accuracy on the longest sequences that it was trained on."""
    s, draw = work.scale, random.Random(work.seed)
    count = 60 * s.rows
    pairs = [pair for _ in range(count) for pair in make_pairs("reverse", draw.randint(2, s.symbols), 1, draw)]
    tests = make_pairs("reverse", s.symbols, 100, draw)
    tokenizer = train_tokenizer("seq2seq", [side for pair in pairs for side in pair], 400)
    stores = [build_pair_store(["\t".join(pair) for pair in some], tokenizer) for some in (pairs, tests)]
    run = work.pretrain("seq2seq", stores[0], "pretrain", valid=stores[1], tokenizer=tokenizer)
    former = run.former
    former.model.eval()
    short = make_pairs("reverse", 3, 100, draw)
    return {"value": measure_accuracy(former, tests), "at 3 symbols": measure_accuracy(former, short)}


def measure_translation(work: Work) -> dict[str, float]:
    """Train German to English on Multi30k; the perplexity of the validation sentences."""
    tokenizer, store, valid = work.prepare_pairs("seq2seq", "translate/multi30k", swap=True)
    plain = gnmt.PLAIN_LAYERS
    gnmt.PLAIN_LAYERS = work.arm.get("plain_layers", plain)  # layers below this one have no residual connection
    try:
        run = work.pretrain(
            work.arm["family"], store, "pretrain", steps=work.scale.tune_steps, valid=valid, tokenizer=tokenizer
        )
    finally:
        gnmt.PLAIN_LAYERS = plain
    return {"value": math.exp(min(20.0, run.score.loss)), "loss": run.score.loss}


def measure_titles(work: Work) -> dict[str, float]:
    """Pretrain on English, then learn the subject lines of e-mails; the perplexity of the validation titles."""
    family = work.arm["family"]
    store = work.prepare_text(family)
    run = work.pretrain(family, store, "pretrain", longer=work.scale.longer)
    tokenizer = run.former.tokenizer
    rows = [work.read_rows(f"summarise/email_subject.{part}") for part in ("train", "dev")]
    rows[0] = rows[0][: 2 * work.scale.examples]
    pairs = [build_pair_store(["\t".join(cut_words(row, 60)) for row in some], tokenizer) for some in rows]
    tuned = work.pretrain(
        family, pairs[0], "titles", steps=work.scale.tune_steps, valid=pairs[1], tokenizer=tokenizer,
        init=run.folder / "model", objective={"name": "seq2seq"},
    )  # fmt: skip
    return {"value": math.exp(min(20.0, tuned.score.loss)), "pretraining loss": run.score.loss}


def measure_transfer(work: Work) -> dict[str, float]:
    """Pretrain, then learn to classify; the accuracy on the test. An arm with `steps: 1` is hardly pretrained."""
    arm, s = work.arm, work.scale
    korean = arm.get("corpus") == "korean"
    store = work.prepare_text(arm.get("tokenizer", arm["family"]), arm.get("corpus", "english"))
    folder = work.name_run("pretrain", *RUN_SETTINGS)  # arms that differ in fine-tuning alone share it
    if not (folder / "model").is_dir():
        work.pretrain(arm["family"], store, "pretrain", steps=arm.get("steps"), longer=work.scale.longer)
    table = arm.get("table", "classify/nsmc" if korean else "classify/sst2")
    parts = [work.read_rows(f"{table}.{one}") for one in ("train", "test")]
    draw = random.Random(0)  # the same rows for every seed and arm
    rows = [
        [{"text": text, "label": label} for text, label in draw.sample(some, min(most, len(some)))]
        for some, most in zip(parts, (s.examples, s.tests), strict=True)
    ]
    result = formers.finetune(
        folder / "model", rows[0], test=rows[1], task="classify", out=work.name_run("task", *arm), overwrite=True,
        device=DEVICE, overrides={
            "tune.epochs": s.epochs, "tune.baseline": False, "train.seed": work.seed, "train.compile": False,
            "train.samples": 0, "data.valid_fraction": 0.1, **arm.get("tune", {}),
        },
    )  # fmt: skip
    return {"value": 100 * result.test["accuracy"], "validation": 100 * result.valid["accuracy"]}


WORKS: dict[str, Callable[[Work], dict[str, float]]] = {
    "text loss": measure_text_loss, "extrapolation": measure_extrapolation, "reversal": measure_reversal,
    "translation": measure_translation, "titles": measure_titles, "transfer": measure_transfer,
}  # fmt: skip
