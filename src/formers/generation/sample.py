"""Continuing a text token by token, with a cache of what has been read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import shown, table
from ..data.draws import uniform
from ..errors import Error
from ..former import Former
from ..nn.memory import Memory
from ..tasks.inputs import check_ids, check_length, start_token, tensor
from .runner import Runner, streams


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
    former: Former, prompts: Sequence[Sequence[int]] | Tensor, tokens: int, sampling: Sampling = Sampling()
) -> list[list[int]]:
    """Up to `tokens` new ids for each prompt (rows of ids, or a tensor of them); a row ends at the end mark. To an
    encoder-decoder the prompts are the source. When a row fills a decoder's context, the last half of it is read again
    and the rest forgotten; a model with a memory forgets what is oldest. Of what a checkpoint's generation_config.json
    asks for, only the end mark is obeyed: no forced or forbidden tokens."""
    rows = check(former, prompts, tokens)
    sources = rows if former.pair else None
    texts = [[start_token(former.config)] if former.pair else row for row in rows]
    begun, stops, ended = [len(text) for text in texts], end_marks(former), set[int]()
    context: int | None = getattr(former.config, "context", None)
    kept = former.config.memory if issubclass(former.state, Memory) else context
    size = kept or max(begun) + tokens
    windows = [max(0, n - context) if context else 0 for n in begun]  # where what a row has read begins
    runner, fed = Runner(former, len(rows), size, sources), [text[n:] for text, n in zip(texts, windows, strict=True)]
    for step in range(tokens):
        full = [context is not None and len(text) - n > context for text, n in zip(texts, windows, strict=True)]
        if context is not None and any(full):  # a row's window depends on the row alone
            windows = [
                len(text) - (context // 2 or 1) if over else n
                for text, n, over in zip(texts, windows, full, strict=True)
            ]
            runner = Runner(former, len(rows), size, sources)
            fed = [text[n:] for text, n in zip(texts, windows, strict=True)]
        picked = sampling.pick(runner.read(fed), step).tolist()
        for text, token in zip(texts, picked, strict=True):
            text.append(token)
        ended |= {row for row, token in enumerate(picked) if token in stops}
        if len(ended) == len(rows):
            break
        fed = [text[-runner.again :] for text in texts]
    new = [text[n:] for text, n in zip(texts, begun, strict=True)]
    return [list(itertools.takewhile(lambda token: token not in stops, row)) for row in new]


def end_marks(former: Former) -> set[int]:
    """The tokens at which a text ends, as generation_config.json says if there is one, else as the config."""
    kept, name = former.kept.get("generation_config.json"), "eos_token_id"
    marks = None if kept is None else table(kept.decode("utf-8", "replace"), "generation_config.json").get(name)
    marks = former.config.eos if marks is None else marks
    marks = marks if isinstance(marks, list | tuple) else [] if marks is None else [marks]
    if not all(type(mark) is int for mark in marks):
        raise Error(f"{name}: {shown(marks)} is no token", where="generation_config.json", fix="correct it")
    return set(marks)


def check(former: Former, prompts: Sequence[Sequence[int]] | Tensor, tokens: int) -> list[list[int]]:
    """Prompts as lists; refuse what cannot be continued."""
    words = hasattr(former.config, "slots")  # who reads words of characters has no token to go on with
    blind = getattr(former.config, "causal", True) is False and not streams(former)
    if former.head not in ("lm", "double") or words or blind:
        raise Error(
            f"{former.family} with head {former.head!r} does not continue text",
            fix="load a decoder such as gpt2 with head='lm'",
        )
    if type(tokens) is not int or tokens < 1:
        raise Error(f"tokens must be at least 1, got {shown(tokens)}", fix="ask for a number of tokens")
    rows = prompt_rows(prompts)
    for row in rows:
        check_ids(row[None], former.config, "ids")
        check_length(len(row) if former.pair else 0, former.config)
    return [row.tolist() for row in rows]


def prompt_rows(prompts: Any) -> list[Tensor]:
    """Each prompt as a tensor of whole numbers; a tensor (tokens,) is one prompt."""
    if isinstance(prompts, Tensor) and prompts.dim() == 1:
        prompts = prompts[None]
    if not isinstance(prompts, Sequence | Tensor | np.ndarray):
        raise Error(f"prompts must be rows of ids, not {shown(prompts)}", fix="for one prompt, pass [ids]")
    void = torch.empty(0, dtype=torch.long)  # torch makes an empty list one of floats
    rows = [void if isinstance(p, Sequence) and not p else tensor(p, "a prompt", whole=True) for p in prompts]
    if any(row.dim() != 1 for row in rows):
        raise Error(f"a prompt must be a row of ids, got {shown(prompts)}", fix="for one prompt, pass [ids]")
    if not rows or not all(map(len, rows)):
        raise Error("a prompt is empty", fix="give at least one token to begin with")
    return rows


def continue_text(former: Former, prompt: str, tokens: int = 64, sampling: Sampling = Sampling()) -> str:
    """The prompt and what follows it."""
    if former.tokenizer is None:
        raise Error("this model has no tokenizer", fix="continue_ids works with ids")
    ids = former.tokenizer.encode(prompt, special=False)
    if not ids:
        raise Error("the prompt is empty", fix="give some text to begin with")
    return former.tokenizer.decode([*ids, *continue_ids(former, [ids], tokens, sampling)[0]])
