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
from .page import Page, name_tokens
from .small_models import train_small

EXPLANATION = (
    ("Without attention the whole source must fit into one vector, so accuracy mostly falls with the length of the text.",
     "어텐션이 없으면 원문 전체가 벡터 하나에 들어가야 하므로, 대체로 텍스트가 길어질수록 정확도가 떨어집니다."),
    ("With attention every output can look its place up: compare long texts with short ones, up to the longest seen in training and beyond it.",
     "어텐션이 있으면 출력마다 필요한 곳을 찾아볼 수 있습니다. 짧은 텍스트와 긴 텍스트를 비교하고, 학습한 최대 길이를 넘으면 어떻게 되는지도 보십시오."),
    ("In the alignment a row is the word being written and a column a word that was read, the stronger its colour the more it was looked at: a copy that is learned gives a diagonal, a reversal the other one.",
     "정렬 그림에서 행은 쓰고 있는 단어, 열은 읽은 단어이며 진할수록 많이 본 것입니다. 복사를 학습하면 대각선이, 뒤집기를 학습하면 반대 방향 대각선이 나타납니다."),
    ("In a translation the marks jump where the order of words differs, as a Korean verb comes last: no example says where to look, the alignment follows from the loss alone.",
     "한국어에서 동사가 마지막에 오듯이 어순이 다른 곳에서는 번역의 정렬이 건너뜁니다. 어디를 볼지는 학습 데이터에 없으며, 정렬은 손실만으로 학습됩니다."),
    ("The gradients are those of new, untrained layers: in a recurrent one they fade with the distance, most quickly in a plain RNN; in attention any two tokens are one step apart.",
     "기울기는 학습하지 않은 새 레이어에서 잰 것입니다. 순환 레이어에서는 거리에 따라 사라지며 단순 RNN에서 가장 빠릅니다. 어텐션에서는 어느 두 토큰이든 한 단계 거리입니다."),
)  # fmt: skip
SYMBOLS = "abcdefghij"
SHOWN_LENGTHS = (2, 6, 10, 14, 20)
LEAST_GRADIENT = 1e-12  # smaller ones are drawn as this
INIT = 0.15  # smaller weights learn their task far later
VOCAB_SIZE, OWN_VOCAB_SIZE = 800, 4000  # of the tokenizers, for made pairs and for the user's own
# English and Korean words of simple sentences. A verb has two Korean forms: at the end, and before another clause.
SUBJECTS = {"the teacher": "선생님이", "the student": "학생이", "the doctor": "의사가", "the farmer": "농부가",
            "my brother": "내 동생이", "our neighbour": "우리 이웃이", "the singer": "가수가", "his uncle": "그의 삼촌이"}  # fmt: skip
VERBS = {"found": ("찾았다", "찾았고"), "bought": ("샀다", "샀고"), "sold": ("팔았다", "팔았고"), "lost": ("잃어버렸다", "잃어버렸고"),
         "saw": ("보았다", "보았고"), "moved": ("옮겼다", "옮겼고"), "hid": ("숨겼다", "숨겼고"), "drew": ("그렸다", "그렸고")}  # fmt: skip
ADJECTIVES = {"old": "오래된", "small": "작은", "red": "빨간", "heavy": "무거운", "beautiful": "아름다운", "new": "새"}
NOUNS = {
    "book": "책을",
    "bag": "가방을",
    "chair": "의자를",
    "box": "상자를",
    "picture": "그림을",
    "boat": "배를",
    "clock": "시계를",
}
PLACES = {
    "in the park": "공원에서",
    "at school": "학교에서",
    "in the garden": "정원에서",
    "at the market": "시장에서",
    "by the river": "강가에서",
}
TIMES = {
    "yesterday": "어제",
    "last week": "지난주에",
    "in the morning": "아침에",
    "on Sunday": "일요일에",
    "last night": "어젯밤에",
}


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment. The pairs that are translated are made from a template; --file gives real ones: source, a
    tab and target in each line.

    Attributes:
        steps: Training steps of each model that copies or reverses.
        translation_steps: Training steps of each model that translates; real pairs need more.
        longest: Symbols of the longest training example; tests have up to one and a half times as many.
        dim: Width of the recurrent layers.
        cell: Their cell.
        dropout: Dropout of the models that translate; a few thousand real pairs need about 0.3.
        pairs: Training pairs.
        tests: Test pairs of each length.
        seed: Random seed of the pairs.
    """

    steps: int = 300
    translation_steps: int = 500
    longest: int = 10
    dim: int = 64
    cell: CellKind = "gru"
    dropout: float = 0.0
    pairs: int = 8000
    tests: int = 40
    seed: int = 0


def choose_words(words: dict[str, str], draw: random.Random, share: float = 1.0) -> tuple[str, str]:
    """Choose an English word and its Korean one; with a smaller `share`, often none."""
    return draw.choice(list(words.items())) if draw.random() < share else ("", "")


def make_sentence(clauses: int, draw: random.Random) -> tuple[str, str]:
    """Make a sentence of some clauses in English and in Korean, whose verb comes last and whose time comes first."""
    sources, targets = [], []
    for number in range(clauses):
        subject, noun = choose_words(SUBJECTS, draw), choose_words(NOUNS, draw)
        adjective, place, when = (choose_words(words, draw, 0.5) for words in (ADJECTIVES, PLACES, TIMES))
        verb, forms = draw.choice(list(VERBS.items()))
        sources += ["and"] * (number > 0) + [subject[0], verb, "the", adjective[0], noun[0], place[0], when[0]]
        targets += [subject[1], when[1], place[1], adjective[1], noun[1], forms[number < clauses - 1]]
    return " ".join(filter(None, sources)), " ".join(filter(None, targets))


def make_pairs(task: str, length: int, count: int, draw: random.Random) -> list[tuple[str, str]]:
    """Make pairs of a task: copied or reversed symbols, or English sentences and their Korean translations."""
    pairs = []
    for _ in range(count):
        if task == "translate":
            pairs.append(make_sentence(draw.randint(1, 2), draw))
        else:
            row = [draw.choice(SYMBOLS) for _ in range(length)]
            pairs.append((" ".join(row), " ".join(row if task == "copy" else row[::-1])))
    return pairs


def encode_pairs(
    pairs: list[tuple[str, str]], valid: list[tuple[str, str]], vocab_size: int = VOCAB_SIZE
) -> PreparedData:
    """Train a tokenizer on pairs, and encode them and those that are held out."""
    lines = ["\t".join(pair) for pair in pairs], ["\t".join(pair) for pair in valid]
    tokenizer = train_tokenizer("seq2seq", [side for pair in pairs for side in pair], vocab_size)
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
        gradients[name] = [
            (float(i), max(LEAST_GRADIENT, float(norms[-1 - i] / norms[-1]))) for i in range(1, distances + 1)
        ]
    return gradients


def format_gradient(share: float) -> str:
    """Format a share of a gradient; those too small to be told apart from nothing are a bound."""
    return f"{share:.1e}" if share > LEAST_GRADIENT else f"< {LEAST_GRADIENT:.0e}"


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Train every task without and with attention, and measure by length."""
    local, s, draw = page.localise, settings, random.Random(settings.seed)
    if s.longest < 2:
        raise Error(f"--longest must be at least 2, got {s.longest}", fix="leave --longest out for the default")
    kinds = {"none": local("without attention", "어텐션 없음"), "dot": local("with attention", "어텐션 있음")}
    tasks = {
        "copy": local("copy", "복사"),
        "reverse": local("reversal", "뒤집기"),
        "translate": local("translation of your pairs", "지정한 문장 쌍의 번역")
        if page.documents
        else local("translation of template sentences", "템플릿 문장의 번역"),
    }
    page.add_note(describe_models_and_pairs(page, s), shown=True)
    lengths = sorted({2, *range(4, int(1.5 * s.longest) + 1, 2)})
    results: dict[str, float] = {}
    rows: list[tuple[object, ...]] = []
    pictures: list[tuple[str, list[str]]] = []
    for task, title in tasks.items():
        if task == "translate":
            pairs, tests = make_translation_pairs(page, s, draw)
        else:
            pairs = [pair for _ in range(s.pairs) for pair in make_pairs(task, draw.randint(2, s.longest), 1, draw)]
            tests = {length: make_pairs(task, length, s.tests, draw) for length in lengths}
        steps = s.translation_steps if task == "translate" else s.steps
        vocab_size = OWN_VOCAB_SIZE if task == "translate" and page.documents else VOCAB_SIZE
        data = encode_pairs(pairs[s.tests :], pairs[: s.tests], vocab_size)
        lines = {}
        for kind, name in kinds.items():
            sizes = {"attention": kind, "cell": s.cell, "bidirectional": False, "dim": s.dim, "embed": s.dim}
            sizes |= {"init": INIT, "dropout": s.dropout if task == "translate" else 0.0}
            train = {"lr": 1e-2, "batch_tokens": 512}
            trained_model = train_small(
                page, "seq2seq", data, steps, title=f"{title}, {name}", model=sizes, train=train
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
                    *(f"{dict(lines[name])[x]:.0%}" if x in tests else "–" for x in SHOWN_LENGTHS),
                )
            )
        across = local(f"symbols, {s.longest} at most in training", f"기호 수(학습은 {s.longest}개까지)")
        across = local("words of the source", "원문의 단어 수") if task == "translate" else across
        curves = draw_curves(
            {k: [(x, 100 * y) for x, y in v] for k, v in lines.items()},
            local("correct tokens by length", "길이별 정답 토큰 비율"),
            across,
            "%",
        )
        shown = max(
            (pair for some in tests.values() for pair in some[:1]),
            key=lambda pair: len(pair[0]) if len(pair[0].split()) <= s.longest else 0,
        )
        seen = attention(trained_model.former, *shown)
        weights = seen.maps["alignment"].weights[0, 0][:-1]  # reading <s> writes the first word, and so on
        written, read = (name_tokens(seen.sides[side].tokens) for side in ("target", "source"))
        alignment = draw_matrix(weights, local("the alignment it learned", "학습된 정렬"), written[1:], read)
        pictures.append((title, [curves, alignment]))
    measured = measure_gradients(48)
    gradients = {
        local("attention", "어텐션") if name == "Transformer" else name: line for name, line in measured.items()
    }
    head = (
        local("task", "과제"),
        local("model", "모델"),
        local("loss", "손실"),
        *map(str, SHOWN_LENGTHS),
    )
    page.add_table(
        local(f"Correct tokens by the number of symbols or words (copy and reversal are trained with 2 to {s.longest})",
              f"기호 또는 단어 수별 정답 토큰 비율(복사와 뒤집기의 학습 길이는 2~{s.longest})"), head, rows,
    )  # fmt: skip
    far = (1, 8, 16, 48)
    page.add_table(local("Gradient in new, untrained layers by the distance from the last token, as a share of that token's", "학습하지 않은 새 레이어의 기울기, 마지막 토큰에서의 거리별(마지막 토큰 대비)"), (local("layer", "레이어"), *(str(d) for d in far)),
                   [(name, *(format_gradient(line[d - 1][1]) for d in far)) for name, line in gradients.items()])  # fmt: skip
    for title, some in pictures:
        page.add_heading(title[0].upper() + title[1:])
        for picture in some:
            page.add_picture(picture)
    page.add_heading(local("Gradients", "기울기"))
    page.add_picture(
        draw_curves(
            gradients,
            local(
                "gradient in new, untrained layers by distance, as a share of the last token's (10⁻¹²: this or less)",
                "학습하지 않은 새 레이어의 거리별 기울기(마지막 토큰 대비, 10⁻¹²는 그 이하)",
            ),
            local("distance", "거리"),
            log_y=True,
        )
    )
    return results | {f"gradient {name}": line[-1][1] for name, line in measured.items()}


def describe_models_and_pairs(page: Page, settings: Settings) -> str:
    """Say in a note which cell the models have, and where the pairs that they translate come from."""
    cell = settings.cell.upper()
    models = page.localise(
        f"Encoder and decoder are one {cell} layer each of width {settings.dim} (--cell takes another).",
        f"인코더와 디코더는 각각 너비 {settings.dim}인 {cell} 레이어 하나입니다(--cell로 바꿉니다).",
    )
    if page.documents is not None:
        return models
    words = len(SUBJECTS) + len(VERBS) + len(ADJECTIVES) + len(NOUNS) + len(PLACES) + len(TIMES)
    return models + page.localise(
        f" The English and Korean pairs are not real translations: a template makes them from {words} words and phrases, so "
        "they show the difference in word order only. Real pairs: --file pairs.tsv (source, tab, target).",
        f" 영어와 한국어 문장 쌍은 실제 번역이 아니라 단어와 구 {words}개를 템플릿에 넣어 만든 것이므로, 어순의 차이만 보여 줍니다. "
        "실제 문장 쌍은 --file pairs.tsv(원문, 탭, 번역문)로 지정하십시오.",
    )


def make_translation_pairs(
    page: Page, settings: Settings, draw: random.Random
) -> tuple[list[tuple[str, str]], dict[int, list[tuple[str, str]]]]:
    """Return training pairs and test pairs by the number of words: sentences of a template, or the user's own pairs."""
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
