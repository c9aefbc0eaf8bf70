"""Decoding steps chained without a check in between write the tokens that a check after each step gives."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.generation import decoding
from formers.generation.beam import BeamState
from formers.generation.decoding import continue_ids
from formers.generation.options import Options
from formers.generation.runner import Runner
from formers.nn.attention.kernels import decode
from tests.generation.small_decoders import SIZES, build_decoder

PROMPTS = [[1, 2, 3], [7], [9, 8, 7, 6, 5], [4, 4]]


@pytest.fixture
def chained_steps(monkeypatch):
    """Steps follow each other as on a GPU; what comes is the number of steps between two looks."""
    counts, chain = [], decoding.run_steps

    def runner(*given):
        made = Runner(*given)
        made.can_chain_steps = True
        return made

    monkeypatch.setattr(decoding, "run_steps", lambda *given: counts.append(given[-1]) or chain(*given))
    return lambda: monkeypatch.setattr(decoding, "Runner", runner) or counts


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("how", [{"temperature": 0}, {"temperature": 1.3, "top_k": 9, "seed": 4, "num_samples": 2}])
def test_the_same_texts(family, how, chained_steps):
    f = build_decoder(family)
    want = continue_ids(f, PROMPTS, 35, Options(**how))
    counts = chained_steps()
    counts.clear()
    assert continue_ids(f, PROMPTS, 35, Options(**how)) == want
    assert max(counts) == decoding.STEPS_AHEAD


@pytest.mark.parametrize("family", SIZES)
def test_the_same_beams(family, chained_steps, monkeypatch):
    f = build_decoder(family)
    want = continue_ids(f, PROMPTS, 35, Options(num_beams=3))
    chained_steps()
    steps, tell = [], BeamState.flush_steps
    monkeypatch.setattr(BeamState, "flush_steps", lambda self, step: steps.append(step) or tell(self, step))
    assert continue_ids(f, PROMPTS, 35, Options(num_beams=3)) == want
    assert steps == [0, 16, 32]


def test_beams_read_a_prompt_once(monkeypatch):
    f, read, run = build_decoder("gpt2"), [], Runner.run_forward
    monkeypatch.setattr(
        Runner, "run_forward", lambda self, batch, *more: read.append(len(batch.ids)) or run(self, batch, *more)
    )
    continue_ids(f, PROMPTS, 3, Options(num_beams=3))
    assert read == [sum(map(len, PROMPTS)), 12, 12]


@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.5])
def test_the_same_beams_where_texts_end(early, alpha, chained_steps):
    sizes = {"vocab": 40, "context": 24, "dim": 16, "layers": 2, "heads": 2, "init": 0.4, "bos": None, "seed": 2}
    free = continue_ids(formers.build("gpt2", eos=None, **sizes), PROMPTS, 30, Options(temperature=0))
    f = formers.build("gpt2", eos=free[0][4], **sizes)
    options = Options(num_beams=4, num_samples=3, early_stopping=early, length_penalty=alpha)
    want = continue_ids(f, PROMPTS, 30, options)
    assert len({len(text) for text in want}) > 1
    alone = [continue_ids(f, [prompt], 30, options) for prompt in PROMPTS]
    assert [text for some in alone for text in some] == want
    chained_steps()
    assert continue_ids(f, PROMPTS, 30, options) == want


def test_ends_and_rules_and_a_full_context(chained_steps):
    f = formers.build("gpt2", seed=2, vocab=40, context=12, dim=16, layers=2, heads=2, init=0.4, bos=None, eos=None)
    free = continue_ids(f, PROMPTS, 30, Options(temperature=0))
    ended = formers.build("gpt2", seed=2, vocab=40, context=12, dim=16, layers=2, heads=2, init=0.4, eos=free[0][4])
    cases = [
        (f, {}),
        (ended, {}),
        (ended, {"min_new_tokens": 9}),
        (f, {"no_repeat_ngram": 2}),
        (f, {"bad_words": (free[0][0],)}),
    ]
    want = [continue_ids(one, PROMPTS, 30, Options(temperature=0, **more)) for one, more in cases]
    counts = chained_steps()
    for (one, more), texts in zip(cases, want, strict=True):
        counts.clear()
        assert continue_ids(one, PROMPTS, 30, Options(temperature=0, **more)) == texts
        assert (max(counts) > 1) == ("no_repeat_ngram" not in more)


def test_a_kernel_that_fails_is_left_alone(monkeypatch):
    monkeypatch.setattr(decode, "failed_kernels", set())

    def fails():
        raise ValueError("no such\ninstruction")

    with pytest.warns(UserWarning, match="the kernel x does not work here, and steps are slower for it: no such inst"):
        assert decode.run_with_fallback("x", fails, lambda: 3) == 3
    assert decode.run_with_fallback("x", fails, lambda: 4) == 4
    k, v, fresh = torch.zeros(2, 3, 1, 2), torch.zeros(2, 3, 1, 2), (torch.ones(2, 1, 2), torch.full((2, 1, 2), 2.0))
    table = torch.tensor([[1, 1, 1], [0, 0, 0]])
    decode.write_new_kv(k, v, torch.tensor([4, 1]), table, fresh)
    assert k[:, :, 0, 0].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert v[:, :, 0, 1].tolist() == [[0, 0, 2], [2, 0, 0]]
    assert table.tolist() == [[1, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("how", [{"temperature": 0}, {"num_beams": 2}])
def test_a_row_that_ends_full_to_the_brim_keeps_nobody_from_going_on(how):
    sizes = {"vocab": 40, "context": 12, "dim": 16, "layers": 2, "heads": 2, "init": 0.4, "bos": None, "seed": 2}
    free = formers.build("gpt2", eos=None, **sizes)
    prompts = [[1] * 9, [7]]
    (long, _) = continue_ids(free, prompts, 14, Options(temperature=0))
    ended = formers.build("gpt2", eos=long[3], **sizes)
    alone = [continue_ids(ended, [p], 14, Options(**how))[0] for p in prompts]
    assert continue_ids(ended, prompts, 14, Options(**how)) == alone
