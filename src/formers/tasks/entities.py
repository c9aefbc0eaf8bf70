"""Entities out of tags: what stands between B-, I-, E-, S- and O, by the rules of conlleval."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

SAME = {"L": "E", "U": "S", "M": "I"}  # BILOU and BMES write the same with other letters
OUTSIDE = ("O", "-", "")  # tags of words that are in no entity; "-" is Naver's
PREFIX, SUFFIX = re.compile(r"[BIESLUM][-_].+", re.DOTALL), re.compile(r".+[-_][BIESLUM]", re.DOTALL)
Scheme = Literal["prefix", "suffix", "bare"]


def find_scheme(tags: Iterable[str]) -> Scheme | None:
    """How tags mark where entities begin and go on: in front of the kind (B-PER), behind it (PER-B, PER_B), or without
    a kind (B); None for tags of another sort, such as parts of speech. Nothing but O is a text without entities."""
    found = {tag for tag in tags if tag not in OUTSIDE}
    if found and all(map(PREFIX.fullmatch, found)):
        return "prefix"
    if found and all(map(SUFFIX.fullmatch, found)) and any(tag[-1] in "BSU" for tag in found):
        return "suffix"
    if found <= set("BIESLU"):
        return "bare"
    return "prefix" if any(tag[1:2] == "-" for tag in found) else None


def entities(tags: Iterable[str], suffix: bool = False) -> list[tuple[str, int, int]]:
    """(kind, first word, last word) of each entity; IOB1, IOB2, BIOES and BILOU alike, as seqeval reads them.

    An I- or E- that follows nothing of its kind begins an entity itself, as conlleval has it. With `suffix`, the mark
    stands behind the kind: PER-B.
    """
    found: list[tuple[str, int, int]] = []
    begin, kind, closed = -1, "", True
    for place, tag in enumerate([*tags, "O"]):
        mark, name = parted(tag, suffix)
        if begin >= 0 and (closed or mark not in ("I", "E") or name != kind):
            found.append((kind, begin, place - 1))
            begin = -1
        if begin < 0 and mark != "O":
            begin, kind = place, name
        closed = mark in ("E", "S")
    return found


def parted(tag: str, suffix: bool = False) -> tuple[str, str]:
    """The mark and the kind of a tag."""
    if tag in OUTSIDE:
        return "O", "_"
    if suffix:
        mark, rest = tag[-1], tag[:-1]
        return SAME.get(mark, mark) if rest else mark, rest.rstrip("-_") or "_"
    mark, dash, name = tag[:1], tag[1:2] in ("-", "_"), re.split("[-_]", tag[1:], maxsplit=1)[-1] or "_"
    return (SAME.get(mark, mark) if dash else mark), name
