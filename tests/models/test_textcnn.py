"""TextCNN against functions written from the paper, word by word."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import formers
from formers import Error
from formers.model import pool_hidden
from formers.models import textcnn
from formers.nn.attention.kv_cache import KVCache
from formers.nn.recurrent.convolution import clip_row_norms
from tests.models import reference_rnn as reference
from tests.models.reference_rnn import copy_weights, draw_large_weights
from tests.nn.packing import pack_rows

CNN = {"vocab": 19, "embed": 5, "filters": 4, "widths": (2, 3, 3, 5), "dropout": 0.0}


@pytest.mark.parametrize("channels", ["trained", "static", "both"])
@pytest.mark.parametrize("act", ["relu", "tanh"])
def test_textcnn(channels, act):
    f = draw_large_weights(formers.build("textcnn", labels=3, channels=channels, act=act, **CNN))
    rows, p = [[3, 4, 5, 6, 7, 8, 9], [10], [11, 12, 3, 3]], copy_weights(f)
    batch = pack_rows(rows)
    got = f.model.logits(f.model(batch), batch)
    upstream, dual = torch.randn(got.shape), torch.zeros(())
    for row, words in enumerate(rows):
        want = p["heads.classify.out.weight"] @ reference.run_textcnn(p, f.config, words) + p["heads.classify.out.bias"]
        torch.testing.assert_close(got[row], want, atol=1e-5, rtol=1e-5)
        dual = dual + want @ upstream[row]
    (got * upstream).sum().backward()
    dual.backward()
    frozen = {"trained": set(), "static": {"body.embed.token.weight"}, "both": {"body.fixed.token.weight"}}[channels]
    for name, w in f.model.named_parameters():
        assert w.requires_grad == (name not in frozen)
        if w.requires_grad:
            torch.testing.assert_close(w.grad, p[name.removeprefix("body.")].grad, atol=1e-5, rtol=1e-4)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=5).filter(any), st.integers(0, 10))
def test_no_filter_and_no_maximum_crosses_a_document(lengths, seed):
    f = draw_large_weights(formers.build("textcnn", **CNN))
    g = torch.Generator().manual_seed(seed)
    rows = [torch.randint(19, (n,), generator=g).tolist() for n in lengths]
    batch = pack_rows(rows)
    together = f.model(batch)
    most = pool_hidden(together, batch, "max")
    assert most.isfinite().all()
    place = 0
    for row, words in enumerate(rows):
        if words:
            alone = f.model(pack_rows([words]))
            torch.testing.assert_close(together[place : place + len(words)], alone, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(most[row], alone.amax(0), atol=1e-5, rtol=1e-5)
        else:
            assert not most[row].any()
        place += len(words)


def test_rows_above_three_become_three_long_and_others_stay():
    f = formers.build("textcnn", labels=4, **CNN)
    weight = f.model.heads["classify"].out.weight
    with torch.no_grad():
        weight.copy_(torch.randn(4, 16) * torch.tensor([[0.1], [5.0], [0.5], [2.0]]))
    before = weight.detach().clone()
    want = reference.max_norm(before, 3.0)
    textcnn.clip_output_norms(f.model, f.config)
    torch.testing.assert_close(weight.detach(), want, atol=1e-6, rtol=1e-6)
    long = before.norm(dim=1) > 3
    assert 0 < long.sum() < 4
    assert torch.equal(weight[~long], before[~long])
    torch.testing.assert_close(weight[long].norm(dim=1), torch.full((int(long.sum()),), 3.0))
    zero = torch.zeros(2, 3)
    clip_row_norms(zero, 3.0)
    assert not zero.any()


def test_it_can_start_from_word_vectors():
    f = formers.build("textcnn", channels="both", **CNN)
    vectors = torch.randn(19, 5) * 2 + 1
    f.model.body.load_word_vectors(vectors.numpy())
    assert torch.equal(f.model.body.embed.token.weight, vectors)
    assert torch.equal(f.model.body.fixed.token.weight, vectors)
    known, other = torch.arange(19) < 15, formers.build("textcnn", **CNN)
    before = other.model.body.embedding_table.detach().clone()
    other.model.body.load_word_vectors(vectors, known)
    after = other.model.body.embedding_table.detach()
    assert torch.equal(after[:15], vectors[:15])
    assert float(after[15:].std()) == pytest.approx(float(vectors[:15].std()), rel=1e-5)
    torch.testing.assert_close(after[15:] / after[15, 0], before[15:] / before[15, 0])  # the same, stretched
    with pytest.raises(Error, match=r"word vectors of shape \(3, 5\) do not fit a table of \(19, 5\)"):
        f.model.body.load_word_vectors(vectors[:3])


def test_textcnn_refuses_what_makes_no_sense():
    for more, message in (
        ({"widths": ()}, "widths must be numbers"),
        ({"widths": (0,)}, "widths must be numbers"),
        ({"max_norm": 0.0}, "max_norm must be above 0"),
        ({"tied": True}, "no output layer that could be tied"),
        ({"act": "rellu"}, "unknown activation"),
    ):
        with pytest.raises(Error, match=message):
            formers.build("textcnn", **{**CNN, **more})
    with pytest.raises(Error, match="keeps no memory"):
        formers.build("textcnn", **CNN).logits(torch.tensor([[3]]), memory=KVCache(1, 4))
