"""Decoding by ids: prompts are checked, and their sequences grow token by token, for every family that generates."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import format_value
from ..errors import Error, NonFinite
from ..former import Former
from ..inputs import check_ids, check_length, get_start_token, to_tensor
from ..nn.attention.context import Capture
from ..nn.attention.segment_memory import SegmentMemory
from ..verbs import can_generate
from .logits_processors import Constraints, build_constraints
from .options import Options
from .runner import Runner
from .sampling import draw_numbers, select_tokens

STEPS_AHEAD = 16  # tokens generated on a GPU between two host syncs


@dataclass(frozen=True)
class Hypothesis:
    """A generated sequence: the new ids without the end mark, and the score of a beam search (else 0)."""

    ids: list[int]
    score: float = 0.0


def continue_ids(
    former: Former, prompts: Sequence[Sequence[int]] | Tensor, max_new_tokens: int = 64,
    options: Options | None = None, **settings: Any,  # dynamic: fields of Options, which checks them
) -> list[list[int]]:  # fmt: skip
    """Generate up to `max_new_tokens` ids for each prompt (rows of ids, or a tensor of them), up to the end mark.

    To an encoder-decoder the prompts are the source. With several samples, those of one prompt follow each other.
    `settings` are fields of Options, for callers without an Options."""
    options = options or Options(**settings)
    rows = check_prompts(former, prompts, max_new_tokens)
    constraints = build_id_constraints(former, options, max_new_tokens)
    hypotheses = decode_batch(DecodingBatch(former, rows, max_new_tokens, options.rows_per_prompt), constraints)
    return [hypothesis.ids for samples in hypotheses for hypothesis in samples]


def build_id_constraints(former: Former, options: Options, max_new_tokens: int) -> Constraints:
    """Build the constraints for up to `max_new_tokens` ids; stop strings need text and are refused."""
    if options.stop:
        raise Error("stop strings apply to texts, not to ids", fix="use generate, which works with texts")
    return build_constraints(former, dataclasses.replace(options, max_new_tokens=max_new_tokens))


def check_prompts(former: Former, prompts: Sequence[Sequence[int]] | Tensor, tokens: int) -> list[list[int]]:
    """Return prompts as lists of ids; refuse a model or a prompt that cannot be continued."""
    if not can_generate(former):
        what = f"{former.family} with head {former.head!r} does not continue text"
        raise Error(what, fix="load a decoder such as gpt2 with head='lm'")
    if type(tokens) is not int or tokens < 1:
        raise Error(f"max_new_tokens must be at least 1, got {format_value(tokens)}", fix="ask for a number of tokens")
    rows = to_prompt_rows(prompts)
    for row in rows:
        check_ids(row[None], former.definition, former.config, "ids")
        check_length(len(row) if former.is_encoder_decoder else 0, former.context)
    return [row.tolist() for row in rows]


def to_prompt_rows(prompts: Sequence[Sequence[int]] | Tensor) -> list[Tensor]:
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


def begin_sequence(former: Former, prompt: Sequence[int], start: int | None = None) -> list[int]:
    """Return what a sequence begins with: a decoder's prompt, or an encoder-decoder's start token."""
    if not former.is_encoder_decoder:
        return list(prompt)
    return [get_start_token(former.config) if start is None else start]


class DecodingBatch:
    """Sequences that are decoded together: every prompt has `rows_per_prompt` rows, one after the other.

    To an encoder-decoder prompts are sources, and its sequences begin with `start` (or the config's own). What comes
    after that is given by `prefix`, for all of them. When a row
    fills a decoder's context, its last half is read again and the rest dropped; a model with a memory drops its oldest
    states. Rows in `finished_rows` are skipped."""

    def __init__(
        self, former: Former, prompts: Sequence[list[int]], max_new_tokens: int, rows_per_prompt: int = 1,
        start: int | None = None, prefix: Sequence[int] = (),
    ):  # fmt: skip
        self.former, self.rows_per_prompt = former, rows_per_prompt
        self.sources = prompts if former.is_encoder_decoder else None
        beginnings = [[*begin_sequence(former, row, start), *prefix] for row in prompts]
        self.sequences = [list(row) for row in beginnings for _ in range(rows_per_prompt)]
        self.prompt_lengths = [len(text) for text in self.sequences]
        self.context: int | None = former.context
        longest = max(self.prompt_lengths)
        has_memory = issubclass(former.state_class, SegmentMemory)
        self.should_reread = has_memory and former.config.has_uniform_attention  # at every step, with nothing cached
        self.cache_size = longest + max_new_tokens
        if has_memory:
            self.cache_size = 0 if self.should_reread else former.config.memory or self.cache_size
        elif self.context is not None:
            self.cache_size = min(self.context, self.cache_size)
        self.rng_streams = np.tile(np.arange(rows_per_prompt), len(prompts))  # whose draws a row has: its sample's
        self.window_starts = [0] * len(self.sequences)  # where what a row has read begins
        if self.context is not None and longest > self.context:
            what = f"a prompt of {longest:,} tokens is longer than the context: its last {self.context:,} are read"
            warnings.warn(what, stacklevel=2)
            self.window_starts = [max(0, n - self.context) for n in self.prompt_lengths]
        self.finished_rows: set[int] = set()
        self.sequence_tensor: Tensor | None = None  # (rows, tokens), padded with -1 on the left, where rules read it
        self.reset_runner()

    def reset_runner(self) -> None:
        """Start a new runner, which reads every row from the start of its window."""
        vars(self).pop("runner", None)  # dynamic: there may be none yet; this frees its CUDA graph for the next one
        self.runner = Runner(self.former, len(self.sequences), self.cache_size, self.sources, self.rows_per_prompt)
        both = enumerate(zip(self.sequences, self.window_starts, strict=True))
        self.pending_ids = [[] if row in self.finished_rows else text[n:] for row, (text, n) in both]

    def build_sequence_tensor(self) -> None:
        """Keep the sequences as a tensor as well, for constraints that read them."""
        longest = max(map(len, self.sequences))
        rows = [[-1] * (longest - len(text)) + text for text in self.sequences]
        self.sequence_tensor = torch.tensor(rows, device=self.former.device)

    def score_next(self, capture: Capture | None = None) -> Tensor:
        """Compute (rows, vocab) scores of the next tokens."""
        if self.should_reread and self.runner.longest_row:
            self.reset_runner()
        if self.context is not None:
            lengths = [len(text) - n for text, n in zip(self.sequences, self.window_starts, strict=True)]
            full = [n > self.context and row not in self.finished_rows for row, n in enumerate(lengths)]
            if any(full):  # a row's window depends on the row alone
                half = self.context // 2 or 1
                halves = [len(text) - half for text in self.sequences]
                self.window_starts = [b if f else a for a, b, f in zip(self.window_starts, halves, full, strict=True)]
                self.reset_runner()
        return self.runner.score_next(self.pending_ids, capture).float()

    def score_shared_prompts(self) -> Tensor:
        """Compute the first scores of a beam search: only one row of each prompt reads it, and the others share it."""
        if self.former.is_encoder_decoder or self.runner.is_two_stream:
            return self.score_next()
        firsts = [row - row % self.rows_per_prompt for row in range(len(self.sequences))]
        self.pending_ids = [ids if row == firsts[row] else [] for row, ids in enumerate(self.pending_ids)]
        scores = self.score_next()[firsts]
        self.runner.reorder_rows(firsts)
        return scores

    def append_tokens(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """Append one token to each row, which continues its parent's sequence (default: its own). The caller has
        reordered the runner's rows by parents before."""
        if parents is not None and list(parents) != list(range(len(self.sequences))):
            self.sequences = [list(self.sequences[parent]) for parent in parents]
            self.sequence_tensor = None if self.sequence_tensor is None else self.sequence_tensor[list(parents)]
        for row, token in enumerate(tokens):
            if row not in self.finished_rows:
                self.sequences[row].append(token)
        again = self.runner.reread_tokens
        self.pending_ids = [[] if row in self.finished_rows else ids[-again:] for row, ids in enumerate(self.sequences)]
        if self.sequence_tensor is not None:
            new = torch.tensor(tokens, device=self.sequence_tensor.device)
            self.sequence_tensor = torch.cat((self.sequence_tensor, new[:, None]), 1)

    def finish_row(self, row: int) -> None:
        """Mark a row as complete and clear its cache, so that a full row does not stop the others."""
        if row not in self.finished_rows:
            self.finished_rows.add(row)
            self.pending_ids[row] = []
            self.runner.clear_row(row)

    def count_safe_steps(self, constraints: Constraints) -> int:
        """Return how many tokens can be generated before the host must see them."""
        reads_history = constraints.has_history_rules or self.sequence_tensor is not None
        if reads_history or not self.runner.can_chain_steps or (self.finished_rows and not self.runner.graphed_step):
            return 1
        longest = max(len(text) - n for text, n in zip(self.sequences, self.window_starts, strict=True))
        return STEPS_AHEAD if self.context is None else max(1, self.context - longest + 1)

    @property
    def is_done(self) -> bool:
        """True when every row is complete."""
        return len(self.finished_rows) == len(self.sequences)

    @property
    def live_rows(self) -> list[int]:
        """Of each row, 1 while it is not complete."""
        return [int(row not in self.finished_rows) for row in range(len(self.sequences))]

    def get_new_ids(self, row: int) -> list[int]:
        """Return the ids that a row has generated."""
        return self.sequences[row][self.prompt_lengths[row] :]


def decode_batch(batch: DecodingBatch, constraints: Constraints) -> list[list[Hypothesis]]:
    """Run a batch to its end by sampling or beam search: `num_samples` hypotheses for each prompt."""
    if constraints.options.num_beams > 1:
        from .beam import beam_search

        return beam_search(batch, constraints)
    for _ in decode_steps(batch, constraints, STEPS_AHEAD):
        pass
    rows = [Hypothesis(batch.get_new_ids(row)) for row in range(len(batch.sequences))]
    return [rows[at : at + batch.rows_per_prompt] for at in range(0, len(rows), batch.rows_per_prompt)]


@torch.inference_mode()
def decode_steps(batch: DecodingBatch, constraints: Constraints, ahead: int = 1) -> Iterator[list[int | None]]:
    """Sample (or decode greedily) and yield each row's new token at every step, None for complete rows. Where only the
    model's scores decide, up to `ahead` tokens are generated before the first is yielded, so that a GPU does not wait
    for the host at every token. What a row generates past its end is dropped."""
    step, tokens = 0, constraints.options.max_new_tokens
    if constraints.has_history_rules:
        batch.build_sequence_tensor()
    while step < tokens and not batch.is_done:
        count = min(ahead, tokens - step, batch.count_safe_steps(constraints))
        for picked in run_steps(batch, constraints, step, count):
            visible_tokens = [None if row in batch.finished_rows else token for row, token in enumerate(picked)]
            for row, token in enumerate(visible_tokens):
                if token is not None and token in constraints.end_ids:
                    batch.finish_row(row)
                    visible_tokens[row] = None
            batch.append_tokens(picked)
            yield visible_tokens
            if batch.is_done:
                return
        step += count


def run_steps(batch: DecodingBatch, constraints: Constraints, step: int, count: int) -> list[list[int]]:
    """Generate `count` tokens for each row, with one transfer from the device for all of them."""
    options, chosen, live = constraints.options, list[Tensor](), batch.live_rows
    numbers = None
    if options.temperature != 0:
        numbers = draw_numbers(options, step + np.arange(count)[:, None], batch.rng_streams, batch.former.device)
    for i in range(count):
        scores = batch.score_next() if i == 0 else batch.runner.step(chosen[-1], live).float()
        allowed = constraints.apply(scores, batch.sequence_tensor, step + i)
        chosen.append(select_tokens(allowed, options, None if numbers is None else numbers[i]))
    *tokens, finite = torch.stack((*chosen, are_finite(scores))).tolist()  # one transfer from the device for all of it
    check_rows_finite(finite, live)
    return tokens


def are_finite(scores: Tensor) -> Tensor:
    """(rows, vocab) scores → (rows,) 1 where their largest is finite: NaN and infinity both show in it. What a row has
    read stays in its state, so the scores of the last of several steps tell of all of them."""
    return scores.amax(-1).isfinite().long()


def check_rows_finite(finite: Sequence[int], live: Sequence[int]) -> None:
    """Raise NonFinite if a row that counts has scores that are not finite."""
    if not all(good or not counts for good, counts in zip(finite, live, strict=True)):
        raise NonFinite("scores of the next token")
