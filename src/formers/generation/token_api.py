"""Continuing ids: what goes in is checked, the engine writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import format_value
from ..errors import Error
from ..former import Former
from ..inputs import check_ids, check_length, to_tensor
from ..verbs import can_generate
from .decoding import DecodingBatch, decode_batch
from .logits_processors import Constraints, build_constraints
from .options import Options


def continue_ids(
    former: Former, prompts: Sequence[Sequence[int]] | Tensor, max_new_tokens: int = 64, options: Options = Options()
) -> list[list[int]]:
    """Up to `max_new_tokens` new ids for each prompt (rows of ids, or a tensor of them); a row ends at the end mark. To
    an encoder-decoder the prompts are the source. With several samples, those of one prompt follow each other."""
    rows, law = check_prompts(former, prompts, max_new_tokens), build_id_constraints(former, options, max_new_tokens)
    made = decode_batch(DecodingBatch(former, rows, max_new_tokens, options.rows_per_prompt), law)
    return [one.ids for found in made for one in found]


def build_id_constraints(former: Former, options: Options, max_new_tokens: int) -> Constraints:
    """The rules by which up to `max_new_tokens` ids are written."""
    if options.stop:
        raise Error("stop strings are of texts, not of ids", fix="generate works with texts")
    return build_constraints(former, dataclasses.replace(options, max_new_tokens=max_new_tokens))


def check_prompts(former: Former, prompts: Sequence[Sequence[int]] | Tensor, tokens: int) -> list[list[int]]:
    """Prompts as lists; refuse what cannot be continued."""
    if not can_generate(former):
        raise Error(
            f"{former.family} with head {former.head!r} does not continue text",
            fix="load a decoder such as gpt2 with head='lm'",
        )
    if type(tokens) is not int or tokens < 1:
        raise Error(f"max_new_tokens must be at least 1, got {format_value(tokens)}", fix="ask for a number of tokens")
    rows = to_prompt_rows(prompts)
    for row in rows:
        check_ids(row[None], former.config, "ids")
        check_length(len(row) if former.is_encoder_decoder else 0, former.config)
    return [row.tolist() for row in rows]


def to_prompt_rows(prompts: Any) -> list[Tensor]:
    """Each prompt as a tensor of whole numbers; a tensor (tokens,) is one prompt."""
    if isinstance(prompts, Tensor) and prompts.dim() == 1:
        prompts = prompts[None]
    if not isinstance(prompts, Sequence | Tensor | np.ndarray):
        raise Error(f"prompts must be rows of ids, not {format_value(prompts)}", fix="for one prompt, pass [ids]")
    void = torch.empty(0, dtype=torch.long)  # torch makes an empty list one of floats
    rows = [void if isinstance(p, Sequence) and not p else to_tensor(p, "a prompt", integer=True) for p in prompts]
    if any(row.dim() != 1 for row in rows):
        raise Error(f"a prompt must be a row of ids, got {format_value(prompts)}", fix="for one prompt, pass [ids]")
    if not rows or not all(map(len, rows)):
        raise Error("a prompt is empty", fix="give at least one token to begin with")
    return rows
