"""Beam search: the likeliest texts, several at a time (Graves 2012; Wu et al. 2016, §7)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import Error
from ..nn.attention.context import Capture
from .decoding import STEPS_AHEAD, DecodingBatch, Hypothesis, are_finite, check_rows_finite
from .logits_processors import Constraints
from .runner import GraphedDecodeStep

DEAD_SCORE = -1e9  # the score of a beam that does not count
NO_SCORE = -math.inf  # of a complete text that is not there
NO_ATTENTION = "coverage needs attention over a source, which this model does not have"


class BeamState:
    """The K running hypotheses of each prompt and the K best complete ones, in fixed tensors that a CUDA graph can use.
    A complete hypothesis is three numbers: the step at which it ended, its row then, and its last token (-1 if that was
    an end mark, which is not part of it)."""

    def __init__(self, batch: DecodingBatch, constraints: Constraints):
        options, device = constraints.options, batch.former.device
        self.batch, self.constraints, self.options = batch, constraints, options
        self.num_beams, self.num_prompts = options.num_beams, len(batch.sequences) // options.num_beams
        self.running_scores = torch.zeros(self.num_prompts, self.num_beams, device=device)
        self.running_scores[:, 1:] = DEAD_SCORE  # at first all K texts are the same
        self.complete_scores = torch.full_like(self.running_scores, NO_SCORE)  # the best first
        self.complete_keys = torch.full((self.num_prompts, self.num_beams, 3), -1, device=device)
        self.open_prompts = torch.ones(self.num_prompts, dtype=torch.bool, device=device)
        self.first_rows = torch.arange(self.num_prompts, device=device)[:, None] * self.num_beams  # (prompts, 1)
        self.end_token_mask: Tensor | None = None  # (vocab,) whether a token ends a text
        self.graphed_step = None if batch.runner.graphed_step is None else GraphedDecodeStep()
        self.log_probs: Tensor | None = None  # (rows, vocab) the newest log-probabilities
        self.live_rows: list[int] = []  # of each row, whether it counts; as of the last sync with the host
        self.pending_steps: list[Tensor] = []  # (2, rows) tokens and parents of steps not yet copied to the host
        self.complete_texts: dict[tuple[int, ...], list[int]] = {}  # complete texts, by their three numbers
        self.alpha = 1.0 if options.length_penalty is None else options.length_penalty
        bounds_by_longest = options.early_stopping == "never" and self.alpha > 0
        is_gnmt, lengths = options.length_normalisation == "gnmt", range(1, options.max_new_tokens + 1)
        norms = [compute_length_penalty(n, self.alpha) if is_gnmt else n**self.alpha for n in lengths]
        step_norms = [(step, norm, norms[-1] if bounds_by_longest else norm) for step, norm in enumerate(norms)]
        # (steps, 3) number, divisor of scores, divisor of the stopping bound
        self.step_table = torch.tensor(step_norms, device=device)
        self.attention_sums: Tensor | None = None  # (rows, source) attention so far, where coverage counts
        if options.coverage and not batch.former.is_encoder_decoder:
            raise Error(NO_ATTENTION, fix="leave coverage out")

    def score_next(self, step: int) -> Tensor:
        """Compute log-probabilities (rows, vocab) of the next tokens, with the constraints applied."""
        capture = Capture(with_attention=True) if self.options.coverage else None
        if self.pending_steps:
            logs = self.batch.runner.step(self.pending_steps[-1][0], self.live_rows).float().log_softmax(-1)
        else:
            self.live_rows = self.batch.live_rows
            scores = self.batch.score_next(capture) if capture or step else self.batch.score_shared_prompts()
            logs = scores.log_softmax(-1)
        if capture is not None:
            if "cross" not in capture.attention_weights:
                raise Error(NO_ATTENTION, fix="leave coverage out")
            layers = [weights.float().mean(1)[:, -1] for weights in capture.attention_weights["cross"]]
            attention = torch.stack(layers).mean(0)  # (rows, source)
            self.attention_sums = attention if self.attention_sums is None else self.attention_sums + attention
        self.log_probs = logs
        return self.constraints.apply(logs, self.batch.sequence_tensor, step)

    def compute_coverage(self) -> Tensor | None:
        """Compute the coverage penalty (rows,), None without one."""
        beta = self.options.coverage
        if self.attention_sums is None or self.batch.sources is None or beta is None:
            return None
        lengths = [len(source) for source in self.batch.sources for _ in range(self.num_beams)]
        keep = torch.arange(self.attention_sums.shape[1]) < torch.tensor(lengths)[:, None]
        attention = self.attention_sums.clamp(min=1e-9)[:, None]  # an unattended word costs much, not everything
        return compute_coverage_penalty(attention, keep.to(self.attention_sums.device), beta)

    def step(self, step: int) -> None:
        """Extend every beam by a token: complete hypotheses are stored, the best others continue."""
        scores, last = self.score_next(step), step == self.options.max_new_tokens - 1
        if self.graphed_step is None or last or self.should_check_each_step:
            picked = self.select_beams(scores, self.step_table[step], last)
        else:
            picked = self.graphed_step(self.select_beams, scores, self.step_table[step]).clone()
        self.pending_steps.append(picked)
        parents = picked[1]
        if self.batch.runner.can_chain_steps or parents.tolist() != list(range(len(parents))):
            self.batch.runner.reorder_rows(parents, equal_lengths=True)
        self.attention_sums = None if self.attention_sums is None else self.attention_sums[parents]

    @property
    def should_check_each_step(self) -> bool:
        """True if the host must see every step: stop strings and coverage."""
        return bool(self.options.stop or self.options.coverage)

    def select_beams(self, scores: Tensor, step_norms: Tensor, last: bool = False) -> Tensor:
        """Return (2, rows) the running beams' tokens and parents; stores complete hypotheses, and updates in place."""
        k, vocab = self.num_beams, scores.shape[-1]
        total = (scores.unflatten(0, (self.num_prompts, k)) + self.running_scores[..., None]).flatten(1)
        wide = max(2, 1 + len(self.constraints.end_ids)) * k  # enough that K continue even if all the likeliest end
        values, places = total.topk(min(wide, k * vocab), -1)
        values = values.nan_to_num(DEAD_SCORE, neginf=2 * DEAD_SCORE)  # forbidden or NaN: still a text, ranked last
        rows, tokens = self.first_rows + places // vocab, places % vocab
        if self.end_token_mask is None:
            self.end_token_mask = torch.zeros(vocab, dtype=torch.bool, device=scores.device)
            self.end_token_mask[list(self.constraints.end_ids)] = True
        ends = self.end_token_mask[tokens]
        over = ends | self.find_stopped(rows, tokens) if self.options.stop else ends
        over = torch.ones_like(over) if last else over
        newest = torch.where(ends, -1, tokens)
        self.keep_complete(step_norms, values[:, :k].masked_fill(~over[:, :k], NO_SCORE), rows[:, :k], newest[:, :k])
        continuing = over.int().sort(dim=-1, stable=True).indices[:, :k]  # the first K that are not over
        out = over.gather(1, continuing)
        self.running_scores.copy_(values.gather(1, continuing).masked_fill(out, DEAD_SCORE))
        self.close_finished(step_norms)
        parents = torch.where(out, self.first_rows, rows.gather(1, continuing))
        return torch.stack((tokens.gather(1, continuing).masked_fill(out, 0).flatten(), parents.flatten()))

    def find_stopped(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Return which beams contain a stop string with their new token."""
        pairs = zip(rows.flatten().tolist(), tokens.flatten().tolist(), strict=True)
        new_ids = ([*self.batch.get_new_ids(row), token] for row, token in pairs)
        stopped = [self.constraints.has_stop_string(ids) for ids in new_ids]
        return torch.tensor(stopped, device=rows.device).view(rows.shape)

    def keep_complete(self, step_norms: Tensor, values: Tensor, rows: Tensor, newest: Tensor) -> None:
        """Merge complete hypotheses (prompts, K) into the K best; where `values` is NO_SCORE there is none."""
        covered = self.compute_coverage()
        scores = values / step_norms[1] + (0 if covered is None else covered[rows])
        scores = torch.cat((self.complete_scores, scores.masked_fill(~self.open_prompts[:, None], NO_SCORE)), 1)
        keys = torch.cat((self.complete_keys, torch.stack((step_norms[0].long().expand_as(rows), rows, newest), -1)), 1)
        order = scores.sort(dim=-1, descending=True, stable=True).indices[:, : self.num_beams]
        self.complete_scores.copy_(scores.gather(1, order))
        self.complete_keys.copy_(keys.gather(1, order[..., None].expand(-1, -1, 3)))

    def close_finished(self, step_norms: Tensor) -> None:
        """Close the prompts whose running beams cannot beat the worst complete hypothesis any more."""
        worst = self.complete_scores[:, -1]
        can_improve = worst == NO_SCORE
        if self.options.early_stopping is not True:
            can_improve = can_improve | (self.running_scores[:, 0] / step_norms[2] > worst)
        self.open_prompts.logical_and_(can_improve)

    def flush_steps(self, step: int) -> None:
        """Append the tokens of all steps since `step` to the batch, and finish the rows of closed prompts."""
        assert self.log_probs is not None
        check_rows_finite(are_finite(self.log_probs).tolist(), self.live_rows)
        batch, keys = self.batch, {tuple(one) for prompt_keys in self.complete_keys.tolist() for one in prompt_keys}
        self.complete_texts = {one: text for one, text in self.complete_texts.items() if one in keys}
        for at, (tokens, parents) in enumerate(torch.stack(self.pending_steps).tolist(), step):
            for end, row, last in keys:
                if end == at:
                    self.complete_texts[end, row, last] = batch.get_new_ids(row) + ([] if last < 0 else [last])
            batch.append_tokens(tokens, parents)
        self.pending_steps = []
        for prompt, still in enumerate(self.open_prompts.tolist()):
            for row in () if still else range(prompt * self.num_beams, prompt * self.num_beams + self.num_beams):
                batch.finish_row(row)

    def collect_hypotheses(self) -> list[list[Hypothesis]]:
        """Return the complete hypotheses of each prompt, the best first."""
        texts = self.complete_texts
        return [
            [Hypothesis(texts[tuple(k)], score) for k, score in zip(keys, scores, strict=True) if score > NO_SCORE]
            for keys, scores in zip(self.complete_keys.tolist(), self.complete_scores.tolist(), strict=True)
        ]


@torch.inference_mode()
def beam_search(batch: DecodingBatch, constraints: Constraints) -> list[list[Hypothesis]]:
    """Search for the `num_samples` best hypotheses of each prompt, the best first. Where only the model's scores
    decide, a GPU takes many steps between two host syncs; steps past a prompt's end are ignored."""
    if constraints.has_history_rules:
        batch.build_sequence_tensor()
    beams, step, options = BeamState(batch, constraints), 0, constraints.options
    while step < options.max_new_tokens and not batch.is_done:
        count = min(STEPS_AHEAD, options.max_new_tokens - step, batch.count_safe_steps(constraints))
        count = 1 if beams.should_check_each_step else count
        for at in range(step, step + count):
            beams.step(at)
        beams.flush_steps(step)
        step += count
    return [hypotheses[: options.num_samples] for hypotheses in beams.collect_hypotheses()]


def compute_length_penalty(length: float, alpha: float) -> float:
    """Compute ((5 + length) / 6)^α, the divisor of log p; α = 0 does nothing, 1 takes nearly the mean (eq. 14)."""
    return ((5 + length) / 6) ** alpha


def compute_coverage_penalty(weights: Tensor, keep: Tensor | None = None, beta: float = 0.2) -> Tensor:
    """Compute β · Σᵢ log min(Σⱼ pᵢⱼ, 1) of attention weights (..., target, source): unattended source words cost most.
    `keep` (..., source) is False where the source is padding."""
    seen = weights.sum(-2).clamp(max=1.0).log()  # (..., source)
    return beta * (seen if keep is None else torch.where(keep, seen, 0.0)).sum(-1)
