"""Log-probabilities of texts, token by token: decoders, models with a memory, masked language models
(each token hidden in turn: Salazar et al. 2020), encoder-decoders (a target, given its source), ELMo's forward half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack, cast

import numpy as np
import torch
from torch import Tensor

from ..batch import Array, Batch
from ..config import ProgressCallback
from ..errors import Error, NonFinite
from ..former import Former
from ..inputs import get_start_token, list_texts
from ..nn.attention.segment_memory import SegmentMemory
from ..tasks.encoding import Span, TokenizedText, find_nearest_window, make_windows, tokenize_texts
from ..text.normalise import normalise
from ..verbs import LM_PARTS

LOGITS_CHUNK = 1024  # places whose logits are held at once
SEGMENT_LENGTH = 512  # tokens read at once by a model with a memory


@dataclass(frozen=True)
class Likelihood:
    """The tokens of a text, their character spans, log-probabilities, and whether each was the likeliest."""

    text: str
    tokens: list[str]
    spans: list[Span]
    log_probs: Tensor  # (T,) natural logarithms
    is_top: Tensor  # (T,) bool

    @property
    def total_log_prob(self) -> float:
        """The sum of the log-probabilities."""
        return math.fsum(self.log_probs.tolist())

    @property
    def perplexity(self) -> float:
        """Perplexity per token."""
        return safe_exp(-self.total_log_prob / len(self.log_probs)) if len(self.log_probs) else math.nan


def safe_exp(nats: float) -> float:
    """Return e to a power, infinity where that is too large for a float."""
    return math.exp(nats) if nats < 700 else math.inf


class ScoringOptions(TypedDict, total=False):
    """Options of `compute_likelihood` that its callers hand on."""

    batch: int
    stride: int | None
    memory_length: int | None
    tell: ProgressCallback | None


class LikelihoodOptions(ScoringOptions, total=False):
    """Options of `compute_likelihoods`."""

    char_starts: Sequence[int] | None
    mask_together: bool


@dataclass
class ScoringRequest:
    """A tokenized text and the first of its tokens that is scored."""

    tokenized: TokenizedText
    first_scored: int

    def make_result(self, log_probs: Tensor, is_top: Tensor) -> Likelihood:
        """Make the likelihood of the tokens that are scored."""
        text, first = self.tokenized, self.first_scored
        return Likelihood(text.text, text.tokens[first:], text.spans[first:], log_probs, is_top)


ScoredText = str | tuple[str, str]  # of an encoder-decoder, source and target
ScoredRow = tuple[int, Tensor, Tensor, Tensor]  # the number of its text, what is read, the slots that predict, labels


def compute_likelihood(
    former: Former, texts: object, **how: Unpack[LikelihoodOptions]
) -> Likelihood | list[Likelihood]:
    """Compute the log-probability of every token of a text, or of several, as `compute_likelihoods` does it."""
    if isinstance(texts, str) or (former.is_encoder_decoder and isinstance(texts, tuple)):
        return compute_likelihoods(former, [cast(ScoredText, texts)], **how)[0]
    return compute_likelihoods(former, list_texts(texts), **how)


def compute_likelihoods(
    former: Former, texts: Sequence[ScoredText], *, char_starts: Sequence[int] | None = None,
    mask_together: bool = False, batch: int = 16, stride: int | None = None, memory_length: int | None = None,
    tell: ProgressCallback | None = None,
) -> list[Likelihood]:  # fmt: skip
    """Compute the log-probability of every token of each text; of an encoder-decoder, of pairs (source, target).

    A decoder's text begins with its mark of the beginning (or end) where it has one, else the first token is given and
    not counted. Texts longer than the context are read in windows, of each of which the last `stride` tokens count
    (half of the context by default); a model with a memory reads them segment by segment and remembers `memory_length`
    states (its own number by default). A masked model guesses each token from all others, or with `mask_together` all
    that are asked for at once. `char_starts` are the characters from which on the tokens of each text count.
    """
    part = LM_PARTS.get(former.head)
    if part is None or part not in former.model.parts:
        fix = "load it with head='lm' or head='mlm'"
        raise Error(f"{former.family} with head {former.head!r} is not a language model", fix=fix)
    rows = list(texts)
    if char_starts is not None and len(char_starts) != len(rows):
        raise Error(f"there are {len(char_starts)} char_starts for {len(rows)} texts", fix="give one for each")
    if batch < 1 or (stride is not None and stride < 1):
        raise Error("batch and stride must be at least 1", fix="leave them out")
    if former.is_encoder_decoder:
        results = score_seq2seq(former, rows, batch, tell)
    else:
        if invalid := [i for i, text in enumerate(rows, 1) if not isinstance(text, str)]:
            raise Error(f"text {invalid[0]} is not a string", fix="give strings")
        requests = []
        for text, begin in zip(
            tokenize_texts(former, cast(list[str], rows)), char_starts or [0] * len(rows), strict=True
        ):
            # The first token that ends after the character; it may begin before (with a space, say).
            first = next((i for i, (_, end) in enumerate(text.spans) if end > begin), len(text.spans))
            requests.append(ScoringRequest(text, first))
        if part == "mlm":
            results = score_masked(former, requests, batch, mask_together, tell)
        elif issubclass(former.state_class, SegmentMemory):
            results = score_with_memory(former, requests, batch, memory_length, get_begin_ids(former), tell)
        else:
            results = score_windowed(former, requests, batch, stride, get_begin_ids(former), tell)
    return results


def compute_id_log_probs(
    former: Former, rows: Sequence[Array], *, batch: int = 16, stride: int | None = None, memory: int | None = None,
    segment: int | None = None,
) -> list[Tensor]:  # fmt: skip
    """Compute the log-probability (T - 1,) of each token but the first, for rows of ids read as they are."""
    void = torch.zeros(0, dtype=torch.long)
    id_rows = [torch.as_tensor(np.asarray(row, np.int64)) for row in rows]
    requests = [ScoringRequest(TokenizedText("", [], [], ids, void, void), 0) for ids in id_rows]
    if issubclass(former.state_class, SegmentMemory):
        return [one.log_probs for one in score_with_memory(former, requests, batch, memory, [], None, segment)]
    return [one.log_probs for one in score_windowed(former, requests, batch, stride, [], None)]


@torch.inference_mode()
def score_slots(former: Former, batch: Batch, slots: Tensor, labels: Tensor, **how: object) -> tuple[Tensor, Tensor]:
    """Compute the log-probability (M,) of labels at slots of a batch, and whether each is the likeliest."""
    part = LM_PARTS[former.head]
    hidden = former.model(batch.to(former.device), **how)[slots.to(former.device)]
    log_probs, is_top = [], []
    for low in range(0, len(slots), LOGITS_CHUNK):
        scores = former.model.logits(hidden[low : low + LOGITS_CHUNK], part=part).float()
        scores = scores[:, 0] if scores.dim() == 3 else scores  # ELMo: of the next word
        want = labels[low : low + LOGITS_CHUNK].to(scores.device)
        log_probs.append(scores.log_softmax(-1).gather(1, want[:, None])[:, 0].cpu())
        is_top.append((scores.argmax(-1) == want).cpu())
    label_log_probs = torch.cat(log_probs)
    if not label_log_probs.isfinite().all():
        raise NonFinite("log-probabilities of tokens")
    return label_log_probs, torch.cat(is_top)


def get_begin_ids(former: Former) -> list[int]:
    """Return the id put before a text: the begin mark, else the end mark, else none."""
    for role in ("bos", "eos"):
        mark = None if former.tokenizer is None else former.tokenizer.id(role)
        mark = vars(former.config).get(role) if mark is None else mark  # a config may have no marks (ELMo)
        if isinstance(mark, int):
            return [mark]
    return []


def score_windowed(
    former: Former, requests: list[ScoringRequest], batch: int, stride: int | None, begin_ids: list[int],
    tell: ProgressCallback | None,
) -> list[Likelihood]:  # fmt: skip
    """Score with a decoder: windows as wide as the context, each token scored in one of them."""
    words = former.definition.reads_characters
    rows: list[ScoredRow] = []
    for number, request in enumerate(requests):
        tokenized = request.tokenized
        ids = get_label_ids(former, tokenized)
        front = tokenized.prefix_ids if words else torch.tensor(begin_ids, dtype=torch.long)
        read = torch.cat((front, tokenized.ids))
        shift = 1 if words else len(front)
        request.first_scored = max(request.first_scored, 1 - shift)
        done = request.first_scored + shift - 1  # the slot that predicts the first scored token
        last = len(ids) + shift - 1
        size = former.context or max(1, last)
        while done < last:
            end = min(last, max(done + min(stride or max(1, size // 2), size), size))
            low = max(0, end - size)
            labels = torch.tensor(ids[done + 1 - shift : end + 1 - shift])
            rows.append((number, read[low:end], torch.arange(done, end) - low, labels))
            done = end
    return score_in_batches(former, requests, rows, batch, tell)


def get_label_ids(former: Former, tokenized: TokenizedText) -> list[int]:
    """Return the ids that are predicted: those that are read, or the words of ELMo's vocabulary."""
    if not former.definition.reads_characters:
        return tokenized.ids.tolist()
    if former.tokenizer is None:
        raise Error("this elmo has no vocabulary of words to predict", fix="load it with its tokenizer")
    number, unknown = former.tokenizer.backend.token_to_id, former.tokenizer.id("unk")
    return [index if (index := number(name)) is not None else unknown or 0 for name in tokenized.tokens]


def score_in_batches(
    former: Former, requests: list[ScoringRequest], rows: list[ScoredRow], batch: int, tell: ProgressCallback | None
) -> list[Likelihood]:
    """Score independent rows in batches of similar length, and put the results back in order."""
    scored: dict[int, tuple[Tensor, Tensor]] = {}
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i][1]))
    for low in range(0, len(order), batch):
        group = order[low : low + batch]
        packed = pack_tensors([rows[i][1] for i in group])
        slots = torch.cat([rows[i][2] + int(packed.starts[at]) for at, i in enumerate(group)])
        both = score_slots(former, packed, slots, torch.cat([rows[i][3] for i in group]))
        sizes = [len(rows[i][2]) for i in group]
        scored.update(zip(group, zip(*(part.split(sizes) for part in both), strict=True), strict=True))
        tell_progress(tell, low + batch, len(order))
    owned: list[list[tuple[Tensor, Tensor]]] = [[(torch.zeros(0), torch.zeros(0))] for _ in requests]
    for i, (number, *_) in enumerate(rows):
        owned[number].append(scored[i])
    results = []
    for request, parts in zip(requests, owned, strict=True):
        log_probs, is_top = (torch.cat(part) for part in zip(*parts, strict=True))
        results.append(request.make_result(log_probs, is_top.bool()))
    return results


def tell_progress(tell: ProgressCallback | None, done: int, total: int) -> None:
    """Report how many texts have been scored."""
    if tell is not None:
        tell("likelihoods", min(done, total), total, "texts")


def pack_tensors(rows: Sequence[Tensor]) -> Batch:
    """Pack rows of ids, or of characters, into a batch."""
    lengths = torch.tensor([len(row) for row in rows])
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    return Batch(torch.cat(list(rows)), starts, int(lengths.max()))


def score_with_memory(
    former: Former, requests: list[ScoringRequest], batch: int, memory: int | None, begin_ids: list[int],
    tell: ProgressCallback | None, segment: int | None = None,
) -> list[Likelihood]:  # fmt: skip
    """Score with a segment memory: segment by segment, several texts side by side (Dai et al. 2019, §3.2)."""
    two_stream, segment = former.is_two_stream, segment or SEGMENT_LENGTH
    ahead = 0 if two_stream else 1  # one stream predicts the next token, the second of two the token itself
    size = memory if memory is not None else former.config.memory or SEGMENT_LENGTH
    order = sorted(range(len(requests)), key=lambda i: -len(requests[i].tokenized.ids))
    results: dict[int, Likelihood] = {}
    for low in range(0, len(order), batch):
        group = order[low : low + batch]
        rows = [torch.tensor([*begin_ids, *requests[i].tokenized.ids.tolist()], dtype=torch.long) for i in group]
        state = former.create_state(len(group), size)
        nothing = torch.zeros(0), torch.zeros(0, dtype=torch.bool)
        scored: list[list[tuple[Tensor, Tensor]]] = [[nothing] for _ in group]
        for at in range(0, max(map(len, rows)), segment):
            parts = [row[at : max(at, min(len(row) - ahead, at + segment))] for row in rows]
            if not any(map(len, parts)):
                break
            packed = pack_tensors(parts)
            if two_stream:
                packed = packed.replace(order=torch.cat([torch.arange(len(part)) for part in parts]))
            labels = torch.cat([r[at + ahead : at + ahead + len(p)] for r, p in zip(rows, parts, strict=True)])
            how = former.build_forward_args(state, None)
            both = score_slots(former, packed, torch.arange(len(labels)), labels, **how)
            sizes = [len(part) for part in parts]
            for found, pair in zip(scored, zip(*(side.split(sizes) for side in both), strict=True), strict=True):
                found.append(pair)
        for found, i in zip(scored, group, strict=True):
            request, given = requests[i], 0 if two_stream or begin_ids else 1  # a first token that nothing predicts
            request.first_scored = max(request.first_scored, given)
            skip = (len(begin_ids) if two_stream else 0) + request.first_scored - given
            log_probs, is_top = (torch.cat(side)[skip:] for side in zip(*found, strict=True))
            results[i] = request.make_result(log_probs, is_top)
        tell_progress(tell, low + batch, len(order))
    return [results[i] for i in range(len(requests))]


def score_masked(
    former: Former, requests: list[ScoringRequest], batch: int, together: bool, tell: ProgressCallback | None
) -> list[Likelihood]:
    """Score with a masked model: each token is masked in a row of its own, in the window whose middle is nearest."""
    hidden = None if former.tokenizer is None else former.tokenizer.id("mask")
    if hidden is None:
        raise Error("this model has no mask token", fix="load it with its tokenizer")
    rows: list[ScoredRow] = []
    for number, request in enumerate(requests):
        tokenized = request.tokenized
        spans, wanted = make_windows(former, tokenized, None), list(range(request.first_scored, len(tokenized.ids)))
        groups = [wanted] if together and wanted else [[t] for t in wanted]
        windows = find_nearest_window(spans, [(some[0] + some[-1]) / 2 for some in groups])
        for some, at in zip(groups, windows, strict=True):
            low, high = spans[at]
            if not low <= some[0] <= some[-1] < high:
                raise Error(f"text {number + 1} is too long to hide so much at once", fix="shorten it")
            row = torch.cat((tokenized.prefix_ids, tokenized.ids[low:high], tokenized.suffix_ids)).clone()
            slots = torch.tensor(some) - low + len(tokenized.prefix_ids)
            row[slots] = hidden
            rows.append((number, row, slots, tokenized.ids[some]))
    return score_in_batches(former, requests, rows, batch, tell)


def score_seq2seq(
    former: Former, rows: Sequence[ScoredText], batch: int, tell: ProgressCallback | None
) -> list[Likelihood]:
    """Score with an encoder-decoder: the target with its marks, given the source."""
    if invalid := [i for i, row in enumerate(rows, 1) if not (isinstance(row, tuple | list) and len(row) == 2)]:
        raise Error(f"text {invalid[0]} is not a pair", fix=f"give {former.family} pairs: (source, target)")
    if former.tokenizer is None:
        raise Error(f"this {former.family} has no tokenizer", fix="load it with its tokenizer")
    writes = former.tokenizer.target or former.tokenizer
    results: list[Likelihood] = []
    for low in range(0, len(rows), batch):
        pairs = cast(Sequence[tuple[str, str]], rows[low : low + batch])
        some = [(normalise(source), normalise(target)) for source, target in pairs]
        sources = [former.tokenizer.encode(source, parse_special=False) for source, _ in some]
        targets = [writes.encode_with_offsets(target, parse_special=False) for _, target in some]
        if empty := [i for i, (s, t) in enumerate(zip(sources, targets, strict=True), low + 1) if not s or not t[0]]:
            raise Error(f"text {empty[0]} is empty", fix="leave empty texts out")
        wraps = former.definition.starts_with_last_token
        inputs = [[ids[-1] if wraps else get_start_token(former.config), *ids[:-1]] for ids, _ in targets]
        packed = Batch.from_rows(inputs).replace(source=Batch.from_rows(sources))
        labels = torch.tensor([i for ids, _ in targets for i in ids])
        log_probs, is_top = score_slots(former, packed, torch.arange(len(labels)), labels)
        sizes = [len(ids) for ids, _ in targets]
        scored = zip(some, targets, log_probs.split(sizes), is_top.split(sizes), strict=True)
        for (_, text), (ids, spans), a, b in scored:
            results.append(Likelihood(text, [writes.get_token_text(i) for i in ids], spans, a, b))
        tell_progress(tell, low + batch, len(rows))
    return results
