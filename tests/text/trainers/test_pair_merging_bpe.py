"""BPE: equal to brute force on bytes and on GPT-1's characters, lossless, the same for any number of processes."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from collections import Counter

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.models import gpt
from formers.registry import train_tokenizer
from formers.text.normalise import normalise
from formers.text.tokenizer import BYTE_ALPHABET
from formers.text.trainers import pair_merging, word_counts
from formers.text.trainers.pair_merging import train_bpe
from tests.text.trainers import brute_force

LINES = ["the cat sat on the mat", "the dog sat on the log", "현행법은 이에 현행법을 개정하려는 것임"] * 3


def get_model(made):
    return json.loads(made.json_text)["model"]


def brute_bytes(lines, size):
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = Counter(tuple(w) for line in lines for w, _ in split.pre_tokenize_str(line))
    return brute_force.train_bpe(words, sorted(BYTE_ALPHABET), size - 1)


@given(st.lists(st.text("ab c", max_size=14), min_size=1, max_size=6), st.integers(1, 30))
def test_equal_to_brute_force(lines, more):
    made = get_model(train_tokenizer("bpe", lines, 257 + more))
    merges, vocab = brute_bytes(lines, 257 + more)
    assert [tuple(m) for m in made["merges"]] == merges
    assert sorted(made["vocab"], key=made["vocab"].get) == [*vocab, "<|endoftext|>"]


@given(st.lists(st.text("ab c", max_size=14), min_size=1, max_size=6), st.integers(1, 30))
def test_ends_of_words_equal_to_brute_force(lines, more):
    lines = [*lines, "ab ab"]
    made = get_model(train_bpe(lines, 10 + more, style=gpt.STYLE, alphabet=4))
    words = Counter((*w[:-1], w[-1] + "</w>") for line in lines for w in line.split())
    letters = sorted({p for w in words for p in w})
    merges, vocab = brute_force.train_bpe(words, ["<unk>", *letters], 10 + more - 3)
    assert [tuple(m) for m in made["merges"]] == merges
    assert made["vocab"]["<unk>"] == 0
    assert sorted(made["vocab"], key=made["vocab"].get) == [*vocab, "<start>", "<delimiter>", "<classify>"]


@pytest.mark.parametrize("chunk", [50, 10**6])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_file_for_any_number_of_processes(chunk, workers, monkeypatch):
    """Also with Korean, whose bytes make long words; the text is cut into many chunks, or is one."""
    if chunk == 10**6 and workers == 2:
        pytest.skip("one chunk starts no process")
    monkeypatch.setattr(word_counts.chunk_lines, "__defaults__", (chunk,))
    made = train_tokenizer("bpe", iter(LINES), 300, workers=workers)
    assert made.json_text == train_tokenizer("bpe", LINES, 300, workers=1).json_text
    assert [tuple(m) for m in get_model(made)["merges"]] == brute_bytes(LINES, 300)[0]


def test_a_script_needs_no_guard(tmp_path):
    """Other processes do not read the script, that would begin again in each of them."""
    script = tmp_path / "script.py"
    script.write_text(
        "from formers.registry import train_tokenizer\n"
        "from formers.text.trainers import word_counts\n"
        "print('begun')\n"
        "word_counts.chunk_lines.__defaults__ = (50,)\n"
        "lines = ['the cat sat on the mat', 'the dog sat on the log'] * 20\n"
        "made = train_tokenizer('bpe', lines, 280, workers=2)\n"
        "assert made.json_text == train_tokenizer('bpe', lines, 280, workers=1).json_text\n"
        "print('done')\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "begun\ndone\n"
    assert not ran.stderr


def test_words_that_do_not_fit_are_the_rarest(monkeypatch):
    monkeypatch.setattr(word_counts, "MAX_DISTINCT_WORDS", 3)
    monkeypatch.setattr(word_counts.chunk_lines, "__defaults__", (1,))
    cutter = word_counts.WordCutter(pair_merging.build_byte_level(True, False).to_str(), is_byte_level=True)
    counts = word_counts.count_words(["a a a b b b c d e f"] * 1, cutter, 1)
    assert {w.strip("Ġ") for w in counts} <= {"a", "b"}
    assert sum(counts.values()) >= 3


TRAINED = train_tokenizer("bpe", LINES, 320)
EXACT = train_tokenizer("bpe", LINES, 320, nfc=False)


@given(st.text(max_size=40))
@pytest.mark.filterwarnings("ignore:decomposed Hangul")
def test_lossless(text):
    """Byte for byte without NFC, and up to NFC with it (Python and Rust know the same Unicode here)."""
    text = text.encode("utf-8", errors="ignore").decode().replace("<|endoftext|>", "")
    assert EXACT.decode(EXACT.encode(text)) == text
    assert normalise(TRAINED.decode(TRAINED.encode(text))) == normalise(text)
    units = word_counts.BYTE_LEVEL_WORDS.findall(text)
    assert "".join(units) == text
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    assert [w for u in units for w, _ in split(u)] == [w for w, _ in split(text)]


def test_decomposed_hangul_is_composed_first():
    """FAMILY: NFD makes a Korean byte-level BPE many times longer; without the normaliser it does here too."""
    text, apart = "현행법을 개정", unicodedata.normalize("NFD", "현행법을 개정")
    assert TRAINED.encode(apart) == TRAINED.encode(text)
    with pytest.warns(UserWarning, match="decomposed Hangul"):
        assert len(EXACT.encode(apart)) > 3 * len(EXACT.encode(text))


def test_gpt1_keeps_syllables():
    made = train_bpe([*LINES, "Café ÉCOLE"] * 2, 90, style=gpt.STYLE, alphabet=60)
    text = "The cat: 현행법은 café école"
    assert made.decode(made.encode(text.replace(":", ""), special=False)) == text.lower().replace(":", "")
    assert made.encode(unicodedata.normalize("NFD", text)) == made.encode(text)
    assert made.encode("the cat", "the dog")[0] == made.id("bos")


def test_options():
    with pytest.raises(Error, match="too small"):
        train_tokenizer("bpe", LINES, 256)
    with pytest.raises(Error, match="bytes have no case"):
        train_tokenizer("bpe", LINES, 300, lower=True)
    with pytest.raises(Error, match="no style 'gtp2'"):
        train_tokenizer("bpe", LINES, 300, style="gtp2")
    assert len(train_tokenizer("bpe", [], 300)) == 257
    assert train_tokenizer("bpe", LINES, 300, style="bloom").id("pad") == 3
