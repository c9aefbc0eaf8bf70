"""Our own kernels on a CPU: exact where numbers are whole, near to torch's elsewhere, and absent without a compiler."""

from __future__ import annotations

import copy
import os
import signal

import pytest
import torch
import torch.nn.functional as F

import formers
from formers.generation.decoding import Options, continue_ids
from formers.nn import cpu_kernels
from formers.nn.attention.kernels import decode
from formers.nn.cpu_inference import PlainKernel, QuantisedLinear, build_kernel
from formers.nn.cpu_kernels import load_kernels, pack_weight, pad_to_panels

needs_kernels = pytest.mark.skipif(load_kernels() is None, reason="no compiler, or another processor")


@needs_kernels
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 13, 40])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (64, 64), (65, 67), (200, 130)])
def test_the_sums_of_torchs_kernels_bit_for_bit(rows, outputs, inputs):
    weight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    x = 50 * torch.randn(rows, inputs)
    x[0] = 0
    scale, ones = x.abs().amax(1, keepdim=True).mul_(1 / 127), torch.ones(outputs)
    whole = torch.where(scale > 0, x / scale, 0.0).round()
    want = build_kernel(PlainKernel, weight, ones)(whole) * scale
    for threads in (1, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            got = load_kernels().multiply(x, pack_weight(weight), pad_to_panels(ones), None, outputs)
        finally:
            torch.set_num_threads(before)
        assert torch.equal(got, want)


@needs_kernels
def test_a_row_that_is_not_finite_stays_so_and_alone():
    layer, x = QuantisedLinear(torch.randn(70, 40), torch.randn(70)), torch.randn(4, 40)
    want = layer(x)
    for bad in (float("nan"), float("inf")):
        spoilt = x.clone()
        spoilt[1, 3] = bad
        got = layer(spoilt)
        assert got[1].isnan().all()
        assert torch.equal(got[[0, 2, 3]], want[[0, 2, 3]])


def attend_by_torch(q, k, v, lengths, scale, table=None, bias=None, width=0):
    out, each = torch.zeros_like(q), len(q) // len(k)
    for n in range(len(q)):
        row, end = n // each, int(lengths[n // each])
        slots = range(max(0, end - width) if width else 0, end)
        holders = [row if table is None else int(table[row, t]) for t in slots]
        for h in range(q.shape[1]):
            keys = torch.stack([k[holder, t, h] for holder, t in zip(holders, slots, strict=True)])
            values = torch.stack([v[holder, t, h] for holder, t in zip(holders, slots, strict=True)])
            scores = keys @ q[n, h] * scale
            scores = scores if bias is None else scores + torch.stack([bias[h, end - 1 - t] for t in slots])
            out[n, h] = scores.softmax(0) @ values
    return out


@needs_kernels
@pytest.mark.parametrize("has_table", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("each", [1, 2])
def test_attention_over_a_cache(has_table, has_bias, width, each):
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(3 * each, 3, 5, 6, generator=generator)  # as a product leaves them: not in one piece
    q, new_k, new_v = qkv.unbind(1)
    k, v = (torch.randn(3, 8, 5, 6, generator=generator) for _ in range(2))
    lengths = torch.tensor([1, 8, 4])
    table = None
    if has_table:
        table = torch.randint(0, 3, (3, 8), generator=generator)
        for row, last in enumerate(lengths - 1):  # no row reads what another is just writing
            table[:, last] = table[:, last].where(table[:, last] != row, (row + 1) % 3)
    bias = torch.randn(5, 8, generator=generator) if has_bias else None
    fresh = None if each > 1 else (new_k, new_v)
    more = {"table": table, "bias": bias, "width": width}
    after = copy.deepcopy((k, v, table))
    if fresh is not None:
        decode.write_new_kv(after[0], after[1], lengths, after[2], fresh)
    want = attend_by_torch(q, *after[:2], lengths, 0.4, after[2], bias, width)
    for threads in (1, 4):
        before, given = torch.get_num_threads(), copy.deepcopy((k, v, table))
        torch.set_num_threads(threads)
        try:
            got = load_kernels().attend(q, *given[:2], lengths, 0.4, fresh=fresh, **more | {"table": given[2]})
        finally:
            torch.set_num_threads(before)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
        for mine, theirs in zip(given, after, strict=True):
            assert mine is theirs or torch.equal(mine, theirs)


@needs_kernels
def test_small_operations():
    x, y, w, b = torch.randn(5, 70), torch.randn(5, 70), torch.randn(70), torch.randn(70)
    total, normed = load_kernels().add_norm(x, y.t().contiguous().t(), w, b, 1e-5, True)
    assert torch.equal(total, x + y)
    torch.testing.assert_close(normed, F.layer_norm(x + y, (70,), w, b), atol=1e-5, rtol=1e-5)
    normed = load_kernels().add_norm(x, y, w, None, 1e-6, False)[1]
    torch.testing.assert_close(normed, F.rms_norm(x + y, (70,), w, 1e-6), atol=1e-5, rtol=1e-5)
    wide = torch.cat((torch.linspace(-30, 30, 40_001), torch.tensor([-1e9, 1e9, 0.0])))
    torch.testing.assert_close(load_kernels().gelu_tanh(wide), F.gelu(wide, approximate="tanh"), atol=2e-6, rtol=2e-6)
    assert load_kernels().gelu_tanh(torch.tensor([float("nan")])).isnan().all()


@pytest.fixture
def without_kernels(monkeypatch):
    monkeypatch.setenv("FORMERS_CPU_KERNELS", "off")
    load_kernels.cache_clear()
    yield
    monkeypatch.undo()
    load_kernels.cache_clear()


def generate(kind):
    f = formers.build("gpt2", seed=1, vocab=200, context=64, dim=64, layers=3, heads=4, init=0.1, eos=None)
    return continue_ids(f.freeze(kind), [[1, 2, 3], [7], [9, 8, 7, 6, 5]], 12, Options(temperature=0))


@needs_kernels
@pytest.mark.parametrize("kind", ["int8", "fp32"])
def test_the_same_text_without_them(kind, request):
    with_kernels = generate(kind)
    request.getfixturevalue("without_kernels")
    assert load_kernels() is None
    assert generate(kind) == with_kernels


def test_a_machine_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert cpu_kernels.compile_source(cpu_kernels.AVX2_OPTIONS) is None
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert cpu_kernels.compile_source(cpu_kernels.AVX2_OPTIONS) is None
    assert not list(tmp_path.rglob("*.so"))


@needs_kernels
def test_kernels_that_fail_their_trial_are_not_taken(monkeypatch):
    for answer in (lambda _: False, lambda _: os.kill(os.getpid(), signal.SIGILL)):
        monkeypatch.setattr(cpu_kernels, "are_exact", answer)
        load_kernels.cache_clear()
        assert load_kernels() is None
    monkeypatch.undo()
    load_kernels.cache_clear()
    assert load_kernels() is not None


@needs_kernels
def test_gradients_and_other_types_take_torchs_operations():
    assert not decode.is_available(torch.device("cpu"), torch.float32)  # with gradients
    with torch.inference_mode():
        assert decode.is_available(torch.device("cpu"), torch.float32)
        assert not decode.is_available(torch.device("cpu"), torch.bfloat16)
