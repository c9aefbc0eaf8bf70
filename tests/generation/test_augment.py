"""New examples: only words change, labels are checked, nothing twice, the same for any batch, and after a stop."""

from __future__ import annotations

import json
import unicodedata

import pytest

import formers
from formers import Error
from formers.atomic_files import ResumableFile
from formers.generation import augment as module
from formers.generation.augment import augment, to_comparison_form
from formers.generation.fill import infill_texts
from formers.task import Task
from formers.tasks.examples import make_label_prefix
from formers.training.runs.continue_pretraining import train_conditional
from tests.command_line import run_command
from tests.small_models import build_language_model

ROWS = [
    {"text": "the cat sat on the mat", "other": None, "label": "a"},
    {"text": "배를 타고 강을 건넜다.", "other": None, "label": "b"},
    {"text": "the bank was closed, and the cat sat", "other": None, "label": "a"},
    {"text": unicodedata.normalize("NFD", "배가 아파서 병원에 갔다!"), "other": None, "label": "b"},
    {"text": "👩‍👩‍👧 ❤️ 좋아요 don't", "other": None, "label": "b"},
    {"text": "…", "other": None, "label": "a"},
]


@pytest.fixture(scope="module")
def bert():
    return build_language_model("bert")


@pytest.fixture(scope="module")
def gpt():
    return build_language_model("gpt2")


def test_only_words_change(bert):
    texts = [row["text"] for row in ROWS]
    keys = [(0, i, 0) for i in range(len(texts))]
    new = infill_texts(bert, texts, [""] * len(texts), keys, 0.3, 50, 1.0)
    assert new[5] == "…"  # there is no word
    changed = 0
    for old, text in zip(texts[:3], new[:3], strict=True):
        before, after = old.split(), text.split()
        assert len(before) == len(after)
        differ = [a for a, b in zip(before, after, strict=True) if a != b]
        assert 0 <= len(differ) <= max(1, round(0.3 * (len(before) + 1)))
        changed += len(differ)
    assert changed
    assert all("[" not in text for text in new)
    alone = [infill_texts(bert, [t], [""], [k], 0.3, 50, 1.0)[0] for t, k in zip(texts, keys, strict=True)]
    assert alone == new
    assert new[4].startswith("👩‍👩‍👧 ❤️")
    two = infill_texts(bert, texts[:1] * 2, ["", ""], [(1, 0, 0), (2, 0, 0)], 1.0, 50, 1.0)  # every word is hidden
    assert two[0] != two[1]
    front = infill_texts(bert, texts[:1], ["cat: "], keys[:1], 1.0, 50, 1.0)[0]
    assert not front.startswith("cat:")
    assert infill_texts(bert, [" ".join(texts[:1] * 30)], [""], keys[:1], 0.5, 5, 1.0)[0].endswith(
        "the cat sat on the mat"
    )


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_new_labelled_and_reproducible(name, bert, gpt):
    f = bert if name == "bert" else gpt
    made = augment(f, ROWS, times=3, rate=0.5, label_filter=None, max_new_tokens=8, seed=3)
    assert made.rows
    known = {to_comparison_form(row["text"]) for row in ROWS}
    forms = [to_comparison_form(row["text"]) for row in made.rows]
    assert len(set(forms)) == len(forms)
    assert not set(forms) & known
    for row in made.rows:
        assert row["label"] == ROWS[row["from"]]["label"]
        assert unicodedata.is_normalized("NFC", row["text"])
    assert augment(f, ROWS, times=3, rate=0.5, label_filter=None, max_new_tokens=8, seed=3).rows == made.rows
    assert augment(f, ROWS, times=3, rate=0.5, label_filter=None, max_new_tokens=8, seed=4).rows != made.rows
    assert sum(made.skipped.values()) + len(made.rows) == 3 * len(ROWS)


def test_labels_are_checked(bert, monkeypatch):
    whole = augment(bert, ROWS, times=3, rate=0.9, label_filter=None, top_k=300, temperature=3.0)
    some = augment(bert, ROWS, times=3, rate=0.9, top_k=300, temperature=3.0)
    assert some.skipped["label"] == len(whole.rows) - len(some.rows) > 0
    assert all(row in whole.rows for row in some.rows)
    from formers.evaluation.metrics import LinearBaseline

    model = LinearBaseline(ROWS)
    assert all(guess == row["label"] for row, guess in zip(some.rows, model.predict_labels(some.rows), strict=True))
    strict = augment(bert, ROWS, times=3, rate=0.9, top_k=300, temperature=3.0, min_probability=0.99)
    assert len(strict.rows) < len(some.rows)


def test_stopped_and_resumed(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_SIZE", 2)
    whole = augment(bert, ROWS, tmp_path / "whole.jsonl", times=2, label_filter=None)
    write, calls = ResumableFile.write_records, []

    def stop(self, *records):
        calls.append(records)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(self, *records)

    monkeypatch.setattr(ResumableFile, "write_records", stop)
    with pytest.raises(KeyboardInterrupt):
        augment(bert, ROWS, tmp_path / "new.jsonl", times=2, label_filter=None)
    again = augment(bert, ROWS, tmp_path / "new.jsonl", times=2, label_filter=None)
    assert len(calls) == 4
    assert again.rows == whole.rows
    assert (tmp_path / "new.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    read = formers.tasks.examples.read_examples(tmp_path / "new.jsonl")  # what comes out can be learned from
    assert [row["text"] for row in read.rows] == [row["text"] for row in whole.rows]


def test_after_learning_the_labels(gpt, tmp_path):
    f = train_conditional(gpt, ROWS[:4], tmp_path, epochs=2, label_names={"a": "animals"})
    assert f.family == "gpt2"
    before, after = (g.model.state_dict() for g in (gpt, f))
    assert any(not (before[name] == after[name]).all() for name in before)
    made = augment(
        f,
        ROWS[:4],
        conditional=True,
        rate=1.0,
        times=2,
        label_filter=None,
        max_new_tokens=6,
        label_names={"a": "animals"},
    )
    assert len(made.rows) + sum(made.skipped.values()) == 8
    assert not any(row["text"].startswith("animals") for row in made.rows if row["from"] == 0)


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_examples_are_no_neighbours(family, tmp_path, recwarn):
    # One text is held out: no pair can be made of it.
    f = train_conditional(build_language_model(family), ROWS[:4], tmp_path, epochs=1)
    assert set(f.model.parts) == {"mlm"}
    assert not [one for one in recwarn if "untrained" in str(one.message)]
    assert augment(f, ROWS[:4], conditional=True, times=2, label_filter=None).rows


def test_equal_beginnings_are_continued_in_many_ways(gpt, monkeypatch):
    rows = [*ROWS[:4], ROWS[0]]  # after "a: " and "b: ", and one example twice
    how = {"conditional": True, "rate": 1.0, "times": 3, "label_filter": None, "max_new_tokens": 12, "top_k": 50}
    made = augment(gpt, rows, **how)
    assert len(made.rows) > 12, made.summary  # of 15; two prompts with three samples each give 6
    assert {row["from"] for row in made.rows} == set(range(5))
    monkeypatch.setattr(module, "CHUNK_SIZE", 2)
    assert augment(gpt, rows, **how).rows == made.rows
    turned = augment(gpt, rows[1:4][::-1], **how).rows  # an example's texts are its own, wherever it stands
    assert {r["text"] for r in turned} <= {r["text"] for r in made.rows}


def test_another_model_begins_anew(bert, tmp_path, monkeypatch):
    other = formers.build("bert", seed=5, **vars(bert.config))
    other.tokenizer = bert.tokenizer
    assert other.family == bert.family
    assert other.fingerprint != bert.fingerprint
    whole = augment(bert, ROWS, label_filter=None, times=2)
    filtered = augment(bert, ROWS, times=2)
    finish = ResumableFile.finish

    def stop(*_):
        raise KeyboardInterrupt

    for model, keep, want in ((other, None, whole), (bert, None, filtered)):
        monkeypatch.setattr(ResumableFile, "finish", stop)
        with pytest.raises(KeyboardInterrupt):
            augment(model, ROWS, tmp_path / "new.jsonl", label_filter=keep, times=2)
        monkeypatch.setattr(ResumableFile, "finish", finish)
        again = augment(bert, ROWS, tmp_path / "new.jsonl", label_filter=None if want is whole else "linear", times=2)
        assert again.rows == want.rows  # nothing of the other model, and the last classifier counts
        (tmp_path / "new.jsonl").unlink()


def test_a_teacher_is_of_its_model(gpt, tmp_path):
    first = train_conditional(gpt, ROWS[:4], tmp_path, epochs=1)
    assert train_conditional(gpt, ROWS[:4], tmp_path, epochs=1).fingerprint == first.fingerprint
    with pytest.raises(Error, match="another model was trained here"):
        train_conditional(first, ROWS[:4], tmp_path, epochs=1)


SEVERAL = [{**row, "label": label} for row, label in zip(ROWS[:5], (["a", "b"], ["b"], ["a"], [], ["b"]), strict=True)]


def test_several_labels(bert, monkeypatch):
    fronts = [make_label_prefix(row, {"a": "animals"}) for row in SEVERAL]
    assert fronts == ["animals, b: ", "b: ", "animals: ", "-: ", "b: "]
    made = augment(bert, SEVERAL, conditional=True, label_filter=None, rate=0.5, top_k=300)
    assert made.rows
    classifier = formers.build("bert", head="classify", labels=["a", "b"], **vars(bert.config))
    classifier.tokenizer, classifier.task = bert.tokenizer, Task(kind="many").to_dict()
    said = {row["text"]: classifier.classify(row["text"]) for row in made.rows}
    kept = augment(bert, SEVERAL, conditional=True, label_filter=classifier, rate=0.5, top_k=300)
    want = [row for row in made.rows if set(said[row["text"]].labels) == set(row["label"])]
    assert kept.rows == want


def test_a_filter_of_other_labels_is_refused(bert):
    for labels, task, word in (
        (["a", "b", "c"], {}, "knows the labels a, b, c, and the examples have a, b"),
        (["a", "c"], {}, "knows the labels"),
        (["a", "b"], Task(kind="many").to_dict(), "the label filter gives several labels"),
    ):
        classifier = formers.build("bert", head="classify", labels=labels, **vars(bert.config))
        classifier.tokenizer, classifier.task = bert.tokenizer, task
        with pytest.raises(Error, match=word):
            augment(bert, ROWS, label_filter=classifier)
    with pytest.raises(Error, match="does not classify"):
        augment(bert, ROWS, label_filter=bert)


def test_the_command(bert, tmp_path, capsys):
    formers.save(bert, tmp_path / "model")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    (tmp_path / "few.jsonl").write_text(lines, encoding="utf-8")
    command = (
        "augment",
        tmp_path / "model",
        "--train",
        tmp_path / "few.jsonl",
        "--times",
        "2",
        "--label-filter",
        "none",
    )
    code, out, _ = run_command(capsys, *command, "--out", tmp_path / "more.jsonl")
    assert code == 0
    assert "new examples out of 6" in out
    rows = [json.loads(line) for line in (tmp_path / "more.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows
    assert set(rows[0]) == {"text", "label", "from"}
    assert run_command(capsys, *command, "--out", tmp_path / "more.jsonl")[0] == 2  # it is there already
    assert run_command(capsys, *command, "--out", tmp_path / "more.csv")[0] == 2
    assert run_command(capsys, *command, "--out", tmp_path / "none.jsonl", "--rate", "0")[0] == 2  # not the usual rate


def test_refusals(bert, gpt):
    for call, word in (
        (lambda: augment(bert, ROWS, method="sing"), "there is no method"),
        (lambda: augment(bert, ROWS, odd=1), "does not take 'odd'"),
        (lambda: augment(bert, ROWS, times=0), "at least 1"),
        (lambda: augment(bert, ROWS, rate=0), "shares"),
        (lambda: augment(bert, ROWS, label_filter="magic"), "is not a label filter"),
        (lambda: augment(gpt, ROWS, method="fill"), "fills no blanks"),
        (lambda: augment(bert, [{"x": 1}]), "which columns"),
    ):
        with pytest.raises(Error, match=word):
            call()
