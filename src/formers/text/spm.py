"""SentencePiece's model files (spiece.model, sentencepiece.bpe.model, source.spm), read as data: nothing is executed.

The file is a protobuf message. Only the fields that say what a text becomes are looked at; each length is checked
against what is there before anything is cut out.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import Error
from .bounds import LONGEST
from .charsmap import Charsmap

PIECES = 2**21  # more than any tokenizer has
WORK = 10**8  # characters that are looked at to find the merges of a BPE
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # types of a piece
UNIGRAM, BPE = 1, 2  # types of a model


@dataclass
class Model:
    """Pieces with score and type, and how text is made ready for them."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)
    kind: int = UNIGRAM
    byte_fallback: bool = False
    charsmap: bytes = b""
    dummy: bool = True  # a space is put in front
    squeeze: bool = True  # spaces in front, behind and in a row are taken away
    suffix: bool = False  # a space belongs to the word before it

    @property
    def unknown(self) -> int:
        """The number of the unknown piece."""
        return next(i for i, (_, _, kind) in enumerate(self.pieces) if kind == UNKNOWN)


def read(data: bytes, where: object = None) -> Model:
    """A model out of the bytes of its file."""
    model = Model()
    for number, value in fields(data, where):
        if number == 1:
            model.pieces.append(piece(value, where))
            if len(model.pieces) > PIECES:
                raise broken("it has too many pieces", where)
        elif number == 2:
            spec = dict(fields(value, where))
            model.kind = whole(spec.get(3, UNIGRAM), where)
            model.byte_fallback, model.suffix = bool(spec.get(35, 0)), bool(spec.get(24, 0))
        elif number == 3:
            spec = dict(fields(value, where))
            model.charsmap = block(spec.get(2, b""), where)
            model.dummy, model.squeeze = bool(spec.get(3, 1)), bool(spec.get(4, 1))
            if not spec.get(5, 1):
                raise Error("spaces are not escaped in this model", where=where, fix="formers does not read this kind")
    check(model, where)
    return model


def check(model: Model, where: object) -> None:
    """What must hold before a tokenizer is built."""
    names = [name for name, _, _ in model.pieces]
    if sum(kind == UNKNOWN for _, _, kind in model.pieces) != 1:
        raise broken("there is not one unknown piece", where)
    if len(set(names)) < len(names) or "" in names:
        raise broken("a piece is there twice, or empty", where)
    if model.kind not in (UNIGRAM, BPE):
        what = f"SentencePiece models of type {model.kind} are not supported"
        raise Error(what, where=where, fix="unigram (1) and BPE (2) are")
    if model.charsmap:
        Charsmap(model.charsmap, where)  # the Rust library reserves what it says
    if model.suffix:
        raise Error(
            "spaces belong to the word before in this model", where=where, fix="formers does not read this kind"
        )


def piece(data: Any, where: object) -> tuple[str, float, int]:
    """One piece: its text, score and type."""
    text, score, kind = b"", 0.0, NORMAL
    for number, value in fields(data, where):
        if number == 1:
            text = block(value, where)
        elif number == 2:
            score = float(value) if isinstance(value, float) else math.nan
        elif number == 3:
            kind = whole(value, where)
    if len(text) > LONGEST or not math.isfinite(score) or not NORMAL <= kind <= BYTE:
        raise broken("a piece is not in form", where)
    try:
        return text.decode("utf-8"), score, kind
    except UnicodeDecodeError:
        raise broken("a piece is not UTF-8", where) from None


def fields(data: Any, where: object) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a protobuf message: int, float (32 bits), or bytes."""
    data, place = block(data, where), 0
    while place < len(data):
        key, place = varint(data, place, where)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = varint(data, place, where)
            yield number, value
            continue
        if wire == 2:
            length, place = varint(data, place, where)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise broken("a field has an unknown form", where)
        if place + length > len(data):
            raise broken("a field is longer than the file", where)
        raw = data[place : place + length]
        place += length
        yield number, struct.unpack("<f", raw)[0] if wire == 5 else raw


def varint(data: bytes, place: int, where: object) -> tuple[int, int]:
    """A number of at most ten bytes."""
    value = 0
    for i, byte in enumerate(data[place : place + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, place + i + 1
    raise broken("a number does not end", where)


def block(value: Any, where: object) -> bytes:
    """A value that has to be bytes."""
    if not isinstance(value, bytes):
        raise broken("a field has the wrong type", where)
    return value


def whole(value: Any, where: object) -> int:
    """A value that has to be a number."""
    if not isinstance(value, int):
        raise broken("a field has the wrong type", where)
    return value


def merges(model: Model, where: object = None) -> list[tuple[str, str]]:
    """A BPE's merges: each piece can come from any two pieces that make it up; better scores first."""
    ids = {name: i for i, (name, _, kind) in enumerate(model.pieces) if kind in (NORMAL, USER, UNUSED)}
    if sum(len(name) ** 2 for name in ids) > WORK:
        raise broken("its pieces are too long", where)
    found = []
    for name, number in ids.items():
        pairs = [(name[:i], name[i:]) for i in range(1, len(name))]
        both = [(ids[a], ids[b], a, b) for a, b in pairs if a in ids and b in ids]
        found += [(-model.pieces[number][1], number, *pair) for pair in sorted(both)]
    return [(a, b) for *_, a, b in sorted(found)]


def broken(what: str, where: object) -> Error:
    """The error for a file that is no SentencePiece model."""
    return Error(f"not a SentencePiece model: {what}", where=where, fix="the file is damaged: fetch it again")
