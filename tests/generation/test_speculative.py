"""A draft changes nothing but the time: greedily the same tokens, drawn the same distribution."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import formers
from formers import Error
from formers.generation.decoding import Options, continue_ids
from formers.generation.speculative import SpeculativeDecoder


def build_relatives(family, vocab=40, **more):
    sizes = {"vocab": vocab, "dim": 16, "heads": 2, "seed": 2, "head": "lm"}
    more = {"context": 64, "init": 0.4} | more if family != "t5" else {"ff": 24, "head_dim": 8, "init": 1.0} | more
    more |= {} if family == "gpt2" else {"ff": 24}
    large = formers.build(family, layers=2, **sizes, **more)
    small = formers.build(family, layers=1, **sizes, **more)
    with torch.no_grad():  # relatives think alike
        for name, mine in small.model.named_parameters():
            mine.copy_(dict(large.model.named_parameters())[name])
    return large, small


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "bart", "t5"])
@pytest.mark.parametrize("ahead", [1, 4])
def test_greedy_is_the_same(family, ahead):
    large, small = build_relatives(family)
    prompts, how = [[1, 2, 3], [7], [9, 8, 7, 6, 5]], Options(temperature=0)
    guess = SpeculativeDecoder(large, small, ahead)
    assert guess.continue_ids(prompts, 20, how) == continue_ids(large, prompts, 20, how)
    assert 0 < guess.num_accepted < guess.num_drafted


@pytest.mark.parametrize("how", [{"temperature": 0.7}, {"temperature": 1.3, "top_k": 3}], ids=["plain", "top_k"])
def test_drawn_from_the_same_distribution(how):
    large, small = build_relatives("gpt2", vocab=5, bos=None, eos=None)
    for p in small.model.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    guess, draws = SpeculativeDecoder(large, small, 2), 400
    counts = {}
    for seed in range(draws):
        got = tuple(guess.continue_ids([[1, 2]], 2, Options(seed=seed, **how))[0])
        counts[got] = counts.get(got, 0) + 1
    assert guess.num_accepted > 0
    expected = {}
    for one in itertools.product(range(5), repeat=2):
        with torch.inference_mode():
            logits = large.logits(torch.tensor([[1, 2, *one]]))[0, 1:3].double() / how["temperature"]
        if "top_k" in how:
            logits = logits.masked_fill(logits < logits.topk(how["top_k"]).values[:, -1:], -torch.inf)
        p = logits.softmax(-1)
        expected[one] = float(p[0, one[0]] * p[1, one[1]]) * draws
    assert all(expected[one] > 0 for one in counts)
    large_enough = [one for one, e in expected.items() if e >= 5]
    seen = np.array([counts.get(one, 0) for one in large_enough] + [0.0])
    want = np.array([expected[one] for one in large_enough] + [0.0])
    seen[-1], want[-1] = draws - seen.sum(), max(draws - want.sum(), 1e-9)
    keep = want >= 5
    statistic = float((((seen - want) ** 2) / want)[keep].sum())
    freedom = int(keep.sum()) - 1
    assert statistic < freedom + 3.1 * (2 * freedom) ** 0.5 + 6, "chi-square, about p = 0.001"


def test_texts_end_at_the_end_mark_and_the_context():
    large, small = build_relatives("gpt2", context=12)
    how = Options(temperature=0)
    with pytest.warns(UserWarning, match="with a draft the text ends at the context limit, after 10 tokens"):
        (free,) = SpeculativeDecoder(large, small).continue_ids([[1, 2, 3]], 40, how)
    assert len(free) == 10, "the last token is not read"
    assert free == continue_ids(large, [[1, 2, 3]], 10, how)[0]
    ended, other = build_relatives("gpt2", eos=free[4])
    assert SpeculativeDecoder(ended, other).continue_ids([[1, 2, 3]], 9, how) == continue_ids(
        ended, [[1, 2, 3]], 9, how
    )


@pytest.mark.parametrize(
    "how", [{"repetition_penalty": 1.5}, {"no_repeat_ngram": 2}, {"bad_words": (5, (9, 9))}, {"min_new_tokens": 15}, {}]
)
def test_greedy_under_every_rule(how):
    large, small = build_relatives("gpt2", eos=None)
    plain = continue_ids(large, [[1, 2, 3]], 20, Options(temperature=0))
    how = how if how != {"bad_words": (5, (9, 9))} else {"bad_words": (plain[0][3], tuple(plain[0][:2]))}
    if "min_new_tokens" in how:
        large, small = build_relatives("gpt2", eos=plain[0][2])
    options = Options(temperature=0, **how)
    want = continue_ids(large, [[1, 2, 3], [7]], 20, options)
    assert SpeculativeDecoder(large, small).continue_ids([[1, 2, 3], [7]], 20, options) == want
    assert not how or want[0] != plain[0]


def test_what_is_left_out_is_never_drawn():
    large, small = build_relatives("gpt2", eos=None)
    for how in ({"top_p": 1e-6}, {"min_p": 1.0}, {"typical_p": 1e-9, "top_k": 1}, {"top_k": 1}):
        got = SpeculativeDecoder(large, small).continue_ids([[1, 2, 3]], 20, Options(seed=5, **how))
        assert got == continue_ids(large, [[1, 2, 3]], 20, Options(temperature=0))
    two = SpeculativeDecoder(large, small).continue_ids([[1, 2, 3]], 20, Options(num_samples=2))
    assert two[0] != two[1]
    assert two[0] == SpeculativeDecoder(large, small).continue_ids([[1, 2, 3]], 20, Options())[0]


def test_what_cannot_be_a_draft():
    large, _ = build_relatives("gpt2")
    with pytest.raises(Error, match="a draft cannot be combined with beam search"):
        SpeculativeDecoder(large, large).continue_ids([[1]], 3, Options(num_beams=2))
    with pytest.raises(Error, match="stop strings apply to texts"):
        SpeculativeDecoder(large, large).continue_ids([[1]], 3, Options(stop="x"))
    with pytest.raises(Error, match="65 tokens are more than the context of 64"):
        SpeculativeDecoder(large, large).continue_ids([[1] * 65], 3)
    for other, message in (
        (build_relatives("gpt2", vocab=41)[1], "vocabulary"),
        (build_relatives("t5")[1], "the model's kind"),
    ):
        with pytest.raises(Error, match=message):
            SpeculativeDecoder(large, other)
    with pytest.raises(Error, match="cannot drop tokens"):
        SpeculativeDecoder(large, formers.build("xlnet", head="lm", vocab=40, dim=16, layers=1, heads=2, ff=24))
    with pytest.raises(Error, match="draft_length must be at least 1"):
        SpeculativeDecoder(large, large, 0)
