"""Activations, norms and schedules: GELU and ReLU, norms before and after the layers by depth, and warmup."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import count_noun
from ..former import build
from ..nn.layers import get_activation
from ..reports.pictures import draw_curves
from ..training.optimizer import SCHEDULES, build_schedule
from .page import Page
from .small_models import prepare_corpus, train_small

EXPLANATION = (
    ("GELU follows ReLU but is smooth and dips below zero: small negative inputs keep a gradient.",
     "GELU는 ReLU와 비슷하지만 매끄럽고 0 아래로 내려가므로, 작은 음수 입력에도 기울기가 남습니다."),
    ("The cosine shows how much of the input is left after each layer of a new model: in post-norm every norm stands on the residual path, so watch how fast it fades.",
     "코사인은 새 모델의 각 레이어 뒤에 입력이 얼마나 남아 있는지를 나타냅니다. post-norm은 정규화가 잔차 경로 위에 있으므로 입력이 얼마나 빨리 사라지는지 보십시오."),
    ("Pre-norm leaves that path free: compare how much of the input is left after many layers, and how soon the deep models learn.",
     "pre-norm은 잔차 경로를 그대로 둡니다. 여러 레이어 뒤에 입력이 얼마나 남는지, 깊은 모델이 얼마나 빨리 학습하는지 비교하십시오."),
    ("Compare the deep post-norm model at the full learning rate from the first step with the one with warmup: a curve that stays flat has learned token frequencies and no more; --lr 0.001 is a second remedy to try.",
     "처음부터 최대 학습률을 쓴 깊은 post-norm 모델과 워밍업을 쓴 모델을 비교하십시오. 곡선이 평평하게 머물면 토큰 빈도만 학습한 것이며, --lr 0.001로 낮추는 방법도 시험해 볼 수 있습니다."),
    ("All schedules but T5's (rsqrt) rise linearly at first; they differ in whether and how they come down.",
     "T5의 스케줄(rsqrt)을 제외한 모든 스케줄은 처음에 선형으로 오르며, 내려오는지와 내려오는 방식이 다릅니다."),
)  # fmt: skip
ACTIVATIONS = ("relu", "gelu", "silu", "tanh")


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        steps: Training steps of each model.
        depths: Numbers of layers that are compared.
        dim: Width of the models.
        warmup: Warmup steps, where there is one.
        lr: The highest learning rate.
        characters: Characters of the training text.
    """

    steps: int = 300
    depths: tuple[int, ...] = (2, 12)
    dim: int = 48
    warmup: int = 150
    lr: float = 3e-3
    characters: int = 250_000


@torch.no_grad()
def measure_input_share(family: str, layers: int, dim: int, ids: Tensor) -> list[float]:
    """Measure how much of the input is left after every layer of a new model: the cosine between the states of ids
    (rows, tokens) and their embeddings. Weights are as large as keeps the size of what they read."""
    former = build(family, vocab=int(ids.max()) + 1, dim=dim, heads=4, layers=layers, context=64, init=dim**-0.5)
    states = former.hidden(ids, layer=None)
    return [float(F.cosine_similarity(state, states[0], dim=-1).mean()) for state in states]


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Compare activations, orders of the norms by depth, and warmup."""
    local, s = page.localise, settings
    data = prepare_corpus(page, "gpt2", max_characters=s.characters)
    results: dict[str, float] = {}
    x = torch.linspace(-4, 4, 81)
    shapes = {name: list(zip(x.tolist(), get_activation(name)(x).tolist(), strict=True)) for name in ACTIVATIONS}
    page.add_heading(local("Activations", "활성화 함수"))
    page.add_picture(draw_curves(shapes, local("output by input", "입력별 출력"), "x"))
    sizes = {"dim": s.dim, "heads": 4, "context": 64}
    for act in ACTIVATIONS:
        trained_model = train_small(
            page, "gpt2", data, s.steps, title=act, model={**sizes, "layers": 2, "act": act}, train={"lr": s.lr}
        )
        results[act] = trained_model.loss
    page.add_table(
        local("Validation loss by activation", "활성화 함수별 검증 손실"),
        (local("activation", "활성화"), local("loss", "손실")),
        [(act, results[act]) for act in ACTIVATIONS],
    )
    page.add_heading(local("Norms before and after", "pre-norm과 post-norm"))
    rows, shares, curves = [], {}, {}
    ids = torch.as_tensor(np.asarray(data.store.tokens[:512]).astype(np.int64)).view(8, 64)
    warm = local("post, warmup", "post, 워밍업")
    ways = {"pre": ("gpt2", 0), "post": ("gpt", 0), warm: ("gpt", min(s.warmup, s.steps))}
    for depth in s.depths:
        for way, (family, warmup) in ways.items():
            train = {"lr": s.lr, "warmup_steps": warmup, "residual_init": 1.0, "schedule": "constant"}
            name = local(f"{way}, {count_noun(depth, 'layer')}", f"{way}, 레이어 {depth}개")
            trained_model = train_small(
                page, family, data, s.steps, title=name, model={**sizes, "layers": depth}, train=train
            )
            if not warmup:
                left = measure_input_share(family, depth, s.dim, ids)
                if depth == max(s.depths):  # GPT-2's smaller weights by depth make those of other depths no comparison
                    shares[name] = [(i, v) for i, v in enumerate(left)]
                results[f"input left {way} {depth}"] = left[-1]
            curves[name] = trained_model.curve[:: max(1, s.steps // 40)]
            results[f"{way if way != warm else 'warm'} {depth}"] = trained_model.loss
            rows.append((depth, way, trained_model.loss))
    page.add_table(
        local("Validation loss by depth", "깊이별 검증 손실"),
        (local("layers", "레이어"), local("norms", "정규화"), local("loss", "손실")),
        rows,
    )
    page.add_picture(
        draw_curves(
            shares,
            local("cosine with the input by layer, in new models", "새 모델의 레이어별 입력과의 코사인"),
            local("layer", "레이어"),
            "cos",
        )
    )
    page.add_picture(
        draw_curves(curves, local("training loss", "학습 손실"), local("step", "스텝"), local("loss", "손실"))
    )
    page.add_heading(local("Schedules", "스케줄"))
    lines = {name: [(float(i), build_schedule(name, 1000, 100)(i)) for i in range(0, 1001, 10)] for name in SCHEDULES}
    page.add_picture(
        draw_curves(
            lines,
            local("factor on the learning rate, 100 of 1,000 steps of warmup", "학습률 계수, 1,000스텝 중 워밍업 100"),
            local("step", "스텝"),
        )
    )
    return results
