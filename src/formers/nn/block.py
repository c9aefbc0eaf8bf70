"""The block in its three orders, and stacks of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import Attention
from .cache import direct
from .door import Sight
from .dropout import Dropout
from .norms import add_norm

Order = Literal["pre", "post", "parallel"]


class Block(nn.Module):
    """Attention, cross attention (if any) and feed-forward, each with a residual connection.

    pre       x = x + attn(norm(x));  x = x + ff(norm(x))      GPT-2, BLOOM, T5
    post      x = norm(x + attn(x));  x = norm(x + ff(x))      Transformer, GPT-1, BERT, BART
    parallel  x = x + attn(norm(x)) + ff(norm′(x))             GPT-NeoX; GPT-J, where norm′ is norm
    """

    def __init__(
        self,
        attn: Attention,
        ff: nn.Module,
        norm: Callable[[], nn.Module],
        *,
        order: Order = "pre",
        cross: Attention | None = None,
        shared_norm: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.attn, self.cross, self.ff, self.order = attn, cross, ff, order
        self.attn_norm = norm()
        self.cross_norm = None if cross is None else norm()
        self.ff_norm = self.attn_norm if shared_norm else norm()
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sight: Sight, view: Sight | None = None, layer: int = 0) -> Tensor:
        """(N, dim) → (N, dim); `view` is the sight of the cross attention."""
        held = None if sight.recall is None else sight.recall.recall(layer, x[: sight.query.total])
        if held is not None and self.order != "post":
            held = self.attn_norm(held)  # what is remembered is what the layer was given, before its norm
        if self.order == "parallel":
            attended = self.attn(self.attn_norm(x), sight, layer, held)
            return x + self.dropout(attended) + self.dropout(self.ff(self.ff_norm(x)))
        few = stepwise(self, sight)
        x = self.add(x, self.attn_norm, lambda n: self.attn(n, sight, layer, held), few)
        if self.cross is not None and view is not None:
            cross, norm = self.cross, cast(nn.Module, self.cross_norm)
            x = self.add(x, norm, lambda n: cross(n, view, layer), few)
        routed = getattr(self.ff, "routed", False)  # experts have to know the documents
        return self.add(x, self.ff_norm, (lambda n: self.ff(n, sight)) if routed else self.ff, few)

    def step(
        self, x: Tensor, normed: Tensor, sight: Sight, view: Sight | None, layer: int, after: nn.Module | None
    ) -> tuple[Tensor, Tensor]:
        """The same of a pre-norm block for reading alone, each sum together with the norm that comes behind it: x goes
        in with its own norm, and comes out with that of the next block, `after`."""
        y = self.attn(normed, sight, layer)
        if self.cross is not None and view is not None:
            x, normed = add_norm(x, y, cast(nn.Module, self.cross_norm))
            y = self.cross(normed, view, layer)
        x, normed = add_norm(x, y, self.ff_norm)
        y = self.ff(normed, sight) if getattr(self.ff, "routed", False) else self.ff(normed)
        return (x + y, x) if after is None else add_norm(x, y, after)

    def add(self, x: Tensor, norm: nn.Module, layer: Callable[[Tensor], Tensor], few: bool = False) -> Tensor:
        """One residual connection, with the norm before the layer or after the sum."""
        if self.order == "post":
            y = self.dropout(layer(x))
            return add_norm(x, y, norm)[1] if few else norm(x + y)
        return x + self.dropout(layer(norm(x)))


class Stack(nn.ModuleList):
    """Blocks run one after the other; `order` names the block of each layer, so that layers can share one (ALBERT)."""

    def __init__(self, blocks: Iterable[nn.Module], order: Sequence[int] | None = None):
        super().__init__(blocks)
        self.order = tuple(range(len(self)) if order is None else order)
        self.checkpointing = False  # in training, compute a block's inner values again instead of keeping them

    def forward(self, x: Tensor, sights: Sight | Sequence[Sight], view: Sight | None = None) -> Tensor:
        """(N, dim) → (N, dim); one sight for all layers, or one for each."""
        first = sights if isinstance(sights, Sight) else sights[0]
        if stepwise(self, first) and all(isinstance(block, Block) and block.order == "pre" for block in self):
            return self.steps(x, sights, view)
        for layer, index in enumerate(self.order):
            sight = sights if isinstance(sights, Sight) else sights[layer]
            if sight.probe is not None:
                sight.probe.state(sight.kind, x[: sight.query.total])  # XLNet's second stream lies behind the first
            twice = self.checkpointing and self.training and torch.is_grad_enabled()
            x = self.twice(index, x, sight, view, layer) if twice else self[index](x, sight, view, layer)
        return x

    def steps(self, x: Tensor, sights: Sight | Sequence[Sight], view: Sight | None) -> Tensor:
        """The same with fewer kernels: a sum and the norm behind it are one."""
        blocks = [cast(Block, self[index]) for index in self.order]
        afters = [block.attn_norm for block in blocks[1:]] + [None]
        normed = blocks[0].attn_norm(x)
        for layer, (block, after) in enumerate(zip(blocks, afters, strict=True)):
            sight = sights if isinstance(sights, Sight) else sights[layer]
            x, normed = block.step(x, normed, sight, view, layer, after)
        return x

    def twice(self, index: int, x: Tensor, sight: Sight, view: Sight | None, layer: int) -> Tensor:
        """One block, whose inner values the backward pass computes again: then the memory has long gone on, and what
        the layers share of a learned bias is not theirs alone."""
        if sight.recall is None and not isinstance(sight.bias, nn.Module):
            return checkpoint(self[index], x, sight, view, layer, use_reentrant=False)
        apart = sight.apart()
        x = checkpoint(lambda x: self[index](x, apart.anew(), view, layer), x, use_reentrant=False)
        if sight.recall is not None and apart.recall is not None:
            sight.recall.note(apart.recall)
        return x


@torch.no_grad()
def scale_residual_branches(model: nn.Module, factor: float) -> None:
    """Multiply the last matrix of every residual branch of the post-norm blocks by a factor, in place.

    A deep post-norm stack whose branches begin as strong as its input forgets the input within a few layers, and then
    learns nothing but token frequencies (Liu et al. 2020, arXiv:2004.08249; Wang et al. 2022, arXiv:2203.00555).
    """
    for block in model.modules():
        if isinstance(block, Block) and block.order == "post":
            for branch in (block.attn.o, block.cross and block.cross.o, getattr(block.ff, "down", None)):
                if branch:
                    branch.weight.mul_(factor)


def stepwise(module: nn.Module, sight: Sight) -> bool:
    """Whether this is a step of one token in each row, for reading alone, on a GPU, where nobody looks on."""
    still = not module.training and not torch.is_grad_enabled() and sight.probe is None and sight.recall is None
    return still and direct(sight.query)
