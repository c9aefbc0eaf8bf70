"""Tokenizers: trained deterministically, equal to brute force, lossless, and safe for Korean."""

from __future__ import annotations

import json
import math
import unicodedata
from collections import Counter
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.text import bpe, published, wordpiece
from formers.text.tokenizer import Tokenizer, guarded, to_bytes
from formers.text.trainers import train

LINES = [
    "the cat sat on the mat",
    "the dog sat on the log",
    "a cat and a dog",
    "현행법은 이에 현행법을 개정하려는 것임",
] * 3


def test_training_is_a_function_of_the_text():
    assert bpe.train(LINES, 300).text == bpe.train(list(LINES), 300).text
    assert wordpiece.train(LINES, 90).text == wordpiece.train(list(reversed(LINES)), 90).text
    assert train("bpe", LINES, 300).fingerprint == bpe.train(LINES, 300).fingerprint
    assert bpe.train(LINES, 300).fingerprint != bpe.train(LINES[:2] * 3, 300).fingerprint
    with pytest.raises(Error, match="does not train 'unigram'"):
        train("unigram", LINES, 90)


def brute_bpe(lines, size):
    """The definition: count all pairs anew each time, merge the most frequent, smaller strings first."""
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = Counter(w for line in lines for w, _ in split.pre_tokenize_str(line))
    words = {tuple(w): c for w, c in words.items()}
    merges = []
    while 256 + len(merges) < size - 1:
        pairs = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs or max(pairs.values()) < 2:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        words = {merged(word, best, "".join(best)): count for word, count in words.items()}
    return merges


def brute_wordpiece(lines, size):
    """The definition: the pair that raises the unigram likelihood most, all counts made anew each time."""
    words = Counter(w for line in lines for w in line.split())
    words = {(w[0], *("##" + c for c in w[1:])): c for w, c in words.items()}
    vocab = [*wordpiece.SPECIAL.values(), *sorted({p for w in words for p in w})]
    while len(vocab) < size:
        pieces, pairs = Counter(), Counter()
        for word, count in words.items():
            for piece in word:
                pieces[piece] += count
            for pair in pairwise(word):
                pairs[pair] += count
        total = sum(pieces.values())
        gains = {
            (a, b): round(n * math.log(n * total / (pieces[a] * pieces[b])), 6) for (a, b), n in pairs.items() if n >= 2
        }
        if not gains:
            break
        best = min(gains, key=lambda p: (-gains[p], -pairs[p], p))
        piece = best[0] + best[1].removeprefix("##")
        words = {merged(word, best, piece): count for word, count in words.items()}
        if piece not in vocab:
            vocab.append(piece)
    return vocab


def merged(word, pair, piece):
    out, i = [], 0
    while i < len(word):
        if word[i : i + 2] == pair:
            out.append(piece)
            i += 2
        else:
            out.append(word[i])
            i += 1
    return tuple(out)


def test_equal_to_brute_force():
    model = json.loads(bpe.train(LINES, 290).text)["model"]
    assert [tuple(m) for m in model["merges"]] == brute_bpe(LINES, 290)
    vocab = json.loads(wordpiece.train(LINES, 80, alphabet=60).text)["model"]["vocab"]
    assert sorted(vocab, key=vocab.get) == brute_wordpiece(LINES, 80)


@given(st.lists(st.text("abc ", max_size=12), min_size=1, max_size=6), st.integers(8, 30))
def test_equal_to_brute_force_on_any_text(lines, size):
    lines = [*lines, "ab ab"]
    vocab = json.loads(wordpiece.train(lines, max(size, 11), alphabet=3).text)["model"]["vocab"]
    assert sorted(vocab, key=vocab.get) == brute_wordpiece(lines, max(size, 11))
    model = json.loads(bpe.train(lines, 257 + size).text)["model"]
    assert [tuple(m) for m in model["merges"]] == brute_bpe(lines, 257 + size)


TRAINED = bpe.train(LINES, 320)
PIECES = wordpiece.train(LINES, 120, alphabet=60)


@given(st.text(max_size=40))
def test_byte_level_is_lossless(text):
    text = text.encode("utf-8", errors="ignore").decode()
    if "<|endoftext|>" not in text:
        assert TRAINED.decode(TRAINED.encode(text)) == text


@given(st.lists(st.integers(0, len(TRAINED) - 1), max_size=30))
def test_nothing_shows_as_a_replacement_character(ids):
    assert "�" not in TRAINED.decode(ids)
    assert all("�" not in TRAINED.token(i) for i in ids)


def test_korean_survives_wordpiece():
    text = "현행법은 이에 현행법을"
    assert PIECES.decode(PIECES.encode(text)) == text
    assert PIECES.encode(unicodedata.normalize("NFD", text)) == PIECES.encode(text)
    assert not any(
        unicodedata.decomposition(c) == "" and "ᄀ" <= c <= "ᇿ"
        for p in json.loads(PIECES.text)["model"]["vocab"]
        for c in p
    )
    lower = wordpiece.train(["Ünïcode 가나 ABC"] * 3, 60, lower=True, alphabet=20)
    assert lower.decode(lower.encode("ÜNÏCODE 가나 ABC")) == "ünïcode 가나 abc"


def test_templates_and_roles():
    ids = PIECES.encode("the cat", "the dog")
    assert [PIECES.token(ids[0]), PIECES.token(ids[-1])] == ["[CLS]", "[SEP]"]
    assert ids.count(PIECES.id("sep")) == 2
    assert PIECES.encode("the cat", special=False)[0] != PIECES.id("cls")
    assert PIECES.id("bos") is None
    assert PIECES.decode(PIECES.encode("the cat"), special=True).startswith("[CLS]")
    assert TRAINED.id("eos") == len(TRAINED) - 1
    assert TRAINED.decode([TRAINED.id("eos")]) == ""
    assert TRAINED.decode([TRAINED.id("eos")], special=True) == "<|endoftext|>"
    assert PIECES.encode_batch(["the", "cat"]) == [PIECES.encode("the"), PIECES.encode("cat")]
    assert PIECES.token(10**6) == ""
    assert TRAINED.token(json.loads(TRAINED.text)["model"]["vocab"]["í"]) == "<ed>"


def test_ratio_prefers_rare_pairs():
    rare = json.loads(wordpiece.train(LINES, 60, score="ratio").text)["model"]["vocab"]
    common = json.loads(wordpiece.train(LINES, 60).text)["model"]["vocab"]
    assert rare != common
    assert "the" in common


def test_sizes_that_cannot_work():
    with pytest.raises(Error, match="a byte-level vocabulary of 100 is too small"):
        bpe.train(LINES, 100)
    with pytest.raises(Error, match="characters do not fit into 10 pieces"):
        wordpiece.train(LINES, 10, alphabet=40)
    assert len(wordpiece.train(LINES, 60, alphabet=20)) < len(wordpiece.train(LINES, 60, alphabet=60)) <= 60
    assert wordpiece.train(LINES, 60, alphabet=5).encode("개정", special=False) == [1]


def test_truncation_and_padding_inside_a_file_are_switched_off():
    rust = tokenizers.Tokenizer.from_str(PIECES.text)
    rust.enable_truncation(4)
    rust.enable_padding(length=64)
    assert len(Tokenizer(rust.to_str()).encode("the cat sat on the mat")) == len(
        PIECES.encode("the cat sat on the mat")
    )


def test_a_rust_panic_is_our_error():
    def panic():
        raise BaseException("a panic is not an Exception")

    with pytest.raises(Error, match="the tokenizer failed"):
        guarded(panic)
    with pytest.raises(KeyboardInterrupt):
        guarded(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(Error, match="the tokenizer failed"):
        Tokenizer('{"model": 3}')


def test_bytes_of_pieces():
    assert to_bytes("Ġthe") == b" the"
    assert to_bytes("한국") == "한국".encode()


def test_vocab_txt():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "The"]
    text = "\n".join(pieces) + "\n"
    made = published.from_vocab(text, {})
    assert made.encode("The cats") == [2, 5, 6, 7, 3]
    assert published.from_vocab(text, {"do_lower_case": False}).encode("The cats") == [2, 8, 6, 7, 3]
    assert made.encode("the", "cat") == [2, 5, 3, 6, 3]
    assert made.id("mask") == 4
    with pytest.raises(Error, match="is not in the vocabulary"):
        published.from_vocab("the\ncat", {})


def test_vocab_json_and_merges():
    vocab = {c: i for i, c in enumerate(["a", "b", "Ġ", "ab", "<|endoftext|>"])}
    made = published.from_merges(json.dumps(vocab), "#version: 0.2\na b\n", {})
    assert made.encode("ab ab") == [3, 2, 3]
    assert made.id("eos") == 4
    roberta = {c: i for i, c in enumerate(["<s>", "<pad>", "</s>", "<unk>", "a", "b", "Ġ", "ab", "<mask>"])}
    made = published.from_merges(json.dumps(roberta), "a b", {"add_prefix_space": False})
    assert made.encode("ab") == [0, 7, 2]
    assert made.encode("a", "b") == [0, 4, 2, 2, 5, 2]
    assert made.id("mask") == 8
    for vocab, merges in (("[]", "a b"), ('{"a": 0}', "a b"), ("{", "")):
        with pytest.raises(Error, match="the tokenizer failed|JSON"):
            published.from_merges(vocab, merges, {})


def test_roles():
    assert published.roles({"pad_token": {"content": "<p>"}, "eos_token": "<e>", "unk_token": None}, {"unk": "u"}) == {
        "unk": "u", "pad": "<p>", "eos": "<e>",
    }  # fmt: skip
    assert published.usual(PIECES.text)["mask"] == "[MASK]"
    assert published.usual(TRAINED.text) == {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>"}
    assert published.usual("no json") == {}


def test_published_files_of_the_hub(data):
    """Real vocab.txt and merges.txt give the ids that transformers gives."""
    import tarfile

    transformers = pytest.importorskip("transformers")
    with tarfile.open(data / "tokenizers.tar.xz") as archive:
        files = {
            m.name: archive.extractfile(m).read().decode()
            for m in archive.getmembers()
            if m.name.endswith(("txt", "json"))
        }
    texts = ["Hello, World! It's 2024.", "안녕하세요 ㅋㅋ", "naïve café — 😀", "  two  spaces\tand\na line", "[MASK] x"]
    for name, lower in (("bert-base-uncased", True), ("bert-base-cased", False), ("koelectra", False)):
        text = files[f"{name}/vocab.txt"]
        theirs = transformers.BertTokenizer(vocab={p: i for i, p in enumerate(text.splitlines())}, do_lower_case=lower)
        ours = published.from_vocab(text, {"do_lower_case": lower})
        for line in texts:
            assert ours.encode(line) == theirs(line)["input_ids"], (name, line)
            assert ours.encode(line, "the pair") == theirs(line, "the pair")["input_ids"]
    vocab, merges = files["gpt2/vocab.json"], files["gpt2/merges.txt"]
    pairs = [tuple(line.split(" ")) for line in merges.split("\n")[1:] if line]
    theirs = transformers.GPT2Tokenizer(vocab=json.loads(vocab), merges=pairs)
    ours = published.from_merges(vocab, merges, {})
    for line in texts:
        assert ours.encode(line) == theirs(line)["input_ids"], line
        assert ours.decode(ours.encode(line)) == line
