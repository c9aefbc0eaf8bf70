"""seq2seq and GNMT against functions written from the papers, word by word."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import formers
from formers import Error
from formers.generation.decoding import Options, continue_ids
from formers.inputs import ModelInputs
from formers.nn.attention.context import Capture
from formers.nn.attention.kv_cache import KVCache
from formers.tasks.word_vectors import fill_embedding
from formers.text.word_level import build_word_tokenizer
from tests.models import reference_rnn as reference
from tests.models.reference_rnn import copy_weights, draw_large_weights
from tests.nn.packing import pack_rows

SIZES = {"vocab": 19, "target_vocab": 17, "dim": 6, "embed": 5, "window": 2}
ATTENTION = {
    "none": {},
    "cho": {"feed": True, "readout": 4},
    "additive": {"attention": "additive", "readout": 4},
    "dot": {"attention": "dot"},
    "dot-fed": {"attention": "dot", "feed": True},
    "general": {"attention": "general"},
    "general-fed": {"attention": "general", "feed": True},
    "concat": {"attention": "concat"},
    "concat-fed": {"attention": "concat", "feed": True},
    "local-p": {"attention": "local"},
    "local-p-fed": {"attention": "local", "score": "concat", "feed": True},
    "local-m": {"attention": "local", "predict": False, "score": "dot"},
    "local-m-fed": {"attention": "local", "predict": False, "feed": True},
}
LENGTHS = ((5, 4), (1, 6), (7, 1), (4, 7))  # source and target


def build_model(family="seq2seq", **more):
    sizes = {k: v for k, v in SIZES.items() if k not in ("embed", "window")} if family == "gnmt" else SIZES
    return draw_large_weights(formers.build(family, **{**sizes, "dropout": 0.0, **more}))


def draw_pairs(seed=0):
    g = torch.Generator().manual_seed(seed)
    return [
        [torch.randint(v, (n,), generator=g).tolist() for v, n in zip((19, 17), pair, strict=True)] for pair in LENGTHS
    ]


def pad_pairs(pairs):
    def grid(rows):
        wide = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (wide - len(row))] for row in rows])
        return ids, torch.arange(wide) < torch.tensor([len(row) for row in rows])[:, None]

    ids, keep = grid([s for s, _ in pairs])
    target, target_keep = grid([t for _, t in pairs])
    return {"ids": ids, "keep": keep, "target": target, "target_keep": target_keep}


def compare_with_reference(f, function):
    """Logits, alignments and the gradient of every weight."""
    pairs, p = draw_pairs(), copy_weights(f)
    got = f.logits(**pad_pairs(pairs))
    capture = Capture(with_attention=True)
    f.model(f.pack_inputs(ModelInputs(**pad_pairs(pairs)))[0], capture=capture)
    answers, dual = [], torch.zeros(())
    upstream = torch.randn(got.shape, generator=torch.Generator().manual_seed(9))
    for row, (source, target) in enumerate(pairs):
        hidden, seen = function(p, f.config, source, target)
        want = hidden @ p["heads.lm.out.weight"].T + p["heads.lm.out.bias"]
        torch.testing.assert_close(got[row, : len(target)], want, atol=1e-5, rtol=1e-5)
        assert not got[row, len(target) :].any()
        dual = dual + (want * upstream[row, : len(target)]).sum()
        answers.append(want)
        if seen[0] is not None:
            grid = capture.attention_weights["cross"][0][row, 0]
            torch.testing.assert_close(grid[: len(target), : len(source)], torch.stack(seen), atol=1e-5, rtol=1e-5)
            assert not grid[len(target) :].any()
            assert not grid[:, len(source) :].any()
    (got * upstream).sum().backward()
    dual.backward()
    for name, w in f.model.named_parameters():
        want = p[name.removeprefix("body.")].grad
        torch.testing.assert_close(w.grad, want, atol=1e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("attention", ATTENTION)
def test_seq2seq(kind, attention):
    compare_with_reference(build_model(cell=kind, **ATTENTION[attention]), reference.run_seq2seq)


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("attention", [name for name in ATTENTION if "dot" not in name and name != "local-m"])
def test_seq2seq_of_two_layers_in_both_directions(kind, attention):
    compare_with_reference(
        build_model(cell=kind, layers=2, bidirectional=True, **ATTENTION[attention]), reference.run_seq2seq
    )


@pytest.mark.parametrize("attention", ["none", "additive", "general"])
def test_seq2seq_reads_from_the_end(attention):
    compare_with_reference(build_model(layers=2, reverse=True, **ATTENTION[attention]), reference.run_seq2seq)


@pytest.mark.parametrize(("layers", "decoder_layers"), [(2, None), (4, None), (3, 1), (2, 5)])
def test_gnmt(layers, decoder_layers):
    compare_with_reference(build_model("gnmt", layers=layers, decoder_layers=decoder_layers), reference.run_gnmt)


@pytest.mark.parametrize("kind", [*ATTENTION, "gnmt"])
def test_greedy_word_for_word(kind):
    """With the state of the caller, in a batch, against the equations applied to all that has been said so far."""
    f = build_model("gnmt", layers=3) if kind == "gnmt" else build_model(**ATTENTION[kind])
    function, p = reference.run_gnmt if kind == "gnmt" else reference.run_seq2seq, copy_weights(f)
    f.config = dataclasses.replace(f.config, start=2, eos=1)
    sources = [source for source, _ in draw_pairs()]
    for source, got in zip(sources, continue_ids(f, sources, 8, Options(temperature=0)), strict=True):
        said = [2]
        while len(said) < 9 and (len(said) == 1 or said[-1] != 1):
            hidden, _ = function(p, f.config, source, said)
            said.append(int((p["heads.lm.out.weight"] @ hidden[-1] + p["heads.lm.out.bias"]).argmax()))
        assert got == [word for word in said[1:] if word != 1]


@pytest.mark.parametrize("family", ["textcnn", "seq2seq", "gnmt"])
@pytest.mark.parametrize("frozen", [False, True])
def test_word_vectors_as_the_first_layer(family, frozen):
    """Of the words that have a vector, the model reads it; frozen, it stays."""
    words = ["[UNK]", *(f"w{i}" for i in range(16))]
    wide = 6 if family == "gnmt" else 5
    known = formers.build("vectors", vocab=12, dim=wide)
    known.tokenizer = build_word_tokenizer([*words[:6], *(f"other{i}" for i in range(6))])
    f = formers.build("textcnn", **CNN) if family == "textcnn" else build_model(family)
    body, fresh = f.model.body, f.model.body.embed.token.weight.detach().clone()
    tables = [body.embed.token, *([] if family == "textcnn" else [body.target.token])]
    for table in tables:
        found = fill_embedding(table, build_word_tokenizer(words), known, frozen=frozen)
        assert found.num_found == 5
        assert torch.equal(table.weight[1:6], known.model.body.embedding_table[1:6])
    assert torch.equal(body.embed.token.weight[6:], fresh[6:])
    given = {} if family == "textcnn" else {"target": torch.tensor([[4, 8]])}
    f.logits(torch.tensor([[1, 5, 7, 3]]), **given).square().sum().backward()
    for table in tables:
        assert (table.weight.grad is None) == frozen
    assert any(p.grad is not None and p.grad.any() for p in f.model.parameters())


def test_one_table_for_all():
    f = build_model(target_vocab=None, vocab=17, shared=True, tied=True, dim=5)
    assert {name for name, _ in f.model.named_parameters() if "token" in name} == {"body.embed.token.weight"}
    assert f.model.heads["lm"].out.weight is None
    f.logits(torch.tensor([[3, 4]]), target=torch.tensor([[5]]))


VARIANTS = [{"cell": kind, **ATTENTION[name]} for kind, name in zip(itertools.cycle(("gru", "lstm", "rnn")), ATTENTION)]


@pytest.mark.parametrize("more", [*VARIANTS, "gnmt"], ids=[*ATTENTION, "gnmt"])
@settings(max_examples=8)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_pieces_equal_the_whole(more, lengths, random):
    f = build_model("gnmt", layers=3) if more == "gnmt" else build_model(layers=2, **more)
    rows = [[random.randrange(17) for _ in range(n)] for n in lengths]
    source = pack_rows([[7, 3, 1], [9, 1], [4, 4, 4, 1], [2]][: len(rows)])
    with torch.inference_mode():
        whole = f.model.logits(f.model(pack_rows(rows).replace(source=source)))
        ends = torch.tensor([0, *map(len, rows)]).cumsum(0)
        cache, done = KVCache(len(rows), 40), [0] * len(rows)
        while any(d < len(row) for d, row in zip(done, rows, strict=True)):
            taken = [random.randint(0, min(3, len(row) - d)) for d, row in zip(done, rows, strict=True)]
            if not any(taken):
                taken = [min(1, len(row) - d) for d, row in zip(done, rows, strict=True)]
            piece = pack_rows([row[d : d + n] for row, d, n in zip(rows, done, taken, strict=True)])
            got = f.model.logits(f.model(piece.replace(source=source), cache=cache))
            want = torch.cat([whole[ends[r] + done[r] :][:n] for r, n in enumerate(taken)])
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
            done = [d + n for d, n in zip(done, taken, strict=True)]
        assert cache.lengths.tolist() == [len(row) for row in rows]


@pytest.mark.parametrize("family", ["seq2seq", "gnmt"])
def test_the_encoder_runs_once_and_the_state_is_the_callers(family, monkeypatch):
    more = {"layers": 2} if family == "gnmt" else {"attention": "additive"}
    f, calls = build_model(family, **more), []
    run = f.model.body.encoder.forward
    monkeypatch.setattr(f.model.body.encoder, "forward", lambda *a, **k: calls.append(1) or run(*a, **k))
    ids, target = torch.tensor([[3, 4, 1]]), torch.tensor([[5, 6, 7]])
    whole = f.logits(ids, target=target)
    one, two = KVCache(1, 3), KVCache(1, 3)
    for t in range(3):  # two readers at once do not disturb each other
        for cache in (one, two):
            step = f.logits(ids, target=target[:, t : t + 1], memory=cache)
            torch.testing.assert_close(step[:, 0], whole[:, t], atol=1e-5, rtol=1e-5)
    assert len(calls) == 3
    assert not any(s.requires_grad for s in one.recurrent_state)


def test_encode_and_decode_by_hand():
    f = build_model(attention="general", layers=2)
    batch = pack_rows([[5, 6, 7], [8]]).replace(source=pack_rows([[3, 4, 1], [2, 2]]))
    cache, body = KVCache(2, 3), f.model.body
    memory = body.encode(batch.source, cache=cache)
    assert memory.shape == (5, 6)
    torch.testing.assert_close(body.decode(batch, memory, batch.source.layout, cache=cache), f.model(batch))
    with pytest.raises(Error, match="needs a state to begin with"):
        body.decode(batch, memory, batch.source.layout)


def test_attention_compiles_too():
    torch._dynamo.reset()
    f = build_model(bidirectional=True, cell="gru", **ATTENTION["local-p-fed"])
    batch = pack_rows([[5, 6], [8]]).replace(source=pack_rows([[3, 4], [2]]))

    def run(model, batch):
        return (model.logits(model(batch)) ** 2).sum()

    (want := run(f.model, batch)).backward()
    gradients = [p.grad.clone() for p in f.model.parameters()]
    f.model.zero_grad()
    (got := torch.compile(run, fullgraph=True, backend="aot_eager")(f.model, batch)).backward()
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-5)
    for p, gradient in zip(f.model.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["seq2seq", "gnmt", "textcnn"])
def test_under_autocast(family):
    f = formers.build(family, vocab=19, **({"embed": 5} if family == "textcnn" else {"dim": 6}))
    more = {} if family == "textcnn" else {"target": torch.tensor([[3, 4], [5, 6]])}
    with torch.autocast("cpu", torch.bfloat16):
        out = f.logits(torch.tensor([[3, 4, 5], [6, 7, 8]]), **more)
    assert out.isfinite().all()
    out.sum().backward()


def test_what_cannot_work_is_said():
    for settings_, message in (
        ({"attention": "dot", "bidirectional": True}, "states of 1000 and a memory of 2000 have no dot product"),
        ({"attention": "local", "score": "dot", "bidirectional": True}, "have no dot product"),
        ({"attention": "additive", "feed": True}, "always feeds its context"),
        ({"shared": True, "target_vocab": 5}, "cannot share their embeddings"),
        ({"tied": True}, "an output of 1000 numbers cannot be tied to embeddings of 500. Set embed to 1000"),
        ({"cell": "lstmm"}, "setting 'cell' cannot be 'lstmm'"),
        ({"layers": 0}, "layers must be at least 1"),
    ):
        with pytest.raises(Error) as caught:
            formers.build("seq2seq", **settings_)
        assert message in str(caught.value)
    with pytest.raises(Error, match="Set layers to 2 or more"):
        formers.build("gnmt", layers=1)


@pytest.mark.parametrize("family", ["seq2seq", "gnmt", "textcnn"])
def test_there_are_no_heads_to_mask(family):
    f = formers.build(family, vocab=19, **({"embed": 5} if family == "textcnn" else {"dim": 6}))
    more = {} if family == "textcnn" else {"target": torch.tensor([[3]])}
    with pytest.raises(Error) as caught:
        f.logits(torch.tensor([[3, 4]]), heads=torch.ones(1, 1), **more)
    assert str(caught.value) == "this model has no attention heads that could be masked. Leave heads out"


def test_hidden_states_of_layers():
    f = build_model(layers=2, attention="additive", bidirectional=True)
    ids, target = torch.tensor([[3, 4, 5]]), torch.tensor([[6, 7]])
    assert f.hidden(ids).shape == (1, 3, 12)
    assert f.hidden(ids, layer=0).shape == (1, 3, 5)
    p = copy_weights(f)
    first = f.hidden(ids, layer=1)
    want, _ = reference.run_layer("lstm", p, "encoder.layers.0", list(p["embed.token.weight"][[3, 4, 5]]), 6, True)
    torch.testing.assert_close(first[0], torch.stack(want), atol=1e-5, rtol=1e-5)
    assert [f.hidden(ids, target=target, layer=i).shape[-1] for i in range(3)] == [5, 6, 5]
    with pytest.raises(Error, match=r"different widths \(5, 12, 12\)"):
        f.hidden(ids, layer=None)
    backwards = build_model(layers=2, reverse=True)
    p = copy_weights(backwards)
    want, _ = reference.read_text("lstm", p, "encoder.layers.0.ahead", list(p["embed.token.weight"][[5, 4, 3]]), 6)
    torch.testing.assert_close(backwards.hidden(ids, layer=1)[0], torch.stack(want[::-1]), atol=1e-5, rtol=1e-5)
    assert formers.build("gnmt", vocab=19, dim=6, layers=3).hidden(ids, target=target, layer=None).shape == (4, 1, 2, 6)


def test_published_sizes():
    with torch.device("meta"):
        f = formers.build("seq2seq", preset="sutskever-2014")
    sizes = {name: p.numel() for name, p in f.model.named_parameters()}
    assert sum(n for name, n in sizes.items() if name.endswith("weight")) == 384_000_000  # §3.4
    assert sum(n for name, n in sizes.items() if name.endswith("weight") and "layers" in name) == 64_000_000


PAPERS = {  # cell, layers, both directions, reversed source, attention, its score and window, what is fed, widths
    "sutskever-2014": ("lstm", 4, False, True, "none", None, None, False, 1000, 1000),
    "cho-2014": ("gru", 1, False, False, "none", None, None, True, 100, 1000),
    "rnnsearch": ("gru", 1, True, False, "additive", None, None, False, 620, 1000),
    "luong-global": ("lstm", 4, False, True, "general", None, None, True, 1000, 1000),
    "luong-local": ("lstm", 4, False, True, "local", "general", 10, True, 1000, 1000),
}


@pytest.mark.parametrize("preset", PAPERS)
def test_presets_attend_as_in_their_papers(preset):
    with torch.device("meta"):
        c = formers.build("seq2seq", preset=preset).config
    local = (c.score, c.window) if c.attention == "local" else (None, None)
    made = (c.cell, c.layers, c.bidirectional, c.reverse, c.attention, *local, c.feed, c.embed, c.dim)
    assert made == PAPERS[preset]
    assert c.predict, "local-p"


CNN = {"vocab": 19, "embed": 5, "filters": 4, "widths": (2, 3, 3, 5), "dropout": 0.0}
