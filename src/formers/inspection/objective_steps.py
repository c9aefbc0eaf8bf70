"""Pretraining objectives on one's own sentence, step by step: what is hidden, what the model sees, what it predicts.

The steps are read off the batch that the real objective makes (objectives/), with the draws of a seed.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..batch import IGNORE_INDEX, Batch
from ..config import JSONObject, count_noun
from ..data.plans import RawExamples, TextObjective, gather_examples
from ..data.preparation.document_encoder import build_unit_finder, learn_phrases
from ..data.readers import load_bundled_corpus
from ..data.store import Store
from ..errors import Error
from ..objectives.denoising import Denoising
from ..objectives.registry import OBJECTIVES, UNPAIRED_OBJECTIVES, build_objective, resolve_objective
from ..objectives.span_corruption import SpanCorruption
from ..registry import FAMILIES, find_shown_family, train_tokenizer
from ..text.normalise import Language, normalise
from ..text.tokenizer import Tokenizer
from .objective_words import KOREAN_HELP, PAIR_QUESTIONS, STEPS
from .sides import get_special_ids

TokenState = Literal[
    "kept", "special", "masked", "replaced", "random", "sentinel", "target", "dropped", "moved", "hidden"
]
# The objectives that are shown where all are asked for.
SHOWN_OBJECTIVES = ("nsp", "mlm", "sop", "ernie-units", "plm", "denoising", "span-corruption", "causal")
UNIT_OBJECTIVES = ("ernie-units", "unit-pairs", "dialogue", "continual")
OTHER_TEXTS = ("nsp", "unit-pairs", "dialogue")  # objectives that draw text of other documents
SHOWN_OPTIONS = {"ernie-units": {"stage": "phrase"}}  # the stage in which ERNIE differs from BERT
SMALL_VOCAB_SIZE, MAX_TOKENIZER_DOCUMENTS = 3000, 150  # of a small tokenizer: pieces, documents it is trained on
MAX_DRAWS = 20  # of an example that hides nothing
MAX_DOCUMENT_CHARACTERS = 3_000  # of each of them where a text with new letters waits for the training
NUM_OTHER_DOCUMENTS, MAX_OTHER_CHARACTERS = 3, 600  # of the bundled corpus, beside the text
MAX_SHOWN_TOKENS = 96
MAX_UNKNOWN_SHARE = 0.3  # of a text's tokens, before another tokenizer shows the steps
MAX_ORDER_STEPS = 6  # targets of a permutation, or next tokens, that get a step each


@dataclass(frozen=True)
class StepToken:
    """A token in a step, and what has become of it; an answer in words has them in Korean too."""

    text: str
    state: TokenState
    korean: str = ""

    def to_dict(self) -> JSONObject:
        """Return the token as the view document has it."""
        return {"text": self.text, "state": self.state} | ({"ko": self.korean} if self.korean else {})


@dataclass(frozen=True)
class Step:
    """One step of an objective: its title, the tokens, and a sentence about them, both in Korean too."""

    title: str
    tokens: list[StepToken]
    note: str
    korean_title: str
    korean_note: str

    def to_dict(self) -> JSONObject:
        """Return the step as the view document has it."""
        korean = {"title": self.korean_title, "note": self.korean_note}
        tokens = [token.to_dict() for token in self.tokens]
        return {"title": self.title, "tokens": tokens, "note": self.note, "ko": korean}


def make_step(name: str, tokens: list[StepToken], **values: object) -> Step:
    """Make a step by the name of its words, with values in their places."""
    title, note = (words.fill(**values) for words in STEPS[name])
    return Step(title.en, tokens, note.en, title.ko, note.ko)


@dataclass(frozen=True)
class ObjectiveSteps:
    """What an objective makes of a text; the tokenizer is the model's, or a small one trained for this."""

    name: str
    family: str
    tokenizer: Literal["model", "small"]
    steps: list[Step]

    def to_dict(self) -> JSONObject:
        """Return the steps as the view document has them."""
        return {
            "name": self.name, "family": self.family, "help": OBJECTIVES[self.name].help,
            "ko": {"help": KOREAN_HELP[self.name]}, "tokenizer": self.tokenizer,
            "steps": [one.to_dict() for one in self.steps],
        }  # fmt: skip


def explain_objectives(
    text: str, names: Iterable[str] | None = None, tokenizer: Tokenizer | None = None, *, target: str | None = None,
    seed: int = 0, trains_tokenizer: bool = True,
) -> list[ObjectiveSteps]:  # fmt: skip
    """Show what objectives make of a text, by default one of each kind; those that it is too short for are left out.

    `tokenizer` is a model's; for an objective that it does not suit, or a text whose words it does not know, a small
    one of its own family's kind is trained (once, for a few seconds), unless `trains_tokenizer` is False. `target` is
    the other side of a pair, for seq2seq.
    """
    explanations, documents = [], [normalise(text)] + ([] if target is None else [normalise(target)])
    if tokenizer is not None and trains_tokenizer and count_unknown_share(tokenizer, documents[0]) > MAX_UNKNOWN_SHARE:
        tokenizer = None
    for name in map(resolve_objective, SHOWN_OBJECTIVES if names is None else names):
        explanation = None if tokenizer is None else explain_objective(name, documents, tokenizer, "model", seed)
        if explanation is None and trains_tokenizer:
            explanation = explain_objective(name, documents, get_small_tokenizer(name, documents), "small", seed)
        if explanation is not None:
            explanations.append(explanation)
    return explanations


def count_unknown_share(tokenizer: Tokenizer, text: str) -> float:
    """Count which share of a text's tokens a tokenizer does not know."""
    ids = tokenizer.encode(text, special=False, parse_special=False)
    unknown = tokenizer.id("unk")
    return 0.0 if unknown is None else ids.count(unknown) / max(1, len(ids))


def explain_objective(
    name: str, documents: list[str], tokenizer: Tokenizer, kind: Literal["model", "small"], seed: int
) -> ObjectiveSteps | None:
    """Show what one objective makes of a text; without pairs where the text is too short for them, None without any
    example, or where the tokenizer lacks a mask, sentinels or marks."""
    for known in (name, UNPAIRED_OBJECTIVES.get(name)):
        if known is None or (OBJECTIVES[known].takes_pairs and len(documents) != 2):
            continue
        with contextlib.suppress(Error):
            steps = make_steps(known, documents if OBJECTIVES[known].takes_pairs else documents[:1], tokenizer, seed)
            if steps is not None:
                return ObjectiveSteps(known, find_shown_family(name).name, kind, steps)
    return None


def make_steps(name: str, documents: list[str], tokenizer: Tokenizer, seed: int) -> list[Step] | None:
    """Make the steps of the example that begins in the first document."""
    others = load_some_documents("ko" if has_hangul(documents) else "en") if name in OTHER_TEXTS else ()
    others = tuple(document[:MAX_OTHER_CHARACTERS] for document in others[:NUM_OTHER_DOCUMENTS])
    store = build_store(name, [*documents, *others], tokenizer)
    length = max(3, min(int(store.starts[1]) + (0 if name == "plm" else 8), MAX_SHOWN_TOKENS))
    objective = build_objective(name, tokenizer, length, **SHOWN_OPTIONS.get(name, {}))
    plan = objective.plan(store, seed, 0)
    first = np.asarray(plan.begin)[np.asarray(plan.span_offsets[:-1])]
    numbers = np.flatnonzero(first < store.starts[1])[:1]
    if not len(numbers):
        return None
    raw = gather_examples(store, plan, numbers, numbers)
    draws = range(seed, seed + MAX_DRAWS)  # of a short text, a draw may hide nothing
    drawn = next((one for one in draws if is_hiding(objective.corrupt(raw, one))), seed)
    return describe_example(name, objective, raw, objective.corrupt(raw, drawn), tokenizer, drawn)


def is_hiding(batch: Batch) -> bool:
    """Return whether a masked example has a token to predict; examples of other kinds always have."""
    return batch.chosen is None or bool((batch.labels != IGNORE_INDEX).any())


@functools.cache
def load_some_documents(language: Language) -> tuple[str, ...]:
    """Load the first documents of the bundled corpus."""
    return tuple(load_bundled_corpus(language)[0][:MAX_TOKENIZER_DOCUMENTS])


@functools.cache
def find_known_letters(language: Language) -> frozenset[str]:
    """Find the characters of these documents."""
    return frozenset(letter for document in load_some_documents(language) for letter in document)


@functools.cache
def learn_bundled_phrases() -> list[str]:
    """Learn phrases from the first documents of the bundled English corpus."""
    return learn_phrases(list(load_some_documents("en")), min_count=2, discount=1.0, threshold=10.0)


def has_hangul(documents: Sequence[str]) -> bool:
    """Return whether there is Korean in some documents."""
    return any("가" <= letter <= "힣" for document in documents[:100] for letter in document)


def train_small_tokenizer(objective: str, documents: Sequence[str]) -> Tokenizer:
    """Train a small tokenizer of the kind that suits an objective, on the documents and the bundled corpus."""
    lines = tuple(line for d in documents[:MAX_TOKENIZER_DOCUMENTS] for line in d.split("\n"))
    language: Language = "ko" if has_hangul(documents) else "en"
    return train_family_tokenizer(find_shown_family(objective).name, language, lines, SMALL_VOCAB_SIZE)


def get_small_tokenizer(objective: str, documents: Sequence[str]) -> Tokenizer:
    """Return a small tokenizer for an objective: of the bundled corpus alone, trained once, if it reads bytes or has
    all characters of the documents."""
    language: Language = "ko" if has_hangul(documents) else "en"
    tokenizer = train_family_tokenizer(find_shown_family(objective).name, language, (), SMALL_VOCAB_SIZE)
    if tokenizer.is_byte_level or find_known_letters(language).issuperset("".join(documents)):
        return tokenizer
    return train_small_tokenizer(objective, documents)


@functools.lru_cache(maxsize=32)
def train_family_tokenizer(family: str, language: Language, lines: tuple[str, ...], vocab_size: int) -> Tokenizer:
    """Train a small tokenizer of a family on some lines and the bundled corpus; several objectives share one."""
    more = [document[: MAX_DOCUMENT_CHARACTERS if lines else None] for document in load_some_documents(language)]
    known = set().union(*lines, *more)
    # What is said twice is worth a piece: the text at hand counts three times.
    return train_tokenizer(family, [*lines * 3, *more], max(vocab_size, 3 * len(known)))


def build_store(objective: str, documents: list[str], tokenizer: Tokenizer) -> Store:
    """Tokenize the documents, with sentences, and with units where the objective needs them."""
    if OBJECTIVES[objective].takes_pairs:
        return build_pair_store(documents, tokenizer)
    units: Callable[..., Any] | None = None  # dynamic: Korean units are found by another function's arguments
    if objective in UNIT_OBJECTIVES:
        if has_hangul(documents[:20]):
            from ..text import korean

            units = korean.find_units
        else:
            phrases = (
                learn_phrases(documents, min_count=2, discount=1.0, threshold=10.0) if len(documents) > 1 else None
            )
            units = build_unit_finder(learn_bundled_phrases() if phrases is None else phrases)
    return Store.from_documents(documents, tokenizer, sentences="rules", units=units)


def build_pair_store(documents: list[str], tokenizer: Tokenizer) -> Store:
    """Tokenize sources and targets, in turn or separated by tabs, as documents of two sentences."""
    sides = [side for d in documents for line in d.split("\n") for side in line.split("\t") if side.strip()]
    if len(sides) % 2:
        what = f"{count_noun(len(sides), 'text')} cannot be paired"
        raise Error(what, fix="give sources and targets in turn, or with a tab between")
    rows = tokenizer.encode_batch(sides, special=False, parse_special=False)
    edges = np.cumsum([0, *map(len, rows)])
    tokens = np.array([i for row in rows for i in row], np.int64)
    return Store(tokens, edges[::2], len(tokenizer), tokenizer.fingerprint, edges)


class TokenNames:
    """Names of ids in a step: readable text, without spaces and the marks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.special = get_special_ids(tokenizer) - {tokenizer.id("unk")}

    def name_all(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Name ids that follow each other; of the pieces of one character, the first shows it, the others a dot."""
        if not self.tokenizer.is_byte_level and not self.tokenizer.has_byte_fallback:
            return [self.name_one(i) for i in ids]
        names, decoder, first = [""] * len(ids), codecs.getincrementaldecoder("utf-8")("ignore"), 0
        for at, index in enumerate(map(int, ids)):
            if index in self.special:
                names[at] = self.name_one(index)
                decoder.reset()
                continue
            has_begun = bool(decoder.getstate()[0])
            text = decoder.decode(b"".join(self.tokenizer.decode_bytes([index])))
            if has_begun and text:
                names[first] += text[0]
                text = text[1:]
            names[at] += text if text.strip() or not text else "␣"
            if decoder.getstate()[0] and (text or not has_begun):
                first = at
        return [normalise(name).strip("␣ \n\t") or ("␣" if "␣" in name else "·") for name in names]

    def name_one(self, index: int) -> str:
        """Name one id, without the marks of its tokenizer."""
        piece = self.tokenizer.get_token_text(int(index))
        if int(index) in self.special:
            return piece
        return piece.removeprefix("##").removesuffix(self.tokenizer.end_of_word_suffix).replace("▁", " ").strip() or "␣"

    def make_tokens(self, ids: Sequence[int] | np.ndarray, states: Sequence[TokenState]) -> list[StepToken]:
        """Name ids and give each its state; special tokens that are not hidden are marked as such."""
        names = self.name_all(ids)
        return [
            StepToken(name, "special" if state == "kept" and int(i) in self.special else state)
            for i, name, state in zip(ids, names, states, strict=True)
        ]


def describe_example(
    name: str, objective: TextObjective, raw: RawExamples, batch: Batch, tokenizer: Tokenizer, seed: int
) -> list[Step]:
    """Describe the first example of a batch, step by step."""
    names = TokenNames(tokenizer)
    if batch.source is not None:
        return describe_two_sides(objective, raw, batch, names, seed)
    if batch.order is not None:
        return describe_permutation(batch, names)
    if batch.ids.ndim > 1:
        return describe_bidirectional(batch, names)
    if batch.chosen is None:
        return describe_causal(batch, names)
    steps = describe_masked(batch, names)
    question = name if name in PAIR_QUESTIONS else objective.pair_part
    if batch.document_labels is not None and question in PAIR_QUESTIONS:
        words, replies = PAIR_QUESTIONS[question]
        reply, title = replies[int(batch.document_labels[0])], STEPS["question"][0]
        steps.append(Step(title.en, [StepToken(reply.en, "target", reply.ko)], words.en, title.ko, words.ko))
    return steps


def describe_masked(batch: Batch, names: TokenNames) -> list[Step]:
    """Describe what a masked language model hides: the text, what is chosen, what the model sees, what it predicts."""
    length = int(batch.starts[1])
    mine = (batch.chosen < length) & (batch.labels != IGNORE_INDEX)
    places, labels = batch.chosen[mine].tolist(), batch.labels[mine]
    seen = batch.ids[:length]
    text = seen.copy()
    text[places] = labels
    mask = names.tokenizer.id("mask")
    kept: list[TokenState] = ["kept"] * length
    chosen, shown, target_states = kept.copy(), kept.copy(), ["hidden"] * length
    counts = {"masked": 0, "random": 0, "target": 0}
    for at, label in zip(places, labels.tolist(), strict=True):
        state: TokenState = "masked" if seen[at] == mask else "target" if seen[at] == label else "random"
        counts[state] += 1
        chosen[at], shown[at], target_states[at] = "hidden", state, "target"
    share = len(places) / max(1, sum(1 for i in text.tolist() if i not in names.special))
    words = zip(names.name_all(text), target_states, strict=True)
    targets = [StepToken(word, "target") if state == "target" else StepToken("·", "hidden") for word, state in words]
    return [
        make_step("framed text", names.make_tokens(text, kept)),
        make_step("chosen", names.make_tokens(text, chosen), count=len(places), share=f"{share:.0%}"),
        make_step(
            "model sees",
            names.make_tokens(seen, shown),
            masked=counts["masked"],
            random=counts["random"],
            kept=counts["target"],
        ),
        make_step("model predicts", targets),
    ]


def describe_two_sides(
    objective: TextObjective, raw: RawExamples, batch: Batch, names: TokenNames, seed: int
) -> list[Step]:
    """Describe what an encoder-decoder reads and writes: the text, its noise, and both sides."""
    assert batch.source is not None
    text = raw.ids[: int(raw.starts[1])]
    source, target = batch.source.ids[: int(batch.source.starts[1])], batch.labels[: int(batch.starts[1])]
    mask, known = names.tokenizer.id("mask"), set(text.tolist())
    steps = [make_step("whole text", names.make_tokens(text, ["kept"] * len(text)))]
    sentinels = set(objective.sentinels.tolist()) if isinstance(objective, SpanCorruption) else set()

    def get_state(index: int, usual: TokenState) -> TokenState:
        if index in sentinels:
            return "sentinel"
        return "masked" if index == mask else "random" if index not in known | names.special else usual

    if isinstance(objective, Denoising) and objective.permute_ratio:
        moved = dataclasses.replace(objective, infill_ratio=0.0).add_noise(raw, seed)[0]
        changed: list[TokenState] = ["moved" if a != b else "kept" for a, b in zip(moved, text, strict=True)]
        if "moved" in changed:
            steps.append(make_step("moved", names.make_tokens(moved, changed)))
    if isinstance(objective, SpanCorruption) and objective.corruption == "spans":
        is_dropped = find_dropped(text, source, sentinels)
        dropped: list[TokenState] = ["dropped" if is_out else "kept" for is_out in is_dropped]
        steps.append(make_step("dropped", names.make_tokens(text, dropped)))
    seen = [get_state(int(i), "kept") for i in source]
    written = [get_state(int(i), "target") for i in target]
    steps.append(make_step("encoder", names.make_tokens(source, seen)))
    steps.append(make_step("decoder", names.make_tokens(target, written)))
    return steps


def find_dropped(text: np.ndarray, source: np.ndarray, sentinels: set[int]) -> list[bool]:
    """Return of each token of a text whether it was dropped: the source has a sentinel in place of each span."""
    dropped, left = [True] * len(text), source.tolist()
    at = 0
    for place, index in enumerate(left):
        if index in sentinels:
            rest = left[place + 1 :]
            run = rest[: next((n for n, i in enumerate(rest) if i in sentinels), len(rest))]
            while at < len(text) and (not run or text[at : at + len(run)].tolist() != run[: len(text) - at]):
                at += 1
        elif at < len(text) and int(text[at]) == index:
            dropped[at] = False
            at += 1
    return dropped


def describe_permutation(batch: Batch, names: TokenNames) -> list[Step]:
    """Describe a factorisation order: the targets in their turn, and what some of them are predicted from."""
    length = int(batch.starts[1])
    ids, order = batch.ids[:length], batch.order[:length]
    mine = batch.chosen[batch.chosen < length]
    turns = mine[order[mine].argsort(kind="stable")].tolist()
    kept: list[TokenState] = ["kept"] * length
    chosen = kept.copy()
    for at in turns:
        chosen[at] = "hidden"
    steps = [
        make_step("unchanged text", names.make_tokens(ids, kept)),
        make_step("targets", names.make_tokens(ids, chosen), count=len(turns)),
    ]
    few = turns if len(turns) <= MAX_ORDER_STEPS else [*turns[: MAX_ORDER_STEPS - 1], turns[-1]]
    for at in few:
        states: list[TokenState] = ["kept" if order[i] < order[at] else "hidden" for i in range(length)]
        states[at] = "target"
        steps.append(make_step("turn", names.make_tokens(ids, states), number=turns.index(at) + 1))
    return steps


def describe_causal(batch: Batch, names: TokenNames) -> list[Step]:
    """Describe next-token prediction: some first steps, and the last."""
    length = int(batch.starts[1])
    ids, labels = batch.ids[:length], batch.labels[:length]
    targets = [at + 1 for at in np.flatnonzero(labels != IGNORE_INDEX).tolist() if at + 1 < length]
    kept: list[TokenState] = ["kept"] * length
    steps = [make_step("read text", names.make_tokens(ids, kept))]
    few = targets if len(targets) <= MAX_ORDER_STEPS else [*targets[: MAX_ORDER_STEPS - 1], targets[-1]]
    for at in few:
        states: list[TokenState] = ["kept" if i < at else "target" if i == at else "hidden" for i in range(length)]
        steps.append(make_step("next token", names.make_tokens(ids, states), number=at + 1))
    return steps


def describe_bidirectional(batch: Batch, names: TokenNames) -> list[Step]:
    """Describe ELMo's two language models on the word in the middle."""
    length = int(batch.starts[1])
    words = batch.labels[:length]
    kept: list[TokenState] = ["kept"] * length
    at = length // 2
    forward: list[TokenState] = ["kept" if i < at else "target" if i == at else "hidden" for i in range(length)]
    backward: list[TokenState] = ["hidden" if i < at else "target" if i == at else "kept" for i in range(length)]
    return [
        make_step("words", names.make_tokens(words, kept)),
        make_step("forward", names.make_tokens(words, forward)),
        make_step("backward", names.make_tokens(words, backward)),
    ]


def get_own_objective(family: str) -> str:
    """Return the name of a family's own pretraining objective; empty if it is not pretrained."""
    return FAMILIES[family].definition.objective
