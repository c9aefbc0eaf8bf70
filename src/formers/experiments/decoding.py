"""Decoding step by step: the likeliest tokens of every step, greedy search, the tree of a beam search, sampling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..former import Former
from ..generation.api import encode_prompt
from ..generation.beam import BeamState
from ..generation.decoding import DecodingBatch, build_id_constraints, continue_ids
from ..generation.options import Options
from ..generation.sampling import warp_logits
from ..inspection.objective_steps import TokenNames
from ..reports.html import draw_text, wrap_figure
from ..reports.pictures import draw_bars, draw_curves
from .page import Page
from .small_models import load_or_train

EXPLANATION = (
    ("Each row of the first table is a step: the likeliest next tokens with their probabilities, of which greedy search takes the first.",
     "첫 표의 각 행은 한 단계이며, 가장 그럴듯한 다음 토큰과 확률입니다. 그리디 탐색은 첫째를 고릅니다."),
    ("Beam search keeps several beginnings; a branch that begins worse can end better than the greedy one.",
     "빔 탐색은 여러 앞부분을 유지하므로, 처음에 불리한 가지가 결국 그리디보다 나을 수 있습니다."),
    ("A low temperature sharpens the distribution, a high one flattens it: look at the entropy.",
     "온도가 낮으면 분포가 뾰족해지고 높으면 평평해집니다. 엔트로피를 보십시오."),
    ("Top-k keeps a fixed number of tokens, top-p as many as are needed for a share of the probability, few where the model is sure.",
     "top-k는 정해진 수의 토큰을 남기고, top-p는 확률의 일정 비율을 채울 만큼만 남기므로 모델이 확신할수록 적게 남습니다."),
    ("With label smoothing the target is no longer 1 for one token, so the best possible loss is above 0 and certainty is punished.",
     "레이블 스무딩을 쓰면 목표가 한 토큰에 1이 아니므로 가능한 최소 손실이 0보다 크고, 지나친 확신에는 벌점이 붙습니다."),
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        model: A language model of your own that continues text; a small GPT-2 is trained without one.
        steps: Training steps of the small model.
        tokens: Tokens that are decoded.
        top: Tokens shown for each step.
        beams: Beams of the search.
        seed: Random seed of sampling.
    """

    model: str | None = None
    steps: int = 500
    tokens: int = 8
    top: int = 5
    beams: int = 3
    seed: int = 0


@dataclass(frozen=True)
class BeamNode:
    """A token of the search: its parent among the beams of the step before, and the score of the text so far."""

    token: int
    parent: int
    score: float


@torch.no_grad()
def trace_beams(former: Former, prompt: list[int], settings: Settings) -> list[list[BeamNode]]:
    """Search with beams, and keep the running ones of every step."""
    options = Options(num_beams=settings.beams, max_new_tokens=settings.tokens, temperature=None)
    batch = DecodingBatch(former, [prompt], settings.tokens, settings.beams)
    state, steps = BeamState(batch, build_id_constraints(former, options, settings.tokens)), []
    for step in range(settings.tokens - 1):  # the last step only ends texts
        state.step(step)
        tokens, parents = state.pending_steps[-1].tolist()
        scores = state.running_scores[0].tolist()
        steps.append([BeamNode(t, p, s) for t, p, s in zip(tokens, parents, scores, strict=True)])
        state.flush_steps(step)
        if batch.is_done:
            break
    return steps


@torch.no_grad()
def compute_next(former: Former, ids: list[int]) -> Tensor:
    """Compute the log-probabilities (vocab,) of the token after some ids."""
    return former.logits(torch.tensor([ids]))[0, -1].float().log_softmax(-1)


def score_text(former: Former, prompt: list[int], new: list[int]) -> float:
    """Sum the log-probabilities of new ids after a prompt."""
    with torch.no_grad():
        logs = former.logits(torch.tensor([prompt + new]))[0].float().log_softmax(-1)
    return float(sum(logs[len(prompt) + i - 1, token] for i, token in enumerate(new)))


def draw_tree(steps: list[list[BeamNode]], names: TokenNames, label: str) -> str:
    """Draw the beams: a column is a step, a line leads from a beam to what it was continued with."""
    parts, wide, high = [], 88, 34
    for at, nodes in enumerate(steps):
        for row, node in enumerate(nodes):
            x, y = 10 + wide * at, 20 + high * row
            if at:
                parent = 20 + high * (node.parent % len(nodes))
                parts.append(f'<line class="level" x1="{x - wide + 58}" y1="{parent - 4}" x2="{x - 4}" y2="{y - 4}"/>')
            parts.append(draw_text(x, y, names.name_all([node.token])[0][:9]))
            parts.append(draw_text(x, y + 13, f"{node.score:.2f}", class_="small soft"))
    return wrap_figure(20 + wide * len(steps), 20 + high * len(steps[0]), "".join(parts), label)


def measure_smoothing(
    vocab: int, rates: tuple[float, ...] = (0.0, 0.1, 0.2)
) -> list[tuple[float, float, float, float]]:
    """Return for each rate of label smoothing: the target's probability, that of every other token, and the least loss
    that any prediction can have, which is the entropy of the target distribution."""
    rows = []
    for rate in rates:
        target = torch.full((vocab,), rate / vocab)
        target[0] += 1 - rate
        logits = target.clamp(min=1e-12).log()[None]
        least = torch.nn.functional.cross_entropy(logits, torch.tensor([0]), label_smoothing=rate)
        rows.append((rate, float(target[0]), float(target[1]), float(least)))
    return rows


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Decode a prompt in several ways."""
    s, local = settings, page.localise
    text = page.choose_text("The Government of the United States", "이에 현행법을")
    former = load_or_train(page, s.model, "gpt2", s.steps)
    assert former.tokenizer is not None
    names, prompt = TokenNames(former.tokenizer), list(encode_prompt(former, text))
    ids, rows = list(prompt), []
    for step in range(s.tokens):
        probabilities, tokens = compute_next(former, ids).exp().topk(s.top)
        words = [names.name_all([int(t)])[0] for t in tokens]
        rows.append((step + 1, *(f"{word} {p:.1%}" for word, p in zip(words, probabilities.tolist(), strict=True))))
        ids.append(int(tokens[0]))
    page.add_note(f"{local('prompt', '프롬프트')}: {text}")
    page.add_table(
        local("The likeliest tokens of each step", "단계별로 가장 그럴듯한 토큰"),
        (local("step", "단계"), *(f"{i + 1}." for i in range(s.top))),
        rows,
    )
    ways = {
        local("greedy", "그리디"): Options(temperature=0, max_new_tokens=s.tokens),
        local(f"beam search, {s.beams} beams", f"빔 탐색, 빔 {s.beams}개"): Options(num_beams=s.beams, max_new_tokens=s.tokens),
        "top-k 5": Options(top_k=5, seed=s.seed), "top-p 0.9": Options(top_p=0.9, seed=s.seed),
        local("temperature 0.5", "온도 0.5"): Options(temperature=0.5, seed=s.seed), local("temperature 2", "온도 2"): Options(temperature=2.0, seed=s.seed),
    }  # fmt: skip
    texts, scores = [], []
    for name, options in ways.items():
        new = continue_ids(former, [prompt], s.tokens, options)[0]
        scores.append(score_text(former, prompt, new))
        texts.append((name, former.tokenizer.decode(prompt + new), scores[-1]))
    page.add_table(
        local("What each way writes", "방법별 생성 결과"),
        (local("way", "방법"), local("text", "텍스트"), "log p"),
        texts,
    )
    page.add_picture(
        draw_tree(
            trace_beams(former, prompt, s),
            names,
            local("the beams, with the log-probability of the text so far", "빔과 지금까지의 로그 확률"),
        )
    )
    logs = compute_next(former, prompt)
    warped = {f"T = {t:g}": warp_logits(logs[None], Options(temperature=t))[0] for t in (0.5, 1.0, 2.0)}
    warped |= {
        "top-k 5": warp_logits(logs[None], Options(top_k=5))[0],
        "top-p 0.9": warp_logits(logs[None], Options(top_p=0.9))[0],
    }
    shapes = {name: scores_.softmax(-1).sort(descending=True).values for name, scores_ in warped.items()}
    bits = {name: float(-(p * p.clamp(min=1e-30).log2()).sum()) for name, p in shapes.items()}
    page.add_table(local("The first step's distribution", "첫 단계의 분포"), (local("setting", "설정"), local("tokens left", "남은 토큰"), local("entropy (bits)", "엔트로피(비트)"), local("largest", "최대 확률")),
                   [(n, int((p > 0).sum()), bits[n], f"{float(p[0]):.1%}") for n, p in shapes.items()])  # fmt: skip
    page.add_picture(
        draw_curves(
            {n: [(i + 1, float(v)) for i, v in enumerate(p[:20])] for n, p in shapes.items()},
            local("probability by rank", "순위별 확률"),
            local("rank", "순위"),
            "p",
        )
    )
    smoothing = measure_smoothing(former.output_vocab)
    page.add_table(local("The target with label smoothing", "레이블 스무딩을 쓴 목표 분포"), ("ε", local("the right token", "정답 토큰"), local("every other", "나머지 각각"), local("least loss", "최소 손실")),
                   [(f"{r:g}", a, b, c) for r, a, b, c in smoothing])  # fmt: skip
    page.add_picture(
        draw_bars(
            {f"ε = {r:g}": c for r, _, _, c in smoothing},
            local("least loss that any prediction can have", "가능한 최소 손실"),
        )
    )
    return {"greedy": scores[0], "beam": scores[1], "sharp": bits["T = 0.5"], "flat": bits["T = 2"], "kept": float((shapes["top-k 5"] > 0).sum()),
            "least_loss": smoothing[1][3]}  # fmt: skip
