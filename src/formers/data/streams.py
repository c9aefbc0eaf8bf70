"""Bytes to lines in constant memory: compression, decoding, line ends, and lines of any length."""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from ..errors import Error
from ..text.normalise import Changes, compose, normalise, scrub

CHUNK = 1 << 18  # bytes read at once
FEED = 1 << 8
PACKED = (".gz", ".xz", ".zst")
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
END = re.compile(r"(?:[.!?…]['\"”’)\]]*\s|[\n。！？])\s*")
SPACE = re.compile(r"\s+")
NEAR, JOINED = 2000, 32  # characters: of a first search for a place to cut, of marks that join a letter
# What files begin with that are something else than their name says.
MAGIC = {
    b"\x1f\x8b": "gzip-compressed (.gz)",
    b"\xfd7zXZ\0": "xz-compressed (.xz)",
    b"\x28\xb5\x2f\xfd": "zstd-compressed (.zst)",
    b"PAR1": "a parquet file (.parquet)",
    b"PK\x03\x04": "a zip archive",
    b"%PDF-": "a PDF",
}
HALVES = "formers.halves"
codecs.register_error(
    HALVES, lambda e: ("\udc80" * (getattr(e, "end", 0) - getattr(e, "start", 0)), getattr(e, "end", 0))
)
MARKS = {  # UTF-32 first: its mark begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked, a chunk at a time: nothing is held, however much a small file may unpack to."""
    done = 0
    try:
        with path.open("rb") as raw:
            for chunk in unpacked(raw, path.suffix.lower()):
                done += len(chunk)
                yield chunk
    except DAMAGED as e:
        raise Error(
            f"the compressed file is damaged or cut short ({e})",
            where=f"{path}, after {done:,} unpacked bytes",
            fix="fetch or make it again",
        ) from e
    except OSError as e:
        raise Error(f"cannot be read ({e.strerror or e})", where=path, fix="look at its permissions") from e


def unpacked(raw: IO[bytes], suffix: str) -> Iterator[bytes]:
    """Chunks of what is in a packed or a plain file."""
    if suffix == ".zst":
        yield from unzstd(raw)
        return
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(suffix)
    with opener(raw) if opener else raw as file:
        while chunk := file.read(CHUNK):
            yield chunk


def unzstd(raw: IO[bytes]) -> Iterator[bytes]:
    """zstd, frame after frame. Four bytes may unpack to 128 kB, so few are handed over at a time."""
    zstandard = need("zstandard", "zst files")
    frame: Any = None
    ended = True
    while rest := raw.read(FEED):
        while rest:
            if ended:
                frame, ended = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj(), False
            try:
                whole = frame.decompress(rest)
            except zstandard.ZstdError as e:
                raise EOFError(str(e)) from e
            for at in range(0, len(whole), CHUNK):
                yield whole[at : at + CHUNK]
            ended, rest = frame.eof, frame.unused_data
    if not ended:  # zstandard says nothing itself
        raise EOFError("the last frame has no end")


def need(module: str, what: str) -> Any:
    """A package of the extra `data`, or the way to get it."""
    try:
        return __import__(module)
    except ImportError as e:
        raise Error(f"reading {what} needs the package {module}", fix='pip install "formers[data]"') from e


def decoded(parts: Iterable[bytes], changes: Changes, encoding: str = "utf-8", where: object = None) -> Iterator[str]:
    """Clean text with \\n as its only line end, in pieces; bytes that are no text are counted and left out."""
    decoder = decoder_of(encoding)
    ends, first = io.IncrementalNewlineDecoder(None, translate=True), True
    for part in parts:
        if first and encoding == "utf-8":
            check(part, where)
        first = False
        yield from tidy(unicode(decoder, part, encoding, where), ends, changes)
    yield from tidy(unicode(decoder, b"", encoding, where, last=True), ends, changes, last=True)


def decoder_of(encoding: str) -> codecs.IncrementalDecoder:
    """What turns bytes into text; one that is none becomes half a character (U+DC80 and on), whatever the encoding."""
    try:
        if codecs.lookup(encoding)._is_text_encoding:  # hex, zip and rot13 are codecs too
            return codecs.getincrementaldecoder(encoding)("surrogateescape" if encoding == "utf-8" else HALVES)
    except (LookupError, ValueError):
        pass
    fix = "known are utf-8, cp949, euc-kr, utf-16, latin-1 and many more"
    raise Error(f"there is no encoding {encoding!r}", fix=fix)


def unicode(decoder: codecs.IncrementalDecoder, part: bytes, encoding: str, where: object, last: bool = False) -> str:
    """Bytes as text; an error where an encoding cannot do that at all."""
    try:
        return decoder.decode(part, last)
    except UnicodeError as e:
        fix = "leave the encoding out for UTF-8, or name another: cp949, utf-16-le"
        raise Error(f"cannot be read as {encoding} ({e})", where=where, fix=fix) from None


def tidy(text: str, ends: io.IncrementalNewlineDecoder, changes: Changes, last: bool = False) -> Iterator[str]:
    """One piece of decoded text with plain line ends, scrubbed."""
    changes.carriage += text.count("\r")
    if text := ends.decode(text, last):
        yield scrub(text, changes)


def check(head: bytes, where: object) -> None:
    """Refuse a file that is no UTF-8 text at all, and say what it seems to be."""
    head = head[: 1 << 16]
    for magic, what in MAGIC.items():
        if head.startswith(magic):
            raise Error(
                f"this is {what}, not what its name says", where=where, fix="give it the right name, or unpack it"
            )
    seems = next((name for mark, name in MARKS.items() if head.startswith(mark)), None)
    if seems is None and len(head) >= 8 and max(head[::2].count(0), head[1::2].count(0)) * 5 > len(head):
        seems = "utf-16"  # two in five of the even or of the odd bytes are zero
    if seems is None:
        text = head.decode("utf-8", "surrogateescape")
        bad = len(re.findall("[\udc80-\udcff]", text))
        if bad < 64 or bad * 10 < len(head):
            return
        korean = codecs.getincrementaldecoder("cp949")("replace").decode(head)
        seems = "cp949" if korean.count("\ufffd") * 100 < len(korean) else "some other encoding, or no text"
    fix = "turn it into UTF-8" + ("" if " " in seems else f", or say --encoding {seems}, or encoding={seems!r}")
    raise Error(f"this is not UTF-8: it seems to be {seems}", where=where, fix=fix)


def lines(pieces: Iterable[str], longest: int, changes: Changes) -> Iterator[tuple[str, bool]]:
    """Lines without their ends, normalised and counted. One longer than `longest` characters comes in parts: each with
    whether its line ends there."""
    for text, ended in parts(pieces, longest):
        changes.lines += ended
        changes.cut += not ended
        yield compose(text, changes), ended


def parts(pieces: Iterable[str], longest: int) -> Iterator[tuple[str, bool]]:
    """Lines, or parts of long ones, each with whether its line ends there."""
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        for line in whole:
            if len(line) > longest:
                *long, line = slices(line, longest)
                yield from ((part, False) for part in long)
            yield line, True
        *long, rest = slices(rest, longest)
        yield from ((part, False) for part in long)
    if rest:
        yield rest, True


def slices(text: str, longest: int) -> Iterator[str]:
    """A text in slices of at most `longest` characters; put together, they are the text."""
    start = 0
    while len(text) - start > longest:
        end = place(text, start, longest)
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def place(text: str, start: int, longest: int) -> int:
    """Where to cut: behind the last end of a sentence in the second half, else behind white space, else between two
    characters that do not join."""
    end, middle = start + longest, start + (longest + 1) // 2
    for pattern in (END, SPACE):
        for begin in {max(middle, end - NEAR): 0, middle: 0}:  # most often the last stretch is enough
            if found := [m.end() for m in pattern.finditer(text, begin, end)]:
                return found[-1]
    for at in range(end, max(middle, start + 1, end - JOINED), -1):
        left, right = text[at - JOINED : at] if at >= JOINED else text[:at], text[at : at + JOINED]
        if normalise(left + right) == normalise(left) + normalise(right):
            return at
    return end
