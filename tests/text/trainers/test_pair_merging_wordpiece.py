"""WordPiece: equal to brute force, as good as BPE, and Hangul stays whole."""

from __future__ import annotations

import itertools
import json
import lzma
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.interop.tokenizer_files import save_tokenizer
from formers.models import bert, gpt
from formers.registry import train_tokenizer
from formers.text.trainers import pair_merging, word_counts
from formers.text.trainers.pair_merging import train_bpe, train_wordpiece
from tests.text.trainers import brute_force

LINES = [
    "the cat sat on the mat",
    "the dog sat on the log",
    "a cat and a dog",
    "현행법은 이에 현행법을 개정하려는 것임",
] * 3
MARKS = list(bert.SPECIAL_TOKENS.values())


def list_pieces(made):
    vocab = json.loads(made.json_text)["model"]["vocab"]
    return sorted(vocab, key=vocab.get)


def count_spaced_words(lines):
    return Counter(w for line in lines for w in line.split())


@pytest.mark.parametrize("score", ["gain", "ratio"])
@given(lines=st.lists(st.text("abc ", max_size=16), min_size=1, max_size=6), size=st.integers(8, 34))
def test_equal_to_brute_force_on_any_text(score, lines, size):
    lines, size = [*lines, "ab ab"], max(size, 11)
    made = train_tokenizer("wordpiece", lines, size, alphabet=3, score=score)
    assert list_pieces(made) == brute_force.train_wordpiece(count_spaced_words(lines), MARKS, size, score)


@pytest.mark.parametrize("refill", [1, 7, 20_000])
def test_equal_to_brute_force_however_the_queue_is_filled(refill, monkeypatch):
    monkeypatch.setattr(pair_merging, "HEAP_REFILL", refill)
    assert list_pieces(train_tokenizer("wordpiece", LINES, 130, alphabet=60)) == brute_force.train_wordpiece(
        count_spaced_words(LINES), MARKS, 130
    )


def test_equal_to_brute_force_on_real_text(data):
    with lzma.open(data / "lm/tinyshakespeare.txt.xz", "rt", encoding="utf-8") as file:
        lines = [line.replace("'", "") for line in itertools.islice(file, 60)]
    made = train_tokenizer("wordpiece", lines, 300, alphabet=100)
    split = pair_merging.build_bert_pipeline(False, "[UNK]").pre_tokenizer.pre_tokenize_str
    counts = Counter(w for line in lines for word in line.split() for w, _ in split(f"x {word} x")[1:-1])
    pair_merging.add_spaced_variants(counts)
    assert list_pieces(made) == brute_force.train_wordpiece(counts, MARKS, 300)


def test_tokens_per_word_near_bpe(data):
    """Within 3 % of BPE of the same size; the ratio of the tutorials is far off."""
    with lzma.open(data / "lm/tinyshakespeare.txt.xz", "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")[:6000]

    def tokens(made):
        return sum(map(len, made.encode_batch(lines, special=False)))

    ours = tokens(train_tokenizer("wordpiece", lines, 2000, lower=True))
    theirs = tokens(train_bpe(lines, 2000, style=gpt.STYLE))
    assert abs(ours / theirs - 1) < 0.03, (ours, theirs)
    assert tokens(train_tokenizer("wordpiece", lines, 2000, lower=True, score="ratio")) > 1.3 * theirs


def test_the_same_file_for_any_number_of_processes(monkeypatch):
    alone = train_tokenizer("wordpiece", LINES, 110, workers=1).json_text
    monkeypatch.setattr(word_counts.chunk_lines, "__defaults__", (60,))
    assert train_tokenizer("wordpiece", LINES, 110, workers=1).json_text == alone
    assert train_tokenizer("wordpiece", iter(LINES), 110, workers=2).json_text == alone


def test_hangul_is_not_taken_apart():
    """Trap 1: lower-casing must not strip accents, or syllables fall into jamo; trap 3: NFD is composed first."""
    made = train_tokenizer("wordpiece", ["Ünïcode 가나 ABC", *LINES] * 3, 120, lower=True, alphabet=60)
    assert made.decode(made.encode("ÜNÏCODE 가나 ABC")) == "ünïcode 가나 abc"
    text = "현행법은 이에 현행법을"
    assert made.encode(unicodedata.normalize("NFD", text)) == made.encode(text)
    assert made.id("unk") not in made.encode(unicodedata.normalize("NFD", text))
    assert not any("\u1100" <= c <= "\u11ff" for p in list_pieces(made) for c in p)


def test_compatibility_jamo_stay():
    """Trap 2: NFKC would turn ㅋㅋ into other characters."""
    for kind, size in (("wordpiece", 60), ("unigram", 200), ("bpe", 300), ("gpt", 60), ("words", 20)):
        made = train_tokenizer(kind, ["ㅋㅋㅋ ㅠㅠ 좋다"] * 3, size)
        assert made.decode(made.encode("ㅋㅋㅋ ㅠㅠ 좋다", special=False)) == "ㅋㅋㅋ ㅠㅠ 좋다", kind


@pytest.mark.parametrize("morphemes", [False, True])
def test_a_review_without_spaces_is_not_unknown(morphemes):
    """BERT gives up words of more than 100 characters, which Korean reviews without spaces reach."""
    if morphemes:
        pytest.importorskip("kiwipiepy")
    line = "재미없다" + "ㅠ" * 200 + "정말재미없다" * 20
    made = train_tokenizer("wordpiece", [line, *LINES], 120, alphabet=60, morphemes=morphemes)
    ids = made.encode(line, special=False)
    assert made.id("unk") not in ids
    assert made.decode(ids) == line


def test_sizes_and_options():
    with pytest.raises(Error, match="do not fit into 10 pieces"):
        train_wordpiece(LINES, 10, style=bert.STYLE, alphabet=40)
    with pytest.raises(Error, match="wordpiece has no option 'lowr'. Did you mean 'lower'"):
        train_tokenizer("wordpiece", LINES, 60, lowr=True)
    assert (
        len(train_tokenizer("wordpiece", LINES, 60, alphabet=20))
        < len(train_tokenizer("wordpiece", LINES, 60, alphabet=60))
        <= 60
    )
    assert train_tokenizer("wordpiece", LINES, 60, alphabet=5).encode("개정", special=False) == [1]
    told = []
    train_tokenizer("wordpiece", LINES, 60, tell=lambda *words: told.append(words))
    assert [t[0] for t in told] == ["counting", "counting", "merging"]
    assert all(t[1] == t[2] for t in told[1:])


@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_transformers_reads_and_decodes_alike(kind, data, tmp_path):
    """The spaces around punctuation are in the file: another reader gives the same ids, and the same text back."""
    transformers = pytest.importorskip("transformers")
    with lzma.open(data / "lm/movie_reviews_ko.txt.xz", "rt", encoding="utf-8") as file:
        lines = [unicodedata.normalize("NFC", " ".join(line.split())) for line in itertools.islice(file, 200)]
    lines += ['Don\'t (ever) say: "No!" ... 3.5 % of 大韓민국, a-b - c']
    made = train_tokenizer(kind, lines, 3000, lower=False)
    save_tokenizer(made, tmp_path / "made")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "made")
    ids = made.encode_batch(lines)
    assert theirs(lines)["input_ids"] == ids
    assert [made.decode(row) for row in ids] == lines
    assert [theirs.decode(row, skip_special_tokens=True) for row in ids] == lines
