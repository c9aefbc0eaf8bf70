"""Masks as matrices, drawn from the functions that the kernels use, and compared with the attention of real models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..former import build
from ..nn.attention.context import AttentionContext, Capture
from ..nn.attention.masks import (
    IndexFunction,
    TableMask,
    WindowMask,
    build_document_mask,
    causal,
    combine_masks,
    evaluate_on_grid,
)
from ..nn.attention.two_stream import build_order_masks
from ..reports.pictures import draw_matrix
from .page import Page

EXPLANATION = (
    ("A row is a token that reads, a column a token that may be read; a filled cell means that it may.",
     "행은 읽는 토큰, 열은 읽히는 토큰이며, 칠해진 칸은 볼 수 있음을 뜻합니다."),
    ("The causal mask is a lower triangle: no token sees what comes later, so every token can be a target at once.",
     "인과 마스크는 하삼각 행렬입니다. 뒤에 오는 토큰을 볼 수 없으므로 모든 토큰을 한 번에 예측 대상으로 삼을 수 있습니다."),
    ("Two-sided models such as BERT see everything and have to hide their targets; a prefix is seen by all, the rest is causal.",
     "BERT 같은 양방향 모델은 모든 토큰을 보므로 정답을 가려야 하고, 접두사 마스크에서는 앞부분을 모든 토큰이 보고 나머지는 인과 마스크와 같습니다."),
    ("A band costs a fixed number of cells in every row, so its cost grows with the length and not with its square.",
     "띠 마스크는 행마다 정해진 수의 칸만 쓰므로 비용이 길이의 제곱이 아니라 길이에 비례합니다."),
    ("In a permutation the order of prediction is drawn at random, and XLNet's query stream differs from its content stream in the diagonal alone.",
     "순열 마스크에서는 예측 순서를 무작위로 정하며, XLNet의 쿼리 스트림은 대각선에서만 내용 스트림과 다릅니다."),
)  # fmt: skip
MIN_TOKENS, MAX_TOKENS = 5, 16


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        window: Tokens that the band shows, the token itself included.
        prefix: Tokens of the prefix.
        seed: Random seed of the permutation.
    """

    window: int = 3
    prefix: int = 3
    seed: int = 0


def evaluate_mask(mask: IndexFunction | None, length: int) -> Tensor:
    """Evaluate a mask over one document of some length: (length, length) bool; None lets all see all."""
    full = torch.ones(length, length, dtype=torch.bool)
    return full if mask is None else evaluate_on_grid(mask, (1, 1, length, length), torch.device("cpu"))[0, 0] & full


def list_masks(length: int, settings: Settings) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Return the matrix of each mask by its name; the second of each pair is what a model with random weights attends
    to, True where its weight is not zero; None for masks that no model has for a single text."""
    layout = Batch.from_rows([list(range(length))]).layout
    order = draw_order(length, settings.seed)
    content, query = (table[0] for table in build_order_masks(order, layout) if table is not None)
    prefix = torch.arange(length)[None, :] < settings.prefix
    prefix_table = evaluate_mask(causal, length) | prefix
    halves = (torch.arange(length) >= length // 2).long()
    padded = pad_short_text(length)
    band = combine_masks(causal, WindowMask(settings.window))
    streams = capture_streams(length, order)
    return {
        "two-sided": (evaluate_mask(None, length), capture_weights("bert", length)),
        "causal": (evaluate_mask(causal, length), capture_weights("gpt2", length)),
        "band": (
            evaluate_mask(band, length),
            capture_weights("gpt3", length, pattern=("local",), window=settings.window),
        ),
        "prefix": (evaluate_mask(TableMask(prefix_table[None]), length), None),
        "documents": (evaluate_mask(build_document_mask(halves, halves), length), None),
        "padding": (padded, capture_weights("bert", length, real=length - 3)),
        "permutation, content": (content, streams["content"]),
        "permutation, query": (query, streams["query"]),
    }


def draw_order(length: int, seed: int) -> Tensor:
    """Draw the turn of each token (length,) in a random order of prediction."""
    return torch.as_tensor(np.random.default_rng(seed).permutation(length))


def pad_short_text(length: int) -> Tensor:
    """Return the mask of a text that is three tokens shorter than the other text of its batch, as kernels get it."""
    keep = torch.ones(2, length, dtype=torch.bool)
    keep[0, length - 3 :] = False
    batch = Batch.from_padded(torch.zeros(2, length, dtype=torch.long), keep)
    mask = AttentionContext.start_pass(batch.layout).get_dense_mask(1)
    assert mask is not None
    seen = mask.expand(2, 1, length, length)[0, 0]
    return seen & keep[0][:, None]  # rows of padding belong to no token


def capture_weights(
    family: str, length: int, real: int | None = None,
    **sizes: Any,  # dynamic: settings of the family's config
) -> Tensor:  # fmt: skip
    """Return where a small model with random weights attends to: its first text has `real` tokens, its second all."""
    former = build(family, vocab=64, dim=32, heads=2, layers=1, context=64, **sizes)
    rows = [list(range(real or length)), list(range(length))]
    capture = Capture(with_attention=True)
    with torch.no_grad():
        former.model.body(Batch.from_rows(rows), capture=capture)
    weights = next(iter(capture.attention_weights.values()))[0][0, 0]  # (Q, K) of the first text
    return weights[: real or length] > 0


def capture_streams(length: int, order: Tensor) -> dict[str, Tensor]:
    """Return where both streams of a small XLNet with random weights attend to."""
    former = build("xlnet", vocab=64, dim=32, heads=2, layers=1, ff=32)
    capture = Capture(with_attention=True)
    with torch.no_grad():
        former.model.body(Batch.from_rows([list(range(length))]).replace(order=order), capture=capture)
    seen = {name: weights[0][0, 0] > 0 for name, weights in capture.attention_weights.items()}
    seen["query"] = seen["query"] & ~(order == order.min())[:, None]  # the first of the order sees nothing
    return seen


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Draw every mask over the text's words."""
    text = page.choose_text("The cat sat on the mat and slept", "고양이가 따뜻한 방석 위에 앉아서 잠을 잤다")
    num_words = len(text.split())
    words = text.split()[:MAX_TOKENS]
    words += [f"·{i}" for i in range(max(0, MIN_TOKENS - len(words)))]
    local = page.localise
    titles = {
        "two-sided": local("two-sided (BERT)", "양방향(BERT)"), "causal": local("causal (GPT-2)", "인과(GPT-2)"),
        "band": local("band (GPT-3)", "띠(GPT-3)"), "prefix": local("prefix", "접두사"),
        "documents": local("packed documents", "이어 붙인 문서"), "padding": local("padding", "패딩"),
        "permutation, content": local("permutation, content stream (XLNet)", "순열, 내용 스트림(XLNet)"),
        "permutation, query": local("permutation, query stream (XLNet)", "순열, 쿼리 스트림(XLNet)"),
    }  # fmt: skip
    rows, pictures, wrong = [], [], 0
    for number, (name, (matrix, seen)) in enumerate(list_masks(len(words), settings).items()):
        page.tell("masks", number + 1, len(titles), name)
        verdict = local("not compared", "비교하지 않음")
        if seen is not None:
            real = matrix[: seen.shape[0]]  # padded rows belong to no token
            agrees = bool((real[:, : seen.shape[1]] == seen[:, : matrix.shape[1]]).all())
            verdict = local("yes", "예") if agrees else local("no", "아니요")
            wrong += not agrees
        rows.append((titles[name], int(matrix.sum()), f"{float(matrix.float().mean()):.0%}", verdict))
        pictures.append(draw_matrix(matrix.float(), titles[name], words, words))
    head = (
        local("mask", "마스크"),
        local("visible pairs", "보이는 쌍"),
        local("share", "비율"),
        local("same as in a model", "모델과 일치"),
    )
    page.add_table(local("The masks", "마스크"), head, rows)
    if num_words < MIN_TOKENS:
        page.add_note(local(f"·0, ·1 and so on fill a text of fewer than {MIN_TOKENS} words up.",
                            f"·0, ·1 등은 단어가 {MIN_TOKENS}개보다 적은 텍스트를 채운 자리입니다."), shown=True)  # fmt: skip
    if num_words > MAX_TOKENS:
        page.add_note(local(f"The masks are those of the first {MAX_TOKENS} of {num_words} words.",
                            f"단어 {num_words}개 가운데 앞의 {MAX_TOKENS}개로 만든 마스크입니다."), shown=True)  # fmt: skip
    page.add_picture(*pictures)
    turns = ", ".join(words[at] for at in draw_order(len(words), settings.seed).argsort().tolist())
    page.add_note(
        local(f"The order of prediction in the permutation: {turns}.", f"순열의 예측 순서: {turns}."), shown=True
    )
    return {"masks": len(rows), "wrong": wrong}
