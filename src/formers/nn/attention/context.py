"""What one attention of a forward pass sees, the forms of it that the kernels take, and what is recorded of a pass."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from ...batch import Layout
from .kv_cache import KVCache
from .masks import DistanceBias, IndexFunction, build_document_mask, causal, combine_masks, evaluate_on_grid, split_mask
from .positions import RotaryEmbedding
from .segment_memory import SegmentMemory

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from .two_stream import QueryStream


class HeadVectors(NamedTuple):
    """What one layer's attention weights were made of, in H heads.

    A score is `scale` · query · key, plus what positions add; `value_norms` are the lengths of the keys' values after
    the output projection (Kobayashi et al. 2020, arXiv:2004.10102).
    """

    queries: Tensor  # (rows, H, Q, D), turned by rotary positions, with the biases of relative ones
    keys: Tensor  # (rows, H, K, D)
    scale: float
    value_norms: Tensor | None  # (rows, H, K); None for weights of 8 bits


@dataclass
class Capture:
    """Collects what passes by: hidden states (N, dim) and attention weights (rows, heads, queries, keys).

    Handed to a model's forward; `with_hidden`, `with_attention` and `with_vectors` (queries, keys and the norms of
    values, beside the weights) say what is wanted. All are listed by stack: "encoder", "decoder", and of weights
    "cross" as well. A list given as `routing` is filled by layers of experts.
    """

    with_hidden: bool = False
    with_attention: bool = False
    with_vectors: bool = False
    routing: list[tuple[Tensor, Tensor]] | None = None  # of experts: probabilities (N, E) and choices (N,), by layer
    hidden_states: dict[str, list[Tensor]] = field(default_factory=dict)
    attention_weights: dict[str, list[Tensor]] = field(default_factory=dict)
    head_vectors: dict[str, list[HeadVectors]] = field(default_factory=dict)

    def record_hidden(self, stack_name: str, x: Tensor) -> None:
        """Keep a hidden state of a stack."""
        if self.with_hidden:
            self.hidden_states.setdefault(stack_name, []).append(x)

    def record_attention(self, stack_name: str, weights: Tensor) -> None:
        """Keep one layer's attention weights."""
        self.attention_weights.setdefault(stack_name, []).append(weights)

    def record_vectors(self, stack_name: str, vectors: HeadVectors) -> None:
        """Keep what one layer's attention weights were made of."""
        self.head_vectors.setdefault(stack_name, []).append(vectors)


class RelativeInputs(NamedTuple):
    """What scores by distance and by segment (a relative hook) read beside queries and keys."""

    encodings: Tensor  # (key_length + 1, dim) for the distances key_length - 1 … -1; XLNet: (K + Q, dim), down to -Q
    reversed_encodings: Tensor | None = None  # those of the second half of the rows, if its text is back to front
    is_other_segment: Tensor | None = None  # (rows, 1, Q, K) whether a key's segment is another than its query's
    segment_ids: tuple[Tensor, Tensor] | None = None  # the segments of queries (N,) and of keys, for packed documents
    has_uniform_weights: bool = False  # all scores are 0: every key has the same weight


class DerivedForms:
    """Cache of what one pass computes from its context once and all layers share."""

    def __init__(self) -> None:
        # By the number of heads (None: it is the same for every head) and `padded`.
        self.dense: dict[tuple[int | None, bool], Tensor | None] = {}
        self.blind_queries: Tensor | None = None  # (rows or 1, 1, Q or 1, 1)
        self.block_mask: BlockMask | None = None
        self.angles: dict[RotaryEmbedding, tuple[Tensor, Tensor]] = {}
        self.pairwise_bias: Tensor | None = None
        self.packed_key_layout: Layout | None = None
        self.total_lengths: Tensor | None = None

    def copy_without_bias(self) -> DerivedForms:
        """Return a copy without what depends on a bias."""
        forms = copy.copy(self)
        forms.dense, forms.pairwise_bias, forms.angles = {}, None, dict(self.angles)
        return forms


class ContextOptions(TypedDict, total=False):
    """What `AttentionContext.start_pass` hands on to the context: its fields of these names."""

    mask: IndexFunction | None
    bias: IndexFunction | None
    positions: Tensor | None
    relative: RelativeInputs | None
    mask_ranks: tuple[Tensor, Tensor] | None
    opens_blind: bool
    head_mask: Tensor | None
    capture: Capture | None
    stack_name: str
    query_stream: QueryStream | None


class AttentionContext:
    """Frozen description of one attention of one forward pass, shared by all layers of a stack.

    Queries are laid out by `query_layout` and attend to themselves, or in cross attention to `encoder_output`, laid out
    by `source_layout`; `mask` and `bias` hold inside a document. `past_lengths` (rows,) tokens of a cache or states of
    a `segment_memory` come before the new ones (`start_pass`). New tokens of all rows begin at the same slot of a
    memory, and in a cache each right after its past.

    positions         (N,) those of the queries, where they do not count from a document's start
    relative          what a relative hook reads
    mask_ranks        the mask as an order, if it is one: ranks of queries (N,) and keys; a query sees keys of its own
                      rank or lower
    opens_blind       queries that may see no key see all of them, since softmax needs something to divide by: drop
                      what they get (`get_blind_queries`)
    query_places      (N,) the places of the queries in their documents, if these are not all places
    ungrouped_layout  the rows of the queries, if `query_layout` takes several of them as one document
    head_mask         (layers, H) factors of the heads' outputs
    capture           records hidden states and attention weights under `stack_name`
    query_stream      XLNet's second stream
    forms             what another context of the pass has computed already, to be shared with it
    """

    _is_complete = False

    def __init__(
        self, query_layout: Layout, source_layout: Layout | None = None, *, mask: IndexFunction | None = None,
        bias: IndexFunction | None = None, positions: Tensor | None = None, encoder_output: Tensor | None = None,
        cache: KVCache | None = None, segment_memory: SegmentMemory | None = None, past_lengths: Tensor | None = None,
        relative: RelativeInputs | None = None, mask_ranks: tuple[Tensor, Tensor] | None = None,
        opens_blind: bool = False, query_places: Tensor | None = None, ungrouped_layout: Layout | None = None,
        head_mask: Tensor | None = None, capture: Capture | None = None, stack_name: str = "encoder",
        query_stream: QueryStream | None = None, forms: DerivedForms | None = None,
    ):  # fmt: skip
        self.query_layout, self.key_layout = query_layout, source_layout or query_layout
        self.mask, self.bias, self.relative, self.mask_ranks = mask, bias, relative, mask_ranks
        self.positions, self.query_places, self.opens_blind = positions, query_places, opens_blind
        self.encoder_output, self.ungrouped_layout, self.query_stream = encoder_output, ungrouped_layout, query_stream
        self.cache, self.segment_memory, self.past_lengths = cache, segment_memory, past_lengths
        self.head_mask, self.capture, self.stack_name = head_mask, capture, stack_name
        self.key_length = self.key_layout.longest  # slots on the side of the keys
        if past_lengths is not None:
            state = cache if segment_memory is None else segment_memory
            assert state is not None
            self.key_length = state.count_slots(query_layout)
        self.forms = DerivedForms() if forms is None else forms
        self._is_complete = True

    def __setattr__(
        self, name: str, value: object
    ) -> None:  # not a frozen dataclass: torch 2.11 compiles none in a step
        if self._is_complete:
            raise AttributeError(f"an AttentionContext is frozen: give {name} when it is built")
        object.__setattr__(self, name, value)

    @classmethod
    def start_pass(
        cls, layout: Layout, *, cache: KVCache | None = None, segment_memory: SegmentMemory | None = None,
        **options: Unpack[ContextOptions],
    ) -> AttentionContext:  # fmt: skip
        """Build the context of self-attention over new tokens after the past of a cache or memory, if they fit."""
        state = cache if segment_memory is None else segment_memory
        past_lengths = None if state is None else state.start_batch(layout)
        return cls(layout, cache=cache, segment_memory=segment_memory, past_lengths=past_lengths, **options)

    def copy_for_recompute(self, segment_memory: SegmentMemory | None) -> AttentionContext:
        """Return the context of a block that is computed again in the backward pass: with a memory as it is now, and a
        bias that is computed anew, so that the layers share nothing of its gradient."""
        return AttentionContext(
            self.query_layout, self.key_layout, mask=self.mask, bias=self.bias, positions=self.positions,
            encoder_output=self.encoder_output, cache=self.cache, segment_memory=segment_memory,
            past_lengths=self.past_lengths, relative=self.relative, mask_ranks=self.mask_ranks,
            opens_blind=self.opens_blind, query_places=self.query_places, ungrouped_layout=self.ungrouped_layout,
            head_mask=self.head_mask, capture=self.capture, stack_name=self.stack_name,
            query_stream=self.query_stream, forms=self.forms.copy_without_bias(),
        )  # fmt: skip

    @property
    def has_even_memory(self) -> bool:
        """True if all rows remember as many states, and have as many new tokens: keys can be packed row after row."""
        return self.segment_memory is not None and self.past_lengths is not None and self.is_uniform

    def get_packed_key_layout(self) -> Layout:
        """Return where the keys of each row lie, packed; with an even memory, its states and then the new tokens."""
        if not self.has_even_memory:
            return self.key_layout
        if self.forms.packed_key_layout is None:
            self.forms.packed_key_layout = self.query_layout.prepend_slots(self.key_length - self.query_layout.longest)
        return self.forms.packed_key_layout

    def get_mask_ranks(self) -> tuple[Tensor, Tensor] | None:
        """Return the mask as an order of queries and packed keys, if it is one."""
        if self.mask is not causal:
            return self.mask_ranks
        past = self.key_length - self.query_layout.longest if self.has_even_memory else 0
        return self.query_layout.positions + past, self.get_packed_key_layout().positions

    def get_distance_bias(self) -> Tensor:
        """Return a bias by distance alone, (H, Q + K - 1): that of query i and key j stands in column Q - 1 - i + j."""
        assert isinstance(self.bias, DistanceBias)
        layout = self.query_layout
        return self.bias.compute_distance_bias(1 - layout.longest, self.key_length, layout.starts.device)

    def get_pairwise_bias(self) -> Tensor:
        """Return a bias by distance alone as a table (H, Q, K); query i reads the K columns from Q - 1 - i on."""
        if self.forms.pairwise_bias is None:
            row = self.get_distance_bias()  # layers add up their gradients in at least single precision
            row = row.to(torch.promote_types(row.dtype, torch.float32))
            self.forms.pairwise_bias = row.unfold(-1, self.key_length, 1).flip(1)
        return self.forms.pairwise_bias

    def get_total_lengths(self) -> Tensor:
        """Return how many tokens each row has with its new one, (rows,)."""
        if self.forms.total_lengths is None:
            assert self.past_lengths is not None
            self.forms.total_lengths = self.past_lengths + 1
        return self.forms.total_lengths

    def get_rotary_angles(self, rotary: RotaryEmbedding) -> tuple[Tensor, Tensor]:
        """Return by how much a token of each slot is turned."""
        if rotary not in self.forms.angles:
            places = self.query_layout.positions if self.positions is None else self.positions
            if self.past_lengths is not None:
                places = places + self.past_lengths[self.query_layout.document_ids]
            self.forms.angles[rotary] = rotary.compute_angles(places)
        return self.forms.angles[rotary]

    @property
    def is_uniform(self) -> bool:
        """True if no padding arises when both sides are laid out as grids."""
        even = self.past_lengths is None or (self.segment_memory is not None and self.segment_memory.has_equal_rows)
        return even and self.query_layout.is_uniform and self.key_layout.is_uniform

    @property
    def differs_by_layer(self) -> bool:
        """True if something in it is looked up by the number of a layer."""
        return any(part is not None for part in (self.cache, self.segment_memory, self.head_mask))

    @property
    def first_new_slot(self) -> Tensor | int:
        """The slot of each row's first new token, on a (rows, 1, 1, 1) grid."""
        if self.past_lengths is None:
            return 0
        return self.past_lengths.view(-1, 1, 1, 1) if self.segment_memory is None else self.segment_memory.used_slots

    def get_dense_mask(self, heads: int, *, padded: bool = True) -> Tensor | None:
        """Return the mask (bool) or masked bias (float) on a (rows or 1, H or 1, Q, K) grid; None if all is visible.
        Without `padded`, that of one full-length document, of which any shorter one takes the corner."""
        forms = self.forms.dense
        for key in ((None, padded), (heads, padded)):
            if key in forms:
                return forms[key]
        mask = self._build_dense_mask(heads, padded)
        is_common = heads > 1 and (mask is None or mask.shape[1] == 1)  # an axis that nothing depends on stays 1 wide
        forms[None if is_common else heads, padded] = mask
        return mask

    def _build_dense_mask(self, heads: int, padded: bool) -> Tensor | None:
        device = self.query_layout.starts.device
        shape = (self.query_layout.rows if padded else 1, heads, self.query_layout.longest, self.key_length)
        offset = self.first_new_slot
        mask = self.build_padded_mask() if padded and not self.is_uniform else self.mask
        allowed = None if mask is None else evaluate_on_grid(mask, shape, device, offset)
        if self.opens_blind and allowed is not None:
            self.forms.blind_queries = ~allowed.any(-1, keepdim=True)
            allowed = allowed | self.forms.blind_queries
        single = self.past_lengths is not None and self.query_layout.longest == 1 and device.type == "cpu"
        if single and allowed is not None and bool(allowed.all()):  # rows of one length: every layer saves a mask
            allowed = None
        if self.bias is None:
            return allowed
        by_pair = self.past_lengths is not None or not isinstance(self.bias, DistanceBias)
        by_pair = by_pair or torch.compiler.is_exporting()  # the width of an unfolded table would be a constant there
        bias = evaluate_on_grid(self.bias, shape, device, offset) if by_pair else self.get_pairwise_bias()[None]
        return bias if allowed is None else bias.masked_fill(~allowed, -math.inf)

    def build_padded_mask(self) -> IndexFunction:
        """Return the mask with the ends of the documents. A place without a token sees key 0, and an empty document has
        one (it is zero): a row without any key would turn into NaN."""
        lengths, offset, mask = self.query_layout.lengths, self.first_new_slot, self.mask
        past: Tensor | int = 0 if self.past_lengths is None else self.past_lengths
        if self.segment_memory is not None and self.past_lengths is not None:
            past = self.segment_memory.used_slots
            first = past - self.past_lengths  # what a row remembers ends where its new tokens begin
            mask = combine_masks(lambda b, h, q, k: k >= first[b], mask)
        ends = (self.key_layout.lengths + past).clamp(min=1)
        if mask is None:
            return lambda b, h, q, k: k < ends[b]

        def is_visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return ((k < ends[b]) & mask(b, h, q, k)) | ((q - offset >= lengths[b]) & (k == 0))

        return is_visible

    def get_blind_queries(self) -> Tensor:
        """Return which queries (N,) may see no key at all and were opened for it."""
        layout = self.query_layout
        self.get_dense_mask(2)  # of several heads, so that a mask that ignores them is built once for all layers
        blind = self.forms.blind_queries
        if blind is None:
            return torch.zeros(layout.num_tokens, dtype=torch.bool, device=layout.starts.device)
        return layout.pack(blind[:, 0, :, 0].expand(layout.rows, layout.longest))

    def get_block_mask(self) -> BlockMask | None:
        """Return FlexAttention's block mask over the packed slots, or over those of one row if all have one length."""
        if self.is_uniform and self.mask is None:
            return None
        if self.forms.block_mask is None:
            from torch.nn.attention.flex_attention import create_block_mask

            parts, query, key = split_mask(self.mask), self.query_layout, self.key_layout
            first = parts[0] if self.is_uniform else build_document_mask(query.document_ids, key.document_ids)

            def is_visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # torch 2.11 compiles no object here
                visible = first(b, h, q, k)
                for part in parts:
                    visible = visible & part(b, h, q, k)
                return visible

            queries, keys = (t.longest if self.is_uniform else t.num_tokens for t in (query, key))
            device = query.starts.device
            self.forms.block_mask = create_block_mask(is_visible, None, None, queries, keys, device=device)
        return self.forms.block_mask
