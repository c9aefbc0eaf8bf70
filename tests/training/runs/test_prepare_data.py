"""Text and examples are read at most twice, a look and the work; an iterator is read once and loses nothing."""

from __future__ import annotations

import itertools
import json
import lzma
import subprocess
import sys
from collections import Counter

import pytest

import formers
from formers.registry import train_tokenizer
from formers.training.config_merge import PretrainDataConfig
from formers.training.runs import prepare_data
from formers.training.runs.cross_validation import compare_settings
from formers.training.runs.prepare_data import Lookahead, RunText
from tests.training.toy_runs import REVIEWS, TEXT, pretrain_toy, read_data_record

ONE_STEP = {"steps": 1}


class Source:
    """Texts or rows that count how often they are read."""

    def __init__(self, items, sized):
        self.items, self.opened = items, 0
        if sized:
            self.__class__ = SizedSource

    def __iter__(self):
        self.opened += 1
        return iter(self.items)


class SizedSource(Source):
    def __len__(self):
        return len(self.items)


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "bert"])  # one learns its tokenizer from letters as well
def test_text_is_read_at_most_twice(tmp_path, family, sized):
    text = Source(TEXT, sized)
    made = pretrain_toy(family, text, out=tmp_path / "run", train=ONE_STEP)
    assert text.opened == 2, "a look, then the work"
    assert read_data_record(made) == read_data_record(pretrain_toy(family, TEXT, out=tmp_path / "list", train=ONE_STEP))
    text, valid = Source(TEXT[9:], sized), Source(TEXT[:9], sized)
    pretrain_toy(family, text, valid=valid, tokenizer=made.former.tokenizer, out=tmp_path / "again", train=ONE_STEP)
    assert (text.opened, valid.opened) == (2, 2)


OPENS = """
import json, sys
from pathlib import Path

source, opened = sys.argv[1], []

def hook(event, args):
    if event == "open" and str(args[0]) == source:
        frame = sys._getframe(1)
        while "formers" not in Path(frame.f_code.co_filename).parts:
            frame = frame.f_back
        opened.append(frame.f_code.co_qualname)

sys.addaudithook(hook)
from tests.training.toy_runs import pretrain_toy

how = json.loads(sys.argv[3])
pretrain_toy(how.pop("family"), Path(source), out=sys.argv[2], train={"steps": 1}, **how)
print(json.dumps(opened))
"""


@pytest.mark.parametrize(("name", "how"), [
    ("a.txt", {"family": "gpt2"}), ("a.txt.xz", {"family": "bert"}),
    ("a.txt", {"family": "ernie", "data": {"units": "learn"}}),
])  # fmt: skip
def test_files_are_opened_for_a_look_and_the_work(tmp_path, name, how):
    """All opens of the file that the interpreter sees, by the function that opens it; a hook cannot be removed, so this
    is done in a process of its own. A stamp reads the two ends of a file, whatever its size."""
    data = "\n".join(TEXT).encode()
    (tmp_path / name).write_bytes(lzma.compress(data) if name.endswith("xz") else data)
    command = [sys.executable, "-c", OPENS, str(tmp_path / name), str(tmp_path / "run"), json.dumps(how)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    opened = Counter(json.loads(done.stdout.splitlines()[-1]))
    assert opened.pop("stamp_file") <= 2
    assert opened == {"read_chunks": 1, "HashingReader.__init__": 1}, "a look, then the work, and no other"


@pytest.mark.parametrize("source", ["file", "memory"])
@pytest.mark.parametrize("known", [False, True])
def test_phrases_are_learned_in_the_look(tmp_path, source, known):
    """They are those that `formers prepare` learns in a pass of its own."""
    texts = [text if i % 6 else f"{text} New York lies there" for i, text in enumerate(TEXT * 2)]
    counted = Source(texts, sized=True)
    (tmp_path / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    text = counted if source == "memory" else tmp_path / "a.txt"
    how = {"tokenizer": train_tokenizer("wordpiece", texts, 300)} if known else {}
    made = pretrain_toy(
        "ernie", text, out=tmp_path / "run", train=ONE_STEP, data={"units": "learn", "unit": "line"}, **how
    )
    assert counted.opened == 2 * (source == "memory")
    alone = formers.prepare(texts, made.former.tokenizer, tmp_path / "alone", units="learn", validation=0.2)
    assert read_data_record(made)["store"] == alone.content_hash
    found, expected = (tmp_path / name / "phrases.txt" for name in ("run/data/store", "alone"))
    assert "new york\n" in found.read_text()
    assert found.read_text() == expected.read_text()


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_text_is_read_twice_over_a_failed_try_with_other_text(tmp_path, family):
    with pytest.raises(formers.Error, match="needs text of other documents"):
        pretrain_toy("bert", TEXT[:1], out=tmp_path / "run", valid=TEXT[:1])
    assert (tmp_path / "run/data/tokenizer").is_dir()
    text = Source(TEXT, sized=True)
    made = pretrain_toy(family, text, out=tmp_path / "run", train=ONE_STEP)
    assert text.opened == 2, "the fingerprint keeps the look"
    assert read_data_record(made) == read_data_record(pretrain_toy(family, TEXT, out=tmp_path / "list", train=ONE_STEP))


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_generator_is_not_consumed_by_a_look(tmp_path, family):
    """Neither by the check of its first documents, nor by the tokenizer that is trained on it."""
    made = pretrain_toy(family, (text for text in TEXT), out=tmp_path / "stream", train=ONE_STEP)
    assert read_data_record(made) == read_data_record(pretrain_toy(family, TEXT, out=tmp_path / "list", train=ONE_STEP))
    rows = ({"text": text, "other": "x"} for text in TEXT)
    table = pretrain_toy(
        family, rows, out=tmp_path / "rows", train=ONE_STEP, data={"column": "text", "vocab_size": 300}
    )
    assert read_data_record(table)["documents"] == read_data_record(made)["documents"]


def test_a_generator_of_word_vectors_is_not_consumed_by_a_look(tmp_path):
    how = {"model": {"dim": 8, "min_count": 1}, "train": {"epochs": 1, "threads": 1}}
    one, two = (formers.pretrain("fasttext", text, out=tmp_path / name, **how).folder
                for name, text in (("stream", iter(TEXT)), ("list", TEXT)))  # fmt: skip
    assert told_of(one) == told_of(two)


def told_of(folder):
    return prepare_data.RunFolder(folder).read_info()["data"]


def test_a_generator_of_rows_is_a_table(tmp_path):
    many, once = Source(REVIEWS, sized=False), (row for row in REVIEWS)
    made = [formers.finetune("textcnn", rows, out=tmp_path / name, epochs=1, baseline=False).folder
            for name, rows in (("many", many), ("once", once))]  # fmt: skip
    assert many.opened == 1, "a table is read whole, by the work"
    assert told_of(made[0]) == told_of(made[1])
    seen = compare_settings("textcnn", iter(REVIEWS), out=tmp_path / "seeds", seeds=2, overrides={"tune.epochs": 1})
    assert len(seen.trials[0].runs) == 2


def test_a_generator_of_plain_text_continues_with_pretraining(tmp_path):
    start = pretrain_toy("gpt2", TEXT, out=tmp_path / "start", train=ONE_STEP).folder / "model"
    text, valid = Source(TEXT[9:], sized=False), Source(TEXT[:9], sized=False)
    how = {"task": "lm", "epochs": 0.1, "batch_size": 2}
    made = [formers.finetune(start, train, aside, out=tmp_path / name, **how) for name, train, aside in (
        ("many", text, valid), ("once", iter(TEXT[9:]), iter(TEXT[:9])))]  # fmt: skip
    assert (text.opened, valid.opened) == (2, 2), "a look with the comparison of both, then the work"
    assert read_data_record(made[0]) == read_data_record(made[1])


def test_a_look_keeps_what_it_takes():
    numbers = Lookahead(iter(range(5)))
    assert list(itertools.islice(numbers.look(), 2)) == [0, 1]
    assert list(itertools.islice(numbers.look(), 3)) == [0, 1, 2]
    assert list(numbers) == [0, 1, 2, 3, 4]


def test_a_fingerprint_takes_the_rest_of_the_look():
    source = Source(["a b", "c d", "e f"], sized=True)
    text = RunText(source, PretrainDataConfig())
    assert text.check() == []
    mark = text.fingerprint
    assert source.opened == 1
    assert list(text.look()) == ["a b", "c d", "e f"], "begun anew"
    assert mark == RunText(["a b", "c d", "e f"], PretrainDataConfig()).fingerprint
    assert mark != RunText(["a b", "c d"], PretrainDataConfig()).fingerprint


def test_one_look_serves_all_that_asks_for_it():
    """The fingerprint takes the whole look: afterwards documents are read anew, unless their beginning was kept."""
    text = SizedSource(TEXT, True)
    look = RunText(text, PretrainDataConfig(units="learn"))
    assert look.state == "unread"
    assert list(look.look()) == TEXT
    assert look.fingerprint == RunText(list(TEXT), PretrainDataConfig()).fingerprint
    assert (look.state, text.opened) == ("finished", 1)
    look.learn_phrases()
    assert text.opened == 1, "phrases are counted in the look"
    assert list(look.look()) == TEXT
    assert (look.state, text.opened) == ("open", 2)
    text = SizedSource(TEXT, True)
    look = RunText(text, PretrainDataConfig())
    look.keep_beginning(sum(map(len, TEXT[:3])))
    assert look.fingerprint is not None
    assert list(look.look()) == TEXT[:3]
    assert (look.state, text.opened) == ("kept", 1)
