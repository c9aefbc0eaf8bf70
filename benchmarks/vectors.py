"""CPU: word vectors trained on WikiText-2 by formers and by gensim's C code, in one run, and how good they are.

    pip install gensim
    FORMERS_DATA=... python -m benchmarks.vectors [skipgram cbow fasttext] [--epochs 2]

Both get the same sentences, split already, and two threads. Words per second are those of the whole text, over the time
from the sentences to the vectors; `cpu` counts the seconds that were really worked, for machines with noisy neighbours.
Worth: Spearman's correlation with WordSim-353 and the share of Mikolov's analogies solved (first, among ten), by the
lists that come with gensim.
"""

from __future__ import annotations

import json
import lzma
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import describe_machine, exit_with_help
from formers.training.word_vectors.word2vec import train_word_vectors

NUM_THREADS = 2
COMMON_SETTINGS = {"dim": 100, "window": 5, "negatives": 5, "min_count": 5, "sample": 1e-3}
LEARNING_RATES = {"skipgram": 0.025, "cbow": 0.025, "fasttext": 0.025}  # gensim's own
NUM_BUCKETS = 200_000


def read_sentences() -> list[list[str]]:
    path = Path(os.environ["FORMERS_DATA"]) / "lm" / "wikitext2.train.txt.xz"
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [line.split() for line in file.read().lower().split("\n") if line.strip()]


def train_with_formers(kind: Any, texts: list[list[str]], epochs: int) -> tuple[list[str], torch.Tensor]:
    f = train_word_vectors(
        texts, kind, epochs=epochs, lr=LEARNING_RATES[kind], threads=NUM_THREADS, buckets=NUM_BUCKETS, **COMMON_SETTINGS
    )
    assert f.tokenizer is not None
    return [f.tokenizer.backend.id_to_token(i) for i in range(f.config.vocab)], f.model.body.embedding_table.detach()


def train_with_gensim(kind: str, texts: list[list[str]], epochs: int) -> tuple[list[str], torch.Tensor]:
    from gensim.models import FastText, Word2Vec

    same = {"vector_size": 100, "window": 5, "negative": 5, "min_count": 5, "sample": 1e-3, "workers": NUM_THREADS}
    same |= {"alpha": LEARNING_RATES[kind], "epochs": epochs, "sg": int(kind != "cbow")}
    model = FastText(texts, bucket=NUM_BUCKETS, **same) if kind == "fasttext" else Word2Vec(texts, **same)
    return model.wv.index_to_key, torch.from_numpy(model.wv.vectors.copy())


def evaluate_vectors(words: list[str], table: torch.Tensor) -> dict[str, float]:
    from gensim.test.utils import datapath

    number = {word: i for i, word in enumerate(words)}
    table = torch.nn.functional.normalize(table[: len(words)], dim=1)
    with open(datapath("wordsim353.tsv")) as file:
        pairs = [line.lower().split("\t") for line in file if not line.startswith("#")]
    pairs = [p for p in pairs if p[0] in number and p[1] in number]
    judged = np.array([float(p[2]) for p in pairs]).argsort().argsort()
    near = np.array([float(table[number[p[0]]] @ table[number[p[1]]]) for p in pairs]).argsort().argsort()
    with open(datapath("questions-words.txt")) as file:
        rows = [line.lower().split() for line in file if not line.startswith(":")]
    asked = torch.tensor([[number[w] for w in row] for row in rows if all(w in number for w in row)])
    best = torch.zeros(len(asked), 10, dtype=torch.long)
    for part in torch.arange(len(asked)).split(500):
        a, b, c, _ = asked[part].T
        scores = (table[b] - table[a] + table[c]) @ table.T
        best[part] = scores.scatter_(1, asked[part, :3], -9.0).topk(10).indices
    hits = best == asked[:, 3:]
    return {
        "wordsim": round(float(np.corrcoef(judged, near)[0, 1]), 3),
        "analogies": round(float(hits[:, 0].float().mean()), 4),
        "among_ten": round(float(hits.any(1).float().mean()), 4),
    }


def main() -> None:
    """Run the kinds that are named, or all."""
    exit_with_help(__doc__)
    epochs = int(sys.argv[sys.argv.index("--epochs") + 1]) if "--epochs" in sys.argv else 2
    texts = read_sentences()
    total = sum(map(len, texts)) * epochs
    print(
        json.dumps(describe_machine() | {"words": total // epochs, "epochs": epochs, "load": os.getloadavg()[0]}),
        flush=True,
    )
    for kind in [k for k in sys.argv[1:] if k in LEARNING_RATES] or LEARNING_RATES:
        rates = {}
        for name, make in (("gensim", train_with_gensim), ("formers", train_with_formers)):
            torch.set_num_threads(NUM_THREADS)
            began, worked = time.perf_counter(), time.process_time()
            words, table = make(kind, texts, epochs)
            seconds, cpu = time.perf_counter() - began, time.process_time() - worked
            rates[name] = total / seconds, total / cpu
            line = {"work": kind, "candidate": name, "words_per_s": round(total / seconds), "cpu": round(total / cpu)}
            if name == "formers":
                wall, work = (a / b for a, b in zip(rates["formers"], rates["gensim"], strict=True))
                line |= {"ratio": round(wall, 2), "ratio_cpu": round(work, 2)}
            print(json.dumps(line | evaluate_vectors(words, table)), flush=True)


if __name__ == "__main__":
    main()
