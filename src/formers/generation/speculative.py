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
from ..inputs import get_start_token
from ..nn.attention.kv_cache import KVCache
from .logits_processors import Constraints
from .options import Options
from .runner import Runner
from .sampling import warp_logits
from .token_api import build_id_constraints, check_prompts

ACCEPT_STREAM, RESAMPLE_STREAM, DRAFT_STREAM = 1, 2, 3  # what a random number is for


class SpeculativeDecoder:
    """A model and a draft of the same vocabulary. Greedily it writes exactly what the model writes alone, drawn it
    follows exactly the model's distribution; `draft_length` tokens are drafted at a time. `num_accepted` counts drafted
    tokens that stayed, `num_drafted` all of them."""

    def __init__(self, former: Former, draft: Former, draft_length: int = 4):
        for one in (former, draft):
            if not issubclass(one.state_class, KVCache) or hasattr(one.model.body, "encode_with_state"):
                what = f"{one.family} cannot take back what it has read"
                raise Error(what, fix="take models with a cache of keys and values")
        words = [one.tokenizer.fingerprint for one in (former, draft) if one.tokenizer is not None]
        if (
            former.is_encoder_decoder != draft.is_encoder_decoder
            or former.config.vocab != draft.config.vocab
            or len(set(words)) > 1
        ):
            raise Error("a draft must be of the model's kind and vocabulary", fix="take a smaller relative")
        if draft_length < 1:
            raise Error(f"draft_length must be at least 1, got {draft_length}", fix="4 is usual")
        self.former, self.draft, self.draft_length, self.num_accepted, self.num_drafted = (
            former,
            draft,
            draft_length,
            0,
            0,
        )

    def continue_ids(
        self, prompts: Sequence[Sequence[int]], tokens: int, options: Options = Options()
    ) -> list[list[int]]:
        """Up to `tokens` new ids for each prompt, text by text, as `token_api.continue_ids` does under these
        options."""
        rows, law = check_prompts(self.former, prompts, tokens), build_id_constraints(self.former, options, tokens)
        return [self.generate_ids(row, law, sample) for row in rows for sample in range(options.num_samples)]

    @torch.inference_mode()
    def generate_ids(self, prompt: list[int], law: Constraints, sample: int = 0) -> list[int]:
        """One text; it ends with the context of the smaller model, with a warning."""
        if law.options.num_beams > 1:
            raise Error("a draft is for draws, not for a search with beams", fix="leave the draft out, or num_beams")
        text = [get_start_token(self.former.config)] if self.former.is_encoder_decoder else list(prompt)
        begun, sources, tokens = (
            len(text),
            [prompt] if self.former.is_encoder_decoder else None,
            law.options.max_new_tokens,
        )
        limits = [
            getattr(f.config, "context", None) or begun + tokens + self.draft_length for f in (self.former, self.draft)
        ]
        if begun > min(limits):
            what = f"{begun:,} tokens are more than the context of {min(limits):,} that both models have"
            raise Error(what, fix="give a shorter prompt, or leave the draft out")
        if (end := min(begun + tokens, min(limits) + 1)) < begun + tokens:
            warnings.warn(f"with a draft a text ends with the context, here after {end - begun:,} tokens", stacklevel=2)
        large, small = (
            IncrementalModel(f, min(limits) + self.draft_length, sources) for f in (self.former, self.draft)
        )
        key = SamplingContext(law, begun, sample)
        while len(text) < end and not law.has_stop_string(text[begun:]):
            count = min(self.draft_length, end - len(text) - 1, min(limits) - len(text))
            guessed, doubts = self.draft_tokens(small, text, count, key)
            beliefs = large.score_tokens([*text, *guessed], len(guessed) + 1, key)
            for token in self.verify_draft(guessed, doubts, beliefs, key, len(text)):
                if token in law.end_ids:
                    return text[begun:]
                text.append(token)
        return text[begun:end]

    def draft_tokens(
        self, draft_model: IncrementalModel, text: list[int], count: int, key: SamplingContext
    ) -> tuple[list[int], list[Tensor]]:
        """The draft's next tokens, and the probabilities they were drawn from."""
        guessed: list[int] = []
        doubts: list[Tensor] = []
        for _ in range(count):
            belief = draft_model.score_tokens([*text, *guessed], 1, key)[0]
            guessed.append(sample_token(belief, key.draw_number(len(text) + len(guessed), DRAFT_STREAM)))
            doubts.append(belief)
        return guessed, doubts

    def verify_draft(
        self,
        guessed: list[int],
        draft_probabilities: list[Tensor],
        model_probabilities: Tensor,
        key: SamplingContext,
        length: int,
    ) -> list[int]:
        """The guesses that stay, and one token more. A guess x stays with probability min(1, p(x) / q(x)); in place of
        the first that goes, one is drawn from max(0, p - q) (Leviathan et al. 2023, §2.3 and A.1)."""
        self.num_drafted += len(guessed)
        for i, (token, q) in enumerate(zip(guessed, draft_probabilities, strict=True)):
            p = model_probabilities[i]
            if key.draw_number(length + i, ACCEPT_STREAM) * float(q[token]) >= float(p[token]):
                return [*guessed[:i], sample_token((p - q).clamp(min=0), key.draw_number(length + i, RESAMPLE_STREAM))]
            self.num_accepted += 1
        last = len(guessed)
        return [*guessed, sample_token(model_probabilities[last], key.draw_number(length + last, RESAMPLE_STREAM))]


@dataclass(frozen=True)
class SamplingContext:
    """What the tokens of one text are chosen by: the rules, where it begins, and the sample's number."""

    constraints: Constraints
    prompt_length: int
    sample: int

    def draw_number(self, length: int, purpose: int) -> float:
        """The random number of a text of this length for a purpose."""
        return float(draw_uniform(self.constraints.options.seed, self.sample, length - self.prompt_length, purpose))

    def compute_probabilities(self, logits: Tensor, text: list[int]) -> Tensor:
        """(n, vocab) what is drawn from behind each of the last n tokens of a text; greedily, all of it is at the
        likeliest."""
        options, first, rows = self.constraints.options, len(text) - len(logits) + 1, []
        for i, scores in enumerate(logits.float()):
            page = (
                torch.tensor([text[: first + i]], device=logits.device) if self.constraints.has_history_rules else None
            )
            rows.append(self.constraints.apply(scores[None], page, first + i - self.prompt_length))
        scores = torch.cat(rows)
        if options.temperature == 0:
            found = torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).double()
        else:
            found = warp_logits(scores, options).softmax(-1)
        return found + logits.amax(-1, keepdim=True) * 0  # NaN where logits are not finite, for `sample_token` to see


class IncrementalModel:
    """One of the two models at work on one text: it reads what it has not read, and takes back what was not to be."""

    def __init__(self, former: Former, size: int, sources: list[list[int]] | None):
        self.runner, self.read_ids = Runner(former, 1, size, sources), list[int]()

    def score_tokens(self, text: list[int], count: int, key: SamplingContext) -> Tensor:
        """(count, vocab) the probabilities of what comes after each of the last `count` tokens of a text."""
        same = 0
        while same < min(len(self.read_ids), len(text) - count) and self.read_ids[same] == text[same]:
            same += 1
        if same < len(self.read_ids):
            self.runner.forget_tokens([len(self.read_ids) - same])
        self.read_ids = list(text)
        return key.compute_probabilities(self.runner.score_every(text[same:])[-count:], text)


def sample_token(weights: Tensor, number: float) -> int:
    """The token at which the sum of weights passes a number's share of it."""
    reach = weights.cumsum(-1).cpu().numpy()
    if not np.isfinite(reach[-1]):
        raise NonFinite("scores of the next token")
    return min(int(np.searchsorted(reach, number * reach[-1], side="right")), len(reach) - 1)
