"""tokenizer(texts, padding=…, truncation=…): the same keys and numbers as transformers gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

import formers
from formers.interop.tokenizer_files import build_tokenizer_options, save_tokenizer
from formers.registry import train_tokenizer
from formers.text.tokenizer import Tokenizer

LINES = ["the cat sat on the mat and the dog sat on the log", "안녕하세요 여러분 오늘은 날씨가 좋습니다"] * 4
WORDS = ["the", "cat", "sat", "on", "a", "log", "안녕하세요", "여러분", "좋다"]
TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join)
TOKENIZERS = {name: train_tokenizer(name, LINES, 300, workers=1) for name in ("bert", "roberta", "gpt2", "xlnet", "t5")}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    where = tmp_path_factory.mktemp("tokenizers")
    made = {}
    for name, tokenizer in TOKENIZERS.items():
        save_tokenizer(tokenizer, where / name)
        options = {k: v for k, v in build_tokenizer_options(tokenizer).items() if k != "tokenizer_class"}
        made[name] = PreTrainedTokenizerFast(tokenizer_file=str(where / name / "tokenizer.json"), **options)
        made[name].pad_token = made[name].pad_token or made[name].eos_token
        made[name]._pad_token_type_id = 3 if tokenizer.is_left_padded else 0
    return made


@pytest.mark.filterwarnings("ignore:`max_length` is ignored")
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=15)
@given(
    rows=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4), pair=st.booleans(), special=st.booleans(),
    padding=st.sampled_from([False, True, "max_length"]), truncation=st.sampled_from([False, True, "only_first"]),
    size=st.integers(16, 24),
)  # fmt: skip
def test_as_transformers(theirs, name, rows, pair, special, padding, truncation, size):
    firsts, seconds = [a for a, _ in rows], [b for _, b in rows] if pair else None
    how = {"padding": padding, "truncation": truncation, "max_length": size, "add_special_tokens": special}
    if truncation == "only_first":  # where the first text alone cannot make room, transformers leaves the row long
        seconds = None
    want = theirs[name](firsts, seconds, return_token_type_ids=True, **how)
    found = TOKENIZERS[name](firsts, seconds, **how)
    assert found["input_ids"] == want["input_ids"]
    assert found["attention_mask"] == want["attention_mask"]
    if name in ("bert", "xlnet"):
        assert found["token_type_ids"] == want["token_type_ids"]
    assert ("token_type_ids" in found) == (name in ("bert", "xlnet"))


def test_tensors_go_into_a_model():
    tokenizer = TOKENIZERS["bert"]
    f = formers.build("bert", vocab=len(tokenizer), dim=16, layers=1, heads=2, ff=16, context=32)
    f.tokenizer = tokenizer
    batch = f.tokenizer(LINES[:2], padding=True, return_tensors="pt").to("cpu")
    assert list(batch) == ["input_ids", "token_type_ids", "attention_mask"]
    assert batch.input_ids.dtype == torch.int64
    said = f.logits(batch.input_ids, batch.attention_mask.bool(), batch.token_type_ids)["mlm"]
    ids = torch.tensor([tokenizer.encode(LINES[1])])
    size = ids.shape[1]
    torch.testing.assert_close(said[1, :size], f.logits(ids)["mlm"][0], rtol=1e-4, atol=1e-5)
    one = tokenizer("the cat", return_tensors="np")
    assert one["input_ids"].shape == (1, 4)
    assert isinstance(one["input_ids"], np.ndarray)
    assert tokenizer("the cat", "the mat")["input_ids"] == tokenizer.encode("the cat", "the mat")
    assert tokenizer([("the cat", "the mat")])["input_ids"] == [tokenizer.encode("the cat", "the mat")]
    assert tokenizer([], padding=True, return_tensors="np")["input_ids"].shape[0] == 0


@pytest.mark.parametrize(("how", "message"), [
    ({"return_tensors": "pt"}, "rows of different lengths"),
    ({"padding": "max_length"}, "no max_length"), ({"padding": "wide"}, "padding cannot be 'wide'"),
    ({"truncation": "all", "max_length": 4}, "truncation cannot be"), ({"max_length": 0}, "at least 1"),
    ({"return_tensors": "tf"}, "no tensors 'tf'"), ({"truncation": True, "max_length": 1}, "no room"),
    ({"text_pair": ["x"]}, "2 texts and 1 second"),
])  # fmt: skip
def test_what_means_nothing_is_refused(how, message):
    alone = Tokenizer(TOKENIZERS["bert"].json_text, TOKENIZERS["bert"].special)  # it belongs to no model
    with pytest.raises(formers.Error, match=message):
        alone(LINES[:2], **how)
    with pytest.raises(formers.Error, match="must be a string, not int"):
        TOKENIZERS["bert"]([1])


@pytest.mark.parametrize("way", ["save", "export"])
def test_a_loaded_model_says_where_texts_are_cut(way, tmp_path):
    tokenizer = TOKENIZERS["bert"]
    f = formers.build("bert", vocab=len(tokenizer), dim=16, layers=1, heads=2, ff=32, context=8)
    f.tokenizer = tokenizer
    getattr(formers, way)(f, tmp_path / "bert")
    read = formers.load(tmp_path / "bert").tokenizer
    assert read(LINES[0] * 9, padding=True, truncation=True, return_tensors="pt").input_ids.shape == (1, 8)
    assert len(read(LINES[0] * 9)["input_ids"]) > 8


def test_nothing_is_cut_where_there_is_no_limit():
    """A tokenizer of its own, or of a model without a context; with a model that has one, that is the limit."""
    made = train_tokenizer("bert", LINES, 120, workers=1)
    long = LINES[0] * 9
    whole = made(long)["input_ids"]
    assert made(long, truncation=True)["input_ids"] == whole
    formers.build("textcnn", vocab=len(made), embed=8).tokenizer = made
    assert made(long, truncation=True)["input_ids"] == whole
    formers.build("bert", vocab=len(made), dim=16, layers=1, heads=2, ff=32, context=8).tokenizer = made
    assert len(made(long, truncation=True)["input_ids"]) == 8
    assert len(made(long, truncation=True, max_length=5)["input_ids"]) == 5
    assert made(long)["input_ids"] == whole


def test_a_tokenizer_says_what_it_is():
    assert repr(TOKENIZERS["gpt2"]).startswith("Tokenizer(byte-level BPE, ")
    assert "cls [CLS]" in repr(TOKENIZERS["bert"])
    assert "unigram" in repr(TOKENIZERS["t5"])
