"""Positions: maps of every scheme, and the loss of one small GPT-2 with each of them, with none, and concatenated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..batch import Batch, Layout
from ..former import Former, build
from ..nn.attention.masks import build_alibi
from ..nn.attention.positions import BucketBias, RotaryEmbedding, SinusoidalPositions
from ..nn.layers import Embeddings
from ..reports.pictures import draw_curves, draw_matrix
from .page import Page
from .small_models import SMALL_SIZES, prepare_corpus, train_small

EXPLANATION = (
    ("In the sinusoid map a row is a position and reads 0, 1, 0, 1, … at position 0; the columns turn ever more slowly.",
     "사인 함수 지도에서 행은 위치이며 위치 0의 값은 0, 1, 0, 1, …입니다. 열이 뒤로 갈수록 천천히 변합니다."),
    ("A learned table starts as noise; a band along its diagonal, however faint, would show that neighbouring positions begin to be alike, which takes long.",
     "학습하는 위치 표는 잡음에서 시작합니다. 대각선 주위에 옅은 띠가 보이면 이웃한 위치끼리 비슷해지기 시작한 것이며, 이는 오래 걸립니다."),
    ("Rotary scores, ALiBi's penalties and T5's buckets depend on the distance alone, not on the place in the text.",
     "회전 위치의 점수, ALiBi의 페널티, T5의 버킷은 위치가 아니라 거리에만 의존합니다."),
    ("A causal model without positions can still learn an order from its mask: compare its loss with that of a learned table, and both with the schemes of distances (rotary, ALiBi, buckets).",
     "인과 모델은 위치 정보가 없어도 마스크에서 순서를 학습할 수 있습니다. 그 손실을 학습하는 위치 표, 그리고 거리를 쓰는 방식(회전 위치, ALiBi, 버킷)과 비교하십시오."),
    ("Without positions a two-sided model cannot tell an order at all: shuffled words give the same vectors, shuffled.",
     "양방향 모델은 위치 정보가 없으면 순서를 전혀 구별하지 못합니다. 단어를 섞으면 같은 벡터가 섞여서 나옵니다."),
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        steps: Training steps of each model.
        length: Positions of the maps.
        dim: Dimensions of a position in the sinusoid map.
        characters: Characters of the training text.
    """

    steps: int = 500
    length: int = 48
    dim: int = 64
    characters: int = 300_000


class ConcatenatedEmbeddings(Embeddings):
    """Token and position side by side, brought back to the model's width by a matrix, instead of their sum."""

    def __init__(self, old: Embeddings, positions: int):
        width, vocab = old.token_weight.shape[1], old.token_weight.shape[0]
        super().__init__(width, vocab, positions=positions, token=old.token)
        self.join = nn.Linear(2 * width, width, bias=False)
        nn.init.normal_(self.join.weight, std=(2 * width) ** -0.5)
        assert self.position is not None
        nn.init.normal_(self.position.weight, std=float(old.token_weight.detach().std()))

    def add_positions(self, x: Tensor, positions: Tensor | None, layout: Layout, past_lengths: Tensor | None) -> Tensor:
        """(N, width) → (N, width)"""
        assert self.position is not None
        return self.join(torch.cat((x, self.position(layout.positions)), -1))


def remove_positions(former: Former) -> None:
    """Take the table of positions out of a model."""
    former.model.body.embed.position = None


def use_sinusoids(former: Former) -> None:
    """Put fixed sinusoids in the place of the learned table; embeddings are scaled as in the paper."""
    remove_positions(former)
    embed, dim = former.model.body.embed, former.config.dim
    embed.sinusoids, embed.scale = SinusoidalPositions(dim), math.sqrt(dim)


def concatenate_positions(former: Former) -> None:
    """Concatenate positions instead of adding them."""
    former.model.body.embed = ConcatenatedEmbeddings(former.model.body.embed, former.config.context)


def use_rotary(former: Former) -> None:
    """Turn queries and keys by their position."""
    remove_positions(former)
    for block in former.model.body.blocks:
        block.attn.rotary = RotaryEmbedding(block.attn.head_dim)


def use_alibi(former: Former) -> None:
    """Subtract a penalty that grows with the distance."""
    remove_positions(former)
    former.model.body.bias = build_alibi(former.config.heads)


def use_buckets(former: Former) -> None:
    """Add a learned number for each bucket of distances, as T5 does."""
    remove_positions(former)
    bias = BucketBias(former.config.heads, bidirectional=False)
    nn.init.zeros_(bias.weight)
    former.model.body.bias = bias


VARIANTS: dict[tuple[str, str], Callable[[Former], None] | None] = {
    ("none", "없음"): remove_positions,
    ("learned, added", "학습, 더하기"): None,
    ("learned, concatenated", "학습, 이어 붙이기"): concatenate_positions,
    ("sinusoids", "사인 함수"): use_sinusoids,
    ("rotary", "회전 위치(RoPE)"): use_rotary,
    ("ALiBi", "ALiBi"): use_alibi,
    ("buckets (T5)", "버킷(T5)"): use_buckets,
}


def measure_order_blindness(length: int = 12) -> tuple[float, float]:
    """Measure how much the vectors of a small BERT change when its tokens are shuffled, without and with positions."""
    draw, changes = torch.Generator().manual_seed(0), []
    ids, turn = torch.randperm(64, generator=draw)[:length], torch.randperm(length, generator=draw)
    for has_positions in (False, True):
        former = build("bert", head="none", vocab=64, dim=32, heads=2, layers=2, ff=64, context=64)
        if not has_positions:
            remove_positions(former)
        with torch.no_grad():
            plain, mixed = (former.model.body(Batch.from_rows([row.tolist()])) for row in (ids, ids[turn]))
        changes.append(float((plain[turn] - mixed).norm() / plain.norm()))
    return changes[0], changes[1]


def compute_rotary_scores(dim: int, distances: int) -> list[tuple[float, float]]:
    """Compute the score of equal queries and keys by their distance."""
    rotary, x = RotaryEmbedding(dim), torch.ones(1, 1, dim)
    first = rotary.rotate(x, rotary.compute_angles(torch.tensor([0])))
    there = rotary.rotate(x.expand(distances, 1, dim), rotary.compute_angles(torch.arange(distances)))
    return [(float(i), float(score) / dim) for i, score in enumerate((there * first).sum((-1, -2)))]


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Draw the schemes, and train a model with each."""
    s, local = settings, page.localise
    sinusoids = SinusoidalPositions(s.dim)(torch.arange(s.length))
    data = prepare_corpus(page, "gpt2", max_characters=s.characters)
    losses: dict[str, float] = {}
    curves = {}
    for names, change in VARIANTS.items():
        trained_model = train_small(
            page, "gpt2", data, s.steps, title=names[0], model={**SMALL_SIZES, "context": 64}, change=change
        )
        losses[names[0]], curves[local(*names)] = trained_model.loss, trained_model.curve[:: max(1, s.steps // 40)]
        if names[0] == "learned, added":
            table = trained_model.former.model.body.embed.position.weight[: s.length].detach()
    blind, sighted = measure_order_blindness()
    page.add_table(
        local("Validation loss of one small GPT-2", "같은 작은 GPT-2의 검증 손실"), (local("positions", "위치"), local("loss", "손실")),
        [(local(*names), losses[names[0]]) for names in VARIANTS],
    )  # fmt: skip
    page.add_table(
        local("Shuffled words in a two-sided model", "양방향 모델에서 단어 섞기"), (local("model", "모델"), local("change of the vectors", "벡터의 변화")),
        [(local("without positions", "위치 없음"), blind), (local("with positions", "위치 있음"), sighted)],
    )  # fmt: skip
    page.add_picture(
        draw_curves(curves, local("training loss", "학습 손실"), local("step", "스텝"), local("loss", "손실"))
    )
    page.add_heading(local("The maps", "위치 지도"))
    unit = nn.functional.normalize(table, dim=-1)
    page.add_picture(
        draw_matrix(
            sinusoids,
            local(
                "sinusoids: positions down, dimensions across; blue is positive, orange negative",
                "사인 함수: 행은 위치, 열은 차원. 파란색은 양수, 주황색은 음수입니다",
            ),
            cell=6,
        ),
        draw_matrix(unit @ unit.T, local("learned: cosine between positions", "학습된 위치 사이의 코사인"), cell=6),
    )
    alibi, buckets = build_alibi(4), BucketBias(1)
    penalties = alibi.compute_distance_bias(1 - s.length, 1, torch.device("cpu"))
    lines = {
        f"{local('head', '헤드')} {h}": [(float(s.length - 1 - i), float(v)) for i, v in enumerate(row)][::-1]
        for h, row in enumerate(penalties)
    }
    far = torch.arange(-128, 129)
    page.add_picture(
        draw_curves(
            {"q·k": compute_rotary_scores(s.dim, 4 * s.length)},
            local("rotary: score of two equal vectors by distance", "회전 위치: 같은 두 벡터의 거리별 점수"),
            local("distance", "거리"),
        )
    )
    page.add_picture(
        draw_curves(
            lines,
            local("ALiBi: penalty by distance, of four heads", "ALiBi: 헤드 4개의 거리별 페널티"),
            local("distance", "거리"),
        )
    )
    page.add_picture(draw_curves({local("bucket", "버킷"): [(float(d), float(b)) for d, b in zip(far.tolist(), buckets.compute_bucket(far).tolist(), strict=True)]},
                                 local("T5: number of the bucket by distance; far tokens share one", "T5: 거리별 버킷 번호. 먼 토큰들은 한 버킷을 함께 씁니다"), local("distance", "거리")))  # fmt: skip
    return {**losses, "blind": blind, "sighted": sighted}
