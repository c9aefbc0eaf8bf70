"""Documents to arrays: the ids of each, and where its sentences, phrases and entities begin.

A document is encoded once, as a whole: its tokens are those that the tokenizer gives for it. Sentences and units are
found in the text, and the token that holds their first character is marked. Nothing here needs torch: it runs in the
processes of `formers prepare`, which encode chunks of documents, in order, each with one thread.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...config import JSONValue
from ...errors import Error
from ...text.normalise import HANGUL, compose_nfc
from ...text.sentences import find_names, find_sentence_spans
from ...text.tokenizer import Tokenizer
from ...text.worker_processes import ProcessPool
from .corpus_filters import HoldOut

COUNT_DESCRIPTIONS = {
    "spelled": "document(s) with a special token spelled out (it stays text)",
    "tokenless": "document(s) without a token left out",
    "single": "document(s) of one token, too short for an example",
    "unknown": "unknown token",
}
PHRASE_BIT, ENTITY_BIT = 1, 2  # bits of `units`: a phrase begins at this token, an entity begins
WORD_PATTERN = re.compile(r"\S+")
PHRASE_WORD_PATTERN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
MAX_PAIRS = 4_000_000  # pairs of words that are counted at a time
UNIT_BITS = {"phrase": PHRASE_BIT, "entity": ENTITY_BIT}
SentenceSplitter = Callable[[str], Iterable[int]]  # a text → where its sentences begin
UnitFinder = Callable[[str], Sequence[tuple[int, int, str]]]  # a text → (begin, end, "phrase" or "entity")


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents one after the other, those without a token left out."""

    ids: np.ndarray  # (n,)
    lengths: np.ndarray  # (documents,) int64
    sentence_starts: np.ndarray | None  # (sentences,) int64 tokens at which a sentence begins
    unit_bits: np.ndarray | None  # (n,) uint8
    counts: dict[str, int] = field(default_factory=dict)  # documents to be told of, by the names of COUNT_DESCRIPTIONS


def encode_documents(
    texts: Sequence[str], tokenizer: Tokenizer, split: SentenceSplitter | None = None, units: UnitFinder | None = None
) -> EncodedDocuments:
    """Encode documents, each with the end mark after it, if the tokenizer has one. A document is text: one that spells
    a special token ("[SEP]", "</s>") gets the pieces of these letters."""
    texts = list(texts)
    # Of each text: how many sentences it has, the bits of its units, the bits of what follows units inside a word.
    noted: list[tuple[int, list[int], list[int]]] = []

    def find_marked_places(text: str) -> list[int]:  # of sentences, then of units, of rests, of the units' ends
        begins = [] if split is None else list(split(text))
        starts, rests = ({}, {}) if units is None else find_unit_starts(text, units(text))
        noted.append((len(begins), list(starts.values()), list(rests.values())))
        return [*begins, *starts, *rests, *(at - 1 for at in rests)]

    rows: list[tuple[list[int], list[int]]]
    if split is find_tab_starts:
        rows = encode_pairs(texts, tokenizer)
        noted += [(len(row_ids), [], []) for _, row_ids in rows]
    elif split is None and units is None:
        rows = [(row, []) for row in tokenizer.encode_batch(texts, special=False, parse_special=False)]
    else:
        rows = tokenizer.encode_and_locate(texts, find_marked_places)
    kept = [i for i, (row, _) in enumerate(rows) if row]
    tail = [] if (end := tokenizer.id("eos")) is None else [end]
    lengths = np.array([len(rows[i][0]) + len(tail) for i in kept], np.int64)
    flat = itertools.chain.from_iterable(itertools.chain(rows[i][0], tail) for i in kept)
    tokens: np.ndarray = np.fromiter(flat, choose_id_dtype(len(tokenizer)), int(lengths.sum()))
    sentences: list[int] = []
    marks = None if units is None else np.zeros(len(tokens), np.uint8)
    for begin, i in zip((np.cumsum(lengths) - lengths).tolist(), kept, strict=True):
        row, row_ids = rows[i]
        if split is not None:
            sentences += (begin + token for token in sorted({0, *row_ids[: noted[i][0]]}))  # the first token always
        if marks is not None:
            num_sentences, start_bits, rest_bits = noted[i]
            rests = num_sentences + len(start_bits)
            ends = rests + len(rest_bits)
            for token, bits in zip(row_ids[num_sentences:rests], start_bits, strict=True):
                marks[begin + token] |= bits
            for token, last, bits in zip(row_ids[rests:ends], row_ids[ends:], rest_bits, strict=True):
                token += token == last  # a token that reaches beyond a unit belongs to it
                marks[begin + token : begin + len(row)][:1] |= bits
            marks[begin + len(row) :][: len(tail)] = PHRASE_BIT | ENTITY_BIT  # the end mark is a unit of its own
    counts = {"spelled": sum(map(tokenizer.has_special_spelling, texts)), "tokenless": len(rows) - len(kept)}
    counts["single"] = int(np.count_nonzero(lengths == 1))
    if (unknown := tokenizer.id("unk")) is not None:
        counts["unknown"] = int(np.count_nonzero(tokens == unknown))
    return EncodedDocuments(tokens, lengths, None if split is None else np.array(sentences, np.int64), marks, counts)


def choose_id_dtype(vocab: int) -> type:
    """Return the narrowest type that holds the ids of a vocabulary."""
    return np.uint16 if vocab <= 2**16 else np.uint32


def find_unit_starts(text: str, units: Sequence[tuple[int, int, str]]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the bits of each character at which a unit begins, and those of each at which the rest of a word follows
    a unit (a Korean particle, a full stop). What is in no unit is one word by word."""
    words = [m.start() for m in WORD_PATTERN.finditer(text)]
    starts: dict[int, int] = {}
    rests: dict[int, int] = {}
    for kind, bit in UNIT_BITS.items():
        spans = sorted((begin, end) for begin, end, k in units if k == kind)
        inside, at = -1, 0
        for begin, end in [*spans, (len(text), len(text))]:
            while at < len(words) and words[at] < begin:
                if words[at] >= inside:
                    starts[words[at]] = starts.get(words[at], 0) | bit
                at += 1
            if begin < inside or begin == len(text):
                continue  # it overlaps with the one before
            starts[begin] = starts.get(begin, 0) | bit
            inside = end
            while at < len(words) and words[at] < end:
                at += 1
            if end < len(text) and not text[end].isspace():
                rests[end] = rests.get(end, 0) | bit
    return starts, {at: new for at, bits in rests.items() if (new := bits & ~starts.get(at, 0))}


def find_tab_starts(text: str) -> list[int]:
    """Return where the sides of a pair begin: after each tab."""
    return [m.end() for m in re.finditer("\t", text)]


def encode_pairs(texts: Sequence[str], tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    """Encode pairs, a source and a target with a tab between them, each side alone, as it will be in use."""
    parts = [text.split("\t") for text in texts]
    encodings = iter(
        tokenizer.encode_batch([part for row in parts for part in row], special=False, parse_special=False)
    )
    rows = []
    for row in parts:
        ids: list[int] = []
        begins = []
        for _ in row:
            begins.append(len(ids))
            ids += next(encodings)
        rows.append((ids, [begin for begin in begins if begin < len(ids)]))
    return rows


def get_splitter(name: str | None) -> SentenceSplitter | None:
    """Return the function that cuts documents into sentences by rules, kiwi, or at tabs (pairs); None: not at all."""
    if name is None:
        return None
    if name == "tabs":
        return find_tab_starts
    if name == "kiwi":
        from ...text import korean

        return korean.find_sentence_starts
    return lambda text: [begin for begin, _ in find_sentence_spans(text)]


ChunkProgress = tuple[int, str, int]  # documents so far, a hash of their text, bytes of this chunk
Chunk = tuple[ChunkProgress, list[str]]
EncodedChunk = tuple[ChunkProgress, dict[str, EncodedDocuments]]  # by the part of the store


# --- phrases: pairs of words that stand together more often than chance (Mikolov et al. 2013b, §4)


class PhraseCounter:
    """Counts of words and of pairs of words, from which phrases are learned."""

    def __init__(self) -> None:
        self.words, self.pairs = Counter[str](), Counter[tuple[str, str]]()

    def count_documents(self, documents: Iterable[str]) -> Iterator[str]:
        """Yield documents, and count their words and pairs."""
        for text in documents:
            matches = list(PHRASE_WORD_PATTERN.finditer(text))
            self.words.update(m.group().lower() for m in matches)
            joined = ((a, b) for a, b in itertools.pairwise(matches) if text[a.end() : b.start()] == " ")
            self.pairs.update((a.group().lower(), b.group().lower()) for a, b in joined)
            if len(self.pairs) > MAX_PAIRS:  # memory stays bounded: what was seen once goes
                self.pairs = Counter({pair: n for pair, n in self.pairs.items() if n > 1})
                while len(self.pairs) > MAX_PAIRS // 2:
                    self.pairs = Counter(dict(self.pairs.most_common(MAX_PAIRS // 4)))
            yield text

    def choose_phrases(self, min_count: float = 10, discount: float = 5.0, threshold: float = 100.0) -> list[str]:
        """Return pairs with (count(ab) - discount) · words / (count(a) · count(b)) above the threshold, best first."""
        total = self.words.total()
        often = ((a, b, n) for (a, b), n in self.pairs.items() if n >= min_count)
        score = {f"{a} {b}": (n - discount) * total / (self.words[a] * self.words[b]) for a, b, n in often}
        return sorted((p for p, s in score.items() if s > threshold), key=lambda p: (-score[p], p))


def learn_phrases(documents: Iterable[str], **limits: float) -> list[str]:
    """Return the phrases of documents, by the limits of `PhraseCounter.choose_phrases`."""
    counter = PhraseCounter()
    deque(counter.count_documents(documents), maxlen=0)
    return counter.choose_phrases(**limits)


def read_phrases(path: Path) -> list[str]:
    """Read a list of phrases, one a line."""
    try:
        text = compose_nfc(path.read_text(encoding="utf-8-sig"))
        return [line.strip().lower() for line in text.splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise Error("cannot be read as a list of phrases", where=path, fix="one phrase a line, in UTF-8") from None


ENTITY_MARK = "\tentity"  # at the end of a line of a list: an entity, not a phrase


def build_unit_finder(lines: Sequence[str]) -> Callable[[str], list[tuple[int, int, str]]]:
    """Make a finder of units: phrases of a list (pairs that share a word join); its lines that end with TAB entity,
    names and numbers are entities. A Korean entity may be followed by its particle."""
    phrases = [line for line in lines if not line.endswith(ENTITY_MARK)]
    entities = sorted({line.removesuffix(ENTITY_MARK).strip() for line in lines} - {*phrases}, key=len, reverse=True)
    listed = "|".join(re.escape(name) + ("" if HANGUL.match(name[-1]) else r"(?!\w)") for name in entities if name)
    entity_pattern = re.compile(rf"(?<!\w)(?:{listed})", re.IGNORECASE) if listed else None
    known = {tuple(phrase.split()[i : i + 2]) for phrase in phrases for i in range(len(phrase.split()) - 1)}

    def find_units(text: str) -> list[tuple[int, int, str]]:
        out: list[tuple[int, int, str]] = []
        before = None
        for match in PHRASE_WORD_PATTERN.finditer(text):
            if (
                before is not None
                and (before.group().lower(), match.group().lower()) in known
                and text[before.end() : match.start()].isspace()
            ):
                joined = bool(out) and out[-1][1] == before.end()
                out[-1 if joined else len(out) :] = [(out[-1][0] if joined else before.start(), match.end(), "phrase")]
            before = match
        listed_spans = [match.span() for match in entity_pattern.finditer(text)] if entity_pattern else []
        # What a list says wins over a name that overlaps it.
        names = [(a, b) for a, b in find_names(text) if not any(a < end and begin < b for begin, end in listed_spans)]
        return out + [(begin, end, "entity") for begin, end in sorted(listed_spans + names)]

    return find_units


# --- workers

VALIDATION_PART = "validation"  # what the files of a store call its validation part,
OLD_VALIDATION_PART = "held"  # and what those called it that were made before 0.1


def rename_parts(parts: Mapping[str, JSONValue]) -> dict[str, JSONValue]:
    """Return the parts of a store by their names of today; their files keep the names that they have."""
    return {VALIDATION_PART if name == OLD_VALIDATION_PART else name: about for name, about in parts.items()}


@dataclass(frozen=True)
class PrepareOptions:
    """What decides the bytes of a store beside its text and tokenizer."""

    splitter: str | None = "rules"
    units: str | None = None
    held_out: float = 0.0  # for validation, under the name that stores keep it by
    deduplicate: str | None = None
    shard: int = 128 << 20  # tokens
    unit: str | None = None
    column: str | None = None
    drop_tests: bool = False
    encoding: str = "utf-8"
    skip: bool = False
    tests_column: str | None = None
    delimiter: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise Error(f"a share of {self.held_out} cannot be held out", fix="give for example 0.01 or 1%")
        if not 0 < self.shard < 2**32:
            raise Error(f"a shard cannot have {self.shard:,} tokens", fix="take for example 100 million")
        splitters, kinds = ("rules", "kiwi", "tabs"), ("exact", "near")
        for name, value, known in (("splitter", self.splitter, splitters), ("deduplicate", self.deduplicate, kinds)):
            if value not in (None, *known):
                raise Error(f"there is no {name} {value!r}", fix=f"choose {' or '.join(known)}, or leave it out")


class EncoderPool:
    """Encodes chunks in order, here (workers = 0) or in processes of its own."""

    def __init__(self, workers: int, tokenizer: Tokenizer, options: PrepareOptions, where: Path):
        self.workers = workers
        self.worker_args = (tokenizer.json_text, dict(tokenizer.special), options, where)
        self.executor: ProcessPool | None = None

    def __enter__(self) -> EncoderPool:
        if self.workers:
            self.executor = ProcessPool(self.workers, initializer=start_worker, initargs=self.worker_args)
        else:
            init_worker(*self.worker_args)
        return self

    def __exit__(self, *_: object) -> None:
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)

    def map(self, chunks: Iterable[Chunk]) -> Iterator[EncodedChunk]:
        """Yield the chunks' arrays, in the chunks' order; a few chunks are ahead."""
        if self.executor is None:
            yield from map(encode_chunk, chunks)
            return
        try:
            for _, job in self.executor.map_ahead(encode_chunk, chunks, 2 * self.workers):
                yield job.result()
        except BrokenProcessPool:
            fix = "is there enough memory? take fewer workers, and run the same again: finished shards stay"
            raise Error("a worker process ended before its work was done", fix=fix) from None


class WorkerTools(NamedTuple):
    """What a worker process encodes with, made once."""

    tokenizer: Tokenizer
    split: SentenceSplitter | None
    find_units: UnitFinder | None
    is_held_out: HoldOut | None


WORKER_TOOLS: list[WorkerTools] = []  # of this process: one, when it is set up


def start_worker(text: str, special: dict[str, str], options: PrepareOptions, where: Path) -> None:
    """Set up a worker process: one thread, and Ctrl-C is for the main process alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    init_worker(text, special, options, where)


def init_worker(text: str, special: dict[str, str], options: PrepareOptions, where: Path) -> None:
    """Make the tools that `encode_chunk` uses in this process."""
    find_units: UnitFinder | None = None
    if options.units == "kiwi":
        from ...text.korean import find_units
    elif options.units:
        list_path = where / "phrases.txt" if options.units == "learn" else Path(options.units)
        find_units = build_unit_finder(read_phrases(list_path))
    hold_out = HoldOut(ratio=options.held_out) if options.held_out else None
    WORKER_TOOLS[:] = [WorkerTools(Tokenizer(text, special), get_splitter(options.splitter), find_units, hold_out)]


def encode_chunk(chunk: Chunk) -> EncodedChunk:
    """Encode one chunk, for each part of the store."""
    (reached, texts), (tokenizer, split, units, is_held_out) = chunk, WORKER_TOOLS[0]
    sides: dict[str, list[str]] = {"train": texts}
    if is_held_out is not None:
        sides = {"train": [], VALIDATION_PART: []}
        for text in texts:
            sides[VALIDATION_PART if is_held_out(text) else "train"].append(text)
    return reached, {part: encode_documents(some, tokenizer, split, units) for part, some in sides.items()}
