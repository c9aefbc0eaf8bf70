"""The engine: texts that grow token by token, by draws or by a search, for every family that writes."""

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

STEPS_AHEAD = 16  # tokens that a GPU writes before the host looks at them


@dataclass(frozen=True)
class Hypothesis:
    """What was written: the new ids, without the end mark, and of a search the score (else 0)."""

    ids: list[int]
    score: float = 0.0


class DecodingBatch:
    """Texts at work: every prompt has `rows_per_prompt` rows, one after the other. To an encoder-decoder prompts are
    sources, and its texts begin with `start` (or the config's own).

    When a row fills a decoder's context, the last half of it is read again and the rest forgotten; a model with a
    memory forgets what is oldest. A row in `finished_rows` is read no more.
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
        self.context: int | None = getattr(former.config, "context", None)
        most = max(self.prompt_lengths) + max_new_tokens
        forgets = issubclass(former.state_class, SegmentMemory)
        self.should_reread = getattr(
            former.config, "has_uniform_attention", False
        )  # earlier tokens see later ones: read all again
        self.cache_size = former.config.memory or most if forgets else min(self.context or most, most)
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
        """Read the windows from their beginning."""
        vars(self).pop("runner", None)  # what it has recorded serves the next one
        self.runner = Runner(self.former, len(self.sequences), self.cache_size, self.sources, self.rows_per_prompt)
        both = enumerate(zip(self.sequences, self.window_starts, strict=True))
        self.pending_ids = [[] if row in self.finished_rows else text[n:] for row, (text, n) in both]

    def build_sequence_tensor(self) -> None:
        """Keep the texts as a tensor as well."""
        longest = max(map(len, self.sequences))
        rows = [[-1] * (longest - len(text)) + text for text in self.sequences]
        self.sequence_tensor = torch.tensor(rows, device=self.former.device)

    def score_next(self, capture: Capture | None = None) -> Tensor:
        """(rows, vocab) scores of the next tokens."""
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
        """The first `score_next` of a search: what is the same for all rows of a prompt, the first of them reads for
        all."""
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
        """One more token for each row, which goes on from the text of its parent (else of itself); the runner has been
        told of parents before."""
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
        """A text is complete; what was read of it is forgotten: a row that is full keeps nobody from going on."""
        if row not in self.finished_rows:
            self.finished_rows.add(row)
            self.pending_ids[row] = []
            self.runner.clear_row(row)

    def count_safe_steps(self, rules: Constraints) -> int:
        """How many tokens may be written without a look at the texts."""
        if (
            rules.has_history_rules
            or self.sequence_tensor is not None
            or not self.runner.can_chain_steps
            or (self.finished_rows and not self.runner.graphed_step)
        ):
            return 1
        longest = max(len(text) - n for text, n in zip(self.sequences, self.window_starts, strict=True))
        return STEPS_AHEAD if self.context is None else max(1, self.context - longest + 1)

    @property
    def is_done(self) -> bool:
        """All texts are complete."""
        return len(self.finished_rows) == len(self.sequences)

    def get_new_ids(self, row: int) -> list[int]:
        """What a row has written."""
        return self.sequences[row][self.prompt_lengths[row] :]


@torch.inference_mode()
def decode_steps(desk: DecodingBatch, rules: Constraints, ahead: int = 1) -> Iterator[list[int | None]]:
    """Write by draws (or greedily), step by step: each row's new token, None where there is none.

    Up to `ahead` tokens are written before the first of them is shown, where nothing but the model's scores decides:
    then a GPU need not wait for the host at every token. What a row writes behind its end is dropped.
    """
    step, tokens = 0, rules.options.max_new_tokens
    if rules.has_history_rules:
        desk.build_sequence_tensor()
    while step < tokens and not desk.is_done:
        count = min(ahead, tokens - step, desk.count_safe_steps(rules))
        for picked in run_steps(desk, rules, step, count):
            shown = [None if row in desk.finished_rows else token for row, token in enumerate(picked)]
            for row, token in enumerate(shown):
                if token is not None and token in rules.end_ids:
                    desk.finish_row(row)
                    shown[row] = None
            desk.append_tokens(picked)
            yield shown
            if desk.is_done:
                return
        step += count


def run_steps(desk: DecodingBatch, rules: Constraints, step: int, count: int) -> list[list[int]]:
    """`count` tokens for each row, one after the other, which leave the device together."""
    options, found = rules.options, list[Tensor]()
    numbers = None
    if options.temperature != 0:
        numbers = options.draw_numbers(step + np.arange(count)[:, None], desk.rng_streams, desk.former.device)
    live = [int(row not in desk.finished_rows) for row in range(len(desk.sequences))]
    for i in range(count):
        scores = desk.score_next() if i == 0 else desk.runner.step(found[-1], live).float()
        allowed = rules.apply(scores, desk.sequence_tensor, step + i)
        found.append(options.select_tokens(allowed, None if numbers is None else numbers[i]))
    *tokens, finite = torch.stack((*found, are_finite(scores))).tolist()  # one transfer from the device for all of it
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


def decode_batch(desk: DecodingBatch, rules: Constraints) -> list[list[Hypothesis]]:
    """All that is written, in one go: `num_samples` texts for each prompt."""
    if rules.options.num_beams > 1:
        from .beam import beam_search

        return beam_search(desk, rules)
    for _ in decode_steps(desk, rules, STEPS_AHEAD):
        pass
    rows = [Hypothesis(desk.get_new_ids(row)) for row in range(len(desk.sequences))]
    return [rows[at : at + desk.rows_per_prompt] for at in range(0, len(rows), desk.rows_per_prompt)]
