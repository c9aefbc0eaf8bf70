"""Sharing and factorising (ALBERT): what one block for all layers and a narrow embedding cost in loss, and save."""

from __future__ import annotations

from dataclasses import dataclass

from ..former import count_trainable
from ..reports.pictures import draw_curves
from .page import Page
from .small_models import prepare_corpus, train_small

EXPLANATION = (
    ("Sharing one block between all layers divides the parameters of the blocks by the number of layers; the computation stays the same.",
     "모든 레이어가 블록 하나를 공유하면 블록의 파라미터가 레이어 수만큼 나뉘지만, 계산량은 그대로입니다."),
    ("Compare rows of the same embedding width: the difference of the losses is the price of sharing, which a training as short as this one may hardly show.",
     "임베딩 너비가 같은 행끼리 비교하십시오. 손실의 차이가 공유의 대가이며, 이처럼 짧은 학습에서는 거의 드러나지 않을 수 있습니다."),
    ("A factorised embedding stores vocabulary × E and E × width numbers instead of vocabulary × width, a large part of a small model.",
     "분해된 임베딩은 어휘×너비 대신 어휘×E와 E×너비만 저장하며, 작은 모델에서는 임베딩의 비중이 큽니다."),
    ("See which of the two costs more here; ALBERT's paper, which trains far longer, finds that sharing has a price (table 4), and a narrow embedding almost none (table 3).",
     "여기에서는 둘 중 어느 쪽의 대가가 더 큰지 보십시오. 훨씬 오래 학습한 ALBERT 논문(표 3과 4)에서는 공유에는 대가가 있고 좁은 임베딩에는 거의 없습니다."),
    ("Two groups, or sharing attention or feed-forward layers alone, lie in between in parameters: they are dials from ALBERT to BERT.",
     "그룹이 둘이거나 어텐션 또는 피드포워드만 공유하면 파라미터 수가 그 중간입니다. 이렇게 ALBERT와 BERT 사이를 조절할 수 있습니다."),
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        steps: Training steps of each model.
        layers: Layers of each model.
        dim: Width of the layers.
        narrow: Width of the narrow embedding.
        characters: Characters of the training text.
    """

    steps: int = 200
    layers: int = 4
    dim: int = 96
    narrow: int = 24
    characters: int = 300_000


def name_groups(page: Page, count: int, layers: int) -> str:
    """Name how many blocks the layers have between them."""
    if count == layers:
        return page.localise("nothing", "없음")
    return page.localise(
        "one block for all" if count == 1 else f"{count} blocks",
        "전체가 블록 하나" if count == 1 else f"블록 {count}개",
    )


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Train models with shared and separate blocks, and with wide and narrow embeddings."""
    local, s = page.localise, settings
    data = prepare_corpus(page, "bert", max_characters=s.characters)
    groups = sorted({1, max(1, s.layers // 2), s.layers})
    rows, curves, points = [], {}, {}
    results: dict[str, float] = {}
    # What the layers share: a block for each group of them; or (table 4) attention or feed-forward layers alone.
    ways: list[tuple[str, str, dict[str, object]]] = [
        (str(count), name_groups(page, count, s.layers), {"groups": count}) for count in groups
    ]
    both = [(way, embed) for way in ways for embed in (s.narrow, s.dim)]
    both += [
        (("attention", local("attention", "어텐션"), {"share": "shared-attention"}), s.dim),
        (("feed-forward", local("feed-forward", "피드포워드"), {"share": "shared-FFN"}), s.dim),
    ]
    for (key, title, sharing), embed in both:
        name = f"{title}, E {embed}"
        sizes = {"layers": s.layers, "dim": s.dim, "heads": 4, "ff": 4 * s.dim, "embed": embed, "context": 64}
        goal = {"name": "causal", "part": "mlm"}  # the next token: masked models learn too late for a short run
        trained_model = train_small(
            page, "albert", data, s.steps, title=name, model={**sizes, "causal": True, **sharing}, objective=goal
        )
        body, total = trained_model.former.model.body, count_trainable(trained_model.former.model)
        table = count_trainable(body.embed)
        rows.append((title, embed, table, count_trainable(body.blocks), total, trained_model.loss))
        curves[name] = trained_model.curve[:: max(1, s.steps // 40)]
        points[name] = [(float(total), trained_model.loss)]
        results |= {f"loss {key} {embed}": trained_model.loss, f"parameters {key} {embed}": float(total)}
    head = (
        local("what layers share", "레이어가 공유하는 것"),
        "E",
        local("embedding", "임베딩"),
        local("in blocks", "블록 내"),
        local("parameters", "파라미터"),
        local("loss", "손실"),
    )
    page.add_table(local("Shared and separate", "공유와 분리"), head, rows)
    page.add_picture(
        draw_curves(
            points,
            local("validation loss by parameters", "파라미터 수별 검증 손실"),
            local("parameters", "파라미터"),
            local("loss", "손실"),
            log_x=True,
            dots=True,
        )
    )
    page.add_picture(
        draw_curves(curves, local("training loss", "학습 손실"), local("step", "스텝"), local("loss", "손실"))
    )
    return results
