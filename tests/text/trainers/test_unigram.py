"""Unigram: the lattice against all ways written out, exact sizes, sentinels, bytes for what is unknown."""

from __future__ import annotations

import itertools
import lzma
import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from formers import Error
from formers.data.readers import load_bundled_corpus
from formers.registry import find_tokenizer_style, train_tokenizer
from formers.text.tokenizer import DecodeStream
from formers.text.trainers import unigram, word_counts
from formers.text.trainers.unigram import SPACE_MARK, Lattice, train_unigram
from tests.text.trainers import brute_force

LINES = ["the cat sat on the mat, the dog sat on the log", "현행법은 이에 현행법을 개정하려는 것임 ㅋㅋ"] * 5


def build_lattice(words, pieces):
    letters = sorted(set("".join(pieces)))
    number = {c: i for i, c in enumerate(letters, 1)}
    symbols, weights = unigram.flatten_words(Counter(words), number)
    return Lattice(symbols, weights, [tuple(number[c] for c in p) for p in pieces], len(letters))


@given(st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=5), st.data())
def test_expected_counts_and_best_paths(words, data):
    pieces = ["a", "b", "c", *data.draw(st.lists(st.text("abc", min_size=2, max_size=4), unique=True, max_size=6))]
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(words), max_size=len(words)))
    chances = np.array(data.draw(st.lists(st.integers(1, 50), min_size=len(pieces), max_size=len(pieces))), float)
    chances /= chances.sum()
    of, words = dict(zip(pieces, chances, strict=True)), Counter(dict(zip(words, weights, strict=True)))
    expected, likelihood = Counter(), 0.0
    for word, count in words.items():
        paths = {w: np.prod([of[p] for p in w]) for w in brute_force.list_ways(word, of)}
        likelihood += count * np.log(sum(paths.values()))
        for way, chance in paths.items():
            for piece in way:
                expected[piece] += count * chance / sum(paths.values())
    found, total = build_lattice(words, pieces).compute_expectations(chances)
    np.testing.assert_allclose(found, [expected[p] for p in pieces], rtol=1e-9, atol=1e-12)
    assert total == pytest.approx(likelihood)
    apart = build_lattice(Counter(dict.fromkeys(pieces, 1)), pieces)
    order = sorted(pieces)
    want = {
        p: max((sum(np.log(of[x]) for x in w) for w in brute_force.list_ways(p, of) if w != (p,)), default=-np.inf)
        for p in of
    }
    np.testing.assert_allclose(apart.score_without_whole(np.log(chances)), [want[p] for p in order])


def test_pruned_pieces_leave_the_lattice():
    pieces = ["a", "b", "ab", "ba", "aba"]
    whole = build_lattice({"abab": 3, "ba": 1}, pieces)
    whole.prune_pieces(np.array([True, True, False, True, True]))
    fresh = build_lattice({"abab": 3, "ba": 1}, ["a", "b", "ba", "aba"])
    for mine, theirs in zip(
        whole.compute_expectations(np.full(4, 0.25)), fresh.compute_expectations(np.full(4, 0.25)), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


@given(st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=6))
def test_seeds_are_the_substrings_that_are_not_always_part_of_a_longer_one(words):
    counts = Counter(words)
    symbols, weights = unigram.flatten_words(counts, {"a": 1, "b": 2})
    found = {"".join(" ab"[i] for i in s) for s in unigram.find_seed_pieces(symbols, weights, 2, 16, 10**6)}
    amount = Counter()
    for word, count in counts.items():
        for i, j in itertools.combinations(range(len(word) + 1), 2):
            amount[word[i:j]] += count
    want = {
        s for s, n in amount.items()
        if n >= 2 and len(s) >= 2 and all(amount[c + s] < n and amount[s + c] < n for c in "ab")
    }  # fmt: skip
    assert found == want


@pytest.mark.parametrize("style", ["t5", "albert", "xlnet", "mbart"])
def test_exact_size_and_marks(style):
    marks, size, lines = find_tokenizer_style(style), 203, load_bundled_corpus("en")[0][0][:15_000].split("\n")
    made = train_unigram(lines, size, style=marks, alphabet=40)
    assert len(made) == size
    assert made.decode(made.encode("the war is on")) == "the war is on"
    assert made.json_text == train_unigram(iter(lines), size, style=marks, alphabet=40, workers=1).json_text
    if style == "t5":
        assert made.backend.token_to_id("<extra_id_0>") == size - 1
        assert made.encode("cat <extra_id_0> the")[-3:-2] == [size - 1]
        assert made.encode("the")[-1] == made.id("eos") == 1
    if style == "xlnet":
        assert made.encode("the", "cat")[-2:] == [made.id("sep"), made.id("cls")]
        assert made.is_left_padded


def test_the_same_file_for_any_number_of_processes(monkeypatch):
    alone = train_tokenizer("unigram", LINES, 190, workers=1).json_text
    monkeypatch.setattr(word_counts.chunk_lines, "__defaults__", (60,))
    assert train_tokenizer("unigram", iter(LINES), 190, workers=2).json_text == alone


def test_shorter_than_a_peer(data):
    """No more tokens than SentencePiece's own trainer needs for the same text and size."""
    import io

    peer = pytest.importorskip("sentencepiece")
    with lzma.open(data / "lm/tinyshakespeare.txt.xz", "rt", encoding="utf-8") as file:
        lines = [line for line in itertools.islice(file, 8000) if line.strip()]
    made, out = train_unigram(lines, 2000, style=find_tokenizer_style("albert")), io.BytesIO()
    peer.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, vocab_size=2000, minloglevel=2, num_threads=1
    )
    theirs = peer.SentencePieceProcessor(model_proto=out.getvalue()).encode(lines)
    assert sum(map(len, made.encode_batch(lines, special=False))) <= 1.01 * sum(map(len, theirs))


BYTES = train_tokenizer("unigram", LINES, 420, byte_fallback=True, alphabet=40)


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zs", "Zl", "Zp", "Mn", "Mc")), max_size=20))
@example("<unk>")
def test_bytes_for_what_is_unknown(text):
    text = unicodedata.normalize("NFC", text).strip().replace(SPACE_MARK, "")
    ids = BYTES.encode(text, special=False, parse_special=False)  # Hypothesis tries <unk> as well
    assert BYTES.id("unk") not in ids
    assert unicodedata.normalize("NFC", BYTES.decode(ids)) == text
    stream = DecodeStream(BYTES)
    assert "".join(map(stream.push, ids)) + stream.flush() == BYTES.decode(ids)


def test_korean():
    made = train_tokenizer("unigram", LINES, 200, alphabet=60)
    text = "현행법을 ㅋㅋ 개정"
    assert made.decode(made.encode(text)) == text
    assert made.encode(unicodedata.normalize("NFD", text)) == made.encode(text)


def test_sizes_that_cannot_work():
    with pytest.raises(Error, match="do not fit into 105 pieces"):
        train_tokenizer("unigram", LINES, 105, alphabet=40)
    assert train_tokenizer("unigram", [], 200).encode("a", special=False)[-1] == 2
