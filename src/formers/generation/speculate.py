"""Speculative decoding: a smaller relative drafts several tokens, the model reads them in one pass and keeps what it
would have written itself (Leviathan et al. 2023, arXiv:2211.17192, §2.3; Chen et al. 2023, arXiv:2302.01318)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data.draws import uniform
from ..errors import Error, NonFinite
from ..former import Former
from ..nn.cache import Cache
from ..tasks.inputs import start_token
from .choose import warp
from .options import Options
from .rules import Rules
from .runner import Runner
from .sample import check, law_of

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
        words = [one.tokenizer.fingerprint for one in (former, draft) if one.tokenizer is not None]
        if former.pair != draft.pair or former.config.vocab != draft.config.vocab or len(set(words)) > 1:
            raise Error("a draft must be of the model's kind and vocabulary", fix="take a smaller relative")
        if ahead < 1:
            raise Error(f"ahead must be at least 1, got {ahead}", fix="4 is usual")
        self.former, self.draft, self.ahead, self.accepted, self.drafted = former, draft, ahead, 0, 0

    def continue_ids(
        self, prompts: Sequence[Sequence[int]], tokens: int, options: Options = Options()
    ) -> list[list[int]]:
        """Up to `tokens` new ids for each prompt, text by text, as `sample.continue_ids` does under these options."""
        rows, law = check(self.former, prompts, tokens), law_of(self.former, options, tokens)
        return [self.write(row, law, sample) for row in rows for sample in range(options.samples)]

    @torch.inference_mode()
    def write(self, prompt: list[int], law: Rules, sample: int = 0) -> list[int]:
        """One text; it ends with the context of the smaller model, with a warning."""
        if law.options.beams > 1:
            raise Error("a draft is for draws, not for a search with beams", fix="leave the draft out, or beams")
        text = [start_token(self.former.config)] if self.former.pair else list(prompt)
        begun, sources, tokens = len(text), [prompt] if self.former.pair else None, law.options.tokens
        limits = [getattr(f.config, "context", None) or begun + tokens + self.ahead for f in (self.former, self.draft)]
        if begun > min(limits):
            what = f"{begun:,} tokens are more than the context of {min(limits):,} that both models have"
            raise Error(what, fix="give a shorter prompt, or leave the draft out")
        if (end := min(begun + tokens, min(limits) + 1)) < begun + tokens:
            warnings.warn(f"with a draft a text ends with the context, here after {end - begun:,} tokens", stacklevel=2)
        large, small = (Side(f, min(limits) + self.ahead, sources) for f in (self.former, self.draft))
        key = Key(law, begun, sample)
        while len(text) < end and not law.stopped(text[begun:]):
            count = min(self.ahead, end - len(text) - 1, min(limits) - len(text))
            guessed, doubts = self.guess(small, text, count, key)
            beliefs = large.read([*text, *guessed], len(guessed) + 1, key)
            for token in self.judge(guessed, doubts, beliefs, key, len(text)):
                if token in law.ends:
                    return text[begun:]
                text.append(token)
        return text[begun:end]

    def guess(self, small: Side, text: list[int], count: int, key: Key) -> tuple[list[int], list[Tensor]]:
        """The draft's next tokens, and the probabilities they were drawn from."""
        guessed: list[int] = []
        doubts: list[Tensor] = []
        for _ in range(count):
            belief = small.read([*text, *guessed], 1, key)[0]
            guessed.append(take(belief, key.number(len(text) + len(guessed), DRAFT)))
            doubts.append(belief)
        return guessed, doubts

    def judge(self, guessed: list[int], doubts: list[Tensor], beliefs: Tensor, key: Key, length: int) -> list[int]:
        """The guesses that stay, and one token more. A guess x stays with probability min(1, p(x) / q(x)); in place of
        the first that goes, one is drawn from max(0, p - q) (Leviathan et al. 2023, §2.3 and A.1)."""
        self.drafted += len(guessed)
        for i, (token, q) in enumerate(zip(guessed, doubts, strict=True)):
            p = beliefs[i]
            if key.number(length + i, ACCEPT) * float(q[token]) >= float(p[token]):
                return [*guessed[:i], take((p - q).clamp(min=0), key.number(length + i, AGAIN))]
            self.accepted += 1
        last = len(guessed)
        return [*guessed, take(beliefs[last], key.number(length + last, AGAIN))]


@dataclass(frozen=True)
class Key:
    """What the tokens of one text are chosen by: the rules, where it begins, and the sample's number."""

    law: Rules
    begun: int
    sample: int

    def number(self, length: int, purpose: int) -> float:
        """The random number of a text of this length for a purpose."""
        return float(uniform(self.law.options.seed, self.sample, length - self.begun, purpose))

    def chances(self, logits: Tensor, text: list[int]) -> Tensor:
        """(n, vocab) what is drawn from behind each of the last n tokens of a text; greedily, all of it is at the
        likeliest."""
        options, first, rows = self.law.options, len(text) - len(logits) + 1, []
        for i, scores in enumerate(logits.float()):
            page = torch.tensor([text[: first + i]], device=logits.device) if self.law.reads else None
            rows.append(self.law.apply(scores[None], page, first + i - self.begun))
        scores = torch.cat(rows)
        if options.temperature == 0:
            found = torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).double()
        else:
            found = warp(scores, options).softmax(-1)
        return found + logits.amax(-1, keepdim=True) * 0  # NaN where logits are not finite, for `take` to see


class Side:
    """One of the two models at work on one text: it reads what it has not read, and takes back what was not to be."""

    def __init__(self, former: Former, size: int, sources: list[list[int]] | None):
        self.runner, self.had = Runner(former, 1, size, sources), list[int]()

    def read(self, text: list[int], count: int, key: Key) -> Tensor:
        """(count, vocab) the probabilities of what comes after each of the last `count` tokens of a text."""
        same = 0
        while same < min(len(self.had), len(text) - count) and self.had[same] == text[same]:
            same += 1
        if same < len(self.had):
            self.runner.forget([len(self.had) - same])
        self.had = list(text)
        return key.chances(self.runner.every(text[same:])[-count:], text)


def take(weights: Tensor, number: float) -> int:
    """The token at which the sum of weights passes a number's share of it."""
    reach = weights.cumsum(-1).cpu().numpy()
    if not np.isfinite(reach[-1]):
        raise NonFinite("scores of the next token")
    return min(int(np.searchsorted(reach, number * reach[-1], side="right")), len(reach) - 1)
