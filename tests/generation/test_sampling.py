"""Draws follow the distributions that transformers' processors make; contradictions are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from formers import Error
from formers.generation.logits_processors import ban_repeated_ngrams, ban_sequences, penalise_repetition
from formers.generation.options import Options, make_options
from formers.generation.sampling import pick_tokens, warp_logits

transformers = pytest.importorskip("transformers")
VOCAB, DRAWS = 14, 6000
WARPS = [
    {"temperature": 0.6}, {"temperature": 1.9}, {"top_k": 1}, {"top_k": 4}, {"top_k": 99}, {"top_p": 0.3},
    {"top_p": 0.85}, {"top_p": 0.999}, {"min_p": 0.2}, {"typical_p": 0.2}, {"typical_p": 0.7}, {"typical_p": 0.95},
    {"temperature": 1.4, "top_k": 9, "top_p": 0.8}, {"temperature": 0.8, "min_p": 0.05, "typical_p": 0.9},
]  # fmt: skip


def build_their_processors(how, penalty=None):
    """transformers' list of processors for our options, in its own order."""
    names = {
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "typical_p": "typical_p",
        "temperature": "temperature",
    }
    more = {name: how.get(ours) for ours, name in names.items()}
    config = transformers.GenerationConfig(do_sample=True, num_beams=1, repetition_penalty=penalty, **more)
    config._eos_token_tensor = None
    tiny = transformers.GPT2Config(vocab_size=VOCAB, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    return transformers.GPT2LMHeadModel(tiny)._get_logits_processor(config, input_ids_seq_length=3)


def draw_scores(rows=1, seed=0):
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("how", WARPS, ids=str)
def test_what_is_left_is_the_same(how):
    logits, ids = draw_scores(50), torch.zeros(50, 3, dtype=torch.long)
    want = build_their_processors(how)(ids, logits).softmax(-1)
    got = warp_logits(logits, Options(**how)).softmax(-1)
    assert torch.equal(want > 0, got > 0)
    assert (want - got).abs().max() < 1e-6


@pytest.mark.parametrize("how", [*WARPS[:2], *WARPS[3:]], ids=str)
@pytest.mark.parametrize("penalty", [None, 1.6], ids=str)
def test_draws_follow_the_distribution(how, penalty):
    """Chi-square over draws of which each has its own sample number; then over steps."""
    ids = torch.tensor([[2, 5, 5]])
    want = build_their_processors(how, penalty)(ids, draw_scores()).softmax(-1)[0].double()
    mine = draw_scores() if penalty is None else penalise_repetition(draw_scores(), ids, penalty)
    many = mine.expand(DRAWS, -1)
    for sample, step in ((np.arange(DRAWS), 3), (0, np.arange(DRAWS))):
        counts = torch.bincount(pick_tokens(many, Options(**how), step, sample), minlength=VOCAB).double()
        assert not counts[want == 0].any()
        real = want > 0
        square = ((counts - DRAWS * want)[real] ** 2 / (DRAWS * want[real])).sum()
        degrees = torch.tensor((int(real.sum()) - 1) / 2, dtype=torch.double)
        assert degrees == 0 or torch.special.gammaincc(degrees, square / 2) > 1e-3


def test_a_draw_is_its_own_rows_matter():
    logits, how = draw_scores(9, 3), Options(top_p=0.9, seed=5)
    together = pick_tokens(logits, how, 4, np.arange(9))
    alone = [int(pick_tokens(logits[i : i + 1], how, 4, i)) for i in range(9)]
    assert together.tolist() == alone
    assert not torch.equal(together, pick_tokens(logits, Options(top_p=0.9, seed=6), 4, np.arange(9)))


@pytest.mark.parametrize("temperature", [5e-324, 1e-200, 1e-3, 1e300])
def test_temperatures_at_the_edge_of_what_floats_can_say(temperature):
    chances = warp_logits(draw_scores(20, 3), Options(temperature=temperature)).softmax(-1)
    assert chances.isfinite().all()
    if temperature < 1e-2:
        assert torch.equal(chances.argmax(-1), draw_scores(20, 3).argmax(-1))
        assert chances.amax() > 0.99
    else:
        assert (chances - 1 / VOCAB).abs().max() < 1e-6


def test_texts_of_different_lengths_side_by_side():
    """Filled up with -1 on the left, a text is treated as if it were alone, and as transformers treats it."""
    texts = [[3, 4, 3, 4, 3], [7, 7], [1, 2, 3, 9, 1, 2, 3], [5]]
    page = torch.tensor([[-1] * (7 - len(t)) + t for t in texts])
    logits, words = draw_scores(4, 2), ((7, 7, 2), (5, 1), (2, 3, 6), (4, 3, 4, 3, 8))
    bad = transformers.NoBadWordsLogitsProcessor([list(w) for w in words], eos_token_id=None)
    for n in (1, 2, 3, 4, 7):
        got = ban_repeated_ngrams(logits, page, n)
        for row, text in enumerate(texts):
            want = transformers.NoRepeatNGramLogitsProcessor(n)(torch.tensor([text]), logits[row : row + 1])
            assert torch.equal(got[row], want[0])
    got, banned = penalise_repetition(logits, page, 1.3), ban_sequences(logits, page, words)
    assert banned.isinf().sum() == 4
    for row, text in enumerate(texts):
        ids, one = torch.tensor([text]), logits[row : row + 1]
        assert torch.equal(got[row], transformers.RepetitionPenaltyLogitsProcessor(1.3)(ids, one.clone())[0])
        assert torch.equal(banned[row], bad(ids, one)[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1}, "temperature must be at least 0"), ({"temperature": float("nan")}, "temperature must be"),
        ({"temperature": "hot"}, "temperature must be"), ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_k": 2.5}, "top_k must be"), ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1"), ({"min_p": -0.1}, "min_p must be"),
        ({"typical_p": 0}, "typical_p must be"), ({"repetition_penalty": 0}, "repetition_penalty must be above 0"),
        ({"no_repeat_ngram": 0}, "no_repeat_ngram must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"num_samples": 0}, "num_samples must be at least 1"), ({"num_beams": True}, "num_beams must be"),
        ({"seed": -1}, "seed must"),
        ({"max_new_tokens": 3, "min_new_tokens": 4}, "at least 4 tokens are asked for, and at most 3"),
        ({"num_beams": 2, "temperature": 0.7}, "beam search does not sample: temperature does not apply"),
        ({"num_beams": 2, "top_p": 0.7}, "beam search does not sample: top_p does not apply"),
        ({"num_beams": 2, "num_samples": 3}, "2 beams do not give 3 texts"),
        ({"temperature": 0, "top_k": 4}, "top_k is for sampling"),
        ({"temperature": 0, "typical_p": 0.4}, "typical_p is for sampling"),
        ({"temperature": 0, "num_samples": 2}, "all 2 samples would be the same"),
        ({"length_penalty": 2.0}, "length_penalty applies to beam search only"),
        ({"early_stopping": True}, "early_stopping applies to beam search"),
        ({"num_beams": 2, "early_stopping": "soon"}, "early_stopping must be True, False"),
        ({"num_beams": 2, "length_normalisation": "x"}, "length_normalisation must be length or gnmt"),
        ({"num_beams": 2, "coverage": -1.0}, "coverage must be at least 0"), ({"stop": ""}, "must have a character"),
        ({"stop": [3]}, "must have a character"), ({"bad_words": 2.5}, "bad_words must be a list"),
        ({"tempreature": 1.0}, "unknown option 'tempreature'. Did you mean 'temperature'?"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(given, message):
    with pytest.raises(Error) as caught:
        make_options(given)
    assert message in str(caught.value)
    assert caught.value.fix
    assert "\n" not in str(caught.value)


def test_options_that_go_together():
    assert Options(num_beams=4, temperature=0).rows_per_prompt == 4
    assert Options(num_samples=3).rows_per_prompt == 3
    assert Options(stop="\n").stop == ("\n",)
    assert Options(bad_words=[[1, 2], 3, "x"]).bad_words == ((1, 2), 3, "x")
    assert make_options({"top_k": None, "max_new_tokens": 3}, top_k=4) == Options(top_k=4, max_new_tokens=3)
