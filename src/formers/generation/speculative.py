"""Speculative decoding: a smaller relative drafts several tokens, the model reads them in one pass and keeps what it
would have written itself (Leviathan et al. 2023, arXiv:2211.17192, §2.3; Chen et al. 2023, arXiv:2302.01318)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data.counter_rng import draw_uniform
from ..errors import Error, NonFinite
from ..former import Former
from ..nn.attention.kv_cache import KVCache
from ..nn.encoder_decoder import RecurrentEncoderDecoder
from .decoding import begin_sequence, build_id_constraints, check_prompts
from .logits_processors import Constraints
from .options import Options
from .runner import Runner
from .sampling import warp_logits

ACCEPT_STREAM, RESAMPLE_STREAM, DRAFT_STREAM = 1, 2, 3  # what a random number is for


class SpeculativeDecoder:
    """A model and a draft model of the same vocabulary, which proposes `draft_length` tokens at a time. Greedy output
    equals the model's own, and samples follow its distribution exactly. `num_accepted` of `num_drafted` tokens were
    kept."""

    def __init__(self, former: Former, draft: Former, draft_length: int = 4):
        for one in (former, draft):
            if not issubclass(one.state_class, KVCache) or isinstance(one.model.body, RecurrentEncoderDecoder):
                raise Error(f"{one.family} cannot drop tokens that it has read", fix="take models with a KV cache")
        fingerprints = [one.tokenizer.fingerprint for one in (former, draft) if one.tokenizer is not None]
        kinds = {(one.is_encoder_decoder, one.config.vocab) for one in (former, draft)}
        if len(kinds) > 1 or len(set(fingerprints)) > 1:
            raise Error("a draft must be of the model's kind and vocabulary", fix="take a smaller one of its family")
        if draft_length < 1:
            raise Error(f"draft_length must be at least 1, got {draft_length}", fix="4 is usual")
        self.former, self.draft, self.draft_length = former, draft, draft_length
        self.num_accepted = self.num_drafted = 0

    def continue_ids(
        self, prompts: Sequence[Sequence[int]], tokens: int, options: Options = Options()
    ) -> list[list[int]]:
        """Generate up to `tokens` ids for each prompt, one after the other; see `decoding.continue_ids`."""
        rows = check_prompts(self.former, prompts, tokens)
        constraints = build_id_constraints(self.former, options, tokens)
        return [self.generate_ids(row, constraints, sample) for row in rows for sample in range(options.num_samples)]

    @torch.inference_mode()
    def generate_ids(self, prompt: list[int], constraints: Constraints, sample: int = 0) -> list[int]:
        """Generate one sequence; it ends at the smaller context of the two models, with a warning."""
        if constraints.options.num_beams > 1:
            raise Error("a draft cannot be combined with beam search", fix="leave the draft out, or num_beams")
        text, sources = begin_sequence(self.former, prompt), [prompt] if self.former.is_encoder_decoder else None
        prompt_length, tokens = len(text), constraints.options.max_new_tokens
        limits = [f.context or prompt_length + tokens + self.draft_length for f in (self.former, self.draft)]
        if prompt_length > min(limits):
            what = f"{prompt_length:,} tokens are more than the context of {min(limits):,} that both models have"
            raise Error(what, fix="give a shorter prompt, or leave the draft out")
        if (end := min(prompt_length + tokens, min(limits) + 1)) < prompt_length + tokens:
            what = f"with a draft the text ends at the context limit, after {end - prompt_length:,} tokens"
            warnings.warn(what, stacklevel=2)
        size = min(limits) + self.draft_length
        large, small = (IncrementalModel(f, size, sources) for f in (self.former, self.draft))
        context = SamplingContext(constraints, prompt_length, sample)
        while len(text) < end and not constraints.has_stop_string(text[prompt_length:]):
            count = min(self.draft_length, end - len(text) - 1, min(limits) - len(text))
            draft_ids, draft_probabilities = self.draft_tokens(small, text, count, context)
            model_probabilities = large.score_tokens([*text, *draft_ids], len(draft_ids) + 1, context)
            for token in self.verify_draft(draft_ids, draft_probabilities, model_probabilities, context, len(text)):
                if token in constraints.end_ids:
                    return text[prompt_length:]
                text.append(token)
        return text[prompt_length:end]

    def draft_tokens(
        self, draft_model: IncrementalModel, text: list[int], count: int, context: SamplingContext
    ) -> tuple[list[int], list[Tensor]]:
        """Draw the draft's next tokens, and return them with the distributions that they came from."""
        draft_ids, draft_probabilities = list[int](), list[Tensor]()
        for _ in range(count):
            probabilities = draft_model.score_tokens([*text, *draft_ids], 1, context)[0]
            draft_ids.append(sample_token(probabilities, context.draw_number(len(text) + len(draft_ids), DRAFT_STREAM)))
            draft_probabilities.append(probabilities)
        return draft_ids, draft_probabilities

    def verify_draft(
        self, draft_ids: list[int], draft_probabilities: list[Tensor], model_probabilities: Tensor,
        context: SamplingContext, length: int,
    ) -> list[int]:  # fmt: skip
        """Return the accepted draft tokens and one more. A token x is accepted with probability min(1, p(x) / q(x));
        the first rejected one is replaced by a draw from max(0, p - q) (Leviathan et al. 2023, §2.3 and A.1)."""
        self.num_drafted += len(draft_ids)
        for i, (token, q) in enumerate(zip(draft_ids, draft_probabilities, strict=True)):
            p = model_probabilities[i]
            if context.draw_number(length + i, ACCEPT_STREAM) * float(q[token]) >= float(p[token]):
                number = context.draw_number(length + i, RESAMPLE_STREAM)
                return [*draft_ids[:i], sample_token((p - q).clamp(min=0), number)]
            self.num_accepted += 1
        number = context.draw_number(length + len(draft_ids), RESAMPLE_STREAM)
        return [*draft_ids, sample_token(model_probabilities[len(draft_ids)], number)]


@dataclass(frozen=True)
class SamplingContext:
    """What the tokens of one sequence depend on: the constraints, the prompt's length and the sample's number."""

    constraints: Constraints
    prompt_length: int
    sample: int

    def draw_number(self, length: int, purpose: int) -> float:
        """Draw the random number for a purpose at this length of the sequence."""
        return float(draw_uniform(self.constraints.options.seed, self.sample, length - self.prompt_length, purpose))

    def compute_probabilities(self, logits: Tensor, text: list[int]) -> Tensor:
        """Compute the distributions (n, vocab) after each of the last n tokens; greedy ones are one-hot."""
        options, first, rows = self.constraints.options, len(text) - len(logits) + 1, []
        needs_history = self.constraints.has_history_rules
        for length, scores in enumerate(logits.float(), first):
            history = torch.tensor([text[:length]], device=logits.device) if needs_history else None
            rows.append(self.constraints.apply(scores[None], history, length - self.prompt_length))
        scores = torch.cat(rows)
        if options.temperature == 0:
            probabilities = torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).double()
        else:
            probabilities = warp_logits(scores, options).softmax(-1)
        return probabilities + logits.amax(-1, keepdim=True) * 0  # NaN, which `sample_token` finds


class IncrementalModel:
    """A model that reads only the new tokens of a growing sequence, and drops those that were rejected."""

    def __init__(self, former: Former, size: int, sources: list[list[int]] | None):
        self.runner, self.read_ids = Runner(former, 1, size, sources), list[int]()

    def score_tokens(self, text: list[int], count: int, context: SamplingContext) -> Tensor:
        """Compute the distributions (count, vocab) after each of the last `count` tokens of a sequence."""
        shared = 0
        while shared < min(len(self.read_ids), len(text) - count) and self.read_ids[shared] == text[shared]:
            shared += 1
        if shared < len(self.read_ids):
            self.runner.forget_tokens([len(self.read_ids) - shared])
        self.read_ids = list(text)
        return context.compute_probabilities(self.runner.score_every(text[shared:])[-count:], text)


def sample_token(weights: Tensor, number: float) -> int:
    """Return the token at which the cumulative weight passes `number` times the total."""
    reach = weights.cumsum(-1).cpu().numpy()
    if not np.isfinite(reach[-1]):
        raise NonFinite("scores of the next token")
    return min(int(np.searchsorted(reach, number * reach[-1], side="right")), len(reach) - 1)
