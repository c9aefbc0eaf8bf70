"""Experts (Switch): loss, load and dropped tokens by the number of experts, the capacity and the balance loss."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import count_noun
from ..data.loader import load_batches
from ..data.plans import TokenSource
from ..former import Former, count_trainable
from ..nn.attention.context import Capture
from ..nn.experts import Experts
from ..objectives.registry import build_objective
from ..reports.pictures import draw_curves, draw_matrix
from ..training.runs.prepare_data import PreparedData
from .page import Page
from .small_models import prepare_corpus, train_small

EXPLANATION = (
    ("More experts mean more parameters at the same computation, since each token takes one expert only; compare their losses with that of the dense model, in which all tokens share one feed-forward layer.",
     "전문가가 늘면 파라미터가 늘지만, 토큰마다 전문가 하나만 쓰므로 계산량은 그대로입니다. 모든 토큰이 피드포워드 레이어 하나를 쓰는 밀집 모델과 손실을 비교하십시오."),
    ("A row of the load is the share of tokens that each expert gets; even shares would be 1 over the number of experts.",
     "부하의 각 행은 전문가가 받는 토큰의 비율이며, 고르면 모두 전문가 수의 역수가 됩니다."),
    ("Compare the last two rows of the load: without the balance loss it may be that some experts get hardly any tokens.",
     "부하의 마지막 두 행을 비교하십시오. 균형 손실이 없으면 일부 전문가가 토큰을 거의 받지 못할 수 있습니다."),
    ("An expert takes no more than its capacity: what overflows is dropped and passes by the residual connection alone.",
     "전문가는 용량까지만 처리하며, 넘치는 토큰은 버려져 잔차 연결로만 지나갑니다."),
    ("The larger the capacity factor, the fewer tokens are dropped: compare how fast each line falls with how even its load is.",
     "용량 계수가 클수록 버려지는 토큰이 적습니다. 각 선이 얼마나 빨리 내려가는지를 부하가 고른 정도와 비교해 보십시오."),
)  # fmt: skip
FACTORS = (0.5, 1.0, 1.25, 2.0)


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        steps: Training steps of each model.
        experts: Numbers of experts that are compared.
        dim: Width of the models.
        characters: Characters of the training text.
    """

    steps: int = 200
    experts: tuple[int, ...] = (2, 4, 8)
    dim: int = 64
    characters: int = 250_000


@torch.no_grad()
def measure_routing(former: Former, data: PreparedData, batches: int = 8) -> tuple[Tensor, dict[float, float]]:
    """Measure the share of tokens of each expert (E,), and the share that is dropped at each capacity factor, in the
    encoder's layer of experts over validation text."""
    assert data.valid_store is not None
    goal = build_objective("switch", data.tokenizer, 64)
    layer = next(m for m in former.model.body.encoder.modules() if isinstance(m, Experts))
    counts, dropped, total = torch.zeros(layer.num_experts), dict.fromkeys(FACTORS, 0.0), 0
    usual = layer.capacity_factors
    for batch, _ in itertools.islice(load_batches(TokenSource(data.valid_store, goal), 1024, 1, epochs=1), batches):
        moved, capture = batch.to("cpu"), Capture(routing=[])
        former.model(moved, capture=capture)
        assert capture.routing is not None
        assert moved.source is not None
        chosen, layout = capture.routing[0][1], moved.source.layout
        real = (moved.sample >= 0)[layout.document_ids]
        counts += torch.bincount(chosen[real], minlength=layer.num_experts)
        earlier = layer.count_earlier_choices(chosen, layout)
        for factor in FACTORS:
            layer.capacity_factors = (factor, factor)
            over = earlier >= layer.compute_capacity(layout)[layout.document_ids]
            dropped[factor] += float((over & real).sum())
        total += int(real.sum())
    layer.capacity_factors = usual
    return counts / total, {factor: count / total for factor, count in dropped.items()}


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Train a dense model and models of several experts, with and without the balance loss."""
    local, s = page.localise, settings
    data = prepare_corpus(page, "t5", max_characters=s.characters)
    sizes = {"dim": s.dim, "layers": 2, "heads": 4, "head_dim": s.dim // 4, "ff": 2 * s.dim, "sparse": 1}
    dense = train_small(
        page,
        "switch",
        data,
        s.steps,
        title=local("dense", "밀집"),
        model={**sizes, "sparse": 0},
        objective={"name": "span-corruption"},
    )
    rows: list[tuple[object, ...]] = [
        (local("dense", "밀집"), count_trainable(dense.former.model), dense.metrics["lm"], "", *("" for _ in FACTORS))
    ]
    results, loads, drops = {"dense": dense.metrics["lm"]}, {}, {}
    for count, balance in [*((n, 0.01) for n in s.experts), (s.experts[-1], 0.0)]:
        name = local(count_noun(count, "expert"), f"전문가 {count}개") + (
            "" if balance else local(", no balance loss", ", 균형 손실 없음")
        )
        trained_model = train_small(
            page,
            "switch",
            data,
            s.steps,
            title=name,
            model={**sizes, "experts": count},
            objective={"name": "switch", "balance_weight": balance},
        )
        load, lost = measure_routing(trained_model.former, data)
        loads[name], drops[name] = load, lost
        rows.append(
            (
                name,
                count_trainable(trained_model.former.model),
                trained_model.metrics["lm"],
                f"{float(load.max()):.0%}",
                *(f"{lost[f]:.1%}" for f in FACTORS),
            )
        )
        key = f"{count}" if balance else "unbalanced"
        results |= {
            f"loss {key}": trained_model.metrics["lm"],
            f"largest {key}": float(load.max()),
            f"dropped {key}": lost[1.0],
        }
        results |= {f"dropped wide {key}": lost[2.0]}
    head = (
        local("model", "모델"),
        local("parameters", "파라미터"),
        local("loss", "손실"),
        local("largest load", "최대 부하"),
        *(local(f"dropped at {f:g}", f"버림, 계수 {f:g}") for f in FACTORS),
    )
    page.add_table(local("Experts", "전문가"), head, rows)
    page.add_note(local("Dense: one feed-forward layer instead of experts. Load: the share of tokens that an expert gets. "
                        "Balance loss: a term of the training loss that grows when the shares are uneven. "
                        "Capacity factor: the room of an expert ÷ its even share of the tokens; 1 is room for exactly that share.",
                        "밀집(dense): 전문가 대신 피드포워드 레이어 하나를 씁니다. 부하(load): 전문가가 받는 토큰의 비율입니다. "
                        "균형 손실(balance loss): 비율이 고르지 않을수록 커지는 학습 손실의 한 항입니다. "
                        "용량 계수(capacity factor): 전문가의 자리 수 ÷ 토큰을 고르게 나눈 몫이며, 1이면 꼭 그 몫만큼의 자리입니다."), shown=True)  # fmt: skip
    widest = max(map(len, loads.values()))
    table = torch.stack(
        [
            torch.nn.functional.pad(load.sort(descending=True).values, (0, widest - len(load)), value=math.nan)
            for load in loads.values()
        ]
    )
    page.add_picture(
        draw_matrix(
            table,
            local("load of the experts, the largest first", "전문가별 부하, 큰 것부터"),
            list(loads),
            [str(i + 1) for i in range(widest)],
            44,
            True,
        )
    )
    page.add_picture(
        draw_curves(
            {n: [(f, 100 * v) for f, v in row.items()] for n, row in drops.items()},
            local("dropped tokens by capacity factor", "용량 계수별 버려진 토큰"),
            local("capacity factor", "용량 계수"),
            "%",
        )
    )
    return results
