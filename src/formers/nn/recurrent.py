"""Recurrent layers over packed documents.

N tokens (packed), D documents, n of them still running at a step. A state is (h,), or (h, c) of an LSTM, one after the
other for all layers, each (D, directions · dim) in the order of the documents. It belongs to the caller.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..batch import Layout
from .probe import Probe

Kind = Literal["rnn", "lstm", "gru"]
State = tuple[Tensor, ...]
# By kind: a whole sequence, one step, the number of gates, the parts of a state.
KERNELS: dict[str, tuple[Any, Any, int, int]] = {
    "rnn": (torch.rnn_tanh, torch.rnn_tanh_cell, 1, 1),
    "lstm": (torch.lstm, torch.lstm_cell, 4, 2),
    "gru": (torch.gru, torch.gru_cell, 3, 1),
}


class Steps:
    """A packed batch in the order of reading: all first tokens, all second ones, and so on.

    Longer documents come first, so the tokens of step t belong to the first `sizes[t]` of them, and nothing is computed
    for those that have ended. A compiled graph has fixed shapes: there all documents run as long as the longest, in
    their own order, and what comes after an end is dropped.
    """

    def __init__(self, layout: Layout):
        self.layout, self.fixed = layout, torch.compiler.is_compiling()
        self.sizes = [layout.rows] * layout.longest
        if self.fixed:
            return
        self.order = layout.lengths.argsort(descending=True, stable=True)  # (D,)
        self.rank = self.order.argsort()  # (D,)
        self.slots = (layout.position * layout.rows + self.rank[layout.document]).argsort()  # (N,)
        self.back = self.slots.argsort()  # (N,)
        if not layout.uniform:
            self.sizes = layout.position.bincount().tolist()

    def first(self, x: Tensor) -> Tensor:
        """(D, ...) with the longest documents first."""
        return x if self.fixed else x.index_select(0, self.order)

    def restore(self, x: Tensor) -> Tensor:
        """The same back into the documents' order."""
        return x if self.fixed else x.index_select(0, self.rank)

    def split(self, x: Tensor) -> Sequence[Tensor]:
        """(N, ...) → one (n, ...) for each step."""
        if self.fixed:
            return self.layout.unpack(x).unbind(1)
        return x.index_select(0, self.slots).split(self.sizes) if self.sizes else ()

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The same back into one (N, ...)."""
        if self.fixed:
            return self.layout.pack(torch.stack(tuple(parts), 1))
        return torch.cat(tuple(parts)).index_select(0, self.back)

    def carry(self, step: int, new: Tensor, old: Tensor) -> Tensor:
        """The state after a step: new where a document had a token, else as it was."""
        if self.fixed:
            return torch.where((step < self.layout.lengths)[:, None], new, old)
        return new if len(new) == len(old) else torch.cat((new, old[len(new) :]))

    def mirror(self, x: Tensor) -> Tensor:
        """(N, ...) with every document read from its end."""
        at = self.layout
        return x.index_select(0, at.starts[at.document + 1] - 1 - at.position)


Step = Callable[[int, Tensor, State], tuple[State, State]]


def walk(steps: Steps, x: Tensor, state: State, step: Step) -> tuple[State, State]:
    """Read packed x (N, width) token by token: step(t, x (n, width), state (n, ...)) → (outputs (n, ...), new state).

    Gives the outputs (N, ...) and the state after each document's last token. The rows that `step` sees are those of
    `steps.first`, cut at n.
    """
    now, outputs = tuple(steps.first(s) for s in state), []
    for t, part in enumerate(steps.split(x)):
        out, new = step(t, part, tuple(s[: len(part)] for s in now))
        outputs.append(out)
        now = tuple(steps.carry(t, a, b) for a, b in zip(new, now, strict=True))
    return tuple(map(steps.join, zip(*outputs, strict=True))), tuple(map(steps.restore, now))


@contextlib.contextmanager
def one_piece() -> Iterator[None]:
    """Say nothing of weights that are not one piece of memory: cuDNN copies them, which costs next to nothing."""
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
    def weights(self) -> tuple[Tensor, ...]:
        """As torch's kernels take them."""
        return self.read.weight, self.recall.weight, self.read.bias, self.recall.bias


class Recurrent(nn.Module):
    """One recurrent layer, in one or both directions; their outputs stand side by side, forward first."""

    def __init__(self, kind: Kind, width: int, dim: int, *, both: bool = False):
        super().__init__()
        self.kernel, self.cell, gates, self.parts = KERNELS[kind]
        self.dim, self.out = dim, dim * (2 if both else 1)
        self.ahead = Cell(width, dim, gates)
        self.behind = Cell(width, dim, gates) if both else None

    @property
    def cells(self) -> list[Cell]:
        """One for each direction."""
        return [self.ahead] if self.behind is None else [self.ahead, self.behind]

    def zeros(self, x: Tensor, rows: int) -> State:
        """The state before the first token."""
        return tuple(x.new_zeros(rows, self.out) for _ in range(self.parts))

    def forward(self, x: Tensor, steps: Steps, state: State | None = None) -> tuple[Tensor, State]:
        """(N, width) → (N, out), and the state after each document's last token; an empty document keeps its state."""
        state = self.zeros(x, steps.layout.rows) if state is None else state
        if steps.fixed:
            return self.unrolled(x, steps, state)
        if not steps.sizes:
            return x.new_zeros(0, self.out), state
        weights = [w.to(x.dtype) for cell in self.cells for w in cell.weights]
        begun = [steps.first(s) for s in state]
        turned = [s[: steps.sizes[0]].unflatten(1, (-1, self.dim)).transpose(0, 1).contiguous() for s in begun]
        sizes, start = torch.tensor(steps.sizes, device="cpu"), turned if self.parts == 2 else turned[0]
        train, both = torch.is_grad_enabled(), self.behind is not None
        with one_piece() if x.is_cuda else contextlib.nullcontext():
            y, *ends = self.kernel(x.index_select(0, steps.slots), sizes, start, weights, True, 1, 0.0, train, both)
        ended = [e.transpose(0, 1).flatten(1) for e in ends]  # (directions, n, dim) → (n, out)
        after = [steps.restore(steps.carry(0, e, s)) for e, s in zip(ended, begun, strict=True)]
        return y.index_select(0, steps.back), tuple(after)

    def unrolled(self, x: Tensor, steps: Steps, state: State) -> tuple[Tensor, State]:
        """The same step by step, which torch.compile can follow."""
        outputs, ends = [], []
        begun = zip(*(s.split(self.dim, 1) for s in state), strict=True)
        for cell, start in zip(self.cells, begun, strict=True):

            def step(t: int, x: Tensor, state: State, cell: Cell = cell) -> tuple[State, State]:
                return self.once(x, state, cell)

            back = cell is self.behind
            (y,), end = walk(steps, steps.mirror(x) if back else x, start, step)
            outputs.append(steps.mirror(y) if back else y)
            ends.append(end)
        return torch.cat(outputs, 1), tuple(torch.cat(parts, 1) for parts in zip(*ends, strict=True))

    def once(self, x: Tensor, state: State, cell: Cell | None = None) -> tuple[State, State]:
        """One token for each row (n, width) → its output (n, dim), and the new state."""
        weights = (w.to(x.dtype) for w in (cell or self.ahead).weights)
        new = self.cell(x, state if self.parts == 2 else state[0], *weights)
        new = tuple(new) if self.parts == 2 else (new,)
        return new[:1], new


class Layers(nn.ModuleList):
    """Recurrent layers one above the other, with dropout between them.

    From layer number `residual` on (the lowest is 0), what a layer reads is added to what it gives (GNMT).
    """

    def __init__(self, layers: Iterable[Recurrent], dropout: float = 0.0, residual: int | None = None):
        super().__init__(layers)
        self.dropout, self.residual = dropout, residual

    def each(self, state: State) -> list[State]:
        """A state, layer by layer."""
        parts = len(state) // len(self) if len(self) else 0
        return [state[i * parts : (i + 1) * parts] for i in range(len(self))]

    def zeros(self, x: Tensor, rows: int) -> State:
        """The state before the first token."""
        return tuple(s for layer in self for s in cast(Recurrent, layer).zeros(x, rows))

    def run(
        self, x: Tensor, state: State, call: Callable[[Recurrent, Tensor, State], tuple[Tensor, State]],
        beside: Tensor | None = None, see: Callable[[Tensor], None] | None = None,
    ) -> tuple[Tensor, State]:  # fmt: skip
        """Through all layers by `call`; `beside` is put beside what each reads, and `see` sees what is read."""
        after: list[Tensor] = []
        for i, (layer, own) in enumerate(zip(self, self.each(state), strict=True)):
            if see is not None:
                see(x)
            inner = F.dropout(x, self.dropout, self.training) if i else x
            y, new = call(cast(Recurrent, layer), inner if beside is None else torch.cat((inner, beside), 1), own)
            x = y if self.residual is None or i < self.residual else y + x
            after += new
        return x, tuple(after)

    def forward(
        self, x: Tensor, steps: Steps, state: State | None = None, *, beside: Tensor | None = None,
        probe: Probe | None = None, kind: str = "encoder",
    ) -> tuple[Tensor, State]:  # fmt: skip
        """(N, width) → (N, out), and the state after each document's last token."""
        state = self.zeros(x, steps.layout.rows) if state is None else state
        see = None if probe is None else lambda x: probe.state(kind, x)
        return self.run(x, state, lambda layer, x, own: layer(x, steps, own), beside, see)

    def once(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One token for each row (n, width) → (n, out), and the new state."""

        def call(layer: Recurrent, x: Tensor, own: State) -> tuple[Tensor, State]:
            (y,), new = layer.once(x, own)
            return y, new

        return self.run(x, state, call)
