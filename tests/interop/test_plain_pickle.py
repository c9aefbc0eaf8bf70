"""Transformer-XL's vocab.pkl: its words, as transformers 4.35.2 cuts and numbers them, and nothing that it may call."""

from __future__ import annotations

import collections
import json
import pickle
import re
import shutil
from pathlib import Path

import pytest

import formers
from formers import Error
from formers.interop.tokenizer_files import read_tokenizer

GOLDEN = Path(__file__).parents[1] / "parity" / "golden" / "TransfoXL-LMHeadModel-plain"
WORDS = """<eos> <unk> <formula> the 23 @,@ 000 people are 1 @.@ 80 m tall long @-@ term . , 's Mr. U.S. It " ( ) ...
    Hello don 't Smith ? Cal""".split()  # noqa: SIM905


class Moses:
    """In the place of the objects that transformers pickles beside the words."""

    def __init__(self):
        self.language = "en"


def build_table(words=WORDS):
    """The attributes of transformers' tokenizer, as its save_vocabulary writes them."""
    return {
        "counter": collections.Counter(words), "special": ["<eos>"], "min_freq": 0, "max_size": None,
        "lower_case": False, "delimiter": None, "vocab_file": None, "never_split": ["<eos>"],
        "punction_without_space_before_pattern": re.compile("[^ ][.]"), "moses_tokenizer": Moses(),
        "idx2sym": list(words), "sym2idx": collections.OrderedDict((w, i) for i, w in enumerate(words)),
        "eos_idx": 0, "unk_idx": 1,
    }  # fmt: skip


def write_words(where, table, protocol=4):
    where.mkdir(exist_ok=True)
    (where / "vocab.pkl").write_bytes(pickle.dumps(table, protocol))
    return where


@pytest.mark.parametrize("protocol", [2, 4])
def test_words_are_cut_and_numbered_as_in_transformers(tmp_path, protocol):
    tokenizer = read_tokenizer(write_words(tmp_path / "m", build_table(), protocol), {}, pickle=True)
    assert tokenizer.special == {"eos": "<eos>", "unk": "<unk>"}
    assert [tokenizer.get_token_text(i) for i in range(len(tokenizer))] == WORDS
    cases = {  # text: its words in the order of sacremoses' tokenizer with aggressive_dash_splits, and numbers split
        "23,000 people are 1.80 m tall": "23 @,@ 000 people are 1 @.@ 80 m tall",
        "Hello, Mr. Smith. It's long-term.": "Hello , Mr. Smith . It 's long @-@ term .",
        "\u201cIt\u201d (the U.S.)... don\u2019t the Cal., ?": "\" It \" ( the U.S. ) ... don 't the Cal . , ?",
        "the <unk> <eos>": "the <unk> <eos>",
    }  # fmt: skip
    for text, words in cases.items():
        assert [tokenizer.get_token_text(i) for i in tokenizer.encode(text)] == words.split()
    assert tokenizer.encode("surprising") == [1]
    for text in ("23,000 people are 1.80 m tall", "Hello, Mr. Smith. It's long-term."):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_checkpoint_with_its_words(tmp_path):
    vocab = json.loads((GOLDEN / "config.json").read_text())["vocab_size"]
    shutil.copytree(GOLDEN, tmp_path / "m")
    write_words(tmp_path / "m", build_table([*WORDS, *(f"w{i}" for i in range(vocab))][:vocab]))
    with pytest.warns(UserWarning, match=r"vocab\.pkl is a pickle and was not read"):
        assert formers.load(tmp_path / "m").tokenizer is None
    former = formers.load(tmp_path / "m", pickle=True)
    formers.save(former, tmp_path / "own")
    again = formers.load(tmp_path / "own").tokenizer
    assert again.encode("23,000 people") == former.tokenizer.encode("23,000 people") == [4, 5, 6, 7]


class Call:
    """A pickle that would call a function when it is read."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_nothing_is_called(tmp_path):
    evidence = tmp_path / "evidence"
    table = build_table() | {
        "surprise": Call(Path.touch, evidence),
        "other": Call(exec, f"open({str(evidence)!r}, 'w')"),
    }
    assert len(read_tokenizer(write_words(tmp_path / "m", table), {}, pickle=True)) == len(WORDS)
    assert not evidence.exists()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([1], "it does not hold a table"),
        ({}, "idx2sym is not a list of words"),
        (build_table() | {"idx2sym": [3]}, "idx2sym is not a list of words"),
        (build_table() | {"idx2sym": Call(list, WORDS)}, "idx2sym is not a list of words"),
        (build_table() | {"sym2idx": {"the": 7}}, "sym2idx does not number the words"),
        (build_table() | {"sym2idx": build_table(WORDS[::-1])["sym2idx"]}, "sym2idx does not number the words"),
        (build_table(["the", "the"]), "sym2idx does not number the words"),
        (build_table(["the"]), "there is no word for unknown ones"),
    ],
)
def test_files_that_hold_something_else(tmp_path, table, message):
    with pytest.raises(Error, match=message) as caught:
        read_tokenizer(write_words(tmp_path / "m", table), {}, pickle=True)
    assert "vocab.pkl" in str(caught.value)


def test_a_damaged_file(tmp_path):
    where = write_words(tmp_path / "m", build_table())
    (where / "vocab.pkl").write_bytes((where / "vocab.pkl").read_bytes()[:-40])
    with pytest.raises(Error, match="the pickle was refused"):
        read_tokenizer(where, {}, pickle=True)
