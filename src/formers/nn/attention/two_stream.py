"""XLNet's attention: scores by distance and by segment, and two streams of one text. Scores are Transformer-XL's
distances, and whether two tokens are of one segment. Of the streams, content knows its token, query knows only where it
stands. N tokens (packed), M places of the query stream, T the longest document."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...batch import Layout
from .attention import Attention
from .context import AttentionContext, RelativeInputs
from .dispatch import AttentionCall, choose_kernel
from .positions import DistanceTerms, RelativeScores, shift_relative_scores


class RelativeSegmentScores(RelativeScores):
    """(q + u)·k + (q + v)·W r(distance) + (q + s)·segment[is other] (Yang et al. 2019, §2.5). A hook of Attention."""

    def __init__(self, dim: int, heads: int, head_dim: int):
        super().__init__(dim, heads, head_dim)
        self.s = nn.Parameter(torch.empty(heads, head_dim))
        self.segment = nn.Parameter(torch.empty(2, heads, head_dim))

    def forward(self, q: Tensor, k: Tensor, scale: float, attn_context: AttentionContext) -> tuple[Tensor, Tensor]:
        """Queries (rows, H, Q, D) and keys (rows, H, K, D) → queries, and the bias (rows, H, Q, K)"""
        inputs = attn_context.relative
        assert inputs is not None
        biases = self.biases.u, self.biases.v, self.s
        u, v, s = (self.select_heads(bias).to(q.dtype)[:, None] for bias in biases)  # (H, 1, D)
        half = q.shape[0] if inputs.reversed_encodings is None else (q.shape[0] + 1) // 2
        parts = zip(((q + v)[:half], (q + v)[half:]), (inputs.encodings, inputs.reversed_encodings), strict=True)
        scored = [part @ self.project_encodings(encodings, q) for part, encodings in parts if encodings is not None]
        bias = torch.cat([shift_relative_scores(scores, k.shape[2]) for scores in scored])
        if inputs.is_other_segment is not None:
            scores = (q + s) @ self.select_heads(self.segment, 1).permute(1, 2, 0).to(q.dtype)  # (rows, H, Q, 2)
            bias = bias + torch.where(inputs.is_other_segment, scores[..., 1:], scores[..., :1])
        return q + u, bias * scale

    def compute_distance_terms(self, q: Tensor, scale: float, attn_context: AttentionContext) -> DistanceTerms:
        """Add the difference between segments to Transformer-XL's terms: softmax takes no notice of what all share"""
        terms = super().compute_distance_terms(q, scale, attn_context)
        if attn_context.relative is None or attn_context.relative.segment_ids is None:
            return terms
        s, segment = self.select_heads(self.s).to(q.dtype), self.select_heads(self.segment, 1).to(q.dtype)  # (2, H, D)
        return terms._replace(segment_scores=((q + s) * ((segment[1] - segment[0]) * scale)).sum(-1).T)


def build_order_masks(order: Tensor | None, layout: Layout) -> tuple[Tensor | None, Tensor | None]:
    """Return who sees whom in either stream, (rows, T, T), by a factorisation order (N,): content sees what comes no
    later in it, query what comes before. Tokens of one order are revealed together; no order hides nothing."""
    if order is None:
        return None, None
    grid = layout.unpack(order)  # (rows, T)
    return grid[:, None] <= grid[..., None], grid[:, None] < grid[..., None]


def build_pair_masks(visible_pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Return who sees whom in either stream by a table of pairs; content always sees itself."""
    own = torch.eye(visible_pairs.shape[-1], dtype=torch.bool, device=visible_pairs.device)
    return visible_pairs | own, visible_pairs


class QueryStream:
    """XLNet's second stream: what it sees, `context`, and where it stands.

    It stands at the slots `target_slots` (M,) (None: at all), where it lies after the content stream in one tensor
    (N + M, dim). A slot that is there more than once, to fill up, counts once; a slot of -1 is ignored. With the
    factorisation `order` (N,) of the tokens and that of all keys, `target_context` describes the targets alone."""

    target_slots: Tensor | None = None
    target_context: AttentionContext | None = None

    def __init__(
        self, context: AttentionContext, targets: Tensor | None, order: Tensor | None, key_order: Tensor | None
    ):
        self.context, self.blind_queries = context, context.get_blind_queries()[:, None, None]
        if targets is None:
            return
        layout, targets = context.query_layout, targets.sort().values  # document by document
        is_target, at = (targets >= 0).float(), targets.clamp(min=0)
        counts = is_target.new_zeros(layout.num_tokens).index_add(0, at, is_target)
        self.target_slots, self.target_weights = at, is_target / counts[at].clamp(min=1)
        if order is None or key_order is None or context.relative is None:
            return
        starts = torch.searchsorted(at, layout.starts.long()).to(torch.int32)
        segments = context.relative.segment_ids
        relative = RelativeInputs(
            context.relative.encodings, context.relative.reversed_encodings,
            segment_ids=None if segments is None else (segments[0][at], segments[1]),
        )  # fmt: skip
        self.target_context = AttentionContext(
            Layout(starts, layout.longest, at.shape[0]), context.get_packed_key_layout(), mask=context.mask,
            mask_ranks=(order[at] - 1, key_order), relative=relative, query_places=layout.positions[at],
            head_mask=context.head_mask, stack_name="query",
        )  # fmt: skip

    def scatter_targets(self, x: Tensor) -> Tensor:
        """(M, …) of the targets → (N, …), zero where there is none."""
        if self.target_slots is None:
            return x
        weights = self.target_weights.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        rows = x.new_zeros(self.context.query_layout.num_tokens, *x.shape[1:])
        return rows.index_add(0, self.target_slots, x * weights)


class TwoStreamAttention(Attention):
    """Attention of both streams over the keys and values of the content stream (§2.3, eq. of g and h)."""

    def forward(
        self, x: Tensor, attn_context: AttentionContext, layer: int = 0, memory_states: Tensor | None = None
    ) -> Tensor:
        """(N, dim), or (N + M, dim) of both → the same; `memory_states` (rows, K, dim) are remembered states."""
        content, query = x[: attn_context.query_layout.num_tokens], x[attn_context.query_layout.num_tokens :]
        q, k, v, _ = self.project_self(content, attn_context, layer)  # keys are remembered as states, not cached
        if memory_states is not None:
            k, v = self.prepend_memory(memory_states, k, v, attn_context)
        y = self.attend_heads(q, k, v, attn_context, layer)
        if (stream := attn_context.query_stream) is not None:
            q = self.project_parts(query, 0, 1)[0]
            targets = stream.target_context
            packed_k, packed_v = (t.flatten(0, 1) if t.dim() == 4 else t for t in (k, v))  # rows after each other
            if targets is not None and (
                choose_kernel(AttentionCall(q, packed_k, packed_v, targets, self.scale, 0.0, self.relative))
                == "biased_flash"
            ):
                z = self.attend_heads(q, packed_k, packed_v, targets, layer)
                self.record_heads(stream.scatter_targets(q), k, v, stream.context)  # weights stand for all places
            else:
                z = self.attend_heads(stream.scatter_targets(q), k, v, stream.context, layer)
                z = z.masked_fill(stream.blind_queries, 0.0)
                z = z if stream.target_slots is None else z.index_select(0, stream.target_slots)  # (M, …)
            y = torch.cat((y, z))
        return self.o(y.flatten(1))
