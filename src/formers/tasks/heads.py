"""Heads are built here, from the values that model files declare. Models + tasks, not models × tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..config import schema
from ..errors import Error
from ..family import Family, Head, Norm
from ..nn.feedforward import activation
from ..nn.mix import Mix
from ..nn.norms import LayerNorm
from ..nn.output import Output
from ..nn.probe import Probe
from ..nn.prune import prune

WIDTHS = {"answer": 2, "choose": 1, "nsp": 2}  # heads whose number of outputs is not a choice


class View(nn.Module):
    """What a head reads of the layers' states, nothing of it learnt (BERT, table 7): one layer, or the last four."""

    def __init__(self, pick: Callable[[Sequence[Tensor]], Tensor]):
        super().__init__()
        self.pick = pick

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """layers × (N, dim) → (N, dim), or four times as wide"""
        return self.pick(layers)


VIEWS: dict[str, Callable[[], View]] = {
    "last": lambda: View(lambda layers: layers[-1]),
    "second": lambda: View(lambda layers: layers[-2]),
    "sum4": lambda: View(lambda layers: torch.stack(list(layers[-4:])).sum(0)),
    "cat4": lambda: View(lambda layers: torch.cat(list(layers[-4:]), -1)),
}


def mixer(head: Head, config: Any) -> nn.Module | None:
    """What makes one state of the states of all layers, if a head wants it."""
    if head.mix is None:
        return None
    kind: Any = type(config)
    if "layers" not in schema(kind):
        raise Error("this model has no layers one above the other", fix="let its head read what it always does")
    layers = config.depth if head.decoder and hasattr(config, "depth") else config.layers
    if layers < (need := {"second": 2, "sum4": 4, "cat4": 4}.get(head.mix, 1)):
        raise Error(f"{head.mix!r} reads {need} layers, and this model has {layers}", fix="take last or mix")
    return VIEWS[head.mix]() if head.mix in VIEWS else Mix(layers + 1, cast(Norm, head.mix))


class Part(nn.Module):
    """One part of a head: mix, pool, inner layers, output."""

    def __init__(self, head: Head, config: Any, width: int | None):
        super().__init__()
        self.head, self.eos = head, getattr(config, "eos", None)
        dim = head.inner_dim or config.dim
        self.mix = mixer(head, config)
        self.dense = nn.Linear(head.states * config.dim, dim) if "dense" in head.inner else None
        dim = dim if self.dense is not None or head.out is None or head.layer is not None else head.states * dim
        self.norm = LayerNorm(dim, config.eps) if "norm" in head.inner else None
        self.dropout = nn.Dropout(head.dropout)
        self.after = None if head.after is None else activation(head.after)
        tied = head.out == "vocab" and getattr(config, "tied", False)
        self.out: nn.Module | None = None
        if head.layer is not None:
            self.out = head.layer()
        elif width is not None:
            self.out = Output(dim // head.ways, width, bias=head.bias, tied=tied, frozen=head.frozen)

    def forward(self, x: Tensor, tied: Any) -> Tensor:
        """(M, dim) hidden states, pooled already if this part pools → (M, width), or (M, ways, width)"""
        for name in self.head.inner:
            layer = {"dense": self.dense, "norm": self.norm, "dropout": self.dropout}.get(name)
            x = activation(name)(x) if layer is None else layer(x)
        x = x if self.head.scale == 1.0 else x * self.head.scale
        x = x if self.head.ways == 1 else x.unflatten(-1, (self.head.ways, -1))
        x = x if self.out is None else self.out(x, tied)
        return x if self.after is None else self.after(x)


class Model(nn.Module):
    """A body and its head. `forward` gives hidden states (mixed, if the head asks for it), `logits` what the head makes
    of them."""

    def __init__(self, body: nn.Module, parts: Mapping[str, Part]):
        super().__init__()
        self.body: Any = body
        self.heads = nn.ModuleDict(parts)

    @property
    def parts(self) -> dict[str, Part]:
        """The parts of the head by name."""
        return cast(dict[str, Part], dict(self.heads.items()))

    def forward(self, batch: Batch, **how: Any) -> Tensor:
        """(N,) → hidden (N, dim); encoder-decoders: of the decoder."""
        mix = next((part.mix for part in self.parts.values() if part.mix is not None), None)
        if mix is None:
            return self.body(batch, **how)
        probe = how.pop("probe", None) or Probe()
        probe.hidden = True
        last = self.body(batch, probe=probe, **how)
        return mix([*list(probe.states.values())[-1], last])

    def logits(self, hidden: Tensor, batch: Batch | None = None, part: str | None = None) -> Tensor:
        """What one part of the head answers; parts that pool need the batch that the hidden states belong to."""
        head = self.parts[part or next(iter(self.heads))]
        if head.head.pool is not None:
            assert batch is not None
            hidden = pool(hidden, batch, head.head.pool, head.eos)
        return head(hidden, getattr(self.body, "table", None))


def pool(hidden: Tensor, batch: Batch, how: str, eos: Any = None) -> Tensor:
    """(N, dim) → (D, dim): each document's first or last token, its mean, its maximum, or its last end mark."""
    layout = batch.layout
    if how == "first":
        return hidden[layout.first()]
    if how == "last":
        return hidden[layout.last()]
    if how == "mean":
        total = hidden.new_zeros(layout.rows, hidden.shape[-1]).index_add(0, layout.document, hidden)
        return total / layout.lengths[:, None].clamp(min=1)
    if how == "max":
        lowest = hidden.new_full((layout.rows, hidden.shape[-1]), -torch.inf)
        most = lowest.scatter_reduce(0, layout.document[:, None].expand_as(hidden), hidden, "amax")
        return torch.where(layout.lengths[:, None] > 0, most, 0.0)
    ids = (
        batch.ids if batch.source is None else batch.source.ids
    )  # slots of both sides agree: the target is the source shifted
    marks = torch.isin(ids, torch.tensor(eos, device=ids.device))
    slots = torch.where(marks, torch.arange(ids.shape[0], device=ids.device), -1)
    last = torch.full((layout.rows,), -1, device=ids.device).scatter_reduce(0, layout.document, slots, "amax")
    if batch.sample is None and (last < 0).any():  # in training, dummy documents have none
        row = int((last < 0).nonzero()[0])
        raise Error(
            f"row {row} has no end mark (id {eos}), which this classifier reads",
            fix="encode the text with special tokens",
        )
    return hidden[last.clamp(min=0)]


def declared(family: Family, config: Any, head: str) -> dict[str, Head]:
    """The parts of a head: a name of the family's, or several joined by +; behind @, what it reads of the layers."""
    known = family.heads(config)
    parts: dict[str, Head] = {}
    names, _, view = head.partition("@")
    for name in names.split("+"):
        if name not in known:
            raise Error(f"{family.body.__name__} has no head {name!r}", fix=f"it can have: {', '.join(known)}")
        parts |= known[name]
    if view not in ("", *VIEWS, "plain"):
        raise Error(f"a head cannot read {view!r} of the layers", fix=f"it can read: {', '.join(VIEWS)}, plain")
    if view:
        parts = {n: dataclasses.replace(p, mix=cast(Any, view), states=4 * p.states if view == "cat4" else p.states)
                 for n, p in parts.items()}  # fmt: skip
    return parts


def assemble(family: Family, config: Any, head: str, labels: int | None = None) -> tuple[Model, Any]:
    """A model with a head, without values (build under a device); also the config it was built with."""
    parts = declared(family, config, head)
    if getattr(config, "depth", 1) == 0 and any(part.decoder for part in parts.values()):
        able = [name for name, ps in family.heads(config).items() if not any(p.decoder for p in ps.values())]
        raise Error(f"head {head!r} reads a decoder, and this is an encoder alone", fix=f"choose {' or '.join(able)}")
    if any(not part.decoder for part in parts.values()):
        config = dataclasses.replace(config, decoder_layers=0)
    built = {name: Part(part, config, width(part, config, labels)) for name, part in parts.items()}
    body = family.body(config)
    if getattr(config, "pruned", ()):
        prune(body, config.pruned)
    return Model(body, built), config


def width(head: Head, config: Any, labels: int | None) -> int | None:
    """How many numbers a part gives."""
    if head.out == "vocab":
        return getattr(config, "target_vocab", None) or config.vocab
    return (labels or 2) if head.out == "labels" else head.out
