"""Measures against those that others publish: sklearn, scipy, seqeval, rouge-score, sacrebleu, SQuAD's rules."""

from __future__ import annotations

import random
import unicodedata
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formers import Error
from formers.evaluation.metrics import compute_lcs_length, compute_metrics, get_signatures, split_units
from formers.tasks.tagging import find_entities, find_scheme

LABELS = st.lists(st.tuples(st.sampled_from("abc가"), st.sampled_from("abc가")), min_size=1, max_size=40)
VALUES = st.integers(-20, 20).map(lambda v: v / 4)
KINDS = [f"{mark}-{kind}" for mark in "BIES" for kind in ("PER", "LOC-2")] + ["O", "O", "O", "B", "I"]
WORDS = st.lists(st.sampled_from(["the", "a", "cat", "sat", "on", "mat", "dog", "3", "don't"]), max_size=12).map(
    " ".join
)


@pytest.mark.filterwarnings("ignore")
@given(LABELS)
@settings(max_examples=30)
def test_labels_as_sklearn(pairs):
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    truths, guesses = zip(*pairs, strict=True)
    found = compute_metrics("classify", truths, guesses, positive=truths[0])
    assert next(iter(found)) == "accuracy"
    assert found["accuracy"] == pytest.approx(accuracy_score(truths, guesses))
    assert found["f1_macro"] == pytest.approx(f1_score(truths, guesses, average="macro"))
    assert found["matthews"] == pytest.approx(matthews_corrcoef(truths, guesses))
    ones = [[t == truths[0] for t in side] for side in (truths, guesses)]
    assert found["f1"] == pytest.approx(f1_score(*ones))


@given(st.lists(st.tuples(st.sets(st.sampled_from("abc")), st.sets(st.sampled_from("abc"))), min_size=1, max_size=20))
@settings(max_examples=30)
def test_several_labels_as_sklearn(pairs):
    from sklearn.metrics import accuracy_score, f1_score
    from sklearn.preprocessing import MultiLabelBinarizer

    truths, guesses = zip(*pairs, strict=True)
    there = sorted(set().union(*truths, *guesses))
    found = compute_metrics("classify", [sorted(t) for t in truths], [sorted(g) for g in guesses])
    if not there:
        assert found["exact"] == 1
        return
    rows = [MultiLabelBinarizer(classes=list("abc")).fit_transform(side) for side in (truths, guesses)]
    kinds = ["abc".index(label) for label in there]
    assert found["f1_micro"] == pytest.approx(f1_score(*rows, average="micro", zero_division=0))
    assert found["f1_macro"] == pytest.approx(f1_score(*rows, labels=kinds, average="macro", zero_division=0))
    assert found["exact"] == pytest.approx(accuracy_score(*rows))


@given(st.lists(st.tuples(VALUES, VALUES), min_size=3, max_size=30))
def test_numbers_as_scipy(pairs):
    from scipy.stats import pearsonr, spearmanr

    truths, guesses = map(list, zip(*pairs, strict=True))
    found = compute_metrics("regress", truths, guesses)
    if len(set(truths)) == 1 or len(set(guesses)) == 1:
        assert found["pearson"] == found["spearman"] == 0
        return
    assert found["pearson"] == pytest.approx(pearsonr(truths, guesses).statistic, abs=1e-12)
    assert found["spearman"] == pytest.approx(spearmanr(truths, guesses).statistic, abs=1e-12)


@given(st.lists(st.lists(st.tuples(*[st.sampled_from(KINDS)] * 2), min_size=1, max_size=12), min_size=1, max_size=5))
def test_entities_as_seqeval(rows):
    from seqeval.metrics import f1_score, precision_score, recall_score
    from seqeval.metrics.sequence_labeling import get_entities

    truths, guesses = ([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    for row in truths:
        assert find_entities(row) == get_entities(row)
    found = compute_metrics("tag", truths, guesses)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found["f1"] == pytest.approx(f1_score(truths, guesses))
        assert found["precision"] == pytest.approx(precision_score(truths, guesses))
        assert found["recall"] == pytest.approx(recall_score(truths, guesses))


SCHEMES = {"IOB2": "BIIB", "IOBES": "BIES", "BILOU": "BILU"}  # first, inside, last and only word of an entity
SPANS = st.lists(st.tuples(st.sampled_from(["PER", "LOC-2"]), st.integers(0, 3)), max_size=4)


def make_tags(spans, marks, size):
    """The tags of entities of so many words in a row; of none, O."""
    found = []
    for kind, length in spans:
        inside = [marks[3]] if length == 1 else [marks[0], *[marks[1]] * (length - 2), marks[2]]
        found += ["O"] if not length else [f"{mark}-{kind}" for mark in inside]
    return [*found, *["O"] * (size - len(found))]


def move_marks_behind(rows):
    """Tags with the mark at the end."""
    return [[tag if tag == "O" else f"{tag[2:]}-{tag[0]}" for tag in row] for row in rows]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", SCHEMES)
@given(rows=st.lists(st.tuples(SPANS, SPANS), min_size=1, max_size=3))
@settings(max_examples=40)
def test_schemes_as_seqeval(scheme, rows):
    import seqeval.scheme
    from seqeval.metrics import f1_score

    truths, guesses = ([make_tags(row[side], SCHEMES[scheme], 12) for row in rows] for side in (0, 1))
    how = {"mode": "strict", "scheme": getattr(seqeval.scheme, scheme)}
    assert compute_metrics("tag", truths, guesses)["f1"] == pytest.approx(f1_score(truths, guesses, **how))
    found = compute_metrics("tag", move_marks_behind(truths), move_marks_behind(guesses))
    assert found["f1"] == pytest.approx(
        f1_score(move_marks_behind(truths), move_marks_behind(guesses), **how, suffix=True)
    )
    naver = [
        [[t if t == "O" else f"{t[:-2]}_{t[-1]}" for t in row] for row in move_marks_behind(s)]
        for s in (truths, guesses)
    ]
    assert compute_metrics("tag", *([["-" if t == "O" else t for t in row] for row in side] for side in naver)) == found


@pytest.mark.filterwarnings("ignore")
@given(st.lists(st.lists(st.tuples(*[st.sampled_from([*KINDS[:8], "O"])] * 2), min_size=1), min_size=1, max_size=4))
def test_marks_behind_as_seqeval(rows):
    from seqeval.metrics import f1_score
    from seqeval.metrics.sequence_labeling import get_entities

    sides = [move_marks_behind([[pair[side] for pair in row] for row in rows]) for side in (0, 1)]
    for row in sides[0]:
        assert find_entities(row, suffix=True) == get_entities(row, suffix=True)
    if find_scheme([tag for side in sides for row in side for tag in row]) == "suffix":
        assert compute_metrics("tag", *sides)["f1"] == pytest.approx(f1_score(*sides, suffix=True))


def test_schemes_are_told_apart():
    for tags, want in (
        (["B-PER", "O"], "prefix"), (["B_PER", "-"], "prefix"), (["PER-B", "NUM-I", "O"], "suffix"),
        (["PER_B", "-"], "suffix"), (["B", "I", "O"], "bare"), (["O"], "bare"), (["NNG", "JKS"], None),
        (["I-PER", "O"], "prefix"), (["NN-I"], None),
    ):  # fmt: skip
        assert find_scheme(tags) == want, tags
    assert compute_metrics("tag", [["PER-B", "PER-I", "O"]], [["PER-B", "PER-I", "O"]])["f1"] == 1.0
    assert compute_metrics("tag", [["PER_B", "PER_I", "-"]], [["PER_B", "-", "-"]])["f1"] == 0.0


def test_schemes_of_tags():
    assert find_entities(["I-PER", "I-PER", "B-PER", "O"]) == [("PER", 0, 1), ("PER", 2, 2)]  # IOB1
    assert find_entities(["S-PER", "B-LOC", "I-LOC", "E-LOC"]) == [("PER", 0, 0), ("LOC", 1, 3)]  # BIOES
    assert find_entities(["U-PER", "B-LOC", "L-LOC"]) == [("PER", 0, 0), ("LOC", 1, 2)]  # BILOU
    assert compute_metrics("tag", [["NNG", "JKS"]], [["NNG", "JKO"]])["accuracy"] == 0.5  # parts of speech
    assert (
        compute_metrics("tag", [["O", "O"]], [["B-X", "O"]])["f1"]
        == compute_metrics("tag", [["O"]], [["O"]])["f1"]
        == 0
    )  # no entity
    assert (
        compute_metrics("tag", [["B", "I", "B"]], [["B", "B", "B"]])["f1"] == 0.4
    )  # spacing of Korean: one of 2, of 3 guesses


def test_questions_as_squad():
    # Worked out by hand from the rules: lower case, no punctuation, no articles, best of several.
    found = compute_metrics("answer", [["the Big Cat!", "dog"], ["1 2 3"]], ["big cat", "2 3 4 5"], language="en")
    assert found["exact"] == 0.5
    assert found["f1"] == pytest.approx((1 + 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3)) / 2)
    assert compute_metrics("answer", [["a"]], ["the"])["f1"] == 0  # 1.1: nothing shared
    second = compute_metrics("answer", [[], ["cat"], ["a", "cat"]], ["", "", "Cat"], language="en")
    assert second["exact"] == second["f1"] == pytest.approx(2 / 3)
    assert second["exact_no_answer"] == 1
    assert second["exact_has_answer"] == 0.5


def split_plainly(text):
    """SQuAD's plain form, the slow way."""
    words = "".join(c for c in text.lower() if c.isalnum() or c.isspace()).split()
    return [w for w in words if w not in ("a", "an", "the")]


def score_bags(true, said):
    """F1 by taking out what is shared, one by one."""
    rest, same = list(said), 0
    for word in true:
        if word in rest:
            rest.remove(word)
            same += 1
    if not true or not said:
        return float(true == said)
    return 0.0 if not same else 2 / (len(said) / same + len(true) / same)


@given(st.lists(st.tuples(st.lists(WORDS, min_size=1, max_size=3), WORDS), min_size=1, max_size=5))
def test_questions_by_brute_force(rows):
    truths, guesses = zip(*rows, strict=True)
    found = compute_metrics("answer", truths, guesses, language="en", version=2)
    golds = [[split_plainly(t) for t in row if split_plainly(t)] or [[]] for row in truths]
    exact = [max(t == split_plainly(g) for t in row) for row, g in zip(golds, guesses, strict=True)]
    f1 = [max(score_bags(t, split_plainly(g)) for t in row) for row, g in zip(golds, guesses, strict=True)]
    assert found["exact"] == pytest.approx(sum(exact) / len(rows))
    assert found["f1"] == pytest.approx(sum(f1) / len(rows))


def test_questions_as_korquad():
    found = compute_metrics("answer", [["《백범일지》"], ["1989년 2월 15일"]], ["백범일지", "2월 15일"])
    assert found["exact"] == 0.5
    same, said, true = 5, 5, 10  # characters without spaces
    assert found["f1"] == pytest.approx((1 + 2 * same / (said + true)) / 2)
    apart = unicodedata.normalize("NFD", "백범일지")
    assert compute_metrics("answer", [["백범일지"]], [apart], language="ko") == {"f1": 1.0, "exact": 1.0}


def test_bleu_as_sacrebleu():
    import sacrebleu

    rng = random.Random(0)
    words = ["나는", "학교에", "간다", ".", "The", "cat", "sat", "on", "한", "소년이"]
    truths = [" ".join(rng.choices(words, k=9)) for _ in range(20)]
    guesses = [" ".join(w for w in t.split() if rng.random() < 0.8) for t in truths]
    found = compute_metrics("translate", truths, guesses)
    assert list(found) == ["bleu", "chrf"]
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(guesses, [truths]).score)
    assert found["chrf"] == pytest.approx(sacrebleu.corpus_chrf(guesses, [truths]).score)
    two = [[t, g] if i % 2 else [t] for i, (t, g) in enumerate(zip(truths, guesses, strict=True))]
    assert compute_metrics("translate", two, guesses)["bleu"] > found["bleu"]
    assert "tok:13a" in get_signatures(truths, guesses)["bleu"]
    with pytest.raises(Error, match="cut texts"):
        compute_metrics("translate", truths, guesses, tokenize="nothing")


def test_bleu_without_sacrebleu(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu.metrics", None)
    with pytest.raises(Error, match=r"formers\[eval\]"):
        compute_metrics("translate", ["a"], ["a"])


@given(WORDS, WORDS)
def test_rouge_as_rouge_score(true, said):
    from rouge_score.rouge_scorer import RougeScorer

    found = compute_metrics("summarise", [true], [said])
    for name, score in RougeScorer(["rouge1", "rouge2", "rougeL"]).score(true, said).items():
        assert found[name] == pytest.approx(score.fmeasure), name


@given(st.lists(st.sampled_from("abc"), max_size=15), st.lists(st.sampled_from("abc"), max_size=15))
def test_common_subsequence(a, b):
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    assert compute_lcs_length(a, b) == table[-1][-1]


def test_rouge_in_korean():
    assert compute_metrics("summarise", ["나는 학교에 간다"], ["나는 학교에 갔다"])["rouge1"] == pytest.approx(2 / 3)
    assert compute_metrics("summarise", ["학교에"], ["학교로"])["rouge1"] == 0
    assert compute_metrics("summarise", ["학교에"], ["학교로"], units="characters")["rouge1"] == pytest.approx(2 / 3)
    assert compute_metrics("summarise", ["학교에"], ["학교로"], units="morphemes")["rouge1"] == pytest.approx(1 / 2)
    apart = unicodedata.normalize("NFD", "학교에 간다")
    assert compute_metrics("summarise", ["학교에 간다"], [apart])["rougeL"] == 1
    assert split_units("👩‍👩‍👧 ❤️ 좋아요!", "words") == ["좋아요"]
    assert split_units("नमस्ते दुनिया", "words") == ["नमस्ते", "दुनिया"]


def test_what_cannot_be_evaluated():
    for task, truths, guesses, more, word in (
        ("sing", ["a"], ["a"], {}, "no metric"),
        ("classify", ["a"], [], {}, "one guess"),
        ("classify", [], [], {}, "nothing to score"),
        ("classify", ["a"], ["a"], {"positive": "z"}, "no example"),
        ("classify", ["a"], ["a"], {"odd": 1}, "do not take"),
        ("classify", ["a", ["b"]], ["a", ["b"]], {}, "others a list"),
        ("tag", [["O"]], [["O", "O"]], {}, "example 1"),
        ("answer", [[]], [""], {"version": 1}, "no right answer"),
        ("answer", [["x"]], [""], {"language": "xx"}, "en or ko"),
        ("summarise", ["a"], ["a"], {"units": "letters"}, "units"),
    ):
        with pytest.raises(Error, match=word):
            compute_metrics(task, truths, guesses, **more)
