"""SentencePiece's table of characters (its precompiled charsmap): longest match first, as SentencePiece itself does.

The Rust library goes by what a reader takes for one character, and so misses Hangul that is written as jamo and drops
some accents. Text that could be affected passes through here first; what comes out it leaves alone.
"""

from __future__ import annotations

import re

import numpy as np

from ..errors import Error

# Everything outside is left to the Rust library: in these ranges a character never joins with its neighbours.
JOINING_CHARACTERS = re.compile(
    "[^\x00-\x0c\x0e-\u02ff\u2010-\u2027\u3001-\u3029\u3041-\u3096\u30a1-\u30fe\u4e00-\u9fff\uac00-\ud7a3]"
)


class Charsmap:
    """A double array of bytes that leads from a text to its replacement; nothing in it is believed without a look."""

    def __init__(self, data: bytes, where: object = None):
        size = int.from_bytes(data[:4], "little")
        if not 4 <= size <= len(data) - 4 or size % 4:
            raise Error("precompiled_charsmap is broken", where=where, fix="the file is damaged: fetch it again")
        self.double_array = np.frombuffer(data, "<u4", size // 4, 4).tolist()
        self.replacements = data[4 + size :]

    def find_longest(self, text: bytes, place: int) -> tuple[int, str] | None:
        """The longest entry that the text goes on with here: its length in bytes, and what replaces it."""
        units, found = self.double_array, None
        node = decode_child_offset(units[0])
        for i in range(place, len(text)):
            node ^= text[i]
            if node >= len(units) or units[node] & 0x800000FF != text[i]:
                break
            unit = units[node]
            node ^= decode_child_offset(unit)
            if unit >> 8 & 1:
                if node >= len(units):
                    break
                found = i + 1 - place, units[node] & 0x7FFFFFFF
        if found is None or found[1] > len(self.replacements):
            return None
        end = self.replacements.find(b"\0", found[1])
        return found[0], self.replacements[found[1] : None if end < 0 else end].decode("utf-8", "ignore")

    def apply(self, text: str) -> tuple[str, list[int]]:
        """The text with all entries replaced, and for each new character where it comes from."""
        data, out, origins = text.encode("utf-8", "ignore"), [], []
        place = letter = 0
        while place < len(data):
            found = self.find_longest(data, place)
            length, new = found or (
                count_utf8_bytes(data[place]),
                data[place : place + count_utf8_bytes(data[place])].decode(),
            )
            out.append(new)
            origins += [letter] * len(new)
            letter += sum(byte & 0xC0 != 0x80 for byte in data[place : place + length])
            place += length
        return "".join(out), origins


def decode_child_offset(unit: int) -> int:
    """Where a node's children are."""
    return unit >> 10 << (unit >> 6 & 8)


def count_utf8_bytes(byte: int) -> int:
    """How many bytes a character has that begins with this one."""
    return 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
