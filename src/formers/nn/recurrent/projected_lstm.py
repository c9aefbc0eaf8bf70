"""LSTMs whose states are projected down and clipped inside the recurrence (Sak et al. 2014), both directions at once.

N tokens in D documents, T steps, H the width of a cell, P that of the projected state. cuDNN knows no clipping, so the
loop over time is ours. It is kept tight: one product for the inputs of all steps; documents sorted by length, so that
step t works on those that still have a token; both directions in one batched product; and in the backward pass one
product for each weight instead of one per step. To torch.compile the loop is a single opaque operation."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import TypedDict

import torch
from torch import Tensor, nn

from ...batch import Layout
from ..attention.kv_cache import CarriedState
from .rnn import get_reversed_slots, order_steps

GATE_BLOCK_TOKENS = 512  # tokens whose gates are held at once when there is no backward pass


class LSTMStateDict(TypedDict):
    """What a checkpoint keeps of a state: of each layer, "h" and "c"."""

    layers: dict[int, dict[str, Tensor]]


class LSTMState(CarriedState):
    """State of recurrent layers from one batch to the next, owned by the caller. Row d is the state after document d. A
    batch with more documents starts the new ones from zero, one with fewer leaves the other rows as they are. No
    gradient flows through it."""

    used_slots = 0  # tokens that count against a context: there is no such limit

    def __init__(self, rows: int = 1, size: int = 0) -> None:  # neither is bounded
        super().__init__(rows, size)
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}  # h (2, rows, P) and c (2, rows, H) of each layer

    @property
    def is_filling(self) -> bool:
        """True before the first batch, which starts from nothing."""
        return not self.layers

    def get_initial_state(self, layer: int, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state a layer starts from, in the shapes of these zeros."""
        if (known := self.layers.get(layer)) is None:
            return h, c
        old = [k[:, : z.shape[1]].to(z) for k, z in zip(known, (h, c), strict=True)]
        first, second = (torch.cat((o, z[:, o.shape[1] :]), 1) for o, z in zip(old, (h, c), strict=True))
        return first, second

    def reorder_rows(self, parents: Tensor) -> None:
        """Make row i a copy of row parents[i]."""
        self.layers = {i: (h.index_select(1, parents), c.index_select(1, parents)) for i, (h, c) in self.layers.items()}

    def copy(self) -> LSTMState:
        """Return another state with the same tensors, which are never changed in place."""
        new = copy.copy(self)
        new.layers = dict(self.layers)
        return new

    def get_state(self) -> LSTMStateDict:
        """Return what a checkpoint keeps of this state."""
        return {"layers": {i: {"h": h, "c": c} for i, (h, c) in self.layers.items()}}

    def restore_state(self, state: LSTMStateDict) -> None:
        """Restore the state that get_state returned."""
        self.layers = {i: (layer["h"], layer["c"]) for i, layer in state["layers"].items()}

    def store_final_state(self, layer: int, h: Tensor, c: Tensor) -> None:
        """Keep a layer's state after a batch."""
        h, c = h.detach(), c.detach()
        known = self.layers.get(layer, (h, c))
        h, c = (torch.cat((n, k[:, n.shape[1] :].to(n)), 1) for n, k in zip((h, c), known, strict=True))
        self.layers[layer] = h, c


class BidirectionalSteps:
    """The order in which a recurrent layer meets packed tokens: step by step, the longest documents first.
    `step_counts` (T,) says how many documents take part in each step; direction 0 reads a document from its first token
    on, direction 1 from its last."""

    def __init__(self, layout: Layout):
        self.document_order, self.document_rank, counts, ahead = order_steps(layout)
        back, slots = ahead[get_reversed_slots(layout)], torch.arange(layout.num_tokens, device=layout.starts.device)
        self.step_indices = torch.cat((ahead, back + layout.num_tokens))  # (2N,) where each slot goes, either way
        self.slot_indices = torch.empty_like(self.step_indices).scatter(0, self.step_indices, slots.repeat(2))
        self.step_counts = counts.cpu()  # the loop runs on the host
        self.rows = layout.rows

    def split_directions(self, x: Tensor) -> Tensor:
        """(N, P) in slots → (2, N, P) in steps"""
        return x.index_select(0, self.slot_indices).unflatten(0, (2, -1))

    def join_directions(self, x: Tensor) -> Tensor:
        """(2, N, P) in steps → (N, 2P) in slots, the directions side by side"""
        return x.flatten(0, 1).index_select(0, self.step_indices).unflatten(0, (2, -1)).transpose(0, 1).flatten(1)


class ProjectedLSTM(nn.Module):
    """One layer, both directions, each with weights of its own.

    j, i, f, o = [x; h] W + b
    c ← clip(σ(f + 1) · c + σ(i) · tanh(j))
    h ← clip((σ(o) · tanh(c)) P)"""

    def __init__(self, width: int, cell: int, out: int, *, cell_clip: float | None = None, clip: float | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, width + out, 4 * cell))  # of the input, then of the state
        self.bias = nn.Parameter(torch.empty(2, 4 * cell))
        self.project = nn.Parameter(torch.empty(2, cell, out))
        self.cell_clip = float("inf") if cell_clip is None else cell_clip
        self.clip = float("inf") if clip is None else clip

    def forward(self, x: Tensor, steps: BidirectionalSteps, state: LSTMState | None = None, layer: int = 0) -> Tensor:
        """(2, N, width) → (2, N, out), both in steps"""
        weights = [w.to(x.dtype) for w in (self.weight, self.bias, self.project)]
        _, cell, out = self.project.shape
        exact = torch.promote_types(x.dtype, torch.float32)  # a cell sums over time: half precision would lose
        h, c = x.new_zeros(2, steps.rows, out), x.new_zeros(2, steps.rows, cell, dtype=exact)
        if state is not None:
            h, c = (s.index_select(1, steps.document_order) for s in state.get_initial_state(layer, h, c))
        keep = torch.is_grad_enabled() and (x.requires_grad or any(w.requires_grad for w in weights))
        y, h, c, _, _ = run_recurrence(x, *weights, h, c, steps.step_counts, self.cell_clip, self.clip, keep)
        if state is not None:
            h, c = (t.index_select(1, steps.document_rank) for t in (h, c))
            state.store_final_state(layer, h, c)
        return y


def get_step_ranges(counts: Tensor) -> list[tuple[int, int]]:
    """Return the places of each step, first and one past the last."""
    ends = [0, *itertools.accumulate(count for count in counts.tolist() if count)]
    return list(itertools.pairwise(ends))


def group_steps(steps: list[tuple[int, int]], rows: int) -> Iterator[list[tuple[int, int]]]:
    """Group consecutive steps until each group has at least `rows` places."""
    block: list[tuple[int, int]] = []
    for step in steps:
        block.append(step)
        if step[1] - block[0][0] >= rows:
            yield block
            block = []
    if block:
        yield block


@torch.library.custom_op("formers::projected_lstm", mutates_args=())
def run_recurrence(
    x: Tensor, weight: Tensor, bias: Tensor, project: Tensor, h: Tensor, c: Tensor, counts: Tensor, cell_clip: float,
    clip: float, keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Run all steps of a layer: outputs (2, N, P), the last h and c by rank, and, to `keep` for the backward pass, the
    gates (2, N, 4H) after their functions and the cells (2, N, H)."""
    total, width, cell = x.shape[1], x.shape[2], c.shape[2]
    inner, across = weight[:, :width], weight[:, width:]
    bias = bias.clone()
    bias[:, 2 * cell : 3 * cell] += 1
    h, c, out = h.clone(), c.clone(), x.new_empty(2, total, h.shape[2])
    cells = c.new_empty(2, total if keep else 0, cell)
    gates = x.new_empty(2, 0, 4 * cell)
    with torch.autocast(x.device.type, enabled=False):
        for block in group_steps(get_step_ranges(counts), total if keep else GATE_BLOCK_TOKENS):
            first = block[0][0]
            gates = torch.baddbmm(bias[:, None], x[:, first : block[-1][1]], inner)
            for low, high in block:
                rows, g = high - low, gates[:, low - first : high - first]
                g.baddbmm_(h[:, :rows], across)
                g[..., :cell].tanh_()
                g[..., cell:].sigmoid_()
                j, i, f, o = g.chunk(4, -1)
                now = c[:, :rows].mul_(f).add_(i * j).clamp_(-cell_clip, cell_clip)
                if keep:
                    cells[:, low:high] = now
                new = torch.bmm(now.tanh().to(x.dtype).mul_(o), project).clamp_(-clip, clip)
                out[:, low:high] = new
                h[:, :rows] = new
    return out, h, c, gates if keep else x.new_empty(2, 0, 4 * cell), cells


@run_recurrence.register_fake
def _(x, weight, bias, project, h, c, counts, cell_clip, clip, keep):  # type: ignore[no-untyped-def]
    total = x.shape[1] if keep else 0
    shapes = (2, x.shape[1], h.shape[2]), (2, total, weight.shape[2]), (2, total, c.shape[2])
    out, gates, cells = x.new_empty(shapes[0]), x.new_empty(shapes[1]), c.new_empty(shapes[2])
    return out, torch.empty_like(h), torch.empty_like(c), gates, cells


@torch.library.custom_op("formers::projected_lstm_backward", mutates_args=())
def compute_gradients(
    d_out: Tensor, d_h: Tensor, d_c: Tensor, x: Tensor, weight: Tensor, project: Tensor, h: Tensor, c: Tensor,
    counts: Tensor, out: Tensor, gates: Tensor, cells: Tensor, cell_clip: float, clip: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of x, weight, bias, project and the first h and c; only what depends on the next step is in
    the loop. A clipped value passes no gradient."""
    steps, width, cell = get_step_ranges(counts), x.shape[2], c.shape[2]
    # On a CPU a product with few rows is up to twice as fast with the weights in this order, copied once for all steps.
    across, up = weight[:, width:].mT.contiguous(), project.mT.contiguous()
    d_h, d_c = d_h.clone(), d_c.clone()
    with torch.autocast(x.device.type, enabled=False):
        j, i, f, o = gates.chunk(4, -1)
        tops = [high - low for low, high in steps]
        past = [(low, low + rows) for (low, _), rows in zip(steps, tops[1:], strict=False)]
        h_before = torch.cat([h[:, : tops[0]] if tops else h[:, :0], *(out[:, a:b] for a, b in past)], 1)
        c_before = torch.cat([c[:, : tops[0]] if tops else c[:, :0], *(cells[:, a:b] for a, b in past)], 1)
        bent = cells.tanh()
        slope, moved = o * (1 - bent * bent), (o * bent).to(x.dtype)
        inside, free = cells.abs() < cell_clip, out.abs() < clip
        # The derivative of each gate; times that of the cell or of the output, it becomes the gates' gradient in place.
        d = torch.cat((i * (1 - j * j), j * i * (1 - i), c_before * f * (1 - f), bent * o * (1 - o)), -1).to(x.dtype)
        split, d_new = d.unflatten(-1, (4, cell)), torch.empty_like(out)
        for low, high in reversed(steps):
            rows = high - low
            new = (d_out[:, low:high] + d_h[:, :rows]) * free[:, low:high]
            d_new[:, low:high] = new
            d_moved = torch.bmm(new, up)
            now = (d_c[:, :rows] + d_moved * slope[:, low:high]) * inside[:, low:high]
            split[:, low:high, :3].mul_(now[:, :, None])
            split[:, low:high, 3].mul_(d_moved)
            torch.mul(now, f[:, low:high], out=d_c[:, :rows])
            d_h[:, :rows] = torch.bmm(d[:, low:high], across)
        d_weight = torch.bmm(torch.cat((x, h_before), -1).mT, d)
        return torch.bmm(d, weight[:, :width].mT), d_weight, d.sum(1), torch.bmm(moved.mT, d_new), d_h, d_c


@compute_gradients.register_fake
def _(d_out, d_h, d_c, x, weight, project, h, c, *rest):  # type: ignore[no-untyped-def]
    same = [torch.empty_like(t) for t in (x, weight, project, h, c)]
    return same[0], same[1], weight.new_empty(2, weight.shape[2]), same[2], same[3], same[4]


def save_for_backward(ctx, inputs, output):  # type: ignore[no-untyped-def]
    """Keep what the backward pass needs."""
    x, weight, _, project, h, c, counts, ctx.cell_clip, ctx.clip, _ = inputs
    out, _, _, gates, cells = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, project, h, c, counts, out, gates, cells)


def backward(ctx, d_out, d_h, d_c, d_gates, d_cells):  # type: ignore[no-untyped-def]
    """Run the backward pass; an output that nothing depends on has no gradient."""
    x, weight, project, h, c, counts, out, gates, cells = ctx.saved_tensors
    d_outputs = [torch.zeros_like(t) if d is None else d for d, t in ((d_out, out), (d_h, h), (d_c, c))]
    state = h, c, counts, out, gates, cells
    return *compute_gradients(*d_outputs, x, weight, project, *state, ctx.cell_clip, ctx.clip), *[None] * 4


run_recurrence.register_autograd(backward, setup_context=save_for_backward)
