"""Published formats of word vectors, both ways; files of the released programs; hostile files."""

from __future__ import annotations

import contextlib
import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.inspection.embed import neighbours
from formers.interop import word_vectors
from formers.interop.word_vectors import build_vectors_model, read_word_vectors, write_word_vectors
from formers.tasks.word_vectors import look_up_words
from formers.text.word_level import hash_ngrams

WORDS = ["the", "고양이", "a-b", "ㅋㅋ", "…", "\u00a0x"]
TABLE = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
CLASSIC = b"2 3\nthe 0.5 -1 2e-1\ncat 1 2 3\n"
BINARY = b"2 3\nthe " + struct.pack("<3f", 0.5, -1, 0.2) + b"\ncat " + struct.pack("<3f", 1, 2, 3)


def words_of(f):
    return [f.tokenizer.backend.id_to_token(i) for i in range(f.config.vocab)]


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("form", ["text", "glove", "binary"])
def test_there_and_back(form, ending, tmp_path):
    f = build_vectors_model(WORDS, TABLE)
    path = tmp_path / f"v.txt{ending}"
    write_word_vectors(f, path, form)
    again = read_word_vectors(path, format=form)
    assert words_of(again) == [*WORDS, "[UNK]"]
    assert torch.equal(again.model.body.embedding_table, f.model.body.embedding_table)
    seen = read_word_vectors(path)  # the format is seen from the file
    assert torch.equal(seen.model.body.embedding_table, f.model.body.embedding_table)
    assert words_of(read_word_vectors(path, max_words=2)) == ["the", "고양이", "[UNK]"]
    with pytest.raises(Error, match="exists already"):
        write_word_vectors(f, path, form)


@pytest.mark.parametrize(
    "data",
    [
        CLASSIC,
        CLASSIC.replace(b"\n", b"\r\n"),
        CLASSIC.replace(b"\n", b" \n").replace(b"3 \n", b"3\n", 1),  # fastText's .vec: a space at the end of rows
        CLASSIC[4:],  # GloVe
        CLASSIC[4:-1],
        BINARY,
        BINARY.replace(b"\ncat", b"cat"),  # Google News has no line ends
        BINARY + b"\n",
    ],
)
def test_what_programs_write(data, tmp_path):
    (tmp_path / "v").write_bytes(data)
    f = read_word_vectors(tmp_path / "v")
    assert words_of(f) == ["the", "cat", "[UNK]"]
    torch.testing.assert_close(f.model.body.embedding_table[:2], torch.tensor([[0.5, -1, 0.2], [1, 2, 3]]))


def test_words_with_spaces_in_glove(tmp_path):
    (tmp_path / "v").write_text("the 1 2\n. . . 3 4\nat name@domain.com 5 6\n<unk> 7 8\n")
    f = read_word_vectors(tmp_path / "v")
    assert words_of(f) == ["the", ". . .", "at name@domain.com", "<unk>"]
    assert f.tokenizer.id("unk") == 3
    with pytest.raises(Error, match=r"'\. \. \.' cannot stand"):
        write_word_vectors(f, tmp_path / "w")


def build_subword_model():
    buckets = 30
    table = torch.randn(4 + buckets, 5, generator=torch.Generator().manual_seed(1))
    return build_vectors_model(
        ["cat", "</s>", "고양이", "dog"], table, kind="fasttext", buckets=buckets, min_n=2, max_n=4
    )


def test_fasttext_there_and_back(tmp_path):
    f = build_subword_model()
    write_word_vectors(f, tmp_path / "v.bin", "fasttext")
    again = read_word_vectors(tmp_path / "v.bin")
    assert again.config == f.config
    torch.testing.assert_close(again.model.body.embedding_table, f.model.body.embedding_table)
    assert neighbours(again, "catty")[0][0] == neighbours(f, "catty")[0][0]
    with pytest.raises(Error, match="skipgram vectors have no n-grams"):
        write_word_vectors(build_vectors_model(WORDS, TABLE), tmp_path / "w.bin", "fasttext")


def test_a_word_of_a_fasttext_file_is_the_mean_of_its_rows(tmp_path):
    f = build_subword_model()
    write_word_vectors(f, tmp_path / "v.bin", "fasttext")
    data = (tmp_path / "v.bin").read_bytes()
    start = data.index(struct.pack("<?qq", False, 34, 5)) + 17
    raw = np.frombuffer(data, "<f4", 34 * 5, start).reshape(34, 5)
    parts = [2, *(4 + g for g in hash_ngrams("고양이", 2, 4, 30))]
    got = look_up_words(f, ["고양이", "강아지"])[0].numpy()
    np.testing.assert_allclose(got[0], raw[parts].mean(0), atol=1e-5)
    np.testing.assert_allclose(look_up_words(f, ["</s>"])[0][0], raw[1])  # the end of a line has no n-grams
    np.testing.assert_allclose(got[1], raw[[4 + g for g in hash_ngrams("강아지", 2, 4, 30)]].mean(0), atol=1e-5)


HOSTILE = [
    (b"", "the file ends after 0 words"),
    (b"99999999999 300\nthe 1\n", "do not fit into"),
    (b"16000000 16000000\nthe 1 2\n", "do not fit into"),
    (b"0 3\n", "0 words of 3 numbers"),
    (b"3 2\na 1 2\nb 1 2\n", "the file ends after 2 of 3 words"),
    (b"1 2\na 1 2\nb 1 2\n", "line 3: there are more than the 1 words"),
    (b"a 1 2\nb 1\n", "line 2: 1 numbers instead of 2"),
    (b"a 1 2\nb 1 2 3\n", "line 2: 3 numbers instead of 2"),
    (b"a 1 2\na 3 4\n", "line 2: the word 'a' is there twice"),
    (b"a 1 2\n\xff\xfe 3 4\n", "line 2: the word"),
    (b"a 1 2\nb 1 x\n", "line 2: '1 x' is not 2 numbers"),
    (b"a 1 2\nb 1 nan\n", "line 2: '1 nan' is not 2 numbers"),
    (b"a 1 2\nb 1 1e300\n", "line 2: '1 1e300' is not 2 numbers"),
    (b"a 1 2\n 3 4\n", "line 2: a word of 0 characters"),
    (b"a 1 2\n\nb 1 2\n", "line 2: 0 numbers instead of 2"),
    (b"x" * 2000 + b" 1 2\n", "line 1: a word of 2,000 characters"),
    (b"x" * (2**20 + 5), "line 1: a line of more than"),
    (b"nothing here\n", "line 1: 'here' is not 1 numbers"),
    (BINARY[:-1], "line 3: word 2 of 2 is cut off"),
    (BINARY + b"more", "there is more than the 2 words"),
    (BINARY.replace(b"cat", b"the"), "line 3: the word 'the' is there twice"),
    (BINARY[:-4] + struct.pack("<f", float("inf")), "line 3: the vector of 'cat' is not made of numbers"),
    (BINARY.replace(b"2 3", b"9 3", 1), "do not fit into"),
    (b"2 3\n" + b"\x01" * 9000, "line 2: word 1 of 2 is cut off"),
    (struct.pack("<i", word_vectors.FASTTEXT_MAGIC), "the file ends too early"),
    (struct.pack("<ii", word_vectors.FASTTEXT_MAGIC, 10) + bytes(99), "not a fastText file of version 11 or 12"),
]


@pytest.mark.parametrize(("data", "message"), HOSTILE, ids=[m for _, m in HOSTILE])
def test_hostile_files_are_refused(data, message, tmp_path):
    for path, packed in ((tmp_path / "v.txt", data), (tmp_path / "v.txt.gz", gzip.compress(data))):
        if path.suffix == ".gz" and data[:3] == b"9 3":
            continue  # a packed file may grow by so much; this one then ends too early
        path.write_bytes(packed)
        with pytest.raises(Error) as caught:
            read_word_vectors(path)
        bomb = path.suffix == ".gz" and "grows more than" in str(caught.value)  # one letter many times
        assert message in str(caught.value) or bomb
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_packed_files(tmp_path):
    path = tmp_path / "v.gz"
    path.write_bytes(gzip.compress(CLASSIC)[:-9])
    with pytest.raises(Error, match="not a whole .gz"):
        read_word_vectors(path)
    path.write_bytes(CLASSIC)
    with pytest.raises(Error, match="not a whole .gz"):
        read_word_vectors(path)
    path.write_bytes(gzip.compress(b"a 1 2\n" + b"".join(b"%d 0 0\n" % i for i in range(9)) + b"\n" * 10**7))
    with pytest.raises(Error, match="line 11|grows more than"):
        read_word_vectors(path)
    zeros = gzip.compress(b"a" + b" 0" * 4 * 10**5)
    path.write_bytes(zeros)
    with pytest.raises(Error, match="grows more than 100 times"):
        read_word_vectors(path)
    with pytest.raises(Error, match="no such file"):
        read_word_vectors(tmp_path / "none")


def fasttext_file(tmp_path):
    write_word_vectors(build_subword_model(), tmp_path / "v.bin", "fasttext")
    return (tmp_path / "v.bin").read_bytes()


def test_hostile_fasttext_files(tmp_path):
    data = fasttext_file(tmp_path)
    args = 8 + 12 * 4 + 8
    for at, value, message in (
        (8, struct.pack("<i", 2**30), "do not fit into"),
        (8 + 7 * 4, struct.pack("<i", 3), "a classifier"),
        (8 + 8 * 4, struct.pack("<i", 29), "does not fit"),
        (args, struct.pack("<ii", 2**30, 2**30), "do not fit into"),
        (args + 20, struct.pack("<q", 5), "quantised"),
        (len(data) - 4 * 20 - 17 - 4, struct.pack("<f", float("nan")), "not made of numbers"),
    ):
        (tmp_path / "w.bin").write_bytes(data[:at] + value + data[at + len(value) :])
        with pytest.raises(Error, match=message):
            read_word_vectors(tmp_path / "w.bin")
    for cut in range(0, len(data) - 4 * 20 - 17, 7):
        (tmp_path / "w.bin").write_bytes(data[:cut])
        with pytest.raises(Error):
            read_word_vectors(tmp_path / "w.bin")


@given(st.data())
def test_damaged_bytes_are_read_or_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("v")
    good = data.draw(st.sampled_from([CLASSIC, CLASSIC[4:], BINARY, b"FT"]))
    changed = bytearray(fasttext_file(folder) if good == b"FT" else good)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, min(len(changed), 200) - 1))] = data.draw(st.integers(0, 255))
    (folder / "w").write_bytes(changed)
    with contextlib.suppress(Error):  # and nothing but our error
        read_word_vectors(folder / "w")
