"""Who sees whom in one attention of one forward pass, in the forms that the kernels take."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from ..batch import Layout
from .cache import Cache
from .masks import Both, Index, both, causal, documents, evaluate
from .memory import Memory
from .positions import Rotary
from .probe import Probe


class Sight:
    """One attention of one forward pass: who sees whom, and what goes with it. Shared by all layers of a stack, so that
    the dense form and the block mask are made once.

    The documents of both sides lie as `query` and `key` say; `mask` and `bias` hold inside a document. Cross attention
    looks at `memory`. `positions` (N,) are those of the queries where they do not count from a document's start. With a
    cache that has seen tokens, `past` (rows,) of them lie before the new ones, in `span` slots altogether. With a
    segment memory (`recall`), the states that it holds lie before the new ones: the new ones of all rows begin at the
    same slot. `places` (span + 1, dim) stand for the distances span - 1 … -1, for a relative hook that reads them. A
    mask that is an order says so in `order`, ranks of queries (N,) and keys: a query sees keys of its own or a lower
    one. `where` (N,) are the places of the queries in their documents, if these are some places only. With `alike` a
    relative hook makes all scores 0: every key has the same weight.
    `heads` (layers, H) multiplies the heads' outputs, 0 switches one off; `probe` looks on.
    """

    def __init__(
        self,
        query: Layout,
        key: Layout | None = None,
        *,
        mask: Index | None = None,
        bias: Index | None = None,
        positions: Tensor | None = None,
        memory: Tensor | None = None,
        cache: Cache | None = None,
        recall: Memory | None = None,
        heads: Tensor | None = None,
        probe: Probe | None = None,
        kind: str = "encoder",
    ):
        self.query, self.key, self.mask, self.bias = query, key or query, mask, bias
        self.memory, self.cache, self.heads, self.probe, self.kind = memory, cache, heads, probe, kind
        self.positions, self.recall = positions, recall
        self.places: Tensor | None = None
        self.order: tuple[Tensor, Tensor] | None = None
        self.where: Tensor | None = None
        self.alike = False
        state = recall if recall is not None else cache if key is None else None
        self.past = None if state is None else state.begin(query)
        self.span = self.key.longest if self.past is None or state is None else state.end(query)
        self.single: Layout | None = None  # of cross attention where several rows are one document: these rows
        self._dense: dict[bool, Tensor | None] = {}
        self._block: Any = None
        self._angles: dict[Rotary, tuple[Tensor, Tensor]] = {}
        self._pairs: Tensor | None = None
        self._seen: Tensor | None = None

    def apart(self) -> Sight:
        """The same with the memory as it stands now, whatever comes to it later."""
        new = copy.copy(self)
        new.recall = None if self.recall is None else self.recall.copy()
        return new

    def anew(self) -> Sight:
        """The same before anything of a bias was computed."""
        new = copy.copy(self)
        new._dense, new._pairs = {}, None
        return new

    def ranks(self) -> tuple[Tensor, Tensor] | None:
        """The mask as an order, if it is one."""
        return (self.query.position, self.key.position) if self.mask is causal else self.order

    def row(self) -> Tensor:
        """(H, Q + K - 1) a bias by distance alone: that of query i and key j stands in column Q - 1 - i + j."""
        row: Any = self.bias
        return row.row(1 - self.query.longest, self.span, self.query.starts.device)

    def pairs(self) -> Tensor:
        """(H, Q, K) the same as a table; query i reads the window of K columns that starts at Q - 1 - i."""
        if self._pairs is None:
            row = self.row()  # layers add up their gradients in at least single precision
            self._pairs = row.to(torch.promote_types(row.dtype, torch.float32)).unfold(-1, self.span, 1).flip(1)
        return self._pairs

    def behind(self) -> Tensor | None:
        """(H, span) a bias by distance alone, for one new token in each row: first that of the token itself, then that
        of the one before."""
        if self.bias is None or self.cache is None:
            return None
        row: Any = self.bias
        key = id(row), self.span
        if key not in self.cache.rows_behind:
            self.cache.rows_behind = {key: row.row(1 - self.span, 1, self.query.starts.device).flip(-1)}
        return self.cache.rows_behind[key]

    def seen(self) -> Tensor:
        """(rows,) how many tokens each row has with its new one."""
        if self._seen is None:
            assert self.past is not None
            self._seen = self.past + 1
        return self._seen

    def angles(self, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """By how much a token of each slot is turned."""
        if rotary not in self._angles:
            places = self.query.position if self.positions is None else self.positions
            self._angles[rotary] = rotary.angles(
                places if self.past is None else places + self.past[self.query.document]
            )
        return self._angles[rotary]

    @property
    def uniform(self) -> bool:
        """No padding arises when both sides are laid out as grids."""
        even = self.past is None or (self.recall is not None and self.recall.even)
        return even and self.query.uniform and self.key.uniform

    @property
    def offset(self) -> Tensor | int:
        """The slot of each row's first new token."""
        if self.past is None:
            return 0
        return self.past.view(-1, 1, 1, 1) if self.recall is None else self.recall.used

    def dense(self, heads: int, *, padded: bool = True) -> Tensor | None:
        """The mask (bool) or masked bias (float) on a (rows or 1, H or 1, Q, K) grid; None if all is visible.

        Without `padded`, that of one full-length document, of which any shorter one takes the corner.
        """
        if padded not in self._dense:
            self._dense[padded] = self._make_dense(heads, padded)
        return self._dense[padded]

    def _make_dense(self, heads: int, padded: bool) -> Tensor | None:
        device = self.query.starts.device
        shape = (self.query.rows if padded else 1, heads, self.query.longest, self.span)
        offset = self.offset
        mask = self.padded() if padded and not self.uniform else self.mask
        allowed = None if mask is None else evaluate(mask, shape, device, offset)
        single = self.past is not None and self.query.longest == 1 and device.type == "cpu"
        if single and allowed is not None and bool(allowed.all()):  # rows of one length: every layer saves a mask
            allowed = None
        if self.bias is None:
            return allowed
        by_pair = self.past is not None or not hasattr(self.bias, "row")
        bias = evaluate(self.bias, shape, device, offset) if by_pair else self.pairs()[None]
        return bias if allowed is None else bias.masked_fill(~allowed, -math.inf)

    def padded(self) -> Index:
        """The mask with the ends of the documents. A place without a token sees key 0, and an empty document has one
        (it is zero): a row without any key would turn into NaN."""
        past = 0 if self.past is None else self.past if self.recall is None else self.recall.used
        ends = (self.key.lengths + past).clamp(min=1)
        offset, mask, lengths = self.offset, self.mask, self.query.lengths
        if self.recall is not None and self.past is not None:
            first = self.recall.used - self.past  # what a row remembers ends where its new tokens begin
            mask = both(lambda b, h, q, k: k >= first[b], mask)
        if mask is None:
            return lambda b, h, q, k: k < ends[b]

        def see(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return ((k < ends[b]) & mask(b, h, q, k)) | ((q - offset >= lengths[b]) & (k == 0))

        return see

    def blind(self) -> Tensor:
        """(N,) the queries that may see no key at all. They are then let see every one, as softmax needs something to
        divide: what comes of it must be dropped."""
        seen = self.dense(1)
        if seen is None:
            return torch.zeros(self.query.total, dtype=torch.bool, device=self.query.starts.device)
        none = ~seen.any(-1, keepdim=True)  # (rows or 1, 1, Q or 1, 1)
        self._dense[True] = seen | none
        return self.query.pack(none[:, 0, :, 0].expand(self.query.rows, self.query.longest))

    def block(self) -> Any:
        """FlexAttention's block mask over the packed slots, or over those of one row if all have one length."""
        if self.uniform and self.mask is None:
            return None
        if self._block is None:
            from torch.nn.attention.flex_attention import create_block_mask

            parts = self.mask.parts if isinstance(self.mask, Both) else () if self.mask is None else (self.mask,)
            same = parts[0] if self.uniform else documents(self.query.document, self.key.document)

            def see(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # torch 2.11 compiles no callable object
                seen = same(b, h, q, k)
                for part in parts:
                    seen = seen & part(b, h, q, k)
                return seen

            device = self.query.starts.device
            near, far = (s.longest if self.uniform else s.total for s in (self.query, self.key))
            self._block = create_block_mask(see, None, None, near, far, device=device)
        return self._block
