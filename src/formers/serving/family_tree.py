"""The family as the playground draws it: each member's facts, and the structure of its layers for a diagram."""

from __future__ import annotations

import functools
import re
import threading

from torch import nn

from .. import former as former_module
from .. import registry
from ..config import JSONObject
from ..inspection.recording import get_model_kind
from ..nn.attention.attention import Attention
from ..nn.attention.masks import AlibiBias, causal
from ..nn.attention.positions import BucketBias
from ..nn.attention.two_stream import TwoStreamAttention
from ..nn.block import Block, BlockStack
from ..nn.encoder_decoder import EncoderDecoder, RecurrentEncoderDecoder
from ..nn.experts import Experts
from ..nn.layers import Embeddings, FeedForward
from ..nn.recurrent.alignment import Alignment
from ..nn.recurrent.convolution import CharacterCNN, PackedConv
from ..nn.recurrent.projected_lstm import ProjectedLSTM
from ..nn.recurrent.rnn import RecurrentLayer

ONE_AT_A_TIME = threading.Lock()


def describe_family() -> JSONObject:
    """Describe all members: what their files say, the sizes of their presets, and a diagram each.

    This takes seconds, but only once: every preset is built, without memory for its weights. Two threads must not do it
    at the same time, since Python 3.11's parser fails when it is used in both.
    """
    with ONE_AT_A_TIME:
        return build_description()


@functools.cache
def build_description() -> JSONObject:
    """Build the description of the family."""
    members = []
    for row in former_module.tree():
        entry = registry.FAMILIES[row["name"]]
        presets = [{"name": name, "parameters": size["parameters"]} for name, size in row["presets"].items()]
        facts = {**row, "help": entry.help, "new": split_points(row["new"]), "presets": presets}
        facts["korean"] = entry.card.korean
        members.append({**facts, **describe_structure(row["name"])})
    return {"members": members}


def split_points(text: str) -> list[str]:
    """Split "1. this 2. that" into its points."""
    text = re.sub(r"\s*\([^()]*\.py[^()]*\)", "", text)  # the files of the code are nothing that the page could show
    points = [part.strip(" ;") for part in re.split(r"(?:^|\s)\d\. ", text)]
    return [point for point in points if point]


def describe_structure(family: str) -> JSONObject:
    """Describe a member's default model: its kind, and for each side what it reads and what one layer holds."""
    definition = registry.FAMILIES[family].definition
    config = definition.config_class()
    model = former_module.build_empty(family, config, definition.counted_head)
    body = model.model.body
    if isinstance(body, EncoderDecoder):
        sides = (("encoder", body.embed, body.encoder), ("decoder", body.target or body.embed, body.decoder))
        stacks = [describe_stack(name, embed, side.blocks, side) for name, embed, side in sides if side is not None]
    elif (blocks := next((part for part in body.children() if isinstance(part, BlockStack)), None)) is not None:
        name = "decoder" if get_model_kind(model) == "decoder" else "encoder"
        stacks = [describe_stack(name, body.embed, blocks, body)]
    elif isinstance(body, RecurrentEncoderDecoder):
        stacks = [describe_layers(name, body.get_submodule(name)) for name in ("encoder", "decoder")]
    else:
        stacks = [describe_layers("body", body)]
    return {"kind": get_model_kind(model), "diagram": {"stacks": stacks, "output": definition.pretraining_head}}


def describe_stack(name: str, embed: nn.Module, blocks: BlockStack, side: nn.Module) -> JSONObject:
    """Describe one side of Transformer blocks; neighbours that are alike are counted."""
    groups: list[JSONObject] = []
    mask = getattr(side, "mask", None)  # dynamic: the side of an encoder-decoder has one mask for all of its layers
    masks = getattr(side, "masks", None) or (mask,)  # dynamic: a body has a mask for each, if any
    for layer, index in enumerate(blocks.layer_order):
        block = blocks[index]
        assert isinstance(block, Block)
        mask = masks[layer % len(masks)]
        group = {"order": block.norm_order, "parts": list_parts(block, mask, name == "decoder"), "count": 1}
        if groups and all(groups[-1][key] == group[key] for key in ("order", "parts")):
            groups[-1]["count"] += 1
        else:
            groups.append(group)
    if len(groups) > 2 and all(group["parts"] == groups[i % 2]["parts"] for i, group in enumerate(groups)):
        groups = [{**groups[i], "count": sum(g["count"] for g in groups[i::2])} for i in (0, 1)]
    has_norm = getattr(side, "norm", None) is not None  # dynamic: a class of the family's own may have none
    return {
        "name": name, "input": list_inputs(embed), "groups": groups, "layers": len(blocks.layer_order),
        "is_shared": len(blocks) < len(blocks.layer_order), "has_norm": has_norm,
        "positions": name_positions(embed, blocks, side),
    }  # fmt: skip


def list_parts(block: Block, mask: object, is_decoder: bool) -> list[str]:
    """List the sub-layers of a block in their order; a mask of another kind than causal is a local one."""
    attention = "local attention" if mask not in (None, causal) else "causal attention" if is_decoder else "attention"
    attention = "two-stream attention" if isinstance(block.attn, TwoStreamAttention) else attention
    is_gated = isinstance(block.ff, FeedForward) and block.ff.gate is not None
    ff = "experts" if isinstance(block.ff, Experts) else "gated feed-forward" if is_gated else "feed-forward"
    return [attention, *(["cross attention"] if block.cross is not None else []), ff]


def list_inputs(embed: nn.Module) -> list[str]:
    """List what is added up before the first layer, and what follows it. A single segment (RoBERTa's) is left out: it
    adds the same to every token."""
    if isinstance(embed, CharacterCNN):
        return ["characters", "convolution"]
    if not isinstance(embed, Embeddings):
        return ["tokens"]
    segments = embed.segment if embed.segment is not None and embed.segment.num_embeddings > 1 else None
    names = [("positions", embed.position or embed.sinusoids), ("segments", segments), ("tasks", embed.task)]
    added = ["tokens", *(name for name, part in names if part is not None)]
    return [*added, *(["norm"] if embed.norm is not None else []), *(["projection"] if embed.up is not None else [])]


def name_positions(embed: nn.Module, blocks: BlockStack, side: nn.Module) -> str:
    """Name the way in which order reaches the model."""
    attention = next(part for part in blocks.modules() if isinstance(part, Attention))
    bias = getattr(side, "bias", None)  # dynamic: a class of the family's own may have none
    if attention.rotary is not None:
        return "rotary"
    if isinstance(bias, AlibiBias):
        return "ALiBi"
    if isinstance(bias, BucketBias):
        return "relative buckets"
    if attention.relative is not None:
        return "relative"
    if isinstance(embed, Embeddings):
        return "sinusoidal" if embed.sinusoids is not None else "learned" if embed.position is not None else "none"
    return "none"


def describe_layers(name: str, side: nn.Module) -> JSONObject:
    """Describe a side that is no stack of blocks: recurrent layers, convolutions, or a table of vectors."""
    parts: list[str] = []
    for module in side.modules():
        if isinstance(module, RecurrentLayer | ProjectedLSTM):
            parts.append("recurrent layer")
        elif isinstance(module, PackedConv):
            parts += ["convolution", "max over time"]
    counts = [{"order": "plain", "parts": [part], "count": parts.count(part)} for part in dict.fromkeys(parts)]
    layers = max((parts.count(part) for part in parts), default=0)
    if any(isinstance(module, Alignment) for module in side.modules()):
        counts.append({"order": "plain", "parts": ["alignment"], "count": 1})
    inputs = list_inputs(getattr(side, "embed", nn.Identity()))  # dynamic: a side may share the body's embeddings
    return {
        "name": name, "input": inputs, "groups": counts, "layers": layers, "is_shared": False,
        "has_norm": False, "positions": "none",
    }  # fmt: skip
