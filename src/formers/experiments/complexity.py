"""Complexity: time and memory of one layer of attention, recurrence and convolution over the length, measured."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..batch import Batch
from ..errors import Error
from ..nn.attention.attention import Attention
from ..nn.attention.context import AttentionContext
from ..nn.recurrent.rnn import PackedSteps, RecurrentLayer
from ..reports.pictures import draw_curves
from .page import Page

EXPLANATION = (
    ("Both axes are logarithmic: a slope of 1 means time in proportion to the length n, a slope of 2 to its square.",
     "두 축 모두 로그입니다. 기울기 1은 길이 n에, 기울기 2는 n의 제곱에 비례함을 뜻합니다."),
    ("Attention costs n²·d, recurrence n·d², convolution k·n·d²: counted so, attention is the cheaper of the first two while n is below d; compare with the times measured.",
     "어텐션은 n²·d, 순환은 n·d², 합성곱은 k·n·d²입니다. 계산량으로는 n이 d보다 작으면 어텐션이 순환보다 쌉니다. 측정한 시간과 비교하십시오."),
    ("The crossing point is the length from which a layer of attention takes longer than an LSTM; compare attention that keeps its weights with the fused kernel.",
     "교차점은 어텐션 레이어가 LSTM보다 오래 걸리기 시작하는 길이입니다. 가중치를 저장하는 어텐션과 융합 커널의 교차점을 비교하십시오."),
    ("Kept for the backward pass, the weights of attention grow with n²; a fused kernel computes them again instead.",
     "역전파를 위해 저장하는 어텐션 가중치는 n²로 늘어나며, 융합 커널은 저장하는 대신 다시 계산합니다."),
    ("Recurrence takes n steps that must wait for each other, attention one: this shows with a single text, and is hidden with --texts 64, since every step then computes all texts together.",
     "서로 기다려야 하는 단계는 순환이 n개, 어텐션이 1개입니다. 텍스트 하나만 읽으면 그 차이가 드러나고, 단계마다 텍스트를 모두 함께 계산하는 --texts 64에서는 가려집니다."),
)  # fmt: skip
KERNEL_WIDTH, HEADS = 3, 4
SHORTEST = 32
Layer = Callable[[Tensor, Batch], Tensor]


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        dim: Width of the layers.
        longest: The longest text; the lengths are powers of two from 32 on.
        texts: Texts that are read side by side.
        repeats: Measurements of each, of which the median counts.
    """

    dim: int = 64
    longest: int = 4096
    texts: int = 1
    repeats: int = 3


def build_layers(dim: int) -> dict[str, tuple[Layer, nn.Module, tuple[str, str, str]]]:
    """Build the layers by name, each with its cost, its steps in a row and its longest path between two tokens."""
    torch.manual_seed(0)
    attn, lstm, conv = (
        Attention(dim, HEADS),
        RecurrentLayer("lstm", dim, dim),
        nn.Conv1d(dim, dim, KERNEL_WIDTH, padding=1),
    )

    def run_attention(x: Tensor, batch: Batch) -> Tensor:
        return attn(x, AttentionContext.start_pass(batch.layout))

    def run_attention_keeping(x: Tensor, batch: Batch) -> Tensor:
        with sdpa_kernel([SDPBackend.MATH]):
            return run_attention(x, batch)

    def run_recurrence(x: Tensor, batch: Batch) -> Tensor:
        return lstm(x, PackedSteps(batch.layout))[0]

    def run_convolution(x: Tensor, batch: Batch) -> Tensor:
        return conv(batch.layout.unpack(x).transpose(1, 2))

    return {
        "attention (fused)": (run_attention, attn, ("n²·d", "1", "1")),
        "attention (weights kept)": (run_attention_keeping, attn, ("n²·d", "1", "1")),
        "LSTM": (run_recurrence, lstm, ("n·d²", "n", "n")),
        "convolution": (run_convolution, conv, ("k·n·d²", "1", "n/k")),
    }


def measure_layer(layer: Layer, module: nn.Module, length: int, settings: Settings) -> tuple[float, float]:
    """Measure one length: milliseconds of forward and backward pass, and KiB kept for the backward pass besides the
    weights, of each text."""
    rows = settings.texts
    batch = Batch.from_padded(torch.zeros(rows, length, dtype=torch.long))
    x = torch.randn(rows * length, settings.dim, requires_grad=True)
    kept: dict[int, int] = {}
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}

    def note(tensor: Tensor) -> Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in weights:
            kept[place] = tensor.untyped_storage().nbytes()
        return tensor

    times = []
    for turn in range(settings.repeats + 1):
        hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda t: t) if not turn else contextlib.nullcontext()
        began = time.process_time()
        with hooks:
            y = layer(x, batch)
        y.sum().backward()
        times.append(time.process_time() - began)
    return sorted(times[1:])[len(times[1:]) // 2] * 1000 / rows, sum(kept.values()) / 1024 / rows


def find_crossing(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> float | None:
    """Find where the first line rises above the second, between two measured lengths on logarithmic axes."""
    gaps = [(x, math.log(max(a, 1e-9)) - math.log(max(b, 1e-9))) for (x, a), (_, b) in zip(first, second, strict=True)]
    for (x0, g0), (x1, g1) in itertools.pairwise(gaps):
        if g0 <= 0 < g1:
            return math.exp(math.log(x0) + (math.log(x1) - math.log(x0)) * -g0 / (g1 - g0))
    return None


def fit_slope(line: list[tuple[float, float]]) -> float:
    """Fit the slope of a line's last half, two points at least, on logarithmic axes."""
    last_half = line[min(len(line) // 2, len(line) - 2) :]
    points = [(math.log(x), math.log(max(y, 1e-9))) for x, y in last_half]
    mean_x, mean_y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Measure the layers over the lengths."""
    local, s = page.localise, settings
    if s.longest < 2 * SHORTEST:  # a slope needs two lengths
        what = f"--longest must be at least {2 * SHORTEST}, got {s.longest}"
        raise Error(what, fix="leave --longest out for the default")
    if s.dim % HEADS:
        what = f"--dim must be a multiple of {HEADS}, the heads of the attention, got {s.dim}"
        raise Error(what, fix="leave --dim out for the default")
    lengths = [2**power for power in range(int(math.log2(SHORTEST)), int(math.log2(s.longest)) + 1)]
    layers = build_layers(s.dim)
    shown = {"attention (fused)": local("attention, fused", "어텐션(융합)"), "attention (weights kept)": local("attention, weights kept", "어텐션(가중치 저장)"),
             "LSTM": "LSTM", "convolution": local("convolution", "합성곱")}  # fmt: skip
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in layers}
    memory: dict[str, list[tuple[float, float]]] = {name: [] for name in layers}
    for number, length in enumerate(lengths):
        for name, (layer, module, _) in layers.items():
            page.tell("measuring", number * len(layers), len(lengths) * len(layers), f"{name}, {length} tokens")
            millis, kept = measure_layer(layer, module, length, s)
            times[name].append((length, millis))
            memory[name].append((length, kept))
    crossings = {name: find_crossing(times[name], times["LSTM"]) for name in layers if name.startswith("attention")}

    def describe_crossing(name: str) -> str:
        if (crossing := crossings[name]) is not None:
            return local(f"about {crossing:,.0f} tokens", f"약 {crossing:,.0f}토큰")
        is_slower = times[name][-1][1] > times["LSTM"][-1][1]
        return (
            local("the shortest on", "가장 짧은 길이부터")
            if is_slower
            else local("beyond these lengths", "측정 범위 밖")
        )

    rows = [
        (shown[name], *facts, fit_slope(times[name]), fit_slope(memory[name])) for name, (_, _, facts) in layers.items()
    ]
    head = (local("layer", "레이어"), local("cost", "비용"), local("sequential steps", "순차 단계"), local("longest path", "최장 경로"),
            local("slope of time", "시간 기울기"), local("slope of memory", "메모리 기울기"))  # fmt: skip
    page.add_table(
        local(
            "One text: the cost in theory, and slopes measured over the longer half of the lengths",
            "텍스트 하나: 이론의 비용과, 긴 쪽 절반의 길이에서 측정한 기울기",
        ),
        head,
        rows,
    )
    page.add_table(
        local("Crossing point", "교차점"),
        (local("layer", "레이어"), local("takes longer than an LSTM from", "LSTM보다 오래 걸리기 시작하는 길이"), "d"),
        [(shown[name], describe_crossing(name), s.dim) for name in crossings],
    )
    for title, unit, lines in (
        (local("Time of one text, forward and backward", "텍스트 하나의 순전파·역전파 시간"), "ms", times),
        (
            local("Memory of one text kept for the backward pass", "텍스트 하나의 역전파를 위해 저장한 메모리"),
            "KiB",
            memory,
        ),
    ):
        digits = 2 if unit == "ms" else 0
        cells = [(length, *(f"{lines[name][i][1]:,.{digits}f}" for name in layers)) for i, length in enumerate(lengths)]
        page.add_table(f"{title} ({unit})", (local("length", "길이"), *(shown[name] for name in layers)), cells)
        curves = {shown[name]: points for name, points in lines.items()}
        page.add_picture(draw_curves(curves, title, local("length", "길이"), unit, log_x=True, log_y=True))
    return {**{f"crossing, {name}": math.nan if at is None else at for name, at in crossings.items()},
            **{f"memory slope, {name}": fit_slope(memory[name]) for name in layers}}  # fmt: skip
