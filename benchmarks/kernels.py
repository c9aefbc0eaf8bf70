"""GPU: kernels of our own beside what they would replace, one at a time, in bf16.

    python -m benchmarks.kernels [GROUP ...]

One JSON line for each candidate: its shape, the median milliseconds forward and backward, and the largest error of the
output and of each gradient against float32, relative to the largest number in it. A candidate that fails says so, and
the others are measured nevertheless. All groups are compiled at the same time first, then timed one after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import describe_machine, exit_with_help
from formers.nn import linear_cross_entropy
from formers.nn.attention.kernels import biased_flash, relative_flash

DEVICE, KIND = "cuda", torch.bfloat16
COMPILE_ONLY = "--compile-only"
IS_COMPILING = COMPILE_ONLY in sys.argv
Compute = Callable[..., Tensor | Sequence[Tensor]]


def time_call(call: Callable[[], object]) -> float:
    """The median milliseconds of a call; while all is being compiled, one call."""
    if IS_COMPILING:
        call()
        return 0.0
    from triton.testing import do_bench

    return float(do_bench(call, warmup=10, rep=40, return_mode="median"))


def print_line(line: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
    """Measure, and print what was found or how it failed."""
    try:
        line = line | measure()
    except Exception as trouble:
        line = line | {"error": f"{type(trouble).__name__}: {' '.join(str(trouble).split())[:600]}"}
        if not IS_COMPILING:
            traceback.print_exc(limit=3)
    if not IS_COMPILING:
        print(json.dumps(line), flush=True)


def measure_candidate(
    group: str, name: str, shape: str, compute: Compute, leaves: Sequence[Tensor], reference: Compute | None = None
) -> None:
    """Print the times and errors of a computation with gradients: from leaves to an output or several."""

    def measure() -> dict[str, Any]:
        found: dict[str, Any] = {}
        outs = as_tuple(compute(*leaves))
        pulls = [torch.randn_like(out) for out in outs]
        if reference is not None:
            grads = torch.autograd.grad(outs, leaves, pulls, retain_graph=True)
            exact = [t.detach().float().requires_grad_() for t in leaves]
            wanted = as_tuple(reference(*exact))
            true = torch.autograd.grad(wanted, exact, [p.float() for p in pulls])
            pairs = zip((*outs, *grads), (*wanted, *true), strict=True)
            found["errors"] = [
                round(float((a.detach().float() - b.detach()).abs().max() / b.detach().abs().max()), 5)
                for a, b in pairs
            ]
        forward = time_call(lambda: compute(*leaves))
        both = time_call(lambda: torch.autograd.grad(as_tuple(compute(*leaves)), leaves, pulls))
        times = {"forward_ms": forward, "backward_ms": both - forward, "both_ms": both}
        return found | {key: round(value, 4) for key, value in times.items()}

    print_line({"group": group, "candidate": name, "shape": shape}, measure)


def measure_call(group: str, name: str, shape: str, call: Callable[[], object]) -> None:
    """Print the time of a call."""
    print_line({"group": group, "candidate": name, "shape": shape}, lambda: {"ms": round(time_call(call), 4)})


def as_tuple(outs: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """One output or several as a tuple."""
    return (outs,) if isinstance(outs, Tensor) else tuple(outs)


def make_leaves(*shapes: tuple[int, ...], scale: float = 1.0) -> list[Tensor]:
    """Random numbers that want gradients."""
    torch.manual_seed(0)
    return [(torch.randn(shape, device=DEVICE) * scale).to(KIND).requires_grad_() for shape in shapes]


@contextmanager
def use_settings(module: Any, **settings: Any) -> Iterator[None]:
    """Give constants of a module other values."""
    before = {name: getattr(module, name) for name in settings}
    for name, value in settings.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


class RelativeCase:
    """XLNet's content stream: 12 heads of 64, an order of visibility in which the last 80 tokens come one by one."""

    def __init__(self, documents: int, length: int, dropout: float):
        heads, dim, self.scale = 12, 64, 64**-0.5
        self.documents, self.length, self.dropout, total = documents, length, dropout, documents * length
        starts = torch.arange(0, total + 1, length, device=DEVICE, dtype=torch.int32)
        order = (torch.arange(length, device=DEVICE) - (length - 81)).clamp(min=0).repeat(documents).to(torch.int32)
        self.starts, self.longest, self.ranks = (starts, starts), (length, length), (order, order)
        self.leaves = make_leaves(*[(total, heads, dim)] * 4, (2 * length, heads, dim))
        self.shape = f"{documents} × {length}, dropout {dropout}"

    def attend_by_table(self, q: Tensor, e: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
        """Scores by distance as a table."""
        scores = (e * self.scale).transpose(0, 1) @ r.permute(1, 2, 0)
        return biased_flash.biased_flash_attention(
            q, k, v, self.starts, self.longest, self.scale, scores=scores, ranks=self.ranks, dropout=self.dropout
        )

    def attend(self, q: Tensor, e: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
        """Scores by distance inside the kernel."""
        return relative_flash.relative_flash_attention(
            q, k, v, self.starts, self.longest, self.scale, distance_queries=e, encodings=r, ranks=self.ranks,
            dropout=self.dropout,
        )  # fmt: skip

    def attend_plainly(self, q: Tensor, e: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
        """All scores on a grid, without dropout."""
        (_, heads, dim), documents, length = q.shape, self.documents, self.length
        at = torch.arange(length, device=DEVICE)
        by_distance = torch.einsum("nhd,whd->nhw", e, r).view(documents, length, heads, -1)
        columns = (length - 1 - at[:, None] + at)[None, :, None].expand(documents, -1, heads, -1)
        bias = by_distance.gather(3, columns).transpose(1, 2) * self.scale
        order = self.ranks[0].view(documents, 1, length)
        hidden = order[:, :, None] > order[..., None]
        grids = (t.view(documents, length, heads, dim).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(*grids, attn_mask=bias.masked_fill(hidden, -torch.inf), scale=self.scale)
        return out.transpose(1, 2).reshape(q.shape)


def measure_relative(documents: int, length: int, dropout: float) -> None:
    """XLNet's attention by each kernel; errors if there are few documents."""
    case = RelativeCase(documents, length, dropout)
    reference = case.attend_plainly if documents < 32 else None
    measure_candidate("relative", "relative_flash", case.shape, case.attend, case.leaves, reference)
    if length == 512:
        name = "biased_flash on a table of scores"
        measure_candidate("relative", name, case.shape, case.attend_by_table, case.leaves, reference)


TILE_NAMES = {
    "forward": "FORWARD_TILES", "backward_queries": "QUERY_GRAD_TILES", "backward_keys": "KEY_GRAD_TILES",
}  # fmt: skip
# Block, warps and stages that are timed, the present ones first. benchmarks/kernel_builds.py gives registers and bytes
# spilled; with a block of 128 the forward spills 976, and with 8 warps it took twice as long.
RELATIVE_TILES = {
    "forward": ((64, 4, 2), (64, 2, 2), (64, 4, 3), (32, 2, 3)),
    "backward_queries": ((64, 4, 3), (64, 4, 2), (64, 4, 4), (32, 2, 3), (32, 4, 3), (64, 8, 3)),
    "backward_keys": ((64, 4, 2), (32, 2, 2), (32, 2, 1), (32, 2, 3), (32, 1, 2), (64, 4, 1)),
}
# Queries and keys of a block, warps and stages
BIASED_TILES = {
    "forward": ((128, 64, 4, 3), (128, 64, 4, 2), (64, 64, 4, 2), (64, 64, 2, 2), (128, 32, 4, 2), (64, 32, 2, 2),
                (128, 64, 8, 2)),
    "backward_queries": ((32, 64, 2, 2), (64, 64, 4, 2), (32, 32, 2, 2), (64, 32, 4, 2), (64, 32, 2, 2),
                         (64, 64, 4, 1), (64, 64, 4, 3), (128, 64, 8, 2), (32, 64, 4, 2)),
    "backward_keys": ((32, 64, 4, 2), (64, 64, 4, 2), (32, 32, 2, 2), (64, 32, 4, 2), (64, 32, 2, 2), (64, 64, 4, 1),
                      (64, 64, 4, 3), (64, 128, 8, 2), (32, 64, 2, 2)),
}  # fmt: skip


def measure_tiles(module: Any, name: str, shape: str, inputs: Sequence[Any], tiles: Sequence[tuple[int, ...]]) -> None:
    """One kernel of a module alone, with other tiles: the others are left out."""
    out, log = module.forward(*inputs)
    loaded = module.load_kernels()
    others = [
        other
        for other in (*TILE_NAMES, "backward_encodings", "sum_products")
        if other != name and hasattr(loaded, other)
    ]
    for size in tiles:
        settings = {TILE_NAMES[name]: size}
        with (
            use_settings(loaded, **{other: SkippedKernel() for other in others}),
            use_settings(module, **settings),
        ):
            *block, warps, stages = size
            label = f"block {' x '.join(map(str, block))}, {warps} warps, {stages} stages"
            group = f"{module.__name__.rpartition('.')[2]}-{name}"
            measure_call(
                group, label, shape,
                lambda: module.forward(*inputs) if name == "forward" else module.backward(out, out, log, *inputs),
            )  # fmt: skip


def measure_relative_kernel(name: str) -> None:
    """One kernel of relative_flash alone."""
    case = RelativeCase(32, 512, 0.1)
    seed = torch.ones(1, dtype=torch.int64, device=DEVICE)
    tensors = (*(t.detach() for t in case.leaves), *case.starts, None, None, None, *case.ranks, seed)
    inputs = (*tensors, *case.longest, case.scale, case.dropout)
    measure_tiles(relative_flash, name, case.shape, inputs, RELATIVE_TILES[name])


def measure_biased_kernel(name: str) -> None:
    """One kernel of biased_flash alone, on a layer of T5's encoder: a table of biases, dropout."""
    documents, length, heads, dim = 32, 512, 12, 64
    starts = torch.arange(0, documents * length + 1, length, device=DEVICE, dtype=torch.int32)
    q, k, v, bias = make_leaves(*[(documents * length, heads, dim)] * 3, (heads, length, length))
    seed = torch.ones(1, dtype=torch.int64, device=DEVICE)
    tensors = (*(t.detach() for t in (q, k, v)), starts, starts, bias.detach(), *[None] * 6, seed)
    inputs = (*tensors, length, length, 1.0, 0.1, False)
    measure_tiles(biased_flash, name, f"{documents} x {length}", inputs, BIASED_TILES[name])


LOSS_TILES = (
    (2048, 8, 1),
    (2048, 8, 8),
    (2048, 4, 8),
    (4096, 4, 8),
    (4096, 8, 8),
    (4096, 16, 8),
    (8192, 8, 8),
    (8192, 16, 8),
    (8192, 32, 8),
    (16384, 32, 8),
)  # columns, warps, columns with one running maximum


def measure_loss() -> None:
    """The kernel of the fused loss on a piece of GPT-2's logits, with other blocks and warps."""
    rows, width = 8192, 50304
    logits = torch.randn(rows, width, device=DEVICE, dtype=KIND)
    labels, losses = torch.randint(0, width, (rows,), device=DEVICE), torch.empty(rows, device=DEVICE)
    kernel = linear_cross_entropy.load_kernels().overwrite_logits
    want = None
    for columns, warps, group in LOSS_TILES:

        def call(columns: int = columns, warps: int = warps, group: int = group) -> None:
            kernel[(rows,)](
                logits, labels, losses, width, 50257, 0.0, 1 / 50257, -100, SMOOTHED=False, COLUMNS=columns,
                GROUP=group, num_warps=warps, num_stages=2,
            )  # fmt: skip

        logits.normal_(generator=torch.Generator(DEVICE).manual_seed(0))
        call()
        want = losses.clone() if want is None else want
        if not torch.allclose(losses, want, rtol=1e-4):
            print(json.dumps({"group": "loss", "error": f"{columns} columns, {warps} warps: other losses"}), flush=True)
        measure_call("loss", f"{columns} columns, {warps} warps, {group} share a maximum", f"{rows} x {width}", call)


class SkippedKernel:
    """A kernel that does nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *given, **named: None


GROUPS: dict[str, Callable[[], None]] = {
    "relative": partial(measure_relative, 32, 512, 0.1), "relative-no-dropout": partial(measure_relative, 32, 512, 0.0),
    "relative-errors": partial(measure_relative, 2, 512, 0.0),
    "relative-uneven": partial(measure_relative, 3, 200, 0.0),
    **{f"relative_flash-{name}": partial(measure_relative_kernel, name) for name in TILE_NAMES},
    **{f"biased_flash-{name}": partial(measure_biased_kernel, name) for name in TILE_NAMES},
    "loss": measure_loss,
}  # fmt: skip


def main() -> None:
    """All groups, or those that are named."""
    exit_with_help(__doc__)
    names = [name for name in sys.argv[1:] if name != COMPILE_ONLY] or list(GROUPS)
    if not IS_COMPILING:
        print(json.dumps(describe_machine()), flush=True)
        began, command = time.perf_counter(), [sys.executable, "-m", "benchmarks.kernels", COMPILE_ONLY]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        workers = [subprocess.Popen([*command, name], env=environment, **quiet) for name in names]
        for worker in workers:
            worker.wait()
        print(json.dumps({"compiled_s": round(time.perf_counter() - began, 1)}), flush=True)
    for name in names:
        try:
            GROUPS[name]()
        except Exception as trouble:
            print(json.dumps({"group": name, "error": repr(trouble)[:600]}), flush=True)


if __name__ == "__main__":
    main()
