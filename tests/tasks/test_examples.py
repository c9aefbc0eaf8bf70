"""Examples out of tables of every form: understood rightly, or refused with the reason."""

from __future__ import annotations

import contextlib
import gzip
import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formers import Error
from formers.tasks.examples import check_labels, read_examples

FILES = {  # what each file of the data folder must be understood as: task, columns, examples, labels
    "classify/nsmc.test.tsv.xz": ("classify", {"text", "label"}, 49_997, 2),
    "classify/trec.train.tsv.xz": ("classify", {"text", "label"}, 5_452, 6),
    "classify/sms_spam.tsv.xz": ("classify", {"text", "label"}, 5_574, 2),
    "classify/cola.dev.tsv.xz": ("classify", {"text", "label"}, 1_043, 2),
    "pair/chatbot_ko.tsv.xz": ("translate", {"question", "answer"}, 11_823, 0),
    "pair/kornli.dev.tsv.xz": ("classify", {"a", "b", "label"}, 2_490, 3),
    "pair/korsts.dev.tsv.xz": ("regress", {"a", "b", "score"}, 1_500, 0),
    "pair/rte.dev.tsv.xz": ("classify", {"a", "b", "label"}, 277, 2),
    "tag/wnut17.dev.conll.xz": ("tag", {"words", "tags"}, 1_009, 13),
    "answer/korquad1.dev.json.xz": ("answer", {"question", "context", "answers", "id"}, 5_774, 0),
    "translate/tatoeba.en-ko.tsv.xz": ("translate", {"en", "ko"}, 3_798, 0),
    "translate/multi30k.val.en-de.tsv.xz": ("translate", {"en", "de"}, 1_014, 0),
    "summarise/email_subject.dev.tsv.xz": ("summarise", {"text", "summary"}, 1_960, 0),
}


@pytest.mark.parametrize("name", FILES)
def test_real_files(data, name):
    task, columns, count, labels = FILES[name]
    found = read_examples(data / name)
    assert (found.task, len(found), len(found.labels)) == (task, count, labels)
    assert all(f"column {column!r}" in found.summary for column in columns)
    assert f"{count:,} examples" in found.summary
    if task == "answer":
        for row in found.rows:
            for answer in row["answers"]:
                assert row["context"][answer["start"] :].startswith(answer["text"])


# Columns as they are found in published sets, and what they mean.
KNOWN = [
    ({"id": "1", "document": "좋다", "label": "1"}, "classify", {"text": "좋다", "other": None, "label": "1"}),
    ({"text": "good", "other": None, "label": "x"}, "classify", {"text": "good", "other": None, "label": "x"}),
    ({"sentence": "good", "label": 0, "idx": 3}, "classify", {"text": "good", "other": None, "label": "0"}),
    ({"text": "good", "stars": 4.0}, "classify", {"text": "good", "other": None, "label": "4"}),
    ({"text": "good", "labels": ["a", "b"]}, "classify", {"text": "good", "other": None, "label": ["a", "b"]}),
    ({"premise": "p q", "hypothesis": "h", "label": "x"}, "classify", {"text": "p q", "other": "h", "label": "x"}),
    ({"question": "why", "sentence": "s t", "label": 1}, "classify", {"text": "why", "other": "s t", "label": "1"}),
    ({"question": "is it", "passage": "s t", "label": 1}, "classify", {"text": "is it", "other": "s t", "label": "1"}),
    ({"text": "good", "label": 0.5}, "regress", {"text": "good", "other": None, "label": 0.5}),
    ({"sentence1": "a b", "sentence2": "c", "score": 3}, "regress", {"text": "a b", "other": "c", "label": 3.0}),
    ({"text": "good", "label": -1}, "classify", {"text": "good", "other": None, "label": "-1"}),
    ({"tokens": ["나는", "간다"], "ner_tags": ["O", "O"]}, "tag", {"words": ["나는", "간다"], "tags": ["O", "O"]}),
    ({"translation": {"en": "hi", "ko": "안녕"}}, "translate", {"text": "hi", "target": "안녕"}),
    ({"source": "a b", "target": "c d"}, "translate", {"text": "a b", "target": "c d"}),
    ({"document": "a b c", "summary": "a"}, "summarise", {"text": "a b c", "target": "a"}),
    ({"article": "a b c", "highlights": "a", "id": "x"}, "summarise", {"text": "a b c", "target": "a"}),
    ({"text": "only this"}, "lm", {"text": "only this"}),
    (
        {"ctx": "he", "endings": ["sat", "ran"], "label": "1"},
        "choose",
        {"text": "he", "other": None, "choices": ["sat", "ran"], "label": 1},
    ),
    (
        {"question": "q", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B"},
        "choose",
        {"text": "q", "other": None, "choices": ["x", "y"], "label": 1},
    ),
    (
        {"id": "7", "question": "who", "context": "it was me", "answers": {"text": ["me"], "answer_start": [7]}},
        "answer",
        {
            "id": "7",
            "question": "who",
            "context": "it was me",
            "answers": [{"text": "me", "start": 7}],
            "possible": True,
        },
    ),
]


@pytest.mark.parametrize(("record", "task", "row"), KNOWN, ids=lambda v: v if isinstance(v, str) else "")
def test_columns_of_published_sets(record, task, row):
    found = read_examples([record])
    assert (found.task, found.rows) == (task, [row])


def test_numbered_choices():
    copa = [{"premise": "p", "choice1": "x", "choice2": "y", "label": n} for n in (0, 1)]
    assert [row["label"] for row in read_examples(copa).rows] == [0, 1]
    wino = [{"sentence": "p", "option1": "x", "option2": "y", "answer": n} for n in ("1", "2")]
    assert [row["label"] for row in read_examples(wino, "choose").rows] == [0, 1]
    with pytest.raises(Error, match=r"row 1: the label '5'"):
        read_examples([{"text": "p", "choices": ["x", "y"], "label": 5}])


def test_every_form_gives_the_same(tmp_path):
    rows = [{"text": "좋다, 정말", "label": "pos"}, {"text": 'so "bad"', "label": "neg"}]
    want = [{"text": r["text"], "other": None, "label": r["label"]} for r in rows]
    lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=2), encoding="utf-8")
    (tmp_path / "b.json").write_text(lines, encoding="utf-8")
    (tmp_path / "a.csv").write_text('text,label\n"좋다, 정말",pos\n"so ""bad""",neg\n', encoding="utf-8")
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress('text\tlabel\n좋다, 정말\tpos\nso "bad"\tneg\n'.encode()))
    for name in ("a.jsonl", "a.json", "b.json", "a.csv", "a.tsv.gz"):
        found = read_examples(tmp_path / name)
        assert (found.rows, found.labels) == (want, ("neg", "pos")), name
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow.parquet")
    frame = pandas.DataFrame(rows)
    pyarrow.write_table(__import__("pyarrow").Table.from_pandas(frame), tmp_path / "a.parquet")
    assert read_examples(frame).rows == read_examples(tmp_path / "a.parquet").rows == want
    assert read_examples([(r["text"], r["label"]) for r in rows]).rows == want

    words = pandas.DataFrame([{"words": ["a", "b"], "tags": ["O", "B-X"]}] * 2)
    words["words"] = [np.array(row, dtype=object) for row in words["words"]]  # as read_parquet gives them
    assert read_examples(words).rows[0] == {"words": ["a", "b"], "tags": ["O", "B-X"]}
    lists = pandas.DataFrame({"text": ["a b", "c d"], "label": [np.array(["x", "y"]), np.array([], dtype=object)]})
    assert [row["label"] for row in read_examples(lists).rows] == [["x", "y"], []]

    class Polars:
        def to_dicts(self):
            return rows

    assert read_examples(Polars()).rows == want


def test_values_that_do_not_fit_are_named():
    rows = [{"text": "a b", "label": "4.5"}, {"text": "c d", "label": "4,5"}]
    with pytest.raises(Error, match="the label '4,5' in 'label' is not a number"):
        read_examples(rows, "regress")
    with pytest.raises(Error, match="the labels in 'label' are numbers with fractions. Take the task regress"):
        read_examples(rows[:1] * 2, "classify")
    asked = {"question": "Who?", "context": "Anna ran.", "answers": "Anna", "is_impossible": "False"}
    assert read_examples([asked, {**asked, "is_impossible": "True"}]).rows[0]["possible"]
    with pytest.raises(Error, match="choice 2 is missing"):
        read_examples([{"text": "a", "choices": ["b", None], "label": 0}])
    letters = {"text": "a", "choices": ["B", "A"], "label": "A"}
    assert read_examples([letters]).rows[0]["label"] == 1, "a choice itself is meant before a letter's place"


def test_names_of_a_dataset():
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["bad", "good"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    data = datasets.Dataset.from_dict({"text": ["x y", "z", "w"], "label": [1, 1, -1]}, features=features)
    found = read_examples(data)
    assert [r["label"] for r in found.rows] == ["good", "good"]
    assert found.labels == ("bad", "good")
    assert "1 without label" in found.summary
    many = datasets.Features({"tokens": [datasets.Value("string")], "ner_tags": [names]})
    tagged = datasets.Dataset.from_dict({"tokens": [["a", "b"]], "ner_tags": [[0, 1]]}, features=many)
    assert read_examples(tagged).rows == [{"words": ["a", "b"], "tags": ["bad", "good"]}]


def test_columns_by_hand(tmp_path):
    rows = [{"a": "x y", "b": "z w", "c": "1", "d": "0"}, {"a": "p q", "b": "r s", "c": "0", "d": "0"}]
    found = read_examples(rows, "translate", {"text": "b", "target": "a"})
    assert found.rows[0] == {"text": "z w", "target": "x y"}
    assert read_examples(rows, "classify", "text=a label=c").rows[1]["label"] == "0"
    several = read_examples(rows, columns={"text": "a", "label": ["c", "d"]})
    assert [r["label"] for r in several.rows] == [["c"], []]
    assert several.multilabel
    (tmp_path / "bare.tsv").write_text("pos\tgood film\nneg\tbad film\n", encoding="utf-8")
    assert read_examples(tmp_path / "bare.tsv", columns=["label", "text"]).rows[0]["text"] == "good film"
    assert read_examples(rows[:1], "classify", {"label": "c"}).rows[0]["other"] == "z w"
    apart = read_examples([{"text": "x", "label": "a|b"}, {"text": "y", "label": "b"}], label_separator="|")
    assert [r["label"] for r in apart.rows] == [["a", "b"], ["b"]]
    assert apart.labels == ("a", "b")


def test_what_is_left_out_is_said():
    rows = [{"text": "x", "label": "1"}, {"text": " ", "label": "1"}, {"text": "y", "label": None}]
    found = read_examples([*rows, {"text": "z", "label": float("nan")}])
    assert len(found) == 1
    assert "1 without text" in found.summary
    assert "2 without label" in found.summary
    assert [r["label"] for r in read_examples(rows, "classify", needs_labels=False).rows] == ["1", None]
    bare = read_examples([{"text": "x"}], "classify", needs_labels=False)
    assert bare.rows == [{"text": "x", "other": None, "label": None}]


def test_errors_name_what_is_there(tmp_path):
    two = [{"x": "some words", "y": "more words", "z": "even more words"}]
    for source, task, columns, word in (
        (two, None, None, "'x', 'y', 'z'"),
        (two, "classify", None, "which columns are text and label"),
        (two, "classify", {"text": "nope"}, "there is no column 'nope'; there are 'x'"),
        (two, "classify", {"words": "x"}, "no part 'words'"),
        (two, "sing", None, "no task"),
        (two, None, "text", "not of the form part=column"),
        ([], None, None, "no examples"),
        ([{"text": "t", "topic": "a", "sentiment": "b"}], None, {}, "'topic', 'sentiment'"),
        ([{"text": "", "label": "1"}], None, None, "1 without text"),
        ([{"text": "x", "label": "no"}], "regress", {"label": "label"}, "row 1: the label 'no' is not a number"),
        ([{"text": ["x"], "label": "1"}], "classify", {"text": "text"}, "row 1: the text in 'text' is not text"),
        ([{"words": ["a"], "tags": []}], "tag", {}, "1 word and 0 tags"),
        ([("a", "b"), ("c",)], "classify", ["text", "label"], "row 2"),
        ({"train": []}, None, None, "several parts"),
        (3, None, None, "cannot be read from int"),
        (tmp_path / "none.tsv", None, None, "no such file"),
    ):
        with pytest.raises(Error, match=word) as error:
            read_examples(source, task, columns)
        assert "\n" not in str(error.value)
    (tmp_path / "ragged.tsv").write_text("text\tlabel\nx\t1\ny\n", encoding="utf-8")
    with pytest.raises(Error, match="line 3"):
        read_examples(tmp_path / "ragged.tsv")
    assert "1 broken row skipped" in read_examples(tmp_path / "ragged.tsv", skip=True).summary


@pytest.mark.parametrize("how", [{}, {"task": "classify"}, {"columns": "label=label"}, {"allow_plain_text": False}])
def test_a_first_row_of_data_suggests_no_header(how, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("good film,pos\nbad one,neg\nnice,pos\n", encoding="utf-8")
    with pytest.raises(Error, match="the first row looks like data: if the file has no header, add --no-header"):
        read_examples(path, **how)
    assert len(read_examples(path, header=False)) == 3
    with pytest.raises(Error) as error:
        read_examples(path, columns="label=label", header=False)
    assert "--no-header" not in str(error.value)
    path.write_text("1,1,good film\n2,2,bad one\n", encoding="utf-8")
    with pytest.raises(Error, match=r"two columns have one name.*--no-header"):
        read_examples(path)


def test_conll(tmp_path):
    text = "-DOCSTART- -X- O\n\n# sent 1\nEU NNP B-ORG\nrejects VBZ O\n\n\n# NN O\n서울 NNP B-LOC\n"
    for name, mark in (("a.conll", " "), ("b.iob", "\t")):
        (tmp_path / name).write_text(text.replace(" ", mark).replace(f"#{mark}sent", "# sent"), encoding="utf-8")
        found = read_examples(tmp_path / name)
        assert [r["words"] for r in found.rows] == [["EU", "rejects"], ["#", "서울"]]
        assert found.labels == ("O", "B-LOC", "B-ORG")
    (tmp_path / "b.conll").write_text("EU B-ORG\nalone\n", encoding="utf-8")
    with pytest.raises(Error, match="line 2"):
        read_examples(tmp_path / "b.conll")


def test_squad_two(tmp_path):
    asked = [
        {"id": "1", "question": "who", "answers": [{"text": "me", "answer_start": 7}], "is_impossible": False},
        {"id": "2", "question": "when", "answers": [], "is_impossible": True},
    ]
    value = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": "it was me", "qas": asked}]}]}
    (tmp_path / "s.json").write_text(json.dumps(value), encoding="utf-8")
    rows = read_examples(tmp_path / "s.json").rows
    assert [r["possible"] for r in rows] == [True, False]
    assert rows[1]["answers"] == []


def test_the_place_that_was_said_is_taken():
    text = unicodedata.normalize("NFD", "각각 배, 각각 배, 배 끝")
    start = text.index(unicodedata.normalize("NFD", "배, 배"))  # the second of three
    answers = [{"text": unicodedata.normalize("NFD", "배"), "answer_start": start}]
    row = read_examples([{"question": "q", "context": text, "answers": answers}]).rows[0]
    assert row["answers"] == [{"text": "배", "start": 9}]


@given(st.text("각가나 e\u0301👩\u200d", max_size=8), st.text("각나닭한", min_size=1, max_size=3), st.integers(-3, 3))
def test_answers_are_found_after_composing(before, answer, wrong):
    whole = unicodedata.normalize("NFD", f"{before} {answer} 끝")
    said = unicodedata.normalize("NFD", answer)
    start = max(0, len(unicodedata.normalize("NFD", before + " ")) + wrong)
    found = read_examples(
        [{"question": "무엇", "context": whole, "answers": [{"text": said, "answer_start": start}]}]
    ).rows[0]
    place = found["answers"][0]
    assert found["context"][place["start"] :].startswith(place["text"])
    assert place["text"] == answer
    if not wrong:
        assert place["start"] == len(unicodedata.normalize("NFC", before + " "))


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.floats(), st.text("가a ,1²\0\ud800", max_size=4),
    st.binary(max_size=2),
    st.lists(st.one_of(st.text(max_size=2), st.integers(0, 2), st.none()), max_size=3),
    st.dictionaries(st.sampled_from(["text", "answer_start", "label", "en"]), st.lists(st.integers(0, 2)), max_size=2),
    st.dictionaries(st.sampled_from(["text", "answer_start", "en", "ko"]), st.text(max_size=2), max_size=2),
)  # fmt: skip
COLUMNS = st.sampled_from([
    "text", "other", "label", "labels", "score", "words", "tokens", "tags", "question", "context", "answers", "choices",
    "choice1", "choice2", "en", "ko", "target", "summary", "translation", "id", "", "is_impossible", "answer_start",
    "a", "b",
])  # fmt: skip


@given(
    st.lists(st.dictionaries(COLUMNS, ODD, max_size=5), max_size=4),
    st.sampled_from([None, "classify", "regress", "tag", "answer", "choose", "translate", "summarise", "lm"]),
    st.sampled_from([None, {"text": "a"}, {"label": "b"}, {"choices": ["a", "b"]}, {"answers": "a", "context": "b"}]),
    st.booleans(),
)
@settings(max_examples=150)
def test_odd_tables_are_read_or_refused(rows, task, columns, labelled):
    with contextlib.suppress(Error):
        assert all(read_examples(rows, task, columns, needs_labels=labelled).rows)


def test_klue_sts(tmp_path):
    rows = [
        {"guid": f"klue-sts-v1_{i:05}", "source": "airbnb-rtt", "sentence1": f"숙소가 좋아요 {i}",
         "sentence2": "방이 좋아요",
         "labels": {"label": 3.7, "real-label": 3.714, "binary-label": 1},
         "annotations": {"agreement": "0:0:0:2:3:2:0", "annotators": ["07", "13"]}} for i in range(3)
    ]  # fmt: skip
    (tmp_path / "klue-sts.json").write_text(json.dumps(rows, ensure_ascii=False, indent=2), encoding="utf-8")
    found = read_examples(tmp_path / "klue-sts.json")
    assert (found.task, found.rows[0]["label"]) == ("regress", 3.714)
    assert found.rows[0]["other"] == "방이 좋아요"
    found = read_examples(tmp_path / "klue-sts.json", "classify", "label=labels.binary-label")
    assert found.rows[0]["label"] == "1"
    assert read_examples(rows, "regress", "label=labels.label").rows[0]["label"] == 3.7, "rows in memory too"


def test_how_files_are_read(tmp_path):
    want = [{"text": "좋다, 참", "other": None, "label": "1"}, {"text": "나쁘다", "other": None, "label": "0"}]
    (tmp_path / "a.csv").write_text("리뷰;등급\n좋다, 참;1\n나쁘다;0\n", encoding="cp949")
    with pytest.raises(Error, match=r"a\.csv: this is not UTF-8: it seems to be cp949"):
        read_examples(tmp_path / "a.csv")
    found = read_examples(tmp_path / "a.csv", encoding="cp949")
    assert found.rows == want
    assert "a semicolon stands between columns" in found.summary
    (tmp_path / "b.csv").write_text('"좋다, 참",1\n나쁘다,0\n', encoding="utf-8")
    assert read_examples(tmp_path / "b.csv", header=False).rows == want
    assert read_examples(tmp_path / "b.csv", "classify", "text=0,label=1", header=False).rows == want
    (tmp_path / "c.txt").write_text("text\tlabel\n좋다, 참\t1\n나쁘다\t0\n", encoding="utf-8")
    assert read_examples(tmp_path / "c.txt").rows == want, "by content"
    (tmp_path / "d.txt").write_text("좋다, 참|1\n나쁘다|0\n", encoding="utf-8")
    assert read_examples(tmp_path / "d.txt", delimiter="|", header=False).rows == want
    (tmp_path / "e.csv").write_text("a,b,c\nx y,z w,1\n", encoding="utf-8")
    assert read_examples(tmp_path / "e.csv", "classify", "label=2", column="0,1").rows[0]["other"] == "z w"
    (tmp_path / "f.tsv").write_bytes(b"text\tlabel\n" + ("참 좋다\t1\n" * 40).encode() + b"bad \xff\t0\n")
    assert "1 byte removed for not being UTF-8" in read_examples(tmp_path / "f.tsv").summary


@pytest.mark.parametrize("limit", [0, -3])
def test_odd_limits(limit):
    with pytest.raises(Error, match=f"cannot take {limit} examples"):
        read_examples([{"text": "a", "label": "b"}], limit=limit)


def test_labels_that_are_none(monkeypatch):
    rows = [{"text": f"a {i}", "label": f"l{i}"} for i in range(150)]
    with pytest.raises(Error, match="150 different labels in 150 rows .'l0', 'l1', 'l10'"):
        check_labels(read_examples(rows))
    check_labels(read_examples([*rows, *rows]))
    monkeypatch.setattr("formers.tasks.examples.MAX_LABELS", 10)
    with pytest.raises(Error, match="at most 10 can be learned|At most 10 can be learned"):
        check_labels(read_examples([*rows, *rows]))


def test_no_usable_row_names_the_columns():
    with pytest.raises(Error, match="the columns are 'text', 'label'"):
        read_examples([{"text": "", "label": "1"}])
