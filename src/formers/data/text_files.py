"""Bytes to lines in constant memory: compression, decoding, line ends, and lines of any length."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

from ..errors import Error
from ..text.normalise import CleaningReport, compose_and_count, normalise, scrub_text

READ_BYTES = 1 << 18  # bytes read at once
HEAD_BYTES = 1 << 16  # bytes that are looked at to tell what a file is
MAX_EXPANSION = (1 << 26, 300)  # a packed file that gives more bytes than this, and so many times its size, is refused
ZSTD_FEED_BYTES = 1 << 8
COMPRESSION_SUFFIXES = {
    ".gz": 3.0,
    ".xz": 4.0,
    ".zst": 3.5,
}  # what is unpacked, and about by how much
DAMAGE_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
SENTENCE_END = re.compile(r"(?:[.!?…]['\"”’)\]]*\s|[\n。！？])\s*")
WHITESPACE = re.compile(r"\s+")
CUT_WINDOW, JOIN_WINDOW = 2000, 32  # characters: of a first search for a place to cut, of marks that join a letter
# What files begin with that are something else than their name says.
MAGIC_BYTES = {
    b"\x1f\x8b": "gzip-compressed (.gz)", b"\xfd7zXZ\0": "xz-compressed (.xz)", b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "zstd-compressed (.zst)", b"PAR1": "a parquet file (.parquet)", b"%PDF-": "a PDF",
}  # fmt: skip
SURROGATE_HANDLER = "formers.halves"
codecs.register_error(SURROGATE_HANDLER, lambda e: ("\udc80" * (e.end - e.start), e.end))  # type: ignore[attr-defined]
BYTE_ORDER_MARKS = {  # UTF-32 first: its mark begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip


class HashingReader(io.BufferedReader):
    """A file that is read in order, and hashed as it is read."""

    def __init__(self, path: Path):
        super().__init__(io.FileIO(path))
        self.hash = hashlib.sha256()

    def read(self, size: int | None = -1, /) -> bytes:
        """Read and hash."""
        data = super().read(size)
        self.hash.update(data)
        return data


def read_chunks(path: Path, hashes: dict[Path, str] | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked, a chunk at a time: memory stays bounded, whatever a file unpacks to. At its
    end `hashes` gets the SHA-256 of the file as it is on the disk."""
    done = 0
    try:
        with HashingReader(path) if hashes is not None else path.open("rb") as raw:
            most = max(MAX_EXPANSION[0], MAX_EXPANSION[1] * path.stat().st_size)
            for chunk in decompress_chunks(raw, path.suffix.lower()):
                done += len(chunk)
                if done > most:
                    what = f"unpacks to more than {done - len(chunk):,} bytes, over {MAX_EXPANSION[1]:,} times its size"
                    raise Error(what, where=path, fix="this is not text; if it is, unpack it first")
                yield chunk
            if isinstance(raw, HashingReader) and hashes is not None:
                while raw.read(READ_BYTES):  # what follows the end of a packed text
                    pass
                hashes[path] = raw.hash.hexdigest()
    except DAMAGE_ERRORS as e:
        what, where = f"the compressed file is damaged or cut short ({e})", f"{path}, after {done:,} unpacked bytes"
        raise Error(what, where=where, fix="fetch or make it again") from e
    except OSError as e:
        raise Error(f"cannot be read ({e.strerror or e})", where=path, fix="look at its permissions") from e


def limit_bytes(parts: Iterable[bytes], most: int, where: object) -> Iterator[bytes]:
    """Yield bytes, up to `most` of them; more are an error, for what is kept in memory as a whole."""
    done = 0
    for part in parts:
        if (done := done + len(part)) > most:
            what = f"has more than {most:,} bytes, unpacked, and all of it would be kept in memory"
            raise Error(what, where=where, fix="give a part of it, or make a store of it: formers prepare")
        yield part


def decompress_chunks(raw: IO[bytes], suffix: str) -> Iterator[bytes]:
    """Yield chunks of what is in a packed or a plain file."""
    if suffix == ".zst":
        yield from decompress_zstd(raw)
        return
    opened = gzip.open(raw) if suffix == ".gz" else lzma.open(raw) if suffix == ".xz" else nullcontext(raw)  # noqa: SIM115
    with opened as file:
        while chunk := file.read(READ_BYTES):
            yield chunk


def decompress_zstd(raw: IO[bytes]) -> Iterator[bytes]:
    """Unpack zstd, frame after frame. Four bytes may unpack to 128 kB, so few are handed over at a time."""
    zstandard = import_optional("zstandard", "zst files")
    frame: Any = None  # dynamic: zstandard is optional
    ended = True
    while rest := raw.read(ZSTD_FEED_BYTES):
        while rest:
            if ended:
                frame, ended = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj(), False
            try:
                whole = frame.decompress(rest)
            except zstandard.ZstdError as e:
                raise EOFError(str(e)) from e
            for at in range(0, len(whole), READ_BYTES):
                yield whole[at : at + READ_BYTES]
            ended, rest = frame.eof, frame.unused_data
    if not ended:  # zstandard says nothing itself
        raise EOFError("the last frame has no end")


def import_optional(module: str, what: str) -> Any:  # dynamic: a package that need not be installed
    """Import a package of the extra `data`, or say how to install it."""
    try:
        return __import__(module)
    except ImportError as e:
        raise Error(f"reading {what} needs the package {module}", fix='pip install "formers[data]"') from e


def decode_chunks(
    parts: Iterable[bytes], changes: CleaningReport, encoding: str = "utf-8", where: object = None
) -> Iterator[str]:
    """Yield clean text with \\n as its only line end. Bytes that are not text are left out and counted; where they
    are too many for damage, the text has another encoding, and that is an error which names the likely one."""
    # A byte that is not text becomes half a character (U+DC80 and on), whatever the encoding.
    handler = "surrogateescape" if encoding == "utf-8" else SURROGATE_HANDLER
    decoder = codecs.getincrementaldecoder(check_encoding_name(encoding))(handler)
    ends = io.IncrementalNewlineDecoder(None, translate=True)
    before, size, longer, head = changes.undecodable, 0, 0, b""
    waiting: list[str] = []  # pieces of the first HEAD bytes, which are examined together
    for part in parts:
        if not size and encoding == "utf-8":
            check_file_kind(part, where)
        text = decode_part(decoder, part, encoding, where)
        size, longer = size + len(part), longer + len(part) - len(text)
        waiting += clean_piece(text, ends, changes)
        if size < HEAD_BYTES:
            head += part
            continue
        if (bad := changes.undecodable - before) and is_wrong_encoding(encoding, bad, size, longer):
            check_encoding(head + part, encoding, where)
        yield from waiting
        waiting, head = [], b""
    waiting += clean_piece(decode_part(decoder, b"", encoding, where, last=True), ends, changes, last=True)
    if head and (bad := changes.undecodable - before) and is_wrong_encoding(encoding, bad, size, longer):
        check_encoding(head, encoding, where)
    yield from waiting


def is_wrong_encoding(encoding: str, bad: int, size: int, longer: int) -> bool:
    """Tell whether `bad` undecodable bytes of `size` are too many to be damage. `longer` is how many more bytes than
    characters there are: a text in UTF-8 with damage has more characters of several bytes than broken ones, a text in
    Latin-1 or cp949 has hardly any."""
    if not is_utf_8(encoding):
        return bad > 16 and bad * 20 > size
    return (bad * 1000 > size and bad * 8 > longer) or (bad > 16 and bad * 50 > size)


def make_encoding_error(seems: str | None, encoding: str, where: object) -> Error:
    """Return the error for text that is not in the encoding it was read in, but seems to be in another."""
    what = "this is not UTF-8" if is_utf_8(encoding) else f"this is not {encoding}"
    if seems is None:
        return Error(f"{what}: it seems to be some other encoding, or no text", where=where, fix="turn it into UTF-8")
    if seems == "utf-8":
        damaged = is_utf_8(encoding)
        reason = "bytes in it are not text" if damaged else f"{what}: it seems to be utf-8"
        return Error(reason, where=where, fix="take them out" if damaged else "leave the encoding out")
    fix = f"turn it into UTF-8, or say --encoding {seems}, or encoding={seems!r}"
    return Error(f"{what}: it seems to be {seems}", where=where, fix=fix)


def check_encoding(data: bytes, encoding: str, where: object) -> None:
    """Raise an error if the text seems to be in another encoding; what is UTF-8 all the same is damaged, and read."""
    seems = guess_encoding(data)
    if not (seems == "utf-8" and is_utf_8(encoding)):
        raise make_encoding_error(seems, encoding, where)


def is_utf_8(encoding: str) -> bool:
    """Return whether this is any spelling of UTF-8."""
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8")


def guess_encoding(data: bytes) -> str | None:
    """Guess a text's encoding by the letters that it gives in each; None if in none of them it looks like writing."""
    if mark := next((name for mark, name in BYTE_ORDER_MARKS.items() if data.startswith(mark)), None):
        return mark
    odd = re.search(rb"[^\x01-\x7f]", data)  # what comes before is the same in all of them
    start = max(0, (odd.start() if odd else 0) - 64) // 2 * 2
    head = data[start : start + HEAD_BYTES]
    scores: dict[str, float] = {}
    for name in CANDIDATE_ENCODINGS:
        text = codecs.getincrementaldecoder(name)("replace").decode(head[: len(head) // 2 * 2])
        # Text in UTF-16 has a zero byte in each space and line end; without any, any pairs of bytes will look like it.
        share = 0.6 if name.startswith("utf-16") and head.count(0) * 100 < len(head) else 1.0
        scores[name] = share * score_plausibility(text, name)
    best = max(scores, key=scores.__getitem__)
    if scores[best] < 0.75:
        return None
    return "latin-1" if best == "cp1252" and not re.search(rb"[\x80-\x9f]", head) else best


# What text may be that is not UTF-8; of two that look alike, the first one is taken.
CANDIDATE_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be", "cp949", "cp1252", "shift_jis", "gb18030", "euc_jp")
HANGUL, KANA = re.compile("[가-힣ㄱ-ㅣ]"), re.compile("[ぁ-ゖァ-ヺー]")
IDEOGRAPH, WIDE_PUNCTUATION = re.compile("[一-鿿]"), re.compile("[、-〕·…―‘’“”「」！-～]")
ACCENTED_LATIN = re.compile("[A-Za-z][À-ÖØ-öø-ÿŒœŠšŽžŸ]|[À-ÖØ-öø-ÿŒœŠšŽžŸ][a-z]|[€£§°±²³«»·¿¡–—‘’“”„…©®ªº]")
CP949_IDEOGRAPH_WEIGHT = 0.3  # what an ideograph is worth in cp949, where it is rare; elsewhere 0.8


def score_plausibility(text: str, encoding: str) -> float:
    """Score, from 0 to 1, how much of a text is writing of the encoding's own languages: of the characters beyond
    ASCII the share that are its letters. UTF-16 is scored by all characters, as any bytes make some."""
    if encoding.startswith("utf-16"):
        ascii_, beyond = re.findall(r"[\t\n\r -~]", text), re.findall(r"[^\t\n\r -~]", text)
    else:
        ascii_, beyond = [], re.findall(r"[^\0-\x7f]", text)
    own = "".join(beyond)
    if not own and not ascii_:
        return 0.0
    good = float(len(ascii_))
    if encoding == "cp1252":  # runs of such letters are pieces of another encoding
        good += min(len(own), len(ACCENTED_LATIN.findall(text))) - 0.25 * len(re.findall("[\x80-\uffff]{3,}", text))
    else:
        good += len(HANGUL.findall(own)) if encoding in ("cp949", "utf-16-le", "utf-16-be", "utf-8") else 0
        good += len(KANA.findall(own)) if encoding not in ("cp949", "gb18030") else 0
        weight = CP949_IDEOGRAPH_WEIGHT if encoding == "cp949" else 0.8
        good += weight * len(IDEOGRAPH.findall(own)) + 0.8 * len(WIDE_PUNCTUATION.findall(own))
        if encoding == "utf-8" or encoding.startswith("utf-16"):
            good += len(re.findall("[À-ʯͰ-῿]", own))
    return max(0.0, good - 4 * own.count("\ufffd")) / (len(ascii_) + len(own))


def check_encoding_name(encoding: str) -> str:
    """Return the name of an encoding of text; an error where there is none of this name."""
    try:
        if codecs.lookup(encoding)._is_text_encoding and codecs.getincrementaldecoder(encoding):  # hex and zip are none
            return encoding
    except (LookupError, ValueError):
        pass
    fix = "known are utf-8, cp949, euc-kr, utf-16, latin-1 and many more"
    raise Error(f"there is no encoding {encoding!r}", fix=fix)


def decode_part(
    decoder: codecs.IncrementalDecoder, part: bytes, encoding: str, where: object, last: bool = False
) -> str:
    """Decode bytes; an error where an encoding cannot do that at all."""
    try:
        return decoder.decode(part, last)
    except UnicodeError as e:
        fix = "leave the encoding out for UTF-8, or name another: cp949, utf-16-le"
        raise Error(f"cannot be read as {encoding} ({e})", where=where, fix=fix) from None


def clean_piece(
    text: str, ends: io.IncrementalNewlineDecoder, changes: CleaningReport, last: bool = False
) -> Iterator[str]:
    """Yield a piece of decoded text with plain line ends, scrubbed."""
    changes.carriage += text.count("\r")
    if text := ends.decode(text, last):
        yield scrub_text(text, changes)


def check_file_kind(head: bytes, where: object) -> None:
    """Refuse a file that is packed, a PDF and the like, or plainly UTF-16 or UTF-32, and say what it seems to be."""
    head = head[:HEAD_BYTES]
    for magic, what in MAGIC_BYTES.items():
        if head.startswith(magic):
            fix = "give it the right name, or unpack it"
            raise Error(f"this is {what}, not what its name says", where=where, fix=fix)
    marked = any(head.startswith(mark) for mark in BYTE_ORDER_MARKS)
    # Two in five of the even or of the odd bytes are zero: letters of two bytes, of which one is empty.
    if marked or (len(head) >= 8 and max(head[::2].count(0), head[1::2].count(0)) * 5 > len(head)):
        raise make_encoding_error(guess_encoding(head), "utf-8", where)


def iterate_lines(pieces: Iterable[str], longest: int, changes: CleaningReport) -> Iterator[tuple[str, bool]]:
    """Yield lines without their ends, normalised and counted, and whether each ends there: long ones come in parts."""
    for text, ended in split_lines(pieces, longest):
        changes.lines += ended
        changes.cut += not ended
        yield compose_and_count(text, changes), ended


def split_lines(pieces: Iterable[str], longest: int) -> Iterator[tuple[str, bool]]:
    """Yield lines, or parts of long ones, each with whether its line ends there."""
    held: list[str] = []  # the beginning of a line that has not ended
    size = 0
    for piece in pieces:
        if "\n" not in piece and size + len(piece) <= longest:
            held.append(piece)
            size += len(piece)
            continue
        *whole, rest = "".join((*held, piece)).split("\n")
        for line in whole:
            if len(line) > longest:
                *long, line = slice_text(line, longest)
                yield from ((part, False) for part in long)
            yield line, True
        *long, rest = slice_text(rest, longest)
        yield from ((part, False) for part in long)
        held, size = [rest], len(rest)
    if rest := "".join(held):
        yield rest, True


def slice_text(text: str, longest: int) -> Iterator[str]:
    """Yield a text in slices of at most `longest` characters; put together, they are the text."""
    start = 0
    while len(text) - start > longest:
        end = find_cut(text, start, longest)
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def find_cut(text: str, start: int, longest: int) -> int:
    """Find a cut in the second half: after a sentence, else after white space, else where no characters join."""
    end, middle = start + longest, start + (longest + 1) // 2
    for pattern in (SENTENCE_END, WHITESPACE):
        for begin in {max(middle, end - CUT_WINDOW): 0, middle: 0}:  # most often the last stretch is enough
            if ends := [m.end() for m in pattern.finditer(text, begin, end)]:
                return ends[-1]
    for at in range(end, max(middle, start + 1, end - JOIN_WINDOW), -1):
        left, right = text[at - JOIN_WINDOW : at] if at >= JOIN_WINDOW else text[:at], text[at : at + JOIN_WINDOW]
        if normalise(left + right) == normalise(left) + normalise(right):
            return at
    return end
