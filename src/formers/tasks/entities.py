"""Entities out of tags: what stands between B-, I-, E-, S- and O, by the rules of conlleval."""

from __future__ import annotations

from collections.abc import Iterable

SAME = {"L": "E", "U": "S", "M": "I"}  # BILOU and BMES write the same with other letters


def entities(tags: Iterable[str]) -> list[tuple[str, int, int]]:
    """(kind, first word, last word) of each entity; IOB1, IOB2 and BIOES alike, as seqeval reads them by default.

    An I- or E- that follows nothing of its kind begins an entity itself, as conlleval has it.
    """
    found: list[tuple[str, int, int]] = []
    begin, kind, closed = -1, "", True
    for place, tag in enumerate([*tags, "O"]):
        mark, name = parted(tag)
        if begin >= 0 and (closed or mark not in ("I", "E") or name != kind):
            found.append((kind, begin, place - 1))
            begin = -1
        if begin < 0 and mark != "O":
            begin, kind = place, name
        closed = mark in ("E", "S")
    return found


def parted(tag: str) -> tuple[str, str]:
    """The mark and the kind of a tag."""
    mark, dash, name = tag[:1] or "O", tag[1:2] == "-", tag[1:].split("-", 1)[-1] or "_"
    return (SAME.get(mark, mark) if dash else mark), name
