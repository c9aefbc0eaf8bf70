"""Tagged words as they are published: KLUE-NER, Naver NER, CoNLL with two to four columns; by content, not by name."""

from __future__ import annotations

import pytest

from formers import Error
from formers.tasks.example_tables import find_layout
from formers.tasks.examples import read_examples

# Each in exactly the published form, with sentences of our own.
KLUE = (
    "## klue-ner-v1_000000_wikitree\t<서울:LC>에 <김 씨:PS>가 산다.\n"
    "서\tB-LC\n울\tI-LC\n에\tO\n \tO\n김\tB-PS\n \tI-PS\n씨\tI-PS\n가\tO\n \tO\n산\tO\n다\tO\n.\tO\n"
    "\n## klue-ner-v1_000001_nsmc\t#<1위:QT>\n#\tO\n1\tB-QT\n위\tI-QT\n\n"
)
CHALLENGE = "1\t이명은\tPER_B\n2\t어제\tDAT_B\n3\t왔다\t-\n\n1\t삼성전자\tORG_B\n2\t주식회사는\tORG_I\n3\t.\t-\n\n"
KOELECTRA = "이명은 어제 왔다 .\tPER-B DAT-B O O\n금석객잔 여러분, 감사드립니다 .\tORG-B O O O\n" * 3
FOUR = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\n\nPeter NNP B-NP B-PER\n"
THREE = "EU B-ORG 0\nrejects O 0\n\nPeter B-PER 0\nsleeps O 1\n"
TWO = "나는 O\n서울에 B-LOC\n간다 O\n\n철수는 B-PER\n잔다 O\n"
WHAT = {
    "klue": (KLUE, [list("서울에김씨가산다."), list("#1위")], ("O", "B-LC", "B-PS", "B-QT", "I-LC", "I-PS", "I-QT")),
    "challenge": (CHALLENGE, [["이명은", "어제", "왔다"], ["삼성전자", "주식회사는", "."]],
                  ("-", "DAT_B", "ORG_B", "ORG_I", "PER_B")),
    "koelectra": (KOELECTRA, [["이명은", "어제", "왔다", "."], ["금석객잔", "여러분,", "감사드립니다", "."]],
                  ("O", "DAT-B", "ORG-B", "PER-B")),
    "four": (FOUR, [["EU", "rejects", "German"], ["Peter"]], ("O", "B-MISC", "B-ORG", "B-PER")),
    "three": (THREE, [["EU", "rejects"], ["Peter", "sleeps"]], ("O", "B-ORG", "B-PER")),
    "two": (TWO, [["나는", "서울에", "간다"], ["철수는", "잔다"]], ("O", "B-LOC", "B-PER")),
    "named": ("word\ttag\n" + TWO.replace(" ", "\t"), [["나는", "서울에", "간다"], ["철수는", "잔다"]],
              ("O", "B-LOC", "B-PER")),
    "noted": ("# text = 나는\n# id = 3\n" + TWO, [["나는", "서울에", "간다"], ["철수는", "잔다"]],
              ("O", "B-LOC", "B-PER")),
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["tsv", "txt", "conll", "bio"])
@pytest.mark.parametrize("name", WHAT)
def test_published_files(name, suffix, tmp_path):
    text, words, labels = WHAT[name]
    path = tmp_path / f"a.{suffix}"
    path.write_text(text, encoding="utf-8")
    for task in (None, "tag"):
        found = read_examples(path, task)
        assert found.task == "tag"
        assert [row["words"] for row in found.rows[:2]] == words
        assert found.labels == labels
        assert all(len(row["words"]) == len(row["tags"]) for row in found.rows)
    said = "between spaces, and there is no header" if name == "koelectra" else "one word a line"
    assert said in found.summary


def test_columns_by_number_or_name(tmp_path):
    (tmp_path / "a.txt").write_text(FOUR, encoding="utf-8")
    for columns in ("words=0,tags=2", {"tags": 2}, "tags=2"):
        found = read_examples(tmp_path / "a.txt", "tag", columns)
        assert found.labels == ("B-NP", "B-VP")
        assert found.rows[0]["words"] == ["EU", "rejects", "German"]
    (tmp_path / "ud.conll").write_text("1\t나\t나\tPRON\n2\t가\t가다\tVERB\n\n1\t자\t자다\tVERB\n", encoding="utf-8")
    with pytest.raises(Error, match=r"which columns are words and tags\? There are '0', 'words', '2', '3'") as error:
        read_examples(tmp_path / "ud.conll")
    assert "--columns words=COLUMN,tags=COLUMN" in str(error.value)
    assert read_examples(tmp_path / "ud.conll", "tag", "tags=3").labels == ("PRON", "VERB")
    (tmp_path / "n.tsv").write_text(KOELECTRA, encoding="utf-8")
    assert read_examples(tmp_path / "n.tsv", None, "words=0,tags=1").rows == read_examples(tmp_path / "n.tsv").rows


WORD_TAG = "나는,O\n서울에,B-LOC\n" + '",",O\n' + ",,O\n간다,O\n\n\n" + '",O\n' + "철수는,B-PER\n" + "잔다,O\n" * 20


@pytest.mark.parametrize("suffix", ["csv", "txt", "conll", "tsv"])
@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("header", ["", "word,tag\n"])
def test_a_word_and_its_tag_between_commas(mark, suffix, header, tmp_path):
    text = header + WORD_TAG
    if mark != ",":
        text = text.replace('",",O', f"x{mark}O").replace(",,O", f"y{mark}O").replace(",", mark)
    path = tmp_path / f"a.{suffix}"
    path.write_text(text, encoding="utf-8")
    ways = [
        {},
        {"task": "tag"},
        {"columns": "words=0,tags=1"},
        {"columns": {"tags": 1}},
        {"columns": ["words", "tags"]},
    ]
    ways += [{"columns": "words=word,tags=tag"}, {"header": True}] if header else [
        {"columns": "words=0,tags=1", "header": False}, {"delimiter": mark}]  # fmt: skip
    middle = [",", ","] if mark == "," else ["x", "y"]
    for way in ways:
        found = read_examples(path, **way)
        want = [["나는", "서울에", *middle, "간다"], ['"', "철수는", *["잔다"] * 20]]
        assert [row["words"] for row in found.rows] == want, way
        assert found.labels == ("O", "B-LOC", "B-PER")
        assert "one word a line, the word in column 0, the tag in column 1 of 2" in found.summary
        assert mark == "\t" or f"a {'comma' if mark == ',' else 'semicolon'} stands between columns" in found.summary


def test_parts_of_speech_between_commas(tmp_path):
    (tmp_path / "a.csv").write_text("word,pos\n나는,NP\n간다,VV\n\n잔다,VV\n", encoding="utf-8")
    found = read_examples(tmp_path / "a.csv", "tag")
    assert [row["words"] for row in found.rows] == [["나는", "간다"], ["잔다"]]
    assert found.labels == ("NP", "VV")


@pytest.mark.parametrize("gap", ["", "\n"])
@pytest.mark.parametrize(("text", "task", "rows"), [
    ('text,label\n"a, b",pos\n{}c,neg\n', "classify", 2),
    ('text,label\n"a\n\nb, c",B-x\n{}d e,O\n', "classify", 2),
    ("text,label\na b,1\n{}c d,0\n", "classify", 2),
    ("id,tokens,ner\n1,나는 서울에,O B-LC\n{}2,철수 잔다,B-PS O\n", "tag", 2),
])  # fmt: skip
def test_tables_stay_tables(text, task, rows, gap, tmp_path):
    (tmp_path / "a.csv").write_text(text.format(gap), encoding="utf-8")
    for given in (None, task):
        found = read_examples(tmp_path / "a.csv", given)
        assert (found.task, len(found)) == (task, rows)
        assert "one word a line" not in found.summary


def test_a_table_without_blank_lines_has_no_sentences(tmp_path):
    (tmp_path / "a.csv").write_text(WORD_TAG.replace("\n\n", "\n").replace("\n\n", "\n"), encoding="utf-8")
    with pytest.raises(Error):
        read_examples(tmp_path / "a.csv")


def test_other_files_stay_what_they_are(tmp_path):
    plain = ["가는 말이 고와야 오는 말이 곱다", "나는 학교에 간다", "좋다"]
    assert find_layout(plain, False) is None
    assert find_layout(["text\tlabel", "a b\tpos", "c d\tneg"], False) is None
    assert find_layout(["premise\thypothesis\tlabel", "a b\tc d\t0", "c d\te f\t1"], False) is None
    (tmp_path / "a.txt").write_text("\n".join(plain), encoding="utf-8")
    assert read_examples(tmp_path / "a.txt").task == "lm"
    with pytest.raises(Error, match="plain text: give a csv"):
        read_examples(tmp_path / "a.txt", "classify")


def test_pos_tags_in_two_columns(tmp_path):
    (tmp_path / "a.txt").write_text("나는\tNP\n간다\tVV\n\n잔다\tVV\n", encoding="utf-8")
    assert read_examples(tmp_path / "a.txt", "tag").labels == ("NP", "VV")


def test_a_table_of_strings(tmp_path):
    (tmp_path / "a.csv").write_text("id,tokens,ner\n1,나는 서울에,O B-LC\n2,철수,B-PS\n", encoding="utf-8")
    found = read_examples(tmp_path / "a.csv")
    assert found.rows == [{"words": ["나는", "서울에"], "tags": ["O", "B-LC"]}, {"words": ["철수"], "tags": ["B-PS"]}]


def test_broken_lines_are_named(tmp_path):
    (tmp_path / "a.tsv").write_text(KLUE + "가\tO\n나\n", encoding="utf-8")
    with pytest.raises(Error, match=r"a\.tsv, line 21: .*in 2 columns, and this one has 1"):
        read_examples(tmp_path / "a.tsv")
    assert "1 broken row skipped" in read_examples(tmp_path / "a.tsv", skip=True).summary
