"""Next sentence and sentence order against the released procedures, written out for one document at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import formers
from formers import Error
from formers.data.counter_rng import draw_bits, draw_integers, draw_uniform
from formers.data.loader import load_batches
from formers.data.plans import SentenceTable, TokenSource
from formers.data.store import Store
from formers.objectives import masking
from formers.objectives.masking import PairSampler, compute_truncation, measure_random_pairs
from formers.objectives.registry import build_objective
from tests.objectives import toys

TOKENIZER = toys.build_tokenizer()
CLS, SEP = TOKENIZER.id("cls"), TOKENIZER.id("sep")


def truncate_pair(a, b, most, coins):
    """BERT's truncate_seq_pair: the longer side loses a piece from its front or back until the pair fits."""
    a, b = list(a), list(b)
    while len(a) + len(b) > most:
        longer = a if len(a) > len(b) else b
        assert longer
        if next(coins):
            del longer[0]
        else:
            longer.pop()
    return a, b


@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 50))
def test_the_longer_side_loses_a_piece_until_both_fit(a, b, most):
    left, right = truncate_pair(range(a), range(b), most, iter(lambda: True, None))
    lose = compute_truncation(np.array([a]), np.array([b]), most)
    assert (a - lose[0][0], b - lose[1][0]) == (len(left), len(right))


def test_truncation_by_hand():
    """5 + 4 into 6: A to 4 (4 + 4), B on the tie (4 + 3), then A (3 + 3)."""
    assert [x.tolist() for x in compute_truncation(np.array([5, 4, 2]), np.array([4, 4, 9]), 6)] == [
        [2, 1, 0],
        [1, 1, 5],
    ]


def make_pairs_as_released(documents, number, most, key, short, swap=False):
    """create_instances_from_document of BERT (and of ALBERT with the fallback), on sentences (begin, end)."""
    first = np.cumsum([0, *map(len, documents)])
    document, i, chunk, made = documents[number], 0, [], []
    target = most
    if draw_uniform(*key, number, masking.SHORT_DRAW) < short:
        target = 2 + int(draw_integers(most - 1, *key, number, masking.SIZE_DRAW))
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(e - b for b, e in chunk) >= target:
            at = first[number] + i + 1 - len(chunk)  # the sentence that the chunk begins with
            a_end = 1 if len(chunk) < 2 else 1 + int(draw_integers(len(chunk) - 1, *key, at, masking.CUT_DRAW))
            a, b = list(chunk[:a_end]), list(chunk[a_end:])
            coin = draw_uniform(*key, at, masking.COIN_DRAW) < 0.5
            label = 0
            if len(chunk) == 1 or (coin and not swap):
                label, b = 1, []
                room = target - sum(e - b for b, e in a)
                other = int(draw_integers(len(documents) - 1, *key, at, masking.OTHER_DRAW))
                other += other >= number
                start = int(draw_integers(len(documents[other]), *key, at, masking.WHERE_DRAW))
                for sentence in documents[other][start:]:
                    b.append(sentence)
                    if sum(e - b for b, e in b) >= room:
                        break
                i -= len(chunk) - a_end
            elif coin:
                label, a, b = 1, b, a
            tokens = [[t for b, e in side for t in range(b, e)] for side in (a, b)]
            lose = compute_truncation(np.array([len(tokens[0])]), np.array([len(tokens[1])]), most)
            spans = []
            for side, lost, use in zip(tokens, lose, (masking.FRONT_A_DRAW, masking.FRONT_B_DRAW), strict=True):
                front = count_coins(int(lost[0]), *key, at, use)
                spans.append((side[0] + front, side[-1] + 1 - int(lost[0]) + front))
            made.append((*spans, label))
            chunk = []
        i += 1
    return made


def count_coins(count, *key):
    """How many of the first `count` bits of the stream are set, from the highest of each word on."""
    drawn = "".join(f"{int(draw_bits(*key, turn)):064b}" for turn in range(-(-count // 64)))
    return drawn[:count].count("1")


@pytest.mark.parametrize("swap", [False, True])
@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=9), min_size=2, max_size=6),
    st.integers(4, 30), st.integers(0, 10**6),
)  # fmt: skip
def test_pairs_equal_the_released_procedure(swap, sizes, most, seed):
    data = toys.build_store(sizes)
    made = PairSampler(most, 0.4, is_order_task=swap, random_fallback=swap)
    spans, labels = made.walk_documents(SentenceTable.from_store(data), seed, 3, 0)
    ours = sorted((*(tuple(map(int, s)) for s in pair), int(label)) for pair, label in zip(spans, labels, strict=True))
    edges = data.sentence_starts
    flat, documents = iter(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)), []
    for document in sizes:
        documents.append([next(flat) for _ in document])
    theirs = [x for n in range(len(sizes)) for x in make_pairs_as_released(documents, n, most, (seed, 3, 0), 0.4, swap)]
    assert ours == sorted(theirs)


def spans_of(plan):
    return np.stack((plan.begin, plan.end), 1).reshape(-1, 2, 2)


@given(st.integers(0, 50), st.integers(8, 40))
def test_nsp_invariants(seed, length):
    data = toys.build_random_store(seed, documents=6)
    goal = build_objective("nsp", TOKENIZER, length)
    plan, raw, batch = toys.make_examples(goal, data, seed)
    document = np.searchsorted(data.starts, spans_of(plan)[:, :, 0], side="right") - 1
    random = plan.label == 1
    assert (document[random, 0] != document[random, 1]).all(), "B is of another document"
    assert (document[~random, 0] == document[~random, 1]).all()
    assert np.array_equal(batch.document_labels, plan.label)
    tokens = toys.split_rows(raw.ids, raw.starts)
    for ids, segments, original, span in zip(
        toys.split_rows(batch.ids, batch.starts), toys.split_rows(batch.segments, batch.starts), tokens,
        toys.split_rows(raw.span_index, raw.starts), strict=True,
    ):  # fmt: skip
        a = span.count(0)
        assert len(ids) == len(original) + 3 <= length
        assert ids[0] == CLS
        assert ids[a + 1] == ids[-1] == SEP
        assert segments == [0] * (a + 2) + [1] * (len(original) - a + 1)
    restored = batch.ids.copy()
    restored[batch.chosen] = batch.labels
    assert np.array_equal(restored[~np.isin(restored, [CLS, SEP])], raw.ids), "the labels recover the text"
    with_marks = np.isin(np.arange(len(restored)), batch.chosen) & np.isin(restored, [CLS, SEP])
    assert not with_marks.any()


@given(st.integers(0, 50), st.integers(8, 40))
def test_sop_never_takes_another_document(seed, length):
    data = toys.build_random_store(seed, documents=5)
    goal = build_objective("sop", TOKENIZER, length, short_seq_prob=0.3)
    plan = goal.plan(data, seed, 1)
    spans = spans_of(plan)
    document = np.searchsorted(data.starts, spans[:, :, 0], side="right") - 1
    assert (document[:, 0] == document[:, 1]).all()
    swapped = spans[:, 0, 0] > spans[:, 1, 0]
    assert np.array_equal(swapped, plan.label == 1)
    assert (spans[:, :, 1] > spans[:, :, 0]).all(), "neither side is empty"
    ordered = np.where(swapped[:, None, None], spans[:, ::-1], spans)
    assert (ordered[:, 0, 1] <= ordered[:, 1, 0]).all(), "no overlap"
    assert ((spans[:, :, 1] - spans[:, :, 0]).sum(1) <= length - 3).all()


def test_sop_joins_a_single_sentence_to_its_neighbour():
    data = toys.build_store([[30, 4, 3], [5], [6, 7]])
    plan = build_objective("sop", TOKENIZER, 23, short_seq_prob=0.0).plan(data, 0, 0)
    document = np.searchsorted(data.starts, spans_of(plan)[:, 0, 0], side="right") - 1
    assert sorted(document.tolist()) == [0, 0, 2], "a document of one sentence makes no pair"
    last = spans_of(plan)[(document == 0) & (spans_of(plan).max((1, 2)) == 37)]
    assert sorted(last[0].tolist()) == [[30, 34], [34, 37]], "the last one reaches back"
    alone = toys.build_store([[5], [6]])
    with pytest.raises(Error, match="no document has two sentences.*fallback=True"):
        build_objective("sop", TOKENIZER, 23).plan(alone, 0, 0)
    assert len(build_objective("sop", TOKENIZER, 23, random_fallback=True).plan(alone, 0, 0)) == 2


def test_nsp_statistics():
    """A million tokens: half of the pairs are random (more, since single sentences always are), a tenth of the passes
    is short, the cut is anywhere, cuts are half in front."""
    r = np.random.default_rng(0)
    data = toys.build_store([r.integers(5, 25, 40).tolist() for _ in range(1700)])
    assert len(data.tokens) > 950_000
    goal = build_objective("nsp", TOKENIZER, 128)
    plan = goal.plan(data, 0, 0)
    n = len(plan)
    book = SentenceTable.from_store(data)
    most = 125
    target = np.where(
        draw_uniform(0, 0, 0, np.arange(1700), masking.SHORT_DRAW) < 0.1,
        2 + draw_integers(most - 1, 0, 0, 0, np.arange(1700), masking.SIZE_DRAW), most,
    )  # fmt: skip
    assert (target < most).mean() == pytest.approx(0.1 * (most - 2) / (most - 1), abs=4 * (0.09 / 1700) ** 0.5)
    spans = spans_of(plan)
    owner = np.searchsorted(data.starts, spans[:, 0, 0], side="right") - 1
    full = target[owner] == most
    sentence = np.searchsorted(book.begin, spans[:, 0, 0], side="right") - 1
    several = full & (sentence < book.document_ends[owner] - 1)  # a document's last sentence alone has no continuation
    assert plan.label[several].mean() == pytest.approx(0.5, abs=4 * 0.5 / several.sum() ** 0.5)
    assert plan.label[full & ~several].all()
    assert len(np.unique(owner)) == 1700, "every document is there"
    assert book.document_begins[0] == 0
    lengths = plan.lengths[full]
    assert lengths.max() == most
    assert np.median(lengths) == most, "most pairs are full"
    assert n > len(data.tokens) / most


def test_labels_are_even_for_sop():
    data = toys.build_random_store(3, documents=800, most=30)
    label = build_objective("sop", TOKENIZER, 64).plan(data, 1, 0).label
    assert label.mean() == pytest.approx(0.5, abs=4 * 0.5 / len(label) ** 0.5)


def test_epochs_have_as_many_examples_but_others():
    data = toys.build_random_store(1)
    for name in ("nsp", "sop"):
        goal = build_objective(name, TOKENIZER, 32)
        plans = [goal.plan(data, 5, epoch) for epoch in range(6)]
        assert len({len(p) for p in plans}) == 1
        seen = [set(map(bytes, spans_of(p))) for p in plans]
        assert seen[0] != seen[1]
        again = goal.plan(data, 5, 2)
        assert np.array_equal(again.begin, plans[2].begin)
        assert np.array_equal(again.label, plans[2].label)


def test_a_short_pair_of_a_later_epoch_fits():
    """All pairs of the first epoch are full; whole grids would have no room for a dummy document beside a short one."""
    data, goal = toys.build_store([[30] * 5 + [9]] * 3), build_objective("nsp", TOKENIZER, 32)
    source = TokenSource(data, goal)
    sizes = [set(source.measure_sizes(source.plan_epoch(0, epoch))[:, 0].tolist()) for epoch in range(12)]
    assert sizes[0] == {32}
    assert any(len(lengths) > 1 for lengths in sizes)
    seen = sum(int((batch.sample >= 0).sum()) for batch, _ in load_batches(source, 64, epochs=12))
    assert seen == 12 * len(source.plan_epoch(0, 0))


def test_one_document_is_not_enough():
    with pytest.raises(Error, match="needs text of other documents, and there is 1 document"):
        build_objective("nsp", TOKENIZER, 32).plan(toys.build_store([[5, 6, 7]]), 0, 0)
    with pytest.raises(Error, match="a pair of 1 tokens is too short"):
        build_objective("nsp", TOKENIZER, 4).plan(toys.build_store([[5, 6], [7]]), 0, 0)
    assert len(build_objective("nsp", TOKENIZER, 5).plan(toys.build_store([[5, 6], [7]]), 0, 0))
    with pytest.raises(Error, match="needs text of other documents"):
        build_objective("nsp", TOKENIZER, 32).plan(toys.build_store([[5, 6, 7], []]), 0, 0)


def test_end_marks_of_the_store_are_left_out():
    eos = TOKENIZER.id("eos")
    data = toys.build_random_store(2, end=eos)
    plan, raw, _ = toys.make_examples(build_objective("nsp", TOKENIZER, 32), data)
    assert len(plan)
    assert eos not in raw.ids
    assert eos not in toys.make_examples(build_objective("mlm", TOKENIZER, 32), data)[1].ids


class Closed:
    """Tokens that nobody may look at."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        raise AssertionError("a token was read")


@pytest.mark.parametrize("name", ["nsp", "sop", "mlm", "span-corruption", "denoising"])
def test_plans_of_a_store_on_disk_read_no_token(name, tmp_path):
    """Where the end marks are is known; the plan is that of the same text in memory, where they are looked for."""
    texts = [f"w7 w8 w10. w11 w13 w{14 + n}. w16 w17 w19 w20." for n in range(9)]
    for roles in (toys.ROLES, {k: v for k, v in toys.ROLES.items() if k != "eos"}):
        tokenizer = toys.build_tokenizer(60, sentinels=20, roles=roles)
        disk = formers.prepare(texts, tokenizer, tmp_path / str(len(roles)), splitter="rules")
        memory = Store.from_documents(texts, tokenizer, sentences="rules")
        assert np.array_equal(np.asarray(disk.tokens), memory.tokens)
        disk.tokens = Closed(len(disk.tokens))
        goal = build_objective(name, tokenizer, 16)
        mine, theirs = goal.plan(disk, 0, 0), goal.plan(memory, 0, 0)
        assert len(mine) > 8
        for part in ("begin", "end", "span_offsets", "label"):
            assert np.array_equal(getattr(mine, part), getattr(theirs, part))
        ends = np.isin(memory.starts[1:], theirs.end).any()
        assert ends == ("eos" not in roles), "an end mark is in no plan"


def test_long_sentences_have_no_continuation():
    """A sentence that fills an example alone is paired with another document's: more than half of the pairs."""
    for size, low, high in ((60, 0.95, 1.0), (3, 0.4, 0.58)):
        plan = PairSampler(40, 0.0).plan(toys.build_store([[size] * 200] * 4), 1, 0)
        assert low <= measure_random_pairs(plan) <= high
