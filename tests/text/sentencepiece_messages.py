"""SentencePiece models written by hand, as the protobuf messages that its files are."""

from __future__ import annotations

import struct


def encode_message(*fields):
    """Encode a protobuf message: numbers with bytes, floats or ints."""
    out = b""
    for number, value in fields:
        if isinstance(value, bytes):
            out += bytes([number << 3 | 2]) + encode_varint(len(value)) + value
        elif isinstance(value, float):
            out += bytes([number << 3 | 5]) + struct.pack("<f", value)
        else:
            out += encode_varint(number << 3) + encode_varint(value)
    return out


def encode_varint(value):
    """Encode a whole number as protobuf does, seven bits a byte."""
    out = b""
    while value >= 128:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def encode_piece(text, score=-1.0, kind=1):
    """Return the field of one piece, for `encode_message`."""
    return 1, encode_message((1, text.encode()), (2, score), (3, kind))


SMALL_MODEL = [
    encode_piece("<unk>", 0.0, 2),
    encode_piece("</s>", 0.0, 3),
    encode_piece("▁a", -1.0),
    encode_piece("b", -2.0),
    encode_piece("▁", -3.0),
]
