"""Continuing ids: what goes in is checked, the engine writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import shown
from ..errors import Error
from ..former import Former
from ..tasks.inputs import check_ids, check_length, tensor
from ..verbs import writes
from .engine import Desk, written
from .options import Options
from .rules import Rules, rules


def continue_ids(
    former: Former, prompts: Sequence[Sequence[int]] | Tensor, tokens: int = 64, options: Options = Options()
) -> list[list[int]]:
    """Up to `tokens` new ids for each prompt (rows of ids, or a tensor of them); a row ends at the end mark. To an
    encoder-decoder the prompts are the source. With several samples, those of one prompt follow each other."""
    rows, law = check(former, prompts, tokens), law_of(former, options, tokens)
    made = written(Desk(former, rows, tokens, options.each), law)
    return [one.ids for found in made for one in found]


def law_of(former: Former, options: Options, tokens: int) -> Rules:
    """The rules by which up to `tokens` ids are written."""
    if options.stop:
        raise Error("stop strings are of texts, not of ids", fix="generate works with texts")
    return rules(former, dataclasses.replace(options, tokens=tokens))


def check(former: Former, prompts: Sequence[Sequence[int]] | Tensor, tokens: int) -> list[list[int]]:
    """Prompts as lists; refuse what cannot be continued."""
    if not writes(former):
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
