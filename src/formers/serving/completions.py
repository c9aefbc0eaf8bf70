"""Texts that an engine generates for requests: their pieces as they come, log-probabilities, stop strings."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..batch import Batch
from ..config import JSONObject
from ..errors import Error, NonFinite
from ..former import Former
from ..generation.api import encode_prompt, make_watcher
from ..generation.engine import Request, TokenChooser, make_chooser
from ..generation.logits_processors import build_constraints
from ..generation.options import Options, make_options
from ..verbs import LM_PARTS
from .responses import RequestError
from .served_models import ServedModel

GREEDY_IGNORES = ("top_k", "top_p", "min_p", "typical_p")  # they keep the likeliest token, which greedy takes


SCORED_ROWS = 128  # places of a prompt whose logits are held at once


@dataclass(frozen=True)
class ScoredToken:
    """A token, its log-probability (None for the first of a text), and the likeliest ones in its place."""

    id: int
    text: str
    log_prob: float | None
    top: list[tuple[int, str, float]]


@dataclass
class Completion:
    """One text of a request: it grows on the engine's thread, and `on_change` is called with each new piece.

    `finish_reason` is None while it grows, then "stop" or "length"; `error` is what went wrong.
    """

    index: int
    prompt_ids: list[int]
    max_new_tokens: int
    num_top: int | None
    on_change: Callable[[Completion, str, list[ScoredToken]], None]
    request: Request | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)  # those that the text shows, if they are asked for
    finish_reason: str | None = None
    error: BaseException | None = None
    forced_ids: Sequence[int] = ()  # the first new tokens, which are taken as they are

    def cancel(self) -> None:
        """Free the slot before the next step."""
        if self.request is not None:
            self.request.cancel()


def make_prompt(served: ServedModel, prompt: str | list[int], max_new_tokens: int | None) -> tuple[list[int], int]:
    """Encode a prompt and find how many tokens may follow it; refuse what the context does not hold.

    A number that was asked for is kept or refused, never lowered in silence.
    """
    former = served.former
    ids = encode_prompt(former, prompt) if isinstance(prompt, str) else prompt
    served.check_cost(len(ids), "the prompt")
    room = served.max_tokens - (0 if former.is_encoder_decoder else len(ids))
    if len(ids) > served.max_tokens or (room < 1 and max_new_tokens != 0):
        what = f"the prompt has {len(ids):,} tokens, and the model reads {served.max_tokens:,} at once with its answer"
        raise RequestError(what, fix="shorten it", code="context_length_exceeded")
    if max_new_tokens is not None and max_new_tokens > room:
        what = f"the prompt of {len(ids):,} tokens leaves room for {room:,}, and {max_new_tokens:,} are asked for"
        raise RequestError(what, fix=f"ask for at most {room:,}", code="context_length_exceeded")
    return ids, max_new_tokens if max_new_tokens is not None else min(16, room)


def make_sampling_options(options: JSONObject, max_new_tokens: int) -> Options:
    """Build options from the names that clients use; what changes nothing is left out."""
    options = {name: value for name, value in options.items() if value is not None}
    options.setdefault("seed", secrets.randbits(62))
    if options.get("top_p") == 1:
        del options["top_p"]
    if options.get("top_k") in (0, -1):  # what vLLM and others write for all tokens
        del options["top_k"]
    if options.get("temperature") == 0:
        options = {name: value for name, value in options.items() if name not in GREEDY_IGNORES}
    return make_options(options, max_new_tokens=max(1, max_new_tokens))


def start_completion(served: ServedModel, completion: Completion, options: Options, sample: int = 0) -> None:
    """Submit a text to the model's engine; `sample` numbers the texts of one prompt, whose draws differ."""
    assert served.engine is not None
    former = served.former
    constraints = build_constraints(former, options)
    watcher = make_watcher(former, constraints, completion.prompt_ids)
    pending: list[ScoredToken] = []
    choose = make_chooser(constraints, sample)
    if completion.num_top is not None:
        choose = record_choices(choose, former, completion.num_top, pending)
    if completion.forced_ids:
        choose = force_first_tokens(choose, completion.forced_ids)
    began = last = time.perf_counter()
    metrics = served.metrics

    def receive_token(request: Request, token: int | None) -> None:
        nonlocal last
        now = time.perf_counter()
        new: list[ScoredToken] = []
        if token is not None:
            first, is_forced = not completion.token_ids, len(completion.token_ids) < len(completion.forced_ids)
            (metrics.first_token if first else metrics.between_tokens).labels(served.name).observe(now - last)
            last = now
            completion.token_ids.append(token)
            piece = watcher.push(token)
            if is_forced:  # the client has it already
                completion.text += piece
                return
            new = pending[-1:] if not watcher.is_stopped else []
            completion.tokens += new
            if watcher.is_stopped:
                request.cancel()
        else:
            has_stopped = watcher.is_stopped
            piece = watcher.flush().rstrip("\ufffd")
            is_full = len(completion.token_ids) >= completion.max_new_tokens and not has_stopped
            completion.error = request.error
            completion.finish_reason = "length" if is_full else "stop"
            metrics.generated_tokens.labels(served.name).inc(len(completion.token_ids))
            metrics.text_durations.labels(served.name).observe(now - began)
            reason = "abort" if request.is_cancelled and not has_stopped else completion.finish_reason
            metrics.finished.labels(served.name, reason).inc()
        completion.text += piece
        completion.on_change(completion, piece, new)

    metrics.prompt_tokens.labels(served.name).inc(len(completion.prompt_ids))
    completion.request = served.engine.submit(completion.prompt_ids, completion.max_new_tokens, choose, receive_token)


def force_first_tokens(choose: TokenChooser, forced_ids: Sequence[int]) -> TokenChooser:
    """Take the first tokens as they are given, then choose: how a decoder continues from another choice."""

    def choose_or_force(logits: Tensor, text: Sequence[int], step: int) -> int:
        return forced_ids[step] if step < len(forced_ids) else choose(logits, text, step)

    return choose_or_force


def record_choices(choose: TokenChooser, former: Former, num_top: int, record: list[ScoredToken]) -> TokenChooser:
    """Record the log-probability of each chosen token and the likeliest ones, by the model's own distribution."""

    def choose_and_record(logits: Tensor, text: Sequence[int], step: int) -> int:
        token = choose(logits, text, step)
        logs = logits.float().log_softmax(-1)
        record.append(make_scored_token(former, token, float(logs[token]), logs, num_top))
        return token

    return choose_and_record


def make_scored_token(former: Former, token: int, log_prob: float | None, logs: Tensor, num_top: int) -> ScoredToken:
    """Name a token and the `num_top` likeliest ones of (vocab,) log-probabilities."""
    tokenizer = former.output_tokenizer
    assert tokenizer is not None
    best = logs.topk(min(num_top, len(logs)))
    both = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return ScoredToken(token, tokenizer.get_token_text(token), log_prob, [
        (index, tokenizer.get_token_text(index), value) for index, value in both
    ])  # fmt: skip


def score_prompt(former: Former, ids: list[int], num_top: int) -> list[ScoredToken]:
    """Score each token of a prompt given those before it, with the `num_top` likeliest ones in its place."""
    if former.is_encoder_decoder or former.is_two_stream:
        what = f"the log-probabilities of a prompt are not those of a {former.family}"
        raise RequestError(what, fix="leave echo or logprobs out")
    tokenizer = former.tokenizer
    assert tokenizer is not None
    tokens = [ScoredToken(ids[0], tokenizer.get_token_text(ids[0]), None, [])]
    if len(ids) == 1:
        return tokens
    hidden = former.model(Batch.from_rows([ids[:-1]], former.device))
    for low in range(0, len(hidden), SCORED_ROWS):
        logs = former.model.logits(hidden[low : low + SCORED_ROWS], part=LM_PARTS[former.head]).float().log_softmax(-1)
        if not logs.amax(-1).isfinite().all():
            raise NonFinite("log-probabilities of tokens")
        for token, row in zip(ids[low + 1 :], logs, strict=False):
            tokens.append(make_scored_token(former, token, float(row[token]), row, num_top))
    return tokens


def check_token_ids(former: Former, ids: list[int], *, is_output: bool = False) -> list[int]:
    """Refuse ids that are not of the model's vocabulary, or of the one that it writes in."""
    size = former.output_vocab if is_output else former.config.vocab
    if not ids or not all(0 <= token < size for token in ids):
        raise Error(f"token ids must lie in 0 … {size - 1}", fix="encode with the model's own tokenizer")
    return ids
