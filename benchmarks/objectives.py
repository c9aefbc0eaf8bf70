"""Objectives beside transformers' collators on the same work, and how many tokens a core delivers.

    python -m benchmarks.objectives [--rounds 5]

Both sides get the same sequences of 512 tokens (with special tokens) and give a batch that a model can read. Ours takes
them out of a store, corrupts them and fills the batch up; theirs pads, corrupts and makes tensors. One JSON line each;
`ratio` is theirs to ours (below 1: we are faster).
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from typing import Any

import numpy as np
import torch

from formers.data.loader import filled
from formers.data.plans import gather
from formers.data.readers import bundled
from formers.data.store import Store
from formers.objectives.choose import objective
from formers.text.trainers import train

from .harness import in_turns, machine

ROWS, LENGTH = 32, 512


def big(store: Store, times: int) -> Store:
    """The store several times over, as other documents."""
    tokens = np.tile(np.asarray(store.tokens), times)
    starts, sentences = (
        np.concatenate([edges[:-1] + i * len(store.tokens) for i in range(times)] + [[len(tokens)]])
        for edges in (store.starts, store.sentence_starts)
    )
    units = np.random.default_rng(0).integers(0, 4, len(tokens)).astype(np.uint8)
    return Store(tokens, starts, store.vocab, store.fingerprint, sentences, units)


def hands(name: str, tokenizer: Any, store: Store, rows: int = ROWS, **options: Any) -> Any:
    """A function that makes one full batch after the other, as the loader does."""
    goal = objective(name, tokenizer, LENGTH, **options)
    plan = goal.plan(store, 0, 0)
    shape = goal.shape(rows * LENGTH, plan)
    sizes = goal.sizes(plan)
    room = np.array([shape.tokens, shape.places or shape.tokens, shape.source or 0])
    reach = np.concatenate((np.zeros((1, 3), np.int64), np.cumsum(sizes, 0)))
    where = itertools.cycle(np.linspace(0, max(0, len(plan) - 4 * rows), 50).astype(int).tolist())

    def step() -> int:
        n = next(where)
        spans = [int(np.searchsorted(reach[:, i], reach[n, i] + room[i], side="right")) - 1 for i in range(3)]
        stop = min(s for s, r in zip(spans, room, strict=True) if r)
        numbers = np.arange(n, max(n + 1, min(stop, len(plan), n + shape.documents - 1)))
        filled(goal.corrupt(gather(store, plan, numbers, numbers), 0), shape)
        return int(plan.lengths[numbers].sum()) if len(plan) < 1 << 16 else rows * LENGTH

    return step


def collators(tokenizer: Any, store: Store, rounds: int) -> None:
    """Masked tokens, whole words, permutations: ours and transformers'."""
    import transformers

    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.rust, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip
    whole = store.tokens[: ROWS * (LENGTH - 2)].astype(np.int64).reshape(ROWS, LENGTH - 2)
    cls, sep = tokenizer.id("cls"), tokenizer.id("sep")
    starts = tokenizer.word_starts
    features = []
    for row in whole:
        ids = [cls, *row.tolist(), sep]
        ends = (np.arange(1, LENGTH - 1) * 2).tolist()  # a word's pieces touch, words do not
        begins = [end - (1 if starts[i] else 2) for end, i in zip(ends, row.tolist(), strict=True)]
        offsets = [(0, 0), *zip(begins, ends, strict=True), (0, 0)]
        features.append({
            "input_ids": ids, "special_tokens_mask": [1, *[0] * (LENGTH - 2), 1], "offset_mapping": offsets,
        })  # fmt: skip
    tokens = ROWS * LENGTH
    plain = transformers.DataCollatorForLanguageModeling(theirs)
    words = transformers.DataCollatorForLanguageModeling(theirs, whole_word_mask=True)
    spans = transformers.DataCollatorForPermutationLanguageModeling(theirs)

    def fresh(*keys: str) -> list[dict[str, Any]]:
        return [{key: f[key] for key in keys} for f in features]

    in_turns("masked tokens", tokens, {
        "formers": hands("masked", tokenizer, store),
        "transformers": lambda: plain(fresh("input_ids", "special_tokens_mask")),
    }, rounds)  # fmt: skip
    in_turns("whole words", tokens, {
        "formers": hands("words", tokenizer, store),
        "transformers": lambda: words(fresh("input_ids", "special_tokens_mask", "offset_mapping")),
    }, rounds)  # fmt: skip
    in_turns("permutations", tokens, {
        "formers": hands("permutation", tokenizer, store), "transformers": lambda: spans(fresh("input_ids")),
    }, rounds)  # fmt: skip


def rate(step: Any, rounds: int) -> float:
    """Tokens a second, the best of the rounds; `step` says how many it made."""
    step()
    best = 0.0
    for _ in range(rounds):
        began, made = time.perf_counter(), step()
        best = max(best, made / (time.perf_counter() - began))
    return best


def alone(tokenizer: Any, t5: Any, store: Store, spans: Store, rounds: int) -> None:
    """Tokens a second on one core, from the store to a full batch."""
    names = ("masked", "words", "ngrams", "nsp", "sop", "permutation", "denoise", "units", "causal")
    for name in (*names, "spans", "prefix_spans", "deshuffle"):
        pieces, data = (t5, spans) if name in ("spans", "prefix_spans", "deshuffle", "denoise") else (tokenizer, store)
        if name == "denoise":
            pieces, data = train_for("bart")
        speed = rate(hands(name, pieces, data), rounds)
        print(json.dumps({"work": f"{name}, store to batch, one core", "per_second": round(speed)}), flush=True)


def train_for(family: str, times: int = 3) -> tuple[Any, Store]:
    """A tokenizer of a family's kind and the bundled corpus in its tokens."""
    documents = bundled("en")[0]
    tokenizer = train(family, [line for d in documents[:400] for line in d.split("\n")], 4000)
    return tokenizer, big(Store.of(documents, tokenizer, sentences="rules"), times)


def planning(tokenizer: Any, store: Store) -> None:
    """How many sentences a second the plan of a pass over all documents takes."""
    for name in ("nsp", "sop", "permutation"):
        goal = objective(name, tokenizer, LENGTH)
        began = time.perf_counter()
        plan = goal.plan(store, 0, 0)
        seconds = time.perf_counter() - began
        print(json.dumps({
            "work": f"plan of {name}", "sentences_per_second": round(len(store.sentence_starts) / seconds),
            "seconds": round(seconds, 2), "examples": len(plan), "documents": len(store.starts) - 1,
        }), flush=True)  # fmt: skip


def main() -> None:
    """Everything in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(json.dumps(machine()))
    tokenizer, store = train_for("bert")
    t5, spans = train_for("t5")
    collators(tokenizer, store, rounds)
    alone(tokenizer, t5, store, spans, rounds)
    planning(tokenizer, big(store, 12))
    one = Store(store.tokens, store.starts[[0, -2, -1]], store.vocab, store.fingerprint, store.sentence_starts)
    planning(tokenizer, one)  # all in one huge document


if __name__ == "__main__":
    main()
