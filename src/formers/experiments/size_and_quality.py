"""Size against quality: GPTs of several sizes on the same text, loss against parameters and compute, a fitted line."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import Error
from ..former import count_trainable
from ..model import estimate_flops_per_token
from ..reports.pictures import draw_curves
from .page import Page
from .small_models import prepare_corpus, train_small

EXPLANATION = (
    ("All models see the same text in the same order for the same number of steps; only their size differs.",
     "모든 모델은 같은 텍스트를 같은 순서로 같은 스텝만큼 학습하며, 크기만 다릅니다."),
    ("If the points lie near a straight line on logarithmic axes, every doubling of the parameters lowers the loss by about the same factor.",
     "로그 축에서 점들이 직선에 가까우면, 파라미터가 두 배가 될 때마다 손실이 비슷한 비율로 줄어드는 것입니다."),
    ("Parameters of the embeddings are left out, as they do no work for the context.",
     "임베딩의 파라미터는 문맥 계산에 쓰이지 않으므로 제외합니다."),
    ("Against compute, see which model is ahead at first, which flattens first and which ends lowest: a small one is cheap to begin with, a large one has further to fall.",
     "연산량에 대해 어느 모델이 처음에 앞서고, 먼저 평평해지고, 가장 낮은 손실로 끝나는지 보십시오. 작은 모델은 적은 연산으로 앞서 나가고, 큰 모델은 더 내려갈 여지가 있습니다."),
    ("The exponent of a few minutes is not that of the papers, whose models are trained far longer on far more text.",
     "몇 분 학습한 지수는 논문의 지수와 다릅니다. 논문의 모델은 훨씬 많은 텍스트로 훨씬 오래 학습합니다."),
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        dims: Widths of the models.
        layers: Layers of each.
        steps: Training steps of each model.
        characters: Characters of the training text.
    """

    dims: tuple[int, ...] = (32, 64, 128)
    layers: int = 3
    steps: int = 800
    characters: int = 600_000


def fit_power(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Fit y = a · x^b by least squares on logarithmic axes; return a and b."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (sum(p[i] for p in logs) / len(logs) for i in (0, 1))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)
    return math.exp(mean_y - slope * mean_x), slope


def smooth_curve(curve: list[tuple[float, float]], window: int) -> list[tuple[float, float]]:
    """Average a training curve over windows of steps."""
    groups = [curve[i : i + window] for i in range(0, len(curve), window)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Train the sizes, and fit a line."""
    local, s = page.localise, settings
    if len(set(s.dims)) < 2:
        raise Error("a line through the sizes needs two widths", fix="--dims 32 --dims 64")
    data = prepare_corpus(page, "gpt2", max_characters=s.characters)
    rows, points, by_compute = [], [], {}
    tokens = 1024 * s.steps
    for dim in s.dims:
        heads = max(n for n in range(1, max(1, dim // 32) + 1) if dim % n == 0)
        trained_model = train_small(
            page,
            "gpt2",
            data,
            s.steps,
            title=f"dim {dim}",
            model={"dim": dim, "layers": s.layers, "heads": heads, "context": 64},
        )
        size = count_trainable(trained_model.former.model.body.blocks)
        flops = estimate_flops_per_token(trained_model.former.model, 64)
        rows.append(
            (
                dim,
                count_trainable(trained_model.former.model),
                size,
                f"{flops * tokens:.1e}",
                trained_model.loss,
                math.exp(trained_model.loss),
            )
        )
        points.append((float(size), trained_model.loss))
        curve = smooth_curve(trained_model.curve, max(1, s.steps // 20))
        by_compute[f"dim {dim}"] = [(flops * 1024 * step, loss) for step, loss in curve]
    a, b = fit_power(points)
    head = (
        local("width", "너비"),
        local("parameters", "파라미터"),
        local("without embeddings", "임베딩 제외"),
        "FLOP",
        local("loss", "손실"),
        local("perplexity", "퍼플렉시티"),
    )
    page.add_table(local("Sizes", "크기"), head, rows)
    page.add_table(
        local("Fitted line: loss = a · parameters^b", "맞춘 직선: 손실 = a · 파라미터^b"),
        ("a", "b", local("change of the loss at twice the parameters", "파라미터가 두 배일 때 손실의 변화")),
        [(a, b, f"{2**b - 1:+.1%}")],
    )
    line = [(x, a * x**b) for x in (points[0][0], *(p[0] for p in points[1:]))]
    page.add_picture(
        draw_curves(
            {local("measured", "측정"): points, local("fitted", "맞춘 직선"): line},
            local("validation loss by parameters", "파라미터 수별 검증 손실"),
            local("parameters without embeddings", "임베딩을 제외한 파라미터"),
            local("loss", "손실"),
            log_x=True,
            log_y=True,
        )
    )
    page.add_picture(
        draw_curves(
            by_compute,
            local("training loss by compute", "연산량별 학습 손실"),
            "FLOP",
            local("loss", "손실"),
            log_x=True,
            log_y=True,
        )
    )
    return {"exponent": b, **{f"loss {dim}": loss for dim, (_, loss) in zip(s.dims, points, strict=True)}}
