"""BART's noise: what each kind does to a text, how often, and in which order."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from formers import Error
from formers.data.counter_rng import draw_bits
from formers.objectives import denoising
from formers.objectives.registry import build_objective
from formers.text.tokenizer import Tokenizer
from tests.objectives import toys

TOKENIZER = toys.build_tokenizer()
BOS, END, MASK = (TOKENIZER.id(role) for role in ("bos", "eos", "mask"))
QUIET = {"infill_ratio": 0.0, "permute_ratio": 0.0}
WORDS = np.array([not TOKENIZER.get_token_text(i).startswith("##") for i in range(60)])


def build_denoising(length=64, **more):
    return build_objective("denoising", TOKENIZER, length, **more)


def zip_sides(raw, batch):
    return zip(
        toys.split_rows(raw.ids, raw.starts), toys.split_rows(batch.source.ids, batch.source.starts),
        toys.split_rows(batch.labels, batch.starts), toys.split_rows(batch.ids, batch.starts),
        toys.split_rows(raw.sentence_starts, raw.starts), strict=True,
    )  # fmt: skip


def words_of(ids, sentence):
    made = []
    for token, first in zip(ids, sentence, strict=True):
        if first or WORDS[token] or not made:
            made.append([])
        made[-1].append(token)
    return made


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 10**6))
def test_the_target_is_the_text(lengths, seed):
    raw = toys.draw_raw_examples(lengths, seed=seed)
    batch = build_denoising(
        infill_ratio=0.3, rotate_ratio=0.5, delete_ratio=0.1, mask_ratio=0.1, insert_ratio=0.1
    ).corrupt(raw, seed)
    for original, source, target, shifted, _ in zip_sides(raw, batch):
        assert target == [BOS, *original, END]
        assert shifted == [END, BOS, *original], "the decoder starts with the end mark"
        assert source[0] == BOS
        assert source[-1] == END


def test_room_is_kept_for_inserted_masks_alone():
    data = toys.build_store([[200]], end=END)
    for more, longest in (({}, 58), (QUIET, 62), (QUIET | {"insert_ratio": 0.1}, 55), ({"insert_ratio": 0.1}, 51)):
        made = build_denoising(64, **more)
        assert made.plan(data, 0, 0).lengths.max() == longest == 62 - made.max_extra_tokens


def test_the_last_span_takes_all_that_is_left():
    """Nearly all spans are empty, so that the last one must take nearly everything."""
    lengths, count = denoising.draw_span_lengths(np.array([60000, 10]), 1.0, 0.001, 0, np.arange(2))
    assert [int(x.sum()) for x in np.split(lengths, [count[0]])] == [60000, 10]


def test_every_mask_that_becomes_a_random_token_has_its_own_draw():
    """Wherever it stands, and alike in any batch."""
    texts = [[MASK, 8, MASK], [MASK, MASK], [9], [MASK]] * 200
    ids, starts = np.concatenate(texts), np.concatenate(([0], np.cumsum([len(t) for t in texts])))
    sample = np.arange(len(texts)) + 3
    made = denoising.randomise_masks((ids, starts), 0.5, MASK, 60, 0, sample)[0]
    assert (made[ids != MASK] == ids[ids != MASK]).all()
    assert (made[ids == MASK] != MASK).mean() == pytest.approx(0.5 * 59 / 60, abs=0.06)
    for row in range(8):
        alone = denoising.randomise_masks(
            (np.array(texts[row]), np.array([0, len(texts[row])])), 0.5, MASK, 60, 0, sample[[row]]
        )
        assert alone[0].tolist() == made[starts[row] : starts[row + 1]].tolist()


def test_documents_are_joined_when_asked_for():
    data = toys.build_store([[4, 5], [7], [3, 3]] * 9, end=END)
    _, raw, batch = toys.make_examples(build_denoising(32, across_documents=True), data)
    assert set(np.diff(raw.starts)) == {26}, "32 less two marks and room for four masks"
    assert END not in raw.ids
    for original, _, target, _, sentence in zip_sides(raw, batch):
        assert target == [BOS, *original, END]
        assert sum(sentence) > 3, "sentences of several documents"
    assert toys.make_examples(build_denoising(32), data)[0].lengths.max() == 9


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 10**6), st.sampled_from([0.1, 0.3, 0.6]))
def test_infilling_hides_an_exact_share_of_whole_words(lengths, seed, share):
    raw = toys.draw_raw_examples(lengths, seed=seed)
    batch = build_denoising(permute_ratio=0.0, infill_ratio=share).corrupt(raw, seed)
    for original, source, _, _, sentence in zip_sides(raw, batch):
        words = words_of(original, sentence)
        budget = math.ceil(share * len(words) - 1e-9)
        kept = [t for t in source[1:-1] if t != MASK]
        assert min_hidden(words, kept) <= budget, "kept words are whole and in order"
        assert source.count(MASK) <= budget + denoising.MAX_EMPTY_SPANS
        assert source.count(MASK) >= 1


def min_hidden(words, kept):
    """The fewest words that are gone, if what is kept is the text without some whole words."""
    best = {0: 0}
    for word in words:
        new = {}
        for at, gone in best.items():
            new[at] = min(new.get(at, 99), gone + 1)
            if kept[at : at + len(word)] == word:
                new[at + len(word)] = min(new.get(at + len(word), 99), gone)
        best = new
    return best[len(kept)]


def test_infilling_by_hand():
    """Five words of one token each, spans of length 2 and 0: two words are one mask, and one more mask stands between
    kept words (or beside the other)."""
    ids = np.array([7, 8, 10, 11, 13])
    lengths = np.array([2, 0])
    original = denoising.draw_span_lengths
    denoising.draw_span_lengths = lambda *a: (lengths, np.array([2]))
    try:
        seen = Counter()
        for seed in range(400):
            text, starts = denoising.infill_spans(
                (ids, np.array([0, 5])), np.ones(5, bool), 0.3, 3.0, 1, seed, np.array([0])
            )
            assert starts.tolist() == [0, 5]
            seen[tuple(text.tolist())] += 1
    finally:
        denoising.draw_span_lengths = original
    expected = set()
    for begin in range(4):  # where the span of two begins
        rest = [*ids[:begin], 1, *ids[begin + 2 :]]
        expected |= {(*rest[:i], 1, *rest[i:]) for i in range(5)}
    assert set(seen) == expected


def test_span_lengths_are_poisson_and_fill_the_budget():
    words = np.full(3000, 340)
    lengths, count = denoising.draw_span_lengths(words, 0.3, 3.0, 0, np.arange(3000))
    owner = np.repeat(np.arange(3000), count)
    assert (np.bincount(owner, lengths) == 102).all(), "30 % exactly"
    last = np.append(np.diff(owner) > 0, True)
    inner = lengths[~last]  # the last one is cut to fit
    assert (lengths[last] > 0).all(), "once there are enough, there are no more"
    empty, count = denoising.draw_span_lengths(np.array([10]), 0.3, 1e-9, 0, np.arange(1))
    assert empty.tolist() == [0] * (3 + denoising.MAX_EMPTY_SPANS - 1) + [3], "the last one takes what is left"
    assert count.tolist() == [3 + denoising.MAX_EMPTY_SPANS]
    alone = (np.arange(7, 12), np.array([0, 2, 5]))  # each text is one word, whatever is said
    made = denoising.infill_spans(alone, np.zeros(5, bool), 0.3, 3.0, 1, 0, np.arange(2))
    assert set(made[0].tolist()) == {1}
    assert (np.diff(made[1]) > 0).all()
    share = np.bincount(inner, minlength=8)[:8] / len(inner)
    want = [math.exp(-3) * 3**n / math.factorial(n) for n in range(8)]
    assert share == pytest.approx(want, abs=0.006)
    few, count = denoising.draw_span_lengths(np.array([1, 0, 3]), 0.3, 3.0, 0, np.arange(3))
    assert few.tolist().count(1) == 2
    assert count[1] == 0


@given(st.lists(st.integers(1, 3), min_size=1, max_size=20), st.integers(0, 10**6))
def test_overlapping_spans_equal_the_released_procedure(sizes, seed):
    """fairseq's add_whole_word_mask, token by token, with the same random words and lengths."""
    ids = [100 + i for i in range(sum(sizes))]
    begins = [i == 0 for n in sizes for i in range(n)]
    sample = np.array([3])
    lengths, _ = denoising.draw_span_lengths(np.array([len(sizes)]), 0.4, 3.0, seed, sample)
    order = sorted(range(len(sizes)), key=lambda w: (int(draw_bits(seed, 3, w, denoising.PLACE_DRAW)) >> 36, w))
    starts = np.cumsum([0, *sizes])
    real = [int(n) for n in lengths if n > 0]
    keep, text = [True] * len(ids), list(ids)
    open_ = [(starts[w], n - 1) for w, n in zip(order, real, strict=False)]
    for at, _ in open_:
        text[at] = 1
    while open_:
        following = []
        for at, left in open_:
            if at + 1 >= len(ids):
                continue
            left -= begins[at + 1]
            if left >= 0:
                keep[at + 1] = False
                following.append((at + 1, left))
        open_ = following
    want = [t for t, k in zip(text, keep, strict=True) if k]
    got = denoising.infill_overlapping(
        (np.array(ids), np.array([0, len(ids)])), np.array(begins), 0.4, 3.0, 1, seed, sample
    )[0].tolist()  # fmt: skip
    inserts = len(lengths) - len(real)
    assert len(got) == len(want) + inserts
    assert [t for t in got if t != 1] == [t for t in want if t != 1]
    if not inserts:
        assert got == want


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 10**6))
def test_sentences_change_places(lengths, seed):
    raw = toys.draw_raw_examples(lengths, seed=seed)
    batch = build_denoising(infill_ratio=0.0).corrupt(raw, seed)
    for original, source, _, _, sentence in zip_sides(raw, batch):
        cuts = [i for i, first in enumerate(sentence) if first] + [len(original)]
        pieces = [tuple(original[a:b]) for a, b in itertools.pairwise(cuts)]
        left = list(source[1:-1])
        assert sorted(left) == sorted(original)
        assert can_assemble(tuple(left), Counter(pieces)), "the source is the sentences in some order"


def can_assemble(text, remaining):
    """Can the text be put together from these pieces, each used once?"""
    if not text:
        return True
    for piece in list(remaining):
        if text[: len(piece)] == piece:
            rest = remaining.copy()
            rest[piece] -= 1
            if can_assemble(text[len(piece) :], +rest):
                return True
    return False


def test_every_order_of_sentences_is_as_likely_and_a_share_moves():
    starts, sentence = np.arange(6001) * 3, np.ones(18000, bool)
    order = denoising.permute_sentences(starts, sentence, 1.0, 0, np.arange(6000)).reshape(-1, 3) % 3
    counts = Counter(map(tuple, order.tolist()))
    assert len(counts) == 6
    assert max(abs(n - 1000) for n in counts.values()) < 5 * 1000**0.5
    half = (
        denoising.permute_sentences(np.arange(1001) * 4, np.ones(4000, bool), 0.5, 0, np.arange(1000)).reshape(-1, 4)
        % 4
    )
    moved = (half != np.arange(4)).sum(1)
    assert set(moved.tolist()) == {0, 2}, "two of four change places, or draw their own"
    assert (moved == 2).mean() == pytest.approx(0.5, abs=0.07)


def test_the_other_kinds_of_noise():
    raw = toys.draw_raw_examples([50] * 2000)
    masked = build_denoising(**QUIET, mask_ratio=0.2).corrupt(raw, 0).source.ids
    assert (masked == MASK).sum() / 100_000 == pytest.approx(0.2, abs=0.006)
    deleted = build_denoising(**QUIET, delete_ratio=0.25).corrupt(raw, 0).source
    assert np.diff(deleted.starts).sum() - 4000 == pytest.approx(75_000, abs=600)
    odd = build_denoising(**QUIET, insert_ratio=0.11).corrupt(toys.draw_raw_examples([50]), 0).source
    assert len(odd.ids) == 50 + 6 + 2, "rounded up"
    more = build_denoising(**QUIET, insert_ratio=0.1).corrupt(raw, 0).source
    assert (np.diff(more.starts) == 57).all()
    assert (more.ids == MASK).sum() == 5 * 2000
    place = np.flatnonzero(more.ids == MASK) % 57
    assert abs(np.histogram(place, 5, (1, 56))[0] / 2000 - 1).max() < 0.1
    text, source = (
        toys.split_rows(raw.ids, raw.starts),
        build_denoising(**QUIET, rotate_ratio=1.0).corrupt(raw, 0).source,
    )
    offsets = Counter()
    for original, turned in zip(text, toys.split_rows(source.ids, source.starts), strict=True):
        turned = turned[1:-1]
        at = [i for i in range(50) if original[i:] + original[:i] == turned]
        assert at
        offsets[at[0]] += 1
    assert len(offsets) == 50, "any token may come first"
    assert max(offsets.values()) < 80
    some = build_denoising(**QUIET, rotate_ratio=0.3).corrupt(raw, 0).source
    same = sum(a == b[1:-1] for a, b in zip(text, toys.split_rows(some.ids, some.starts), strict=True))
    assert same / 2000 == pytest.approx(0.7 + 0.3 / 50, abs=0.05)
    gone = build_denoising(**QUIET, delete_ratio=1.0).corrupt(raw, 0).source
    assert (np.diff(gone.starts) == 3).all(), "one token always stays"


def test_the_released_command():
    raw = toys.draw_raw_examples([50] * 4000)
    plain, released = build_denoising(permute_ratio=0.0, as_released=True), build_denoising(permute_ratio=0.0)
    assert plain.poisson_lambda == 3.5
    assert released.poisson_lambda == 3.0
    source = plain.corrupt(raw, 0).source.ids
    before = denoising.infill_overlapping(
        (raw.ids, raw.starts), WORDS[raw.ids] | raw.sentence_starts, 0.3, 3.5, MASK, 0, raw.sample
    )[0]  # fmt: skip
    changed = (source != MASK).sum() - (before != MASK).sum() - 2 * 4000
    assert changed / (before == MASK).sum() == pytest.approx(0.1 * 59 / 60, abs=0.01), "a tenth of the masks"


def test_statistics_of_a_million_tokens():
    raw = toys.draw_raw_examples([500] * 2000)
    batch = build_denoising(512).corrupt(raw, 2)
    words = (WORDS[raw.ids] | raw.sentence_starts).sum()
    source = batch.source.ids
    starts = WORDS[source] | (source == MASK)
    assert (source == MASK).sum() / words == pytest.approx(0.3 / 3, rel=0.03), "spans of 3 words make 30 %"
    left = (~np.isin(source, [MASK, BOS, END])).sum() / 1_000_000
    assert left == pytest.approx(0.7, abs=0.01)
    assert starts.any()


def test_sizes_and_errors():
    data = toys.build_random_store(0, documents=80, end=END)
    made = build_denoising(32, insert_ratio=0.1)
    plan, raw, batch = toys.make_examples(made, data)
    sizes = made.measure_sizes(plan)
    assert (np.diff(batch.starts) == sizes[:, 0]).all()
    assert (np.diff(batch.source.starts) <= sizes[:, 2]).all()
    assert sizes[:, 2].max() <= 32
    assert END not in raw.ids
    with pytest.raises(Error, match="no <mask>"):
        build_objective("denoising", toys.build_tokenizer(roles={"pad": "<pad>", "unk": "<unk>", "eos": "</s>"}), 32)
    with pytest.raises(Error, match="too short"):
        build_denoising(7).plan(data, 0, 0)
    assert len(build_denoising(8).plan(data, 0, 0))


def test_a_language_stands_where_the_template_has_it():
    roles = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
    pieces = toys.build_tokenizer(roles=roles)
    named = pieces.get_token_text(20)
    made = build_objective("denoising", pieces, 40, language=named, **QUIET)
    batch = made.corrupt(toys.draw_raw_examples([4]), 0)
    ids = toys.draw_raw_examples([4]).ids.tolist()
    assert batch.labels.tolist() == [*ids, pieces.id("eos"), 20]
    assert batch.ids.tolist() == [20, *ids, pieces.id("eos")], "the decoder starts with the language"
    assert batch.source.ids.tolist() == [*ids, pieces.id("eos"), 20]
    with pytest.raises(Error, match="no token 'xx_XX'"):
        build_objective("denoising", pieces, 40, language="xx_XX")
    code, end = pieces.get_token_text(21), pieces.special["eos"]
    ends = [(code, 21), (end, pieces.id("eos"))]
    rust = pieces.backend.from_str(pieces.json_text)
    rust.post_processor = processors.TemplateProcessing(f"{code} $A {end}", f"{code} $A $B {end}", ends)
    made = build_objective("denoising", Tokenizer(rust.to_str(), roles), 40, language=named, **QUIET)
    batch = made.corrupt(toys.draw_raw_examples([4]), 0)
    assert batch.labels.tolist() == [20, *ids, pieces.id("eos")], "mBART-50: first, as in the tokenizer's template"
    assert batch.ids.tolist() == [pieces.id("eos"), 20, *ids]
    assert batch.source.ids.tolist() == [20, *ids, pieces.id("eos")]


def test_sentences_move_before_words_are_hidden():
    raw = toys.draw_raw_examples([40] * 50, sentences=0.3)
    source = build_denoising(infill_ratio=0.0).corrupt(raw, 0).source
    moved = [
        a != b[1:-1]
        for a, b in zip(toys.split_rows(raw.ids, raw.starts), toys.split_rows(source.ids, source.starts), strict=True)
    ]
    assert sum(moved) > 45
    order = denoising.permute_sentences(raw.starts, raw.sentence_starts, 1.0, 0, raw.sample)
    assert np.array_equal(source.ids[~np.isin(source.ids, [BOS, END])], raw.ids[order])
    both = build_denoising().corrupt(raw, 0).source
    text = denoising.infill_spans(
        (raw.ids[order], raw.starts), (WORDS[raw.ids] | raw.sentence_starts)[order], 0.3, 3.0, MASK, 0, raw.sample
    )  # fmt: skip
    assert np.array_equal(both.ids[~np.isin(both.ids, [BOS, END])], text[0]), "words stay those of the text"
