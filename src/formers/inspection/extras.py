"""What only some families have: TextCNN's strongest n-grams, the layers that a task mixes (ELMo), the experts that
tokens are routed to (Switch), and what a model knows of positions.

T tokens, H heads.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch
from ..config import JSONObject
from ..former import Former
from ..models.textcnn import TextCNN
from ..nn.attention.attention import Attention
from ..nn.attention.masks import DistanceBias
from ..nn.attention.positions import RelativeScores, RotaryEmbedding, SinusoidalPositions
from ..nn.block import Block, TransformerBody
from ..nn.encoder_decoder import EncoderDecoder, TransformerStack
from ..nn.experts import Experts
from ..nn.layers import Embeddings, ScalarMix
from .document import encode_floats, round_floats
from .recording import Recording, find_stacks
from .sides import TextInputs

MAX_NGRAMS = 30
MAX_DISTANCE = 64  # tokens on either side, of a map by distance
MAX_MAP_POSITIONS = 64


@dataclass(frozen=True)
class Ngram:
    """The words at which one of TextCNN's filters answers most, and how much: the maximum that the classifier reads,
    and what it adds to the likeliest label."""

    filter: int
    width: int
    text: str
    start: int  # characters
    end: int
    first: int  # tokens, both included
    last: int
    score: float
    contribution: float | None


@dataclass(frozen=True)
class Routing:
    """The expert of each token in one layer, its probability (T,), and (T,) whether the expert had no room for it."""

    side: str
    layer: int
    num_experts: int
    experts: Tensor
    probability: Tensor
    is_dropped: Tensor


@dataclass(frozen=True)
class PositionMap:
    """What a model knows of positions: how alike the vectors of two positions are (T, T), or by distance key - query
    what is added to a score, or how alike two rotations are, (layers or 1, H, distances)."""

    side: str
    kind: str  # similarity, bias, rotation
    name: str
    values: Tensor
    distances: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Extras:
    """The views of single families; a part that the family does not have is empty."""

    ngrams: list[Ngram] = field(default_factory=list)
    mix: list[float] = field(default_factory=list)  # the weight of each layer
    routing: list[Routing] = field(default_factory=list)
    positions: list[PositionMap] = field(default_factory=list)

    def to_dict(self) -> JSONObject:
        """Return what there is, as the view document has it."""
        document: JSONObject = {}
        if self.ngrams:
            document["ngrams"] = [
                asdict(one) | {"score": round_floats(one.score), "contribution": round_floats(one.contribution)}
                for one in self.ngrams
            ]
        if self.mix:
            document["mix"] = [{"layer": i, "weight": round_floats(weight)} for i, weight in enumerate(self.mix)]
        if self.routing:
            document["routing"] = [
                {
                    "side": one.side, "layer": one.layer, "experts": one.num_experts, "expert": one.experts.tolist(),
                    "probability": round_floats(one.probability), "dropped": one.is_dropped.tolist(),
                }
                for one in self.routing
            ]  # fmt: skip
        if self.positions:
            document["positions"] = [
                {"side": one.side, "kind": one.kind, "name": one.name, "values": encode_floats(one.values)}
                | ({"distances": one.distances} if one.distances else {})
                for one in self.positions
            ]
        return document


@torch.inference_mode()
def read_extras(former: Former, inputs: TextInputs, recording: Recording) -> Extras:
    """Read what the family has beside attention, predictions and states."""
    mixes = [part.mix for part in former.model.parts.values() if isinstance(part.mix, ScalarMix)]
    return Extras(
        find_ngrams(former, inputs, recording) if isinstance(former.model.body, TextCNN) else [],
        mixes[0].weight.float().softmax(0).tolist() if mixes else [],
        read_routing(former, inputs, recording),
        map_positions(former, inputs),
    )


def find_ngrams(former: Former, inputs: TextInputs, recording: Recording) -> list[Ngram]:
    """Find the n-grams at which TextCNN's filters answer most, the strongest first."""
    body, side = former.model.body, inputs.sides["text"]
    strength, where = recording.hidden.float().max(0)  # (sizes · filters,)
    effects = None
    if "classify" in former.model.parts:
        logits = former.model.logits(recording.hidden, inputs.get_batch(), "classify")
        weight = former.model.parts["classify"].get_parameter("out.weight").float()
        effects = (strength * weight[int(logits[0].argmax())]).tolist()
    each, ngrams = former.config.filters, []
    for number in strength.argsort(descending=True, stable=True).tolist()[:MAX_NGRAMS]:
        if float(strength[number]) <= 0:
            break
        width = body.convolutions.sizes[number // each]
        first = min(int(where[number]), max(0, len(side.tokens) - width))
        last = min(first + width, len(side.tokens)) - 1
        inside = [token for token in side.tokens[first : last + 1] if token.end > token.start]
        start, end = (inside[0].start, inside[-1].end) if inside else (0, 0)
        words = side.text[start:end] or " ".join(token.text for token in side.tokens[first : last + 1])
        effect = None if effects is None else effects[number]
        ngrams.append(Ngram(number, width, words, start, end, first, last, float(strength[number]), effect))
    return ngrams


def read_routing(former: Former, inputs: TextInputs, recording: Recording) -> list[Routing]:
    """Read which expert each token went to, in the order of the layers; an expert takes no more than its capacity."""
    batch, routing = inputs.get_batch(), []
    sides: dict[str, tuple[str, Batch]] = {"encoder": ("text", batch), "decoder": ("text", batch)}
    if batch.source is not None:
        sides = {"encoder": ("source", batch.source), "decoder": ("target", batch)}
    layers = [
        (name, layer, block.ff)
        for name, stack in sorted(find_stacks(former.model.body).items(), key=lambda item: item[0] != "encoder")
        for layer, block in enumerate(stack[i] for i in stack.layer_order)
        if isinstance(block, Block) and isinstance(block.ff, Experts)
    ]
    for (name, layer, experts), (probability, chosen) in zip(layers, recording.capture.routing or [], strict=True):
        side, read = sides[name]
        capacity = experts.compute_capacity(read.layout)[read.layout.document_ids]
        is_dropped = experts.count_earlier_choices(chosen, read.layout) >= capacity
        share = probability.gather(1, chosen[:, None])[:, 0]
        routing.append(Routing(side, layer, experts.num_experts, chosen.cpu(), share.float().cpu(), is_dropped.cpu()))
    return routing


def map_positions(former: Former, inputs: TextInputs) -> list[PositionMap]:
    """Map what a model knows of positions: of tables, sinusoids, biases by distance, rotations, relative scores."""
    body, maps = former.model.body, []
    for name, embed in (("embed", "text"), ("target", "target")):
        module = getattr(body, name, None)  # dynamic: a body of any family, some have no such embeddings
        side = embed if embed in inputs.sides else "source"
        if isinstance(module, Embeddings) and (embed == "text" or "target" in inputs.sides):
            maps += map_embedded_positions(module, side, len(inputs.sides[side].tokens))
    stacks: dict[str, TransformerBody | TransformerStack] = {"text": body} if isinstance(body, TransformerBody) else {}
    if isinstance(body, EncoderDecoder):
        pair = {"source" if "source" in inputs.sides else "text": body.encoder, "target": body.decoder}
        stacks = {side: stack for side, stack in pair.items() if stack is not None}
    for side, stack in stacks.items():
        if isinstance(stack.bias, DistanceBias):
            reach = range(-MAX_DISTANCE, MAX_DISTANCE + 1)
            bias = stack.bias.compute_distance_bias(reach[0], reach[-1] + 1, former.device).float().cpu()
            maps.append(PositionMap(side, "bias", type(stack.bias).__name__, bias[None], list(reach)))
    attentions = [module for module in body.modules() if isinstance(module, Attention)]
    if attentions and attentions[0].rotary is not None:
        maps.append(map_rotation(attentions[0].rotary, attentions[0].heads))
    maps += map_relative_scores(former, [a.relative for a in attentions if isinstance(a.relative, RelativeScores)])
    return maps


def map_embedded_positions(embed: Embeddings, side: str, length: int) -> list[PositionMap]:
    """Map how alike the vectors of positions are, of a learned table or of sinusoids."""
    count = min(length, MAX_MAP_POSITIONS)
    if embed.position is not None:
        rows, name = embed.position.weight[embed.position_offset : embed.position_offset + count], "learned"
    elif embed.sinusoids is not None:
        rows, name = embed.sinusoids(torch.arange(count)), "sinusoids"
    else:
        return []
    unit = F.normalize(rows.float().cpu(), dim=-1)
    return [PositionMap(side, "similarity", name, unit @ unit.T)]


def map_rotation(rotary: RotaryEmbedding, heads: int) -> PositionMap:
    """Map how alike two rotated vectors are by their distance: the mean cosine of the angles between them."""
    distances = list(range(-MAX_DISTANCE, MAX_DISTANCE + 1))
    cosine, _ = rotary.compute_angles(torch.tensor(distances))  # (distances, 1, pairs)
    values = cosine.mean(-1).T[None].expand(1, heads, -1).contiguous()
    return PositionMap("text", "rotation", "rotary", values, distances)


def map_relative_scores(former: Former, scores: list[RelativeScores]) -> list[PositionMap]:
    """Map what Transformer-XL and XLNet add to the score of any query by distance: v · W r(distance)."""
    if not scores:
        return []
    # Distances count from the query back: a causal model knows those before it, the others both sides.
    is_causal = not former.is_two_stream or former.config.causal
    back = torch.arange(0 if is_causal else -MAX_DISTANCE, MAX_DISTANCE + 1).flip(0)  # keys before the query first
    encodings = SinusoidalPositions(former.config.dim, halves=True)(back).to(former.device, former.dtype)
    layers = []
    for one in scores:
        keys = one.r(encodings).unflatten(-1, (one.heads, -1))  # (distances, H, D)
        layers.append(torch.einsum("hd,whd->hw", one.biases.v, keys).float().cpu())
    return [PositionMap("text", "bias", "relative", torch.stack(layers), (-back).tolist())]
