"""Pruning of attention heads: the weights shrink, and outputs equal those of masked heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from ..config import format_value
from ..errors import Error
from .attention.attention import Attention
from .attention.positions import RelativeScores
from .block import Block, BlockStack, TransformerBody
from .encoder_decoder import TransformerStack


def find_attentions(body: nn.Module) -> dict[tuple[str, int], tuple[str, Attention]]:
    """Find every attention of a body by stack and layer, with its module's name; layers may share one (ALBERT)."""
    attentions: dict[tuple[str, int], tuple[str, Attention]] = {}
    for path, stack in body.named_modules():
        if not isinstance(stack, BlockStack):
            continue
        side = body.get_submodule(path.rpartition(".")[0])
        kind = side.stack_name if isinstance(side, TransformerBody | TransformerStack) else "decoder"
        for layer, index in enumerate(stack.layer_order):
            block = cast(Block, stack[index])
            attentions[kind, layer] = f"{path}.{index}.attn", block.attn
            if block.cross is not None:
                attentions["cross", layer] = f"{path}.{index}.cross", block.cross
    return attentions


def prune_heads(body: nn.Module, pruned: Iterable[str]) -> None:
    """Remove heads, each named "stack.layer.head", from a body in place."""
    known, gone = find_attentions(body), dict[str, set[int]]()
    for entry in pruned:
        kind, layer, head = parse_head_name(entry)
        if (kind, layer) not in known:
            stacks = sorted({kind for kind, _ in known})
            if not known:
                raise Error("this model has no attention heads to prune", fix="leave pruned out")
            ranges = ", ".join(f"{s} 0 to {max(n for k, n in known if k == s)}" for s in stacks)
            raise Error(f"there is no layer {layer} of attention in the {kind}", fix=f"it has {ranges}")
        name, module = known[kind, layer]
        if not 0 <= head < module.original_heads:
            raise Error(f"layer {layer} has no head {head}", fix=f"its heads are 0 to {module.original_heads - 1}")
        gone.setdefault(name, set()).add(head)
    modules = dict(known.values())
    left = {name: [h for h in get_kept_heads(modules[name]) if h not in heads] for name, heads in gone.items()}
    for name, kept in left.items():
        if not kept:
            raise Error(f"no head of {name} would be left", fix="keep one, or take the layer out")
    for name, kept in left.items():  # only now: a refusal leaves the model as it was
        keep_heads(modules[name], kept)


def get_kept_heads(module: Attention) -> Iterable[int]:
    """Return the numbers of an attention's heads that are left."""
    return module.kept_heads or range(module.original_heads)


def parse_head_name(entry: str) -> tuple[str, int, int]:
    """Parse "decoder.0.3": stack, layer, head."""
    kind, *numbers = entry.split(".")
    if len(numbers) != 2 or not all(n.isdecimal() and len(n) < 6 for n in numbers):
        raise Error(f"pruned: {entry!r} is not a head", fix='write "decoder.0.3" for stack, layer, head')
    return kind, int(numbers[0]), int(numbers[1])


def format_head_names(heads: object, stacks: Iterable[str]) -> list[str]:
    """Return the names of heads given as {layer: [heads]} or {stack: {layer: [heads]}}."""
    stacks = list(stacks)
    if not stacks:
        raise Error("this model has no attention heads to prune", fix="choose a model with multi-head attention")
    by_stack = f"prune({{{stacks[0]!r}: {{0: [1]}}}})"
    what = f"{format_value(heads)} does not say which heads of which layers"
    wrong = Error(what, fix=f"prune({{0: [1]}}), or {by_stack}")
    if not isinstance(heads, Mapping):
        raise wrong
    nested = any(isinstance(value, Mapping) for value in heads.values())
    if not nested and len(stacks) > 1:
        raise Error("say which stack: heads are pruned by stack", fix=by_stack)
    table = heads if nested else {stacks[0]: heads}
    if not all(isinstance(layers, Mapping) for layers in table.values()):
        raise wrong
    rows = [(f"{kind}.{layer}", row) for kind, layers in table.items() for layer, row in layers.items()]
    if not all(isinstance(row, list | tuple | set | range) for _, row in rows):
        raise wrong
    return [f"{layer}.{head}" for layer, row in rows for head in row]


@torch.no_grad()
def keep_heads(module: Attention, kept_heads: list[int]) -> None:
    """Keep some of an attention's heads; their position biases keep their values."""
    at = torch.tensor([list(get_kept_heads(module)).index(h) for h in kept_heads])
    for name, parts in module.get_head_parts().items():
        old = module.get_parameter(name)
        new = select_head_weights(old, parts, module.heads, at)
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, nn.Parameter(new, requires_grad=old.requires_grad))
    module.heads, module.kept_heads = len(kept_heads), tuple(kept_heads)
    if isinstance(module.relative, RelativeScores):  # its own weights stay whole
        module.relative.kept_heads = module.kept_heads


def select_head_weights(t: Tensor, parts: int, heads: int, at: Tensor) -> Tensor:
    """Select heads of a weight whose rows (parts > 0) or columns (parts = 0) are heads."""
    if not parts:
        return t.unflatten(1, (heads, -1)).index_select(1, at.to(t.device)).flatten(1)
    return t.unflatten(0, (parts, heads, -1)).index_select(1, at.to(t.device)).flatten(0, 2)


@torch.no_grad()
def restore_full_shapes(body: nn.Module, tensors: Mapping[str, Tensor], prefix: str = "body.") -> dict[str, Tensor]:
    """Return a pruned body's tensors in full shape, with zeros for removed heads, which then contribute nothing."""
    full = dict(tensors)
    for path, module in dict(find_attentions(body).values()).items():
        if module.kept_heads is None:
            continue
        at = torch.tensor(module.kept_heads)
        for name, parts in module.get_head_parts().items():
            t, key = module.get_parameter(name), f"{prefix}{path}.{name}"
            if parts:
                shaped = t.unflatten(0, (parts, module.heads, -1))
                wide = shaped.new_zeros(parts, module.original_heads, *shaped.shape[2:])
                full[key] = wide.index_copy(1, at.to(t.device), shaped).flatten(0, 2)
            else:
                shaped = t.unflatten(1, (module.heads, -1))
                wide = shaped.new_zeros(shaped.shape[0], module.original_heads, shaped.shape[2])
                full[key] = wide.index_copy(1, at.to(t.device), shaped).flatten(1)
    return full
