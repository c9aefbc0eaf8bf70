"""How likely a text is to a language model, token by token: decoders, models with a memory, masked language models
(each token hidden in turn: Salazar et al. 2020), encoder-decoders (a target, given its source), ELMo's forward half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..config import Tell
from ..errors import Error, NonFinite
from ..former import Former
from ..generation.runner import packed, streams
from ..nn.memory import Memory
from ..tasks.inputs import rows_of, start_token
from ..text.normalise import normalise
from ..verbs import SPEAKS
from .states import Pieces, Span, cut, nearest, windows

ROOM = 1024  # places whose logits are held at once
SEGMENT = 512  # tokens read at once by a model with a memory


@dataclass(frozen=True)
class Likelihood:
    """A text's tokens, where each is in the text, its log-probability, and whether it was the likeliest one."""

    text: str
    tokens: list[str]
    spans: list[Span]
    logs: Tensor  # (T,) natural logarithms
    right: Tensor  # (T,) bool

    @property
    def total(self) -> float:
        """The log-probability of all tokens."""
        return math.fsum(self.logs.tolist())

    @property
    def perplexity(self) -> float:
        """By token."""
        return power(-self.total / len(self.logs)) if len(self.logs) else math.nan


def power(nats: float) -> float:
    """Return e to a power, infinity where that is too large for a float."""
    return math.exp(nats) if nats < 700 else math.inf


@dataclass
class Place:
    """What is asked about one text: ids as they are read, and of which tokens (slots of these ids) the probability."""

    pieces: Pieces
    first: int  # the first of the pieces that is asked for


def likelihood(
    former: Former,
    texts: Any,
    *,
    begins: Sequence[int] | None = None,
    together: bool = False,
    batch: int = 16,
    stride: int | None = None,
    memory: int | None = None,
    tell: Tell | None = None,
) -> Any:
    """The log-probability of every token of a text, or of each of many; of an encoder-decoder, of pairs (source,
    target).

    A decoder's text begins with its mark of the beginning (or end) where it has one, else the first token is given and
    not counted. Texts longer than the context are read in windows, of each of which the last `stride` tokens count
    (half of the context by default); a model with a memory reads them segment by segment and remembers `memory` states
    (its own number by default). A masked model guesses each token from all others, or with `together` all that are
    asked for at once. `begins` are the characters from which on the tokens of each text count.
    """
    part = SPEAKS.get(former.head)
    if part is None or part not in former.model.parts:
        fix = "load it with head='lm' or head='mlm'"
        raise Error(f"{former.family} with head {former.head!r} is no language model", fix=fix)
    alone = isinstance(texts, str) or (former.pair and isinstance(texts, tuple))
    rows = [texts] if alone else rows_of(texts)
    if begins is not None and len(begins) != len(rows):
        raise Error(f"there are {len(begins)} begins for {len(rows)} texts", fix="give one for each")
    if batch < 1 or (stride is not None and stride < 1):
        raise Error("a batch and a stride have at least 1", fix="leave them out")
    if former.pair:
        found = paired(former, rows, batch, tell)
    else:
        if odd := [i for i, text in enumerate(rows, 1) if not isinstance(text, str)]:
            raise Error(f"text {odd[0]} is no string", fix="give strings")
        places = [Place(p, asked(p, begins[i] if begins else 0)) for i, p in enumerate(cut(former, rows))]
        if part == "mlm":
            found = masked(former, places, batch, together, tell)
        elif issubclass(former.state, Memory):
            found = remembered(former, places, batch, memory, mark(former), tell)
        else:
            found = windowed(former, places, batch, stride, mark(former), tell)
    return found[0] if alone else found


def likelihood_ids(
    former: Former,
    rows: Sequence[Any],
    *,
    batch: int = 16,
    stride: int | None = None,
    memory: int | None = None,
    segment: int | None = None,
) -> list[Tensor]:
    """(T - 1,) the log-probability of each token but the first, for rows of ids that a decoder reads as they are."""
    void = torch.zeros(0, dtype=torch.long)
    made = [torch.as_tensor(np.asarray(row, np.int64)) for row in rows]
    places = [Place(Pieces("", [], [], ids, void, void), 0) for ids in made]
    if issubclass(former.state, Memory):
        return [one.logs for one in remembered(former, places, batch, memory, [], None, segment)]
    return [one.logs for one in windowed(former, places, batch, stride, [], None)]


def asked(pieces: Pieces, begin: int) -> int:
    """The first token that reaches behind a character; one that begins before it (a space, say) is asked for too."""
    return next((i for i, (_, end) in enumerate(pieces.spans) if end > begin), len(pieces.spans))


def kept(pieces: Pieces, first: int, logs: Tensor, right: Tensor) -> Likelihood:
    """The answer about the pieces from `first` on."""
    return Likelihood(pieces.text, pieces.names[first:], pieces.spans[first:], logs, right)


@torch.inference_mode()
def answers(former: Former, batch: Batch, slots: Tensor, labels: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """(M,) the log-probability of labels at slots of a batch, and whether nothing is likelier."""
    part = SPEAKS[former.head]
    hidden = former.model(batch.to(former.device), **how)[slots.to(former.device)]
    logs, right = [], []
    for low in range(0, len(slots), ROOM):
        scores = former.model.logits(hidden[low : low + ROOM], part=part).float()
        scores = scores[:, 0] if scores.dim() == 3 else scores  # ELMo: of the next word
        want = labels[low : low + ROOM].to(scores.device)
        logs.append(scores.log_softmax(-1).gather(1, want[:, None])[:, 0].cpu())
        right.append((scores.argmax(-1) == want).cpu())
    found = torch.cat(logs)
    if not found.isfinite().all():
        raise NonFinite("log-probabilities of tokens")
    return found, torch.cat(right)


def mark(former: Former) -> list[int]:
    """What stands before a text that begins: the mark of a beginning, else that of an end."""
    named = former.tokenizer
    for role in ("bos", "eos"):
        found = getattr(former.config, role, None) if named is None or named.id(role) is None else named.id(role)
        if isinstance(found, int):
            return [found]
    return []


def windowed(
    former: Former, places: list[Place], batch: int, stride: int | None, mark: list[int], tell: Tell | None
) -> list[Likelihood]:
    """Decoders: windows as wide as the context, every token counted in one of them."""
    words = hasattr(former.config, "slots")
    context = getattr(former.config, "context", None)
    rows: list[tuple[int, Any, Tensor, Tensor]] = []  # text, what is read, slots, labels
    for number, place in enumerate(places):
        pieces = place.pieces
        ids, front = labels_of(former, pieces), [] if words else mark
        read = torch.cat((pieces.before, pieces.ids)) if words else torch.tensor([*front, *ids], dtype=torch.long)
        shift = 1 if words else len(front)
        place.first = max(place.first, 1 - shift)
        done = place.first + shift - 1  # the slot that foretells the first token asked for
        last = len(ids) + shift - 1
        size = context or max(1, last)
        while done < last:
            end = min(last, max(done + min(stride or max(1, size // 2), size), size))
            low = max(0, end - size)
            labels = torch.tensor(ids[done + 1 - shift : end + 1 - shift])
            rows.append((number, read[low:end], torch.arange(done, end) - low, labels))
            done = end
    return gathered(former, places, rows, batch, tell)


def labels_of(former: Former, pieces: Pieces) -> list[int]:
    """The ids that a model answers with: those that it reads, or the words of ELMo's vocabulary."""
    if not hasattr(former.config, "slots"):
        return pieces.ids.tolist()
    if former.tokenizer is None:
        raise Error("this elmo has no vocabulary of words to foretell", fix="load it with its tokenizer")
    number, unknown = former.tokenizer.rust.token_to_id, former.tokenizer.id("unk")
    return [found if (found := number(name)) is not None else unknown or 0 for name in pieces.names]


def gathered(former: Former, places: list[Place], rows: list[Any], batch: int, tell: Tell | None) -> list[Likelihood]:
    """Rows that do not depend on each other, run in batches of like length and put back in order."""
    logs: dict[int, Tensor] = {}
    right: dict[int, Tensor] = {}
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i][1]))
    for low in range(0, len(order), batch):
        group = order[low : low + batch]
        made = together_of([rows[i][1] for i in group])
        slots = torch.cat([rows[i][2] + int(made.starts[at]) for at, i in enumerate(group)])
        both = answers(former, made, slots, torch.cat([rows[i][3] for i in group]))
        sizes = [len(rows[i][2]) for i in group]
        for i, log, hit in zip(group, both[0].split(sizes), both[1].split(sizes), strict=True):
            logs[i], right[i] = log, hit
        if tell is not None:
            tell("likelihoods", min(low + batch, len(order)), len(order), "texts")
    owners: list[list[int]] = [[] for _ in places]
    for i, row in enumerate(rows):
        owners[row[0]].append(i)
    found = []
    for place, own in zip(places, owners, strict=True):
        log, hit = (torch.cat([part[i] for i in own]) if own else torch.zeros(0) for part in (logs, right))
        found.append(kept(place.pieces, place.first, log, hit.bool()))
    return found


def together_of(rows: Sequence[Tensor]) -> Batch:
    """Rows of ids, or of characters, as one batch."""
    lengths = torch.tensor([len(row) for row in rows])
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    return Batch(torch.cat(list(rows)), starts, int(lengths.max()))


def remembered(
    former: Former,
    places: list[Place],
    batch: int,
    memory: int | None,
    front: list[int],
    tell: Tell | None,
    segment: int | None = None,
) -> list[Likelihood]:
    """Models with a memory: segment by segment, several texts side by side (Dai et al. 2019, §3.2)."""
    two, segment = streams(former), segment or SEGMENT
    size = memory if memory is not None else getattr(former.config, "memory", None) or SEGMENT
    order = sorted(range(len(places)), key=lambda i: -len(places[i].pieces.ids))
    found: dict[int, Likelihood] = {}
    for low in range(0, len(order), batch):
        group = order[low : low + batch]
        rows = [torch.tensor([*front, *places[i].pieces.ids.tolist()], dtype=torch.long) for i in group]
        state = former.remember(len(group), size)
        logs: list[list[Tensor]] = [[] for _ in group]
        right: list[list[Tensor]] = [[] for _ in group]
        longest = max(map(len, rows))
        for at in range(0, longest, segment):
            # One stream foretells the next token, the second of two the token itself.
            ends = [len(row) - (not two) for row in rows]
            parts = [row[at : max(at, min(end, at + segment))] for row, end in zip(rows, ends, strict=True)]
            if not any(map(len, parts)):
                break
            made = together_of(parts)
            if two:
                made = made.replace(order=torch.cat([torch.arange(len(part)) for part in parts]))
            labels = torch.cat(
                [row[at + (not two) : at + (not two) + len(p)] for row, p in zip(rows, parts, strict=True)]
            )
            how = former.how(state, None)
            log, hit = answers(former, made, torch.arange(len(labels)), labels, **how)
            sizes = [len(part) for part in parts]
            for row, a, b in zip(range(len(group)), log.split(sizes), hit.split(sizes), strict=True):
                logs[row].append(a)
                right[row].append(b)
        for row, i in enumerate(group):
            pieces, lost = places[i].pieces, len(front) if two else 0
            first = max(places[i].first, 0 if two or front else 1)
            skip = lost + first - (0 if two or front else 1)
            found[i] = kept(pieces, first, torch.cat(logs[row])[skip:], torch.cat(right[row])[skip:])
        if tell is not None:
            tell("likelihoods", min(low + batch, len(order)), len(order), "texts")
    return [found[i] for i in range(len(places))]


def masked(former: Former, places: list[Place], batch: int, together: bool, tell: Tell | None) -> list[Likelihood]:
    """Masked language models: each token in a row of its own where it is hidden; of long texts, in the window in whose
    middle it is nearest."""
    hidden = None if former.tokenizer is None else former.tokenizer.id("mask")
    if hidden is None:
        raise Error("this model has no mask token", fix="load it with its tokenizer")
    rows = []
    for number, place in enumerate(places):
        pieces = place.pieces
        spans, wanted = windows(former, pieces, None), list(range(place.first, len(pieces.ids)))
        groups = [wanted] if together and wanted else [[t] for t in wanted]
        for some, at in zip(groups, nearest(spans, [(some[0] + some[-1]) / 2 for some in groups]), strict=True):
            low, high = spans[at]
            if not low <= some[0] <= some[-1] < high:
                raise Error(f"text {number + 1} is too long to hide so much at once", fix="shorten it")
            row = torch.cat((pieces.before, pieces.ids[low:high], pieces.after)).clone()
            slots = torch.tensor(some) - low + len(pieces.before)
            row[slots] = hidden
            rows.append((number, row, slots, pieces.ids[some]))
    return gathered(former, places, rows, batch, tell)


def paired(former: Former, rows: list[Any], batch: int, tell: Tell | None) -> list[Likelihood]:
    """Encoder-decoders: the target with its marks, given the source."""
    if odd := [i for i, row in enumerate(rows, 1) if not (isinstance(row, tuple | list) and len(row) == 2)]:
        raise Error(f"text {odd[0]} is no pair", fix=f"give {former.family} pairs: (source, target)")
    if former.tokenizer is None:
        raise Error(f"this {former.family} has no tokenizer", fix="load it with its tokenizer")
    writes = former.tokenizer.target or former.tokenizer
    found: list[Likelihood] = []
    for low in range(0, len(rows), batch):
        some = [(normalise(source), normalise(target)) for source, target in rows[low : low + batch]]
        sources = [former.tokenizer.encode(source, parse=False) for source, _ in some]
        targets = [writes.encode_with_offsets(target, parse=False) for _, target in some]
        if empty := [i for i, (s, t) in enumerate(zip(sources, targets, strict=True), low + 1) if not s or not t[0]]:
            raise Error(f"text {empty[0]} is empty", fix="leave empty texts out")
        wraps = getattr(former.config, "wraps", False)
        inputs = [[ids[-1] if wraps else start_token(former.config), *ids[:-1]] for ids, _ in targets]
        made = packed(inputs, torch.device("cpu")).replace(source=packed(sources, torch.device("cpu")))
        labels = torch.tensor([i for ids, _ in targets for i in ids])
        logs, right = answers(former, made, torch.arange(len(labels)), labels)
        sizes = [len(ids) for ids, _ in targets]
        for (_, text), (ids, spans), a, b in zip(some, targets, logs.split(sizes), right.split(sizes), strict=True):
            found.append(Likelihood(text, [writes.token(i) for i in ids], spans, a, b))
        if tell is not None:
            tell("likelihoods", min(low + batch, len(rows)), len(rows), "texts")
    return found
