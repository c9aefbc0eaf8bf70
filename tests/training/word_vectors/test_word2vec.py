"""Word vectors out of text: one step against the equations, structure that is known to be there, the seed, Korean."""

from __future__ import annotations

import itertools
import json
import lzma
import math
import random

import numpy as np
import pytest
import torch

import formers
from formers import Error
from formers.inspection.embed import neighbours, solve_analogy
from formers.models.vectors import VectorsConfig
from formers.text.word_level import hash_ngrams
from formers.training.word_vectors import word2vec as training
from formers.training.word_vectors.word2vec import Corpus, EmbeddingTable, NgramTable, train_word_vectors

KINDS = ("skipgram", "cbow", "glove", "fasttext")
SMALL = {"dim": 16, "min_count": 1, "buckets": 500, "sample": 0.0, "window": 2}


def make_language(seed=0, sentences=3000):
    """Animals and tools keep different company; nothing else tells them apart."""
    r = random.Random(seed)
    sides = (["cat", "dog", "cow"], ["purrs", "barks", "moos"]), (["saw", "axe", "file"], ["cuts", "chops", "grinds"])
    return [" ".join(("the", r.choice(things), r.choice(acts))) for things, acts in r.choices(sides, k=sentences)]


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_the_same_company_lie_together(kind):
    f = train_word_vectors(make_language(), kind, epochs=10 if kind != "glove" else 40, threads=1, **SMALL)
    assert {name for name, _ in neighbours(f, "cat", 2)} == {"dog", "cow"}
    assert {name for name, _ in neighbours(f, "chops", 2)} == {"cuts", "grinds"}
    near = dict(neighbours(f, "cat", 99))
    assert near["dog"] > near["axe"] + 0.2


@pytest.mark.parametrize("kind", KINDS)
def test_one_thread_is_a_function_of_the_seed(kind):
    texts = make_language(sentences=200)
    one, same, other = (
        train_word_vectors(texts, kind, epochs=2, threads=1, seed=s, **SMALL).model.body.embedding_table
        for s in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_two_threads_and_progress():
    threads, told = torch.get_num_threads(), []
    f = train_word_vectors(make_language(), epochs=30, threads=2, tell=lambda *a: told.append(a), **SMALL)
    assert torch.get_num_threads() == threads
    near = dict(neighbours(f, "cat", 99))
    assert near["dog"] > near["axe"]
    assert told[0][0] == "words"
    assert told[-1][0] == "training"
    assert told[-1][1] == told[-1][2] == 30 * 9000


def test_an_error_in_a_thread_comes_out(monkeypatch):
    def fail(self, epoch, begin):
        raise Error("no", fix="no")

    monkeypatch.setattr(training.BlockwiseLearner, "run_job", fail)
    with pytest.raises(Error, match="no"):
        train_word_vectors(make_language(sentences=50), threads=2, **SMALL)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_trainer_ends_with_the_same_bits(kind, monkeypatch):
    """All that a step depends on is in the state: another trainer resumes from it, with tables of another seed."""
    monkeypatch.setattr(training.BlockwiseLearner, "job_size", 100)
    monkeypatch.setattr(training.GloveLearner, "job_size", 40)
    c = VectorsConfig(kind=kind, **SMALL)
    corpus = Corpus.from_texts(make_language(sentences=200), 1, True)
    whole, first, second = (
        training.VectorTrainer(
            training.build_learner(corpus, c, training.VectorTrainConfig(epochs=3, seed=5, threads=1)),
            training.VectorTrainConfig(epochs=3, seed=5, threads=1),
        )
        for _ in range(3)
    )
    losses = [step.loss for step in whole.train()]
    half = [step.loss for step in first.train(len(losses) // 2)]
    for table in (table for group in second.learner.groups.values() for table in group.values()):
        table.fill_(9.0)
    groups, state = first.get_state()
    second.restore_state(groups, json.loads(json.dumps(state)))
    assert half + [step.loss for step in second.train()] == losses
    assert torch.equal(second.learner.finish(), whole.learner.finish())
    assert (second.step, second.tokens) == (whole.step, whole.tokens)


def test_the_vocabulary():
    corpus = Corpus.from_texts(["b a b", ["a", "b", "c"], "", "c rare"], 2, True)
    assert corpus.words == ["b", "a", "c"]
    assert corpus.counts.tolist() == [3, 2, 2]
    assert corpus.ids.tolist() == [0, 1, 0, 1, 0, 2, 2]
    assert corpus.document_ids.tolist() == [0, 0, 0, 1, 1, 1, 3]
    f = train_word_vectors(["b a b a"] * 9, dim=4, min_count=1, epochs=1)
    assert f.config.vocab == 3
    assert f.tokenizer.encode("a B nothing") == [0, 1, 2]
    assert not f.model.body.embedding_table[2].any()


def test_windows_stay_inside_documents_and_widths_are_even():
    corpus = Corpus.from_texts(["a b c d e f g h"] * 400, 1, True)
    ids, left, right = training.subsample_chunk(corpus, np.ones(8), 3, 0, 0, 0, len(corpus.ids))
    left, right = left.flatten()[:3200].view(400, 8), right.flatten()[:3200].view(400, 8)
    assert torch.equal(left[:, 0], torch.zeros(400, dtype=torch.long))
    assert torch.equal(right[:, 7], torch.zeros(400, dtype=torch.long))
    assert (left[:, 1] == 1).all()
    shares = [(left[:, 4] == width).float().mean().item() for width in (1, 2, 3)]
    assert max(abs(share - 1 / 3) for share in shares) < 0.08
    assert ids[3:11].tolist() == corpus.ids[:8].tolist()


def test_frequent_words_are_thinned_out():
    """A word of share f keeps √(t/f) + t/f of its places."""
    corpus = Corpus.from_texts([["a"] * 9000 + ["b"] * 1000], 1, True)
    kept = {}

    def record(*args, original=training.subsample_chunk):
        kept["share"] = args[1]
        return original(*args)

    t = 0.01
    share = corpus.counts / corpus.counts.sum()
    expected = np.minimum(1, np.sqrt(t / share) + t / share)
    ids, *_ = training.subsample_chunk(corpus, expected, 2, 0, 0, 0, 10000)
    assert abs(int((ids == 1).sum()) - 1000 * expected[1]) < 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "subsample_chunk", record)
        train_word_vectors([["a"] * 900 + ["b"] * 100], dim=4, sample=t, epochs=1, threads=1)
    np.testing.assert_allclose(kept["share"], expected)


def compute_sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("kind", ["skipgram", "fasttext"])
def test_one_step_equals_the_equations(kind):
    """Mikolov et al. 2013b, eq. 4, and Bojanowski et al. 2016, eq. of §3.2: a word is the sum of its n-grams z. A row
    is z times the number of a word's rows, so that its step is the gradient by z."""
    r = np.random.default_rng(0)
    c = VectorsConfig(kind=kind, dim=5, window=2, buckets=40, min_n=2, max_n=3)
    names = ["apple", "pear", "plum", "fig"]
    corpus = Corpus(np.zeros(0, np.int32), np.zeros(0, np.int32), names, np.ones(4))
    rows = 4 + (40 if kind == "fasttext" else 0)
    table, context = r.normal(size=(rows, 5)), r.normal(size=(4, 5))
    ids = r.integers(0, 4, training.BLOCKS_PER_STEP * training.BLOCK_PLACES)
    others = r.integers(0, 4, training.BLOCKS_PER_STEP * training.KINDS[kind].block_negatives)
    left = np.zeros((training.BLOCKS_PER_STEP, training.BLOCK_PLACES), int)
    right = left.copy()
    left[1, 5], right[1, 5], right[0, 0], left[3, 31] = 2, 1, 1, 1
    x, y = torch.from_numpy(table).float(), torch.from_numpy(context).float()
    pace = torch.ones(rows)
    inner = training.build_ngram_table(corpus, c, x, torch.ones(4)) if kind == "fasttext" else EmbeddingTable(x, pace)
    assert torch.equal(inner.row_scales, pace)
    lr, share = 0.1, c.negatives / training.KINDS[kind].block_negatives
    span = torch.from_numpy(np.pad(ids, 2))
    loss = training.update_blocks(
        c,
        inner,
        EmbeddingTable(y, pace),
        span,
        torch.from_numpy(left),
        torch.from_numpy(right),
        torch.from_numpy(others),
        lr,
        True,
    )
    parts = {
        i: [i, *(4 + g for g in hash_ngrams(n, 2, 3, 40))] if kind == "fasttext" else [i] for i, n in enumerate(names)
    }
    u = {i: table[p].mean(0) for i, p in parts.items()}
    dx, dy, total, pairs = np.zeros_like(table), np.zeros_like(context), 0.0, 0
    for b, t in itertools.product(range(training.BLOCKS_PER_STEP), range(training.BLOCK_PLACES)):
        at = b * training.BLOCK_PLACES + t
        for o in [o for o in range(-left[b, t], right[b, t] + 1) if o]:
            i, j, pairs = ids[at], ids[at + o], pairs + 1
            p = compute_sigmoid(u[i] @ context[j])
            total -= math.log(p)
            du = (p - 1) * context[j]
            dy[j] += (p - 1) * u[i]
            for k in others.reshape(training.BLOCKS_PER_STEP, -1)[b]:
                q = compute_sigmoid(u[i] @ context[k])
                total -= share * math.log(1 - q)
                du = du + share * q * context[k]
                dy[k] += share * q * u[i]
            for row in parts[i]:
                dx[row] += du
    np.testing.assert_allclose(x.numpy(), table - lr * dx, atol=1e-5)
    np.testing.assert_allclose(y.numpy(), context - lr * dy, atol=1e-5)
    assert loss == pytest.approx(total / pairs, rel=1e-5)


def test_glove_counts():
    """§4.2: words that are d apart count 1/d, both ways round, inside one text."""
    texts = [["a", "b", "c", "a"], ["a", "a"]]
    corpus = Corpus.from_texts(texts, 1, True)
    expected = np.zeros((3, 3))
    number = {w: i for i, w in enumerate(corpus.words)}
    for text in texts:
        for s, t in itertools.permutations(range(len(text)), 2):
            if abs(s - t) <= 2:
                expected[number[text[s]], number[text[t]]] += 1 / abs(s - t)
    i, j, sums = training.count_cooccurrences(corpus, 2)
    got = np.zeros((3, 3))
    got[i, j] = sums
    np.testing.assert_allclose(got, expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "PAIR_BUFFER", 4)
        again = training.count_cooccurrences(corpus, 2)
    np.testing.assert_allclose(again[2], sums)


def test_glove_explains_its_counts():
    """After long training wᵀw̃ + b + b̃ is log X: the loss falls to almost nothing."""
    told = []
    train_word_vectors(
        make_language(sentences=300), "glove", epochs=200, threads=1, tell=lambda *a: told.append(a[-1]), **SMALL
    )
    first, last = (float(line.split()[1].rstrip(",")) for line in (told[1], told[-1]))
    assert last < first / 50


def test_unseen_words_have_vectors_in_fasttext_only():
    texts = make_language()
    f = train_word_vectors(texts, "fasttext", epochs=2, threads=1, **SMALL)
    assert len(neighbours(f, "cats", 3)) == 3
    with pytest.raises(Error, match="no vector for 'cats'"):
        neighbours(train_word_vectors(texts, epochs=1, threads=1, **SMALL), "cats")


def test_fasttext_keeps_finished_vectors():
    """The mean of a word's own row and its n-grams; a rate of almost nothing leaves the rows as they were drawn."""
    f = train_word_vectors(make_language(sentences=50), "fasttext", epochs=1, lr=1e-12, threads=1, seed=3, **SMALL)
    words = f.config.vocab - 1
    drawn = torch.empty(words + 500, 16).uniform_(-1 / 16, 1 / 16, generator=torch.Generator().manual_seed(3))
    table = f.model.body.embedding_table.detach()
    assert f.config.num_rows == len(table) == f.config.vocab + 500
    torch.testing.assert_close(table[words + 1 :], drawn[words:])
    for i in range(words):
        parts = [i, *(words + g for g in hash_ngrams(f.tokenizer.get_token_text(i), 3, 6, 500))]
        torch.testing.assert_close(table[i], drawn[parts].mean(0))


def test_rows_of_some_words():
    bag = NgramTable(torch.zeros(1, 1), torch.ones(1), torch.tensor([3, 4, 5, 6, 7]), torch.tensor([0, 2, 2, 5]))
    rows, sizes = bag.find_rows(torch.tensor([2, 0, 1]))
    assert rows.tolist() == [5, 6, 7, 3, 4]
    assert sizes.tolist() == [3, 2, 0]


def test_saved_and_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("formers.interop.safe_files.MAX_FILE_BYTES", 10)  # a vocabulary may be larger than a tokenizer
    f = train_word_vectors(make_language(sentences=100), "fasttext", epochs=1, **SMALL)
    formers.save(f, tmp_path / "v")
    again = formers.load(tmp_path / "v")
    assert again.config == f.config
    assert again.family == "vectors"
    assert neighbours(again, "cat") == neighbours(f, "cat")
    assert neighbours(again, "catty") == neighbours(f, "catty")
    assert solve_analogy(again, "cat", "purrs", "dog") == solve_analogy(f, "cat", "purrs", "dog")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train_word_vectors(["a b"], min_count=5), "no word occurs 5 times"),
        (lambda: train_word_vectors([]), "no word occurs"),
        (lambda: train_word_vectors(["a b"], epochs=0), "epochs must be at least 1"),
        (lambda: train_word_vectors(["a b"], kind="glov"), "setting 'kind' cannot be 'glov'"),
        (lambda: train_word_vectors(["a b"], size=3), "unknown setting 'size'"),
        (lambda: train_word_vectors(["a"], "glove", min_count=1), "no two words occur together"),
        (
            lambda: train_word_vectors(make_language(sentences=200), "glove", lr=1e30, **SMALL),
            "the vectors are not finite",
        ),
        (lambda: train_word_vectors(["a b"], min_n=4, max_n=3), "min_n 4 is more than max_n 3"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(Error) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_korean_words_never_seen(data):
    """Reviews: a word that the vocabulary lacks lands among words of its stem, and of its meaning."""
    with lzma.open(data / "lm" / "movie_reviews_ko.txt.xz", "rt", encoding="utf-8") as lines:
        texts = list(itertools.islice(lines, 20_000))
    f = train_word_vectors(
        texts, "fasttext", dim=50, epochs=3, threads=1, buckets=50_000, min_n=2, max_n=4, min_count=3
    )
    kin = {"재미있더군요": "재미", "감동적이었답니다": "감동", "지루하더이다": "지루", "연기력만큼은요": "연기"}
    for word, stem in kin.items():
        assert f.tokenizer.backend.token_to_id(word) is None
        near = [name for name, _ in neighbours(f, word, 5)]
        assert sum(name.startswith(stem) for name in near) >= 2, near
