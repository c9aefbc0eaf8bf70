"""Generation by ids: prompts are checked and continued."""

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
from .beam import beam_search
from .decoding import STEPS_AHEAD, DecodingBatch, Hypothesis, decode_steps
from .logits_processors import Constraints, build_constraints
from .options import Options


def continue_ids(
    former: Former, prompts: Sequence[Sequence[int]] | Tensor, max_new_tokens: int = 64,
    options: Options | None = None, **settings: Any,
) -> list[list[int]]:  # fmt: skip
    """Generate up to `max_new_tokens` ids for each prompt (rows of ids, or a tensor of them), up to the end mark.

    To an encoder-decoder the prompts are the source. With several samples, those of one prompt follow each other.
    `settings` are fields of Options, for callers without an Options.
    """
    options = options or Options(**settings)
    rows, constraints = (
        check_prompts(former, prompts, max_new_tokens),
        build_id_constraints(former, options, max_new_tokens),
    )
    hypotheses = decode_batch(DecodingBatch(former, rows, max_new_tokens, options.rows_per_prompt), constraints)
    return [hypothesis.ids for samples in hypotheses for hypothesis in samples]


def decode_batch(batch: DecodingBatch, constraints: Constraints) -> list[list[Hypothesis]]:
    """Run a batch to its end by sampling or beam search: `num_samples` hypotheses for each prompt."""
    if constraints.options.num_beams > 1:
        return beam_search(batch, constraints)
    for _ in decode_steps(batch, constraints, STEPS_AHEAD):
        pass
    rows = [Hypothesis(batch.get_new_ids(row)) for row in range(len(batch.sequences))]
    return [rows[at : at + batch.rows_per_prompt] for at in range(0, len(rows), batch.rows_per_prompt)]


def build_id_constraints(former: Former, options: Options, max_new_tokens: int) -> Constraints:
    """Build the constraints for up to `max_new_tokens` ids; stop strings need text and are refused."""
    if options.stop:
        raise Error("stop strings are of texts, not of ids", fix="use generate, which works with texts")
    return build_constraints(former, dataclasses.replace(options, max_new_tokens=max_new_tokens))


def check_prompts(former: Former, prompts: Sequence[Sequence[int]] | Tensor, tokens: int) -> list[list[int]]:
    """Return prompts as lists of ids; refuse a model or a prompt that cannot be continued."""
    if not can_generate(former):
        raise Error(
            f"{former.family} with head {former.head!r} does not continue text",
            fix="load a decoder such as gpt2 with head='lm'",
        )
    if type(tokens) is not int or tokens < 1:
        raise Error(f"max_new_tokens must be at least 1, got {format_value(tokens)}", fix="ask for a number of tokens")
    rows = to_prompt_rows(prompts)
    for row in rows:
        check_ids(row[None], former.definition, former.config, "ids")
        check_length(len(row) if former.is_encoder_decoder else 0, former.context)
    return [row.tolist() for row in rows]


def to_prompt_rows(prompts: Any) -> list[Tensor]:
    """Return each prompt as a tensor of integers; a tensor (tokens,) is one prompt."""
    if isinstance(prompts, Tensor) and prompts.dim() == 1:
        prompts = prompts[None]
    if not isinstance(prompts, Sequence | Tensor | np.ndarray):
        raise Error(f"prompts must be rows of ids, not {format_value(prompts)}", fix="for one prompt, pass [ids]")
    no_ids = torch.empty(0, dtype=torch.long)  # torch makes an empty list one of floats
    rows = [no_ids if isinstance(p, Sequence) and not p else to_tensor(p, "a prompt", integer=True) for p in prompts]
    if any(row.dim() != 1 for row in rows):
        raise Error(f"a prompt must be a row of ids, got {format_value(prompts)}", fix="for one prompt, pass [ids]")
    if not rows or not all(map(len, rows)):
        raise Error("a prompt is empty", fix="give at least one token to begin with")
    return rows
