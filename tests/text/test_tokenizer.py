"""Tokenizers: trained deterministically, equal to brute force, lossless, and safe for Korean."""

from __future__ import annotations

import itertools
import json
import lzma
import unicodedata

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.models import gpt2
from formers.registry import FAMILIES, find_tokenizer_style, list_tokenizer_styles, train_tokenizer
from formers.text import korean
from formers.text.normalise import CleaningReport, normalise, scrub_text
from formers.text.tokenizer import DecodeStream, Tokenizer, byte_level_to_bytes, call_backend
from formers.text.trainers.pair_merging import train_bpe

LINES = [
    "the cat sat on the mat",
    "the dog sat on the log",
    "a cat and a dog",
    "현행법은 이에 현행법을 개정하려는 것임",
] * 3


def test_training_is_a_function_of_the_text():
    made = train_tokenizer("bpe", LINES, 300)
    assert made.json_text == train_tokenizer("bpe", iter(LINES), 300).json_text
    pieces = train_tokenizer("wordpiece", LINES, 90)
    assert pieces.json_text == train_tokenizer("wordpiece", list(reversed(LINES)), 90).json_text
    assert made.fingerprint == train_bpe(LINES, 300, style=gpt2.STYLE).fingerprint
    assert made.fingerprint != train_tokenizer("bpe", LINES[:2] * 3, 300).fingerprint
    with pytest.raises(Error, match="does not train 'unigra'.*Did you mean 'unigram'"):
        train_tokenizer("unigra", LINES, 90)


TRAINED = train_tokenizer("bpe", LINES, 320)
PIECES = train_tokenizer("wordpiece", LINES, 120, alphabet=60)


@given(st.lists(st.integers(0, len(TRAINED) - 1), max_size=30))
def test_nothing_shows_as_a_replacement_character(ids):
    assert "�" not in TRAINED.decode(ids)
    assert all("�" not in TRAINED.get_token_text(i) for i in ids)


def test_templates_and_roles():
    ids = PIECES.encode("the cat", "the dog")
    assert [PIECES.get_token_text(ids[0]), PIECES.get_token_text(ids[-1])] == ["[CLS]", "[SEP]"]
    assert ids.count(PIECES.id("sep")) == 2
    assert PIECES.encode("the cat", special=False)[0] != PIECES.id("cls")
    assert PIECES.id("bos") is None
    assert PIECES.decode(PIECES.encode("the cat"), special=True).startswith("[CLS]")
    assert TRAINED.id("eos") == len(TRAINED) - 1
    assert TRAINED.decode([TRAINED.id("eos")]) == ""
    assert TRAINED.decode([TRAINED.id("eos")], special=True) == "<|endoftext|>"
    assert PIECES.encode_batch(["the", "cat"]) == [PIECES.encode("the"), PIECES.encode("cat")]
    assert PIECES.get_token_text(10**6) == ""
    assert TRAINED.get_token_text(json.loads(TRAINED.json_text)["model"]["vocab"]["í"]) == "<ed>"


def test_truncation_and_padding_inside_a_file_are_switched_off():
    rust = tokenizers.Tokenizer.from_str(PIECES.json_text)
    rust.enable_truncation(4)
    rust.enable_padding(length=64)
    assert len(Tokenizer(rust.to_str()).encode("the cat sat on the mat")) == len(
        PIECES.encode("the cat sat on the mat")
    )


def test_a_rust_panic_is_our_error():
    def panic():
        raise BaseException("a panic is not an Exception")

    with pytest.raises(Error, match="the tokenizer failed"):
        call_backend(panic)
    with pytest.raises(KeyboardInterrupt):
        call_backend(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(Error, match="the tokenizer failed"):
        Tokenizer('{"model": 3}')


def test_bytes_of_pieces():
    assert byte_level_to_bytes("Ġthe") == b" the"
    assert byte_level_to_bytes("한국") == "한국".encode()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_its_tokenizer(name):
    """By the family's name, and by the kind that its model file declares."""
    made = train_tokenizer(name, LINES, 420)
    style = FAMILIES[name].definition.tokenizer_style
    assert find_tokenizer_style(style.name) is style
    assert len(train_tokenizer(FAMILIES[name].definition.tokenizer, LINES, 420)) >= 15
    ids = made.encode("the cat sat", "the dog")
    frame = made.get_template(pair=True)
    a, b = (made.encode(text, special=False) for text in ("the cat sat", "the dog"))
    assert ids == [*frame.before, *a, *frame.between, *b, *frame.after]
    one = made.get_template()
    assert made.encode("the cat sat") == [*one.before, *a, *one.after]
    assert made.is_left_padded == (name == "xlnet")
    assert set(made.special.values()) <= set(made.backend.get_vocab())


def test_frames_and_segments():
    """The segment of each part is what the Rust library says."""
    for name, before, between, after in (
        ("bert", ["[CLS]"], ["[SEP]"], ["[SEP]"]),
        ("roberta", ["<s>"], ["</s>", "</s>"], ["</s>"]),
        ("t5", [], ["</s>"], ["</s>"]),
        ("xlnet", [], ["<sep>"], ["<sep>", "<cls>"]),
        ("gpt", ["<start>"], ["<delimiter>"], ["<classify>"]),
        ("mbart", [], [], ["</s>", "en_XX"]),
        ("gpt2", [], [], []),
        ("transformer_xl", [], ["<eos>"], ["<eos>"]),
    ):
        made = train_tokenizer(name, LINES, 420)
        frame = made.get_template(pair=True)
        assert [[made.get_token_text(i) for i in part] for part in (frame.before, frame.between, frame.after)] == [
            before, between, after,
        ], name  # fmt: skip
        encoding = made.backend.encode("the cat", "the dog")
        a, b = (len(made.encode(t, special=False)) for t in ("the cat", "the dog"))
        first, one, middle, two, last = frame.segments
        assert [*first, *[one] * a, *middle, *[two] * b, *last] == encoding.type_ids, name
    assert train_tokenizer("xlnet", LINES, 420).get_template(pair=True).segments == ((), 0, (0,), 1, (1, 2))


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "gpt", "textcnn"])
def test_word_starts(name):
    text = "the catsat sat on the matlog"
    made = train_tokenizer(name, [*LINES, "axcagxtxatxoxlxs cxgx"], 420)
    ids, offsets = made.encode_with_offsets(text, special=False)
    assert len(made.word_starts) == len(made)
    spans = [text[a:b] for a, b in offsets]
    want = [a == 0 or text[a] == " " or text[a - 1] == " " for (a, _) in offsets]
    assert len(ids) > 6 or name == "textcnn"
    assert made.id("unk") not in ids or name == "textcnn"
    assert made.find_word_starts(ids).tolist() == want, list(zip(spans, want, strict=True))
    marks = [made.id(role) for role in made.special if role != "unk"]
    assert made.word_starts[marks].all()
    if name != "gpt":
        assert made.word_starts[ids[1:]].tolist() == want[1:]


def test_offsets_lead_back_to_the_text():
    text = "the 현행법은 cat"
    for name in ("bert", "t5", "gpt2", "gpt"):
        made = train_tokenizer(name, LINES, 420)
        for form in ("NFC", "NFD"):
            this = unicodedata.normalize(form, text)
            ids, offsets = made.encode_with_offsets(this)
            assert ids == made.encode(this)
            covered = "".join(dict.fromkeys(this[a:b] for a, b in offsets))
            assert covered.replace(" ", "") == this.replace(" ", ""), name
            assert max(b for _, b in offsets) == len(this)


OFFSETS = [train_tokenizer(name, LINES, 420) for name in ("bert", "t5", "gpt")]


@given(st.text(st.sampled_from("가각한글은 cafésxéöậ"), max_size=20))
def test_offsets_of_decomposed_text_are_those_of_the_composed(text):
    composed, apart = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    for made in OFFSETS:
        spans = [
            [unicodedata.normalize("NFC", t[a:b]) for a, b in made.encode_with_offsets(t)[1]] for t in (composed, apart)
        ]
        assert spans[0] == spans[1]


def fake_korean(monkeypatch):
    """An analyser of two rules: 은, 을 and 는 are morphemes of their own at the end of a word."""

    def split_words(words):
        for word in words:
            yield [word[:-1], word[-1]] if len(word) > 1 and word[-1] in "은을는" else [word]

    monkeypatch.setattr("formers.text.korean.split_words", split_words)
    monkeypatch.setattr("formers.text.korean.MARKED_WORDS", {})


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_morphemes(name, monkeypatch, tmp_path):
    fake_korean(monkeypatch)
    plain, made = train_tokenizer(name, LINES, 420), train_tokenizer(name, LINES, 420, morphemes=True)
    text = "현행법은 이에 현행법을 개정하려는 cat"
    assert plain.fingerprint != made.fingerprint
    made.save(tmp_path)
    again = Tokenizer((tmp_path / "tokenizer.json").read_text(encoding="utf-8"), made.special)
    assert again.has_morphemes
    assert not plain.has_morphemes
    for form in ("NFC", "NFD"):
        ids, offsets = again.encode_with_offsets(unicodedata.normalize(form, text), special=False)
        assert ids == made.encode(text, special=False)
        pieces = [unicodedata.normalize("NFC", unicodedata.normalize(form, text)[a:b]) for a, b in offsets]
        assert not any("법은" in p or "법을" in p for p in pieces)
    assert made.decode(ids) == text
    assert any("법은" in plain.get_token_text(i) for i in plain.encode(text))
    stream = DecodeStream(made)
    assert "".join(map(stream.push, ids)) + stream.flush() == text


def test_morphemes_of_the_analyser(tmp_path):
    pytest.importorskip("kiwipiepy")
    pytest.importorskip("formers.text.korean")
    lines = ["학교에서 친구를 만났다", "친구에서 학교를 봤다"] * 3
    made = train_tokenizer("bpe", lines, 330, morphemes=True)
    text = "학교에서 친구를 만났다"
    assert made.decode(made.encode(text)) == text
    assert not any("교에" in made.get_token_text(i) for i in range(len(made)))


ATTACHED = [
    "영화. 영화, (영화) '영화'가 \"영화\"는 영화를!!! 영화는?ㅋㅋㅋ 좋다ㅠㅠ 좋다😀👍🏽",
    "3명이 AI는 GPT-2로 2024년 大韓민국에서 ...영화 영화... ~영화~ 영〮화 don't 영화/연극",
]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_morphemes_with_punctuation_attached(kind):
    """A word that ends where punctuation begins is the same word; no character of the training text is unknown."""
    pytest.importorskip("kiwipiepy")
    made = train_tokenizer(kind, ATTACHED * 2, 500, morphemes=True)
    for line in ATTACHED:
        ids = made.encode(line, special=False)
        assert made.is_byte_level or made.id("unk") not in ids
        assert made.decode(ids) == line
        assert made.encode_batch([line], special=False) == [ids]
    pieces = [[made.get_token_text(i) for i in made.encode(text, special=False)] for text in ("영화", "영화.")]
    assert pieces[1] == [*pieces[0], "."]


def one_space(line):
    """A line with each run of white space as one space, and none at its ends."""
    return " ".join(line.split())


def no_space(line):
    return "".join(line.split())


# What of a line decoding gives back, by kind: all, all but runs of white space, or all but where white space was.
GIVEN_BACK = {
    "bpe": str, "jamo": str, "unigram": one_space, "wordpiece": one_space, "gpt": one_space,
    "words": no_space, "characters": no_space,
}  # fmt: skip


@pytest.mark.parametrize("source", ["lm/movie_reviews_ko.txt", "classify/sms_spam.tsv", "lm/wikitext2.valid.txt"])
@pytest.mark.parametrize(
    ("kind", "morphemes"),
    [(kind, morphemes) for kind in GIVEN_BACK for morphemes in (False, True)
     if not morphemes or kind in ("bpe", "jamo", "unigram", "wordpiece")],
)  # fmt: skip
def test_decoding_gives_real_text_back(kind, morphemes, source, data):
    """With the real analyser: nothing of the training text is unknown, and it comes back as far as its kind says."""
    if morphemes:
        pytest.importorskip("kiwipiepy")
    with lzma.open(data / f"{source}.xz", "rt", encoding="utf-8") as file:
        lines = [normalise(scrub_text(line.rstrip("\n"), CleaningReport())) for line in itertools.islice(file, 300)]
    lines = [line.lower() if kind == "gpt" else line for line in lines]
    options = {"morphemes": True} if morphemes else {}
    made = train_tokenizer(kind, lines, 50_000 if kind in ("words", "characters") else 4000, **options)
    rows = made.encode_batch(lines, special=False, parse_special=False)
    assert made.is_byte_level or not any(made.id("unk") in row for row in rows)
    kept, back = GIVEN_BACK[kind], [made.decode(row) for row in rows]
    assert (list(map(kept, back)) if kept is no_space else back) == list(map(kept, lines))
    for row, line in zip(rows[:50], lines, strict=False):
        stream = DecodeStream(made)
        assert "".join(map(stream.push, row)) + stream.flush() == made.decode(row), line


SPACED = [
    "a.b", "a .b", "a. b", "a . b", "(a) [b] {c}", "...a", "a...", ". . .", "don't", 'a"b" "c"', "大韓민국 中", "3.5%",
    "a,b , c", "#1 ## x",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["wordpiece", "gpt"])
def test_spaces_around_punctuation_come_back(kind):
    """Each mark with a space on either side, on one or on none, also where training saw it otherwise."""
    made = train_tokenizer(kind, SPACED, 400, alphabet=100)
    for line in [*SPACED, "[c]", "{ c }", ". a", "大 韓"]:
        for text in (line, f"  {line}\n"):
            assert made.decode(made.encode(text, special=False, parse_special=False)) == line
        wide = line.replace(" ", "\t \n")
        assert made.encode(wide, special=False, parse_special=False) == made.encode(
            line, special=False, parse_special=False
        )
    if kind == "wordpiece":
        for line in ("a, [MASK]. b", "a ([MASK]) b", "a [MASK] b", "a . [MASK] (b"):
            assert made.decode(made.encode(line), special=True) == f"[CLS] {line} [SEP]"
        assert made.decode(made.encode("a. b")[:-2]) == "a."


def test_each_different_word_is_analysed_once(monkeypatch):
    """However often a word occurs, and however few words are remembered, the result is the same."""
    fake_korean(monkeypatch)
    asked, told, analyse = [], [], korean.split_words
    monkeypatch.setattr(korean, "split_words", lambda words: [asked.extend(words), *analyse(words)][1:])
    made = train_tokenizer("bpe", LINES * 20, 330, morphemes=True, tell=lambda *words: told.append(words[0]))
    assert sorted(asked) == sorted({"현행법은", "이에", "현행법을", "개정하려는", "것임"})
    assert "morphemes" in told
    wanted = made.encode_batch(LINES)
    assert len(asked) == 5
    monkeypatch.setattr("formers.text.korean.MAX_MARKED_WORDS", 2)
    monkeypatch.setattr("formers.text.korean.MARKED_WORDS", {})
    assert [made.encode(line) for line in (*LINES, "새것을", *LINES)] == [*wanted, made.encode("새것을"), *wanted]
    assert len(asked) > 10


def test_a_word_is_cut_alike_wherever_it_stands():
    """The morphemes of a word do not depend on its neighbours, and words without Hangul are not cut at all."""
    pytest.importorskip("kiwipiepy")
    made = train_tokenizer("bpe", ["이건 정말 재미없음, 보기 싫다. GPT-2 don't"] * 3, 400, morphemes=True)
    whole = [made.get_token_text(i) for i in made.encode("정말 재미없음 보기 GPT-2 don't", special=False)]
    apart = [made.get_token_text(i) for part in ("정말", " 재미없음", " 보기", " GPT-2", " don't")
             for i in made.encode(part, special=False)]  # fmt: skip
    assert whole == apart


@pytest.mark.parametrize("name", ["bert", "gpt", "gpt2", "t5", "albert", "textcnn", "elmo", "transformer_xl"])
def test_korean_reviews_go_through_unharmed(name, data):
    """Train, encode, decode on NSMC: nothing but rare characters may change, and where words are the pieces, spaces
    around marks."""
    with lzma.open(data / "classify/nsmc.train.tsv.xz", "rt", encoding="utf-8") as file:
        rows = [line.split("\t")[0] for line in itertools.islice(file, 1, 1500)]
    lines = [" ".join(normalise(r).split()) for r in rows]
    size = 6000 if name in ("bert", "gpt", "gpt2", "t5", "albert") else 50_000
    options = {"alphabet": 2500} if name in ("bert", "t5", "albert", "gpt") else {}
    made = train_tokenizer(name, lines, size, **options)
    unknown = made.id("unk") if not made.is_byte_level else None
    whole = 0
    for line in lines[:400]:
        ids = made.encode(line, special=False)
        if unknown in ids:
            continue
        whole += 1
        want = line.lower() if name == "gpt" else line
        if name in ("bert", "gpt", "gpt2", "t5"):
            assert made.decode(ids) == want
        assert made.decode(ids).replace(" ", "") == want.replace(" ", "")
        apart = unicodedata.normalize("NFD", line)
        assert made.encode(apart, special=False) == ids
    assert whole > 390


def test_notes_on_korean():
    """A published lower-casing BERT takes syllables apart: said once, and NFD is repaired on request."""
    from formers.text import published_files

    jamo = [chr(c) for c in range(0x1100, 0x1200)]
    vocab = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", *jamo, *("##" + j for j in jamo)])
    made = published_files.from_vocab_txt(vocab, {"do_lower_case": True}, list_tokenizer_styles())
    with pytest.warns(UserWarning, match="apart into jamo"):
        first = made.encode("한국")
    assert made.encode("한국") == first  # a second warning would be an error here
    assert len(made.notes) == 1
    cased = published_files.from_vocab_txt(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "한", "##국"]), {"do_lower_case": False}, list_tokenizer_styles()
    )
    apart = unicodedata.normalize("NFD", "한국")
    assert cased.encode(apart, normalise=True) == cased.encode("한국") == [2, 4, 5, 3]
    assert cased.encode_batch([apart], normalise=True) == [[2, 4, 5, 3]]
    with pytest.warns(UserWarning, match="NFD"):
        assert cased.encode(apart) == [2, 1, 3]
    assert np.array_equal(cased.encode_batch([apart])[0], [2, 1, 3])


@pytest.mark.parametrize("name", FAMILIES)
def test_raw_text_forges_no_special_token(name):
    """Also as capitals or in full width, which a normaliser may make plain, and next to other letters."""
    made = train_tokenizer(name, LINES, 400, workers=1)
    marks = {made.backend.token_to_id(token) for token in made.reserved_tokens} - {made.id("unk")}
    wide = str.maketrans({chr(c): chr(c + 0xFEE0) for c in range(0x21, 0x7F)})
    for token in made.reserved_tokens:
        for spelled in (token, token.upper(), token.lower(), token.translate(wide)):
            for text in (f"the {spelled} cat", f"the{spelled}cat", spelled):
                raw = made.encode(text, special=False, parse_special=False)
                assert not marks & {*raw}, (name, text)
                assert made.encode_batch([text], special=False, parse_special=False) == [raw]
                assert made.encode_with_offsets(text, special=False, parse_special=False)[0] == raw
                assert made.encode_and_locate([text], lambda _: [0])[0][0] == raw
                assert made.has_special_spelling(text) == any(t in text for t in made.reserved_tokens)
        assert made.backend.token_to_id(token) in made.encode(f"the {token} cat", special=False)  # as published
    frame = made.get_template()
    whole = (*frame.before, *made.encode("the cat", special=False), *frame.after)
    assert made.encode("the cat", parse_special=False) == made.encode("the cat") == list(whole)
    assert not made.has_special_spelling("the cat")


def test_merges_that_make_a_special_token_are_passed_over():
    """A trainer may have learned the letters of a special token from text that spells it."""
    vocab = {piece: i for i, piece in enumerate(["<", "s", ">", "<s", "<s>"])}
    rust = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[("<", "s"), ("<s", ">")]))
    assert rust.encode("<s>").ids == [4]
    made = Tokenizer(rust.to_str(), {"bos": "<s>"})
    assert made.encode("<s>") == [4]
    assert made.encode("<s>", parse_special=False) == [3, 2]


@given(st.text(st.sampled_from("the cat<|endoftext|>한국 \n")))
def test_raw_bytes_are_lossless(text):
    made = TRAINED
    assert made.decode(made.encode(text, special=False, parse_special=False)) == unicodedata.normalize("NFC", text)
