"""BPE over jamo: any text comes back composed, nothing is unknown, other readers of the file give the same ids."""

from __future__ import annotations

import itertools
import json
import lzma
import unicodedata
from collections import Counter

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.generation.api import StopWatcher
from formers.interop.tokenizer_files import load_tokenizer, save_tokenizer
from formers.registry import train_tokenizer
from formers.text.normalise import normalise
from formers.text.tokenizer import BYTE_ALPHABET, DecodeStream
from formers.text.trainers import pair_merging
from tests.text.trainers import brute_force

LINES = [
    "나는 학교에 간다. 그는 학교에 갔다ㅋㅋ",
    "현행법은 이에 현행법을 개정하려는 것임",
    "the café, it's 2024년 😀",
] * 3
MADE = train_tokenizer("jamo", LINES, 400)
MIXED = "가각한글값뷁 \t\nㅋㅠㄱaZ0.,'éộ😀👍🏽\u200d\ufe0f\u1100\u1161\u11a8\u1113\u302e\u0301漢▁"


@given(st.text(st.sampled_from(MIXED), max_size=30) | st.text(max_size=20))
def test_any_text_comes_back_composed(text):
    text = text.encode("utf-8", "ignore").decode()
    ids = MADE.encode(text, parse_special=False)
    assert MADE.decode(ids) == unicodedata.normalize("NFC", text)
    assert MADE.encode(unicodedata.normalize("NFD", text), parse_special=False) == ids
    assert MADE.encode_batch([text], parse_special=False) == [ids]
    stream = DecodeStream(MADE)
    assert "".join(map(stream.push, ids)) + stream.flush() == unicodedata.normalize("NFC", text)


@given(st.lists(st.integers(0, len(MADE) - 1), max_size=30))
def test_a_stream_gives_what_decoding_gives(ids):
    stream = DecodeStream(MADE)
    parts = [stream.push(i) for i in ids]
    assert not any("�" in part for part in parts)
    assert ("".join(parts) + stream.flush()).removesuffix("�") == MADE.decode(ids)


@given(st.lists(st.text(st.sampled_from("가각한 aé\u1113"), max_size=12), min_size=1, max_size=4), st.integers(0, 40))
def test_equal_to_brute_force(lines, more):
    made = train_tokenizer("jamo", lines, 328 + more)
    split = pair_merging.build_byte_level(True, False, jamo=True).pre_tokenizer.pre_tokenize_str
    words = Counter(w for line in lines for w, _ in split(unicodedata.normalize("NFD", line)))
    first = [*sorted(BYTE_ALPHABET), *pair_merging.JAMO_PIECES]
    counts = Counter({tuple(pair_merging.JAMO_PATTERN.findall(w)): n for w, n in words.items()})
    merges, vocab = brute_force.train_bpe(counts, first, 327 + more)
    model = json.loads(made.json_text)["model"]
    assert [tuple(pair) for pair in model["merges"]] == [*pair_merging.JAMO_MERGES, *merges]
    assert sorted(model["vocab"], key=model["vocab"].get) == [*vocab, "<|endoftext|>"]


def test_pieces_are_jamo():
    """A stem whose last syllable changes is one piece, and no piece is a part of a jamo's bytes."""
    assert MADE.backend.encode("학교").tokens[0].startswith(pair_merging.JAMO_SPELLINGS[18])
    words = train_tokenizer("jamo", ["간다 갔다 갈까 가면 가는"] * 9, 333)
    pieces = {tuple(words.get_token_text(i) for i in words.encode(text)) for text in ("갔", "갈", "가")}
    assert pieces == {("가", "\u11bb"), ("가", "\u11af"), ("가",)}
    assert [MADE.get_token_text(i) for i in MADE.encode("뷁")] == ["\u1107", "\u1170", "\u11b0"]
    assert MADE.decode(MADE.encode("뷁")) == "뷁"


def test_saved_loaded_and_read_by_others(tmp_path):
    save_tokenizer(MADE, tmp_path / "made")
    again = load_tokenizer(tmp_path / "made")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    for text in (*LINES, "뷁 값 ㅋㅋ \u1113 naïve 漢字 👨\u200d👩\u200d👧"):
        ids = MADE.encode(text)
        assert again.encode(text) == ids == theirs.encode(text).ids
        assert again.decode(ids) == text
        assert theirs.decode(ids) == unicodedata.normalize("NFD", text)  # no decoder of theirs composes
    assert again.notes == []
    transformers = pytest.importorskip("transformers")
    peer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "made"))
    assert peer(LINES[0])["input_ids"] == MADE.encode(LINES[0])


def test_offsets_are_whole_syllables():
    text = "학교에 갔다 café"
    for form in (text, unicodedata.normalize("NFD", text)):
        ids, spans = MADE.encode_with_offsets(form)
        assert ids == MADE.encode(text)
        assert spans[0][0] == 0
        assert spans[-1][1] == len(form)
        for begin, end in spans:
            assert begin < end
            assert form != text or normalise(form[begin:end]) in text  # decomposed text has jamo of its own


def test_a_prompt_is_not_shown_again():
    """The last syllable of a prompt may still grow in the stream, but it was shown before."""
    prompt, more = MADE.encode("학교"), MADE.encode("에 간")
    watch = StopWatcher(MADE, (), prompt)
    assert "".join(map(watch.push, more)) + watch.flush() == "에 간"


@pytest.mark.parametrize("style", ["gpt2", "roberta", "bloom"])
def test_styles(style):
    made = train_tokenizer("jamo", LINES, 400, style=style)
    assert made.decode(made.encode(LINES[0])) == LINES[0]
    assert len(made) <= 400


def test_what_does_not_go_together():
    with pytest.raises(Error, match="too small. Take at least 328"):
        train_tokenizer("jamo", LINES, 300)
    with pytest.raises(Error, match="not with GPT-1"):
        train_tokenizer("jamo", LINES, 400, style="gpt")
    with pytest.raises(Error, match="not with nfc=False"):
        train_tokenizer("jamo", LINES, 400, nfc=False)
    with pytest.raises(Error, match="bpe has no option 'jamo'"):
        train_tokenizer("bpe", LINES, 400, jamo=True)


@pytest.mark.parametrize("morphemes", [False, True])
def test_real_reviews(morphemes, data):
    """Nothing is unknown, every review comes back; fewer tokens for a syllable than bytes of syllables need."""
    if morphemes:
        pytest.importorskip("kiwipiepy")
    with lzma.open(data / "lm/movie_reviews_ko.txt.xz", "rt", encoding="utf-8") as file:
        lines = [normalise(line.rstrip("\n")) for line in itertools.islice(file, 600)]
    made = train_tokenizer("jamo", lines[:500], 3000, morphemes=morphemes)
    rows = made.encode_batch(lines, special=False, parse_special=False)
    assert [made.decode(row) for row in rows] == lines
    if not morphemes:
        peer = train_tokenizer("bpe", lines[:500], 3000)
        assert sum(map(len, rows)) < sum(map(len, peer.encode_batch(lines, special=False, parse_special=False)))
