"""Model: a body and its head, built from the values that model files declare. Models + tasks, not models × tasks. Also
the beam search for answers: the likeliest starts, and for each the likeliest ends (XLNet on SQuAD 2.0)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batch import Batch, Layout
from .config import get_schema
from .errors import Error
from .family import Family, Head, HeadEncoder, LayerView, ModelConfig, Pooling, replace_settings
from .inputs import ModelState
from .nn.attention.attention import Attention
from .nn.attention.context import Capture
from .nn.attention.kv_cache import KVCache
from .nn.attention.masks import get_window_width
from .nn.attention.positions import RelativeScores
from .nn.attention.two_stream import TwoStreamAttention
from .nn.block import BlockStack, TransformerBody
from .nn.encoder_decoder import EncoderDecoder, RecurrentEncoderDecoder
from .nn.experts import Experts
from .nn.head_pruning import prune_heads
from .nn.layers import FanInInit, InitRule, LayerNorm, MixNorm, OutputLayer, ScalarMix, get_activation
from .nn.linear_cross_entropy import can_fuse_loss, linear_cross_entropy
from .nn.recurrent.convolution import PackedConv
from .nn.recurrent.rnn import PackedSteps, RecurrentLayer, RecurrentStack


class LayerSelector(nn.Module):
    """What a head reads of the layers' states, nothing of it learned (BERT, table 7): one layer, or the last four."""

    def __init__(self, select: Callable[[Sequence[Tensor]], Tensor]):
        super().__init__()
        self.select = select

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """layers × (N, dim) → (N, dim), or four times as wide"""
        return self.select(layers)


# Name → how many layers it reads, and what it makes of all of them.
LAYER_SELECTORS: dict[str, tuple[int, Callable[[Sequence[Tensor]], Tensor]]] = {
    "last": (1, lambda layers: layers[-1]),
    "second": (2, lambda layers: layers[-2]),
    "sum4": (4, lambda layers: torch.stack(list(layers[-4:])).sum(0)),
    "concat4": (4, lambda layers: torch.cat(list(layers[-4:]), -1)),
}


def build_layer_mixer(head: Head, config: ModelConfig) -> nn.Module | None:
    """Build what makes one state of the states of all layers, if a head reads them."""
    if head.layer_mix is None:
        return None
    if "layers" not in get_schema(type(config)):
        raise Error("this model has no layers one above the other", fix="let its head read what it always does")
    layers = (head.reads_decoder and config.num_decoder_layers) or config.layers
    need, select = LAYER_SELECTORS.get(head.layer_mix, (1, None))
    if layers < need:
        raise Error(f"{head.layer_mix!r} reads {need} layers, and this model has {layers}", fix="take last or mix")
    return ScalarMix(layers + 1, cast(MixNorm, head.layer_mix)) if select is None else LayerSelector(select)


class BiLSTMEncoder(nn.Module):
    """Two bidirectional LSTM layers over the hidden states of a text, as wide as the model (BERT, §5.3)."""

    def __init__(self, width: int, dim: int, dropout: float):
        super().__init__()
        half = -(-dim // 2)
        self.out_dim = 2 * half
        layers = [RecurrentLayer("lstm", size, half, bidirectional=True) for size in (width, self.out_dim)]
        self.layers = RecurrentStack(layers, dropout)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """(N, width) → (N, out_dim)"""
        return self.layers(x, PackedSteps(layout))[0]


class CNNEncoder(nn.Module):
    """Convolutions of three widths around every token, 100 filters each (Kim 2014)."""

    def __init__(self, width: int):
        super().__init__()
        sizes, filters = (3, 4, 5), 100
        self.out_dim = len(sizes) * filters
        self.convolutions = PackedConv(width, filters, sizes, centred=True)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """(N, width) → (N, out_dim)"""
        return F.relu(self.convolutions(x, layout))


class AttentionPool(nn.Module):
    """One vector of a text: the mean of its states, weighted by a learned query (Yang et al. 2016, eq. 5 to 7)."""

    def __init__(self, width: int):
        super().__init__()
        self.dense, self.query = nn.Linear(width, width), nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """(N, width) → (D, width)"""
        scores, document = self.query(torch.tanh(self.dense(x))).float(), layout.document_ids
        highest = scores.new_full((layout.rows, 1), -torch.inf).scatter_reduce(0, document[:, None], scores, "amax")
        weights = (scores - highest.detach()[document]).exp()
        total = scores.new_zeros(layout.rows, 1).index_add(0, document, weights)
        weights = (weights / total[document]).to(x.dtype)
        return x.new_zeros(layout.rows, x.shape[-1]).index_add(0, document, weights * x)


class HeadPart(nn.Module):
    """One part of a head: mix, encoder, pool, inner layers, output."""

    def __init__(self, head: Head, config: ModelConfig, labels: int | None):
        super().__init__()
        self.spec, self.eos = head, config.eos if head.pool == "eos" else None
        dim, width = head.inner_dim or config.dim, head.input_states * config.dim
        self.mix = build_layer_mixer(head, config)
        self.encoder: BiLSTMEncoder | CNNEncoder | None = None
        if head.encoder is not None:
            is_lstm = head.encoder == "bilstm"
            self.encoder = BiLSTMEncoder(width, config.dim, head.dropout) if is_lstm else CNNEncoder(width)
            width = self.encoder.out_dim
        self.attention_pool = AttentionPool(width) if head.pool == "attention" else None
        self.dense = nn.Linear(width, dim) if "dense" in head.inner_layers else None
        if self.dense is None and head.out is not None and head.build_output_layer is None:
            dim = dim * head.input_states if self.encoder is None else width
        self.norm = LayerNorm(dim, config.eps) if "norm" in head.inner_layers else None
        self.dropout = nn.Dropout(head.dropout)
        self.after = None if head.out_act is None else get_activation(head.out_act)
        tied, dim = head.out == "vocab" and config.tied, dim // head.directions
        self.out: nn.Module | None = None
        if head.build_output_layer is not None:
            self.out = head.build_output_layer()
        elif head.out is not None:
            named = {"vocab": config.output_vocab, "labels": labels or 2}
            width = named[head.out] if isinstance(head.out, str) else head.out
            self.out = OutputLayer(dim, width, bias=head.bias, tied=tied, frozen_bias=head.frozen_bias)

    def forward(self, x: Tensor, tied: Tensor | nn.Module) -> Tensor:
        """(M, dim) hidden states, pooled already if this part pools → (M, width), or (M, ways, width)"""
        x = self.transform(x)
        x = x if self.out is None else self.out(x, tied)
        return x if self.after is None else self.after(x)

    def transform(self, x: Tensor) -> Tensor:
        """Apply all that comes before the output layer: (M, dim) → (M, inner dim), or (M, ways, inner dim)"""
        for name in self.spec.inner_layers:
            layer = {"dense": self.dense, "norm": self.norm, "dropout": self.dropout}.get(name)
            x = get_activation(name)(x) if layer is None else layer(x)
        x = x if self.spec.scale == 1.0 else x * self.spec.scale
        return x if self.spec.directions == 1 else x.unflatten(-1, (self.spec.directions, -1))

    def compute_fused_loss(self, x: Tensor, tied: Tensor | None, labels: Tensor, smoothing: float) -> Tensor | None:
        """Sum the cross-entropy of (M, dim) hidden states without keeping their logits; None where that cannot be."""
        if not isinstance(self.out, OutputLayer) or self.after is not None or self.spec.directions > 1:
            return None
        weight = tied if self.out.weight is None else self.out.weight
        if weight is None or not can_fuse_loss(x, weight):
            return None
        return linear_cross_entropy(self.transform(x), weight, self.out.bias, labels, smoothing)


class Model(nn.Module):
    """A body and its head: `forward` computes hidden states (mixed over layers for some heads), `logits` the output."""

    def __init__(self, body: nn.Module, parts: Mapping[str, HeadPart], state_class: type[ModelState] | None = None):
        super().__init__()
        self.state_class = state_class or KVCache  # what keeps earlier tokens
        self.body: Any = body  # dynamic: a module that is a Body too (protocols.py), and types have no "and"
        self.heads = nn.ModuleDict(parts)
        self.is_body_frozen = False

    def freeze_body(self) -> None:
        """Stop training the body: it gets no gradients, and stays in evaluation mode (no dropout) whenever the model is
        put into training mode."""
        self.is_body_frozen = True
        self.body.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Model:
        """Set training or evaluation mode; a frozen body is always in evaluation mode."""
        super().train(mode)
        if self.is_body_frozen:
            self.body.eval()
        return self

    @property
    def parts(self) -> dict[str, HeadPart]:
        """The parts of the head by name."""
        return cast(dict[str, HeadPart], dict(self.heads.items()))

    def forward(self, batch: Batch, *, capture: Capture | None = None, **how: object) -> Tensor:
        """(N,) → hidden (N, dim); encoder-decoders: of the decoder. A head's own encoder reads them here, so that its
        parts may be asked at some of the positions alone."""
        mix = next((part.mix for part in self.parts.values() if part.mix is not None), None)
        if mix is None:
            hidden = self.body(batch, **(how if capture is None else {"capture": capture, **how}))
        else:
            capture = capture or Capture()
            capture.with_hidden = True
            last = self.body(batch, capture=capture, **how)
            hidden = mix([*list(capture.hidden_states.values())[-1], last])
        encoder = next((part.encoder for part in self.parts.values() if part.encoder is not None), None)
        return hidden if encoder is None else encoder(hidden, batch.layout)

    def logits(self, hidden: Tensor, batch: Batch | None = None, part: str | None = None) -> Tensor:
        """Compute the output of one part of the head; parts that pool need the batch of the hidden states."""
        head = self.parts[part or next(iter(self.heads))]
        if head.attention_pool is not None:
            assert batch is not None
            hidden = head.attention_pool(hidden, batch.layout)
        elif head.spec.pool is not None:
            assert batch is not None
            hidden = pool_hidden(hidden, batch, head.spec.pool, head.eos)
        return head(hidden, self.body.embedding_table)


def estimate_flops_per_token(
    model: Model, length: int, predicted_share: float = 1.0, target_share: float = 0.5, memory: int = 0
) -> float:
    """Estimate the operations of training on one token: six for each weight of a matrix that it meets, and attention
    to `length` tokens, or as many as a window shows, and `memory` remembered states. A token meets one of several
    experts, a shared block as often as there are layers, and the head if it is predicted (one that pools: once in
    `length` tokens); of an encoder-decoder's tokens, `target_share` meet the decoder. A second stream reads the
    predicted tokens once more."""
    uses = {id(part): 1.0 for part in model.modules()}

    def multiply(part: nn.Module | None, factor: float) -> None:
        for inner in part.modules() if part is not None else ():
            uses[id(inner)] *= factor

    for part in model.modules():
        if isinstance(part, BlockStack) and len(part):
            multiply(part, len(part.layer_order) / len(part))
            if any(isinstance(inner, TwoStreamAttention) for inner in part.modules()):
                multiply(part, 1 + predicted_share)
    for head in model.parts.values():
        multiply(head, predicted_share if head.spec.pool is None else 1 / max(1, length))
        multiply(head.out, head.spec.directions)
    if isinstance(model.body, EncoderDecoder | RecurrentEncoderDecoder):
        for side, share in ((model.body.encoder, 1 - target_share), (model.body.decoder, target_share)):
            multiply(side if isinstance(side, nn.Module) else None, share)
    flops, reach = 0.0, dict[int, int]()  # of layers with a window
    if isinstance(model.body, TransformerBody):
        for mask, block in zip(model.body.masks, model.body.blocks, strict=False):
            if width := get_window_width(mask):
                reach |= {id(part): min(length, width) for part in block.modules()}
    for part in model.modules():
        own: float = sum(p.numel() for p in part.parameters(recurse=False) if p.dim() > 1)
        if isinstance(part, OutputLayer) and part.weight is None:  # tied to a table, or to several (Transformer-XL)
            table = model.body.embedding_table
            own = sum(p.numel() for p in table.parameters()) if isinstance(table, nn.Module) else table.numel()
        elif isinstance(part, Experts):
            own /= part.num_experts
        elif isinstance(part, nn.Embedding):
            own = 0
        attention = 0.0
        if isinstance(part, Attention):
            relative = part.relative if isinstance(part.relative, RelativeScores) else None
            products = 2 if relative is None else 3  # distances are one more
            attention = 6.0 * products * part.heads * part.head_dim * (reach.get(id(part), length) + memory)
            if memory:  # its keys and values are projected again, and no gradient reaches it
                attention += 4.0 * 2 / 3 * part.qkv.weight.numel() * memory / max(1, length)
            if relative is not None:  # its matrix meets one vector for each distance, not for each token
                attention -= 6.0 * relative.r.weight.numel()
        flops += uses[id(part)] * (6.0 * own + attention)
    return flops


def pool_hidden(hidden: Tensor, batch: Batch, how: Pooling, eos: int | tuple[int, ...] | None = None) -> Tensor:
    """(N, dim) → (D, dim): each document's first or last token, its mean, its maximum, or its last end mark."""
    layout = batch.layout
    if how == "first":
        return hidden[layout.get_first_slots()]
    if how == "last":
        return hidden[layout.get_last_slots()]
    if how == "mean":
        total = hidden.new_zeros(layout.rows, hidden.shape[-1]).index_add(0, layout.document_ids, hidden)
        return total / layout.lengths[:, None].clamp(min=1)
    if how == "max":
        lowest = hidden.new_full((layout.rows, hidden.shape[-1]), -torch.inf)
        most = lowest.scatter_reduce(0, layout.document_ids[:, None].expand_as(hidden), hidden, "amax")
        return torch.where(layout.lengths[:, None] > 0, most, 0.0)
    ids = batch.ids if batch.source is None else batch.source.ids  # the target is the source shifted: slots agree
    marks = torch.isin(ids, torch.tensor(eos, device=ids.device))
    slots = torch.where(marks, torch.arange(ids.shape[0], device=ids.device), -1)
    last = torch.full((layout.rows,), -1, device=ids.device).scatter_reduce(0, layout.document_ids, slots, "amax")
    if batch.sample is None and (last < 0).any():  # in training, dummy documents have none
        row = int((last < 0).nonzero()[0])
        what = f"row {row} has no end mark (id {eos}), which this classifier reads"
        raise Error(what, fix="encode the text with special tokens")
    return hidden[last.clamp(min=0)]


POOLS: tuple[Pooling, ...] = ("first", "mean", "max", "attention", "last")
HEAD_ENCODERS: tuple[HeadEncoder, ...] = ("bilstm", "cnn")


def format_head(name: str, view: str | None = None, pool: str | None = None, encoder: str | None = None) -> str:
    """Return the name of a head with choices of its own: the layers that it reads, its pooling, its encoder."""
    choices = [view, pool and f"pool={pool}", encoder and f"encoder={encoder}"]
    return "@".join((name, *([",".join(filter(None, choices))] if any(choices) else [])))


def parse_head(head: str) -> tuple[str, str, str | None, str | None]:
    """Split the name of a head into what `format_head` made it of: name, view ("" for none), pool and encoder."""
    name, _, choices = head.partition("@")
    named = dict(choice.rpartition("=")[::2] for choice in choices.split(","))
    if unknown := next((key for key in named if key not in ("", "pool", "encoder")), None):
        raise Error(f"a head has no {unknown!r}", fix="it can have: pool, encoder")
    pool, encoder = named.get("pool"), named.get("encoder")
    for value, known, what in ((pool, POOLS, "pool by"), (encoder, HEAD_ENCODERS, "read with")):
        if value not in (None, *known):
            raise Error(f"a head cannot {what} {value!r}", fix=f"choose {', '.join(known)}")
    return name, named.get("", ""), pool, encoder


def choose_head_layers(parts: Mapping[str, Head], pool: str | None, encoder: str | None) -> dict[str, Head]:
    """Return the parts of a head with another pooling, and with an encoder of its own. What an encoder has read of a
    whole text is pooled by its maximum (Conneau et al. 2017), unless a pooling is named."""
    if encoder is not None and len(parts) != 1:
        raise Error(f"a head of the parts {', '.join(parts)} takes no {encoder}", fix="leave tune.head out")
    if pool is not None and all(part.pool is None for part in parts.values()):
        raise Error(f"a head that answers for each token does not pool by {pool!r}", fix="leave tune.pool out")
    pool = pool or (encoder and "max")
    return {
        name: dataclasses.replace(
            part, pool=cast(Pooling, pool) if part.pool and pool else part.pool,
            encoder=cast(HeadEncoder, encoder) if encoder else part.encoder,
        )
        for name, part in parts.items()
    }  # fmt: skip


def get_init_rules(family: Family, config: ModelConfig) -> dict[str, InitRule]:
    """Return the family's rules for new weights, and those of layers that any family's head may have."""
    own = {f"heads.*.{layers}.*.weight": FanInInit() for layers in ("encoder", "attention_pool")}
    return {**family.build_init_rules(config), **own}


def resolve_head(family: Family, config: ModelConfig, head: str) -> dict[str, Head]:
    """Return the parts of a head: a name of the family's, or several joined by +; after @, its choices
    (`format_head`)."""
    known = family.build_heads(config)
    parts: dict[str, Head] = {}
    names, view, pool, encoder = parse_head(head)
    for name in names.split("+"):
        if name not in known:
            raise Error(f"{family.body_class.__name__} has no head {name!r}", fix=f"it can have: {', '.join(known)}")
        parts |= known[name]
    if view not in ("", *LAYER_SELECTORS, "plain"):
        fix = f"it can read: {', '.join(LAYER_SELECTORS)}, plain"
        raise Error(f"a head cannot read {view!r} of the layers", fix=fix)
    for name, part in parts.items() if view else ():
        states = part.input_states * (4 if view == "concat4" else 1)
        parts[name] = dataclasses.replace(part, layer_mix=cast(LayerView, view), input_states=states)
    return parts if pool is None and encoder is None else choose_head_layers(parts, pool, encoder)


def build_model(family: Family, config: ModelConfig, head: str, labels: int | None = None) -> tuple[Model, ModelConfig]:
    """Build a model with a head, uninitialised (on the current device); returns it with its final config."""
    parts = resolve_head(family, config, head)
    is_encoder = "decoder_layers" in get_schema(type(config)) and config.num_decoder_layers == 0
    if is_encoder and any(part.reads_decoder for part in parts.values()):
        known = family.build_heads(config)
        able = [name for name in known if not any(part.reads_decoder for part in known[name].values())]
        raise Error(f"head {head!r} reads a decoder, and this is an encoder alone", fix=f"choose {' or '.join(able)}")
    if any(not part.reads_decoder for part in parts.values()):
        config = replace_settings(config, decoder_layers=0)
    built = {name: HeadPart(part, config, labels) for name, part in parts.items()}
    body = family.body_class(config)
    if config.pruned:
        prune_heads(body, config.pruned)
    return Model(body, built, family.state_class), config


def pool_vectors(vectors: Tensor, pool: str) -> Tensor:
    """Pool vectors (n, dim) → (dim,); no vectors give zeros."""
    if not len(vectors):
        return vectors.new_zeros(vectors.shape[-1])
    if pool == "weighted":  # SGPT (Muennighoff 2022, eq. 2)
        weights = torch.arange(1.0, len(vectors) + 1)
        return (vectors * weights[:, None]).sum(0) / weights.sum()
    if pool in ("first", "last"):
        return vectors[0 if pool == "first" else -1]
    return vectors.amax(0) if pool == "max" else vectors.mean(0) if pool == "mean" else vectors.sum(0)


def search_spans(model: Model, hidden: Tensor, batch: Batch, config: ModelConfig) -> dict[str, Tensor]:
    """Find the likeliest S = start_top starts and E = end_top ends for each, as probabilities and columns of the grid.
    `start` and `start_index` are (D, S), `end` and `end_index` (D, E · S) with entry e · S + s; `cls` (D,) is the
    larger, the less there is an answer. A text of fewer tokens has probability 0 and column -1 in the rest."""
    layout, begins, ends = batch.layout, config.start_top, config.end_top
    states = layout.unpack(hidden)  # (D, T, dim)
    states = F.pad(states, (0, 0, 0, max(0, max(begins, ends) - layout.longest)))
    real = torch.arange(states.shape[1], device=hidden.device) < layout.lengths[:, None]  # (D, T)
    scores = model.logits(states, part="start").squeeze(-1)
    starts = scores.masked_fill(~real, -torch.inf).softmax(-1)
    start, at = starts.topk(begins, -1)  # (D, S)
    begin = states.gather(1, at[..., None].expand(-1, -1, states.shape[-1]))  # (D, S, dim)
    pairs = torch.cat(torch.broadcast_tensors(states[:, :, None], begin[:, None]), -1)  # (D, T, S, 2 · dim)
    scores = model.logits(pairs, part="end").squeeze(-1)
    end, to = scores.masked_fill(~real[..., None], -torch.inf).softmax(1).topk(ends, 1)  # (D, E, S)
    there = real.gather(1, at)  # (D, S)
    mean = torch.einsum("dth,dt->dh", states, starts)
    cls = model.logits(torch.cat((mean, hidden[layout.get_last_slots()]), -1), part="cls").squeeze(-1)
    is_real_end = real[:, :, None].expand_as(scores).gather(1, to) & there[:, None]
    return {
        "start": start, "start_index": to_grid_columns(batch, at, there), "end": (end * there[:, None]).flatten(1),
        "end_index": to_grid_columns(batch, to, is_real_end).flatten(1), "cls": cls,
    }  # fmt: skip


def to_grid_columns(batch: Batch, at: Tensor, there: Tensor) -> Tensor:
    """Convert positions in each document to columns of the padded grid, -1 where there is none."""
    first = 0 if batch.keep is None else batch.keep.long().argmax(1).view(-1, *[1] * (at.dim() - 1))
    return torch.where(there, at + first, -1)
