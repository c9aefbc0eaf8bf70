"""ELMo against an independent reference: numbers, gradients, state, Korean words."""

from __future__ import annotations

import pytest
import torch

import formers
from formers import Error
from formers.models.elmo import build_key_map
from formers.nn.recurrent.projected_lstm import LSTMState
from formers.text import word_level
from tests.models import reference_elmo as reference

SMALL = {
    "vocab": 31, "char_dim": 5, "filters": ((1, 4), (2, 5), (3, 6), (7, 8)), "dim": 16, "cell": 14,
    "cell_clip": 0.6, "clip": 0.4,
}  # fmt: skip
TEXTS = [
    ["나는", "어제", "김치찌개를", "먹었다", "."],
    ["The", "cat"],
    ["한국어자연어처리라이브러리를만드는사람들의모임"],  # 24 syllables: 72 bytes, cut after 16
    ["a", "b", "a", "naïve", "the", "the", "x" * 60],
]


def build_elmo(head="none", seed=3, **more):
    f = formers.build("elmo", head, seed=seed, **{**SMALL, **more})
    g = torch.Generator().manual_seed(seed)
    for parameter in f.model.parameters():  # large enough that some states are clipped
        with torch.no_grad():
            parameter.add_(torch.randn(parameter.shape, generator=g) * 0.4)
    return f


def rename_weights(f):
    """The weights under bilm-tf's names, and its options."""
    found = {}
    parameters = dict(f.model.named_parameters())
    names = [name for name in parameters if name.startswith(("body.", "heads.lm."))]
    for move in build_key_map(f.config, f.head).map_tensors(names):
        found |= {name: t.clone() for name, t in move.save(parameters[move.ours].detach()).items()}
    c = f.config
    lstm = {
        "dim": c.cell, "n_layers": c.layers, "projection_dim": c.dim // 2, "cell_clip": c.cell_clip,
        "proj_clip": c.clip, "use_skip_connections": c.skip,
    }  # fmt: skip
    return found, {"lstm": lstm, "char_cnn": {"filters": c.filters, "n_highway": c.highways}}


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_equal_to_the_reference(layers, skip):
    f = build_elmo(layers=layers, skip=skip)
    weights, options = rename_weights(f)
    ids, keep = word_level.encode_sentences(TEXTS)
    got = f.hidden(ids, keep, layer=None)
    assert got.shape == (layers + 1, 4, 9, 16)
    clipped = False
    for row, text in enumerate(TEXTS):
        want, state = reference.read_sentence(weights, options, word_level.encode_sentence(text).tolist())
        torch.testing.assert_close(got[:, row, : len(text) + 2], want, atol=1e-5, rtol=1e-5)
        assert not got[:, row, len(text) + 2 :].any()
        clipped |= any((h.abs() == 0.4).any() and (c.abs() == 0.6).any() for h, c in state.values())
    assert clipped


def test_gradients_equal_the_reference():
    f = build_elmo()
    weights, options = rename_weights(f)
    for tensor in weights.values():
        tensor.requires_grad_()
    ids, keep = word_level.encode_sentences(TEXTS)
    factors = torch.randn(3, 4, 9, 16)
    (f.hidden(ids, keep, layer=None) * factors).sum().backward()
    total = 0
    for row, text in enumerate(TEXTS):
        want, _ = reference.read_sentence(weights, options, word_level.encode_sentence(text).tolist())
        total = total + (want * factors[:, row, : len(text) + 2]).sum()
    total.backward()
    parameters = dict(f.model.named_parameters())
    checked = set()
    for move in build_key_map(f.config, "none").map_tensors(parameters):
        for name, gradient in move.save(parameters[move.ours].grad).items():
            scale = max(1.0, float(weights[name].grad.abs().max()))
            torch.testing.assert_close(gradient / scale, weights[name].grad / scale, atol=1e-5, rtol=1e-4)
            checked.add(name)
    assert checked == set(weights)
    assert not f.model.body.embed.character.weight.grad[0].any()


def test_both_directions_share_the_softmax():
    f = build_elmo("lm")
    weights, options = rename_weights(f)
    ids, keep = word_level.encode_sentences(TEXTS[:2])
    logits = f.logits(ids, keep)
    assert logits.shape == (2, 7, 2, 31)
    for row, text in enumerate(TEXTS[:2]):
        layers, _ = reference.read_sentence(weights, options, word_level.encode_sentence(text).tolist())
        for way, half in enumerate(layers[-1].chunk(2, -1)):
            want = half @ weights["softmax/W"].T + weights["softmax/b"]
            torch.testing.assert_close(logits[row, : len(text) + 2, way], want, atol=1e-5, rtol=1e-5)


def test_the_state_is_carried_from_batch_to_batch():
    f = build_elmo()
    weights, options = rename_weights(f)
    batches = [TEXTS[:3], [["다시"], ["one", "more", "time"]], [["x"], ["y", "z"], ["끝", "."], ["new"]]]
    state, known = LSTMState(), {}
    with torch.no_grad():
        for texts in batches:
            ids, keep = word_level.encode_sentences(texts)
            got = f.hidden(ids, keep, layer=None, memory=state)
            for row, text in enumerate(texts):
                want, known[row] = reference.read_sentence(
                    weights, options, word_level.encode_sentence(text).tolist(), known.get(row)
                )
                torch.testing.assert_close(got[:, row, : len(text) + 2], want, atol=1e-5, rtol=1e-5)
    assert state.layers[0][0].shape == (2, 4, 8)  # row 2 was kept while a batch had two rows, row 3 began from zero
    alone = f.hidden(*word_level.encode_sentences([["x"]]))
    assert not torch.allclose(f.hidden(*word_level.encode_sentences([["x"]]), memory=state), alone)


def test_a_state_passes_no_gradient_on():
    f, state = build_elmo(), LSTMState()
    f.hidden(*word_level.encode_sentences([["a", "b"]]), memory=state)
    f.hidden(*word_level.encode_sentences([["c"]]), memory=state).sum().backward()
    assert all(p.grad is not None for p in f.model.parameters())
    assert not any(t.requires_grad for pair in state.layers.values() for t in pair)


def test_the_mix_of_layers():
    f = build_elmo("tag", labels=3)
    weights, options = rename_weights(f)
    part = f.model.parts["tag"]
    got = f.logits(*word_level.encode_sentences(TEXTS[:1]))
    layers, _ = reference.read_sentence(weights, options, word_level.encode_sentence(TEXTS[0]).tolist())
    mixed = reference.mix_layers(layers, part.mix.weight, part.mix.scale)
    want = mixed @ part.out.weight.T + part.out.bias
    torch.testing.assert_close(got[0], want, atol=1e-5, rtol=1e-5)
    assert torch.equal(
        f.hidden(*word_level.encode_sentences(TEXTS[:1])),
        build_elmo("none").hidden(*word_level.encode_sentences(TEXTS[:1])),
    )


def test_the_mix_with_norms():
    ids, keep = word_level.encode_sentences(TEXTS)
    plain = build_elmo("none").hidden(ids, keep, layer=None)[:, torch.from_numpy(keep)]  # (layers, N, dim)
    for norm, axes in (("token", (2,)), ("batch", (1, 2))):
        f = build_elmo("tag", mix=norm)
        part = f.model.parts["tag"]
        mean = plain.mean(axes, keepdim=True)
        layers = (plain - mean) / ((plain - mean) ** 2).mean(axes, keepdim=True).sqrt()
        want = reference.mix_layers(layers, part.mix.weight, part.mix.scale) @ part.out.weight.T + part.out.bias
        torch.testing.assert_close(f.logits(ids, keep)[torch.from_numpy(keep)], want, atol=1e-4, rtol=1e-4)


def test_at_the_start_the_mix_is_even_and_highways_carry():
    f = formers.build("elmo", "classify", **SMALL)
    mix = f.model.parts["classify"].mix
    assert not mix.weight.any()
    assert mix.scale.tolist() == [1.0]
    assert all((h.gate.bias == -2).all() and not h.transform.bias.any() for h in f.model.body.embed.highways)
    assert not any(layer.bias.any() for layer in f.model.body.layers)


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("elmo-original", 93_600_864), ("elmo-medium", 28_027_744), ("elmo-small", 13_593_312)],
)
def test_published_sizes(preset, parameters):
    with torch.device("meta"):
        model = formers.build("elmo", "none", preset=preset).model
    assert sum(p.numel() for p in model.parameters()) == parameters


IDS, KEEP = word_level.encode_sentences(TEXTS[:2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build_elmo("lm").logits(IDS[:, :, :40]), "ids must be (rows, words, 50), got"),
        (lambda: build_elmo("lm").logits(IDS[0]), "got (7, 50). formers.text.word_level.encode_sentences"),
        (lambda: build_elmo("lm").logits(IDS + 1), "is 262, outside the characters of 262"),
        (lambda: build_elmo("lm").logits(IDS, KEEP[:, :3]), "keep (2, 3) does not fit ids (2, 7, 50)"),
        (lambda: build_elmo("lm").logits(IDS, KEEP & False), "row 0 of ids has no token at all"),
        (lambda: build_elmo("lm").logits(IDS, heads=torch.ones(2, 2)), "no attention heads that could be masked"),
        (lambda: build_elmo("lm").logits(IDS, segments=KEEP * 0), "does not read segments"),
        (lambda: build_elmo().logits(IDS), "a bare elmo has no logits"),
        (lambda: build_elmo("answer"), "ELMo has no head 'answer'"),
        (lambda: formers.build("elmo", dim=7), "dim must be even"),
        (lambda: formers.build("elmo", clip=0.0), "a clip must be above 0"),
        (lambda: formers.build("elmo", filters=[[51, 2]]), "filters must be pairs (width, number) with widths up to"),
        (lambda: formers.build("elmo", filters=[[1, 2, 3]]), "filters must be pairs"),
        (lambda: formers.build("elmo", filters=[]), "filters must be pairs"),
        (lambda: formers.build("elmo", highways=101), "highways must be at most 100"),
    ],
)
def test_what_cannot_work(call, message):
    with pytest.raises(Error) as caught:
        call()
    assert message in str(caught.value)


def test_it_does_not_continue_text():
    from formers.generation.decoding import continue_ids

    with pytest.raises(Error, match="does not continue text"):
        continue_ids(build_elmo("lm"), [[1, 2]], 3)


def test_several_texts_for_each_row():
    f = build_elmo("classify", labels=2)
    ids = torch.from_numpy(IDS)
    pairs = torch.stack((ids, ids.flip(0)))
    assert f.logits(pairs).shape == (2, 2, 2)
    torch.testing.assert_close(f.logits(pairs)[1, 0], f.logits(ids)[1])
