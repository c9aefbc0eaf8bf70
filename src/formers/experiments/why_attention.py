"""Why attention: a recurrent encoder-decoder without and with it, by the length of the text; gradients over distance;
the alignment that it learned."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..batch import Batch
from ..errors import Error
from ..former import Former
from ..generation.decoding import continue_ids
from ..generation.options import Options
from ..inspection.attention import attention
from ..inspection.objective_steps import build_pair_store
from ..nn.attention.attention import Attention
from ..nn.attention.context import AttentionContext
from ..nn.attention.masks import causal
from ..nn.recurrent.rnn import CellKind, PackedSteps, RecurrentLayer
from ..registry import train_tokenizer
from ..reports.pictures import draw_curves, draw_matrix
from ..training.runs.prepare_data import PreparedData
from .page import Page
from .small_models import train_small

EXPLANATION = (
    ("Without attention the whole source must fit into one vector, so accuracy falls with the length of the text.",
     "어텐션이 없으면 원문 전체가 벡터 하나에 들어가야 하므로, 글이 길어질수록 정확도가 떨어집니다."),
    ("With attention every output looks its place up, and long texts are as easy as short ones, up to the lengths of the training.",
     "어텐션이 있으면 출력마다 필요한 곳을 찾아보므로, 학습한 길이까지는 긴 글도 짧은 글만큼 쉽습니다."),
    ("In the alignment a row is a word that was written and a column one that was read: reversal is the other diagonal.",
     "정렬 그림에서 행은 생성한 단어, 열은 읽은 단어입니다. 뒤집기에서는 반대 방향 대각선이 나타납니다."),
    ("Where to look is not part of the training data: the alignment follows from the loss alone.",
     "어디를 볼지는 학습 데이터에 없으며, 정렬은 손실만으로 학습됩니다."),
    ("The gradient of a recurrent layer fades with the distance, most quickly in a plain RNN; in attention any two tokens are one step apart.",
     "순환 레이어의 기울기는 거리에 따라 사라지며 단순 RNN에서 가장 빠릅니다. 어텐션에서는 어느 두 토큰이든 한 단계 거리입니다."),
)  # fmt: skip
SYMBOLS = "abcdefghij"
SHOWN_LENGTHS = (2, 6, 10, 14)
INIT = 0.15  # smaller weights learn their task far later
ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]  # fmt: skip
ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
KOREAN = ["영", "일", "이", "삼", "사", "오", "육", "칠", "팔", "구"]


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment. --file gives pairs of your own: source, a tab and target in each line.

    Attributes:
        steps: Training steps of each model.
        longest: Symbols of the longest training example; tests have up to one and a half times as many.
        dim: Width of the recurrent layers.
        pairs: Training pairs.
        tests: Test pairs of each length.
        seed: Random seed of the pairs.
    """

    steps: int = 300
    longest: int = 10
    dim: int = 64
    pairs: int = 8000
    tests: int = 40
    seed: int = 0


def spell_english(number: int) -> str:
    """Spell a number from 0 to 9,999,999 in English words."""
    for size, word in ((1_000_000, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = f" {spell_english(number % size)}" if number % size else ""
            return f"{spell_english(number // size)} {word}{rest}"
    if number < 20:
        return ENGLISH[number]
    return ENGLISH_TENS[number // 10 - 2] + (f" {ENGLISH[number % 10]}" if number % 10 else "")


def spell_korean(number: int) -> str:
    """Spell a number from 0 to 9,999,999 in Sino-Korean words."""
    for size, word in ((10_000, "만"), (1000, "천"), (100, "백"), (10, "십")):
        if number >= size:
            many = "" if number // size == 1 else f"{spell_korean(number // size)} "
            rest = f" {spell_korean(number % size)}" if number % size else ""
            return f"{many}{word}{rest}"
    return KOREAN[number]


def make_pairs(task: str, length: int, count: int, draw: random.Random) -> list[tuple[str, str]]:
    """Make pairs of a task: copied or reversed symbols, or numbers in English and Korean words."""
    pairs = []
    for _ in range(count):
        if task == "translate":
            number = draw.randrange(10 ** draw.randint(1, 7))
            pairs.append((spell_english(number), spell_korean(number)))
        else:
            row = [draw.choice(SYMBOLS) for _ in range(length)]
            pairs.append((" ".join(row), " ".join(row if task == "copy" else row[::-1])))
    return pairs


def encode_pairs(pairs: list[tuple[str, str]], valid: list[tuple[str, str]]) -> PreparedData:
    """Train a tokenizer on pairs, and encode them and those that are held out."""
    lines = ["\t".join(pair) for pair in pairs], ["\t".join(pair) for pair in valid]
    tokenizer = train_tokenizer("seq2seq", [side for pair in pairs for side in pair], 400)
    stores = [build_pair_store(some, tokenizer) for some in lines]
    return PreparedData(tokenizer, stores[0], stores[1])


def measure_accuracy(former: Former, pairs: list[tuple[str, str]]) -> float:
    """Measure the share of target tokens that greedy decoding writes at their place."""
    assert former.tokenizer is not None
    end = former.tokenizer.id("eos")
    rows = [[*former.tokenizer.encode(source, special=False), *([] if end is None else [end])] for source, _ in pairs]
    targets = [former.tokenizer.encode(target, special=False) for _, target in pairs]
    outputs = continue_ids(former, rows, max(map(len, targets)) + 4, Options(temperature=0))
    right = sum(a == b for new, target in zip(outputs, targets, strict=True) for a, b in zip(new, target, strict=False))
    return right / max(1, sum(map(len, targets)))


def run_recurrence(layer: RecurrentLayer, batch: Batch, x: Tensor) -> Tensor:
    """Run a recurrent layer over a batch: (N, dim) → (N, dim)."""
    return layer(x, PackedSteps(batch.layout))[0]


def measure_gradients(distances: int, dim: int = 64) -> dict[str, list[tuple[float, float]]]:
    """Measure how much the last output of a new layer depends on a token so many places before: the norm of the
    gradient, as a share of that of the last token."""
    torch.manual_seed(0)
    batch = Batch.from_rows([[0] * (distances + 1)])
    layers: dict[str, Callable[[Tensor], Tensor]] = {}
    kinds: tuple[CellKind, ...] = ("rnn", "lstm", "gru")
    for kind in kinds:
        layers[kind.upper()] = functools.partial(run_recurrence, RecurrentLayer(kind, dim, dim), batch)
    attn = Attention(dim, 4)
    layers["Transformer"] = lambda x: attn(x, AttentionContext.start_pass(batch.layout, mask=causal))
    gradients = {}
    for name, layer in layers.items():
        x = torch.randn(distances + 1, dim, requires_grad=True)
        layer(x)[-1].sum().backward()
        assert x.grad is not None
        norms = x.grad.norm(dim=-1)
        gradients[name] = [(float(i), max(1e-12, float(norms[-1 - i] / norms[-1]))) for i in range(1, distances + 1)]
    return gradients


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Train every task without and with attention, and measure by length."""
    local, s, draw = page.localise, settings, random.Random(settings.seed)
    kinds = {"none": local("without attention", "어텐션 없음"), "dot": local("with attention", "어텐션 있음")}
    tasks = {
        "copy": local("copy", "복사"),
        "reverse": local("reversal", "뒤집기"),
        "translate": local("numbers, English to Korean", "숫자, 영어→한국어"),
    }
    lengths = sorted({2, *range(4, int(1.5 * s.longest) + 1, 2)})
    results: dict[str, float] = {}
    rows: list[tuple[object, ...]] = []
    for task, title in tasks.items():
        if task == "translate":
            pairs, tests = make_translation_pairs(page, s, draw)
        else:
            pairs = [pair for _ in range(s.pairs) for pair in make_pairs(task, draw.randint(2, s.longest), 1, draw)]
            tests = {length: make_pairs(task, length, s.tests, draw) for length in lengths}
        data = encode_pairs(pairs[s.tests :], pairs[: s.tests])
        lines = {}
        for kind, name in kinds.items():
            sizes = {"attention": kind, "cell": "gru", "bidirectional": False, "dim": s.dim, "embed": s.dim}
            sizes["init"] = INIT
            train = {"lr": 1e-2, "batch_tokens": 512}
            trained_model = train_small(
                page, "seq2seq", data, s.steps, title=f"{task}, {kind}", model=sizes, train=train
            )
            lines[name] = [
                (float(length), measure_accuracy(trained_model.former, some)) for length, some in tests.items()
            ]
            results[f"{task} {kind}"] = sum(y for _, y in lines[name]) / len(lines[name])
            rows.append(
                (
                    title,
                    name,
                    trained_model.loss,
                    *(f"{dict(lines[name])[x]:.0%}" if x in tests else "" for x in SHOWN_LENGTHS),
                )
            )
        page.add_picture(
            draw_curves(
                {k: [(x, 100 * y) for x, y in v] for k, v in lines.items()},
                local(f"{title}: accuracy by length", f"{title}: 길이별 정확도"),
                local("symbols or words", "기호 또는 단어 수"),
                "%",
            )
        )
        shown = max(
            (pair for some in tests.values() for pair in some[:1]),
            key=lambda pair: len(pair[0]) if len(pair[0].split()) <= s.longest else 0,
        )
        seen = attention(trained_model.former, *shown)
        weights = seen.maps["alignment"].weights[0, 0]
        written, read = ([token.piece for token in seen.sides[name].tokens] for name in ("target", "source"))
        page.add_picture(
            draw_matrix(weights, local(f"{title}: the alignment it learned", f"{title}: 학습된 정렬"), written, read)
        )
    gradients = measure_gradients(48)
    head = (
        local("task", "과제"),
        local("model", "모델"),
        local("loss", "손실"),
        *(local(f"{n} symbols", f"{n}개") for n in SHOWN_LENGTHS),
    )
    page.add_table(local("Accuracy by the number of symbols or words", "기호 또는 단어 수별 정확도"), head, rows)
    far = (1, 8, 16, 48)
    page.add_table(local("Gradient of a token some places before", "앞선 토큰의 기울기"), (local("layer", "레이어"), *(str(d) for d in far)),
                   [(name, *(f"{line[d - 1][1]:.1e}" for d in far)) for name, line in gradients.items()])  # fmt: skip
    page.add_picture(
        draw_curves(
            gradients,
            local("gradient by distance, as a share of the last token's", "거리별 기울기(마지막 토큰 대비)"),
            local("distance", "거리"),
            log_y=True,
        )
    )
    return results | {f"gradient {name}": line[-1][1] for name, line in gradients.items()}


def make_translation_pairs(
    page: Page, settings: Settings, draw: random.Random
) -> tuple[list[tuple[str, str]], dict[int, list[tuple[str, str]]]]:
    """Return training pairs and test pairs by the number of words: numbers in words, or the user's own pairs."""
    pairs = make_pairs("translate", 0, settings.pairs, draw)
    if page.documents is not None:
        rows = [line.split("\t") for document in page.documents for line in document.split("\n") if "\t" in line]
        pairs = [(row[0], row[1]) for row in rows]
        if len(pairs) < 10 * settings.tests:
            what = f"{len(pairs)} pairs are too few"
            raise Error(what, fix=f"give {10 * settings.tests} lines or more: source, a tab, target")
        draw.shuffle(pairs)
    tests: dict[int, list[tuple[str, str]]] = {}
    for pair in pairs[: 6 * settings.tests]:
        some = tests.setdefault(2 * ((len(pair[0].split()) + 1) // 2), [])
        if len(some) < settings.tests:
            some.append(pair)
    return pairs[6 * settings.tests :], dict(sorted(tests.items()))
