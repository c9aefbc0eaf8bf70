"""The token store, in memory and on disk."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import formers
from formers import Error, Store
from formers.atomic_files import to_checked_json
from formers.cli.tokenizer import print_store_summary
from formers.data.preparation.document_encoder import (
    ENTITY_BIT,
    PHRASE_BIT,
    build_unit_finder,
    encode_documents,
    find_unit_starts,
    get_splitter,
    learn_phrases,
)
from formers.data.store import BLOCK_BYTES, ArrayFileReader, ArrayFileWriter, ChainedArray, describe_unknown
from formers.registry import train_tokenizer

LINES = ["the cat sat on the mat", "the dog sat on the log"] * 3
TEXTS = [
    "The cat sat. The dog ran away!  Who saw it?",
    "One sentence only",
    "고양이가 앉았다. 개는 달아났다!\n누가 보았나?",
    "…",
    'He said: "No." She said: "Yes."',
]


@pytest.fixture(scope="module", params=["bpe", "wordpiece"])
def tokenizer(request):
    return train_tokenizer(request.param, [*LINES, *TEXTS], 400)


def prepare_store(path, tokenizer, texts=TEXTS, **options):
    return formers.prepare(texts, tokenizer, path, **{"shard": 20, **options})


def test_in_memory():
    tokenizer = train_tokenizer("bpe", LINES, 280)
    made = Store.from_documents(["the cat", "", "the dog"], tokenizer)
    assert made.tokens.dtype == np.uint16
    assert len(made.starts) == 3, "an empty document is none"
    assert made.tokens[made.starts[1] - 1] == tokenizer.id("eos")
    assert tokenizer.decode(made.tokens[: made.starts[1]]) == "the cat"
    plain = train_tokenizer("wordpiece", LINES, 60)
    ids = Store.from_documents(["the cat"], plain).tokens
    assert plain.id("cls") not in ids
    assert plain.id("sep") not in ids
    with pytest.raises(Error, match="no text to learn from"):
        Store.from_documents(["", ""], plain)
    with pytest.raises(Error, match="no tokenizer of its own"):
        made.tokenizer  # noqa: B018


def test_tokens_are_those_of_the_whole_document(tokenizer):
    made = encode_documents(TEXTS, tokenizer, get_splitter("rules"))
    end = [] if tokenizer.id("eos") is None else [tokenizer.id("eos")]
    rows = [tokenizer.encode(text, special=False) + end for text in TEXTS]
    assert made.ids.tolist() == [i for row in rows for i in row]
    assert made.lengths.tolist() == [len(row) for row in rows]


def test_sentences_begin_where_their_first_character_is(tokenizer):
    def split(text):
        parts = [part for part in text.replace("! ", "!|").replace(". ", ".|").replace("\n", "|").split("|") if part]
        return [text.index(part) for part in parts]

    made = encode_documents(TEXTS, tokenizer, split)
    expected, base = [], 0
    for text in TEXTS:
        offsets = tokenizer.backend.encode(text, add_special_tokens=False).offsets
        at = split(text)
        expected += sorted({base + next(i for i, (_, end) in enumerate(offsets) if end > a) for a in at})
        base += len(offsets) + (tokenizer.id("eos") is not None)
    assert made.sentence_starts.tolist() == expected
    assert len(expected) > len(TEXTS)


def test_units_reach_to_the_next(tokenizer):
    text = "see New York City today, 서울시청에서 만나요"
    york, seoul = text.index("New"), text.index("서울")
    units = [(york, york + 13, "entity"), (york, york + 8, "phrase"), (seoul, seoul + 4, "entity")]
    starts, rests = find_unit_starts(text, units)
    both = PHRASE_BIT | ENTITY_BIT
    assert starts == {0: both, york: both, york + 9: PHRASE_BIT, text.index("today"): both, seoul: both,
                      text.index("만나"): both}  # fmt: skip
    assert rests == {seoul + 4: ENTITY_BIT}
    made = encode_documents([text], tokenizer, units=lambda text: units)
    offsets = tokenizer.backend.encode(text, add_special_tokens=False).offsets
    firsts = {}
    for at, bits in (starts | rests).items():
        token = next(i for i, (_, end) in enumerate(offsets) if end > at)
        token += at in rests and offsets[token][0] < at
        firsts[token] = firsts.get(token, 0) | bits
    marked = {i: int(bits) for i, bits in enumerate(made.unit_bits[: len(offsets)]) if bits}
    assert marked == firsts
    assert (made.unit_bits[len(offsets) :] == both).all(), "the end mark is its own unit"


@pytest.mark.parametrize(("name", "particles"), [("안나 카레니나", "는"), ("안나", "는 카레니나를")])
def test_a_token_that_reaches_beyond_a_unit_belongs_to_it(name, particles):
    """A Korean particle is often part of a name's last token, and the name was no longer one unit."""
    text = f"{name}{particles} 안다."
    tokenizer = train_tokenizer("wordpiece", [text] * 20, 400)
    made = encode_documents([text], tokenizer, units=lambda _: [(0, len(name), "entity")])
    pieces = [tokenizer.get_token_text(int(token)) for token in made.ids]
    assert pieces == [*text[:-1].split(), "."]
    begins = [piece for piece, bits in zip(pieces, made.unit_bits, strict=True) if bits & ENTITY_BIT]
    assert begins == (["안나", "안다"] if " " in name else pieces[:-1])


def test_phrases_of_a_text():
    words = (1 / np.random.default_rng(0).uniform(0.001, 1, 20_000)).astype(int).tolist()  # frequent and rare ones
    rows = [" ".join(f"w{w}" for w in words[i : i + 10]) for i in range(0, 20_000, 10)]
    text = [row + " new york city" * (i % 20 == 0) for i, row in enumerate(rows)]
    found = learn_phrases(text, threshold=50)
    assert {"new york", "york city"} <= set(found) == set(found[:2]), "and no pair of frequent words"
    units = build_unit_finder(["new york", "york city"])
    text = "New York City, new York; york city"
    found = [(text[a:b], kind) for a, b, kind in units(text)]
    assert [word for word, kind in found if kind == "phrase"] == ["New York City", "new York", "york city"]
    assert [word for word, kind in found if kind == "entity"] == ["York City", "York"], "new is a word"


def test_on_disk_as_in_memory(tokenizer, tmp_path):
    disk = prepare_store(tmp_path / "s", tokenizer, TEXTS * 3)
    memory = Store.from_documents(TEXTS * 3, tokenizer, sentences="rules")
    assert len(disk.directory.part_metadata["shards"]) >= 1
    assert np.array_equal(np.asarray(disk.tokens), memory.tokens)
    assert np.array_equal(disk.starts, memory.starts)
    assert np.array_equal(disk.sentences, memory.sentences)
    assert disk.vocab == memory.vocab
    assert disk.tokenizer.fingerprint == tokenizer.fingerprint
    assert disk.tokenizer.special == tokenizer.special
    disk.verify()


def test_another_tokenizer_of_the_same_size_is_refused(tokenizer, tmp_path):
    disk = prepare_store(tmp_path / "s", tokenizer)
    about = json.loads(tokenizer.json_text)
    vocab = about["model"]["vocab"]
    one, two = list(vocab)[-2:]
    vocab[one], vocab[two] = vocab[two], vocab[one]
    other = type(tokenizer)(json.dumps(about), tokenizer.special)
    assert len(other) == len(tokenizer)
    assert other.fingerprint != tokenizer.fingerprint
    for made in (disk, Store.from_documents(TEXTS, tokenizer)):
        made.check_tokenizer(tokenizer)
        with pytest.raises(Error, match="made with another tokenizer"):
            made.check_tokenizer(other)
    with pytest.raises(Error, match="made with another tokenizer"):
        Store.open(tmp_path / "s", tokenizer=other)
    with pytest.raises(Error, match="other settings \\(tokenizer\\)"):
        prepare_store(tmp_path / "s", other)
    (tmp_path / "s" / "tokenizer.json").write_text(other.json_text, encoding="utf-8")
    with pytest.raises(Error, match="not the tokenizer that made this store"):
        disk.tokenizer  # noqa: B018


def test_what_is_no_store_or_of_another_format(tokenizer, tmp_path):
    with pytest.raises(Error, match="is not a token store. Make one with formers prepare"):
        Store.open(tmp_path)
    prepare_store(tmp_path / "s", tokenizer)
    about = json.loads((tmp_path / "s" / "store.json").read_text(encoding="utf-8"))
    del about["seal"]
    for version, fix in ((0, "Prepare the text again"), (2, "newer formers"), ("x", "newer formers")):
        (tmp_path / "s" / "store.json").write_text(to_checked_json({**about, "format": version}), encoding="utf-8")
        with pytest.raises(Error, match=fix):
            Store.open(tmp_path / "s")
    about["parts"]["train"]["shards"][0]["name"] = "../x.bin"
    (tmp_path / "s" / "store.json").write_text(to_checked_json(about), encoding="utf-8")
    with pytest.raises(Error, match="not the name of a file here"):
        Store.open(tmp_path / "s")
    with pytest.raises(Error, match="has no part 'validation'"):
        Store.open(tmp_path / "s", "validation")


def test_identity_follows_the_content(tokenizer, tmp_path):
    one = prepare_store(tmp_path / "1", tokenizer)
    same = prepare_store(tmp_path / "2", tokenizer)
    other = prepare_store(tmp_path / "3", tokenizer, [*TEXTS[:-1], "x"])
    assert one.content_hash == same.content_hash != other.content_hash
    memory = Store.from_documents(TEXTS, tokenizer)
    assert memory.content_hash == Store.from_documents(TEXTS, tokenizer).content_hash
    assert memory.content_hash != Store.from_documents(TEXTS[1:], tokenizer).content_hash
    assert memory.content_hash != Store.from_documents(TEXTS, tokenizer, sentences="rules").content_hash


def test_pickled_by_path(tokenizer, tmp_path):
    disk = prepare_store(tmp_path / "s", tokenizer, TEXTS * 200)
    packed = pickle.dumps(disk)
    assert len(packed) < 1000
    again = pickle.loads(packed)
    assert np.array_equal(again.tokens[5:50], disk.tokens[5:50])
    memory = pickle.loads(pickle.dumps(Store.from_documents(TEXTS, tokenizer)))
    assert memory.content_hash == Store.from_documents(TEXTS, tokenizer).content_hash
    about = json.loads((tmp_path / "s" / "store.json").read_text(encoding="utf-8"))
    about.pop("seal")
    about["parts"]["train"]["tables"]["sha256"] = "0" * 64
    (tmp_path / "s" / "store.json").write_text(to_checked_json(about), encoding="utf-8")
    with pytest.raises(Error, match="has changed while it was in use"):
        pickle.loads(packed)


def made_of(path, arrays, dtype=np.uint16):
    out = []
    for i, array in enumerate(arrays):
        writer = ArrayFileWriter(path / f"{i}.bin")
        writer.add_array("other", np.int64, [np.arange(3)])
        writer.add_array("a", dtype, np.array_split(array, 2))
        out.append((ArrayFileReader(path / f"{i}.bin", writer.close()), "a", 0, len(array)))
    return ChainedArray(out, dtype)


@settings(max_examples=40)
@given(st.data())
def test_pieces_are_one_array(data):
    import pathlib
    import tempfile

    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    whole = np.arange(sum(lengths), dtype=np.uint16) * 7 % 31
    with tempfile.TemporaryDirectory() as folder:
        made = made_of(pathlib.Path(folder), np.split(whole, np.cumsum(lengths)[:-1]))
        assert len(made) == len(whole)
        assert np.array_equal(np.asarray(made), whole)
        if not len(whole):
            return
        slots = np.array(data.draw(st.lists(st.integers(-len(whole), len(whole) - 1), max_size=8)), np.int64)
        assert np.array_equal(made[slots], whole[slots])
        low, high, step = data.draw(st.tuples(st.integers(-20, 20), st.integers(-20, 20), st.sampled_from([1, 2, -1])))
        assert np.array_equal(made[low:high:step], whole[low:high:step])
        spans = data.draw(
            st.lists(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole))).map(sorted), max_size=5)
        )
        begin, end = np.array([s[0] for s in spans], np.int64), np.array([s[1] for s in spans], np.int64)
        out = np.empty(int((end - begin).sum()), np.int64)
        made.copy_spans(out, begin, end)
        assert out.tolist() == [x for a, b in spans for x in whole[a:b].tolist()]
        with pytest.raises(IndexError):
            made[len(whole)]


@given(st.data())
def test_take_is_what_a_loop_takes(data):
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    starts = np.cumsum([0, *lengths])
    total = int(starts[-1])
    more = data.draw(st.sets(st.integers(0, total - 1)))
    sentences = np.array(sorted({*starts.tolist(), *more}))
    tokens, units = np.arange(total, dtype=np.uint16) * 3 % 17, (np.arange(total) % 4).astype(np.uint8)
    made = Store(tokens, starts, 17, "x", sentences, units)
    spans = data.draw(st.lists(st.tuples(st.integers(0, total), st.integers(0, total)).map(sorted), max_size=5))
    ids, first, unit = made.read_spans(np.array([s[0] for s in spans]), np.array([s[1] for s in spans]))
    slots = [i for a, b in spans for i in range(a, b)]
    assert ids.dtype == np.int64
    assert ids.tolist() == tokens[slots].tolist() if slots else not len(ids)
    assert first.tolist() == [i in set(sentences.tolist()) for i in slots]
    assert unit.tolist() == [i % 4 for i in slots]


def test_blocks_are_checked_when_they_are_first_read(tmp_path, monkeypatch):
    array = np.arange(3 * BLOCK_BYTES, dtype=np.uint8)
    made = made_of(tmp_path, [array], np.uint8)
    reader = made.readers[0][0]
    asked = []
    sound = reader.is_block_intact
    monkeypatch.setattr(reader, "is_block_intact", lambda block: asked.append(block) or sound(block))
    made[5:10], made[6:20]
    assert asked == [0], "one block, once"
    made[BLOCK_BYTES : 2 * BLOCK_BYTES]
    assert asked == [0, 1, 2]
    made[np.array([0, 3 * BLOCK_BYTES - 1])]
    assert asked == [0, 1, 2, 3], "the array begins after another"


def test_many_unknown_tokens_are_spoken_of(tmp_path, capsys):
    """In memory as on disk; the remedy follows the kind of the tokenizer, and few are passed over."""
    few = train_tokenizer("words", LINES, 4)
    line = describe_unknown(Store.from_documents(LINES, few), few)
    assert line.startswith("33% of the tokens are unknown to the tokenizer: 4 words are too few for this text; train")
    assert "formers tokenizer train unigram" in line
    store = prepare_store(tmp_path / "few", few, LINES)
    assert describe_unknown(store, few) == line
    print_store_summary(store, tmp_path / "few")
    assert "33% of the tokens are unknown" in capsys.readouterr().out
    other = train_tokenizer("wordpiece", LINES, 60)
    assert "it was made for other text" in describe_unknown(Store.from_documents(["다른 글"], other), other)
    for known in (other, train_tokenizer("bpe", LINES, 300), train_tokenizer("words", LINES, 100)):
        assert describe_unknown(Store.from_documents(LINES, known), known) is None
