"""What a tokenizer.json may ask for. The Rust library believes its file; where memory ends, it ends the process."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import Error
from .regex_safety import check_pattern

MAX_PIECE_CHARACTERS = 1000  # characters of a piece,
MAX_GROWTH = 1000  # times that a text may grow on its way through normalizers, or back through decoders,
MAX_PARTS = 20  # of a normalizer, of a decoder, …; and
MAX_TEMPLATE_LENGTH = 100  # pieces of a template, and ids of each
DOUBLING_TYPES = {"ByteLevel", "BPEDecoder", "CTC"}  # may make two characters out of one


def check_tokenizer_json(about: Mapping[str, Any], where: object) -> None:
    """Refuse a file that would use up the memory or the stack, when it is read or later on some text."""
    check_pieces(about, where)
    for stage in ("normalizer", "pre_tokenizer", "decoder"):
        check_growth(stage, about.get(stage), where)
        for part in iterate_tables(about.get(stage)):
            if isinstance(pattern := part.get("Regex"), str):
                check_pattern(pattern, where)
    check_template(about.get("post_processor"), where)


def check_pieces(about: Mapping[str, Any], where: object) -> None:
    """The Rust library keeps pieces in a tree as deep as they are long, and overflows the stack when it lets go."""
    model, added = about.get("model"), about.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    pieces = [t.get("content") for t in added if isinstance(t, dict)] if isinstance(added, list) else []
    if isinstance(vocab, dict | list):
        pieces += (p[0] if isinstance(p, list) and p else p for p in vocab)
    if any(len(p) > MAX_PIECE_CHARACTERS for p in pieces if isinstance(p, str)):
        raise make_limit_error(f"a piece has more than {MAX_PIECE_CHARACTERS:,} characters", where)


def check_growth(stage: str, value: Any, where: object) -> None:
    """Replacing a by aa thirty times makes a gigabyte out of a letter."""
    growth, count = 1, 0
    for part in iterate_tables(value):
        kind = part.get("type")
        count += isinstance(kind, str)
        if "precompiled_charsmap" in part:
            growth *= measure_charsmap(part["precompiled_charsmap"], where)
        elif isinstance(text := part.get("content", part.get("prepend")), str):
            growth *= 1 + len(text)
        elif isinstance(kind, str) and kind in DOUBLING_TYPES:
            growth *= 2
        if count > MAX_PARTS:
            raise make_limit_error(f"the {stage} has more than {MAX_PARTS} parts", where)
        if growth > MAX_GROWTH:
            raise make_limit_error(f"the {stage} lets a text grow more than {MAX_GROWTH:,} times", where)


def iterate_tables(value: Any) -> Iterator[dict[str, Any]]:
    """All tables at any depth, the sequences and what is in them."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from iterate_tables(inner)


def measure_charsmap(text: Any, where: object) -> int:
    """The longest replacement of SentencePiece's table of characters. The table says how large its first part is, and
    the Rust library reserves that much."""
    try:
        data = base64.b64decode(text)
    except (binascii.Error, TypeError, ValueError):
        data = b""
    size = int.from_bytes(data[:4], "little")
    if not 4 <= size + 4 <= len(data):
        raise Error("precompiled_charsmap is broken", where=where, fix="the file is damaged: fetch it again")
    return max(map(len, data[4 + size :].split(b"\0")), default=0) or 1


def check_template(value: Any, where: object) -> None:
    """A template may repeat the text, and a special token may stand for many ids."""
    for part in iterate_tables(value):
        if any(isinstance(inner, list) and len(inner) > MAX_TEMPLATE_LENGTH for inner in part.values()):
            raise make_limit_error(f"the post_processor has a list of more than {MAX_TEMPLATE_LENGTH}", where)


def make_limit_error(what: str, where: object) -> Error:
    """The error for what no real tokenizer has."""
    return Error(what, where=where, fix="this is not a real tokenizer")
