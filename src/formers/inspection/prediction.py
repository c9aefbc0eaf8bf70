"""What a model predicts: probabilities and surprisal of every token, and the prediction of each layer, read off by the
model's own final norm and head.

n predicted tokens, V tokens of the vocabulary, k candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..config import JSONObject, ProgressCallback
from ..errors import Error, NonFinite
from ..former import Former
from ..nn.block import BlockStack
from ..text.tokenizer import Tokenizer
from ..verbs import LM_PARTS, can_fill
from .document import round_floats
from .effort import estimate_logits, estimate_pass, is_cheap
from .recording import (
    QUERY_STREAM,
    Recording,
    find_final_norm,
    is_all_finite,
    record_blocks,
    record_pass,
    repeat_document,
)
from .sides import TextInputs

Method = Literal["causal", "masked", "unmasked", "permutation", "labels"]
TOP_CANDIDATES = 5
LENS_CANDIDATES = ((64, 3), (256, 2))  # up to so many positions, a layer shows so many candidates; of more, one
ROW_TOKENS = 4096  # tokens of the rows that are read at once
LOGITS_CHUNK = 64  # positions whose logits are held at once: few enough for a cache


@dataclass(frozen=True)
class Candidate:
    """A token that is predicted, and its probability."""

    id: int
    text: str
    probability: float

    def to_dict(self) -> JSONObject:
        """Return the candidate as the view document has it."""
        return {"text": self.text, "id": self.id, "p": round_floats(self.probability)}


@dataclass(frozen=True)
class LayerPrediction:
    """What the head reads off one layer: candidates, the probability (n,) of the right tokens, the divergence (n,) of
    the last layer from it in bits, and (n,) whether the likeliest token is another than a layer before."""

    layer: int  # 0: the embeddings
    top: list[list[Candidate]]
    probability: Tensor
    kl_to_final: Tensor
    is_changed: Tensor


@dataclass(frozen=True)
class Prediction:
    """The predicted tokens of a side: token `targets[i]` is predicted from position `positions[i]`.

    A masked model predicts each token with it hidden ("masked"), or reads the text as it is ("unmasked"). The head of a
    task gives `labels` for a text, or candidates for each token.
    """

    side: str
    method: Method
    positions: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    log_probs: Tensor = field(default_factory=lambda: torch.zeros(0))  # (n,) natural logarithms; NaN for a blank
    top: list[list[Candidate]] = field(default_factory=list)
    next: list[Candidate] = field(default_factory=list)  # what comes after the last token
    layers: list[LayerPrediction] = field(default_factory=list)
    labels: list[Candidate] = field(default_factory=list)

    @property
    def surprisal(self) -> Tensor:
        """Surprisal (n,) in bits: -log₂ p."""
        return -self.log_probs / math.log(2)

    def to_dict(self) -> JSONObject:
        """Return the prediction as the view document has it."""
        document: JSONObject = {"side": self.side, "method": self.method, "positions": self.positions}
        document["top"] = describe_candidates(self.top)
        if self.method == "labels":
            return document | ({"labels": [one.to_dict() for one in self.labels]} if self.labels else {})
        document |= {
            "targets": self.targets, "probability": round_floats(self.log_probs.exp()),
            "surprisal": round_floats(self.surprisal),
        }  # fmt: skip
        if self.next:
            document["next"] = [one.to_dict() for one in self.next]
        if self.layers:
            document["layers"] = [
                {
                    "layer": one.layer, "top": describe_candidates(one.top),
                    "probability": round_floats(one.probability), "kl_to_final": round_floats(one.kl_to_final),
                    "changed": one.is_changed.tolist(),
                }
                for one in self.layers
            ]  # fmt: skip
        return document


def describe_candidates(rows: list[list[Candidate]]) -> list[list[JSONObject]]:
    """Describe the candidates of each position."""
    return [[one.to_dict() for one in row] for row in rows]


def get_lm_part(former: Former) -> str | None:
    """Return the part of the head that predicts tokens, if there is one."""
    part = LM_PARTS.get(former.head.split("@")[0].split("+")[0])
    return part if part in former.model.parts else None


@torch.inference_mode()
def predict_tokens(
    former: Former, inputs: TextInputs, masked: bool | None = None, recording: Recording | None = None, *,
    with_layers: bool | None = True, tell: ProgressCallback | None = None,
) -> Prediction | None:  # fmt: skip
    """Predict the tokens of a text, or the labels of a task; None where the model has no head.

    `masked` says whether a masked model hides each token in turn, which reads the text as often as it has tokens;
    `with_layers`, whether every layer predicts. None: where the model and the text are small enough. A `recording` of
    the text (with hidden states) is not made again.
    """
    part = get_lm_part(former)
    if part is None:
        return predict_labels(former, inputs, recording or record_pass(former, inputs, with_hidden=True))
    length = len(inputs.label_ids)
    reader = LayerReader(former, part, with_layers if can_read_layers(former, part) else False, tell)
    if can_fill(former) and (is_cheap(former, estimate_pass(former, inputs) * length) if masked is None else masked):
        return predict_hidden(inputs, reader)
    if former.is_two_stream:
        order = torch.arange(length, device=former.device)
        return predict_in_order(inputs, reader, record_pass(former, inputs, order))
    recording = recording or record_pass(former, inputs, with_hidden=True)
    predict = predict_unmasked if can_fill(former) else predict_in_order
    return predict(inputs, reader, recording)


def predict_in_order(inputs: TextInputs, reader: LayerReader, recording: Recording) -> Prediction:
    """Predict each token from those before it: decoders, encoder-decoders, ELMo forwards, XLNet's second stream."""
    side, former = inputs.main_side, reader.former
    length, two_stream = len(inputs.label_ids), former.is_two_stream
    positions = list(range(length)) if two_stream else list(range(length - 1))
    targets = positions if two_stream else [at + 1 for at in positions]
    is_known = [inputs.label_ids[at] >= 0 for at in targets]
    positions = [at for at, known in zip(positions, is_known, strict=True) if known]
    targets = [at for at, known in zip(targets, is_known, strict=True) if known]
    name = QUERY_STREAM if two_stream else "decoder" if "decoder" in recording.states else "encoder"
    slots = torch.tensor(positions, dtype=torch.long, device=former.device)
    layers = [x[slots] for x in recording.states.get(name, [])]
    labels = torch.tensor([inputs.label_ids[at] for at in targets], device=former.device)
    rows = reader.score(recording.hidden[slots], layers, labels)
    following: list[Candidate] = []
    if not two_stream and not former.definition.reads_characters:
        logits = compute_logits(former, recording.hidden[-1:], reader.part)
        following = list_candidates(former, logits.log_softmax(-1), TOP_CANDIDATES)[0]
    return Prediction(
        side, "permutation" if two_stream else "causal", positions, targets, rows.log_probs, rows.top, following,
        rows.layers,
    )  # fmt: skip


def find_masked_positions(former: Former, inputs: TextInputs) -> tuple[list[int], Tensor, int]:
    """Find the tokens that a masked model predicts, blanks included: positions, labels (n,), and the mask's id."""
    mask = None if former.tokenizer is None else former.tokenizer.id("mask")
    if mask is None:
        raise Error("this model has no mask token", fix="load it with its tokenizer")
    tokens = inputs.sides["text"].tokens
    positions = [i for i, token in enumerate(tokens) if not token.is_special or token.id == mask]
    return positions, torch.tensor(inputs.label_ids, device=former.device)[positions], mask


def predict_unmasked(inputs: TextInputs, reader: LayerReader, recording: Recording) -> Prediction:
    """Predict the tokens of a masked model with nothing hidden but the blanks of the text."""
    positions, labels, mask = find_masked_positions(reader.former, inputs)
    states = next(iter(recording.states.values()), [])
    rows = reader.score(recording.hidden[positions], [x[positions] for x in states], labels)
    log_probs = rows.log_probs.masked_fill(labels.cpu() == mask, math.nan)
    return Prediction("text", "unmasked", positions, positions, log_probs, rows.top, [], rows.layers)


def predict_hidden(inputs: TextInputs, reader: LayerReader) -> Prediction:
    """Predict each token of a masked model with it hidden, one at a time (pseudo-log-likelihood: Salazar et al. 2020,
    arXiv:1910.14659)."""
    former = reader.former
    positions, labels, mask = find_masked_positions(former, inputs)
    batch, length = inputs.get_batch(), len(inputs.label_ids)
    rows, hidden, states = max(1, ROW_TOKENS // length), [], list[list[Tensor]]()
    for low in range(0, len(positions), rows):
        some = torch.tensor(positions[low : low + rows], device=former.device)
        slots = torch.arange(len(some), device=former.device) * length + some
        repeated = repeat_document(batch, len(some))
        repeated.ids[slots] = mask
        with record_blocks(former.model.body) as recording:
            hidden.append(former.model(repeated)[slots])
        states.append([x[slots] for x in next(iter(recording.values()), [])])
        if reader.tell is not None:
            reader.tell("hidden tokens", min(low + rows, len(positions)), len(positions), "")
    layers = [torch.cat(parts) for parts in zip(*states, strict=True)]
    scored_rows = reader.score(torch.cat(hidden), layers, labels)
    log_probs = scored_rows.log_probs.masked_fill(labels.cpu() == mask, math.nan)
    return Prediction("text", "masked", positions, positions, log_probs, scored_rows.top, [], scored_rows.layers)


def can_read_layers(former: Former, part: str) -> bool:
    """Return whether the head can read every layer: they have the width of the last, which the head reads alone."""
    has_stack = any(isinstance(module, BlockStack) for module in former.model.body.modules())
    return former.model.parts[part].mix is None and (has_stack or former.definition.reads_characters)


@dataclass(frozen=True)
class LayerScores:
    """The last layer's log-probabilities (n,) and candidates, and those of every layer."""

    log_probs: Tensor
    top: list[list[Candidate]]
    layers: list[LayerPrediction]


@dataclass(frozen=True)
class LayerReader:
    """Reads predictions off hidden states by the part of the head that predicts tokens; `reads_layers` says whether
    off those of every layer too (None: where they are few enough)."""

    former: Former
    part: str
    reads_layers: bool | None = True
    tell: ProgressCallback | None = None

    def score(self, hidden: Tensor, layers: list[Tensor], labels: Tensor) -> LayerScores:
        """Score labels (n,) by hidden states (n, dim) that the head reads, and by those of layers, which are normed by
        the model's final norm first."""
        is_small = is_cheap(self.former, estimate_logits(self.former, len(labels) * len(layers)))
        layers = layers if self.reads_layers or (self.reads_layers is None and is_small) else []
        norm = find_final_norm(self.former.model.body)
        few = next((count for limit, count in LENS_CANDIDATES if len(labels) <= limit), 1)
        log_probs, top = [], list[list[Candidate]]()
        parts: list[list[tuple[Tensor, Tensor, list[list[Candidate]]]]] = [[] for _ in layers]
        for low in range(0, len(labels), LOGITS_CHUNK):
            at = slice(low, low + LOGITS_CHUNK)
            final = compute_logits(self.former, hidden[at], self.part).log_softmax(-1)
            log_probs.append(final.gather(1, labels[at, None])[:, 0])
            top += list_candidates(self.former, final, TOP_CANDIDATES)
            chances = final.exp() if layers else final
            for number, states in enumerate(layers):
                x = states[at] if norm is None else norm(states[at])
                scores = compute_logits(self.former, x, self.part).log_softmax(-1)
                divergence = (chances * (final - scores)).sum(-1) / math.log(2)
                row_candidates = list_candidates(self.former, scores, few)
                own = scores.gather(1, labels[at, None])[:, 0].exp()
                parts[number].append((own, divergence.clamp(min=0), row_candidates))
            if self.tell is not None and layers:
                self.tell("predictions by layer", min(low + LOGITS_CHUNK, len(labels)), len(labels), "")
        layer_rows, before = [], list[int]()
        for number, chunks in enumerate(parts):
            if not chunks:
                continue
            candidates = [row for _, _, rows in chunks for row in rows]
            best = [row[0].id for row in candidates]
            is_changed = torch.tensor([a != b for a, b in zip(best, before or best, strict=True)])
            before = best
            chance = torch.cat([one for one, _, _ in chunks]).cpu()
            divergence = torch.cat([bits for _, bits, _ in chunks]).cpu()
            layer_rows.append(LayerPrediction(number, candidates, chance, divergence, is_changed))
        whole = torch.cat(log_probs).cpu() if log_probs else torch.zeros(0)
        return LayerScores(whole, top, layer_rows)


def compute_logits(former: Former, hidden: Tensor, part: str) -> Tensor:
    """Compute what the head answers to hidden states (n, dim), as (n, V); of ELMo's two directions, the next word."""
    logits = former.model.logits(hidden, part=part).float()
    logits = logits[:, 0] if logits.dim() == 3 else logits
    if not is_all_finite(logits):
        raise NonFinite("logits")
    return logits


def list_candidates(former: Former, log_probs: Tensor, count: int) -> list[list[Candidate]]:
    """List the likeliest tokens of each row (n, V)."""
    tokenizer = former.output_tokenizer
    size = log_probs.shape[-1] if tokenizer is None else min(len(tokenizer), log_probs.shape[-1])
    best = log_probs[:, :size].topk(min(count, size), -1)
    rows = zip(best.values.exp().tolist(), best.indices.tolist(), strict=True)
    return [[Candidate(i, name_token(tokenizer, i), p) for p, i in zip(*row, strict=True)] for row in rows]


def name_token(tokenizer: Tokenizer | None, index: int) -> str:
    """Return a token as a person reads it; its number where there is no tokenizer."""
    return str(index) if tokenizer is None else tokenizer.get_token_text(index) or str(index)


def predict_labels(former: Former, inputs: TextInputs, recording: Recording) -> Prediction | None:
    """Predict what the head of a task answers: labels of the text, or of each token; None without a head."""
    name, part = next(((n, p) for n, p in former.model.parts.items() if p.out is not None), (None, None))
    if name is None or part is None or former.head == "beam":
        return None
    side = inputs.main_side
    batch = inputs.get_batch()
    batch = batch.replace(sample=torch.zeros(1))  # a text without an end mark is read as in the task's own batches
    logits = former.model.logits(recording.hidden, batch, name).float()
    if not bool(logits.isfinite().all()):
        raise NonFinite("logits")
    width = logits.shape[-1]
    names = list(former.labels) if len(former.labels) == width else [str(i) for i in range(width)]
    if part.spec.pool is not None:
        is_many = former.task.get("kind") == "many"
        chances = logits[0] if width == 1 else logits[0].sigmoid() if is_many else logits[0].softmax(-1)
        return Prediction(side, "labels", labels=rank_labels(names, chances))
    if name == "answer":  # where an answer begins and ends, over the tokens
        names, chances = ["start", "end"], logits.softmax(0)
    else:
        chances = logits.softmax(-1)
    rows = [rank_labels(names, row)[:TOP_CANDIDATES] for row in chances]
    return Prediction(side, "labels", list(range(len(rows))), top=rows)


def rank_labels(names: list[str], chances: Tensor) -> list[Candidate]:
    """List labels with their probabilities, the likeliest first."""
    order = chances.argsort(descending=True, stable=True).tolist()
    return [Candidate(i, names[i], float(chances[i])) for i in order]
