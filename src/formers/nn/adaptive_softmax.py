"""Adaptive inputs and adaptive softmax: frequent tokens get wide embeddings, rare ones narrow ones.

The vocabulary, sorted by frequency, is cut into clusters. The softmax first chooses among the tokens of the first
cluster and one entry for each other cluster, then inside that cluster (Grave et al. 2016, arXiv:1609.04309); the
inputs are cut the same way (Baevski & Auli 2018, arXiv:1809.10853). N tokens, C clusters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..batch import IGNORE_INDEX
from ..errors import Error
from .layers import OutputLayer


@dataclass(frozen=True)
class VocabClusters:
    """Clusters of a vocabulary, cut at `cutoffs`; the embeddings of each are narrower than the last by `shrink`. With a
    shrink of 1 all tokens share one table, and it is projected only if `embed` is not `dim`."""

    vocab: int
    dim: int
    embed: int
    cutoffs: tuple[int, ...] = ()
    shrink: int = 1

    def __post_init__(self) -> None:
        ends = [0, *self.cutoffs, self.vocab]
        if any(a >= b for a, b in itertools.pairwise(ends)):
            what = f"cut-offs {list(self.cutoffs)} must rise from above 0 to below the vocabulary of {self.vocab}"
            fit = sorted({cut for cut in self.cutoffs if 0 < cut < self.vocab})
            raise Error(what, fix=f"set cutoffs to {fit}")
        if self.shrink < 1 or self.embed // self.shrink ** len(self.cutoffs) < 1:
            narrower = f"narrower by {self.shrink} in each of {self.num_clusters} clusters"
            what = f"embeddings of {self.embed}, {narrower}, have no width"
            raise Error(what, fix="take fewer clusters, a smaller shrink or wider embeddings")

    @property
    def num_clusters(self) -> int:
        """The number of clusters."""
        return len(self.cutoffs) + 1

    @property
    def id_ranges(self) -> list[tuple[int, int]]:
        """First id and end of each cluster."""
        return list(zip((0, *self.cutoffs), (*self.cutoffs, self.vocab), strict=True))

    @property
    def table_sizes(self) -> list[tuple[int, int]]:
        """Rows and width of each embedding table."""
        if self.shrink == 1:
            return [(self.vocab, self.embed)]
        return [(end - first, self.embed // self.shrink**i) for i, (first, end) in enumerate(self.id_ranges)]

    @property
    def is_projected(self) -> bool:
        """Embeddings are not of the model's width as they are."""
        return self.shrink != 1 or self.embed != self.dim


class AdaptiveEmbedding(nn.Module):
    """Tables of different widths, each projected up to the model's."""

    def __init__(self, clusters: VocabClusters):
        super().__init__()
        self.clusters, sizes = clusters, clusters.table_sizes
        self.tables = nn.ModuleList(nn.Embedding(*size) for size in sizes)
        wide = sizes if clusters.is_projected else []
        self.ups = nn.ModuleList(nn.Linear(width, clusters.dim, bias=False) for _, width in wide)

    def forward(self, ids: Tensor) -> Tensor:
        """(N,) → (N, dim)"""
        if len(self.tables) == 1:
            x = self.tables[0](ids)
            return self.ups[0](x) if self.ups else x
        parts = []
        for (first, end), table, up in zip(self.clusters.id_ranges, self.tables, self.ups, strict=True):
            # Every token is looked up in every table and masked where it is not in it: shapes do not depend on the
            # ids, and the tables after the first are narrow.
            is_inside = (ids >= first) & (ids < end)
            parts.append(up(table(torch.where(is_inside, ids - first, 0)) * is_inside[:, None]))
        return torch.stack(parts).sum(0)


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of all tokens; clusters have weights and biases of their own. With `tied`, the rows are those
    of the embedding; `projection_ties` says of each cluster whether it uses the embedding's projection, turned round,
    or has its own."""

    def __init__(self, clusters: VocabClusters, *, tied: bool, projection_ties: Sequence[bool]):
        super().__init__()
        self.clusters, self.projection_ties = clusters, tuple(projection_ties)
        tables = (OutputLayer(width, size, bias=True, tied=tied) for size, width in clusters.table_sizes)
        self.tables = nn.ModuleList(tables)
        self.cluster = nn.Linear(clusters.embed, clusters.num_clusters - 1) if clusters.num_clusters > 1 else None
        own = [i for i in range(clusters.num_clusters) if clusters.is_projected and not self.projection_ties[i]]
        widths = [clusters.table_sizes[0 if clusters.shrink == 1 else i][1] for i in range(clusters.num_clusters)]
        self.downs = nn.ModuleDict({str(i): nn.Linear(clusters.dim, widths[i], bias=False) for i in own})

    def forward(self, x: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """(N, dim) → (N, vocab), in at least single precision"""
        layers = list(self.iter_cluster_weights(embedding))
        head = compute_log_probs(x, *layers[0])  # (N, first cluster + C - 1)
        size = self.clusters.id_ranges[0][1]
        parts = [head[:, :size]]
        for i, layer in enumerate(layers[1:]):
            parts.append(head[:, size + i, None] + compute_log_probs(x, *layer))
        return torch.cat(parts, -1)

    def compute_losses(self, x: Tensor, labels: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """(N, dim), (N,) → (N,) the negative log-probability of each label, 0 where it is -100. A cluster is computed
        only for the tokens in it, which is what the cutting is for. While compiling, where shapes must not depend on
        the labels, all of it is."""
        if torch.compiler.is_compiling():
            return F.nll_loss(self(x, embedding), labels, reduction="none", ignore_index=IGNORE_INDEX)
        layers = list(self.iter_cluster_weights(embedding))
        head = compute_log_probs(x, *layers[0])
        size = self.clusters.id_ranges[0][1]
        # In the head, a token of a later cluster is that cluster's entry.
        choice = labels.clamp(min=0, max=size - 1)
        for i, (first, end) in enumerate(self.clusters.id_ranges[1:]):
            choice = torch.where((labels >= first) & (labels < end), size + i, choice)
        log_probs = head.gather(1, choice[:, None])[:, 0]
        for (first, end), layer in zip(self.clusters.id_ranges[1:], layers[1:], strict=True):
            at = ((labels >= first) & (labels < end)).nonzero()[:, 0]
            inside = compute_log_probs(x[at], *layer).gather(1, (labels[at] - first)[:, None])[:, 0]
            log_probs = log_probs.index_add(0, at, inside)
        return torch.where(labels == IGNORE_INDEX, 0.0, -log_probs)

    def iter_cluster_weights(self, embedding: AdaptiveEmbedding) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Yield weight, bias and projection (if any) of each cluster; the first has the other clusters' entries too."""
        for i, (first, end) in enumerate(self.clusters.id_ranges):
            shared = self.clusters.shrink == 1
            at, rows = (0, slice(first, end)) if shared else (i, slice(None))
            table, embedded = cast(OutputLayer, self.tables[at]), cast(nn.Embedding, embedding.tables[at])
            assert table.bias is not None
            weight, bias = (embedded.weight if table.weight is None else table.weight)[rows], table.bias[rows]
            if i == 0 and self.cluster is not None:
                weight, bias = torch.cat((weight, self.cluster.weight)), torch.cat((bias, self.cluster.bias))
            down = None
            if self.clusters.is_projected:
                own = None if self.projection_ties[i] else cast(nn.Linear, self.downs[str(i)])
                down = cast(nn.Linear, embedding.ups[at]).weight.T if own is None else own.weight
            yield weight, bias, down


def compute_log_probs(x: Tensor, weight: Tensor, bias: Tensor, down: Tensor | None) -> Tensor:
    """(N, dim) → (N, rows) log-probabilities inside one cluster"""
    logits = F.linear(x if down is None else F.linear(x, down), weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
