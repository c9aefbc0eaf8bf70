"""Decoding step by step: the likeliest tokens of every step, greedy search, the tree of a beam search, sampling."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import Error
from ..former import Former
from ..generation.api import encode_prompt
from ..generation.beam import BeamState
from ..generation.decoding import DecodingBatch, build_id_constraints, continue_ids
from ..generation.options import Options
from ..generation.sampling import warp_logits
from ..reports.html import draw_text, wrap_figure
from ..reports.pictures import COLOURS, draw_curves, measure_label
from ..text.tokenizer import DecodeStream, Tokenizer
from ..training.config_merge import configure_pretraining
from .page import Page
from .small_models import cut_to_context, load_or_train

EXPLANATION = (
    ("Each row of the first table is a step: the likeliest next tokens with their probabilities, of which greedy search takes the first.",
     "첫 표의 각 행은 한 단계이며, 확률이 높은 다음 토큰과 그 확률입니다. 그리디 디코딩은 첫 번째를 고릅니다."),
    ("Beam search keeps several beginnings, since a branch that begins worse can end better than the greedy one: compare their log p.",
     "빔 탐색은 여러 앞부분을 유지하므로, 처음에 불리한 가지가 결국 그리디보다 나을 수 있습니다. 두 방법의 log p를 비교하십시오."),
    ("A low temperature sharpens the distribution, a high one flattens it: look at the entropy.",
     "온도가 낮으면 분포가 뾰족해지고 높으면 평평해집니다. 엔트로피를 보십시오."),
    ("Top-k keeps a fixed number of tokens, top-p as many as are needed for a share of the probability, few where the model is sure.",
     "top-k는 정해진 수의 토큰을 남기고, top-p는 확률의 일정 비율을 채울 만큼만 남기므로 모델이 확신할수록 적게 남습니다."),
    ("With label smoothing the right token has a target below 1: the loss is least near 1 − ε and not at certainty, where its curve turns up.",
     "레이블 스무딩을 쓰면 정답 토큰의 목표 확률이 1보다 작습니다. 손실은 완전한 확신이 아니라 1 − ε 부근에서 가장 작고, 그 뒤로는 곡선이 다시 올라갑니다."),
)  # fmt: skip
FAMILY = "gpt2"  # of the small model
SMOOTHING_RATES = (0.0, 0.1, 0.2)
MAX_NAME = 16  # letters of a token in the tree


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
    room = settings.tokens + 1  # the last step of a search only ends texts
    options = Options(num_beams=settings.beams, max_new_tokens=room, temperature=None)
    batch = DecodingBatch(former, [prompt], room, settings.beams)
    state, steps = BeamState(batch, build_id_constraints(former, options, room)), []
    for step in range(settings.tokens):
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


def name_next(tokenizer: Tokenizer, before: list[int], token: int) -> str:
    """Name a token that follows others: its text, with the character that it completes; "…" stands for a character of
    which it has only the first bytes, such as a Korean syllable, and "␣" for a space."""
    stream = DecodeStream(tokenizer, special=True)
    name = [stream.push(index) for index in (*before, token)][-1]
    return show_controls(name).replace(" ", "␣") + ("…" if stream.pending_bytes or not name else "")


def show_controls(text: str) -> str:
    """Spell control characters out: a line break becomes \\n."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def follow_beams(steps: list[list[BeamNode]], prompt: list[int]) -> list[list[list[int]]]:
    """Return the ids that precede every token of a search, by step and beam."""
    before = [[list(prompt) for _ in steps[0]]]
    for nodes, children in itertools.pairwise(steps):
        texts = [[*ids, node.token] for ids, node in zip(before[-1], nodes, strict=True)]
        before.append([texts[node.parent % len(nodes)] for node in children])
    return before


def draw_tree(steps: list[list[BeamNode]], prompt: list[int], tokenizer: Tokenizer, label: str) -> str:
    """Draw the beams: a column is a step, a line leads from a beam to what it was continued with; the beam that is best
    in the end is coloured."""
    before, parts, high = follow_beams(steps, prompt), [], 36
    best, path = 0, []
    for nodes in reversed(steps):
        path.append(best)
        best = nodes[best].parent % len(nodes)
    path.reverse()
    columns = [
        [name_next(tokenizer, ids, node.token)[:MAX_NAME] for ids, node in zip(some, nodes, strict=True)]
        for some, nodes in zip(before, steps, strict=True)
    ]
    lefts = list(
        itertools.accumulate((max(90, *(34 + measure_name(name) for name in names)) for names in columns), initial=10)
    )
    widths: list[int] = []
    for at, (nodes, names) in enumerate(zip(steps, columns, strict=True)):
        for row, (node, name) in enumerate(zip(nodes, names, strict=True)):
            x, y, is_best = lefts[at], 20 + high * row, row == path[at]
            if at:
                parent = node.parent % len(nodes)
                colour = f'stroke="{COLOURS[0]}" stroke-width="2"' if is_best else 'stroke="#98a2b3"'
                ends = f'x1="{lefts[at - 1] + widths[parent] + 6}" y1="{16 + high * parent}" x2="{x - 5}" y2="{y - 4}"'
                parts.append(f"<line {ends} {colour}/>")
            style = {"style": f"fill:{COLOURS[0]};font-weight:600"} if is_best else {}
            parts.append(draw_text(x, y, name, **style))
            parts.append(draw_text(x, y + 13, f"{node.score:.2f}", class_="small soft"))
        widths = [measure_name(name) for name in names]
    return wrap_figure(10 + lefts[-1], 20 + high * len(steps[0]), "".join(parts), label)


def measure_name(name: str) -> int:
    """Estimate the width of a token's name in the tree, in pixels; its letters are larger than those of a matrix."""
    return round(1.3 * measure_label(name))


def check_tokens(tokens: int, context: int | None) -> None:
    """Refuse more tokens than a model has room for after the first one of a prompt; the last step of a beam search takes
    one too."""
    if context is not None and tokens > context - 2:
        what = f"--tokens must be at most {context - 2} for this model, which reads {context} at once, got {tokens}"
        raise Error(what, fix="leave --tokens out for the default")


def build_target(vocab: int, right: int, rate: float) -> Tensor:
    """Build the distribution (vocab,) that training with label smoothing aims at: ε is shared by all tokens."""
    target = torch.full((vocab,), rate / vocab)
    target[right] += 1 - rate
    return target


def measure_smoothing(vocab: int, rate: float) -> list[tuple[float, float]]:
    """Measure the loss by the probability that a prediction gives to the right token; the others share the rest."""
    curve = []
    for share in (*(i / 50 for i in range(10, 50)), 0.99, 0.999, 0.9999, 0.99999):
        guess = torch.full((1, vocab), (1 - share) / (vocab - 1))
        guess[0, 0] = share
        loss = torch.nn.functional.cross_entropy(guess.log(), torch.tensor([0]), label_smoothing=rate)
        curve.append((share, float(loss)))
    return curve


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Decode a prompt in several ways."""
    s, local = settings, page.localise
    text = page.choose_text("The Government of the United States", "이에 현행법을")
    if s.model is None:
        check_tokens(s.tokens, configure_pretraining(FAMILY, None, {}).model["context"])
    former = load_or_train(page, s.model, FAMILY, s.steps)
    assert former.tokenizer is not None
    check_tokens(s.tokens, former.context)
    tokenizer, prompt = former.tokenizer, list(encode_prompt(former, cut_to_context(former, text, s.tokens + 2)))
    ids, rows = list(prompt), []
    top = min(s.top, former.output_vocab)
    for step in range(s.tokens):
        probabilities, tokens = compute_next(former, ids).exp().topk(top)
        words = [name_next(tokenizer, ids, int(t)) for t in tokens]
        rows.append((step + 1, *(f"{word} {p:.1%}" for word, p in zip(words, probabilities.tolist(), strict=True))))
        ids.append(int(tokens[0]))
    page.add_note(f"{local('prompt', '프롬프트')}: {text}")
    if s.model is None:
        own = page.documents is not None
        page.add_note(local(f"A small GPT-2 that has read {'your file' if own else 'the bundled corpus'} only, and writes in its style.",
                            f"작은 GPT-2이며 {'지정한 파일' if own else '내장 말뭉치'}만 읽었으므로, 생성하는 글도 그 말투를 따릅니다."), shown=True)  # fmt: skip
    page.add_table(
        local("The likeliest tokens of each step", "단계별로 확률이 높은 토큰"),
        (local("step", "단계"), *(f"{i + 1}." for i in range(top))),
        rows,
    )
    if any("…" in str(cell) for row in rows for cell in row[1:]):
        page.add_note(local("… stands for the first bytes of a character that a later token completes.",
                            "…는 다음 토큰이 완성할 글자의 앞쪽 바이트를 뜻합니다."), shown=True)  # fmt: skip
    page.add_note(local("␣ is a space: a token that begins a word usually includes the space before it.",
                        "␣는 공백입니다. 단어 앞의 공백은 그 단어의 토큰에 들어 있습니다."), shown=True)  # fmt: skip
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
        texts.append((name, show_controls(tokenizer.decode(prompt + new)), scores[-1]))
    page.add_table(
        local("What each way writes", "방법별 생성 결과"),
        (local("way", "방법"), local("text", "텍스트"), "log p"),
        texts,
    )
    page.add_note(local("log p is the natural logarithm of the probability of all new tokens together: the nearer to 0, the likelier.",
                        "log p는 새 토큰 전체의 확률에 자연로그를 취한 값이며, 0에 가까울수록 그럴듯합니다."), shown=True)  # fmt: skip
    page.add_picture(
        draw_tree(
            trace_beams(former, prompt, s),
            prompt,
            tokenizer,
            local(
                "the beams of each step with the log-probability of the text so far; the best one of the last step in colour",
                "단계별 빔과 지금까지의 로그 확률. 마지막 단계에서 가장 좋은 빔을 색으로 표시했습니다",
            ),
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
    vocab, right = former.output_vocab, int(logs.argmax())
    targets = {rate: build_target(vocab, right, rate) for rate in SMOOTHING_RATES}
    rows = [
        (name_next(tokenizer, prompt, int(t)), float(logs[t].exp()), *(float(target[t]) for target in targets.values()))
        for t in logs.topk(top).indices
    ]
    head = (local("token", "토큰"), local("model", "모델"), *(f"ε = {rate:g}" for rate in SMOOTHING_RATES))
    page.add_table(
        local(f"The target of the first step if “{rows[0][0]}” is right, with label smoothing",
              f"“{rows[0][0]}”이(가) 정답일 때 첫 단계의 목표 분포(레이블 스무딩)"), head, rows,
    )  # fmt: skip
    curves = {f"ε = {rate:g}": measure_smoothing(vocab, rate) for rate in SMOOTHING_RATES}
    page.add_picture(
        draw_curves(
            curves,
            local("loss by the probability given to the right token", "정답 토큰에 준 확률별 손실"),
            local("probability of the right token", "정답 토큰의 확률"),
            local("loss", "손실"),
        )
    )
    best = min(curves[f"ε = {SMOOTHING_RATES[1]:g}"], key=lambda point: point[1])
    return {"greedy": scores[0], "beam": scores[1], "sharp": bits["T = 0.5"], "flat": bits["T = 2"], "kept": float((shapes["top-k 5"] > 0).sum()),
            "best_share": best[0], "least_loss": best[1]}  # fmt: skip
