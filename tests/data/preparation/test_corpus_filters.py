"""Duplicates, near duplicates, held-out documents and tests inside the training text, held against plain references."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import unicodedata
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.data.preparation import corpus_filters
from formers.data.preparation.corpus_filters import (
    ContaminationIndex,
    FilterCounts,
    HoldOut,
    SeenTexts,
    deduplicate,
    hash_text,
    measure_contamination,
)
from formers.data.readers import load_bundled_corpus, read_documents

KO, EN = load_bundled_corpus("ko")[0], [p for d in load_bundled_corpus("en")[0] for p in d.split("\n") if len(p) > 100]


def drop_repeats(texts):
    seen, out = set(), []
    for text in texts:
        key = " ".join(unicodedata.normalize("NFC", text).split())
        if key not in seen:
            seen.add(key)
            out.append(text)
    return out


class TestExact:
    @given(
        st.lists(st.sampled_from(["a", "b", " a ", "a b", "a  b", "각", "\u1100\u1161\u11a8", "A", ""]), max_size=40)
    )
    def test_equal_to_a_set(self, texts):
        counts = FilterCounts()
        assert list(deduplicate(texts, counts=counts)) == drop_repeats(texts)
        assert (counts.documents, counts.exact) == (len(texts), len(texts) - len(drop_repeats(texts)))

    def test_many(self, monkeypatch):
        """Through several sorted arrays, whose hashes end in zero bytes, too."""
        monkeypatch.setattr(corpus_filters, "HASH_BUFFER", 50)
        numbers = np.random.default_rng(0).integers(0, 3000, 8000)
        texts = [f"document {n}" for n in numbers]
        assert list(deduplicate(texts)) == drop_repeats(texts)
        seen = SeenTexts()
        for text in texts:
            seen.add_if_new([text])
        assert len(seen) == len(set(texts))
        assert len(seen.sorted_hashes) < 10
        assert all(len(a) >= 2 * len(b) for a, b in zip(seen.sorted_hashes, seen.sorted_hashes[1:], strict=False))

    def test_hashes_with_zero_bytes(self, monkeypatch):
        keys = iter([b"\1" * 15 + b"\0", b"\1" * 14 + b"\0\0", b"\1" * 15 + b"\0", b"\0" * 16, b"\0" * 16])
        monkeypatch.setattr(corpus_filters, "hash_text", lambda _: next(keys))
        monkeypatch.setattr(corpus_filters, "HASH_BUFFER", 1)
        seen = SeenTexts()
        assert [seen.add_if_new(["x"])[0] for _ in range(5)] == [True, True, False, True, False]

    def test_memory_is_16_bytes_a_document(self, monkeypatch):
        seen = SeenTexts()
        seen.recent_hashes = {i.to_bytes(16, "big") for i in range(100_000)}
        seen.merge_recent()
        assert sum(a.nbytes for a in seen.sorted_hashes) == 1_600_000
        assert not seen.recent_hashes

    def test_off(self):
        assert list(deduplicate(["a", "a"], exact=False)) == ["a", "a"]


def cut_shingles(text):
    plain = "".join(c if c.isalnum() else " " for c in text.lower())
    plain = " ".join(plain.split())
    return {
        plain[i : i + corpus_filters.SHINGLE_LENGTH]
        for i in range(max(len(plain) - corpus_filters.SHINGLE_LENGTH + 1, 1))
    }


def compute_likeness(a, b):
    a, b = cut_shingles(a), cut_shingles(b)
    return len(a & b) / len(a | b)


def change_words(text, share, rng):
    words = text.split(" ")
    for i in range(len(words)):
        if rng.random() < share:
            words[i] = rng.choice(["", "다른", "other", words[i] + "x"])
    return " ".join(words)


class TestNear:
    @pytest.mark.parametrize("texts", [[d for d in KO if len(d) > 200][:150], EN[:150]], ids=["ko", "en"])
    @pytest.mark.parametrize("threshold", [0.5, 0.8])
    def test_planted(self, texts, threshold):
        rng = random.Random(0)
        texts = list(deduplicate(texts, near=0.3))  # apart from each other
        right = wrong = alike = different = 0
        for share in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6):
            like = corpus_filters.NearDuplicateIndex(threshold)
            assert all(like.add_if_new(text) for text in texts)
            for text in texts:
                copy = change_words(text, share, rng) + " ."
                true = compute_likeness(text, copy)
                if true >= threshold + 0.08:
                    alike, right = alike + 1, right + (not like.add_if_new(copy))
                elif true < threshold - 0.12:
                    different, wrong = different + 1, wrong + (not like.add_if_new(copy))
        print(f"found {right} of {alike} alike, {wrong} of {different} that are not")
        assert alike > 150
        assert different > 100
        assert right / alike > 0.97
        assert wrong / different < 0.01

    def test_signatures_estimate_likeness(self):
        rng = random.Random(1)
        errors = []
        for text in KO[:60]:
            copy = change_words(text, rng.choice([0.02, 0.1, 0.3]), rng)
            errors.append(
                float((corpus_filters.compute_signature(text) == corpus_filters.compute_signature(copy)).mean())
                - compute_likeness(text, copy)
            )
        assert abs(np.mean(errors)) < 0.02
        assert np.std(errors) < 0.06  # sqrt(0.25 / 128) = 0.044

    def test_counts_and_order(self):
        counts, rng = FilterCounts(), random.Random(2)
        first, second = KO[0], KO[1]
        texts = [first, second, first, change_words(first, 0.05, rng), second + " 끝."]
        assert list(deduplicate(texts, near=0.8, counts=counts)) == [first, second]
        assert str(counts).startswith("5 documents, 1 exact duplicate, 2 near duplicates")
        with pytest.raises(Error, match="likeness is between 0 and 1, got 1.5"):
            list(deduplicate([], near=1.5))

    def test_many_bands(self, monkeypatch):
        monkeypatch.setattr(corpus_filters, "BAND_BUFFER", 200)
        like = corpus_filters.NearDuplicateIndex(0.8)
        kept = [text for text in KO[:300] if like.add_if_new(text)]
        assert len(like.sorted_bands) >= 2
        assert not any(like.add_if_new(text) for text in kept)

    @pytest.mark.parametrize("text", ["", "a", "!!!", "\ud800", "가나다", "a" * 100_000])
    def test_odd_texts(self, text):
        like = corpus_filters.NearDuplicateIndex(0.8)
        assert like.add_if_new(text)
        assert not like.add_if_new(text)

    def test_rows_of_a_band(self):
        for threshold in (0.3, 0.5, 0.8, 0.95):
            rows = corpus_filters.choose_band_rows(threshold)
            assert (1 - threshold**rows) ** (corpus_filters.NUM_HASHES // rows) <= 0.02


class TestHeld:
    def test_ratio(self):
        texts = [f"글 {i}" for i in range(20_000)]
        for held in (HoldOut(every=20), HoldOut(ratio=0.05), HoldOut(every=20, seed=1)):
            assert abs(sum(map(held, texts)) / 20_000 - 0.05) < 5 * (0.05 * 0.95 / 20_000) ** 0.5
        assert list(map(HoldOut(every=20), texts)) == list(map(HoldOut(ratio=0.05), texts))
        both = sum(HoldOut(every=2)(t) and HoldOut(every=2, seed=1)(t) for t in texts)
        assert abs(both / 20_000 - 0.25) < 0.02  # another seed is another choice

    def test_the_text_alone_decides(self):
        held = HoldOut(every=3)
        texts = [f"한국어 글 {i}" for i in range(50)]
        chosen = {t for t in texts if held(t)}
        assert chosen == set(filter(HoldOut(every=3), reversed(texts)))
        assert all(held(unicodedata.normalize("NFD", t) + " \n") for t in chosen)
        code = (
            "from formers.data.preparation.corpus_filters import HoldOut;"
            "print([HoldOut(every=3)(f'한국어 글 {i}') for i in range(50)])"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert out.strip() == str([t in chosen for t in texts])

    def test_fixed_for_ever(self):
        """A held-out set must not move with a new version."""
        assert hash_text("한국어").hex() == "c433dc8be77eaa449f8f30f0d20312a4"
        assert hash_text("a  b", seed=7, size=8).hex() == "0313cd4627fe2052"

    @pytest.mark.parametrize("wrong", [{}, {"every": 1}, {"ratio": 1.0}, {"ratio": 0.0}, {"every": 2, "ratio": 0.5}])
    def test_nonsense(self, wrong):
        with pytest.raises(Error, match=r"hold out|held out"):
            HoldOut(**wrong)


def has_run(train, example, length):
    """The plain way for words."""
    import re

    def words(t):
        return re.findall(r"[^\W_]+", t.lower())

    a, b = words(train), words(example)
    runs = {tuple(a[i : i + length]) for i in range(len(a) - length + 1)}
    return any(tuple(b[i : i + length]) in runs for i in range(len(b) - length + 1))


class TestContamination:
    def test_planted(self):
        train = EN[:200]
        tests = {
            "clean": ["word " + " ".join(f"never{i}x{j}" for j in range(20)) for i in range(5)],
            "dirty": [f"Look: {EN[3][:200].upper()} -- and more", EN[250], " ".join(EN[4].split()[:9]), "too short"],
            "korean": [KO[0][10:120].replace(" ", "  "), "전혀 다른 글이다. " * 8, KO[1][:30]],
        }
        report = measure_contamination([*train, *KO[:50]], tests)
        assert report.tests["clean"] == {"examples": 5, "found": 0, "short": 0}
        assert report.tests["dirty"] == {"examples": 4, "found": 2, "short": 1}
        assert report.tests["korean"] == {"examples": 3, "found": 2, "short": 0}
        assert report.examples == [("dirty", 0), ("dirty", 2), ("korean", 0), ("korean", 2)]
        assert report.documents == 250
        assert "dirty: 2 of 4 examples (1 too short to tell)" in str(report)
        assert json.loads(json.dumps(asdict(report)))["tests"] == report.tests

    @given(
        st.lists(st.lists(st.sampled_from("abcd"), max_size=40).map(" ".join), min_size=1, max_size=6),
        st.lists(st.lists(st.sampled_from("abcd"), min_size=10, max_size=30).map(" ".join), min_size=1, max_size=4),
    )
    def test_equal_to_the_plain_way(self, train, tests):
        report = measure_contamination(train, tests, words=10)
        expected = [i for i, t in enumerate(tests) if any(has_run(d, t, 10) for d in train)]
        assert [i for _, i in report.examples] == expected
        assert report.contaminated == sum(any(has_run(d, t, 10) for t in tests) for d in train)

    def test_no_run_goes_over_two_documents(self):
        words = EN[0].split()[:16]
        halves = [" ".join(words[:8]), " ".join(words[8:])]
        assert measure_contamination(halves, [" ".join(words)]).contaminated == 0
        assert measure_contamination([" ".join(halves)], [" ".join(words)]).contaminated == 1

    def test_drop(self):
        counts, watch = FilterCounts(), ContaminationIndex([EN[5], EN[7]])
        left = list(watch.filter_documents(EN[:10], counts))
        assert left == [d for i, d in enumerate(EN[:10]) if i not in (5, 7)]
        assert counts.seen_in_tests == watch.build_report().contaminated == 2

    def test_batches(self, monkeypatch):
        expected = measure_contamination(EN[:100], EN[50:60])
        monkeypatch.setattr(corpus_filters, "BATCH_DOCUMENTS", 3)
        monkeypatch.setattr(corpus_filters, "MAX_CACHED_WORDS", 10)
        assert measure_contamination(EN[:100], EN[50:60]) == expected
        assert expected.contaminated == 10

    @pytest.mark.parametrize("odd", ["", "\ud800", "!" * 100, "가" * 49, "a"])
    def test_odd_texts(self, odd):
        assert measure_contamination([odd], [odd, "b"]).documents == 1
        assert measure_contamination([], []).contaminated == 0

    def test_too_short_runs(self):
        with pytest.raises(Error, match="is too short"):
            measure_contamination([], [], words=3)

    def test_real(self, data):
        """MR and SST-2 are the same reviews; the reviews for pretraining hold no test text of NSMC by their making."""
        tests = list(read_documents(data / "classify" / "sst2.test.tsv.xz"))
        report = measure_contamination(read_documents(data / "classify" / "mr.tsv.xz"), {"sst2": tests})
        assert report.tests["sst2"]["found"] > 1400
