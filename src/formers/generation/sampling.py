"""Sampling: warping (rows, vocab) scores and drawing the next tokens from them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..data.counter_rng import draw_uniform
from .options import Options

Number = int | np.ndarray  # one for all rows, or one for each
NEG_INF = -torch.inf


def pick_tokens(logits: Tensor, options: Options, step: Number, sample: Number = 0) -> Tensor:
    """(rows, vocab) → (rows,) tokens; a row's draw depends on the seed, its sample's number and the step alone."""
    greedy = options.temperature == 0
    return select_tokens(logits, options, None if greedy else draw_numbers(options, step, sample, logits.device))


def draw_numbers(options: Options, step: Number, sample: Number, device: torch.device) -> Tensor:
    """Draw the numbers in 0 … 1 that belong to (seed, sample, step); sample and step broadcast."""
    numbers = draw_uniform(options.seed, np.asarray(sample), np.asarray(step))
    return torch.as_tensor(np.atleast_1d(numbers), device=device)


def select_tokens(logits: Tensor, options: Options, numbers: Tensor | None) -> Tensor:
    """(rows, vocab) → (rows,) the likeliest tokens, or those that (rows,) random numbers fall on."""
    return logits.max(-1).indices if numbers is None else sample_tokens(warp_logits(logits, options), numbers)


def warp_logits(scores: Tensor, options: Options) -> Tensor:
    """Apply temperature, top_k, top_p, min_p and typical_p to scores, in the order of transformers."""
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
    """Keep the k likeliest tokens, and ties with the last of them (Fan et al. 2018)."""
    least = scores.topk(min(k, scores.shape[-1]), -1).values[:, -1:]
    return scores.masked_fill(scores < least, NEG_INF)


def filter_top_p(scores: Tensor, p: float) -> Tensor:
    """Keep the nucleus: the fewest likeliest tokens whose probabilities reach p (Holtzman et al. 2020)."""
    ordered, places = scores.sort(-1)
    out = ordered.softmax(-1).cumsum(-1) <= 1 - p
    out[:, -1] = False
    return scores.masked_fill(out.scatter(-1, places, out), NEG_INF)


def filter_min_p(scores: Tensor, p: float) -> Tensor:
    """Keep tokens at least p times as likely as the likeliest (Nguyen et al. 2024)."""
    return scores.masked_fill(scores < scores.amax(-1, keepdim=True) + np.log(max(p, 1e-300)), NEG_INF)


def filter_typical(scores: Tensor, mass: float) -> Tensor:
    """Keep the tokens whose surprisal is nearest to the entropy, up to a probability mass (Meister et al. 2023)."""
    logs = scores.log_softmax(-1)
    mean = -(logs.exp() * logs).nansum(-1, keepdim=True)
    far, places = (-logs - mean).abs().sort(-1)
    reach = logs.exp().gather(-1, places).cumsum(-1)
    last = (reach < mass).sum(-1, keepdim=True).clamp(max=scores.shape[-1] - 1)
    out = far > far.gather(-1, last)
    out[:, 0] = False
    return scores.masked_fill(out.scatter(-1, places, out), NEG_INF)


def sample_tokens(scores: Tensor, number: Tensor) -> Tensor:
    """(rows, vocab) → (rows,) the token at which each row's cumulative probability passes its number."""
    reach = scores.softmax(-1).cumsum(-1)
    place = number[:, None] * reach[:, -1:]
    return (reach <= place).sum(-1).clamp(max=scores.shape[-1] - 1)
