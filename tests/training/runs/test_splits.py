"""What the parts of a fine-tuning run have in common, and what of their text is lost, is said on screen and kept."""

from __future__ import annotations

import json

import pytest

import formers
from formers.tasks.example_tables import find_layout
from formers.tasks.examples import read_examples
from formers.training.config_merge import PretrainDataConfig
from formers.training.runs.continue_pretraining import find_shared_documents
from formers.training.runs.prepare_data import RunText
from formers.training.runs.splits import find_overlap, format_overlap_warnings

WORDS = ("좋은", "지루한", "멋진", "나쁜")
ROWS = [{"text": f"{WORDS[i % 4]} 영화 {i}", "label": "ab"[i % 2]} for i in range(24)]
SMALL = {"model.embed": 8, "model.filters": 4, "tune.baseline": False}


def finetune_parts(tmp_path, *parts, **more):
    said: list[str] = []
    made = formers.finetune(
        "textcnn", *parts, epochs=1, out=tmp_path / "run", overrides=SMALL | more.pop("overrides", {}),
        say=said.append, **more,
    )  # fmt: skip
    return made, "\n".join(said)


def test_the_same_rows_in_two_parts_are_told(tmp_path):
    changed = [{"text": f"  {row['text'].upper()} ", "label": "a"} for row in ROWS[:3]]  # by text, not by label
    made, said = finetune_parts(tmp_path, ROWS, [*changed, {"text": "새 영화", "label": "b"}], test=ROWS)
    assert "3 of 4 valid examples are among the train examples too (75%)" in said
    assert "24 of 24 test examples are among the train examples too (100%)" in said
    assert "24 of 24 test examples are among the valid examples too" not in said
    for name in ("report.md", "report.html"):
        text = (made.folder / name).read_text(encoding="utf-8")
        assert "Overlap: the same texts in two parts" in text
    sections = json.loads((made.folder / "evaluation.json").read_text(encoding="utf-8"))["sections"]
    (table,) = (s for s in sections if s["title"].startswith("Overlap"))
    assert table["rows"] == [["valid", "train", "3", "4"], ["test", "train", "24", "24"], ["test", "valid", "3", "24"]]


@pytest.mark.parametrize("row", [
    {"question": "누구?", "context": "나다", "answers": {"text": ["나"], "answer_start": [0]}},
    {"words": ["나는", "간다"], "tags": ["O", "B-X"]},
    {"question": "왜?", "choices": ["하나", "둘"], "label": 0},
    {"source": "a b", "target": "c d"},
    {"premise": "a b", "hypothesis": "c", "label": "x"},
])  # fmt: skip
def test_overlap_of_every_task(row):
    one = read_examples([row])
    other = json.loads(json.dumps(row).replace("a b", "a z").replace("왜", "어째").replace("간다", "온다"))
    other = {
        **other,
        **({"context": "너나"} if "context" in other else {}),
        **({"words": ["x", "y"]} if "words" in other else {}),
    }
    two = read_examples([row, {**other, **({"question": "뭐?"} if "question" in other else {})}])
    assert find_overlap({"train": one, "valid": two}) == [("valid", "train", 1, 2)]
    assert find_overlap({"train": one}) == []


def test_broken_bytes_and_unknown_tokens_are_told(tmp_path):
    lines = "".join(f"{row['text']}\t{row['label']}\n" for row in ROWS)
    (tmp_path / "a.tsv").write_bytes(b"text\tlabel\n" + lines.encode() + b"odd \xff\tb\n")
    made, said = finetune_parts(tmp_path, tmp_path / "a.tsv")
    assert "1 byte removed for not being UTF-8" in said
    assert "train: " in said
    assert "tokens unknown" in said
    assert "tokens unknown" in formers.evaluate(made.former, tmp_path / "a.tsv").summary


def test_a_million_labels_are_no_labels(tmp_path):
    rows = [{"text": f"a {i}", "label": f"l{i}"} for i in range(120)]
    with pytest.raises(formers.Error, match="120 different labels in 120 rows"):
        finetune_parts(tmp_path, rows)


def test_characters_are_tagged(tmp_path):
    """A model trained on KLUE-NER's characters tags the characters of a text, and not its words."""
    one = "## klue-ner-v1_{0}_x\t<서울:LC>에 산다\n서\tB-LC\n울\tI-LC\n에\tO\n \tO\n산\tO\n다\tO\n\n"
    (tmp_path / "a.tsv").write_text("".join(one.format(i) for i in range(12)), encoding="utf-8")
    assert find_layout(one.split("\n"), False) is not None
    small = {"model.dim": 16, "model.layers": 1, "model.heads": 2, "model.ff": 32, "data.vocab_size": 60}
    made = formers.finetune("bert", tmp_path / "a.tsv", epochs=1, out=tmp_path / "run", overrides=small)
    assert next(iter(made.valid)) == "f1"
    text = "서울 산다"
    found = formers.load(made.folder / "model").tag(text)
    assert [word.word for word in found] == list("서울산다")
    assert all(text[word.start : word.end] == word.word for word in found)


def test_documents_of_plain_text_in_two_parts(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"문서 {i}\n" for i in range(9)), encoding="cp949")
    (tmp_path / "b.txt").write_text("문서 3\n새 문서\n", encoding="cp949")
    how = PretrainDataConfig(encoding="cp949", unit="line")

    def find(valid):
        return find_shared_documents(RunText(tmp_path / "a.txt", how), RunText(valid, how))

    (said,) = find([tmp_path / "b.txt"])
    assert "1 of 2 valid documents is among the train documents too (50%)" in said
    assert find(["새 문서"]) == []
    assert find(None) == []


def test_a_few_shared_examples_are_no_warning():
    few, many = format_overlap_warnings([("test", "train", 1, 300), ("valid", "train", 13, 60)])
    assert few == "note: 1 of 300 test examples is among the train examples too"
    assert many.startswith("warning: 13 of 60 valid examples are among the train examples too (22%)")
