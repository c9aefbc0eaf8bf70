"""Decoding: sequences that grow token by token, for every family that generates."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import NonFinite
from ..former import Former
from ..inputs import get_start_token
from ..nn.attention.segment_memory import SegmentMemory
from ..nn.capture import Capture
from .logits_processors import Constraints
from .runner import Runner
from .sampling import draw_numbers, select_tokens

STEPS_AHEAD = 16  # tokens generated on a GPU between two host syncs


@dataclass(frozen=True)
class Hypothesis:
    """A generated sequence: the new ids without the end mark, and the score of a beam search (else 0)."""

    ids: list[int]
    score: float = 0.0


class DecodingBatch:
    """Sequences that are decoded together: every prompt has `rows_per_prompt` rows, one after the other.

    To an encoder-decoder prompts are sources, and its sequences begin with `start` (or the config's own). When a row
    fills a decoder's context, its last half is read again and the rest dropped; a model with a memory drops its oldest
    states. Rows in `finished_rows` are skipped.
    """

    def __init__(
        self,
        former: Former,
        prompts: Sequence[list[int]],
        max_new_tokens: int,
        rows_per_prompt: int = 1,
        start: int | None = None,
    ):
        self.former, self.rows_per_prompt = former, rows_per_prompt
        self.sources = prompts if former.is_encoder_decoder else None
        begin = (get_start_token(former.config) if start is None else start) if former.is_encoder_decoder else None
        self.sequences = [list(row) if begin is None else [begin] for row in prompts for _ in range(rows_per_prompt)]
        self.prompt_lengths = [len(text) for text in self.sequences]
        self.context: int | None = former.context
        max_length = max(self.prompt_lengths) + max_new_tokens
        has_memory = issubclass(former.state_class, SegmentMemory)
        self.should_reread = getattr(
            former.config, "has_uniform_attention", False
        )  # earlier tokens see later ones: read all again
        self.cache_size = (
            former.config.memory or max_length if has_memory else min(self.context or max_length, max_length)
        )
        self.cache_size = 0 if self.should_reread else self.cache_size
        self.rng_streams = np.tile(
            np.arange(rows_per_prompt), len(prompts)
        )  # which draws are a row's: those of its sample's number
        self.window_starts = [0] * len(self.sequences)  # where what a row has read begins
        if self.context is not None and (longest := max(self.prompt_lengths)) > self.context:
            what = f"a prompt of {longest:,} tokens is longer than the context: its last {self.context:,} are read"
            warnings.warn(what, stacklevel=2)
            self.window_starts = [max(0, n - self.context) for n in self.prompt_lengths]
        self.finished_rows: set[int] = set()
        self.sequence_tensor: Tensor | None = (
            None  # (rows, tokens) the texts, filled up with -1 on the left, where they are asked
        )
        self.reset_runner()

    def reset_runner(self) -> None:
        """Start a new runner, which reads every row from the start of its window."""
        vars(self).pop("runner", None)  # frees its CUDA graph for the next one
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
        over = [
            self.context is not None
            and row not in self.finished_rows
            and len(text) - self.window_starts[row] > self.context
            for row, text in enumerate(self.sequences)
        ]
        if self.context is not None and any(over):  # a row's window depends on the row alone
            half = self.context // 2 or 1
            self.window_starts = [
                len(text) - half if full else n
                for text, n, full in zip(self.sequences, self.window_starts, over, strict=True)
            ]
            self.reset_runner()
        scores = (
            self.runner.score_next(self.pending_ids)
            if capture is None
            else self.runner.score_next(self.pending_ids, capture)
        )
        return scores.float()

    def score_shared_prompts(self) -> Tensor:
        """Compute the first scores of a beam search: only one row of each prompt reads it, and the others share it."""
        if self.former.is_encoder_decoder or self.runner.is_two_stream:
            return self.score_next()
        firsts = [row - row % self.rows_per_prompt for row in range(len(self.sequences))]
        self.pending_ids = [
            fed if row == first else [] for row, (fed, first) in enumerate(zip(self.pending_ids, firsts, strict=True))
        ]
        scores = self.score_next()[firsts]
        self.runner.reorder_rows(firsts)
        return scores

    def append_tokens(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """Append one token to each row, which continues its parent's sequence (default: its own).

        The caller has reordered the runner's rows by parents before.
        """
        if parents is not None and list(parents) != list(range(len(self.sequences))):
            self.sequences = [list(self.sequences[parent]) for parent in parents]
            self.sequence_tensor = None if self.sequence_tensor is None else self.sequence_tensor[list(parents)]
        for row, token in enumerate(tokens):
            if row not in self.finished_rows:
                self.sequences[row].append(token)
        again = self.runner.reread_tokens
        self.pending_ids = [
            [] if row in self.finished_rows else text[-again:] for row, text in enumerate(self.sequences)
        ]
        if self.sequence_tensor is not None:
            self.sequence_tensor = torch.cat(
                (self.sequence_tensor, torch.tensor(tokens, device=self.sequence_tensor.device)[:, None]), 1
            )

    def finish_row(self, row: int) -> None:
        """Mark a row as complete and clear its cache, so that a full row does not stop the others."""
        if row not in self.finished_rows:
            self.finished_rows.add(row)
            self.pending_ids[row] = []
            self.runner.clear_row(row)

    def count_safe_steps(self, constraints: Constraints) -> int:
        """Return how many tokens can be generated before the host must see them."""
        if (
            constraints.has_history_rules
            or self.sequence_tensor is not None
            or not self.runner.can_chain_steps
            or (self.finished_rows and not self.runner.graphed_step)
        ):
            return 1
        longest = max(len(text) - n for text, n in zip(self.sequences, self.window_starts, strict=True))
        return STEPS_AHEAD if self.context is None else max(1, self.context - longest + 1)

    @property
    def is_done(self) -> bool:
        """True when every row is complete."""
        return len(self.finished_rows) == len(self.sequences)

    def get_new_ids(self, row: int) -> list[int]:
        """Return the ids that a row has generated."""
        return self.sequences[row][self.prompt_lengths[row] :]


@torch.inference_mode()
def decode_steps(batch: DecodingBatch, constraints: Constraints, ahead: int = 1) -> Iterator[list[int | None]]:
    """Sample (or decode greedily) and yield each row's new token at every step, None for complete rows.

    Where only the model's scores decide, up to `ahead` tokens are generated before the first is yielded, so that a GPU
    does not wait for the host at every token. What a row generates past its end is dropped.
    """
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
    options, chosen = constraints.options, list[Tensor]()
    numbers = None
    if options.temperature != 0:
        numbers = draw_numbers(options, step + np.arange(count)[:, None], batch.rng_streams, batch.former.device)
    live = [int(row not in batch.finished_rows) for row in range(len(batch.sequences))]
    for i in range(count):
        scores = batch.score_next() if i == 0 else batch.runner.step(chosen[-1], live).float()
        allowed = constraints.apply(scores, batch.sequence_tensor, step + i)
        chosen.append(select_tokens(allowed, options, None if numbers is None else numbers[i]))
    *tokens, finite = torch.stack((*chosen, are_finite(scores))).tolist()  # one transfer from the device for all of it
    check_rows_finite(finite, live)
    return tokens


def are_finite(scores: Tensor) -> Tensor:
    """(rows, vocab) scores → (rows,) 1 where their largest is finite: NaN and infinity both show in it.

    What a row has read stays in its state, so the scores of the last of several steps tell of all of them.
    """
    return scores.amax(-1).isfinite().long()


def check_rows_finite(finite: Sequence[int], live: Sequence[int]) -> None:
    """Raise NonFinite if a row that counts has scores that are not finite."""
    if not all(good or not counts for good, counts in zip(finite, live, strict=True)):
        raise NonFinite("scores of the next token")
