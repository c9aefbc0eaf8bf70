"""Speculative decoding: a smaller relative drafts several tokens, the model reads them in one pass and keeps what it
would have written itself (Leviathan et al. 2023, arXiv:2211.17192, §2.3; Chen et al. 2023, arXiv:2302.01318)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..data.draws import uniform
from ..errors import Error
from ..former import Former
from ..nn.cache import Cache
from ..tasks.inputs import start_token
from .runner import Runner
from .sample import Sampling, check, end_marks

ACCEPT, AGAIN, DRAFT = 1, 2, 3  # what a random number is for


class Speculator:
    """A model and a draft of the same vocabulary. Greedily it writes exactly what the model writes alone, drawn it
    follows exactly the model's distribution; `ahead` tokens are drafted at a time. `accepted` counts drafted tokens
    that stayed, `drafted` all of them."""

    def __init__(self, former: Former, draft: Former, ahead: int = 4):
        for one in (former, draft):
            if not issubclass(one.state, Cache) or hasattr(one.model.body, "read"):
                what = f"{one.family} cannot take back what it has read"
                raise Error(what, fix="take models with a cache of keys and values")
        if former.pair != draft.pair or former.config.vocab != draft.config.vocab:
            raise Error("a draft must be of the model's kind and vocabulary", fix="take a smaller relative")
        if ahead < 1:
            raise Error(f"ahead must be at least 1, got {ahead}", fix="4 is usual")
        self.former, self.draft, self.ahead, self.accepted, self.drafted = former, draft, ahead, 0, 0

    @torch.inference_mode()
    def continue_ids(
        self, prompts: Sequence[Sequence[int]], tokens: int, sampling: Sampling = Sampling()
    ) -> list[list[int]]:
        """Up to `tokens` new ids for each prompt, text by text; what fits into the context of both models."""
        rows = check(self.former, prompts, tokens)
        return [self.write(row, tokens, sampling) for row in rows]

    def write(self, prompt: list[int], tokens: int, sampling: Sampling) -> list[int]:
        """One text."""
        stops, text = end_marks(self.former), [start_token(self.former.config)] if self.former.pair else list(prompt)
        begun, sources = len(text), [prompt] if self.former.pair else None
        limits = [getattr(f.config, "context", None) or begun + tokens + self.ahead for f in (self.former, self.draft)]
        end = min(begun + tokens, *(limit + 1 for limit in limits))
        large, small = (Side(f, min(limits) + self.ahead, sources) for f in (self.former, self.draft))
        while len(text) < end:
            count = min(self.ahead, end - len(text) - 1, min(limits) - len(text))
            guessed, doubts = self.guess(small, text, count, sampling, begun)
            beliefs = large.read([*text, *guessed], len(guessed) + 1, sampling)
            for token in self.judge(guessed, doubts, beliefs, sampling, len(text) - begun):
                if token in stops:
                    return text[begun:]
                text.append(token)
        return text[begun:end]

    def guess(
        self, small: Side, text: list[int], count: int, sampling: Sampling, begun: int
    ) -> tuple[list[int], list[Tensor]]:
        """The draft's next tokens, and the probabilities they were drawn from."""
        guessed: list[int] = []
        doubts: list[Tensor] = []
        for _ in range(count):
            belief = small.read([*text, *guessed], 1, sampling)[0]
            step = len(text) + len(guessed) - begun
            guessed.append(take(belief, float(uniform(sampling.seed, step, DRAFT))))
            doubts.append(belief)
        return guessed, doubts

    def judge(
        self, guessed: list[int], doubts: list[Tensor], beliefs: Tensor, sampling: Sampling, step: int
    ) -> list[int]:
        """The guesses that stay, and one token more. A guess x stays with probability min(1, p(x) / q(x)); in place of
        the first that goes, one is drawn from max(0, p - q) (Leviathan et al. 2023, §2.3 and A.1)."""
        self.drafted += len(guessed)
        for i, (token, q) in enumerate(zip(guessed, doubts, strict=True)):
            p = beliefs[i]
            if float(uniform(sampling.seed, step + i, ACCEPT)) * float(q[token]) >= float(p[token]):
                rest = (p - q).clamp(min=0)
                return [*guessed[:i], take(rest, float(uniform(sampling.seed, step + i, AGAIN)))]
            self.accepted += 1
        last = len(guessed)
        return [*guessed, take(beliefs[last], float(uniform(sampling.seed, step + last, AGAIN)))]


class Side:
    """One of the two models at work on one text: it reads what it has not read, and takes back what was not to be."""

    def __init__(self, former: Former, size: int, sources: list[list[int]] | None):
        self.runner, self.had = Runner(former, 1, size, sources), list[int]()

    def read(self, text: list[int], count: int, sampling: Sampling) -> Tensor:
        """(count, vocab) the probabilities of what comes after each of the last `count` tokens of a text."""
        same = 0
        while same < min(len(self.had), len(text) - count) and self.had[same] == text[same]:
            same += 1
        if same < len(self.had):
            self.runner.forget([len(self.had) - same])
        self.had = list(text)
        return probabilities(self.runner.every(text[same:])[-count:], sampling)


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """(n, vocab) what a token is drawn from; greedily, all of it is at the likeliest."""
    if sampling.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    scores = logits.double() / (1.0 if sampling.temperature is None else sampling.temperature)
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        least = scores.topk(sampling.top_k, -1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    return scores.softmax(-1)


def take(weights: Tensor, number: float) -> int:
    """The token at which the sum of weights passes a number's share of it."""
    reach = weights.cumsum(-1).cpu().numpy()
    return min(int(np.searchsorted(reach, number * reach[-1], side="right")), len(reach) - 1)
