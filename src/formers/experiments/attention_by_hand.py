"""Attention by hand: the formula of one head on a sentence, number by number, checked against the model's own output.

The only experiment that computes attention itself: the plain formula is its point. T tokens, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ..errors import Error
from ..inspection.attention import attention
from ..inspection.sides import Token, encode_inputs
from ..nn.attention.attention import Attention
from ..nn.block import Block, TransformerBody
from ..reports.pictures import draw_curves, draw_matrix
from .page import JOINED_NOTE, Page, name_tokens
from .small_models import cut_to_context, load_or_train

EXPLANATION = (
    ("Each token asks with a query and offers a key; a score is the dot product of the two: the first table computes one token's row, step by step.",
     "각 토큰은 쿼리로 묻고 키를 내놓으며, 점수는 둘의 내적입니다. 첫 표는 한 토큰의 행을 단계별로 계산합니다."),
    ("Divided by √d and put through softmax, the scores of a row become weights whose sum is 1.",
     "점수를 √d로 나누고 소프트맥스를 적용하면 각 행의 합이 1인 가중치가 됩니다."),
    ("The output of a token is the sum of the values that it may see, weighted by its row; in a causal model it sees itself and the tokens before it.",
     "토큰의 출력은 볼 수 있는 값들을 그 행의 가중치로 더한 가중합입니다. 인과 모델에서는 자신과 앞의 토큰만 볼 수 있습니다."),
    ("Without the division scores grow with the width of the head: the entropy of random heads falls, and the weight gathers on few tokens.",
     "나누지 않으면 헤드의 너비에 따라 점수가 커집니다. 무작위 헤드의 엔트로피가 낮아지고 가중치가 몇몇 토큰에 몰립니다."),
    ("Compare the last picture's lines: without the residual connection the vectors of all tokens tend to become alike with every layer of attention.",
     "마지막 그림의 선을 비교하십시오. 잔차 연결이 없으면 어텐션을 거칠수록 모든 토큰의 벡터가 서로 비슷해지는 경향이 있습니다."),
)  # fmt: skip
SHOWN_TOKENS, SHOWN_NUMBERS = 12, 6


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        layer: The layer whose head is computed, from 0.
        head: The head, from 0.
        model: A model of your own with plain attention (BERT, GPT-2); a small GPT-2 is trained without one.
        steps: Steps that the small model is trained for.
    """

    layer: int = 0
    head: int = 0
    model: str | None = None
    steps: int = 250


@dataclass(frozen=True)
class HandHead:
    """What one head computes: queries, keys and values (T, D), scores and weights (T, T), and its output (T, D)."""

    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    weights: Tensor
    output: Tensor


def compute_head(attn: Attention, x: Tensor, head: int, visible: Tensor, scaled: bool = True) -> HandHead:
    """Compute one head on hidden states (T, dim): softmax(q·kᵀ / √D)·v, or without the division."""
    w = attn.qkv.weight.unflatten(0, (3, attn.heads, attn.head_dim))[:, head]  # (3, D, dim)
    b = (
        torch.zeros(3, attn.head_dim)
        if attn.qkv.bias is None
        else attn.qkv.bias.unflatten(0, (3, attn.heads, -1))[:, head]
    )
    q, k, v = (x @ w[i].T + b[i] for i in range(3))
    scores = q @ k.T
    masked = (scores * (attn.scale if scaled else 1.0)).masked_fill(~visible, -torch.inf)
    powers = (masked - masked.amax(-1, keepdim=True)).exp()  # less the largest, or large scores would overflow
    weights = powers / powers.sum(-1, keepdim=True)
    return HandHead(q, k, v, scores, weights, weights @ v)


def compute_layer(attn: Attention, x: Tensor, visible: Tensor) -> Tensor:
    """Compute all heads and the output projection: (T, dim) → (T, dim)."""
    heads = [compute_head(attn, x, head, visible).output for head in range(attn.heads)]
    return torch.cat(heads, -1) @ attn.o.weight.T + (0 if attn.o.bias is None else attn.o.bias)


def measure_entropy(weights: Tensor) -> float:
    """Measure the mean entropy of the rows, in bits."""
    return float(-(weights * weights.clamp(min=1e-30).log2()).sum(-1).mean())


def measure_likeness(x: Tensor) -> float:
    """Measure the mean cosine between the vectors of different tokens (T, dim)."""
    unit = torch.nn.functional.normalize(x, dim=-1)
    table = unit @ unit.T
    return float((table.sum() - table.diagonal().sum()) / (len(x) * (len(x) - 1)))


def compare_random_heads(
    widths: tuple[int, ...] = (4, 16, 64, 256), tokens: int = 64
) -> dict[str, list[tuple[float, float]]]:
    """Measure the entropy of random heads of several widths, with the division by √D and without."""
    draw = torch.Generator().manual_seed(0)
    lines: dict[str, list[tuple[float, float]]] = {"q·k / √d": [], "q·k": []}
    for width in widths:
        scores = torch.randn(tokens, width, generator=draw) @ torch.randn(width, tokens, generator=draw)
        lines["q·k / √d"].append((width, measure_entropy((scores / width**0.5).softmax(-1))))
        lines["q·k"].append((width, measure_entropy(scores.softmax(-1))))
    return lines


def add_worked_row(page: Page, tokens: list[str], hand: HandHead, scale: float, visible: Tensor, at: int) -> None:
    """Add the calculation of one token's row: score, scaling, exponential, weight, and its part of the first number of
    the output. The last row has the sums."""
    rows: list[tuple[object, ...]] = []
    totals = [0.0, 0.0, 0.0]
    for i, name in enumerate(tokens):
        if visible[at, i]:
            score, weight, value = float(hand.scores[at, i]), float(hand.weights[at, i]), float(hand.v[i, 0])
            power = float((hand.scores[at, i] * scale).exp())
            totals = [total + part for total, part in zip(totals, (power, weight, weight * value), strict=True)]
            numbers = (score, score * scale, power, weight, value, weight * value)
            rows.append((name, *(f"{number:z.3f}" for number in numbers)))
    sums = [f"{total:z.3f}" for total in totals]
    rows.append((page.localise("sum", "합"), "", "", sums[0], sums[1], "", sums[2]))
    head = (page.localise("key of", "키"), "s = q·k", "s / √d", "exp(s / √d)", page.localise("weight = exp / sum", "가중치 = exp / 합"),
            page.localise("v, number 0", "v의 0번째 값"), page.localise("weight · v", "가중치 · v"))  # fmt: skip
    title = page.localise(f"The row of “{tokens[at]}”, by hand", f"“{tokens[at]}”의 행, 손으로 계산하기")
    page.add_table(title, head, rows)


def add_vectors(page: Page, title: str, names: list[str], vectors: Tensor) -> None:
    """Add the first numbers of some tokens' vectors (T, D) as a table of the page."""
    numbers = [page.localise(f"number {i}", f"{i}번째 값") for i in range(min(SHOWN_NUMBERS, vectors.shape[1]))]
    shown = vectors[:, :SHOWN_NUMBERS].tolist()
    rows = [(name, *(f"{x:z.3f}" for x in row)) for name, row in zip(names, shown, strict=False)]
    page.add_table(title, (page.localise("token", "토큰"), *numbers), rows, shown=False)


def choose_row(tokens: Sequence[Token]) -> int:
    """Choose the token whose row is computed: the last that is a whole word, if it stands in the second half; else the
    last that is a whole syllable or part of a word, no piece of one character."""
    whole = [
        i for i, token in enumerate(tokens)
        if not token.is_special and not token.is_joined and any(map(str.isalnum, token.text))
        and not (i + 1 < len(tokens) and tokens[i + 1].is_joined)
    ]  # fmt: skip
    words = [i for i in whole if is_word_start(tokens, i) and (i + 1 == len(tokens) or is_word_start(tokens, i + 1))]
    if words and 2 * words[-1] >= len(tokens):
        return words[-1]
    return whole[-1] if whole else len(tokens) - 1


def is_word_start(tokens: Sequence[Token], at: int) -> bool:
    """Return whether a token begins a word or stands between words: after a space, at the beginning, or no letter."""
    text, before = tokens[at].text, tokens[at - 1] if at else None
    if before is None or before.is_special or not any(map(str.isalnum, text)) or text[0].isspace():
        return True
    return tokens[at].start > before.end


@torch.no_grad()
def run(page: Page, settings: Settings) -> dict[str, float]:
    """Compute a head by hand, and compare it with the model's own weights."""
    text = page.choose_text(
        "The people of the United States are the masters of the law", "이 법은 국민의 권리를 보호하기 위한 것임"
    )
    former = load_or_train(page, settings.model, "gpt2", settings.steps)
    body = former.model.body
    blocks = [cast(Block, block) for block in body.blocks] if isinstance(body, TransformerBody) else []
    if not blocks or body.bias is not None or any(b.attn.rotary or b.attn.relative for b in blocks):
        raise Error(f"{former.family} has more than plain attention", fix="give a BERT or a GPT-2, or leave model out")
    text, whole_text = cut_to_context(former, text), text
    attention_result = attention(former, text)
    kind, own = next(iter(attention_result.weights.items()))  # (L, H, T, T)
    attention_result.maps[kind].check_head(settings.layer, settings.head)
    states = former.hidden(encode_inputs(former, text).get_batch().ids[None], layer=None)[:, 0]  # (L + 1, T, dim)
    length = states.shape[1]
    index = torch.arange(length)
    visible = torch.ones(length, length, dtype=torch.bool)
    if body.masks[0] is not None:
        visible = body.masks[0](index, index, index[:, None], index[None])
    block = blocks[settings.layer]
    x = states[settings.layer] if block.norm_order == "post" else block.attn_norm(states[settings.layer])
    hand = compute_head(block.attn, x, settings.head, visible)
    unscaled = compute_head(block.attn, x, settings.head, visible, scaled=False)
    error = float((hand.weights - own[settings.layer, settings.head]).abs().max())
    side = attention_result.sides[attention_result.maps[kind].queries].tokens
    tokens = name_tokens(side)
    names, n = tokens[:SHOWN_TOKENS], min(length, SHOWN_TOKENS)
    local = page.localise
    page.add_heading(local("The numbers", "숫자로 보기"))
    if text != whole_text:
        page.add_note(local(f"The sentence was cut to the {length} tokens that the model reads at once.",
                            f"문장은 모델이 한 번에 읽는 토큰 {length}개로 잘랐습니다."), shown=True)  # fmt: skip
    if length > n:
        page.add_note(local(f"Tables and pictures show the first {n} of {length} tokens.",
                            f"표와 그림은 토큰 {length}개 가운데 앞의 {n}개를 보여 줍니다."), shown=True)  # fmt: skip
    if any(token.is_joined for token in side[:n]):
        page.add_note(local(*JOINED_NOTE), shown=True)
    width, where = block.attn.head_dim, (settings.layer, settings.head)
    page.add_note(
        local(
            f"Layer {where[0]}, head {where[1]}, d = {width}: the first {SHOWN_NUMBERS} numbers of each vector.",
            f"레이어 {where[0]}, 헤드 {where[1]}, d = {width}: 각 벡터의 처음 {SHOWN_NUMBERS}개 값입니다.",
        )
    )
    add_worked_row(page, tokens, hand, block.attn.scale, visible, choose_row(side[:n]))
    for title, table in (
        (local("Queries q", "쿼리 q"), hand.q),
        (local("Keys k", "키 k"), hand.k),
        (local("Values v", "값 v"), hand.v),
    ):
        add_vectors(page, title, names, table)
    grids = {
        local("1. scores q·k", "1. 점수 q·k"): hand.scores,
        local(f"2. scaled: q·k / √{width}", f"2. 스케일링: q·k / √{width}"): hand.scores * block.attn.scale,
        local("3. weights: softmax of the visible scores", "3. 가중치: 보이는 점수의 소프트맥스"): hand.weights,
        local("the weights without the division", "나누지 않은 경우의 가중치"): unscaled.weights,
    }
    if not visible.all():
        page.add_note(local("Above the diagonal the weights are 0: the causal mask hides the tokens that come later.",
                            "대각선 위의 가중치는 0입니다. 인과 마스크가 뒤에 오는 토큰을 가리기 때문입니다."))  # fmt: skip
    page.add_picture(*(draw_matrix(grid[:n, :n], title, names, names, 34, True) for title, grid in grids.items()))
    add_vectors(page, local("4. Output: the values, weighted by each row and added up", "4. 출력: 행의 가중치로 더한 값들의 합"), names, hand.output)  # fmt: skip
    entropies = measure_entropy(hand.weights), measure_entropy(unscaled.weights)
    chain, plain = [x], [x]
    for layer in blocks:
        chain.append(
            torch.nn.functional.layer_norm(chain[-1] + compute_layer(layer.attn, chain[-1], visible), x.shape[-1:])
        )
        plain.append(torch.nn.functional.layer_norm(compute_layer(layer.attn, plain[-1], visible), x.shape[-1:]))
    rows = [
        (local("largest difference from the model's own weights", "모델 자체 가중치와의 최대 차이"), error),
        (local("mean entropy of the rows, with the division by √d (bits)", "√d로 나눈 경우 행 엔트로피의 평균(비트)"), entropies[0]),
        (local("mean entropy of the rows, without it (bits)", "나누지 않은 경우 행 엔트로피의 평균(비트)"), entropies[1]),
        (local("mean over rows of the largest weight, with the division", "나눈 경우 행별 최대 가중치의 평균"), float(hand.weights.max(-1).values.mean())),
        (local("mean over rows of the largest weight, without it", "나누지 않은 경우 행별 최대 가중치의 평균"), float(unscaled.weights.max(-1).values.mean())),
        (local("cosine between tokens after all layers, with the residual", "모든 레이어 뒤 토큰 간 코사인, 잔차 있음"), measure_likeness(chain[-1])),
        (local("cosine between tokens after all layers, without it", "모든 레이어 뒤 토큰 간 코사인, 잔차 없음"), measure_likeness(plain[-1])),
    ]  # fmt: skip
    page.add_table(local("What was measured", "측정값"), (local("quantity", "항목"), local("value", "값")), rows)
    page.add_heading(local("With and without √d, with and without the residual", "√d와 잔차 연결의 유무"))
    random = compare_random_heads()
    page.add_picture(
        draw_curves(
            random,
            local(
                "entropy of random heads of 64 tokens, by the width d",
                "토큰 64개에 대한 무작위 헤드의 엔트로피, 너비 d별",
            ),
            "d",
            local("bits", "비트"),
            log_x=True,
        )
    )
    likeness = {
        local("with the residual", "잔차 있음"): [(i, measure_likeness(v)) for i, v in enumerate(chain)],
        local("without the residual", "잔차 없음"): [(i, measure_likeness(v)) for i, v in enumerate(plain)],
    }
    page.add_picture(
        draw_curves(
            likeness,
            local(
                "cosine between the vectors of different tokens, by layer",
                "서로 다른 토큰 벡터 사이의 코사인, 레이어별",
            ),
            local("layers of attention", "어텐션 레이어 수"),
            "cos",
        )
    )
    return {"error": error, "entropy": entropies[0], "unscaled_entropy": entropies[1],
            "likeness": measure_likeness(chain[-1]), "plain_likeness": measure_likeness(plain[-1])}  # fmt: skip
