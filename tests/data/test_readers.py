"""Documents out of files, tables and Python objects."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import os
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formers import Error
from formers.data import readers, text_files
from formers.data.preparation.corpus_filters import hold_out_documents
from formers.data.readers import find_files, load_bundled_corpus, read_documents, split_blocks
from formers.text.normalise import CleaningReport

NFD = unicodedata.normalize("NFD", "한국어")
ROWS = [{"id": i, "document": f'줄 {i}, "둘"\n끝', "label": "01"[i % 2]} for i in range(30)]
TEXTS = [row["document"] for row in ROWS]


def write_file(path: Path, content: bytes | str) -> Path:
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".xz":
        data = lzma.compress(data)
    elif path.suffix == ".zst":
        data = pytest.importorskip("zstandard").compress(data)
    path.write_bytes(data)
    return path


def read_with_report(source, **settings):
    changes = CleaningReport()
    return list(read_documents(source, changes=changes, **settings)), changes


class TestFind:
    def test_a_path_a_glob_a_folder_or_several(self, tmp_path):
        (tmp_path / "in" / ".git").mkdir(parents=True)
        for name in ("b.txt", "a.jsonl.gz", "in/c.csv", "in/.git/d.txt", "in/.e.txt", "notes.pdf"):
            write_file(tmp_path / name, "x\n")
        write_file(tmp_path / "empty.txt", "")
        a, b, c = tmp_path / "a.jsonl.gz", tmp_path / "b.txt", tmp_path / "in" / "c.csv"
        assert find_files(b) == find_files(str(b)) == [b]
        assert find_files(tmp_path) == [a, b, c]
        assert find_files(f"{tmp_path}/*.txt") == [b]
        assert find_files(f"{tmp_path}/**/*.csv") == [c]
        assert find_files([c, str(b), tmp_path]) == [a, b, c]

    def test_the_corpora_of_the_package_have_names(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for language in ("en", "ko"):
            for name in (f"formers/corpus-{language}", Path(f"formers/corpus-{language}")):
                assert next(read_documents(name)) == load_bundled_corpus(language)[0][0]
        with pytest.raises(Error, match="no such file. The texts that come with formers are formers/corpus-en and"):
            find_files("formers/corpus-fr")
        (tmp_path / "formers" / "corpus-en").mkdir(parents=True)
        own = write_file(tmp_path / "formers" / "corpus-en" / "a.txt", "x")
        assert find_files("formers/corpus-en") == [own.relative_to(tmp_path)], "a folder of that name comes first"

    def test_a_file_with_a_star_in_its_name(self, tmp_path):
        assert find_files(write_file(tmp_path / "a[1]*.txt", "x")) == [tmp_path / "a[1]*.txt"]

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("gone.txt", "there is no such file"),
            ("*.csv", "nothing to read by this name"),
            ("bare", "nothing to read in this folder"),
            ("empty.txt", "the file is empty"),
            ("paper.pdf", "files of the form '.pdf' are not known"),
            ("README", "files of the form 'README' are not known"),
            ("pipe.txt", "this is not a file"),
        ],
    )
    def test_what_cannot_be_read(self, tmp_path, name, message):
        (tmp_path / "bare").mkdir()
        os.mkfifo(tmp_path / "pipe.txt")
        write_file(tmp_path / "empty.txt", "")
        for other in ("paper.pdf", "README"):
            write_file(tmp_path / other, "x")
        for use in (find_files, read_documents):
            with pytest.raises(Error, match=message) as e:
                use(str(tmp_path / name))
            assert name in str(e.value)

    def test_no_paths(self):
        with pytest.raises(Error, match="no files to read"):
            find_files([])
        with pytest.raises(Error, match="a path is a string, got int"):
            find_files([3])

    def test_no_permission(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "access", lambda *_: False)
        with pytest.raises(Error, match="may not be read"):
            find_files(write_file(tmp_path / "a.txt", "x"))


class TestText:
    @pytest.mark.parametrize("packed", ["", ".gz", ".xz", ".zst", ".GZ"])
    def test_units(self, tmp_path, packed):
        path = write_file(tmp_path / f"a.txt{packed.lower()}", "a\nb\n\n \nc\n")
        path = path.rename(tmp_path / f"a.txt{packed}")
        assert read_with_report(path, unit="line")[0] == ["a", "b", "c"]
        assert read_with_report(path, unit="block")[0] == ["a\nb", "c"]
        assert read_with_report(path, unit="file")[0] == ["a\nb\n\n \nc"]
        with pytest.raises(Error, match="no unit 'page'. Choose auto, line, block, file"):
            read_documents(path, unit="page")

    def test_counts(self, tmp_path):
        text = f"\ufeff첫 줄\r\n{NFD} 둘\r\n\r\na\0b\ufffd\n\x01\n마지막"
        documents, changes = read_with_report(write_file(tmp_path / "a.txt", text.encode() + b"\xff\xc3"), unit="line")
        assert documents == ["첫 줄", "한국어 둘", "ab", "마지막"]
        assert changes == CleaningReport(4, 6, 1, 2, 1, 1, 1, 1, carriage=3, empty=2)

    @pytest.mark.parametrize(
        ("text", "unit"),
        [
            ("a\nb\nc", "line"),
            ("a\n\nb", "block"),
            ("a\nb\n \t \nc\n", "block"),
            ("\n\na\nb\n\n", "line"),  # nothing stands between
            ("a\n" * 2000 + "\nb\n", "line"),  # one blank line among thousands
            (("a\n" * 300 + "\n") * 5, "block"),
        ],
    )
    def test_auto(self, tmp_path, text, unit):
        documents, changes = read_with_report(write_file(tmp_path / "a.txt", text))
        assert documents == read_with_report(tmp_path / "a.txt", unit=unit)[0]
        assert changes.notes == [f"a {unit} is a document"]

    def test_each_file_begins_anew(self, tmp_path):
        write_file(tmp_path / "a.txt", "\ufeffa\nb")
        write_file(tmp_path / "b.txt.gz", "\ufeffc\r")
        documents, changes = read_with_report(tmp_path)
        assert documents == ["a", "b", "c"]
        assert (changes.marks, changes.lines, changes.carriage) == (2, 3, 1)

    @pytest.mark.parametrize("chunk", [1, 2, 3, 7])
    def test_no_seam_between_chunks(self, tmp_path, monkeypatch, chunk):
        text = f"가나\r\n{NFD}😀\r\r\n\ufeff둘\n"
        path = write_file(tmp_path / "a.txt", text)
        expected = read_with_report(path, unit="line")
        monkeypatch.setattr(text_files, "READ_BYTES", chunk)
        assert read_with_report(path, unit="line") == expected
        assert expected[0] == ["가나", "한국어😀", "둘"]

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
    @given(st.text(st.characters(codec="utf-8") | st.sampled_from("\n\r\0 \ufeff가"), max_size=60), st.integers(1, 9))
    def test_equal_to_reading_all_at_once(self, tmp_path, monkeypatch, text, chunk):
        path = write_file(tmp_path / "a.txt", text or "x")
        monkeypatch.setattr(text_files, "READ_BYTES", chunk)
        plain = path.read_bytes().decode("utf-8", "ignore").replace("\r\n", "\n").replace("\r", "\n")
        spaces = dict.fromkeys([0xB, 0xC, 0x1C, 0x1D, 0x1E, 0x1F, 0x85, 0x2028, 0x2029], " ")
        odd = [0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF, *range(0xFDD0, 0xFDF0)]
        control = [c for c in range(0xA0) if unicodedata.category(chr(c)) == "Cc" and c not in (9, 10)]
        gone = dict.fromkeys([*odd, *control])
        lines = [unicodedata.normalize("NFC", line.translate(gone | spaces)) for line in plain.split("\n")]
        if len(path.read_bytes()) >= 8 and b"\0" in path.read_bytes():
            return  # may look like UTF-16
        assert read_with_report(path, unit="line")[0] == [line for line in lines if line.strip()]

    def test_other_encodings(self, tmp_path):
        text = "한국어 글은 오래된 파일에 이렇게 있다.\n" * 40
        path = write_file(tmp_path / "a.txt", text.encode("cp949"))
        with pytest.raises(
            Error, match="it seems to be cp949. Turn it into UTF-8, or say --encoding cp949, or encoding='cp949'"
        ):
            read_with_report(path)
        assert read_with_report(path, encoding="cp949")[0] == text.splitlines()
        for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
            write_file(path, "plain English in another form\n".encode(encoding))
            with pytest.raises(Error, match="this is not UTF-8: it seems to be utf-"):
                read_with_report(path)
            assert read_with_report(path, encoding=encoding)[0] == ["plain English in another form"]
        with pytest.raises(Error, match="no encoding 'klingon'"):
            read_with_report(path, encoding="klingon")
        write_file(path, os.urandom(4000))
        with pytest.raises(Error, match=r"not UTF-8|not what its name says"):
            read_with_report(path)

    def test_named_wrongly(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_bytes(gzip.compress(b"text"))
        with pytest.raises(Error, match=r"this is gzip-compressed \(.gz\), not what its name says"):
            read_with_report(path)
        packed = write_file(tmp_path / "a.txt.xz", gzip.compress(b"text"))
        with pytest.raises(Error, match="gzip"):
            read_with_report(packed)


class TestLongest:
    @pytest.mark.parametrize("unit", ["line", "block", "file"])
    def test_long_lines_are_cut_at_sentences_or_spaces(self, tmp_path, unit):
        sentence = "이것은 한 문장이다. "
        path = write_file(tmp_path / "a.txt", sentence * 1000)
        documents, changes = read_with_report(path, unit=unit, max_characters=500)
        assert max(map(len, documents)) <= 500
        assert all(d.endswith(". ") for d in documents)
        assert "".join(documents) == sentence * 1000
        assert changes.cut == len(documents) - 1
        write_file(path, "낱말 " * 1000)
        assert all(d.endswith("낱말 ") for d in read_with_report(path, unit=unit, max_characters=500)[0])
        write_file(path, "가" * 1234)
        assert list(map(len, read_with_report(path, unit=unit, max_characters=500)[0])) == [500, 500, 234]

    def test_blocks_are_cut_between_lines(self, tmp_path):
        documents, changes = read_with_report(
            write_file(tmp_path / "a.txt", "한 줄이다\n" * 10 + "\n끝"), unit="block", max_characters=17
        )
        assert documents == ["한 줄이다\n한 줄이다\n한 줄이다"] * 3 + ["한 줄이다", "끝"]
        assert changes.cut == 3

    @given(st.text(st.sampled_from([*NFD, *"가a. \u0301\u0308\n"]), max_size=80), st.integers(1, 12))
    def test_no_character_is_cut_apart(self, text, longest):
        if longest >= 8:  # marks that join may be as many as the length
            found = list(text_files.slice_text(text, longest))
            assert "".join(found) == text
            assert all(len(part) <= longest for part in found)

    def test_syllables_stay_whole(self, tmp_path):
        path = write_file(tmp_path / "a.txt", NFD * 500)
        for longest in (50, 51, 52, 53):
            assert "".join(read_with_report(path, unit="line", max_characters=longest)[0]) == "한국어" * 500

    def test_tables_too(self):
        documents, changes = read_with_report(["한 문장이다. " * 100], max_characters=100)
        assert "".join(documents) == "한 문장이다. " * 100
        assert changes.cut == len(documents) - 1 == 8
        with pytest.raises(Error, match="at least one character"):
            read_documents(["a"], max_characters=0)


class TestTables:
    def table(self, folder: Path, form: str) -> Path:
        path = folder / f"a.{form}"
        kind = form.split(".")[0]
        if kind in ("csv", "tsv"):
            plain = folder / f"plain.{kind}"
            rows = ROWS if kind == "csv" else [r | {"document": r["document"].replace("\n", " ")} for r in ROWS]
            with plain.open("w", newline="") as file:
                writer = csv.DictWriter(file, ROWS[0], dialect="excel-tab" if kind == "tsv" else "excel")
                writer.writeheader()
                writer.writerows(rows)
            return write_file(path, plain.read_bytes())
        if kind == "parquet":
            pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            plain = folder / "plain.pq"
            parquet.write_table(pyarrow.Table.from_pylist(ROWS), plain, row_group_size=7)
            return write_file(path, plain.read_bytes())
        return write_file(path, "".join(json.dumps(row) + "\n" for row in ROWS))

    @pytest.mark.parametrize("packed", ["", ".gz", ".xz", ".zst"])
    @pytest.mark.parametrize("form", ["jsonl", "ndjson", "json", "csv", "tsv", "parquet"])
    def test_forms(self, tmp_path, form, packed):
        path = self.table(tmp_path, form + packed)
        expected = [t.replace("\n", " ") for t in TEXTS] if form == "tsv" else TEXTS
        documents, changes = read_with_report(path)
        assert documents == expected
        assert changes.notes == ["the column 'document' is the text"]
        assert changes.documents == len(ROWS)
        assert read_with_report(path, column="label")[0] == [row["label"] for row in ROWS]
        with pytest.raises(Error, match="no column 'x'; there are 'id', 'document', 'label'"):
            read_with_report(path, column="x")

    def test_the_only_column_with_words(self, tmp_path):
        write_file(tmp_path / "a.csv", "n,what,when\n1,가나다,2020-01-01\n2,라마바,2021-02-03\n")
        assert read_with_report(tmp_path / "a.csv")[0] == ["가나다", "라마바"]
        write_file(tmp_path / "b.csv", "question,answer\n왜,그냥\n")
        with pytest.raises(Error, match="which column is the text\\? There are 'question', 'answer'"):
            read_with_report(tmp_path / "b.csv")
        assert read_with_report([{"n": 1, "what": "글"}])[0] == ["글"]

    @pytest.mark.parametrize(
        ("name", "text", "line", "left"),
        [
            ("a.jsonl", '{"text": "a"}\n{"text": \n{"text": "b"}\n', 2, ["a", "b"]),
            ("a.jsonl", '{"text": "a"}\n\n[1]\n{"other": 1}\n{"text": 5}\n', 3, ["a"]),
            ("a.jsonl", '{"text": "a"}\n' + "[" * 100_000 + "\n", 2, ["a"]),
            ("a.csv", "id,text\n1,a\n2\n3,b\n", 3, ["a", "b"]),
            ("a.csv", 'id,text\n1,"a\nb"\n2,c,d\n3,e\n', 4, ["a\nb", "e"]),
            ("a.tsv", "id\ttext\n1\ta\n2\tb\tc\n", 3, ["a"]),
        ],
    )
    def test_broken_rows(self, tmp_path, name, text, line, left):
        path = write_file(tmp_path / name, text)
        with pytest.raises(Error, match=f"{name}, line {line}: ") as e:
            read_with_report(path)
        assert "--skip, or skip=True" in str(e.value)
        documents, changes = read_with_report(path, skip=True)
        assert documents == left
        assert changes.skipped >= 1

    def test_line_numbers_are_the_file_s_own(self, tmp_path):
        write_file(tmp_path / "a.jsonl", '{"text": "a"}\n' * 5)
        write_file(tmp_path / "b.jsonl", '{"text": "a"}\nx\n')
        with pytest.raises(Error, match=r"b.jsonl, line 2: "):
            read_with_report(tmp_path)

    def test_json_over_many_lines(self, tmp_path):
        path = write_file(tmp_path / "a.json", json.dumps(ROWS, indent=1))
        with pytest.raises(Error, match="one JSON value over many lines, not JSON lines"):
            read_with_report(path)

    def test_strings_and_escapes_in_json(self, tmp_path):
        text = '"just a string"\n"\\ud800half \\u0000nul \\ud83d\\ude00 \\u2028 \\r\\nline"\nnull\n'
        documents, changes = read_with_report(write_file(tmp_path / "a.jsonl", text), skip=True)
        assert documents == ["just a string", "half nul 😀   \nline"]
        assert (changes.undecodable, changes.nul, changes.control, changes.carriage) == (1, 1, 1, 1)

    def test_quotes_in_tsv(self, tmp_path):
        rows = ['"a ""b"" c"\t1', '"a" and "b"\t1', '"\t1', 'a "b"\t1', '"a\tb"\t1', '5" disk\t1', '""\t1']
        documents, _ = read_with_report(write_file(tmp_path / "a.tsv", "text\tn\n" + "\n".join(rows)))
        assert documents == ['a "b" c', '"a" and "b"', '"', 'a "b"', "a\tb", '5" disk']

    def test_a_row_too_long(self, tmp_path, monkeypatch):
        monkeypatch.setattr(readers, "MAX_RECORD_CHARACTERS", 1000)
        monkeypatch.setattr(text_files, "READ_BYTES", 300)
        rows = [json.dumps({"text": "가" * n}, ensure_ascii=False) for n in (5, 5000, 7)]
        path = write_file(tmp_path / "a.jsonl", "\n".join(rows))
        with pytest.raises(Error, match="line 2: a row has more than 1,000 characters"):
            read_with_report(path)
        documents, changes = read_with_report(path, skip=True)
        assert documents == ["가" * 5, "가" * 7]
        assert changes.skipped == 1

    def test_huge_and_open_csv_fields(self, tmp_path):
        long = "긴 글. " * 60_000
        documents, _ = read_with_report(write_file(tmp_path / "a.csv", f'text,n\n"{long}",1\nb,2\n'))
        assert documents == [long, "b"]
        write_file(tmp_path / "a.csv", 'text,n\n"never closed,1\n' + "b,2\n" * 10)
        with pytest.raises(Error, match="line 2: a row has 1 fields, the first one 2"):
            read_with_report(tmp_path / "a.csv")

    def test_damaged(self, tmp_path):
        for form in ("jsonl.gz", "txt.xz", "csv.zst", "parquet", "parquet.gz"):
            path = self.table(tmp_path, form) if "txt" not in form else write_file(tmp_path / "a.txt.xz", "줄\n" * 9000)
            whole = path.read_bytes()
            for cut in (len(whole) // 2, len(whole) - 1, 5):
                path.write_bytes(whole[:cut])
                with pytest.raises(Error, match="damaged") as e:
                    read_with_report(path, unit="line")
                assert path.name in str(e.value)
            path.write_bytes(b"no such thing" * 10)
            with pytest.raises(Error, match="damaged"):
                read_with_report(path, unit="line")

    def test_frames_one_after_the_other(self, tmp_path):
        zstandard = pytest.importorskip("zstandard")
        for name, pack in (("a.txt.gz", gzip.compress), ("a.txt.xz", lzma.compress), ("a.txt.zst", zstandard.compress)):
            (tmp_path / name).write_bytes(pack(b"a\nb") + pack(b"c\nd\n"))
            assert read_with_report(tmp_path / name, unit="line")[0] == ["a", "bc", "d"]

    @pytest.mark.parametrize(("name", "module"), [("a.parquet", "pyarrow"), ("a.txt.zst", "zstandard")])
    def test_without_the_packages(self, tmp_path, monkeypatch, name, module):
        (tmp_path / name).write_bytes(b"x")
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(Error, match=rf'needs the package {module}. pip install "formers\[data\]"'):
            read_with_report(tmp_path / name)


class TestPython:
    def test_strings(self):
        assert read_with_report(["a", "", f"{NFD}\r\nb\0", None])[0] == ["a", "한국어\nb"]
        assert read_with_report(text for text in ("a", "b"))[0] == ["a", "b"]
        assert read_with_report([])[0] == []
        with pytest.raises(Error, match="the documents, line 2: the text must be a string, not int"):
            read_with_report(["a", 5])

    def test_paths_and_strings_are_not_mixed_up(self, tmp_path):
        path = write_file(tmp_path / "a.txt", "inside\n")
        assert read_with_report([path])[0] == ["inside"]
        with pytest.raises(Error, match="these strings look like file names. Hand in Path objects"):
            read_with_report([str(path)])
        assert read_with_report([str(path), "and a text"])[0] == [str(path), "and a text"]

    @pytest.mark.parametrize("source", [5, b"bytes", None])
    def test_what_is_no_source(self, source):
        with pytest.raises(Error, match="documents cannot be read from"):
            read_with_report(source)

    def test_data_frames(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame([*ROWS, {"id": 1, "document": None}])
        documents, changes = read_with_report(frame)
        assert documents == TEXTS
        assert changes.empty == 1
        assert read_with_report(frame["document"])[0] == TEXTS
        assert read_with_report(frame, column="label")[0][:2] == ["0", "1"]
        with pytest.raises(Error, match="no column 'x'"):
            read_with_report(frame, column="x")

    def test_datasets(self):
        datasets = pytest.importorskip("datasets")
        made = datasets.Dataset.from_list(ROWS)
        assert read_with_report(made)[0] == TEXTS
        assert read_with_report(made.to_iterable_dataset())[0] == TEXTS
        assert read_with_report(made, column="label")[0][:2] == ["0", "1"]
        several = datasets.DatasetDict({"train": made, "test": made})
        with pytest.raises(Error, match="several parts: 'train', 'test'"):
            read_with_report(several)
        unknown = datasets.IterableDataset.from_generator(lambda: iter(ROWS))
        assert read_with_report(unknown)[0] == TEXTS


def test_real_files(data):
    reviews, changes = read_with_report(data / "lm" / "movie_reviews_ko.txt.xz")
    assert len(reviews) == changes.lines == 300_000
    assert changes.composed == 17
    assert all(unicodedata.is_normalized("NFC", text) for text in reviews)
    with lzma.open(data / "classify" / "nsmc.test.tsv.xz", "rt", newline="") as file:
        expected = [row["text"] for row in csv.DictReader(file, dialect="excel-tab")]
    expected = [unicodedata.normalize("NFC", text) for text in expected if text.strip()]
    assert read_with_report(data / "classify" / "nsmc.test.tsv.xz")[0] == expected


def test_pairs_of_columns(tmp_path):
    """Several columns by commas: the sides of a pair, with one tab between them, from every kind of table."""
    want = ["ein Hund\ta dog", "zwei Katzen\ttwo cats"]
    rows = [{"de": "ein\tHund ", "en": "a dog"}, {"de": "zwei\nKatzen", "en": " two  cats"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "a.tsv").write_text("id\ten\tde\n1\ta dog\tein Hund\n2\ttwo cats\tzwei Katzen\n", encoding="utf-8")
    assert list(read_documents(tmp_path / "a.jsonl", column="de,en")) == want
    assert list(read_documents(tmp_path / "a.tsv", column="de,en")) == want
    assert list(read_documents(rows, column="de,en")) == want
    pandas = pytest.importorskip("pandas")
    assert list(read_documents(pandas.DataFrame(rows), column="de,en")) == want
    pandas.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    assert list(read_documents(tmp_path / "a.parquet", column="de,en")) == want
    assert list(read_documents([{"de,en": "one"}], column="de,en")) == ["one"], "a column of that very name"
    with pytest.raises(Error, match="no column 'de,fr'"):
        list(read_documents(rows, column="de,fr"))
    with pytest.raises(Error, match="no text in 'en'"):
        list(read_documents([*rows, {"de": "drei", "en": 3}], column="de,en"))


OTHER = {  # text in another encoding, and what it is called
    "latin-1": ("Die Straße ist schön, und im März blühen Bäume.\n", "latin-1"),
    "cp1252": ("Où est l’hôtel ? Le garçon a mangé une crêpe.\n", "cp1252"),
    "cp949": ("이 영화는 정말 재미있었습니다. 또 보고 싶네요!\n", "cp949"),
    "utf-16-le": ("이 영화는 정말 재미있었습니다. 또 보고 싶네요!\n", "utf-16-le"),
    "utf-16-be": ("안녕하세요 여러분\n", "utf-16-be"),
    "shift_jis": ("これは日本語の文章です。東京へ行きました。\n", "shift_jis"),
    "gb18030": ("我们今天去学校学习中文，老师说这很好。\n", "gb18030"),
}


@pytest.mark.parametrize("before", ["", "plain words come first\n" * 30])
@pytest.mark.parametrize("form", ["txt", "csv", "jsonl"])
@pytest.mark.parametrize("encoding", OTHER)
def test_another_encoding_is_named(encoding, form, before, tmp_path):
    """One accented letter in a thousand is refused, and not left out: 'schön' must not become 'schn'."""
    line, name = OTHER[encoding]
    if form == "jsonl":
        line, before = (json.dumps({"text": t.strip()}, ensure_ascii=False) + "\n" if t else "" for t in (line, before))
    whole = before + ("text\n" if form == "csv" else "") + line.replace(",", "") if form == "csv" else before + line
    path = write_file(tmp_path / f"a.{form}", whole.encode(encoding))
    with pytest.raises(Error, match=f"not UTF-8: it seems to be {name}. .*say --encoding {name}") as error:
        read_with_report(path)
    assert "a." + form in str(error.value)
    documents, changes = read_with_report(path, encoding=name, unit="line")
    assert documents[-1] == (
        json.loads(line)["text"] if form == "jsonl" else line.replace(",", "")[:-1] if form == "csv" else line[:-1]
    )
    assert changes.undecodable == 0


def test_damage_is_counted_and_not_refused(tmp_path, monkeypatch):
    path = write_file(tmp_path / "a.txt", ("한국어 글이다.\n" * 50).encode() + b"broken \xff\n" + b"plain\n" * 300)
    documents, changes = read_with_report(path, unit="line")
    assert (len(documents), changes.undecodable) == (351, 1)
    with monkeypatch.context() as small:  # the first part of a file is no measure
        small.setattr(text_files, "READ_BYTES", 500)
        assert (
            read_with_report(write_file(tmp_path / "a.txt", b"one \xff\n" + b"plain words\n" * 5000), unit="line")[
                1
            ].undecodable
            == 1
        )
    late = b"plain English words\n" * 20_000 + "schön groß über Straße\n".encode("latin-1") * 600
    with pytest.raises(Error, match="it seems to be latin-1"):  # beyond the first chunk
        read_with_report(write_file(tmp_path / "b.txt", late), unit="line")


@pytest.mark.parametrize(("text", "how", "want"), [
    ("text;n\n좋다;1\n나쁘다;2\n", {}, ["좋다", "나쁘다"]),
    ("text|n\n좋다|1\n", {}, ["좋다"]),
    ("a,b;text\n1;좋다, 참\n", {"delimiter": ";"}, ["좋다, 참"]),
    ("a,b;text\n1;좋다, 참\n", {"delimiter": "semicolon", "column": "1"}, ["좋다, 참"]),
    ("좋다,1\n나쁘다,2\n", {"header": False}, ["좋다", "나쁘다"]),
    ("좋다,정말\n나쁘다,너무\n", {"header": False, "column": "1"}, ["정말", "너무"]),
    ("좋다,정말\n", {"header": False, "column": "0,1"}, ["좋다\t정말"]),
])  # fmt: skip
def test_delimiters_and_headers(text, how, want, tmp_path):
    assert read_with_report(write_file(tmp_path / "a.csv", text), **how)[0] == want
    if "delimiter" in how:
        assert read_with_report(write_file(tmp_path / "a.txt", text), **how)[0] == want, "a text file too"


@pytest.mark.parametrize("column", [None, "text"])
@pytest.mark.parametrize(("text", "is_data"), [
    ("good film,pos\nbad one,neg\nnice,pos\n", True),  # a name that is a value as well
    ("3,a b,x\n4,c d,y\n", True),
    ("One day.,x\nc d,y\n", True),
    (f"{'a b ' * 20},x\nc d,y\n", True),
    ("review text,kind\na b,x\nc d,y\n", False),
    (",kind\na b,x\nc d,y\n", False),
])  # fmt: skip
def test_a_first_row_of_data_suggests_no_header(text, is_data, column, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Error, match=r"There are|there are") as error:
        list(read_documents(path, column=column))
    assert ("add --no-header" in str(error.value)) == is_data
    with pytest.raises(Error) as error:
        list(read_documents(path, column="text", header=True))
    assert "--no-header" not in str(error.value), "somebody said that there is a header"


def test_a_column_of_a_text_file(tmp_path):
    write_file(tmp_path / "a.txt", "id\tsaid\n1\t좋다\n2\t나쁘다\n")
    assert read_with_report(tmp_path / "a.txt", column="said")[0] == ["좋다", "나쁘다"]
    write_file(tmp_path / "b.txt", "가는 말이\n곱다\n")
    with pytest.raises(Error, match=r"plain text and has no column 'said'. .*--delimiter"):
        read_with_report(tmp_path / "b.txt", column="said")
    write_file(tmp_path / "c.jsonl", '{"said": "셋"}\n')
    assert read_with_report([tmp_path / "b.txt", tmp_path / "c.jsonl"], column="said")[0] == ["가는 말이", "곱다", "셋"]
    for wrong in ("ab", "", '"'):
        with pytest.raises(Error, match="cannot stand between columns"):
            read_with_report(tmp_path / "a.txt", delimiter=wrong)


def test_what_is_too_large_is_refused(tmp_path, monkeypatch):
    """A small file that unpacks to a huge one, a table that does not fit into memory: with small limits here."""
    from formers.tasks import example_tables

    monkeypatch.setattr(text_files, "MAX_EXPANSION", (10_000, 100))
    path = write_file(tmp_path / "a.txt.xz", "a\n" * 100_000)
    with pytest.raises(Error, match=r"unpacks to more than .* over 100 times its size"):
        read_with_report(path, unit="line")
    assert len(read_with_report(write_file(tmp_path / "b.txt", "a\n" * 100_000), unit="line")[0]) == 100_000
    monkeypatch.setattr(readers, "MAX_FILE_BYTES", 1000)
    with pytest.raises(Error, match="more than 1,000 bytes, unpacked"):
        readers.read_lines(tmp_path / "b.txt")
    monkeypatch.setattr(example_tables, "MAX_TABLE_BYTES", 1000)
    for name, text in (("c.csv", "text,label\n" + "a,1\n" * 500), ("c.json", "[" + "1," * 600 + "1]")):
        with pytest.raises(Error, match="more than 1,000 bytes, unpacked"):
            example_tables.read_table(write_file(tmp_path / name, text))
    monkeypatch.setattr(example_tables, "MAX_TABLE_BYTES", 1 << 20)
    monkeypatch.setattr(example_tables, "MAX_TABLE_ROWS", 100)
    with pytest.raises(Error, match="more than 100 rows"):
        example_tables.read_table(tmp_path / "c.csv")


def test_a_column_is_found_in_any_form_of_unicode(tmp_path):
    """A header typed on one system and a name typed on another differ in their Hangul alone."""
    file = tmp_path / "a.csv"
    file.write_text(unicodedata.normalize("NFD", "문서,번호\n좋은 영화,1\n"), encoding="utf-8")
    assert list(read_documents(file, column="문서")) == ["좋은 영화"]


@pytest.mark.parametrize("language", ["en", "ko"])
def test_bundled(language):
    texts, changes = load_bundled_corpus(language)
    assert len(texts) >= 20
    assert changes.undecodable == 0
    assert "�" not in "".join(texts)
    known, held = hold_out_documents(texts)
    assert len(held) == len(texts) // 20
    assert not set(known) & set(held)
    assert len(known) + len(held) == len(texts)


def test_no_such_language():
    with pytest.raises(Error, match="no bundled corpus for 'xx'. Choose en or ko"):
        load_bundled_corpus("xx")


def test_documents_are_blocks():
    blocks, changes = split_blocks("\n\na\nb\r\n\n \nc\n")
    assert blocks == ["a\nb", "c"]
    assert changes.lines == 7
    with pytest.raises(Error, match="3 documents are too few"):
        hold_out_documents(["a", "b", "c"])
