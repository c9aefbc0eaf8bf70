"""Who sees whom in one attention of one forward pass, in the forms that the kernels take."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from ...batch import Layout
from ..capture import Capture
from .kv_cache import KVCache
from .masks import IndexFunction, MaskIntersection, build_document_mask, causal, combine_masks, evaluate_on_grid
from .positions import RotaryEmbedding
from .segment_memory import SegmentMemory


class AttentionContext:
    """One attention of one forward pass: who sees whom, and what goes with it. Shared by all layers of a stack, so that
    the dense form and the block mask are made once.

    The documents of both sides lie as `query` and `key` say; `mask` and `bias` hold inside a document. Cross attention
    looks at `encoder_output`. `positions` (N,) are those of the queries where they do not count from a document's
    start. With a cache that has seen tokens, `past_lengths` (rows,) of them lie before the new ones, in `key_length`
    slots altogether. With a `segment_memory`, the states that it holds lie before the new ones: the new ones of all
    rows begin at the same slot. `relative_positions` (key_length + 1, dim) stand for the distances key_length - 1 … -1,
    for a relative hook that reads them. A mask that is an order says so in `query_key_ranks`, ranks of queries (N,) and
    keys: a query sees keys of its own or a lower one. `query_places` (N,) are the places of the queries in their
    documents, if these are some places only. With `has_uniform_weights` a relative hook makes all scores 0: every key
    has the same weight. `head_mask` (layers, H) multiplies the heads' outputs, 0 switches one off; `capture` records
    hidden states and attention weights.
    """

    def __init__(
        self,
        query: Layout,
        key: Layout | None = None,
        *,
        mask: IndexFunction | None = None,
        bias: IndexFunction | None = None,
        positions: Tensor | None = None,
        encoder_output: Tensor | None = None,
        cache: KVCache | None = None,
        segment_memory: SegmentMemory | None = None,
        head_mask: Tensor | None = None,
        capture: Capture | None = None,
        stack_name: str = "encoder",
    ):
        self.query_layout, self.key_layout, self.mask, self.bias = query, key or query, mask, bias
        self.encoder_output, self.cache, self.head_mask = encoder_output, cache, head_mask
        self.capture, self.stack_name = capture, stack_name
        self.positions, self.segment_memory = positions, segment_memory
        self.relative_positions: Tensor | None = None
        self.query_key_ranks: tuple[Tensor, Tensor] | None = None
        self.query_places: Tensor | None = None
        self.has_uniform_weights = False
        state = segment_memory if segment_memory is not None else cache if key is None else None
        self.past_lengths = None if state is None else state.start_batch(query)
        self.key_length = (
            self.key_layout.longest if self.past_lengths is None or state is None else state.count_slots(query)
        )
        self.ungrouped_layout: Layout | None = (
            None  # of cross attention where several rows are one document: these rows
        )
        self._dense: dict[bool, Tensor | None] = {}
        self._block: Any = None
        self._angles: dict[RotaryEmbedding, tuple[Tensor, Tensor]] = {}
        self._pairs: Tensor | None = None
        self._total_lengths: Tensor | None = None

    def copy_with_memory(self) -> AttentionContext:
        """The same with the memory as it stands now, whatever comes to it later."""
        new = copy.copy(self)
        new.segment_memory = None if self.segment_memory is None else self.segment_memory.copy()
        return new

    def copy_without_bias(self) -> AttentionContext:
        """The same before anything of a bias was computed."""
        new = copy.copy(self)
        new._dense, new._pairs = {}, None
        return new

    def get_mask_ranks(self) -> tuple[Tensor, Tensor] | None:
        """The mask as an order, if it is one."""
        return (self.query_layout.positions, self.key_layout.positions) if self.mask is causal else self.query_key_ranks

    def get_distance_bias(self) -> Tensor:
        """(H, Q + K - 1) a bias by distance alone: that of query i and key j stands in column Q - 1 - i + j."""
        row: Any = self.bias
        return row.compute_distance_bias(
            1 - self.query_layout.longest, self.key_length, self.query_layout.starts.device
        )

    def get_pairwise_bias(self) -> Tensor:
        """(H, Q, K) the same as a table; query i reads the window of K columns that starts at Q - 1 - i."""
        if self._pairs is None:
            row = self.get_distance_bias()  # layers add up their gradients in at least single precision
            self._pairs = row.to(torch.promote_types(row.dtype, torch.float32)).unfold(-1, self.key_length, 1).flip(1)
        return self._pairs

    def get_decode_bias(self) -> Tensor | None:
        """(H, key_length) a bias by distance alone, for one new token in each row: first that of the token itself, then
        that of the one before."""
        if self.bias is None or self.cache is None:
            return None
        row: Any = self.bias
        key = id(row), self.key_length
        if key not in self.cache.decode_biases:
            self.cache.decode_biases = {
                key: row.compute_distance_bias(1 - self.key_length, 1, self.query_layout.starts.device).flip(-1)
            }
        return self.cache.decode_biases[key]

    def get_total_lengths(self) -> Tensor:
        """(rows,) how many tokens each row has with its new one."""
        if self._total_lengths is None:
            assert self.past_lengths is not None
            self._total_lengths = self.past_lengths + 1
        return self._total_lengths

    def get_rotary_angles(self, rotary: RotaryEmbedding) -> tuple[Tensor, Tensor]:
        """By how much a token of each slot is turned."""
        if rotary not in self._angles:
            places = self.query_layout.positions if self.positions is None else self.positions
            self._angles[rotary] = rotary.compute_angles(
                places if self.past_lengths is None else places + self.past_lengths[self.query_layout.document_ids]
            )
        return self._angles[rotary]

    @property
    def is_uniform(self) -> bool:
        """No padding arises when both sides are laid out as grids."""
        even = self.past_lengths is None or (self.segment_memory is not None and self.segment_memory.has_equal_rows)
        return even and self.query_layout.is_uniform and self.key_layout.is_uniform

    @property
    def first_new_slot(self) -> Tensor | int:
        """The slot of each row's first new token."""
        if self.past_lengths is None:
            return 0
        return self.past_lengths.view(-1, 1, 1, 1) if self.segment_memory is None else self.segment_memory.used_slots

    def get_dense_mask(self, heads: int, *, padded: bool = True) -> Tensor | None:
        """The mask (bool) or masked bias (float) on a (rows or 1, H or 1, Q, K) grid; None if all is visible.

        Without `padded`, that of one full-length document, of which any shorter one takes the corner.
        """
        if padded not in self._dense:
            self._dense[padded] = self._build_dense_mask(heads, padded)
        return self._dense[padded]

    def _build_dense_mask(self, heads: int, padded: bool) -> Tensor | None:
        device = self.query_layout.starts.device
        shape = (self.query_layout.rows if padded else 1, heads, self.query_layout.longest, self.key_length)
        offset = self.first_new_slot
        mask = self.build_padded_mask() if padded and not self.is_uniform else self.mask
        allowed = None if mask is None else evaluate_on_grid(mask, shape, device, offset)
        single = self.past_lengths is not None and self.query_layout.longest == 1 and device.type == "cpu"
        if single and allowed is not None and bool(allowed.all()):  # rows of one length: every layer saves a mask
            allowed = None
        if self.bias is None:
            return allowed
        by_pair = self.past_lengths is not None or not hasattr(self.bias, "compute_distance_bias")
        bias = evaluate_on_grid(self.bias, shape, device, offset) if by_pair else self.get_pairwise_bias()[None]
        return bias if allowed is None else bias.masked_fill(~allowed, -math.inf)

    def build_padded_mask(self) -> IndexFunction:
        """The mask with the ends of the documents. A place without a token sees key 0, and an empty document has one
        (it is zero): a row without any key would turn into NaN."""
        past = (
            0
            if self.past_lengths is None
            else self.past_lengths
            if self.segment_memory is None
            else self.segment_memory.used_slots
        )
        ends = (self.key_layout.lengths + past).clamp(min=1)
        offset, mask, lengths = self.first_new_slot, self.mask, self.query_layout.lengths
        if self.segment_memory is not None and self.past_lengths is not None:
            first = (
                self.segment_memory.used_slots - self.past_lengths
            )  # what a row remembers ends where its new tokens begin
            mask = combine_masks(lambda b, h, q, k: k >= first[b], mask)
        if mask is None:
            return lambda b, h, q, k: k < ends[b]

        def see(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return ((k < ends[b]) & mask(b, h, q, k)) | ((q - offset >= lengths[b]) & (k == 0))

        return see

    def unmask_blind_queries(self) -> Tensor:
        """(N,) the queries that may see no key at all. They are then let see every one, as softmax needs something to
        divide: what comes of it must be dropped."""
        seen = self.get_dense_mask(1)
        if seen is None:
            return torch.zeros(self.query_layout.num_tokens, dtype=torch.bool, device=self.query_layout.starts.device)
        none = ~seen.any(-1, keepdim=True)  # (rows or 1, 1, Q or 1, 1)
        self._dense[True] = seen | none
        return self.query_layout.pack(none[:, 0, :, 0].expand(self.query_layout.rows, self.query_layout.longest))

    def get_block_mask(self) -> Any:
        """FlexAttention's block mask over the packed slots, or over those of one row if all have one length."""
        if self.is_uniform and self.mask is None:
            return None
        if self._block is None:
            from torch.nn.attention.flex_attention import create_block_mask

            parts = (
                self.mask.masks
                if isinstance(self.mask, MaskIntersection)
                else ()
                if self.mask is None
                else (self.mask,)
            )
            same = (
                parts[0]
                if self.is_uniform
                else build_document_mask(self.query_layout.document_ids, self.key_layout.document_ids)
            )

            def see(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # torch 2.11 compiles no callable object
                seen = same(b, h, q, k)
                for part in parts:
                    seen = seen & part(b, h, q, k)
                return seen

            device = self.query_layout.starts.device
            near, far = (s.longest if self.is_uniform else s.num_tokens for s in (self.query_layout, self.key_layout))
            self._block = create_block_mask(see, None, None, near, far, device=device)
        return self._block
