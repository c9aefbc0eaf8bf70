"""XLNet's attention: scores by distance and by segment, and two streams of one text.

Scores are Transformer-XL's distances, and whether two tokens are of one segment. Of the streams, content knows its
token, query knows only where it stands. N tokens (packed), M places of the query stream, T the longest document.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...batch import Layout
from .attention import Attention
from .dispatch import AttentionContext, can_use_biased_flash
from .positions import RelativeScores, shift_relative_scores


class RelativeContext(AttentionContext):
    """A context that knows how its tokens are related.

    `relative_positions` (K + Q, dim) stand for the distances K - 1 … -Q, `reversed_positions` for those of the second
    half of the rows, if its text is back to front; `is_other_segment` (rows, 1, Q, K) says whether a key's segment is
    another than its query's.
    """

    reversed_positions: Tensor | None = None
    is_other_segment: Tensor | None = None
    segment_ids: tuple[Tensor, Tensor] | None = None  # of queries (N,) and of keys, the same unrolled


class RelativeSegmentScores(RelativeScores):
    """(q + u)·k + (q + v)·W r(distance) + (q + s)·segment[is other] (Yang et al. 2019, §2.5). A hook of Attention."""

    def __init__(self, dim: int, heads: int, head_dim: int):
        super().__init__(dim, heads, head_dim)
        self.s = nn.Parameter(torch.empty(heads, head_dim))
        self.segment = nn.Parameter(torch.empty(2, heads, head_dim))

    def forward(self, q: Tensor, k: Tensor, scale: float, attn_context: AttentionContext) -> tuple[Tensor, Tensor]:
        """Queries (rows, H, Q, D) and keys (rows, H, K, D) → queries, and the bias (rows, H, Q, K)"""
        assert isinstance(attn_context, RelativeContext)
        u, v, s = (
            self.select_heads(b).to(q.dtype)[:, None] for b in (self.biases.u, self.biases.v, self.s)
        )  # (H, 1, D)
        half = q.shape[0] if attn_context.reversed_positions is None else (q.shape[0] + 1) // 2
        parts = zip(
            ((q + v)[:half], (q + v)[half:]),
            (attn_context.relative_positions, attn_context.reversed_positions),
            strict=True,
        )
        bias = torch.cat(
            [
                shift_relative_scores(part @ self.project_encodings(places, q), k.shape[2])
                for part, places in parts
                if places is not None
            ]
        )
        if attn_context.is_other_segment is not None:
            scores = (q + s) @ self.select_heads(self.segment, 1).permute(1, 2, 0).to(q.dtype)  # (rows, H, Q, 2)
            bias = bias + torch.where(attn_context.is_other_segment, scores[..., 1:], scores[..., :1])
        return q + u, bias * scale

    def compute_packed_scores(
        self, q: Tensor, scale: float, attn_context: AttentionContext
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """As Transformer-XL's; of the segments only the difference counts, softmax takes no notice of the rest"""
        queries, scores, _ = super().compute_packed_scores(q, scale, attn_context)
        if getattr(attn_context, "segment_ids", None) is None:
            return queries, scores, None
        s, segment = (
            self.select_heads(self.s).to(q.dtype),
            self.select_heads(self.segment, 1).to(q.dtype),
        )  # (H, D), (2, H, D)
        return queries, scores, ((q + s) * ((segment[1] - segment[0]) * scale)).sum(-1).T


def build_order_masks(order: Tensor | None, layout: Layout) -> tuple[Tensor | None, Tensor | None]:
    """Who sees whom in either stream, (rows, T, T), by a factorisation order (N,): content sees what comes no later in
    it, query what comes before. Tokens of one order are revealed together; no order hides nothing."""
    if order is None:
        return None, None
    grid = layout.unpack(order)  # (rows, T)
    return grid[:, None] <= grid[..., None], grid[:, None] < grid[..., None]


def build_pair_masks(visible_pairs: Tensor) -> tuple[Tensor, Tensor]:
    """The same by a table of pairs; content always sees itself."""
    return visible_pairs | torch.eye(
        visible_pairs.shape[-1], dtype=torch.bool, device=visible_pairs.device
    ), visible_pairs


class TwoStreamContext(RelativeContext):
    """What the content stream sees, and beside it `query_context`, what the query stream sees.

    The query stream stands at the slots `target_slots` (M,) (None: at all), where it lies behind the content stream in
    one tensor (N + M, dim). A slot that is there more than once, to fill up, counts once; a slot of -1 asks for
    nothing.
    """

    query_context: RelativeContext | None = None
    target_context: RelativeContext | None = None  # as `query_context`, of the asked places alone

    def add_query_stream(self, other: RelativeContext, at: Tensor | None) -> None:
        """Let there be a query stream."""
        self.query_context, self.blind_queries, self.target_slots = (
            other,
            other.unmask_blind_queries()[:, None, None],
            at,
        )
        if at is not None:
            at = at.sort().values  # document by document
            asked, self.target_slots = (at >= 0).float(), at.clamp(min=0)
            self.target_weights = asked / asked.new_zeros(self.query_layout.num_tokens).index_add(
                0, self.target_slots, asked
            )[self.target_slots].clamp(min=1)

    def use_rank_masks(self, order: Tensor, segments: Tensor | None) -> None:
        """Know the masks as orders (N,), for a kernel that takes some places only; `segments` (N,) are those, too."""
        assert self.query_context is not None
        self.query_key_ranks, self.query_context.query_key_ranks = (order, order), (order - 1, order)
        if segments is not None:
            self.segment_ids = self.query_context.segment_ids = segments, segments
        if self.target_slots is not None:
            starts = torch.searchsorted(self.target_slots, self.query_layout.starts.long()).to(torch.int32)
            few = Layout(starts, self.query_layout.longest, self.target_slots.shape[0])
            self.target_context = RelativeContext(
                few,
                self.query_layout,
                mask=self.query_context.mask,
                head_mask=self.head_mask,
                capture=self.capture,
                stack_name="query",
            )
            self.target_context.relative_positions, self.target_context.query_places = (
                self.relative_positions,
                self.query_layout.positions[self.target_slots],
            )
            self.target_context.query_key_ranks = order[self.target_slots] - 1, order
            self.target_context.segment_ids = None if segments is None else (segments[self.target_slots], segments)

    def scatter_targets(self, x: Tensor) -> Tensor:
        """(M, …) of the query stream → (N, …), zero where nobody asks."""
        if self.target_slots is None:
            return x
        share = self.target_weights.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        return x.new_zeros(self.query_layout.num_tokens, *x.shape[1:]).index_add(0, self.target_slots, x * share)

    def gather_targets(self, x: Tensor) -> Tensor:
        """(N, …) → (M, …)"""
        return x if self.target_slots is None else x.index_select(0, self.target_slots)


class TwoStreamAttention(Attention):
    """Attention of both streams over the keys and values of the content stream (§2.3, eq. of g and h)."""

    def forward(
        self, x: Tensor, attn_context: AttentionContext, layer: int = 0, memory_states: Tensor | None = None
    ) -> Tensor:
        """(N, dim), or (N + M, dim) of both → the same; `memory_states` (rows, K, dim) are remembered states."""
        assert isinstance(attn_context, TwoStreamContext)
        content, query = x[: attn_context.query_layout.num_tokens], x[attn_context.query_layout.num_tokens :]
        q, k, v = self.project_self(content, attn_context, layer)
        if memory_states is not None:
            k, v = self.prepend_memory(memory_states, k, v, attn_context)
        y = self.attend_heads(q, k, v, attn_context, layer)
        if attn_context.query_context is not None:
            q = self.project_parts(query, 0, 1)[0]
            if attn_context.target_context is not None and can_use_biased_flash(
                q, attn_context.target_context, self.dropout, self.relative
            ):
                z = self.attend_heads(q, k, v, attn_context.target_context, layer)
            else:
                z = attn_context.gather_targets(
                    self.attend_heads(
                        attn_context.scatter_targets(q), k, v, attn_context.query_context, layer
                    ).masked_fill(attn_context.blind_queries, 0.0)
                )
            y = torch.cat((y, z))
        return self.o(y.flatten(1))
