"""Heads: what it costs in loss to remove each attention head, one at a time, and many together."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import Error
from ..former import Former
from ..inspection.heads import HeadCosts, make_loss, measure_heads
from ..inspection.sides import TextInputs, encode_inputs
from ..reports.pictures import draw_curves, draw_matrix
from .page import Page
from .small_models import load_or_train

EXPLANATION = (
    ("Every cell is a head: how much the loss of validation text (or of your --text) rises, in bits for each token, when this head alone is removed.",
     "각 칸은 헤드이며, 그 헤드만 제거했을 때 검증 텍스트(또는 --text의 문장)의 손실이 토큰당 몇 비트 늘어나는지를 나타냅니다."),
    ("Look where the costly heads are, and how many cost hardly anything: where those are many, the model has more heads than it needs.",
     "비용이 큰 헤드가 어느 레이어에 있는지, 비용이 거의 없는 헤드가 얼마나 되는지 보십시오. 후자가 많다면 모델에 필요한 것보다 많은 헤드가 있는 것입니다."),
    ("A negative number, if there is one, in the other colour, is a head without which this text is predicted better.",
     "다른 색으로 표시된 음수가 있다면, 그 헤드가 없을 때 오히려 이 텍스트를 더 잘 예측하는 것입니다."),
    ("Compare the sum of the single costs with the cost of removing the same heads together: if that is higher, the heads stand in for each other.",
     "개별 비용의 합과 함께 제거한 비용을 비교하십시오. 함께 제거할 때 더 크면 헤드들이 서로를 대신하고 있는 것입니다."),
    ("Compare the two lines: the further apart they are, the better the single costs tell which heads can be removed.",
     "두 선을 비교하십시오. 많이 벌어질수록 개별 비용이 제거해도 되는 헤드를 잘 알려 주는 것입니다."),
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        model: A model of your own with attention heads; a small GPT-2 is trained without one.
        steps: Training steps of the small model.
        texts: Validation texts on which the loss is measured.
        tokens: Tokens of each text.
    """

    model: str | None = None
    steps: int = 800
    texts: int = 24
    tokens: int = 60


def list_texts(page: Page, former: Former, count: int, tokens: int) -> list[TextInputs]:
    """Encode the user's text, or validation texts, each as long as the model reads."""
    pieces = [page.text] if page.text else page.load_documents(400_000)[1]
    assert former.tokenizer is not None
    words = [" ".join(piece.split())[: 6 * tokens] for piece in pieces[:count]]
    room = min(tokens, (former.context or tokens) - 2)
    cut = [former.tokenizer.decode(former.tokenizer.encode(text, special=False)[:room]) for text in words]
    return [encode_inputs(former, text) for text in cut if text.strip()]


def leave_one_head(order: list[tuple[int, int]], heads: int) -> list[tuple[int, int]]:
    """Return the heads (layer, head) that can be removed in an order, so that each layer of some heads keeps one."""
    left = Counter({layer: heads - 1 for layer, _ in order})
    removed = []
    for layer, head in order:
        if left[layer]:
            removed.append((layer, head))
            left[layer] -= 1
    return removed


def measure_removal(
    former: Former, texts: list[TextInputs], order: list[tuple[int, int]], shares: list[float]
) -> list[tuple[float, float]]:
    """Measure the loss in bits when the first share of heads (layer, head) in an order is removed; each layer keeps one."""
    curve = []
    for share in shares:
        pruned = copy.deepcopy(former)
        chosen: dict[int, list[int]] = {}
        for layer, head in leave_one_head(order[: round(share * len(order))], former.config.heads):
            chosen.setdefault(layer, []).append(head)
        if chosen:
            pruned.prune(chosen)
        costs = measure_baseline(pruned, texts)
        curve.append((100 * sum(map(len, chosen.values())) / len(order), costs))
    return curve


def measure_baseline(former: Former, texts: list[TextInputs]) -> float:
    """Measure the loss of texts in bits for each token."""
    losses = [loss for text in texts if (loss := make_loss(former, text)) is not None]
    with torch.inference_mode():
        return sum(loss({}) for loss in losses) / len(losses)


def order_heads(costs: Tensor) -> list[tuple[int, int]]:
    """Order heads (layer, head) by their cost, the cheapest first."""
    rows = [(float(cost), layer, head) for layer, row in enumerate(costs) for head, cost in enumerate(row)]
    return [(layer, head) for _, layer, head in sorted(row for row in rows if not math.isnan(row[0]))]


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Measure every head, then remove them by their cost in either order."""
    local, s = page.localise, settings
    former = load_or_train(page, s.model, "gpt2", s.steps)
    texts = list_texts(page, former, s.texts, s.tokens)
    family, num_layers, num_heads = former.family, former.config.layers, former.config.heads
    page.add_note(local(f"The model: {family}, {num_layers} layers of {num_heads} heads.",
                        f"모델: {family}, 레이어 {num_layers}개에 헤드 {num_heads}개씩."), shown=True)  # fmt: skip
    page.tell("heads", 0, 1, f"{len(texts)} text{'' if len(texts) == 1 else 's'}")
    measured: HeadCosts | None = measure_heads(former, *texts)
    if measured is None or measured.is_by_stack:
        raise Error(f"{former.family} has no single stack of heads", fix="give a BERT or a GPT-2, or leave model out")
    costs = next(iter(measured.costs.values()))
    order, shares = order_heads(costs), [i / 6 for i in range(6)]
    lines = {
        local("cheapest first", "비용이 작은 것부터"): measure_removal(former, texts, order, shares),
        local("costliest first", "비용이 큰 것부터"): measure_removal(former, texts, order[::-1], shares),
    }
    layers = [f"{local('layer', '레이어')} {i}" for i in range(len(costs))]
    heads = [f"{local('head', '헤드')} {i}" for i in range(costs.shape[1])]
    page.add_table(local("Rise of the loss without one head (bits for each token)", "헤드 하나를 제거할 때의 손실 증가(토큰당 비트)"), ("", *heads),
                   [(name, *(f"{x:+z.3f}" for x in row)) for name, row in zip(layers, costs.tolist(), strict=True)])  # fmt: skip
    groups = {
        local("the cheaper half", "비용이 작은 절반"): order[: len(order) // 2],
        local("the costliest quarter", "비용이 가장 큰 4분의 1"): order[::-1][: len(order) // 4],
    }
    rows = []
    for name, chosen in groups.items():
        group = leave_one_head(chosen, former.config.heads)
        single = sum(float(costs[layer, head]) for layer, head in group)
        together = measure_removal(former, texts, group, [1.0])[0][1] - measured.baseline
        rows.append((name, len(group), f"{single:+z.3f}", f"{together:+z.3f}"))
    page.add_table(
        local(f"Rise of the loss, removed one at a time and together (loss with all heads: {measured.baseline:.3f} bits)",
              f"하나씩 또는 함께 제거할 때의 손실 증가(모든 헤드가 있을 때의 손실: {measured.baseline:.3f}비트)"),
        (local("removed heads", "제거한 헤드"), local("number (each layer keeps one)", "수(레이어마다 하나는 남김)"), local("sum of the single costs", "개별 비용의 합"), local("together", "함께")), rows,
    )  # fmt: skip
    page.add_picture(draw_matrix(costs, local("cost of each head", "헤드별 비용"), layers, heads, 52, True))
    page.add_picture(
        draw_curves(
            lines,
            local(
                "loss by the share of removed heads; each layer keeps one",
                "제거한 헤드 비율별 손실. 레이어마다 헤드 하나는 남깁니다",
            ),
            local("removed heads, %", "제거한 헤드(%)"),
            local("bits", "비트"),
        )
    )
    cheap, dear = (line[3][1] for line in lines.values())
    return {"baseline": measured.baseline, "cheap": cheap, "dear": dear, "heads": float(len(order))}
