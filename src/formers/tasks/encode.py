"""Rows of a task become examples: which tokens a model reads, and what is asked of it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..config import shown
from ..errors import Error
from .encoded import IGNORED, Encoded, Sheet
from .reading import Ids, Reader
from .task import Task

Rows = Sequence[Mapping[str, Any]]
Answer = Callable[[Mapping[str, Any]], Any]


def encode(task: Task, rows: Rows, reader: Reader, labels: Sequence[str] = ()) -> Encoded:
    """The examples of some rows; a row without what is asked (label, tags, answers, target) is only read."""
    ways = {"tags": tagged, "span": asked, "choice": chosen, "text": written}
    if task.kind in ways:
        return ways[task.kind](task, rows, reader, labels)
    return whole(task, rows, reader, labels)


def whole(task: Task, rows: Rows, reader: Reader, labels: Sequence[str]) -> Encoded:
    """Texts, or pairs of them, of which one thing is asked: a class, several, or a number."""
    answer, sheet, lost = answers(task, labels), Sheet(), Counter[str]()
    first = reader.tokens([str(row["text"]) for row in rows])
    second = others(rows, reader)
    for number, row in enumerate(rows):
        said = answer(row)
        room = reader.room(number in second)
        fits(task, number, len(first[number]) + len(second.get(number, ())), room)
        lost.update(losses(task, first[number], second.get(number), room))
        for a, b in cut(task, reader, first[number], second.get(number)):
            ways = [(a, b)] if b is None or not task.both else [(a, b), (b, a)]
            for turn, (one, two) in enumerate(ways):
                ids, segments, *_ = reader.laid(one, two)
                sheet.document(ids, segments, said if not turn else silent(said))
            sheet.example(number, len(ways))
    tell(lost, reader)
    return sheet.done()


def fits(task: Task, number: int, size: int, room: int, what: str = "text") -> None:
    """Refuse what is too long, where the task wants that."""
    if size > room and task.long == "error":
        fix = "take shorter texts, or let long='windows' read them in parts"
        raise Error(f"{what} {number + 1} has {size:,} tokens, and {room} fit", fix=fix)


def losses(task: Task, a: Ids, b: Ids | None, room: int) -> list[str]:
    """What of a text or a pair no window will show."""
    size = len(a) + (0 if b is None else len(b))
    if size <= room:
        return []
    if task.long == "cut":
        return ["texts"]
    return ["shorter sides of pairs"] if b is not None and min(len(a), len(b)) > room // 2 else []


def tell(lost: Mapping[str, int], reader: Reader) -> None:
    """Warn of what was cut off, with how often: nothing is lost in silence."""
    some = [f"{count:,} {what}" for what, count in lost.items() if count]
    if some:
        said = f"{' and '.join(some)} are cut to fit into {reader.length} tokens"
        warnings.warn(f"{said}: tune.length sets this, and long='error' refuses them", stacklevel=3)


def others(rows: Rows, reader: Reader) -> dict[int, Ids]:
    """The tokens of second texts, by row."""
    has = [i for i, row in enumerate(rows) if row.get("other") is not None]
    plain = reader if not reader.prefix else Reader(**{**vars(reader), "prefix": ""})
    return dict(zip(has, plain.tokens([str(rows[i]["other"]) for i in has]), strict=True))


def answers(task: Task, labels: Sequence[str]) -> Answer:
    """What a row's label is in numbers; without one, nothing is asked."""
    index = {label: i for i, label in enumerate(labels)}

    def known(label: Any) -> int:
        if str(label) not in index:
            few = ", ".join(list(index)[:8]) + (" …" if len(index) > 8 else "")
            raise Error(f"the label {shown(label)} was not seen in training", fix=f"known labels: {few}")
        return index[str(label)]

    def one(row: Mapping[str, Any]) -> Any:
        label = row.get("label")
        if task.kind == "number":
            return np.array([0.0, 0.0] if label is None else [float(label), 1.0], np.float32)
        if task.kind == "many":
            if label is None:
                return np.full(len(labels), IGNORED, np.float32)
            wanted = {known(one) for one in ([label] if isinstance(label, str) else label)}
            return np.array([i in wanted for i in range(len(labels))], np.float32)
        if isinstance(label, list | tuple):
            fix = "leave tune.many out, or set it true; else give one label and no list"
            raise Error(f"a row has a list of labels, {shown(label)}, and one label is learnt", fix=fix)
        return np.int64(IGNORED if label is None else known(label))

    return one


def silent(answer: Any) -> Any:
    """The same shape, asking nothing."""
    return np.full_like(answer, IGNORED)


def cut(task: Task, reader: Reader, a: Ids, b: Ids | None) -> list[tuple[Ids, Ids | None]]:
    """A text or a pair as it fits: whole, or in windows over the longer text (the other keeps half of the room)."""
    room = reader.room(b is not None)
    size = len(a) + (0 if b is None else len(b))
    if size <= room:
        return [(a, b)]
    if b is None:
        spans = [(0, room)] if task.long == "cut" else list(reader.windows(len(a), room, task.stride))
        return [(a[low:high], None) for low, high in spans]
    turned = len(a) > len(b)
    short, long = (b, a) if turned else (a, b)
    short = short[: room // 2]
    left = room - len(short)
    spans = [(0, left)] if task.long == "cut" else list(reader.windows(len(long), left, task.stride))
    parts = [(short, long[low:high]) for low, high in spans]
    return [(y, x) for x, y in parts] if turned else list(parts)


def joined(row: Mapping[str, Any]) -> str:
    """A text, or a pair as one text."""
    return str(row["text"]) if row.get("other") is None else f"{row['text']} {row['other']}"


def chosen(task: Task, rows: Rows, reader: Reader, labels: Sequence[str]) -> Encoded:
    """A text with each of its choices; one of them is right. What does not fit loses its beginning."""
    sheet, room, lost = Sheet(), reader.room(True), Counter[str]()
    first = reader.tokens([joined(row) for row in rows])
    for number, row in enumerate(rows):
        choices = list(row["choices"])
        if len(choices) < 2:
            raise Error(f"question {number + 1} has {len(choices)} choice(s)", fix="give two choices or more")
        found = reader.tokens([str(choice) for choice in choices])
        longest = max(map(len, found))
        fits(task, number, len(first[number]) + longest, room, "question")
        lost["questions"] += len(first[number]) + longest > room
        lost["choices"] += sum(len(b) >= room for b in found)
        for turn, b in enumerate(found):
            b = b[: room - 1]
            a = first[number]
            a = a[max(0, len(a) + len(b) - room) :]
            ids, segments, *_ = reader.laid(a, b)
            label = row.get("label")
            sheet.document(ids, segments, np.int64(IGNORED if label is None else int(label) == turn))
        sheet.example(number, len(choices))
    tell(lost, reader)
    return sheet.done()


def tagged(task: Task, rows: Rows, reader: Reader, labels: Sequence[str]) -> Encoded:
    """Words of which each has a tag; the first piece of a word answers for it. `places` names that word."""
    index, sheet = {label: i for i, label in enumerate(labels)}, Sheet()
    texts = [" ".join(row["words"]) for row in rows]
    for number, (row, (ids, offsets)) in enumerate(zip(rows, reader.placed(texts), strict=True)):
        word = first_pieces(row["words"], offsets)
        tags = row.get("tags")
        for tag in set(tags or ()) - set(index):
            raise Error(f"the tag {shown(tag)} was not seen in training", fix=f"known: {', '.join(list(index)[:12])}")
        asked = [IGNORED if w < 0 or not tags else index[tags[w]] for w in word]
        count, room = len(ids), reader.room()
        fits(task, number, count, room)
        for low, high in reader.windows(count, room, task.stride):
            laid, segments, begin, _ = reader.laid(ids[low:high] if count else np.array([reader.blank]))
            marks = np.full(len(laid), IGNORED)
            where = np.full((len(laid), 2), -1)
            # Of the tokens that two windows share, each window answers for the half that is nearer to its middle.
            left = low + (0 if not low else min(task.stride, room // 2) // 2)
            right = high if high == count else high - (min(task.stride, room // 2) - min(task.stride, room // 2) // 2)
            for at in range(left, right):
                marks[begin + at - low] = asked[at]
                where[begin + at - low, 0] = word[at]
            sheet.document(laid, segments, labels=marks, places=where)
            sheet.example(number)
    return sheet.done()


def first_pieces(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int]:
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


def asked(task: Task, rows: Rows, reader: Reader, labels: Sequence[str]) -> Encoded:
    """A question and its context in windows; the answer is from a token to a token, or nowhere: at the first mark (of
    XLNet the last). `places` says where in the context a token stands."""
    sheet, whole, lost = Sheet(), reader.room(True), Counter[str]()
    questions = reader.tokens([str(row["question"]) for row in rows])
    for number, (row, (ids, offsets)) in enumerate(
        zip(rows, reader.placed([row["context"] for row in rows]), strict=True)
    ):
        fits(task, number, len(questions[number]) + len(ids), whole, "question, with its context,")
        lost["questions"] += len(questions[number]) > whole // 2
        question = questions[number][: whole // 2]
        room = whole - len(question)
        spans = [(a["start"], a["start"] + len(a["text"])) for a in row.get("answers") or () if a["text"]]
        edges = np.array(offsets, np.int64).reshape(-1, 2)
        for low, high in reader.windows(len(ids), room, task.stride):
            laid, segments, _, then = reader.laid(question, ids[low:high])
            where = np.full((len(laid), 2), -1)
            where[then : then + high - low] = edges[low:high]
            nowhere = len(laid) - 1 if reader.tokenizer.left else 0
            answer = np.array([nowhere, nowhere], np.int64)
            if spans:
                inside = np.flatnonzero((edges[low:high, 1] > spans[0][0]) & (edges[low:high, 0] < spans[0][1]))
                there = len(inside) and edges[low:high, 0].min() <= spans[0][0] and edges[high - 1, 1] >= spans[0][1]
                if there:
                    answer = np.array([then + inside[0], then + inside[-1]], np.int64)
            elif "answers" not in row:
                answer = silent(answer)
            sheet.document(laid, segments, answer, places=where)
            sheet.example(number)
    tell(lost, reader)
    return sheet.done()


def written(task: Task, rows: Rows, reader: Reader, labels: Sequence[str]) -> Encoded:
    """A text from which a decoder writes another; both end with the end mark."""
    other = reader.tokenizer.target or reader.tokenizer
    end = next((i for role in ("eos", "sep") if (i := other.id(role)) is not None), None)
    if end is None:
        raise Error("this tokenizer has no end mark", fix="train one with eos")
    sheet, room = Sheet(), reader.room()
    sources = reader.tokens([joined(row) for row in rows])
    wanted = [str(row.get("label" if task.words else "target") or "") for row in rows]
    targets = other.encode_batch(wanted, special=False, parse=False)
    over = sum(len(s) > room for s in sources), sum(len(t) >= task.output for t in targets)
    if any(over) and (over[1] or task.long != "error"):
        what = f"{over[0]:,} texts are cut to {room} tokens, and {over[1]:,} targets to {task.output}"
        warnings.warn(f"{what}: tune.length and tune.output set these", stacklevel=2)
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        fits(task, number, len(source), room)
        ids, segments, *_ = reader.laid(source[:room])
        sheet.document(ids, segments, target=[*target[: task.output - 1], end])
        sheet.example(number)
    return sheet.done()
