"""Small tokenizers and stores whose every token is known."""

from __future__ import annotations

import itertools

import numpy as np
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Rust

from formers.data.plans import RawExamples, gather_examples
from formers.data.store import Store
from formers.text.tokenizer import Tokenizer

ROLES = {
    "pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "cls": "<cls>", "sep": "<sep>", "mask": "<mask>",
}  # fmt: skip
PLAIN = 7  # the first id that is no special token


def build_tokenizer(
    pieces: int = 60, sentinels: int = 0, roles: dict[str, str] | None = None, inside: int = 3
) -> Tokenizer:
    """Build a tokenizer of words w7, w8 …; every `inside`-th piece continues a word ("##"). Sentinels come last,
    the first of them highest."""
    special = ROLES if roles is None else roles
    names = [*special.values()]
    names += [f"##w{i}" if inside and i % inside == 0 else f"w{i}" for i in range(len(names), pieces)]
    names += [f"<extra_id_{i}>" for i in reversed(range(sentinels))]
    known = {name: i for i, name in enumerate(names)}
    rust = Rust(models.WordPiece(known, unk_token=special["unk"], continuing_subword_prefix="##"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special.values()])
    return Tokenizer(rust.to_str(), special)


TOKENIZER = build_tokenizer(60, sentinels=20)
OBJECTIVE_OPTIONS = {"bidirectional": {"slots": 9}, "ernie-units": {"stage": "phrase"}}  # those without a default


def build_store(documents, vocab: int = 60, end: int | None = None, units=None) -> Store:
    """Build a store; documents are lists of sentences, which are lists of ids (or lengths, which get running ids)."""
    count, tokens, starts, sentences = 0, [], [0], []
    for document in documents:
        for sentence in document:
            sentences.append(len(tokens))
            if isinstance(sentence, int | np.integer):
                sentence = [PLAIN + (count + i) % (vocab - PLAIN) for i in range(sentence)]
            tokens += sentence
            count += len(sentence)
        if end is not None:
            tokens.append(end)
        starts.append(len(tokens))
    bits = None if units is None else np.asarray(units, np.uint8)
    return Store(np.array(tokens, np.uint16), np.array(starts), vocab, "toy", np.array([*sentences, len(tokens)]), bits)


def build_random_store(seed=0, documents=30, most=12, longest=20, vocab=60, **more) -> Store:
    """Build a store of documents of random sentences."""
    r = np.random.default_rng(seed)
    made = [
        [r.integers(PLAIN, vocab, r.integers(1, longest + 1)).tolist() for _ in range(r.integers(1, most + 1))]
        for _ in range(documents)
    ]
    return build_store(made, vocab, **more)


def draw_raw_examples(lengths, samples=None, seed: int = 0, vocab: int = 60, sentences: float = 0.2) -> RawExamples:
    """Draw examples of one span of random tokens, with random sentences."""
    r = np.random.default_rng(seed)
    total = int(np.sum(lengths))
    starts = np.concatenate(([0], np.cumsum(lengths)))
    first = r.random(total) < sentences
    first[starts[:-1]] = True
    samples = np.arange(len(lengths)) if samples is None else np.asarray(samples)
    ids = r.integers(PLAIN, vocab, total)
    return RawExamples(ids, starts, np.zeros(total, np.int64), first, None, np.full(len(lengths), -1), samples)


def add_units(data: Store, units) -> Store:
    """Return the store with units."""
    return Store(data.tokens, data.starts, data.vocab, data.fingerprint, data.sentences, units)


def split_rows(values, starts):
    """Return packed values as a list for each example."""
    return [values[a:b].tolist() for a, b in itertools.pairwise(starts)]


def make_examples(goal, data: Store, seed: int = 0, epoch: int = 0, numbers=None):
    """Make some examples of a plan (all of them by default): the plan, what the store has of them, and the batch."""
    plan = goal.plan(data, seed, epoch)
    numbers = np.arange(len(plan)) if numbers is None else np.asarray(numbers)
    found = gather_examples(data, plan, numbers, epoch * len(plan) + numbers)
    return plan, found, goal.corrupt(found, seed)


def draw_text(lengths, samples=None, seed=0, low=5):
    """Draw examples of these lengths from a vocabulary of 100 whose tokens from `low` on are words."""
    made = draw_raw_examples(lengths, samples, seed, 100)
    made.ids[:] = np.random.default_rng(seed).integers(low, 100, len(made.ids))
    return made
