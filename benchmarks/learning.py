"""Do they learn what the papers say? Four runs on real text, each within ten minutes on one GPU.

    python -m benchmarks.learning shakespeare wikitext2 --out runs/learning
    python -m benchmarks.learning enwik8 bert --enwik8 enwik8.gz --set train.steps=5000

Data: FORMERS_DATA (tinyshakespeare, WikiText-2), and --enwik8, the file as gzip. A run that is cut off continues with
the same command.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import lzma
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import formers
from formers.batch import Batch
from formers.data.store import Store
from formers.evaluation.likelihood import compute_id_log_probs
from formers.models import transformer_xl
from formers.registry import train_tokenizer
from formers.text.tokenizer import Tokenizer
from formers.text.word_level import train_words as train_words

BYTE_VOCAB_SIZE = 257  # a byte-level tokenizer that has learned nothing: every character of ASCII is a token


def read_text(name: str) -> str:
    """A text of the data folder."""
    return lzma.open(Path(os.environ["FORMERS_DATA"]) / "lm" / f"{name}.txt.xz", "rt", encoding="utf-8").read()


def build_byte_tokenizer() -> tuple[Tokenizer, np.ndarray]:
    """A tokenizer of bytes, and the id of each byte."""
    made = train_tokenizer("bpe", ["a"], BYTE_VOCAB_SIZE, style="gpt2")
    codes = np.zeros(256, np.uint16)
    for i in range(len(made)):
        raw = b"".join(made.decode_bytes([i], True))
        if len(raw) == 1:
            codes[raw[0]] = i
    return made, codes


def build_store(ids: np.ndarray, tokenizer: Tokenizer) -> Store:
    """One long document."""
    return Store(ids, np.array([0, len(ids)]), len(tokenizer), tokenizer.fingerprint)


def train_shakespeare(out: Path, **more: Any) -> dict[str, Any]:
    """Characters; the first nine tenths are for training. Published: 1.4697 nats (6 x 384)."""
    text = read_text("tinyshakespeare").encode()
    tokenizer, codes = build_byte_tokenizer()
    ids = codes[np.frombuffer(text, np.uint8)]
    cut = int(0.9 * len(ids))
    model = {"dim": 384, "layers": 6, "heads": 6, "context": 256, "ff": 1536, "dropout": 0.2, "attention_dropout": 0.2,
             "embed_dropout": 0.2}  # fmt: skip
    run = formers.pretrain(
        "gpt2", build_store(ids[:cut], tokenizer), valid=build_store(ids[cut:], tokenizer), tokenizer=tokenizer,
        out=out, resume=True, model=model, train={
            "steps": 4000, "batch_tokens": 64 * 256, "seq_length": 256, "lr": 1e-3, "schedule": "cosine",
            "warmup_steps": 100, "weight_decay": 0.1, "betas": (0.9, 0.99), "eval_every": 250, "eval_batches": 100,
            "save_every": 250, "ema": 0.998, "workers": 4}, **more)  # fmt: skip
    return {"held-out nats": measure_loss(run, ids[cut:], 256), "curve": get_loss_curve(run)}


def measure_loss(run: Any, ids: np.ndarray, length: int) -> float:
    """The saved model on all validation text, in windows of `length`, in single precision."""
    f = formers.load(run.folder / "model", device="cuda" if torch.cuda.is_available() else "cpu")
    rows = torch.from_numpy(ids[: (len(ids) - 1) // length * length + 1].astype(np.int64)).to(f.device)
    total = 0.0
    with torch.inference_mode():
        for x, y in zip(rows[:-1].view(-1, length).split(64), rows[1:].view(-1, length).split(64), strict=True):
            total += float(
                torch.nn.functional.cross_entropy(f.logits(x).flatten(0, 1).float(), y.flatten(), reduction="sum")
            )
    return total / (len(rows) - 1)


def get_loss_curve(run: Any) -> list[tuple[int, float]]:
    """Validation loss over steps."""
    return [(row["step"], round(row["valid"]["loss"], 4)) for row in run.history if "valid" in row]


def train_wikitext2(out: Path, **more: Any) -> dict[str, Any]:
    """Words: those seen fewer than 3 times are unknown, every line ends with a mark. Published small models: 115."""
    parts = {name: mark_line_ends(read_text(f"wikitext2.{name}")) for name in ("train", "valid", "test")}
    tokenizer = train_words([parts["train"]], 10**6, style=transformer_xl.STYLE, min_count=3, spaces=True)
    ids = {k: np.array(tokenizer.encode(text, special=False), np.uint16) for k, text in parts.items()}
    model = {"dim": 384, "layers": 6, "heads": 8, "ff": 1536, "context": 256, "dropout": 0.4, "attention_dropout": 0.2,
             "embed_dropout": 0.4}  # fmt: skip
    run = formers.pretrain(
        "gpt2", build_store(ids["train"], tokenizer), valid=build_store(ids["valid"], tokenizer),
        tokenizer=tokenizer, out=out, resume=True, model=model, train={
            "steps": 10000, "batch_tokens": 40 * 256, "seq_length": 256, "lr": 1e-3, "schedule": "cosine",
            "warmup_steps": 500, "weight_decay": 0.2, "eval_every": 500, "eval_batches": 100, "save_every": 500,
            "ema": 0.999, "workers": 2}, **more)  # fmt: skip
    nats = measure_strided_loss(run.folder / "model", ids["test"], 64)
    return {"types": len(tokenizer), "test perplexity": math.exp(nats), "curve": get_loss_curve(run)}


def measure_strided_loss(model: Path, ids: np.ndarray, stride: int) -> float:
    """Nats a token of a long text in windows of the context, of each of which the last `stride` tokens count."""
    f = formers.load(model, device="cuda" if torch.cuda.is_available() else "cpu")
    return -float(compute_id_log_probs(f, [ids], stride=stride)[0].double().mean())


def mark_line_ends(text: str) -> str:
    """Lines with an end mark each, as one text of words; the mark is a word like others."""
    return " ".join(f"{' '.join(line.split())} <eol>" for line in text.split("\n")[:-1])


def measure_memory_loss(model: Path, ids: np.ndarray, length: int, memory: int) -> tuple[float, float]:
    """Nats a token of a long text read segment by segment with a memory, and the seconds it took."""
    f, began = formers.load(model, device="cuda" if torch.cuda.is_available() else "cpu"), time.perf_counter()
    logs = compute_id_log_probs(f, [ids], memory=memory, segment=length)[0]
    return -float(logs.double().mean()), time.perf_counter() - began


def train_enwik8(out: Path, path: Path, minutes: float = 9.0, **more: Any) -> dict[str, Any]:
    """Bytes, with Transformer-XL's 12-layer shape (41 M). Published: 1.06 bits after 400,000 steps of 22 x 512.

    A few steps are measured first, so that the schedule ends within the minutes that there are.
    """
    began = time.perf_counter()
    raw = np.frombuffer(read_gzip(path), np.uint8)
    tokenizer, codes = build_byte_tokenizer()
    ids = codes[raw]
    model = {"embed": 512, "cutoffs": (), "dim": 512, "layers": 12, "heads": 8, "head_dim": 64, "ff": 2048,
             "memory": 512, "clamp": None, "same_length": False, "dropout": 0.1, "order": "pre"}  # fmt: skip
    train = {"batch_tokens": 22 * 512, "seq_length": 512, "lr": 5e-4, "schedule": "cosine", "warmup_steps": 500,
             "weight_decay": 0.0, "grad_clip": 0.25, "eval_every": 500, "eval_batches": 20, "save_every": 1000,
             "workers": 2, "samples": 0}  # fmt: skip
    text, held = build_store(ids[:90_000_000], tokenizer), build_store(ids[90_000_000:95_000_000], tokenizer)

    def train_for_steps(steps: int, where: Path) -> Any:
        return formers.pretrain(
            "transformer_xl", text, valid=held, tokenizer=tokenizer, out=where, resume=True, model=model,
            train={"steps": steps, **train}, **more,
        )  # fmt: skip

    rows = train_for_steps(60, out.with_name("enwik8-trial")).history
    times = [row["seconds"] for row in rows if "losses" in row]
    each = (times[-1] - times[20]) / (len(times) - 21)
    steps = int((60 * minutes - (time.perf_counter() - began)) / each)
    run = train_for_steps(steps, out)
    test = ids[95_000_000:95_100_000]
    nats, seconds = measure_memory_loss(run.folder / "model", test, 128, 1024)
    fast = len(test) / seconds
    slow = measure_sliding_speed(run.folder / "model", test, 1024 + 128)
    bits = [(step, round(value / math.log(2), 4)) for step, value in get_loss_curve(run)]
    return {"steps": steps, "bits per character": nats / math.log(2), "curve": bits,
            "tokens/s with memory": fast, "tokens/s sliding": slow, "ratio": fast / slow}  # fmt: skip


def read_gzip(path: Path) -> bytes:
    """A gzip file."""
    with gzip.open(path) as file:
        return file.read()


def measure_sliding_speed(model: Path, ids: np.ndarray, context: int, most: int = 512) -> float:
    """Tokens a second without a memory: every token has a window of its own, as large as a memory would reach."""
    f = formers.load(model, device="cuda" if torch.cuda.is_available() else "cpu")
    rows = torch.from_numpy(ids.astype(np.int64)).to(f.device)
    synchronise_gpu()
    began = time.perf_counter()
    with torch.inference_mode():
        for low in range(0, most, 16):  # sixteen windows at once
            window = torch.stack([rows[i : i + context] for i in range(low, low + 16)])
            hidden = f.model(Batch.from_padded(window)).unflatten(0, (16, context))[:, -1]
            f.model.logits(hidden)
    synchronise_gpu()
    return most / (time.perf_counter() - began)


def synchronise_gpu() -> None:
    """Wait until the GPU has finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def train_bert(out: Path, path: Path, **more: Any) -> dict[str, Any]:
    """BERT-mini on Wikipedia articles: next sentence prediction and masked tokens of validation articles."""
    articles = extract_articles(read_gzip(path).decode("utf-8"))
    aside, known = articles[::50], [a for i, a in enumerate(articles) if i % 50]
    model = {"dim": 256, "layers": 4, "heads": 4, "ff": 1024, "context": 128, "dropout": 0.0, "attention_dropout": 0.0}
    run = formers.pretrain(
        "bert", known, valid=aside, out=out, resume=True, model=model, data={"vocab_size": 8192}, train={
            "batch_tokens": 256 * 128, "seq_length": 128, "lr": 1e-3, "schedule": "linear", "warmup_steps": 1000,
            "weight_decay": 0.01, "eval_every": 500, "eval_batches": 60, "save_every": 2000, "workers": 10,
            "steps": 10000}, **more)  # fmt: skip
    assert run.score is not None
    score = run.score.metrics
    return {"articles": len(articles), "NSP": score["nsp/accuracy"], "masked": score["mlm/accuracy"],
            "nats": score["mlm"],
            "NSP curve": [(r["step"], round(r["valid"]["nsp/accuracy"], 4)) for r in run.history if "valid" in r],
            }  # fmt: skip


def extract_articles(dump: str, most: int = 10**9) -> list[str]:
    """The articles of a dump as plain text of a few sentences at least: no redirects, tables, templates or markup."""
    found = []
    for page in re.findall(r"<text xml:space=\"preserve\">(.*?)</text>", dump, re.DOTALL)[:most]:
        if page[:9].lower() == "#redirect":
            continue
        text = html.unescape(html.unescape(page))
        text = re.sub(r"<!--.*?-->|<ref[^>]*/>|<(ref|math|table|pre|gallery)\b.*?</\1>", " ", text, flags=re.DOTALL)
        for _ in range(4):  # from the inside out
            text = re.sub(r"\{\{[^{}]*\}\}|\{\|[^{}]*?\|\}", " ", text)
        text = re.sub(
            r"\[\[(?:[Ii]mage|[Ff]ile|[Cc]ategory|[a-z-]{2,12}):[^\[\]]*(?:\[\[[^\]]*\]\][^\[\]]*)*\]\]", " ", text
        )
        text = re.sub(r"\[\[(?:[^|\]]*\|)?([^\]]*)\]\]", r"\1", text)
        text = re.sub(r"\[https?:\S*\s?([^\]]*)\]|https?:\S+", r"\1", text)
        text = re.sub(r"<[^>]{1,80}>|'{2,}|^[*#:;|!{=].*$|\(\s*\)", "", text, flags=re.MULTILINE)
        text = re.sub(r"[ \t]+", " ", re.sub(r"\n\s*\n+", "\n", text)).strip()
        if len(text) > 500:
            found.append(text)
    return found


TRAINING_RUNS: dict[str, Callable[..., dict[str, Any]]] = {
    "shakespeare": train_shakespeare, "wikitext2": train_wikitext2, "enwik8": train_enwik8, "bert": train_bert,
}  # fmt: skip


def main() -> None:
    """Run the benchmarks that are named, one after the other; a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="+", choices=TRAINING_RUNS)
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--enwik8", type=Path, default=Path("enwik8.gz"))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings: train.steps=100")
    given = parser.parse_args()
    overrides = dict(pair.split("=", 1) for pair in given.set)
    for name in given.works:
        more: dict[str, Any] = {"path": given.enwik8} if name in ("enwik8", "bert") else {}
        began = time.perf_counter()
        found = TRAINING_RUNS[name](
            given.out / name, say=print, tell=build_progress_printer(), overrides=overrides, **more
        )
        print(json.dumps({"work": name, "seconds": round(time.perf_counter() - began, 1), **found}), flush=True)


def build_progress_printer() -> Callable[[str, int, int, str], None]:
    """A line every twenty seconds."""
    last = [0.0]

    def report_progress(what: str, done: int, of: int, detail: str) -> None:
        if time.monotonic() - last[0] > 20 or done == of:
            last[0] = time.monotonic()
            print(f"{what} {done:,}/{of:,}, {detail}", flush=True)

    return report_progress


if __name__ == "__main__":
    main()
