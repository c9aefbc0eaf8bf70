"""How texts become tokens for a task: the family's marks around them, windows over what is too long. Rows of a task
become examples: which tokens a model reads, and what is asked of it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..batch import IGNORE_INDEX
from ..config import format_value
from ..data.encoded_examples import EncodedExamples, ExampleCollector
from ..errors import Error
from ..task import Task, get_frame
from ..text import word_level
from ..text.tokenizer import Offsets, Template, Tokenizer
from ..text.word_level import WORD_PATTERN

Ids = np.ndarray  # (n,) tokens, or (n, slots) characters


@dataclass(frozen=True)
class TaskEncoder:
    """What one model needs to read texts."""

    tokenizer: Tokenizer
    single_frame: Template  # around a text
    pair_frame: Template  # around a pair
    max_length: int
    has_segments: bool
    slots: int | None  # the characters of a word, of models that read those
    prefix: str = ""

    @staticmethod
    def from_former(former: Any, task: Task) -> TaskEncoder:
        """For a model and its task."""
        tokenizer = former.tokenizer
        if tokenizer is None:
            raise Error("this model has no tokenizer", fix="put its tokenizer.json beside it")
        slots = former.config.slots if former.definition.reads_characters else None
        frames = (
            (make_character_frame(slots), make_character_frame(slots))
            if slots
            else (get_frame(tokenizer, False), get_frame(tokenizer, True))
        )
        limit = former.context
        length = task.length if limit is None else min(task.length, limit)
        return TaskEncoder(tokenizer, *frames, length, former.can_read_segments, slots, task.prefix)

    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        """The tokens of texts, without marks; a text of no tokens is one unknown one."""
        texts = [self.prefix + text for text in texts]
        if self.slots:
            words = [WORD_PATTERN.findall(text) or ["?"] for text in texts]
            return [word_level.encode_sentence(row, self.slots, marks=False) for row in words]
        rows = self.tokenizer.encode_batch(texts, special=False, parse_special=False)
        return [np.array(row or [self.placeholder_id], np.int64) for row in rows]

    def tokenize_with_offsets(self, texts: Sequence[str]) -> list[tuple[Ids, Offsets]]:
        """The tokens of texts, and where in its text each stands."""
        if self.slots:
            found = [list(WORD_PATTERN.finditer(text)) for text in texts]
            return [
                (word_level.encode_sentence([m[0] for m in row], self.slots, marks=False), [m.span() for m in row])
                for row in found
            ]
        rows = self.tokenizer.encode_batch_with_offsets(texts, special=False, parse_special=False)
        return [(np.array(ids, np.int64), offsets) for ids, offsets in rows]

    def describe_unknown(self, data: Any) -> str:
        """How many of the tokens of examples the tokenizer does not know, in words; nothing where it knows all."""
        index = None if self.slots or self.tokenizer.is_byte_level else self.tokenizer.id("unk")
        sides = [data.ids] if index is not None else []
        count = sum(int(np.count_nonzero(side == index)) for side in sides)
        return f"{count:,} of {sum(map(len, sides)):,} tokens unknown" if count else ""

    @property
    def placeholder_id(self) -> int:
        """What stands for a text of no tokens."""
        return next((i for r in ("unk", "eos", "pad") if (i := self.tokenizer.id(r)) is not None), 0)

    def compute_capacity(self, pair: bool = False) -> int:
        """Tokens of text that fit between the marks."""
        frame = self.pair_frame if pair else self.single_frame
        left = self.max_length - len(frame.before) - len(frame.between) * pair - len(frame.after)
        if left < 2:
            raise Error(f"{self.max_length} tokens leave no room for text", fix="take a larger length")
        return left

    def build_inputs(self, first: Ids, second: Ids | None = None) -> tuple[Ids, np.ndarray | None, int, int]:
        """The ids with their marks, the segments if the model reads them, and where the two texts begin."""
        frame = self.single_frame if second is None else self.pair_frame
        parts = [frame.before, first, frame.between, second, frame.after] if second is not None else None
        parts = [frame.before, first, frame.after] if parts is None else parts
        ids = np.concatenate([np.asarray(p, np.int64).reshape(-1, *first.shape[1:]) for p in parts if p is not None])
        begin = len(frame.before)
        then = begin + len(first) + (len(frame.between) if second is not None else 0)
        if not self.has_segments:
            return ids, None, begin, then
        before, a, between, b, after = frame.segments
        row = [*before, *[a] * len(first)]
        row += [*after] if second is None else [*between, *[b] * len(second), *after]
        return ids, np.array(row, np.int64), begin, then

    def iter_windows(self, count: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
        """Stretches of at most `room` tokens over so many, sharing up to `stride` with the next one."""
        step = room - min(stride, room // 2)
        low = 0
        while True:
            yield low, min(count, low + room)
            if low + room >= count:
                return
            low += step


def make_character_frame(slots: int) -> Template:
    """The marks of a sentence of words spelled out."""
    begin, end = (
        np.array([word_level.pad_word([mark], slots)]) for mark in (word_level.SENTENCE_BEGIN, word_level.SENTENCE_END)
    )
    return Template(begin, end, end, ((0,), 0, (0,), 0, (0,)))  # type: ignore[arg-type]


Rows = Sequence[Mapping[str, Any]]
LabelEncoder = Callable[[Mapping[str, Any]], Any]


def encode(task: Task, rows: Rows, reader: TaskEncoder, labels: Sequence[str] = ()) -> EncodedExamples:
    """The examples of some rows; a row without what is asked (label, tags, answers, target) is only read."""
    ways = {"tags": encode_tags, "span": encode_questions, "choice": encode_choices, "text": encode_targets}
    if task.kind in ways:
        return ways[task.kind](task, rows, reader, labels)
    return encode_classification(task, rows, reader, labels)


def encode_classification(task: Task, rows: Rows, reader: TaskEncoder, labels: Sequence[str]) -> EncodedExamples:
    """Texts, or pairs of them, of which one thing is asked: a class, several, or a number."""
    answer, sheet, lost = make_label_encoder(task, labels), ExampleCollector(), Counter[str]()
    first = reader.tokenize([str(row["text"]) for row in rows])
    second = tokenize_second_texts(rows, reader)
    for number, row in enumerate(rows):
        said = answer(row)
        room = reader.compute_capacity(number in second)
        check_fits(task, number, len(first[number]) + len(second.get(number, ())), room)
        lost.update(find_truncated(task, first[number], second.get(number), room))
        for a, b in split_windows(task, reader, first[number], second.get(number)):
            ways = [(a, b)] if b is None or not task.both_orders else [(a, b), (b, a)]
            for turn, (one, two) in enumerate(ways):
                ids, segments, *_ = reader.build_inputs(one, two)
                sheet.add_document(ids, segments, said if not turn else ignore_label(said))
            sheet.add_example(number, len(ways))
    warn_truncated(lost, reader)
    return sheet.pack()


def check_fits(task: Task, number: int, size: int, room: int, what: str = "text") -> None:
    """Refuse what is too long, where the task wants that."""
    if size > room and task.long == "error":
        fix = "take shorter texts, or let long='windows' read them in parts"
        raise Error(f"{what} {number + 1} has {size:,} tokens, and {room} fit", fix=fix)


def find_truncated(task: Task, a: Ids, b: Ids | None, room: int) -> list[str]:
    """What of a text or a pair no window will show."""
    size = len(a) + (0 if b is None else len(b))
    if size <= room:
        return []
    if task.long == "cut":
        return ["texts"]
    return ["shorter sides of pairs"] if b is not None and min(len(a), len(b)) > room // 2 else []


def warn_truncated(lost: Mapping[str, int], reader: TaskEncoder) -> None:
    """Warn of what was cut off, with how often: nothing is lost in silence."""
    some = [f"{count:,} {what}" for what, count in lost.items() if count]
    if some:
        said = f"{' and '.join(some)} are cut to fit into {reader.max_length} tokens"
        warnings.warn(f"{said}: tune.seq_length sets this, and long='error' refuses them", stacklevel=3)


def tokenize_second_texts(rows: Rows, reader: TaskEncoder) -> dict[int, Ids]:
    """The tokens of second texts, by row."""
    has = [i for i, row in enumerate(rows) if row.get("other") is not None]
    plain = reader if not reader.prefix else TaskEncoder(**{**vars(reader), "prefix": ""})
    return dict(zip(has, plain.tokenize([str(rows[i]["other"]) for i in has]), strict=True))


def make_label_encoder(task: Task, labels: Sequence[str]) -> LabelEncoder:
    """What a row's label is in numbers; without one, nothing is asked."""
    index = {label: i for i, label in enumerate(labels)}

    def look_up_label(label: Any) -> int:
        if str(label) not in index:
            few = ", ".join(list(index)[:8]) + (" …" if len(index) > 8 else "")
            raise Error(f"the label {format_value(label)} was not seen in training", fix=f"known labels: {few}")
        return index[str(label)]

    def encode_label(row: Mapping[str, Any]) -> Any:
        label = row.get("label")
        if task.kind == "number":
            return np.array([0.0, 0.0] if label is None else [float(label), 1.0], np.float32)
        if task.kind == "many":
            if label is None:
                return np.full(len(labels), IGNORE_INDEX, np.float32)
            wanted = {look_up_label(one) for one in ([label] if isinstance(label, str) else label)}
            return np.array([i in wanted for i in range(len(labels))], np.float32)
        if isinstance(label, list | tuple):
            fix = "leave tune.multilabel out, or set it true; else give one label and no list"
            raise Error(f"a row has a list of labels, {format_value(label)}, and one label is learnt", fix=fix)
        return np.int64(IGNORE_INDEX if label is None else look_up_label(label))

    return encode_label


def ignore_label(answer: Any) -> Any:
    """Return labels of this shape that the loss ignores."""
    return np.full_like(answer, IGNORE_INDEX)


def split_windows(task: Task, reader: TaskEncoder, a: Ids, b: Ids | None) -> list[tuple[Ids, Ids | None]]:
    """A text or a pair as it fits: whole, or in windows over the longer text (the other keeps half of the room)."""
    room = reader.compute_capacity(b is not None)
    size = len(a) + (0 if b is None else len(b))
    if size <= room:
        return [(a, b)]
    if b is None:
        spans = [(0, room)] if task.long == "cut" else list(reader.iter_windows(len(a), room, task.stride))
        return [(a[low:high], None) for low, high in spans]
    turned = len(a) > len(b)
    short, long = (b, a) if turned else (a, b)
    short = short[: room // 2]
    left = room - len(short)
    spans = [(0, left)] if task.long == "cut" else list(reader.iter_windows(len(long), left, task.stride))
    parts = [(short, long[low:high]) for low, high in spans]
    return [(y, x) for x, y in parts] if turned else list(parts)


def join_pair(row: Mapping[str, Any]) -> str:
    """A text, or a pair as one text."""
    return str(row["text"]) if row.get("other") is None else f"{row['text']} {row['other']}"


def encode_choices(task: Task, rows: Rows, reader: TaskEncoder, labels: Sequence[str]) -> EncodedExamples:
    """A text with each of its choices; one of them is right. What does not fit loses its beginning."""
    sheet, room, lost = ExampleCollector(), reader.compute_capacity(True), Counter[str]()
    first = reader.tokenize([join_pair(row) for row in rows])
    for number, row in enumerate(rows):
        choices = list(row["choices"])
        if len(choices) < 2:
            raise Error(f"question {number + 1} has {len(choices)} choice(s)", fix="give two choices or more")
        found = reader.tokenize([str(choice) for choice in choices])
        longest = max(map(len, found))
        check_fits(task, number, len(first[number]) + longest, room, "question")
        lost["questions"] += len(first[number]) + longest > room
        lost["choices"] += sum(len(b) >= room for b in found)
        for turn, b in enumerate(found):
            b = b[: room - 1]
            a = first[number]
            a = a[max(0, len(a) + len(b) - room) :]
            ids, segments, *_ = reader.build_inputs(a, b)
            label = row.get("label")
            sheet.add_document(ids, segments, np.int64(IGNORE_INDEX if label is None else int(label) == turn))
        sheet.add_example(number, len(choices))
    warn_truncated(lost, reader)
    return sheet.pack()


def encode_tags(task: Task, rows: Rows, reader: TaskEncoder, labels: Sequence[str]) -> EncodedExamples:
    """Words of which each has a tag; the first piece of a word answers for it. `offsets` names that word."""
    index, sheet = {label: i for i, label in enumerate(labels)}, ExampleCollector()
    texts = [" ".join(row["words"]) for row in rows]
    for number, (row, (ids, offsets)) in enumerate(zip(rows, reader.tokenize_with_offsets(texts), strict=True)):
        word = find_first_pieces(row["words"], offsets)
        tags = row.get("tags")
        for tag in set(tags or ()) - set(index):
            raise Error(
                f"the tag {format_value(tag)} was not seen in training", fix=f"known: {', '.join(list(index)[:12])}"
            )
        asked = [IGNORE_INDEX if w < 0 or not tags else index[tags[w]] for w in word]
        count, room = len(ids), reader.compute_capacity()
        check_fits(task, number, count, room)
        for low, high in reader.iter_windows(count, room, task.stride):
            laid, segments, begin, _ = reader.build_inputs(
                ids[low:high] if count else np.array([reader.placeholder_id])
            )
            marks = np.full(len(laid), IGNORE_INDEX)
            where = np.full((len(laid), 2), -1)
            # Of the tokens that two windows share, each window answers for the half that is nearer to its middle.
            left = low + (0 if not low else min(task.stride, room // 2) // 2)
            right = high if high == count else high - (min(task.stride, room // 2) - min(task.stride, room // 2) // 2)
            for at in range(left, right):
                marks[begin + at - low] = asked[at]
                where[begin + at - low, 0] = word[at]
            sheet.add_document(laid, segments, labels=marks, offsets=where)
            sheet.add_example(number)
    return sheet.pack()


def find_first_pieces(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Of each token the number of the word whose first piece it is, else -1; words are joined by one space each."""
    ends = np.cumsum([len(word) + 1 for word in words])
    found, seen = [], -1
    for begin, end in offsets:
        last = max(begin, end - 1)  # a piece may begin with the space before its word
        word = int(np.searchsorted(ends, last, side="right"))
        fresh = word > seen and end > begin and word < len(words)
        found.append(word if fresh else -1)
        seen = max(seen, word)
    return found


def encode_questions(task: Task, rows: Rows, reader: TaskEncoder, labels: Sequence[str]) -> EncodedExamples:
    """A question and its context in windows; the answer is from a token to a token, or nowhere: at the first mark (of
    XLNet the last). `offsets` says where in the context a token stands."""
    sheet, whole, lost = ExampleCollector(), reader.compute_capacity(True), Counter[str]()
    questions = reader.tokenize([str(row["question"]) for row in rows])
    for number, (row, (ids, offsets)) in enumerate(
        zip(rows, reader.tokenize_with_offsets([row["context"] for row in rows]), strict=True)
    ):
        check_fits(task, number, len(questions[number]) + len(ids), whole, "question, with its context,")
        lost["questions"] += len(questions[number]) > whole // 2
        question = questions[number][: whole // 2]
        room = whole - len(question)
        spans = [(a["start"], a["start"] + len(a["text"])) for a in row.get("answers") or () if a["text"]]
        edges = np.array(offsets, np.int64).reshape(-1, 2)
        for low, high in reader.iter_windows(len(ids), room, task.stride):
            laid, segments, _, then = reader.build_inputs(question, ids[low:high])
            where = np.full((len(laid), 2), -1)
            where[then : then + high - low] = edges[low:high]
            nowhere = len(laid) - 1 if reader.tokenizer.is_left_padded else 0
            answer = np.array([nowhere, nowhere], np.int64)
            if spans:
                inside = np.flatnonzero((edges[low:high, 1] > spans[0][0]) & (edges[low:high, 0] < spans[0][1]))
                there = len(inside) and edges[low:high, 0].min() <= spans[0][0] and edges[high - 1, 1] >= spans[0][1]
                if there:
                    answer = np.array([then + inside[0], then + inside[-1]], np.int64)
            elif "answers" not in row:
                answer = ignore_label(answer)
            sheet.add_document(laid, segments, answer, offsets=where)
            sheet.add_example(number)
    warn_truncated(lost, reader)
    return sheet.pack()


def encode_targets(task: Task, rows: Rows, reader: TaskEncoder, labels: Sequence[str]) -> EncodedExamples:
    """A text from which a decoder writes another; both end with the end mark."""
    other = reader.tokenizer.target or reader.tokenizer
    end = next((i for role in ("eos", "sep") if (i := other.id(role)) is not None), None)
    if end is None:
        raise Error("this tokenizer has no end mark", fix="train one with eos")
    sheet, room = ExampleCollector(), reader.compute_capacity()
    sources = reader.tokenize([join_pair(row) for row in rows])
    wanted = [str(row.get("label" if task.label_as_text else "target") or "") for row in rows]
    targets = other.encode_batch(wanted, special=False, parse_special=False)
    over = sum(len(s) > room for s in sources), sum(len(t) >= task.max_output_tokens for t in targets)
    if any(over) and (over[1] or task.long != "error"):
        what = f"{over[0]:,} texts are cut to {room} tokens, and {over[1]:,} targets to {task.max_output_tokens}"
        warnings.warn(f"{what}: tune.seq_length and tune.max_output_tokens set these", stacklevel=2)
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        check_fits(task, number, len(source), room)
        ids, segments, *_ = reader.build_inputs(source[:room])
        sheet.add_document(ids, segments, target=[*target[: task.max_output_tokens - 1], end])
        sheet.add_example(number)
    return sheet.pack()
