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

from formers.data.loader import pad_batch
from formers.data.plans import gather_examples
from formers.data.readers import load_bundled_corpus
from formers.data.store import Store
from formers.objectives.registry import build_objective
from formers.registry import train_tokenizer

from .harness import describe_machine, time_in_turns

BATCH_SIZE, SEQ_LENGTH = 32, 512


def repeat_store(store: Store, times: int) -> Store:
    """The store several times over, as other documents."""
    tokens = np.tile(np.asarray(store.tokens), times)
    starts, sentences = (
        np.concatenate([edges[:-1] + i * len(store.tokens) for i in range(times)] + [[len(tokens)]])
        for edges in (store.starts, store.sentence_starts)
    )
    units = np.random.default_rng(0).integers(0, 4, len(tokens)).astype(np.uint8)
    return Store(tokens, starts, store.vocab, store.fingerprint, sentences, units)


def build_batch_maker(name: str, tokenizer: Any, store: Store, rows: int = BATCH_SIZE, **options: Any) -> Any:
    """A function that makes one full batch after the other, as the loader does."""
    goal = build_objective(name, tokenizer, SEQ_LENGTH, **options)
    plan = goal.plan(store, 0, 0)
    shape = goal.choose_shape(rows * SEQ_LENGTH, plan)
    sizes = goal.measure_sizes(plan)
    room = np.array([shape.tokens, shape.labels or shape.tokens, shape.source_tokens])
    reach = np.concatenate((np.zeros((1, 3), np.int64), np.cumsum(sizes, 0)))
    where = itertools.cycle(np.linspace(0, max(0, len(plan) - 4 * rows), 50).astype(int).tolist())

    def make_batch() -> int:
        n = next(where)
        spans = [int(np.searchsorted(reach[:, i], reach[n, i] + room[i], side="right")) - 1 for i in range(3)]
        stop = min(s for s, r in zip(spans, room, strict=True) if r)
        numbers = np.arange(n, max(n + 1, min(stop, len(plan), n + shape.documents - 1)))
        pad_batch(goal.corrupt(gather_examples(store, plan, numbers, numbers), 0), shape)
        return int(plan.lengths[numbers].sum()) if len(plan) < 1 << 16 else rows * SEQ_LENGTH

    return make_batch


def compare_collators(tokenizer: Any, store: Store, rounds: int) -> None:
    """Masked tokens, whole words, permutations: ours and transformers'."""
    import transformers

    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip
    whole = store.tokens[: BATCH_SIZE * (SEQ_LENGTH - 2)].astype(np.int64).reshape(BATCH_SIZE, SEQ_LENGTH - 2)
    cls, sep = tokenizer.id("cls"), tokenizer.id("sep")
    starts = tokenizer.word_starts
    features = []
    for row in whole:
        ids = [cls, *row.tolist(), sep]
        ends = (np.arange(1, SEQ_LENGTH - 1) * 2).tolist()  # a word's pieces touch, words do not
        begins = [end - (1 if starts[i] else 2) for end, i in zip(ends, row.tolist(), strict=True)]
        offsets = [(0, 0), *zip(begins, ends, strict=True), (0, 0)]
        features.append({
            "input_ids": ids, "special_tokens_mask": [1, *[0] * (SEQ_LENGTH - 2), 1], "offset_mapping": offsets,
        })  # fmt: skip
    tokens = BATCH_SIZE * SEQ_LENGTH
    plain = transformers.DataCollatorForLanguageModeling(theirs)
    words = transformers.DataCollatorForLanguageModeling(theirs, whole_word_mask=True)
    spans = transformers.DataCollatorForPermutationLanguageModeling(theirs)

    def copy_features(*keys: str) -> list[dict[str, Any]]:
        return [{key: f[key] for key in keys} for f in features]

    time_in_turns("masked tokens", tokens, {
        "formers": build_batch_maker("mlm", tokenizer, store),
        "transformers": lambda: plain(copy_features("input_ids", "special_tokens_mask")),
    }, rounds)  # fmt: skip
    time_in_turns("whole words", tokens, {
        "formers": build_batch_maker("whole-word", tokenizer, store),
        "transformers": lambda: words(copy_features("input_ids", "special_tokens_mask", "offset_mapping")),
    }, rounds)  # fmt: skip
    time_in_turns("permutations", tokens, {
        "formers": build_batch_maker("plm", tokenizer, store),
        "transformers": lambda: spans(copy_features("input_ids")),
    }, rounds)  # fmt: skip


def measure_token_rate(step: Any, rounds: int) -> float:
    """Tokens a second, the best of the rounds; `step` says how many it made."""
    step()
    best = 0.0
    for _ in range(rounds):
        began, made = time.perf_counter(), step()
        best = max(best, made / (time.perf_counter() - began))
    return best


def bench_objectives(tokenizer: Any, t5: Any, store: Store, spans: Store, rounds: int) -> None:
    """Tokens a second on one core, from the store to a full batch."""
    names = ("mlm", "whole-word", "ngrams", "nsp", "sop", "plm", "denoising", "ernie-units", "causal")
    gaps = ("span-corruption", "prefix-spans", "deshuffle")
    for name in (*names, *gaps):
        pieces, data = (t5, spans) if name in gaps else (tokenizer, store)
        if name == "denoising":
            pieces, data = build_tokenizer_and_store("bart")
        speed = measure_token_rate(build_batch_maker(name, pieces, data), rounds)
        print(json.dumps({"work": f"{name}, store to batch, one core", "per_second": round(speed)}), flush=True)


def build_tokenizer_and_store(family: str, times: int = 3) -> tuple[Any, Store]:
    """A tokenizer of a family's kind and the bundled corpus in its tokens."""
    documents = load_bundled_corpus("en")[0]
    tokenizer = train_tokenizer(family, [line for d in documents[:400] for line in d.split("\n")], 4000)
    return tokenizer, repeat_store(Store.from_documents(documents, tokenizer, sentences="rules"), times)


def bench_planning(tokenizer: Any, store: Store) -> None:
    """How many sentences a second the plan of a pass over all documents takes."""
    for name in ("nsp", "sop", "plm"):
        goal = build_objective(name, tokenizer, SEQ_LENGTH)
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
    print(json.dumps(describe_machine()))
    tokenizer, store = build_tokenizer_and_store("bert")
    t5, spans = build_tokenizer_and_store("t5")
    compare_collators(tokenizer, store, rounds)
    bench_objectives(tokenizer, t5, store, spans, rounds)
    bench_planning(tokenizer, repeat_store(store, 12))
    one = Store(store.tokens, store.starts[[0, -2, -1]], store.vocab, store.fingerprint, store.sentence_starts)
    bench_planning(tokenizer, one)  # all in one huge document


if __name__ == "__main__":
    main()
