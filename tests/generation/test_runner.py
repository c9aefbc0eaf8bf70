"""A runner answers as the model does when it reads everything anew: in any batch, along any parents, on any path."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.generation.runner import Runner, pad_output_layer
from formers.nn import cpu_kernels
from formers.nn.attention import dispatch, kv_cache
from formers.nn.attention.kernels import decode
from tests.generation.small_decoders import SIZES, SOURCES, build_decoder
from tests.nn import slow_triton

PAIRS = ("bart", "t5", "seq2seq")


@torch.inference_mode()
def score_alone(f, text, source):
    more = (
        {"target": torch.tensor([text]), "ids": torch.tensor([source])}
        if f.is_encoder_decoder
        else {"ids": torch.tensor([text])}
    )
    return f.logits(**more)[0, -1]


def measure_beam_error(family, steps=5):
    """Three rows for each of two texts, along random parents; the difference to reading each text anew."""
    f, generator = build_decoder(family), torch.Generator().manual_seed(3)
    sources = SOURCES if f.is_encoder_decoder else None
    runner = Runner(f, 6, 30, sources, rows_per_source=3)
    prompts = [[1, 2], [5, 6, 7, 8]]
    texts = [list(prompts[i // 3]) for i in range(6)]
    got = runner.score_next([texts[i] if i % 3 == 0 else [] for i in range(6)])
    runner.reorder_rows([0, 0, 0, 3, 3, 3])
    got, worst = got[[0, 0, 0, 3, 3, 3]], 0.0
    for _ in range(steps):
        want = torch.stack([score_alone(f, text, SOURCES[i // 3]) for i, text in enumerate(texts)])
        worst = max(worst, float((got - want).abs().max()))
        parents = [int(torch.randint(0, 3, (), generator=generator)) + i // 3 * 3 for i in range(6)]
        runner.reorder_rows(parents)
        texts = [[*texts[p], int(torch.randint(0, 50, (), generator=generator))] for p in parents]
        got = runner.score_next([[text[-1]] for text in texts])
    return worst


@pytest.mark.parametrize("family", SIZES)
def test_rows_follow_any_parents(family):
    assert measure_beam_error(family) <= 1e-5


@pytest.mark.parametrize("family", ["gpt2", "bloom", "gpt_neo", "bart", "t5"])
def test_the_kernel_for_single_steps_as_well(family, monkeypatch):
    made, seen = slow_triton.load_kernels("attention.kernels.decode_triton"), []
    monkeypatch.setattr(decode, "load_kernels", lambda: made)
    for module in (decode, kv_cache):
        monkeypatch.setattr(module, "is_available", lambda device, dtype: True)
    monkeypatch.setattr(cpu_kernels, "load_kernels", lambda: None)
    step = dispatch.KERNELS["decode"]
    monkeypatch.setitem(dispatch.KERNELS, "decode", lambda call: seen.append(1) or step(call))
    norm, sums = decode.add_norm, []
    monkeypatch.setattr(decode, "add_norm", lambda *a: sums.append(1) or norm(*a))
    assert measure_beam_error(family, 3) <= 1e-5
    assert seen
    assert sums, "a sum and its norm are one kernel"


@pytest.mark.parametrize("family", ["gpt2", "bart", "t5"])
def test_an_output_layer_filled_up(family):
    """As on a GPU, where a vocabulary that is no multiple of 8 is slow."""
    f = build_decoder(family)
    plain, wide = (Runner(f, 2, 12, SOURCES if f.is_encoder_decoder else None) for _ in range(2))
    wide.padded_output = pad_output_layer(f)
    assert wide.padded_output[0].shape[0] == 64
    for fed in ([[1, 2], [3]], [[4], [5]]):
        torch.testing.assert_close(wide.score_next(fed), plain.score_next(fed), atol=1e-6, rtol=1e-6)
    assert f.model.parts["lm"].out.padded_weights is None
    assert pad_output_layer(formers.build("gpt2", vocab=48, dim=16, heads=2, layers=1)) is None


def test_rows_of_different_lengths_follow_by_a_copy():
    """Row 1 goes back to a shorter text and writes where row 0, that came from it, still looks."""
    f = build_decoder("gpt2")
    runner = Runner(f, 3, 20)
    runner.score_next([[1], [2, 3, 4], [5, 6]])
    runner.reorder_rows([1, 2, 2])
    got = runner.score_next([[9], [8], [7]])
    for row, text in enumerate(([2, 3, 4, 9], [5, 6, 8], [5, 6, 7])):
        assert (got[row] - score_alone(f, text, None)).abs().max() <= 1e-5


def test_a_cache_forgets():
    f = build_decoder("gpt2")
    runner = Runner(f, 2, 20)
    runner.score_next([[1, 2, 3, 4], [5, 6]])
    runner.reorder_rows([0, 0])
    runner.forget_tokens([3, 1])
    got = runner.score_next([[9, 8], [7]])
    for row, text in enumerate(([1, 9, 8], [1, 2, 3, 7])):
        assert (got[row] - score_alone(f, text, None)).abs().max() <= 1e-5


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_fixed_cache_as_a_growing_one(family):
    f = build_decoder(family)
    fed, more = [[1, 2], [3]], [torch.tensor([4, 5]), torch.tensor([6, 7])]
    sources = SOURCES if f.is_encoder_decoder else None
    plain, fixed = Runner(f, 2, 12, sources), Runner(f, 2, 12, sources)
    for runner in (plain, fixed):
        runner.score_next(fed)
    with torch.inference_mode():
        fixed.state.make_static()
    for ids in more:
        torch.testing.assert_close(fixed.step(ids), plain.step(ids), atol=1e-5, rtol=1e-5)
    fixed.unfix_cache()
    torch.testing.assert_close(fixed.score_next([[1, 2], [3]]), plain.score_next([[1, 2], [3]]), atol=1e-5, rtol=1e-5)


def test_sources_are_read_once(monkeypatch):
    f, seen = build_decoder("bart"), []
    encode = f.model.body.encode
    monkeypatch.setattr(f.model.body, "encode", lambda b, **k: seen.append(b.ids.shape[0]) or encode(b, **k))
    runner = Runner(f, 6, 10, SOURCES, rows_per_source=3)
    runner.score_next([[1]] * 6)
    assert seen == [8]
    assert runner.state[0].cross_kv[0].shape[0] == 2, "cross keys are held once for each source"
