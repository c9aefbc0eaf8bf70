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
from ..nn.attention.kv_cache import KVCache
from ..nn.attention.segment_memory import SegmentMemory
from ..tasks.encoding import Span, TokenizedText, find_nearest_window, make_windows, tokenize_texts
from ..text.languages import find_language_swap
from ..text.normalise import normalise
from ..verbs import LM_PARTS, can_generate

LOGITS_CHUNK = 1024  # places whose logits are held at once
MIN_SHARED_PREFIX = 32  # tokens that all texts begin with, from which on they are read once
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

    batch_size: int
    stride: int | None
    memory_length: int | None
    tell: ProgressCallback | None


class LikelihoodOptions(ScoringOptions, total=False):
    """Options of `compute_likelihoods`."""

    char_starts: Sequence[int] | None
    char_ends: Sequence[int] | None
    mask_together: bool


@dataclass
class ScoringRequest:
    """A tokenized text, the first of its tokens that is scored, and the one after the last (None: the end)."""

    tokenized: TokenizedText
    first_scored: int
    end_scored: int | None = None

    def make_result(self, log_probs: Tensor, is_top: Tensor) -> Likelihood:
        """Make the likelihood of the tokens that are scored."""
        text, scored = self.tokenized, slice(self.first_scored, self.end_scored)
        count = len(text.tokens[scored]) if self.end_scored is not None else len(log_probs)
        return Likelihood(text.text, text.tokens[scored], text.spans[scored], log_probs[:count], is_top[:count])


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
    char_ends: Sequence[int] | None = None, mask_together: bool = False, batch_size: int = 16,
    stride: int | None = None, memory_length: int | None = None, tell: ProgressCallback | None = None,
) -> list[Likelihood]:  # fmt: skip
    """Compute the log-probability of every token of each text; of an encoder-decoder, of pairs (source, target).

    A decoder's text begins with its mark of the beginning (or end) where it has one, else the first token is given and
    not counted. Texts longer than the context are read in windows, of each of which the last `stride` tokens count
    (half of the context by default); a model with a memory reads them segment by segment and remembers `memory_length`
    states (its own number by default). A masked model guesses each token from all others, or with `mask_together` all
    that are asked for at once. `char_starts` are the characters from which on the tokens of each text count,
    `char_ends` those before which they end.
    """
    part = LM_PARTS.get(former.head)
    if part is None or part not in former.model.parts:
        fix = "load it with head='lm' or head='mlm'"
        raise Error(f"{former.family} with head {former.head!r} is not a language model", fix=fix)
    rows = list(texts)
    for name, places in (("char_starts", char_starts), ("char_ends", char_ends)):
        if places is not None and len(places) != len(rows):
            raise Error(f"there are {len(places)} {name} for {len(rows)} texts", fix="give one for each")
    if batch_size < 1 or (stride is not None and stride < 1):
        raise Error("batch_size and stride must be at least 1", fix="leave them out")
    if former.is_encoder_decoder:
        results = score_seq2seq(former, rows, batch_size, tell)
    else:
        if invalid := [i for i, text in enumerate(rows, 1) if not isinstance(text, str)]:
            raise Error(f"text {invalid[0]} is not a string", fix="give strings")
        requests = make_requests(former, cast(list[str], rows), char_starts, char_ends)
        if part == "mlm":
            results = score_masked(former, requests, batch_size, mask_together, tell)
        elif issubclass(former.state_class, SegmentMemory):
            results = score_with_memory(former, requests, batch_size, memory_length, get_begin_ids(former), tell)
        else:
            results = score_windowed(former, requests, batch_size, stride, get_begin_ids(former), tell)
    return results


def make_requests(
    former: Former, texts: Sequence[str], char_starts: Sequence[int] | None, char_ends: Sequence[int] | None = None
) -> list[ScoringRequest]:
    """Tokenize texts, and find the tokens between two characters of each."""
    requests = []
    none: list[int | None] = [None] * len(texts)
    starts, ends = char_starts or [0] * len(texts), none if char_ends is None else char_ends
    for text, begin, end in zip(tokenize_texts(former, texts), starts, ends, strict=True):
        # The first token that ends after the character; it may begin before (with a space, say).
        first = next((i for i, (_, last) in enumerate(text.spans) if last > begin), len(text.spans))
        after = None if end is None else next((i for i, (low, _) in enumerate(text.spans) if low >= end), None)
        requests.append(ScoringRequest(text, first, after))
    return requests


@dataclass(frozen=True)
class Ending:
    """A text and the character at which its ending begins, whose likelihood is asked for; what stands behind `end` is
    read by a masked model and not counted. A space before the first word belongs to the ending: in some words it is
    part of the first token, in others a token of its own."""

    text: str
    start: int
    end: int | None = None


def compute_ending_likelihoods(
    former: Former, groups: Sequence[Sequence[Ending]], *, share_prefixes: bool = True, **how: Unpack[ScoringOptions]
) -> list[list[Likelihood]]:
    """Compute the likelihood of each ending of each group: texts that begin alike, such as a prompt with one of several
    answers. An encoder-decoder reads what stands before an ending as the source.

    A decoder with a KV cache reads the common beginning of a group once, and what most groups begin with once for all
    of them, unless `share_prefixes` is False or a text is longer than the context; other models read every text whole.
    """
    endings = [ending for group in groups for ending in group]
    if former.is_encoder_decoder:
        pairs: list[ScoredText] = [
            (one.text[: one.start].rstrip() or " ", one.text[one.start :].lstrip()) for one in endings
        ]
        flat = compute_likelihoods(former, pairs, **how)
    else:
        texts, starts = [one.text for one in endings], [one.start for one in endings]
        if share_prefixes and can_share_prefixes(former):
            requests = make_requests(former, texts, starts)
            begin_ids, places = get_begin_ids(former), iter(requests)
            longest = max((len(one.tokenized.ids) for one in requests), default=0) + len(begin_ids) - 1
            if former.context is None or longest <= former.context:
                grouped = [[next(places) for _ in group] for group in groups]
                return score_alternatives(former, grouped, how.get("batch_size", 16), begin_ids, how.get("tell"))
        is_masked = LM_PARTS.get(former.head) == "mlm"
        ends = [len(one.text) if one.end is None else one.end for one in endings] if is_masked else None
        flat = compute_likelihoods(former, texts, char_starts=starts, char_ends=ends, **how)
    likelihoods = iter(flat)
    return [[next(likelihoods) for _ in group] for group in groups]


def can_share_prefixes(former: Former) -> bool:
    """Return whether a model continues from the KV cache of a beginning."""
    return can_generate(former) and not former.is_encoder_decoder and issubclass(former.state_class, KVCache)


def count_common(rows: Sequence[list[int]]) -> int:
    """Count the ids that all rows begin with."""
    low, high = min(rows), max(rows)  # all others lie between them in order
    size = min(len(low), len(high))
    return next((i for i in range(size) if low[i] != high[i]), size)


@torch.inference_mode()
def score_alternatives(
    former: Former, groups: Sequence[Sequence[ScoringRequest]], batch_size: int, begin_ids: list[int],
    tell: ProgressCallback | None,
) -> list[list[Likelihood]]:  # fmt: skip
    """Score with a decoder's KV cache: what the texts of a group begin with is read once, then each of the rest; what
    most groups begin with is read once for all of them, if it is long enough to be worth copying."""
    shift = len(begin_ids)
    texts = [[[*begin_ids, *one.tokenized.ids.tolist()] for one in group] for group in groups]
    for request in (one for group in groups for one in group):
        request.first_scored = max(request.first_scored, 1 - shift)
    common = [min(count_common(rows), min(map(len, rows)) - 1) for rows in texts]
    shared, base = [0] * len(groups), None
    if len(groups) > 1:  # of most groups the middle one in the order of their ids begins like its neighbours
        reference = sorted(rows[0] for rows in texts)[len(texts) // 2]
        firsts = [min(one.first_scored for one in group) + shift - 1 for group in groups]
        sizes = [count_common([rows[0], reference]) for rows in texts]
        limits = [min(first, size - 1) for first, size in zip(firsts, common, strict=True)]
        sizes = [min(pair) for pair in zip(sizes, limits, strict=True)]
        shared = [size if size >= MIN_SHARED_PREFIX else 0 for size in sizes]
        base = read_prefix(former, reference[: max(shared)]) if sum(map(bool, shared)) > 1 else None
        shared = shared if base is not None else [0] * len(groups)
    scored: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
    order = sorted(range(len(groups)), key=lambda i: (-shared[i], -common[i]))

    def list_targets(i: int, member: int, at: int, end: int) -> ReadTargets:
        """List what the slots from `at` to `end` of a text are to predict, counted from `at`."""
        first = max(groups[i][member].first_scored + shift - 1, at)
        return (i, member), first - at, texts[i][member][first + 1 : end + 1]

    for low in range(0, len(order), batch_size):
        some = order[low : low + batch_size]
        room = max(shared) + max(common[i] - shared[i] for i in some)  # rows have read different amounts
        cache = KVCache(len(some), max(room, *(len(row) for i in some for row in texts[i])))
        if base is not None:
            for row in range(len(some)):
                cache.copy_row_from(row, base)
            cache.drop_newest(torch.tensor([max(shared) - shared[i] for i in some], device=former.device))
        starts = [texts[i][0][shared[i] : common[i]] for i in some]
        targets = [[list_targets(i, m, shared[i], common[i]) for m in range(len(texts[i]))] for i in some]
        read_and_score(former, cache, starts, targets, scored)
        longest = max(common[i] for i in some)
        for member in range(max(len(texts[i]) for i in some)):
            tails = [texts[i][member][common[i] : -1] if member < len(texts[i]) else [] for i in some]
            if any(tails):
                cache.used_slots = longest
                ends = [common[i] + len(tail) for i, tail in zip(some, tails, strict=True)]
                rows = zip(some, tails, ends, strict=True)
                targets = [[list_targets(i, member, common[i], end)] if tail else [] for i, tail, end in rows]
                read_and_score(former, cache, tails, targets, scored)
                cache.drop_newest(torch.tensor([len(tail) for tail in tails], device=former.device))
        tell_progress(tell, low + batch_size, len(order))
    nothing = torch.zeros(0), torch.zeros(0, dtype=torch.bool)
    results: list[list[Likelihood]] = []
    for i, group in enumerate(groups):
        parts = [zip(nothing, *scored.get((i, member), ()), strict=True) for member in range(len(group))]
        both = [[torch.cat(side) for side in part] for part in parts]
        results.append([one.make_result(*pair) for one, pair in zip(group, both, strict=True)])
    return results


ReadTargets = tuple[tuple[int, int], int, list[int]]  # whose they are, the first slot, and the ids that slots predict


def read_and_score(
    former: Former, cache: KVCache, ids: list[list[int]], targets: list[list[ReadTargets]],
    scored: dict[tuple[int, int], list[tuple[Tensor, Tensor]]],
) -> None:  # fmt: skip
    """Read new ids of each row of a cache, and add to `scored` how likely the targets of each row are."""
    packed = pack_tensors([torch.tensor(row, dtype=torch.long) for row in ids]).to(former.device)
    hidden = former.model(packed, **former.build_forward_args(cache, None))
    starts = packed.starts.tolist()
    requests = [(starts[row] + low, key, labels) for row, some in enumerate(targets) for key, low, labels in some]
    slots = [low + n for low, _, labels in requests for n in range(len(labels))]
    if not slots:
        return
    both = score_hidden(
        former, hidden, torch.tensor(slots), torch.tensor([i for *_, labels in requests for i in labels])
    )
    sizes = [len(labels) for *_, labels in requests]
    for (_, key, _), pair in zip(requests, zip(*(side.split(sizes) for side in both), strict=True), strict=True):
        scored.setdefault(key, []).append(pair)


def read_prefix(former: Former, ids: list[int]) -> KVCache:
    """Read ids into a new KV cache of one row."""
    cache = KVCache(1, len(ids))
    former.model(pack_tensors([torch.tensor(ids)]).to(former.device), **former.build_forward_args(cache, None))
    return cache


def compute_id_log_probs(
    former: Former, rows: Sequence[Array], *, batch_size: int = 16, stride: int | None = None,
    memory: int | None = None, segment: int | None = None,
) -> list[Tensor]:  # fmt: skip
    """Compute the log-probability (T - 1,) of each token but the first, for rows of ids read as they are."""
    void = torch.zeros(0, dtype=torch.long)
    id_rows = [torch.as_tensor(np.asarray(row, np.int64)) for row in rows]
    requests = [ScoringRequest(TokenizedText("", [], [], ids, void, void), 0) for ids in id_rows]
    if issubclass(former.state_class, SegmentMemory):
        return [one.log_probs for one in score_with_memory(former, requests, batch_size, memory, [], None, segment)]
    return [one.log_probs for one in score_windowed(former, requests, batch_size, stride, [], None)]


@torch.inference_mode()
def score_slots(former: Former, batch: Batch, slots: Tensor, labels: Tensor, **how: object) -> tuple[Tensor, Tensor]:
    """Compute the log-probability (M,) of labels at slots of a batch, and whether each is the likeliest."""
    return score_hidden(former, former.model(batch.to(former.device), **how), slots, labels)


@torch.inference_mode()
def score_hidden(former: Former, hidden: Tensor, slots: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the log-probability (M,) of labels at slots of hidden states, and whether each is the likeliest. A slot
    that occurs several times is computed once."""
    part = LM_PARTS[former.head]
    places, inverse = slots.unique(return_inverse=True)
    log_probs, is_top = torch.zeros(len(slots)), torch.zeros(len(slots), dtype=torch.bool)
    for low in range(0, len(places), LOGITS_CHUNK):
        some = places[low : low + LOGITS_CHUNK].to(former.device)
        scores = former.model.logits(hidden[some], part=part).float()
        scores = scores[:, 0] if scores.dim() == 3 else scores  # ELMo: of the next word
        here = ((inverse >= low) & (inverse < low + LOGITS_CHUNK)).nonzero()[:, 0]
        rows, want = (inverse[here] - low).to(former.device), labels[here].to(former.device)
        log_probs[here] = scores.log_softmax(-1)[rows, want].cpu()
        is_top[here] = (scores.argmax(-1)[rows] == want).cpu()
    if not log_probs.isfinite().all():
        raise NonFinite("log-probabilities of tokens")
    return log_probs, is_top


def get_begin_ids(former: Former) -> list[int]:
    """Return the id put before a text: the begin mark, else the end mark, else none."""
    for role, default in (("bos", former.config.bos), ("eos", former.config.eos)):
        mark = None if former.tokenizer is None else former.tokenizer.id(role)
        mark = default if mark is None else mark
        if isinstance(mark, int):
            return [mark]
    return []


def score_windowed(
    former: Former, requests: list[ScoringRequest], batch_size: int, stride: int | None, begin_ids: list[int],
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
    return score_in_batches(former, requests, rows, batch_size, tell)


def get_label_ids(former: Former, tokenized: TokenizedText) -> list[int]:
    """Return the ids that are predicted: those that are read, or the words of ELMo's vocabulary."""
    if not former.definition.reads_characters:
        return tokenized.ids.tolist()
    if former.tokenizer is None:
        raise Error("this elmo has no vocabulary of words to predict", fix="load it with its tokenizer")
    number, unknown = former.tokenizer.backend.token_to_id, former.tokenizer.id("unk")
    return [index if (index := number(name)) is not None else unknown or 0 for name in tokenized.tokens]


def score_in_batches(
    former: Former, requests: list[ScoringRequest], rows: list[ScoredRow], batch_size: int,
    tell: ProgressCallback | None,
) -> list[Likelihood]:  # fmt: skip
    """Score independent rows in batches of similar length, and put the results back in order."""
    scored: dict[int, tuple[Tensor, Tensor]] = {}
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i][1]))
    for low in range(0, len(order), batch_size):
        group = order[low : low + batch_size]
        packed = pack_tensors([rows[i][1] for i in group])
        slots = torch.cat([rows[i][2] + int(packed.starts[at]) for at, i in enumerate(group)])
        both = score_slots(former, packed, slots, torch.cat([rows[i][3] for i in group]))
        sizes = [len(rows[i][2]) for i in group]
        scored.update(zip(group, zip(*(part.split(sizes) for part in both), strict=True), strict=True))
        tell_progress(tell, low + batch_size, len(order))
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
    former: Former, requests: list[ScoringRequest], batch_size: int, memory: int | None, begin_ids: list[int],
    tell: ProgressCallback | None, segment: int | None = None,
) -> list[Likelihood]:  # fmt: skip
    """Score with a segment memory: segment by segment, several texts side by side (Dai et al. 2019, §3.2)."""
    two_stream, segment = former.is_two_stream, segment or SEGMENT_LENGTH
    ahead = 0 if two_stream else 1  # one stream predicts the next token, the second of two the token itself
    size = memory if memory is not None else former.config.memory or SEGMENT_LENGTH
    order = sorted(range(len(requests)), key=lambda i: -len(requests[i].tokenized.ids))
    results: dict[int, Likelihood] = {}
    for low in range(0, len(order), batch_size):
        group = order[low : low + batch_size]
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
            for likelihood, pair in zip(scored, zip(*(side.split(sizes) for side in both), strict=True), strict=True):
                likelihood.append(pair)
        for likelihood, i in zip(scored, group, strict=True):
            request = requests[i]
            num_unscored = 0 if two_stream or begin_ids else 1  # a first token that nothing predicts
            request.first_scored = max(request.first_scored, num_unscored)
            skip = (len(begin_ids) if two_stream else 0) + request.first_scored - num_unscored
            log_probs, is_top = (torch.cat(side)[skip:] for side in zip(*likelihood, strict=True))
            results[i] = request.make_result(log_probs, is_top)
        tell_progress(tell, low + batch_size, len(order))
    return [results[i] for i in range(len(requests))]


def score_masked(
    former: Former, requests: list[ScoringRequest], batch_size: int, together: bool, tell: ProgressCallback | None
) -> list[Likelihood]:
    """Score with a masked model: each token is masked in a row of its own, in the window whose middle is nearest."""
    hidden = None if former.tokenizer is None else former.tokenizer.id("mask")
    if hidden is None:
        raise Error("this model has no mask token", fix="load it with its tokenizer")
    rows: list[ScoredRow] = []
    for number, request in enumerate(requests):
        tokenized = request.tokenized
        spans, positions = make_windows(former, tokenized, None), list(range(len(tokenized.ids)))
        positions = positions[request.first_scored : request.end_scored]
        groups = [positions] if together and positions else [[t] for t in positions]
        windows = find_nearest_window(spans, [(some[0] + some[-1]) / 2 for some in groups])
        for some, at in zip(groups, windows, strict=True):
            low, high = spans[at]
            if not low <= some[0] <= some[-1] < high:
                raise Error(f"text {number + 1} is too long to hide so much at once", fix="shorten it")
            row = torch.cat((tokenized.prefix_ids, tokenized.ids[low:high], tokenized.suffix_ids)).clone()
            slots = torch.tensor(some) - low + len(tokenized.prefix_ids)
            row[slots] = hidden
            rows.append((number, row, slots, tokenized.ids[some]))
    return score_in_batches(former, requests, rows, batch_size, tell)


def score_seq2seq(
    former: Former, rows: Sequence[ScoredText], batch_size: int, tell: ProgressCallback | None
) -> list[Likelihood]:
    """Score with an encoder-decoder: the target with its marks, given the source."""
    if invalid := [i for i, row in enumerate(rows, 1) if not (isinstance(row, tuple | list) and len(row) == 2)]:
        raise Error(f"text {invalid[0]} is not a pair", fix=f"give {former.family} pairs: (source, target)")
    if former.tokenizer is None:
        raise Error(f"this {former.family} has no tokenizer", fix="load it with its tokenizer")
    writes = former.tokenizer.target or former.tokenizer
    languages = [str(former.task.get(f"{side}_language", "")) for side in ("source", "target")]  # of mBART
    source_swap, target_swap = map(find_language_swap, (former.tokenizer, writes), languages)
    results: list[Likelihood] = []
    for low in range(0, len(rows), batch_size):
        pairs = cast(Sequence[tuple[str, str]], rows[low : low + batch_size])
        some = [(normalise(source), normalise(target)) for source, target in pairs]
        sources = [former.tokenizer.encode(source, parse_special=False) for source, _ in some]
        targets = [writes.encode_with_offsets(target, parse_special=False) for _, target in some]
        if empty := [i for i, (s, t) in enumerate(zip(sources, targets, strict=True), low + 1) if not s or not t[0]]:
            raise Error(f"text {empty[0]} is empty", fix="leave empty texts out")
        sources = [[source_swap.get(i, i) for i in ids] for ids in sources]
        targets = [([target_swap.get(i, i) for i in ids], spans) for ids, spans in targets]
        wraps = former.definition.starts_with_last_token
        inputs = [[ids[-1] if wraps else get_start_token(former.config), *ids[:-1]] for ids, _ in targets]
        packed = Batch.from_rows(inputs).replace(source=Batch.from_rows(sources))
        labels = torch.tensor([i for ids, _ in targets for i in ids])
        log_probs, is_top = score_slots(former, packed, torch.arange(len(labels)), labels)
        sizes = [len(ids) for ids, _ in targets]
        scored = zip(some, targets, log_probs.split(sizes), is_top.split(sizes), strict=True)
        for (_, text), (ids, spans), a, b in scored:
            results.append(Likelihood(text, [writes.get_token_text(i) for i in ids], spans, a, b))
        tell_progress(tell, low + batch_size, len(rows))
    return results
