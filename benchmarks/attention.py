"""GPU: attention over packed documents alone, every candidate kernel, forward and backward, with and without dropout.

    python -m benchmarks.attention
    python -m benchmarks.attention recorded     # packed documents by flash attention and cuDNN, as CUDA graphs

Twelve heads of 64 in bf16: GPT-2's 32 documents of 1,024 (causal), BERT's 64 of 512, and BERT's ragged documents. The
figure is the median time in milliseconds of one layer; `error` is the relative distance of the output from float32. In
a recorded graph cuDNN does not plan anew in every call; errors of output and gradients are those of a replay on other
documents than were recorded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.harness import describe_machine
from formers.nn.attention.kernels.biased_flash import biased_flash_attention

HEADS, HEAD_DIM, DEVICE = 12, 64, "cuda"
Candidate = Callable[[Tensor, Tensor, Tensor], Tensor]


def make_starts(lengths: list[int]) -> Tensor:
    """Where each document begins, and the end of the last."""
    return F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(DEVICE, torch.int32)


def draw_ragged_lengths(count: int, longest: int) -> list[int]:
    """Lengths of documents, evenly between 8 and `longest`."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(8, longest + 1, (count,), generator=generator).tolist()


def list_candidates(lengths: list[int], is_causal: bool, dropout: float) -> dict[str, Candidate]:
    """Kernels by name, each from packed (N, H, D) queries, keys and values to the output."""
    starts, longest, count = make_starts(lengths), max(lengths), len(lengths)
    ranks = torch.cat([torch.arange(n, device=DEVICE) for n in lengths]) if is_causal else None

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pair = None if ranks is None else (ranks, ranks)
        return biased_flash_attention(
            q, k, v, (starts, starts), (longest, longest), HEAD_DIM**-0.5, ranks=pair, dropout=dropout
        )

    def flash_varlen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        forward: Any = torch.ops.aten._flash_attention_forward
        return forward(q, k, v, starts, starts, longest, longest, dropout, is_causal, False)[0]

    def cudnn_varlen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        forward: Any = torch.ops.aten._cudnn_attention_forward
        return forward(q, k, v, None, starts, starts, longest, longest, True, dropout, is_causal, False)[0]

    def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return compiled_flex(*(t.transpose(0, 1)[None] for t in (q, k, v)), block_mask=blocks)[0].transpose(0, 1)

    def on_grid(backend: SDPBackend) -> Candidate:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            grids = (t.view(count, longest, HEADS, HEAD_DIM).transpose(1, 2) for t in (q, k, v))
            with sdpa_kernel(backend):
                out = F.scaled_dot_product_attention(*grids, dropout_p=dropout, is_causal=is_causal)
            return out.transpose(1, 2).reshape(q.shape)

        return attend

    found: dict[str, Candidate] = {"biased_flash (ours)": ours, "flash varlen": flash_varlen}
    found["cudnn varlen"] = cudnn_varlen
    if min(lengths) == longest:
        found |= {"flash grid": on_grid(SDPBackend.FLASH_ATTENTION), "cudnn grid": on_grid(SDPBackend.CUDNN_ATTENTION)}
    if not dropout:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        document = torch.repeat_interleave(torch.arange(count, device=DEVICE), torch.tensor(lengths, device=DEVICE))

        def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (document[i] == document[j]) & ((j <= i) if is_causal else True)

        blocks = create_block_mask(visible, None, None, len(document), len(document), device=DEVICE)
        compiled_flex = torch.compile(flex_attention)
        found["flex"] = flex
    return found


def compute_reference(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], is_causal: bool) -> Tensor:
    """The output in float32, one document after the other."""
    parts, at = [], 0
    for n in lengths:
        one = (t[at : at + n].float().transpose(0, 1)[None] for t in (q, k, v))
        parts.append(F.scaled_dot_product_attention(*one, is_causal=is_causal)[0].transpose(0, 1))
        at += n
    return torch.cat(parts)


def time_case(name: str, lengths: list[int], is_causal: bool) -> None:
    """All candidates on one set of documents."""
    from triton.testing import do_bench

    torch.manual_seed(0)
    shape = (sum(lengths), HEADS, HEAD_DIM)
    q, k, v, d_out = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(4))
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    reference = compute_reference(q, k, v, lengths, is_causal)
    for dropout in (0.0, 0.1):
        for kernel, attend in list_candidates(lengths, is_causal, dropout).items():
            try:
                out = attend(q, k, v)
                error = ((out.float() - reference).norm() / reference.norm()).item()
                forward = do_bench(lambda a=attend: a(q, k, v), return_mode="median")

                def both(a: Candidate = attend) -> None:
                    a(q, k, v).backward(d_out)
                    q.grad = k.grad = v.grad = None

                whole = do_bench(both, return_mode="median")
                shown = f"{forward:6.3f} {whole:6.3f} ms   error {error:.4f}"
            except Exception as trouble:  # a candidate may be missing in this version of torch
                shown = f"failed: {type(trouble).__name__}: {' '.join(str(trouble).split())[:110]}"
            print(f"{name:14s} dropout {dropout} {kernel:20s} {shown}", flush=True)


def time_recorded(name: str, lengths: list[int], other_lengths: list[int], is_causal: bool) -> None:
    """Flash attention and cuDNN over packed documents, forward and backward recorded as one graph."""
    from triton.testing import do_bench

    shape, longest = (sum(lengths), HEADS, HEAD_DIM), max(lengths)
    starts, other_starts = make_starts(lengths), make_starts(other_lengths)
    kernels: dict[str, Any] = {
        "flash varlen": lambda q, k, v, rate: torch.ops.aten._flash_attention_forward(
            q, k, v, starts, starts, longest, longest, rate, is_causal, False
        )[0],
        "cudnn varlen": lambda q, k, v, rate: torch.ops.aten._cudnn_attention_forward(
            q, k, v, None, starts, starts, longest, longest, True, rate, is_causal, False
        )[0],
    }
    torch.manual_seed(0)
    d_out = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
    leaves = [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    for dropout in (0.0, 0.1):
        for kernel, attend in kernels.items():
            row: dict[str, Any] = {"case": name, "dropout": dropout, "kernel": kernel}
            try:
                starts.copy_(make_starts(lengths))

                def both(attend: Any = attend, dropout: float = dropout) -> tuple[Tensor, ...]:
                    out = attend(*leaves, dropout)
                    return out, *torch.autograd.grad(out, leaves, d_out)

                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    both()
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    found = both()
                row["ms"] = round(do_bench(graph.replay, return_mode="median"), 3)
                if not dropout:
                    starts.copy_(other_starts)
                    graph.replay()
                    exact = [t.detach().float().requires_grad_() for t in leaves]
                    out = compute_reference(exact[0], exact[1], exact[2], other_lengths, is_causal)
                    wanted = (out, *torch.autograd.grad(out, exact, d_out.float()))
                    pairs = zip(found, wanted, strict=True)
                    row["errors"] = [round(float((a.float() - b).norm() / b.norm()), 4) for a, b in pairs]
            except Exception as trouble:
                row["error"] = f"{type(trouble).__name__}: {' '.join(str(trouble).split())[:300]}"
            print(json.dumps(row), flush=True)


def main() -> None:
    """Three sets of documents."""
    print(describe_machine())
    if sys.argv[1:] == ["recorded"]:
        time_recorded("GPT-2", [1024] * 31 + [1000, 24], [24, 1000] + [1024] * 31, True)
        time_recorded("BERT", [512] * 63 + [500, 12], [12, 500] + [512] * 63, False)
        ragged = draw_ragged_lengths(64, 512)
        time_recorded("BERT ragged", [*ragged, 512], [*ragged[::-1], 512], False)
        return
    time_case("GPT-2 32x1024", [1024] * 32, True)
    time_case("BERT 64x512", [512] * 64, False)
    time_case("BERT ragged", draw_ragged_lengths(64, 512), False)
    time_case("GPT-2 ragged", draw_ragged_lengths(64, 1024), True)


if __name__ == "__main__":
    main()
