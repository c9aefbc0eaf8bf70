"""Continuing a text token by token, with a cache of what has been read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..data.draws import uniform
from ..errors import Error
from ..former import Former
from ..nn.memory import Memory
from ..tasks.inputs import check_ids


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Temperature 0 takes the likeliest."""

    temperature: float = 1.0
    top_k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise Error(
                f"temperature must be at least 0, got {self.temperature}",
                fix="0 takes the likeliest token, 1 samples as learnt",
            )
        if self.top_k is not None and self.top_k < 1:
            raise Error(f"top_k must be at least 1, got {self.top_k}", fix="leave it out to consider all tokens")

    def pick(self, logits: Tensor, step: int) -> Tensor:
        """(rows, vocab) → (rows,). A row's draw depends on the seed and the step alone, not on its neighbours."""
        if self.temperature == 0:
            return logits.argmax(-1)
        scores = logits.double() / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            least = scores.topk(self.top_k, -1).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        reach = scores.softmax(-1).cumsum(-1)
        draw = float(uniform(self.seed, step)) * reach[:, -1:]
        return (reach <= draw).sum(-1).clamp(max=scores.shape[-1] - 1)


@torch.inference_mode()
def continue_ids(
    former: Former, prompts: Sequence[Sequence[int]], tokens: int, sampling: Sampling = Sampling()
) -> list[list[int]]:
    """Up to `tokens` new ids for each prompt; a row ends at the end mark. To an encoder-decoder the prompts are the
    source. When a decoder's context is full, the last half of it is read again and the rest forgotten; a model with a
    memory forgets what is oldest."""
    check(former, prompts, tokens)
    rows = [list(map(int, prompt)) for prompt in prompts]
    source = packed(rows, former.device) if former.pair else None
    begun = [[first_token(former)] if former.pair else row for row in rows]
    context: int | None = getattr(former.config, "context", None)
    kept = former.config.memory if issubclass(former.state, Memory) else context
    size = kept or max(map(len, begun)) + tokens
    again = 2 if streams(former) else 1  # tokens of each step
    stops = set(np.atleast_1d(np.array([] if former.config.eos is None else former.config.eos)).tolist())
    done: list[list[int]] = [[] for _ in rows]
    state, fed = former.remember(len(rows), size), [row if context is None else row[-context:] for row in begun]
    for step in range(tokens):
        if context is not None and state.used + max(map(len, fed)) > context:
            state = former.remember(len(rows), size)
            fed = [(row + new)[-(context // 2 or 1) :] for row, new in zip(begun, done, strict=True)]
        picked = sampling.pick(ask(former, fed, source, state), step).tolist()
        for row, token in zip(done, picked, strict=True):
            if not (row and row[-1] in stops):
                row.append(token)
        if all(row[-1] in stops for row in done):
            break
        fed = [(row + new)[-again:] for row, new in zip(begun, done, strict=True)]
    return [row[:-1] if row[-1] in stops else row for row in done]


def ask(former: Former, fed: list[list[int]], source: Batch | None, state: Any) -> Tensor:
    """(rows, vocab) what comes after the tokens that are fed.

    Of two streams (XLNet), the query stream at one more place answers, which no other sees. Its states and those of
    the token before it are forgotten: that token is read again with its successor (two by two, as transformers does).
    """
    two = streams(former)
    batch = packed([[*row, 0] for row in fed] if two else fed, former.device).replace(source=source)
    ends = batch.layout.last()
    if two:
        order = torch.zeros_like(batch.ids).index_fill(0, ends, 1)
        batch = batch.replace(order=order, chosen=ends)
    hidden = former.model(batch, **former.how(state, None))
    if two:
        state.forget(2)
    return former.model.logits(hidden[ends], part="lm")


def streams(former: Former) -> bool:
    """The model reads in two streams, of which the second guesses tokens that it does not see (XLNet)."""
    return hasattr(former.model.body, "blank")


def check(former: Former, prompts: Sequence[Sequence[int]], tokens: int) -> None:
    """Refuse what cannot be continued."""
    words = hasattr(former.config, "slots")  # who reads words of characters has no token to go on with
    blind = getattr(former.config, "causal", True) is False and not streams(former)
    if former.head not in ("lm", "double") or words or blind:
        raise Error(
            f"{former.family} with head {former.head!r} does not continue text",
            fix="load a decoder such as gpt2 with head='lm'",
        )
    if not prompts or not all(prompts):
        raise Error("a prompt is empty", fix="give at least one token to begin with")
    if tokens < 1:
        raise Error(f"tokens must be at least 1, got {tokens}", fix="ask for some tokens")
    for prompt in prompts:
        check_ids(torch.tensor([list(prompt)]), former.config, "ids")


def first_token(former: Former) -> int:
    """The decoder's first input."""
    first = former.config.pad if former.config.start is None else former.config.start
    if first is None:
        raise Error(f"{former.family}'s config does not say how the decoder starts", fix="set start, or pad")
    return int(first)


def packed(rows: list[list[int]], device: torch.device) -> Batch:
    """Rows of different lengths, one document each."""
    starts = torch.tensor(np.cumsum([0, *map(len, rows)]), dtype=torch.int32, device=device)
    ids = torch.tensor([i for row in rows for i in row], device=device)
    return Batch(ids, starts, max(map(len, rows)))


def continue_text(former: Former, prompt: str, tokens: int = 64, sampling: Sampling = Sampling()) -> str:
    """The prompt and what follows it."""
    if former.tokenizer is None:
        raise Error("this model has no tokenizer", fix="continue_ids works with ids")
    ids = former.tokenizer.encode(prompt, special=False)
    if not ids:
        raise Error("the prompt is empty", fix="give some text to begin with")
    return former.tokenizer.decode([*ids, *continue_ids(former, [ids], tokens, sampling)[0]])
