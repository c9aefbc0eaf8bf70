"""On a GPU: recorded steps, the kernel for single steps and rows that follow others write what a CPU writes."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.errors import NonFinite
from formers.generation import runner as runner_module
from formers.generation.decoding import Options, continue_ids
from formers.generation.engine import Engine
from formers.generation.runner import Runner
from formers.generation.speculative import SpeculativeDecoder
from formers.nn.attention.kernels import decode
from formers.nn.layers import LayerNorm, RMSNorm, add_norm
from tests.generation.small_decoders import SIZES, SOURCES, build_decoder
from tests.nn.reference import attend_to_cache

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
PROMPTS = [[1, 2, 3], [7], [9, 8, 7, 6, 5], [4, 4]]
GREEDY = Options(temperature=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "heads", "dim", "size"), [(1, 12, 64, 384), (64, 12, 64, 384), (3, 2, 80, 1000)])
def test_the_kernel_for_single_steps(rows, heads, dim, size, dtype):
    torch.manual_seed(0)
    q = torch.randn(rows, heads, dim, device="cuda", dtype=dtype)
    k, v = (torch.randn(rows, size, heads, dim, device="cuda", dtype=dtype) for _ in range(2))
    lengths = torch.randint(1, size + 1, (rows,), device="cuda")
    table, bias = torch.randint(0, rows, (rows, size), device="cuda"), torch.randn(heads, size, device="cuda")
    for more in ({}, {"table": table}, {"bias": bias, "table": table}, {"width": 70}):
        got = decode.decode_attention(q, k, v, lengths, 0.125, **more)
        given = {"table": None, "bias": None, "width": 0} | more
        there = [None if t is None else t.float().cpu() for t in (q, k, v)]
        rest = [t.cpu() if isinstance(t, torch.Tensor) else t for t in given.values()]
        want = attend_to_cache(*there, lengths.cpu(), 0.125, *rest)
        torch.testing.assert_close(got.float().cpu(), want, atol=2e-2 if dtype == torch.bfloat16 else 1e-4, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "heads", "dim", "size"), [(1, 12, 64, 384), (64, 12, 64, 384), (3, 2, 80, 1000)])
def test_the_kernel_writes_what_is_new(rows, heads, dim, size, dtype):
    torch.manual_seed(0)
    qkv = torch.randn(rows, 3, heads, dim, device="cuda", dtype=dtype)
    k, v = (torch.randn(rows, size, heads, dim, device="cuda", dtype=dtype) for _ in range(2))
    lengths = torch.randint(1, size + 1, (rows,), device="cuda")
    for table in (None, torch.arange(rows, device="cuda")[:, None].repeat(1, size)):
        a, b, c, d = k.clone(), v.clone(), k.clone(), v.clone()
        got = decode.decode_attention(qkv[:, 0], a, b, lengths, 0.125, table=table, fresh=(qkv[:, 1], qkv[:, 2]))
        decode.write_new_kv(c, d, lengths, None, (qkv[:, 1], qkv[:, 2]))
        want = decode.decode_attention(qkv[:, 0], c, d, lengths, 0.125)
        assert torch.equal(a, c)
        assert torch.equal(b, d)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert not decode.failed_kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("dim", [768, 1600, 80])
def test_a_sum_and_its_norm(kind, dim, dtype):
    torch.manual_seed(0)
    norm = kind(dim, 1e-5).to("cuda", dtype)
    x, y = torch.randn(9, 2 * dim, device="cuda", dtype=dtype)[:, :dim], torch.randn(9, dim, device="cuda", dtype=dtype)
    with torch.no_grad():
        for p in norm.parameters():
            p.normal_()
        total, got = add_norm(x, y, norm)
        assert torch.equal(total, x + y)
        torch.testing.assert_close(got, norm(x + y), atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=2e-2)
    assert not decode.failed_kernels


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("how", [{"temperature": 0}, {"top_k": 20, "seed": 3, "num_samples": 2}, {"num_beams": 3}])
def test_texts_as_on_a_cpu(family, how):
    f = build_decoder(family)
    want = continue_ids(f, PROMPTS, 24, Options(**how))
    assert continue_ids(f.to("cuda"), PROMPTS, 24, Options(**how)) == want
    assert not decode.failed_kernels


@pytest.mark.parametrize("family", ["gpt2", "bloom", "gpt_neo", "gpt_neox", "bart", "t5"])
def test_steps_are_recorded(family):
    f = build_decoder(family).to("cuda")
    runner = Runner(f, 4, 40, [*SOURCES, *SOURCES] if f.is_encoder_decoder else None)
    runner.score_next(PROMPTS)
    for i in range(5):
        runner.step(torch.tensor([i, 2, 3, 4], device="cuda"))
    assert runner.graphed_step.graph is not None


@pytest.mark.parametrize("family", ["gpt2", "bloom", "gpt_neo", "gpt_neox"])
def test_a_recorded_step_serves_the_next_texts(family):
    f, other = build_decoder(family), [[5, 5, 5, 5], [6], [1, 2], [8, 9, 8]]
    want = [continue_ids(f, prompts, 24, GREEDY) for prompts in (PROMPTS, other)]
    f.to("cuda")
    assert [continue_ids(f, prompts, 24, GREEDY) for prompts in (PROMPTS, other)] == want
    first = runner_module._cached_graphs[f.model].graphed_step
    assert continue_ids(f, PROMPTS, 24, GREEDY) == want[0]
    assert runner_module._cached_graphs[f.model].graphed_step is first
    with torch.no_grad():
        for p in f.model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    got = continue_ids(f, PROMPTS, 24, GREEDY)
    assert runner_module._cached_graphs[f.model].graphed_step is first
    assert got == continue_ids(f.to("cpu"), PROMPTS, 24, GREEDY)
    assert f.model not in runner_module._cached_graphs


@pytest.mark.parametrize("family", SIZES)
def test_rows_follow_any_parents(family):
    """The logits of a CPU, along the same parents; rows that have ended are fed without a word."""
    f, told = build_decoder(family), {}
    for device in ("cpu", "cuda"):
        f.to(device)
        generator, found = torch.Generator().manual_seed(3), []
        runner = Runner(f, 6, 30, SOURCES if f.is_encoder_decoder else None, rows_per_source=3)
        runner.score_next([[1, 2], [], [], [5, 6, 7], [], []])
        runner.reorder_rows([0, 0, 0, 3, 3, 3])
        for step in range(8):
            fed = torch.randint(0, 50, (6, 1), generator=generator).tolist()
            found.append(runner.score_next([row if step < 5 or i != 4 else [] for i, row in enumerate(fed)]).cpu())
            if step < 5:
                parents = torch.randint(0, 3, (6,), generator=generator) + torch.tensor([0, 0, 0, 3, 3, 3])
                runner.reorder_rows(parents.tolist())
        told[device] = torch.stack(found)
    told["cpu"][5:, 4] = told["cuda"][5:, 4] = 0.0
    torch.testing.assert_close(told["cuda"], told["cpu"], atol=2e-4, rtol=1e-3)


def test_requests_and_drafts():
    f = build_decoder("gpt2").to("cuda")
    want = continue_ids(f, PROMPTS, 12, GREEDY)
    engine = Engine(f, num_slots=2, cache_size=40)
    asked = [engine.submit(p, 12, GREEDY) for p in PROMPTS]
    while engine.step():
        pass
    assert [request.result() for request in asked] == want
    assert SpeculativeDecoder(f, f, 3).continue_ids(PROMPTS, 12, GREEDY) == want


def test_bf16_says_how_far_it_is(capsys):
    f = formers.build("gpt2", vocab=1000, dim=256, heads=4, layers=4, context=64, eos=None, init=0.1).to("cuda")
    ids = torch.randint(0, 1000, (8, 20), device="cuda")
    with torch.inference_mode():
        plain = f.logits(ids)[:, -1]
        f.to(dtype=torch.bfloat16)
        runner = Runner(f, 8, 40)
        runner.score_next(ids[:, :-4].tolist())
        for i in range(4):
            got = runner.step(ids[:, 16 + i])
    far = float((got.float() - plain).abs().max() / plain.std())
    with capsys.disabled():
        print(f"\nbf16, recorded: logits differ by {far:.4f} of their spread")
    assert torch.nn.functional.cosine_similarity(got.float(), plain).min() > 0.99


@pytest.mark.parametrize("options", [GREEDY, Options(seed=1), Options(num_beams=2), Options(repetition_penalty=1.2)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_noticed(options, value):
    """Also where steps are recorded and the host looks at many tokens at once."""
    f = build_decoder("gpt2").to("cuda")
    with torch.no_grad():
        for parameter in f.model.parameters():
            parameter.fill_(value)
    with pytest.raises(NonFinite):
        continue_ids(f, PROMPTS, 40, options)
    with Engine(f, num_slots=2, cache_size=40) as engine, pytest.raises(NonFinite):
        engine.submit(PROMPTS[0], 8, GREEDY).result()
