"""Recurrent layers over packed documents. N tokens (packed), D documents, n of them still running at a step. A state is
(h,), or (h, c) of an LSTM, one after the other for all layers, each (D, directions · dim) in the order of the
documents. The caller owns it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...batch import Layout
from ..attention.context import Capture

CellKind = Literal["rnn", "lstm", "gru"]
RNNState = tuple[Tensor, ...]
# By kind: a whole sequence, one step, the number of gates, the parts of a state.
CELL_KERNELS: dict[str, tuple[Callable[..., RNNState], Callable[..., RNNState | Tensor], int, int]] = {
    "rnn": (torch.rnn_tanh, torch.rnn_tanh_cell, 1, 1),
    "lstm": (torch.lstm, torch.lstm_cell, 4, 2),
    "gru": (torch.gru, torch.gru_cell, 3, 1),
}


def order_steps(layout: Layout) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sort packed tokens by step, the longest documents first. Returns the documents by falling length (D,), each
    document's place among them (D,), the tokens of each step (longest,), and where each slot goes (N,)."""
    lengths = layout.lengths.long()
    order = lengths.argsort(descending=True, stable=True)
    rank, steps = order.argsort(), torch.arange(layout.longest, device=lengths.device)
    counts = (lengths > steps[:, None]).sum(1)
    return order, rank, counts, (counts.cumsum(0) - counts)[layout.positions] + rank[layout.document_ids]


def get_reversed_slots(layout: Layout) -> Tensor:
    """Return, for each slot (N,), the one that is as far from the other end of its document."""
    return layout.starts[layout.document_ids + 1] - 1 - layout.positions


class PackedSteps:
    """A packed batch in the order of reading: all first tokens, all second ones, and so on.

    Longer documents come first, so the tokens of step t belong to the first `step_sizes[t]` of them, and nothing is
    computed for those that have ended. A compiled graph has fixed shapes: there all documents run as long as the
    longest, in their own order, and what comes after an end is dropped."""

    def __init__(self, layout: Layout):
        self.layout, self.is_static = layout, torch.compiler.is_compiling()
        self.step_sizes = [layout.rows] * layout.longest
        if self.is_static:
            return
        self.document_order, self.document_rank, counts, self.slot_order = order_steps(layout)
        slots = torch.arange(layout.num_tokens, device=layout.starts.device)
        self.step_order = torch.empty_like(self.slot_order).scatter(0, self.slot_order, slots)  # (N,)
        if not layout.is_uniform:
            self.step_sizes = [count for count in counts.tolist() if count]

    def sort_documents(self, x: Tensor) -> Tensor:
        """Put documents (D, ...) in the order of the steps, the longest first."""
        return x if self.is_static else x.index_select(0, self.document_order)

    def restore_documents(self, x: Tensor) -> Tensor:
        """Put sorted documents (D, ...) back into the batch's order."""
        return x if self.is_static else x.index_select(0, self.document_rank)

    def split_steps(self, x: Tensor) -> Sequence[Tensor]:
        """(N, ...) → one (n, ...) for each step."""
        if self.is_static:
            return self.layout.unpack(x).unbind(1)
        return x.index_select(0, self.step_order).split(self.step_sizes) if self.step_sizes else ()

    def join_steps(self, parts: Sequence[Tensor]) -> Tensor:
        """Join one (n, ...) for each step into (N, ...)"""
        if self.is_static:
            return self.layout.pack(torch.stack(tuple(parts), 1))
        return torch.cat(tuple(parts)).index_select(0, self.slot_order)

    def carry_state(self, step: int, new: Tensor, old: Tensor) -> Tensor:
        """Return the state after a step: new where a document had a token, else as it was."""
        if self.is_static:
            return torch.where((step < self.layout.lengths)[:, None], new, old)
        return new if len(new) == len(old) else torch.cat((new, old[len(new) :]))

    def reverse_documents(self, x: Tensor) -> Tensor:
        """Turn every document of (N, ...) back to front."""
        return x.index_select(0, get_reversed_slots(self.layout))


StepFunction = Callable[[int, Tensor, RNNState], tuple[RNNState, RNNState]]


def run_steps(steps: PackedSteps, x: Tensor, state: RNNState, step: StepFunction) -> tuple[RNNState, RNNState]:
    """Read packed x (N, width) token by token: step(t, x (n, width), state (n, ...)) → (outputs (n, ...), new state).
    Gives the outputs (N, ...) and the state after each document's last token. The rows that `step` sees are those of
    `steps.sort_documents`, cut at n."""
    now, outputs = tuple(steps.sort_documents(s) for s in state), []
    for t, part in enumerate(steps.split_steps(x)):
        out, new = step(t, part, tuple(s[: len(part)] for s in now))
        outputs.append(out)
        now = tuple(steps.carry_state(t, a, b) for a, b in zip(new, now, strict=True))
    return tuple(map(steps.join_steps, zip(*outputs, strict=True))), tuple(map(steps.restore_documents, now))


@contextlib.contextmanager
def ignore_chunk_warning() -> Iterator[None]:
    """Ignore the warning about weights that are not contiguous: cuDNN copies them, at hardly any cost."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield


class Cell(nn.Module):
    """The weights of one direction: what is read and what is remembered, the gates one below the other as torch has
    them (LSTM: in, forget, cell, out; GRU: reset, update, new)."""

    def __init__(self, width: int, dim: int, gates: int):
        super().__init__()
        self.read, self.recall = nn.Linear(width, gates * dim), nn.Linear(dim, gates * dim)

    @property
    def kernel_weights(self) -> tuple[Tensor, ...]:
        """Weights and biases in the order of torch's kernels."""
        return self.read.weight, self.recall.weight, self.read.bias, self.recall.bias


class RecurrentLayer(nn.Module):
    """One recurrent layer, in one or both directions; their outputs stand side by side, forward first."""

    def __init__(self, kind: CellKind, width: int, dim: int, *, bidirectional: bool = False):
        super().__init__()
        self.sequence_kernel, self.step_kernel, gates, self.state_parts = CELL_KERNELS[kind]
        self.dim, self.out_dim = dim, dim * (2 if bidirectional else 1)
        self.ahead = Cell(width, dim, gates)
        self.behind = Cell(width, dim, gates) if bidirectional else None

    @property
    def cells(self) -> list[Cell]:
        """One for each direction."""
        return [self.ahead] if self.behind is None else [self.ahead, self.behind]

    def build_zero_state(self, x: Tensor, rows: int) -> RNNState:
        """Return the state before the first token."""
        return tuple(x.new_zeros(rows, self.out_dim) for _ in range(self.state_parts))

    def forward(self, x: Tensor, steps: PackedSteps, state: RNNState | None = None) -> tuple[Tensor, RNNState]:
        """(N, width) → (N, out), and the state after each document's last token; an empty document keeps its state."""
        state = self.build_zero_state(x, steps.layout.rows) if state is None else state
        if steps.is_static:
            return self.run_unrolled(x, steps, state)
        if not steps.step_sizes:
            return x.new_zeros(0, self.out_dim), state
        weights = [w.to(x.dtype) for cell in self.cells for w in cell.kernel_weights]
        initial = [steps.sort_documents(s) for s in state]
        turned = [s[: steps.step_sizes[0]].unflatten(1, (-1, self.dim)).transpose(0, 1).contiguous() for s in initial]
        sizes, start = torch.tensor(steps.step_sizes, device="cpu"), turned if self.state_parts == 2 else turned[0]
        train, both = torch.is_grad_enabled(), self.behind is not None
        with ignore_chunk_warning() if x.is_cuda else contextlib.nullcontext():
            ordered = x.index_select(0, steps.step_order)
            y, *ends = self.sequence_kernel(ordered, sizes, start, weights, True, 1, 0.0, train, both)
        ended = [e.transpose(0, 1).flatten(1) for e in ends]  # (directions, n, dim) → (n, out)
        after = [steps.restore_documents(steps.carry_state(0, e, s)) for e, s in zip(ended, initial, strict=True)]
        return y.index_select(0, steps.slot_order), tuple(after)

    def run_unrolled(self, x: Tensor, steps: PackedSteps, state: RNNState) -> tuple[Tensor, RNNState]:
        """Run step by step, which torch.compile can follow."""
        outputs, ends = [], []
        initial = zip(*(s.split(self.dim, 1) for s in state), strict=True)
        for cell, start in zip(self.cells, initial, strict=True):

            def step(t: int, x: Tensor, state: RNNState, cell: Cell = cell) -> tuple[RNNState, RNNState]:
                return self.run_step(x, state, cell)

            back = cell is self.behind
            (y,), end = run_steps(steps, steps.reverse_documents(x) if back else x, start, step)
            outputs.append(steps.reverse_documents(y) if back else y)
            ends.append(end)
        return torch.cat(outputs, 1), tuple(torch.cat(parts, 1) for parts in zip(*ends, strict=True))

    def run_step(self, x: Tensor, state: RNNState, cell: Cell | None = None) -> tuple[RNNState, RNNState]:
        """Read one token of each row (n, width) → its output (n, dim), and the new state."""
        weights = (w.to(x.dtype) for w in (cell or self.ahead).kernel_weights)
        new_state = self.step_kernel(x, state if self.state_parts == 2 else state[0], *weights)
        new = (new_state,) if isinstance(new_state, Tensor) else tuple(new_state)
        return new[:1], new


class RecurrentStack(nn.ModuleList):
    """Recurrent layers one above the other, with dropout between them. From layer number `first_residual` on (the
    lowest is 0), what a layer reads is added to what it gives (GNMT)."""

    def __init__(self, layers: Iterable[RecurrentLayer], dropout: float = 0.0, first_residual: int | None = None):
        super().__init__(layers)
        self.dropout, self.first_residual = dropout, first_residual

    def build_zero_state(self, x: Tensor, rows: int) -> RNNState:
        """Return the state before the first token."""
        return tuple(s for layer in self for s in cast(RecurrentLayer, layer).build_zero_state(x, rows))

    def run_layers(
        self, x: Tensor, state: RNNState, call: Callable[[RecurrentLayer, Tensor, RNNState], tuple[Tensor, RNNState]],
        extra_input: Tensor | None = None, record: Callable[[Tensor], None] | None = None,
    ) -> tuple[Tensor, RNNState]:  # fmt: skip
        """Run all layers by `call`, with `extra_input` beside each layer's input; `record` gets the inputs."""
        after: list[Tensor] = []
        parts = len(state) // len(self) if len(self) else 0  # tensors of each layer's state
        for i, layer in enumerate(self):
            if record is not None:
                record(x)
            inner = F.dropout(x, self.dropout, self.training) if i else x
            inner = inner if extra_input is None else torch.cat((inner, extra_input), 1)
            y, new = call(cast(RecurrentLayer, layer), inner, state[i * parts : (i + 1) * parts])
            x = y if self.first_residual is None or i < self.first_residual else y + x
            after += new
        return x, tuple(after)

    def forward(
        self, x: Tensor, steps: PackedSteps, state: RNNState | None = None, *, extra_input: Tensor | None = None,
        capture: Capture | None = None, stack_name: str = "encoder",
    ) -> tuple[Tensor, RNNState]:  # fmt: skip
        """(N, width) → (N, out), and the state after each document's last token."""
        state = self.build_zero_state(x, steps.layout.rows) if state is None else state
        record = None if capture is None else lambda x: capture.record_hidden(stack_name, x)
        return self.run_layers(x, state, lambda layer, x, own: layer(x, steps, own), extra_input, record)

    def run_step(self, x: Tensor, state: RNNState) -> tuple[Tensor, RNNState]:
        """Read one token of each row (n, width) → (n, out), and the new state."""

        def call(layer: RecurrentLayer, x: Tensor, own: RNNState) -> tuple[Tensor, RNNState]:
            (y,), new = layer.run_step(x, own)
            return y, new

        return self.run_layers(x, state, call)
