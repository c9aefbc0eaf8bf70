"""Continuing prompts: with a cache as without, the same in any batch, and nothing broken shown."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import formers
from formers import Error
from formers.generation.decoding import Options, continue_ids
from formers.generation.sampling import pick_tokens
from formers.registry import train_tokenizer
from scripts.walks import trace_calls


def build_gpt2(**more):
    sizes = {"vocab": 40, "context": 16, "dim": 16, "layers": 2, "heads": 2, "init": 0.4, "eos": None, "bos": None}
    return formers.build("gpt2", seed=2, **{**sizes, **more})


def decode_without_cache(f, prompt, tokens):
    """Greedy without a cache: read everything again for each token."""
    ids = list(prompt)
    for _ in range(tokens):
        with torch.inference_mode():
            ids.append(int(f.logits(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def test_greedy_with_a_cache_as_without():
    f = build_gpt2()
    prompts = [[1, 2, 3], [7], [9, 8, 7, 6, 5]]
    got = continue_ids(f, prompts, 8, Options(temperature=0))
    assert got == [decode_without_cache(f, p, 8) for p in prompts]


def test_sampling_is_the_same_in_any_batch():
    f = build_gpt2()
    how = Options(temperature=1.3, top_k=10, seed=4)
    prompts = [[1, 2, 3], [7], [9, 8, 7, 6, 5], [1, 2, 3]]
    together = continue_ids(f, prompts, 6, how)
    assert together == [continue_ids(f, [p], 6, how)[0] for p in prompts]
    assert together[0] == together[3]
    assert continue_ids(f, prompts, 6, Options(1.3, 10, 5)) != together


def test_sampling_follows_the_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    counts = np.zeros(4)
    for seed in range(4000):
        counts[int(pick_tokens(logits, Options(temperature=0.5, seed=seed), 0))] += 1
    expected = (logits / 0.5).softmax(-1)[0].numpy() * 4000
    assert ((counts - expected) ** 2 / expected).sum() < 16.3, "chi-square, 3 degrees of freedom, p = 0.001"
    top = {int(pick_tokens(logits, Options(top_k=2, seed=s), 0)) for s in range(200)}
    assert top == {0, 1}
    assert int(pick_tokens(logits, Options(temperature=0), 0)) == 0
    assert {int(pick_tokens(logits, Options(seed=1), step)) for step in range(50)} >= {0, 1}


def test_a_full_context_continues_with_its_last_half():
    f = build_gpt2(context=8)
    out = continue_ids(f, [[1, 2, 3, 4, 5, 6]], 20, Options(temperature=0))[0]
    assert len(out) == 20
    assert out[:3] == decode_without_cache(f, [1, 2, 3, 4, 5, 6], 2) + out[2:3]
    with pytest.warns(UserWarning, match="30 tokens is longer than the context: its last 8 are read"):
        long = continue_ids(f, [list(range(30))], 3, Options(temperature=0))[0]
    assert long[0] == decode_without_cache(f, list(range(22, 30)), 0 + 1)[0]


def test_the_end_mark_ends_a_row():
    f = build_gpt2()
    first = decode_without_cache(f, [1, 2, 3], 6)
    ended = build_gpt2(eos=first[2])
    ended.model.load_state_dict(f.model.state_dict())
    stop = first.index(first[2])
    got = continue_ids(ended, [[1, 2, 3], [7]], 6, Options(temperature=0))
    assert got[0] == first[:stop]
    assert len(got[1]) <= 6


def test_prompts_of_any_kind():
    f = build_gpt2()
    want = continue_ids(f, [[1, 2, 3], [4, 5, 6]], 3, Options(temperature=0))
    grid = torch.tensor([[1, 2, 3], [4, 5, 6]])
    for prompts in (grid, grid.int(), grid.numpy(), list(grid), ((1, 2, 3), (4, 5, 6))):
        assert continue_ids(f, prompts, 3, Options(temperature=0)) == want
    assert continue_ids(f, grid[0], 3, Options(temperature=0)) == want[:1]
    assert grid.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("prompts", "tokens", "message"),
    [
        ("ab", 3, "a prompt cannot be made a tensor"), ([[[1]]], 3, "a prompt must be a row of ids"),
        ([[1.5]], 3, "a prompt must be whole numbers"), ([1.5], 3, "a prompt must be whole numbers"),
        ([1, 2], 3, "a prompt must be a row of ids"), (5, 3, "prompts must be rows of ids"), ([], 3, "is empty"),
        (torch.tensor([[[1]]]), 3, "a prompt must be a row of ids"), (torch.ones(2), 3, "must be whole numbers"),
        ([[1]], "a", "max_new_tokens must be at least 1"), ([[1]], 1.5, "max_new_tokens must be at least 1"),
        ([[1], None], 3, "a prompt cannot be made a tensor"),
    ],
)  # fmt: skip
def test_prompts_that_make_no_sense(prompts, tokens, message):
    with pytest.raises(Error, match=message):
        continue_ids(build_gpt2(), prompts, tokens)


@pytest.mark.parametrize("family", ["bart", "mbart"])
def test_what_an_encoder_decoder_cannot_begin_with(family):
    sizes = {"vocab": 40, "context": 8, "dim": 12, "layers": 1, "heads": 2, "ff": 16}
    with pytest.raises(Error, match="9 tokens are more than the context of 8"):
        continue_ids(formers.build(family, **sizes), [[5] * 9], 3)
    with pytest.raises(Error, match=r"start\[0\] is 9999, outside the vocabulary of 40"):
        continue_ids(formers.build(family, **sizes, start=9999), [[5]], 3)
    with pytest.raises(Error, match="does not say how the decoder starts"):
        continue_ids(formers.build(family, **sizes, start=None, bos=None, pad=None), [[5]], 3)


def test_what_cannot_be_continued():
    f = build_gpt2(vocab=300)
    for call, message in (
        (lambda: formers.generate(build_gpt2(), "x", 3), "no tokenizer. Load one that has"),
        (lambda: continue_ids(f, [[]], 3), "a prompt is empty"),
        (lambda: continue_ids(f, [[999]], 3), "outside the vocabulary"),
        (lambda: continue_ids(f, [[1]], 0), "max_new_tokens must be at least 1"),
        (lambda: continue_ids(f, [[1]], 3, Options(stop="x")), "stop strings apply to texts"),
        (lambda: continue_ids(f, [[1]], 3, Options(bad_words=range(300))), "all 300 tokens are banned"),
        (
            lambda: continue_ids(formers.build("bert", vocab=9, dim=8, heads=2, ff=8, layers=1), [[1]], 2),
            "does not continue",
        ),
    ):
        with pytest.raises(Error, match=message):
            call()


def test_generate_is_a_short_walk():
    """A reader who follows one call meets at most 19 files outside of nn, which is the model's own forward pass."""
    f = formers.build("gpt2", vocab=300, dim=16, heads=2, ff=32, layers=2, context=32)
    f.tokenizer = train_tokenizer("bpe", ["the cat sat on the mat"] * 20, 280, workers=1)
    f.generate("the cat", 2)  # modules are imported
    files, _, _ = trace_calls(lambda: f.generate("the cat", 5, temperature=0.7, top_k=5))
    assert "generation/sampling.py" in files
    assert len({name for name in files if not name.startswith("nn/")}) <= 19, sorted(files)
