"""Two streams (XLNet): one that knows its token and one that predicts it, in a random order, on a sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..errors import Error
from ..former import Former
from ..inspection.objective_steps import TokenNames
from ..nn.attention.context import Capture
from ..reports.pictures import draw_curves, draw_matrix
from .page import Page, render_chips
from .small_models import load_or_train

EXPLANATION = (
    ("A permutation gives every token its turn; it is predicted from the tokens whose turn came before, on either side of it.",
     "순열이 토큰마다 차례를 정하며, 각 토큰은 왼쪽이든 오른쪽이든 차례가 앞선 토큰들로 예측합니다."),
    ("The content stream of a token knows the token, because later ones have to read it.",
     "내용 스트림은 자기 토큰을 압니다. 뒤 차례의 토큰들이 그것을 읽어야 하기 때문입니다."),
    ("The query stream knows only where the token stands: otherwise its answer would be in its input.",
     "쿼리 스트림은 토큰의 위치만 압니다. 그렇지 않으면 입력에 정답이 들어 있게 됩니다."),
    ("The table of leaks is exact: the query stream at a token does not change when that token changes, the content stream does.",
     "누출 표는 정확한 값입니다. 토큰을 바꾸어도 그 자리의 쿼리 스트림은 변하지 않고, 내용 스트림은 변합니다."),
    ("The later a token's turn, the more it may read: see whether its loss falls on average.",
     "차례가 늦을수록 읽을 수 있는 토큰이 많습니다. 평균 손실이 낮아지는지 보십시오."),
)  # fmt: skip
MAX_TOKENS = 24


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        model: An XLNet of your own; a small one is trained without it.
        steps: Training steps of the small model.
        orders: Random orders over which the loss is averaged.
        seed: Random seed of the orders.
    """

    model: str | None = None
    steps: int = 300
    orders: int = 64
    seed: int = 0


@torch.no_grad()
def score_order(former: Former, ids: Tensor, order: Tensor) -> Tensor:
    """Compute the loss of every token (T,) predicted by the query stream in an order (T,)."""
    logits = former.logits(ids[None], order=order[None])[0].float()
    return -logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]


@torch.no_grad()
def measure_leak(former: Former, ids: Tensor, order: Tensor) -> tuple[float, float]:
    """Measure how much a stream at a token changes when this token is changed: query stream, content stream; the
    largest over all tokens."""
    body, query, content = former.model.body, 0.0, 0.0
    batch = Batch.from_rows([ids.tolist()])
    pairs = order[None, None] <= order[None, :, None]
    first = body(batch.replace(order=order)), body(batch, visible_pairs=pairs)
    for at in range(len(ids)):
        other = ids.clone()
        other[at] = (ids[at] + 11) % former.config.vocab
        changed = Batch.from_rows([other.tolist()])
        query = max(query, float((body(changed.replace(order=order))[at] - first[0][at]).abs().max()))
        content = max(content, float((body(changed, visible_pairs=pairs)[at] - first[1][at]).abs().max()))
    return query, content


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Show the streams on the text, and average the loss over many orders."""
    local, s = page.localise, settings
    text = page.choose_text(
        "The Government of the United States is at peace", "현행법은 공공기관의 정보 공개를 정하고 있음"
    )
    former = load_or_train(page, s.model, "xlnet", s.steps)
    if not former.is_two_stream or former.tokenizer is None or former.head != "lm":
        raise Error(f"{former.family} has one stream", fix="give an XLNet with head lm, or leave model out")
    tokens = former.tokenizer.encode(text, special=False)
    ids = torch.tensor(tokens[:MAX_TOKENS])
    if len(tokens) > MAX_TOKENS:
        page.add_note(local(f"The sentence was cut to the first {MAX_TOKENS} of its {len(tokens)} tokens.",
                            f"문장은 토큰 {len(tokens)}개 가운데 앞의 {MAX_TOKENS}개로 잘랐습니다."), shown=True)  # fmt: skip
    draw = np.random.default_rng(s.seed)
    order = torch.as_tensor(draw.permutation(len(ids)))
    names = TokenNames(former.tokenizer).name_all(ids.tolist())
    capture = Capture(with_attention=True)
    with torch.no_grad():
        former.model.body(Batch.from_rows([ids.tolist()]).replace(order=order), capture=capture)
    streams = {name: layers[0][0] > 0 for name, layers in capture.attention_weights.items()}  # (H, T, T)
    blind = order == 0  # nothing is visible to the first of the order
    query_seen = streams["query"].any(0) & ~blind[:, None]
    losses = score_order(former, ids, order)
    rows = []
    page.add_note(local("The token that is predicted is orange, those that it is predicted from are blue.",
                        "예측하는 토큰은 주황색, 예측에 쓰는 토큰은 파란색입니다."))  # fmt: skip
    if "␣" in names:
        page.add_note(local("␣ is a space that is a token of its own.", "␣는 따로 토큰이 된 공백입니다."))
    for turn, at in enumerate(order.argsort().tolist()):
        visible = [names[i] for i in range(len(ids)) if order[i] < turn]
        rows.append((turn + 1, names[at], len(visible), float(losses[at]), f"{float((-losses[at]).exp()):.2%}"))
        if turn in (0, len(ids) // 2, len(ids) - 1):
            page.add_note(
                local(f"Turn {turn + 1}: predict “{names[at]}”.", f"{turn + 1}번째 차례: “{names[at]}” 예측.")
            )
            page.body.append(
                render_chips(
                    [(names[i], "warm" if i == at else "on" if order[i] < turn else "off") for i in range(len(ids))]
                )
            )
    page.add_table(
        local("In the order of prediction", "예측 순서대로"),
        (
            local("turn", "차례"),
            local("token", "토큰"),
            local("visible tokens", "보이는 토큰 수"),
            local("loss", "손실"),
            "p",
        ),
        rows,
    )
    query, content = measure_leak(former, ids, order)
    page.add_table(local("Leaks: the largest change of a stream at a token that is replaced", "누출: 토큰을 바꿀 때 그 자리에서 스트림의 최대 변화"), (local("stream", "스트림"), local("change", "변화")),
                   [(local("query", "쿼리"), query), (local("content", "내용"), content)])  # fmt: skip
    page.add_picture(
        draw_matrix(
            streams["content"].any(0).float(),
            local("content stream: what each token (row) reads", "내용 스트림: 각 토큰(행)이 읽는 토큰"),
            names,
            names,
        ),
        draw_matrix(
            query_seen.float(),
            local("query stream: what each token (row) reads", "쿼리 스트림: 각 토큰(행)이 읽는 토큰"),
            names,
            names,
        ),
    )
    totals = torch.zeros(len(ids))
    for number in range(s.orders):
        page.tell("orders", number + 1, s.orders, "")
        one = torch.as_tensor(draw.permutation(len(ids)))
        totals += score_order(former, ids, one)[one.argsort()]
    means = (totals / max(1, s.orders)).tolist()
    page.add_picture(
        draw_curves(
            {local("mean loss", "평균 손실"): [(i + 1, v) for i, v in enumerate(means)]},
            local(f"mean loss by turn, over {s.orders} random orders", f"차례별 평균 손실(임의의 순서 {s.orders}개)"),
            local("turn", "차례"),
            local("loss", "손실"),
        )
    )
    half = max(1, len(means) // 2)
    return {"query": query, "content": content, "early": sum(means[:half]) / half, "late": sum(means[-half:]) / half,
            "diagonal": float(query_seen.diagonal().sum()), "content_diagonal": float(streams["content"].any(0).diagonal().float().mean())}  # fmt: skip
