"""Step 3 of a task's data: `Examples` become `EncodedExamples`, from which batches are made.

`encode_examples(task, rows, encoder)` turns each row of step 2 (examples.py) into tokens, with the family's marks
around them, and its answer into numbers; texts that are too long become windows. A `TaskEncoder` does that for one
model. The result (data/encoded_examples.py) makes batches: `make_batch(examples)`.

Texts without a task, whose tokens are looked at one by one, become `TokenizedText` by `tokenize_texts`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..batch import IGNORE_INDEX
from ..config import JSONValue, count_noun, format_value
from ..data.encoded_examples import EncodedExamples, ExampleCollector
from ..errors import Error
from ..former import Former
from ..task import Task, get_frame
from ..text import word_level
from ..text.languages import swap_template_language
from ..text.normalise import normalise
from ..text.tokenizer import Offsets, Template, Tokenizer
from ..text.word_level import WORD_PATTERN

Ids = np.ndarray  # (n,) tokens, or (n, slots) characters
Span = tuple[int, int]  # from a character, or a token, to another
Rows = Sequence[Mapping[str, JSONValue]]  # examples in the form of their task (examples.py)
SENTENCE_MARKS = (word_level.SENTENCE_BEGIN, word_level.SENTENCE_END)
DEFAULT_WINDOW = 1024  # tokens at once, for attention without a limit of its own


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer of a model, which must have one."""
    if tokenizer is None:
        raise Error("this model has no tokenizer", fix="put its tokenizer.json into the same folder")
    return tokenizer


@dataclass(frozen=True)
class TaskEncoder:
    """Encodes the texts of a task for one model: tokenizer, marks, length and segments."""

    tokenizer: Tokenizer | None  # a model that reads characters can do without
    single_frame: Template  # around a text
    pair_frame: Template  # around a pair
    max_length: int
    has_segments: bool
    slots: int | None  # the characters of a word, of models that read those
    prefix: str = ""

    @staticmethod
    def from_former(former: Former, task: Task) -> TaskEncoder:
        """Make the encoder of a model and its task."""
        slots, tokenizer = former.config.slots if former.definition.reads_characters else None, former.tokenizer
        if slots:
            single = pair = make_character_frame(slots)
        else:
            own = require_tokenizer(tokenizer)
            frames = (get_frame(own, two) for two in (False, True))
            single, pair = (swap_template_language(own, frame, task.source_language) for frame in frames)
        length = min(task.length, former.context or task.length)
        return TaskEncoder(tokenizer, single, pair, length, former.can_read_segments, slots, task.prefix)

    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        """Return the tokens of texts, without marks; a text without tokens becomes one placeholder."""
        texts = [self.prefix + text for text in texts]
        if self.slots:
            words = [WORD_PATTERN.findall(text) or ["?"] for text in texts]
            return [word_level.encode_sentence(row, self.slots, marks=False) for row in words]
        rows = require_tokenizer(self.tokenizer).encode_batch(texts, special=False, parse_special=False)
        return [np.array(row or [self.placeholder_id], np.int64) for row in rows]

    def tokenize_with_offsets(self, texts: Sequence[str]) -> list[tuple[Ids, Offsets]]:
        """Return the tokens of texts, and where in its text each stands."""
        if self.slots:
            word_rows = [find_words(text) for text in texts]
            return [(word_level.encode_sentence(words, self.slots, marks=False), spans) for spans, words in word_rows]
        rows = require_tokenizer(self.tokenizer).encode_batch_with_offsets(texts, special=False, parse_special=False)
        return [(np.array(ids, np.int64), offsets) for ids, offsets in rows]

    def describe_unknown(self, data: EncodedExamples) -> str:
        """Describe how many tokens of examples the tokenizer does not know; empty if it knows all."""
        if self.slots or require_tokenizer(self.tokenizer).is_byte_level:
            return ""
        index = require_tokenizer(self.tokenizer).id("unk")
        count = 0 if index is None else int(np.count_nonzero(data.ids == index))
        return f"{count:,} of {len(data.ids):,} tokens unknown" if count else ""

    @property
    def placeholder_id(self) -> int:
        """The id that stands for a text without tokens."""
        tokenizer = require_tokenizer(self.tokenizer)
        return next((i for r in ("unk", "eos", "pad") if (i := tokenizer.id(r)) is not None), 0)

    def compute_capacity(self, pair: bool = False) -> int:
        """Return how many tokens of text fit between the marks."""
        frame = self.pair_frame if pair else self.single_frame
        left = self.max_length - len(frame.before) - len(frame.between) * pair - len(frame.after)
        if left < 2:
            raise Error(f"{self.max_length} tokens leave no room for text", fix="take a larger length")
        return left

    def build_inputs(self, first: Ids, second: Ids | None = None) -> tuple[Ids, np.ndarray | None, int, int]:
        """Return the ids with their marks, the segments if the model reads them, and where the two texts begin."""
        frame = self.single_frame if second is None else self.pair_frame
        before, a, between, b, after = frame.segments
        parts, segments = [frame.before, first], [*before, *[a] * len(first)]
        if second is not None:
            parts += [frame.between, second]
            segments += [*between, *[b] * len(second)]
        ids = np.concatenate([np.asarray(p, np.int64).reshape(-1, *first.shape[1:]) for p in (*parts, frame.after)])
        begin = len(frame.before)
        then = begin + len(first) + (len(frame.between) if second is not None else 0)
        return ids, np.array([*segments, *after], np.int64) if self.has_segments else None, begin, then

    def list_windows(self, count: int, room: int, stride: int) -> list[Span]:
        """List windows of at most `room` out of `count` tokens, each sharing up to `stride` with the next one."""
        step = room - min(stride, room // 2)
        return [(low, min(count, low + room)) for low in range(0, max(1, count - room + step), step)]


def make_character_frame(slots: int) -> Template:
    """Make the frame of a sentence of words spelled out."""
    begin, end = (np.array([word_level.pad_word([mark], slots)]) for mark in SENTENCE_MARKS)
    return Template(begin, end, end, ((0,), 0, (0,), 0, (0,)))  # type: ignore[arg-type]


def encode_examples(task: Task, rows: Rows, encoder: TaskEncoder, labels: Sequence[str] = ()) -> EncodedExamples:
    """Encode the rows of some examples; of a row without an answer (label, tags, answers, target), the text alone.
    `labels` are those that the model knows, in their order."""
    encoders = {"tags": encode_tags, "span": encode_questions, "choice": encode_choices, "text": encode_targets}
    return encoders.get(task.kind, encode_classification)(task, rows, encoder, labels)


def encode_classification(task: Task, rows: Rows, encoder: TaskEncoder, labels: Sequence[str]) -> EncodedExamples:
    """Encode texts, or pairs of them, that have one label: a class, several classes, or a number."""
    answer, collector, lost = make_label_encoder(task, labels), ExampleCollector(), Counter[str]()
    first = encoder.tokenize([str(row["text"]) for row in rows])
    has_second = [i for i, row in enumerate(rows) if row.get("other") is not None]
    others = dataclasses.replace(encoder, prefix="").tokenize([str(rows[i]["other"]) for i in has_second])
    second = dict(zip(has_second, others, strict=True))
    for number, row in enumerate(rows):
        label = answer(row)
        room = encoder.compute_capacity(number in second)
        check_fits(task, number, len(first[number]) + len(second.get(number, ())), room)
        lost.update(find_truncated(task, first[number], second.get(number), room))
        for a, b in split_windows(task, encoder, first[number], second.get(number)):
            orders = [(a, b)] if b is None or not task.both_orders else [(a, b), (b, a)]
            for turn, (one, two) in enumerate(orders):
                ids, segments, *_ = encoder.build_inputs(one, two)
                collector.add_document(ids, segments, label if not turn else ignore_label(label))
            collector.add_example(number, len(orders))
    warn_truncated(lost, encoder)
    return collector.pack()


def check_fits(task: Task, number: int, size: int, room: int, what: str = "text") -> None:
    """Refuse a text that is too long, if the task asks for it."""
    if size > room and task.long == "error":
        fix = "take shorter texts, or let long='windows' read them in parts"
        raise Error(f"{what} {number + 1} has {size:,} tokens, and {room} fit", fix=fix)


def find_truncated(task: Task, a: Ids, b: Ids | None, room: int) -> list[str]:
    """Find what of a text or a pair is in no window."""
    if len(a) + len(() if b is None else b) <= room:
        return []
    if task.long == "cut":
        return ["text"]
    return ["shorter side"] if b is not None and min(len(a), len(b)) > room // 2 else []


def warn_truncated(lost: Mapping[str, int], encoder: TaskEncoder) -> None:
    """Warn about texts that were cut, with their number."""
    if cut := [count_noun(count, what) for what, count in lost.items() if count]:
        message = f"{' and '.join(cut)} cut to fit into {encoder.max_length} tokens"
        warnings.warn(f"{message}: tune.seq_length sets this, and long='error' refuses them", stacklevel=3)


def make_label_encoder(task: Task, labels: Sequence[str]) -> Callable[[Mapping[str, JSONValue]], np.ndarray]:
    """Make a function from a row to its label in numbers; a missing label is one that the loss ignores."""
    index = {label: i for i, label in enumerate(labels)}

    def look_up_label(label: object) -> int:
        if str(label) not in index:
            shown = ", ".join(list(index)[:8]) + (" …" if len(index) > 8 else "")
            raise Error(f"the label {format_value(label)} was not seen in training", fix=f"known labels: {shown}")
        return index[str(label)]

    def encode_label(row: Mapping[str, JSONValue]) -> np.ndarray:
        label = row.get("label")
        if task.kind == "number":
            return np.array([0.0, 0.0] if label is None else [float(label), 1.0], np.float32)
        if task.kind == "many":
            if label is None:
                return np.full(len(labels), IGNORE_INDEX, np.float32)
            numbers = {look_up_label(one) for one in ([label] if isinstance(label, str) else label)}
            return np.array([i in numbers for i in range(len(labels))], np.float32)
        if isinstance(label, list | tuple):
            fix = "leave tune.multilabel out, or set it true; else give one label and no list"
            raise Error(f"a row has a list of labels, {format_value(label)}, and the task has one label", fix=fix)
        return np.array(IGNORE_INDEX if label is None else look_up_label(label), np.int64)

    return encode_label


def ignore_label(answer: np.ndarray) -> np.ndarray:
    """Return labels of this shape that the loss ignores."""
    return np.full_like(answer, IGNORE_INDEX)


def split_windows(task: Task, encoder: TaskEncoder, a: Ids, b: Ids | None) -> list[tuple[Ids, Ids | None]]:
    """Split a text or a pair to fit: whole, or in windows over the longer text (the other keeps half of the room)."""
    room = encoder.compute_capacity(b is not None)
    if len(a) + len(() if b is None else b) <= room:
        return [(a, b)]
    turned = b is not None and len(a) > len(b)
    short, long = (None, a) if b is None else (b[: room // 2], a) if turned else (a[: room // 2], b)
    left = room - (0 if short is None else len(short))
    spans = [(0, left)] if task.long == "cut" else encoder.list_windows(len(long), left, task.stride)
    parts = [long[low:high] for low, high in spans]
    return [(short, part) if short is not None and not turned else (part, short) for part in parts]


def join_pair(row: Mapping[str, JSONValue], other_prefix: str = "") -> str:
    """Return a text, or a pair as one text, with `other_prefix` in front of its second side."""
    return str(row["text"]) if row.get("other") is None else f"{row['text']} {other_prefix}{row['other']}"


def encode_choices(task: Task, rows: Rows, encoder: TaskEncoder, labels: Sequence[str]) -> EncodedExamples:
    """Encode a text with each of its choices; one of them is right. What does not fit loses its beginning."""
    collector, room, lost = ExampleCollector(), encoder.compute_capacity(True), Counter[str]()
    first = encoder.tokenize([join_pair(row) for row in rows])
    for number, row in enumerate(rows):
        choices = list(row["choices"])
        if len(choices) < 2:
            raise Error(
                f"question {number + 1} has {count_noun(len(choices), 'choice')}", fix="give two choices or more"
            )
        pieces = encoder.tokenize([str(choice) for choice in choices])
        longest = max(map(len, pieces))
        check_fits(task, number, len(first[number]) + longest, room, "question")
        lost["question"] += len(first[number]) + longest > room
        lost["choice"] += sum(len(b) >= room for b in pieces)
        for turn, b in enumerate(pieces):
            b = b[: room - 1]
            a = first[number][max(0, len(first[number]) + len(b) - room) :]
            ids, segments, *_ = encoder.build_inputs(a, b)
            label = row.get("label")
            collector.add_document(ids, segments, np.int64(IGNORE_INDEX if label is None else int(label) == turn))
        collector.add_example(number, len(choices))
    warn_truncated(lost, encoder)
    return collector.pack()


def encode_tags(task: Task, rows: Rows, encoder: TaskEncoder, labels: Sequence[str]) -> EncodedExamples:
    """Encode words of which each has a tag; the first piece of a word answers for it. `offsets` names that word."""
    index, collector = {label: i for i, label in enumerate(labels)}, ExampleCollector()
    texts = [" ".join(row["words"]) for row in rows]
    for number, (row, (ids, offsets)) in enumerate(zip(rows, encoder.tokenize_with_offsets(texts), strict=True)):
        word = find_first_pieces(row["words"], offsets)
        tags = row.get("tags")
        for tag in (tag for tag in tags or () if tag not in index):
            fix = f"known: {', '.join(list(index)[:12])}"
            raise Error(f"the tag {format_value(tag)} was not seen in training", fix=fix)
        token_labels = [IGNORE_INDEX if w < 0 or not tags else index[tags[w]] for w in word]
        count, room = len(ids), encoder.compute_capacity()
        check_fits(task, number, count, room)
        for low, high in encoder.list_windows(count, room, task.stride):
            text = ids[low:high] if count else np.array([encoder.placeholder_id])
            input_ids, segments, begin, _ = encoder.build_inputs(text)
            marks = np.full(len(input_ids), IGNORE_INDEX)
            where = np.full((len(input_ids), 2), -1)
            # Of the tokens that two windows share, each window answers for the half that is nearer to its middle.
            shared = min(task.stride, room // 2)
            left = low + (shared // 2 if low else 0)
            right = high if high == count else high - (shared - shared // 2)
            here = slice(begin + left - low, begin + right - low)
            marks[here], where[here, 0] = token_labels[left:right], word[left:right]
            collector.add_document(input_ids, segments, labels=marks, offsets=where)
            collector.add_example(number)
    return collector.pack()


def find_first_pieces(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Find of each token the word whose first piece it is, else -1; words are joined by one space each."""
    ends = np.cumsum([len(word) + 1 for word in words])
    firsts, seen = [], -1
    for begin, end in offsets:
        # A piece may begin with the space before its word.
        word = int(np.searchsorted(ends, max(begin, end - 1), side="right"))
        firsts.append(word if word > seen and end > begin and word < len(words) else -1)
        seen = max(seen, word)
    return firsts


def encode_questions(task: Task, rows: Rows, encoder: TaskEncoder, labels: Sequence[str]) -> EncodedExamples:
    """Encode a question and its context in windows; the answer is a span of tokens, or none: at the first mark (of
    XLNet the last). `offsets` says where in the context a token stands."""
    collector, whole, lost = ExampleCollector(), encoder.compute_capacity(True), Counter[str]()
    pads_left = encoder.tokenizer is not None and encoder.tokenizer.is_left_padded
    questions = encoder.tokenize([str(row["question"]) for row in rows])
    contexts = encoder.tokenize_with_offsets([row["context"] for row in rows])
    for number, (row, (ids, offsets)) in enumerate(zip(rows, contexts, strict=True)):
        check_fits(task, number, len(questions[number]) + len(ids), whole, "question, with its context,")
        lost["question"] += len(questions[number]) > whole // 2
        question = questions[number][: whole // 2]
        room = whole - len(question)
        spans = [(a["start"], a["start"] + len(a["text"])) for a in row.get("answers") or () if a["text"]]
        edges = np.array(offsets, np.int64).reshape(-1, 2)
        for low, high in encoder.list_windows(len(ids), room, task.stride):
            input_ids, segments, _, then = encoder.build_inputs(question, ids[low:high])
            where = np.full((len(input_ids), 2), -1)
            where[then : then + high - low] = edges[low:high]
            no_answer = len(input_ids) - 1 if pads_left else 0
            answer = np.array([no_answer, no_answer], np.int64)
            if spans:
                inside = np.flatnonzero((edges[low:high, 1] > spans[0][0]) & (edges[low:high, 0] < spans[0][1]))
                if len(inside) and edges[low:high, 0].min() <= spans[0][0] and edges[high - 1, 1] >= spans[0][1]:
                    answer = np.array([then + inside[0], then + inside[-1]], np.int64)
            elif "answers" not in row:
                answer = ignore_label(answer)
            collector.add_document(input_ids, segments, answer, offsets=where)
            collector.add_example(number)
    warn_truncated(lost, encoder)
    return collector.pack()


def encode_targets(task: Task, rows: Rows, encoder: TaskEncoder, labels: Sequence[str]) -> EncodedExamples:
    """Encode a text from which a decoder writes another; both end with the end mark, or have the marks of the
    tokenizer's template if the task names a target language (mBART)."""
    own = require_tokenizer(encoder.tokenizer)
    other = own.target or own
    end = next((i for role in ("eos", "sep") if (i := other.id(role)) is not None), None)
    if end is None:
        raise Error("this tokenizer has no end mark", fix="train one with eos")
    frame = Template((), (), (end,), ((), 0, (), 0, (0,)))
    if task.target_language:
        frame = swap_template_language(other, other.get_template(), task.target_language)
    most = max(1, task.max_output_tokens - len(frame.before) - len(frame.after))  # tokens of a target's text
    collector, room = ExampleCollector(), encoder.compute_capacity()
    sources = encoder.tokenize([join_pair(row, task.other_prefix) for row in rows])
    if task.label_as_text:
        target_texts = ["" if row.get("label") is None else task.format_label(row["label"]) for row in rows]
    else:
        target_texts = [str(row.get("target") or "") for row in rows]
    targets = other.encode_batch(target_texts, special=False, parse_special=False)
    over = sum(len(s) > room for s in sources), sum(len(t) > most for t in targets)
    if any(over) and (over[1] or task.long != "error"):
        limits = (("text", room, "seq_length"), ("target", task.max_output_tokens, "max_output_tokens"))
        for (noun, most_tokens, setting), count in zip(limits, over, strict=True):
            if count:
                what = f"{count_noun(count, noun)} cut to {most_tokens} tokens"
                warnings.warn(f"{what}: {setting} sets this", stacklevel=2)
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        check_fits(task, number, len(source), room)
        ids, segments, *_ = encoder.build_inputs(source[:room])
        collector.add_document(ids, segments, target=[*frame.before, *target[:most], *frame.after])
        collector.add_example(number)
    return collector.pack()


@dataclass(frozen=True)
class TokenizedText:
    """The tokens of a text, their spans and their ids (or characters, or nothing), with the marks before and after."""

    text: str
    tokens: list[str]
    spans: list[Span]
    ids: Tensor  # (T,) or (T, slots)
    prefix_ids: Tensor
    suffix_ids: Tensor


def tokenize_texts(former: Former, texts: Sequence[str]) -> list[TokenizedText]:
    """Tokenize texts, composed to NFC first, with the family's marks beside them."""
    whole = [normalise(text) for text in texts]
    tokenized_texts: list[TokenizedText] = []
    if former.definition.reads_characters or former.definition.is_static:  # ELMo, or a table of word vectors
        for text in whole:
            spans, names = find_words(text)
            ids, *marks = (torch.zeros(0, dtype=torch.long),) * 3
            if former.definition.reads_characters:
                slots = former.config.slots
                ids = torch.from_numpy(word_level.encode_sentence(names, slots, marks=False))
                marks = [torch.tensor([word_level.pad_word([mark], slots)]) for mark in SENTENCE_MARKS]
            tokenized_texts.append(TokenizedText(text, names, spans, ids, *marks))
        return tokenized_texts
    if former.tokenizer is None:
        raise Error(f"this {former.family} has no tokenizer", fix="load it with its tokenizer, or use hidden(ids)")
    frame = former.tokenizer.get_template()
    before, after = (torch.tensor(part, dtype=torch.long) for part in (frame.before, frame.after))
    rows = former.tokenizer.encode_batch_with_offsets(whole, special=False, parse_special=False)
    for text, (row, spans) in zip(whole, rows, strict=True):
        names = [former.tokenizer.get_token_text(i) for i in row]
        tokenized_texts.append(TokenizedText(text, names, spans, torch.tensor(row, dtype=torch.long), before, after))
    return tokenized_texts


def encode_marked_rows(former: Former, texts: Sequence[str]) -> list[np.ndarray]:
    """Encode texts as `tokenize_texts` does, to ids with the family's marks and nothing else, which is much faster."""
    assert former.tokenizer is not None
    frame = former.tokenizer.get_template()
    rows = former.tokenizer.encode_batch([normalise(text) for text in texts], special=False, parse_special=False)
    return [np.array([*frame.before, *row, *frame.after], np.int64) for row in rows]


def find_words(text: str) -> tuple[list[Span], list[str]]:
    """Find the words and punctuation marks of a text: their spans and their strings."""
    matches = list(WORD_PATTERN.finditer(text))
    return [m.span() for m in matches], [m.group() for m in matches]


def find_nearest_window(spans: list[Span], places: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the window whose middle is nearest to each place; of two equally near, the first."""
    middles = np.array([(low + high - 1) / 2 for low, high in spans])
    return np.searchsorted((middles[1:] + middles[:-1]) / 2, places)


def find_window_limit(former: Former, window: int | None) -> int | None:
    """Return the most tokens that are read at once, marks included: the context, or `window` if that is less."""
    limit = former.context
    if window is not None:
        return window if limit is None else min(window, limit)
    if limit is None and former.config.heads:  # attention, whose cost grows with the square
        return DEFAULT_WINDOW
    return limit


def make_windows(former: Former, piece: TokenizedText, window: int | None) -> list[Span]:
    """Cut a text into windows that fit the context, each half in the next one."""
    limit = find_window_limit(former, window)
    total = len(piece.ids)
    if limit is None:
        return [(0, total)]
    room = limit - len(piece.prefix_ids) - len(piece.suffix_ids)
    if room < 1:
        raise Error(f"a window of {limit} tokens has no room for text", fix="take a larger one")
    if total <= room:
        return [(0, total)]
    last = total - room
    return [(low, low + room) for low in [*range(0, last, max(1, room // 2)), last]]
