"""Bytes in pieces: GPT-2's printable stand-ins, and SentencePiece's <0x..>."""

from __future__ import annotations

import re


def alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: character → byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


ALPHABET = alphabet()
BYTE = re.compile("<0x([0-9A-F]{2})>")


def to_bytes(piece: str) -> bytes:
    """The bytes of a byte-level piece; an added token stands for its own text."""
    if all(c in ALPHABET for c in piece):
        return bytes(ALPHABET[c] for c in piece)
    return piece.encode()


def from_spaces(piece: str) -> bytes:
    """The bytes of a SentencePiece piece that may stand for a single byte."""
    match = BYTE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()
