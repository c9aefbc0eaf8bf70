"""Which token comes next: what may not come, what is left of the rest, and the draw. All on (rows, vocab) scores."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data.counter_rng import draw_uniform

if TYPE_CHECKING:
    from .options import Options

NEG_INF = -torch.inf


def warp_logits(scores: Tensor, options: Options) -> Tensor:
    """Scores at a temperature, with the unlikely tokens taken out; in this order, as in transformers."""
    scores = scores.double()
    if options.temperature is not None:  # the largest becomes 0, which no temperature makes infinite
        scores = (scores - scores.amax(-1, keepdim=True)) / options.temperature
    if options.top_k is not None:
        scores = filter_top_k(scores, options.top_k)
    if options.top_p is not None:
        scores = filter_top_p(scores, options.top_p)
    if options.min_p is not None:
        scores = filter_min_p(scores, options.min_p)
    return scores if options.typical_p is None else filter_typical(scores, options.typical_p)


def filter_top_k(scores: Tensor, k: int) -> Tensor:
    """The k likeliest tokens, and those as likely as the last of them (Fan et al. 2018)."""
    least = scores.topk(min(k, scores.shape[-1]), -1).values[:, -1:]
    return scores.masked_fill(scores < least, NEG_INF)


def filter_top_p(scores: Tensor, p: float) -> Tensor:
    """The nucleus: the fewest likeliest tokens that have probability p together (Holtzman et al. 2020)."""
    ordered, places = scores.sort(-1)
    out = ordered.softmax(-1).cumsum(-1) <= 1 - p
    out[:, -1] = False
    return scores.masked_fill(out.scatter(-1, places, out), NEG_INF)


def filter_min_p(scores: Tensor, p: float) -> Tensor:
    """Tokens at least p times as likely as the likeliest (Nguyen et al. 2024)."""
    return scores.masked_fill(scores < scores.amax(-1, keepdim=True) + np.log(max(p, 1e-300)), NEG_INF)


def filter_typical(scores: Tensor, mass: float) -> Tensor:
    """The tokens whose surprise is nearest to the mean surprise, up to a mass (Meister et al. 2023)."""
    logs = scores.log_softmax(-1)
    mean = -(logs.exp() * logs).nansum(-1, keepdim=True)
    far, places = (-logs - mean).abs().sort(-1)
    reach = logs.exp().gather(-1, places).cumsum(-1)
    last = (reach < mass).sum(-1, keepdim=True).clamp(max=scores.shape[-1] - 1)
    out = far > far.gather(-1, last)
    out[:, 0] = False
    return scores.masked_fill(out.scatter(-1, places, out), NEG_INF)


def draw_row_numbers(seed: int, sample: Any, step: Any, device: torch.device) -> Tensor:
    """The numbers in 0 … 1 that belong to (seed, sample, step), which broadcast."""
    return torch.as_tensor(np.atleast_1d(draw_uniform(seed, np.asarray(sample), np.asarray(step))), device=device)


def sample_tokens(scores: Tensor, number: Tensor) -> Tensor:
    """(rows, vocab) → (rows,) the token of each row at which the sum of chances passes its number."""
    reach = scores.softmax(-1).cumsum(-1)
    place = number[:, None] * reach[:, -1:]
    return (reach <= place).sum(-1).clamp(max=scores.shape[-1] - 1)


def penalise_repetition(scores: Tensor, texts: Tensor, penalty: float) -> Tensor:
    """Tokens that a text has already, less likely: a positive score is divided, a negative one multiplied (Keskar et
    al. 2019). `texts` (rows, tokens) are filled up with -1 on the left."""
    there = make_token_mask(scores, texts, texts >= 0)
    return torch.where(there, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def ban_repeated_ngrams(scores: Tensor, texts: Tensor, n: int) -> Tensor:
    """No n tokens twice in a row: what followed the last n - 1 tokens before may not follow them again."""
    if texts.shape[1] < n:
        return scores
    windows = texts.unfold(1, n, 1)  # (rows, windows, n)
    same = (windows[..., :-1] == texts[:, None, texts.shape[1] - n + 1 :]).all(-1) & (windows >= 0).all(-1)
    return scores.masked_fill(make_token_mask(scores, windows[..., -1], same), NEG_INF)


def ban_sequences(scores: Tensor, texts: Tensor, words: tuple[tuple[int, ...], ...]) -> Tensor:
    """None of these rows of tokens: the last may not follow the others."""
    scores = scores.clone()
    for *front, last in words:
        if len(front) <= texts.shape[1]:
            wanted = torch.tensor(front, device=texts.device, dtype=texts.dtype)
            follows = (texts[:, texts.shape[1] - len(front) :] == wanted).all(-1)
            scores[:, last].masked_fill_(follows, NEG_INF)
    return scores


def ban_tokens(scores: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """None of these tokens."""
    return scores.index_fill(-1, get_cached_tensor(tokens, scores.device), NEG_INF)


def force_tokens(scores: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Nothing but these tokens."""
    return torch.full_like(scores, NEG_INF).index_fill(-1, get_cached_tensor(tokens, scores.device), 0.0)


@functools.lru_cache(maxsize=64)
def get_cached_tensor(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    """Tokens as a tensor; made once, as a copy to a GPU waits for all that it is doing."""
    return torch.tensor(tokens, device=device)


def make_token_mask(scores: Tensor, tokens: Tensor, which: Tensor) -> Tensor:
    """(rows, vocab) True at the tokens (rows, n) that are chosen by `which`; all others go to a spare column."""
    vocab = scores.shape[-1]
    found = torch.zeros(len(scores), vocab + 1, dtype=torch.bool, device=scores.device)
    return found.scatter_(1, torch.where(which, tokens, vocab).clamp(max=vocab), True)[:, :vocab]
