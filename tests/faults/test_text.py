"""RELIABILITY row 12: bad UTF-8, NUL, huge lines, empty documents, CRLF, byte order marks, decomposed Hangul and what
else a file may hold. Never a crash: clean documents or a formers.Error; the counts are right; memory is bounded."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import random
import subprocess
import sys
import tracemalloc
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formers import Error
from formers.data.readers import read_documents
from formers.text.normalise import CleaningReport
from formers.text.sentences import split_sentences

NFD = unicodedata.normalize("NFD", "한국어 문장입니다.")
NASTY = {
    "bad bytes": b"good \xff\xfe\x80 text",
    "cut character": "한국".encode()[:-1],
    "overlong": b"\xc0\xaf\xe0\x80\xaf",
    "surrogate bytes": b"\xed\xa0\x80\xed\xbf\xbf",
    "beyond unicode": b"\xf4\x90\x80\x80\xf8\x88\x80\x80\x80",
    "nul": b"a\0b\0\0c",
    "controls": bytes(range(1, 32)) + b"\x7f" + "".join(map(chr, range(0x80, 0xA0))).encode(),
    "crlf": b"one\r\ntwo\r\n\r\nthree",
    "lone cr": b"one\rtwo\r\rthree\r",
    "mixed ends": b"\r\n\n\r\r\n\n\n\r",
    "bom": "\ufeffone\n\ufefftwo \ufeff three".encode(),
    "replacement": "one\ufffdtwo".encode(),
    "decomposed": NFD.encode(),
    "separators": "one\u2028two\u2029three\x85four\x0bfive\x0csix".encode(),
    "empty": b"\n\n\n",
    "blank": b" \t \n\xe3\x80\x80\n\xc2\xa0\n",
    "noncharacters": "\ufdd0\ufffe\U0001ffff".encode(),
    "combining": ("a" + "\u0301" * 3000).encode(),
    "joined emoji": "👨‍👩‍👧‍👦🇰🇷".encode(),
    "right to left": "\u202eabc\u202c שלום".encode(),
    "quotes": b'"""\'\'\'""","",""\n"never closed',
    "braces": b"{" * 2000 + b"[" * 2000,
    "json": b'{"text": "\\ud800 \\u0000 \\udfff\\ud83d"}\n{"text": NaN}\n{"text": 1e999}\n{"text": {"a": []}}\n"text"',
    "long word": b"x" * 5000,
    "text": "평범한 글이다. 두 번째 문장이다.\n\n다음 글이다.".encode(),
}
CORPUS = {**NASTY, "all of it": b"\n".join(NASTY.values())}
FORMS = ["txt", "jsonl", "csv", "tsv", "parquet", "txt.gz", "csv.xz", "jsonl.zst"]

NO_UTF_8 = ("bad bytes", "overlong", "surrogate bytes", "beyond unicode")  # hardly a byte of these is: refused


def read_all(path, **how):
    """All documents; what must hold for each of them is checked."""
    changes = CleaningReport()
    count = 0
    for document in read_documents(path, changes=changes, **how):
        count += 1
        assert document.strip()
        assert len(document) <= how.get("max_characters", 10**6)
        assert unicodedata.is_normalized("NFC", document)
        assert not {*"\0\r\ufeff\ufffd\u2028\x7f"} & set(document)
        document.encode("utf-8")  # no half characters
        assert "".join("".join(split_sentences(document)).split()) == "".join(document.split())
    assert changes.documents == count
    return changes


def can_read(path, content: bytes, form: str, **how) -> bool:
    """Whether it could be read; the other way out is an error with the file's name."""
    packed = form.rpartition(".")[2]
    if packed == "zst":
        content = pytest.importorskip("zstandard").compress(content)
    path = path / f"a.{form}"
    path.write_bytes({"gz": gzip.compress, "xz": lzma.compress}.get(packed, bytes)(content))
    try:
        read_all(path, **how)
    except Error as e:
        told = str(e)
    else:
        return True
    assert path.name in told
    assert "\n" not in told
    return False


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CORPUS)
def test_nasty_files(tmp_path, name, form):
    for unit in ("auto", "line", "block", "file"):
        for longest in (10**6, 40):
            read_well = can_read(tmp_path, CORPUS[name], form, unit=unit, max_characters=longest)
            assert read_well or "txt" not in form or name in NO_UTF_8  # every other text file here has some text
    can_read(tmp_path, b"text,b\n" + CORPUS[name], form, skip=True)
    rows = [json.dumps({"text": CORPUS[name].decode("utf-8", "surrogateescape")})] * 3
    if form == "jsonl":
        assert can_read(tmp_path, "\n".join(rows).encode(), form)


PIECES = st.sampled_from(
    [*NASTY.values(), b"\n", b"\r", b"\xef\xbb", b"\xbf", b"a", b" ", b",", b'"', b"\t", b'{"text":"']
)


@settings(suppress_health_check=list(HealthCheck), max_examples=120)
@given(
    st.lists(PIECES | st.binary(max_size=8), min_size=1, max_size=12).map(b"".join),
    st.sampled_from(FORMS),
    st.booleans(),
)
def test_any_bytes(tmp_path, content, form, skip):
    if content:
        can_read(tmp_path, content, form, skip=skip, max_characters=64)
        can_read(tmp_path, content, form, skip=skip, unit="block")


@pytest.mark.full
def test_any_bytes_in_full(tmp_path):
    rng, pieces, read_well = random.Random(0), [*NASTY.values(), b"\n", b"\r\n", b",", b'"', b"\t", b"\xef"], 0
    for _ in range(20_000):
        content = b"".join(
            rng.choice(pieces) if rng.random() < 0.8 else rng.randbytes(5) for _ in range(rng.randint(1, 9))
        )
        if content:
            read_well += can_read(
                tmp_path,
                content,
                rng.choice(FORMS),
                skip=rng.random() < 0.5,
                max_characters=rng.choice([8, 10**6]),
            )
    print(f"20,000 files: {read_well:,} read, {20_000 - read_well:,} refused, 0 crashes")
    assert read_well > 5000


@pytest.mark.parametrize("form", ["txt.gz", "csv.xz", "jsonl.zst", "parquet"])
def test_flipped_and_cut(tmp_path, form, full):
    """Damage is an error, or, where the form has no check sum over it, other text; never a crash."""
    path = tmp_path / f"a.{form}"
    content = b"text,n\n" + "".join(f'"문장 {i}입니다.",{i}\n' for i in range(300)).encode()
    if form == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": [f"문장 {i}입니다." for i in range(300)]}), path)
        packed = path.read_bytes()
    elif form == "jsonl.zst":
        content = b"".join(b'{"text": "%d"}\n' % i for i in range(300))
        packed = pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True).compress(content)
    else:
        packed = {"txt.gz": gzip.compress, "csv.xz": lzma.compress}[form](content)
    rng, caught, cuts = random.Random(0), 0, 0
    rounds = 1000 if full else 40
    for _ in range(rounds):
        flipped = bytearray(packed)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            read_all(path)
        except Error:
            caught += 1
        path.write_bytes(packed[: rng.randrange(1, len(packed))])
        with contextlib.suppress(Error):
            read_all(path)
            cuts += 1
    print(f"{form}: {caught} of {rounds} flips noticed, {cuts} of {rounds} truncations not")
    assert cuts == 0
    if form != "parquet":
        assert caught > 0.8 * rounds


@pytest.mark.parametrize("unit", ["line", "block", "file", "auto"])
def test_a_huge_line(tmp_path, unit, full):
    """One line of 3 MB (100 MB in full), with and without spaces; memory does not depend on it."""
    size, longest = (100 if full else 3) * 10**6, 100_000
    path = tmp_path / "a.txt"
    for text in ("가나다 라마바. ", "x", NFD, " "):
        data = text.encode()
        with path.open("wb") as file:
            for _ in range(size // (len(data) * 1000) + 1):
                file.write(data * 1000)
        tracemalloc.start()
        changes, length, longest_seen = CleaningReport(), 0, 0
        for document in read_documents(path, unit=unit, max_characters=longest, changes=changes):
            length, longest_seen = length + len(document), max(longest_seen, len(document))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        expected = path.stat().st_size // len(data) * len(unicodedata.normalize("NFC", text))
        assert length == (expected if text.strip() else 0)
        assert changes.lines == 1
        assert changes.cut >= length // longest
        assert longest_seen <= longest
        assert peak < 16 * 2**20, f"{peak:,} bytes"
        print(f"{unit}, {path.stat().st_size:,} bytes of {text[:8]!r}: {changes.documents:,} documents, {peak:,} bytes")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the peak of memory")
@pytest.mark.parametrize("form", ["txt.gz", "txt.xz", "txt.zst"])
def test_bombs_stream(tmp_path, form, full):
    """A small file that unpacks to 60 MB (500 MB in full) of one letter."""
    size = 5 * 10**8 if full else 6 * 10**7
    path = tmp_path / f"a.{form}"
    openers = {
        "txt.gz": lambda: gzip.open(path, "wb", 1),  # noqa: SIM115
        "txt.xz": lambda: lzma.open(path, "wb", preset=0),  # noqa: SIM115
        "txt.zst": lambda: pytest.importorskip("zstandard").open(path, "wb"),
    }
    with openers[form]() as file:
        for _ in range(size // 10**6):
            file.write(b"x" * 10**6)
    assert path.stat().st_size < size / 100
    # Of the process itself: what getrusage tells begins with the parent's.
    code = f"""
import re
from formers.data.readers import read_documents
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
list(read_documents(["warm"]))
before = peak()
print(sum(map(len, read_documents({str(path)!r}))), peak() - before)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    print(f"{form}: {path.stat().st_size:,} bytes unpack to {int(out[0]):,}, {int(out[1]) // 1024} MB of memory")
    assert int(out[0]) == size
    assert int(out[1]) < 45 * 1024


def test_counts_are_right(tmp_path):
    """Known numbers of each kind, planted in many lines over many chunks."""
    rng, lines = random.Random(0), []
    true = CleaningReport()
    for number in range(20_000):
        line = f"줄 {number} 번째 문장이다. ".encode() * 2
        kind = rng.randrange(9)
        if kind == 0:
            line, true.undecodable = line + b"\xff", true.undecodable + 1
        elif kind == 1:
            line, true.nul = line[:1] + line[1:].replace(b" ", b"\0 ", 1), true.nul + 1
        elif kind == 2:
            line, true.marks = "\ufeff".encode() + line, true.marks + 1
        elif kind == 3:
            line, true.replaced = line + "\ufffd\ufffd".encode(), true.replaced + 2
        elif kind == 4:
            line, true.control = line + b"\x01\x0c", true.control + 2
        elif kind == 5:
            line, true.composed = unicodedata.normalize("NFD", line.decode()).encode(), true.composed + 1
        elif kind == 6:
            line, true.carriage = line + b"\r", true.carriage + 1
        elif kind == 7:
            line, true.empty = b" ", true.empty + 1
        lines.append(line)
    true.lines, true.documents = len(lines), len(lines) - true.empty
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))
    found = CleaningReport()
    documents = list(read_documents(tmp_path / "a.txt", unit="line", changes=found))
    assert found == true
    assert documents[-1].startswith("줄 ")
    print(found)
