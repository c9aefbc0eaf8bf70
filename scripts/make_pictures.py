"""Draw the pictures of docs/*/family: python scripts/make_pictures.py [FAMILY …]

Each shows a family's blocks, read off the model itself (formers.serving.family_tree), and beside them what is new about
it, computed by the function that the model or the objective really runs: a mask, a bias, rotated positions, a text that
an objective has corrupted. A picture brings colours of its own for a reader of the file, and leaves them to the page in
the book.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import torch
from torch import Tensor

import formers
from formers.batch import Batch
from formers.experiments.masks import evaluate_mask
from formers.former import count_preset_parameters
from formers.generation.beam import compute_length_penalty
from formers.inspection.objective_steps import StepToken, explain_objective
from formers.nn.attention.masks import WindowMask, build_alibi, causal, combine_masks, evaluate_on_grid
from formers.nn.attention.positions import BucketBias, RotaryEmbedding, SinusoidalPositions
from formers.nn.attention.two_stream import build_order_masks
from formers.registry import FAMILIES, train_tokenizer
from formers.serving.family_tree import describe_structure
from formers.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "images" / "family"
STRINGS = ROOT / "src" / "formers" / "serving" / "playground" / "strings.js"
STYLE = """
text{font:12px system-ui,'Noto Sans','Noto Sans KR','Noto Sans CJK KR','Malgun Gothic',sans-serif}
.ink{fill:#1f2937}.soft{fill:#6b7280}.box{fill:#fff;stroke:#cbd5e1}.wash{fill:#f1f5f9;stroke:#cbd5e1}
.frame{fill:none;stroke:#1d4ed8}.accent{fill:#1d4ed8}.wire{fill:none;stroke:#94a3b8}.bow{fill:none;stroke:#1d4ed8}
.cross{fill:none;stroke:#c76a00}.cell{fill:#1d4ed8}.neg{fill:#d97706}.grid{fill:none;stroke:#cbd5e1}
.masked{fill:#d97706;fill-opacity:.28;stroke:#d97706}.target{fill:#059669;fill-opacity:.22;stroke:#059669}
.line{fill:none;stroke-width:2}
@media(prefers-color-scheme:dark){svg{background:#131416}.ink{fill:#e5e7eb}.soft{fill:#9ca3af}.box{fill:#131416;stroke:#475569}
.wash{fill:#1f2937;stroke:#475569}.frame,.bow{stroke:#8ab4ff}.accent,.cell{fill:#8ab4ff}.grid{stroke:#475569}}
"""
TEXTS = {
    "en": "The black cat sat on the warm mat. It saw the dog and soon fell asleep.",
    "ko": "검은 고양이가 따뜻한 방석 위에 앉았다. 고양이는 개를 보고 곧 잠이 들었다.",
}
LINE, GAP, COLUMN = 28, 46, 210
COLOURS = ("#2563eb", "#d97706", "#059669", "#7c3aed")
Drawing = tuple[str, float, float]  # SVG, width, height


@functools.cache
def read_strings(language: str) -> dict[str, str]:
    """Read the playground's words for the parts of a diagram."""
    text = STRINGS.read_text(encoding="utf-8")
    starts = {name: text.index(f"\n  {name}: {{") for name in TEXTS}
    end = min((at for at in starts.values() if at > starts[language]), default=len(text))
    pairs = re.findall(r'(?:"([\w -]+)"|(\w+)): "((?:[^"\\]|\\.)*)"', text[starts[language] : end])
    return {quoted or bare: words for quoted, bare, words in pairs}


def draw_words(x: float, y: float, words: str, kind: str = "ink", anchor: str = "start", size: int = 12) -> str:
    """Draw a label."""
    font = "" if size == 12 else f' style="font-size:{size}px"'
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{font}>{escape(words)}</text>'


def draw_box(x: float, y: float, width: float, height: float, kind: str, radius: int = 4, extra: str = "") -> str:
    """Draw a rectangle."""
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" {size} rx="{radius}"{extra}/>'


def draw_path(points: Sequence[tuple[float, float]], kind: str, extra: str = "") -> str:
    """Draw a line through points."""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{places}"{extra}/>'


def measure_words(words: str, size: int = 12) -> float:
    """Estimate how wide a label is: a Korean syllable is as wide as two letters."""
    return sum(size * (0.95 if ord(c) > 0x1100 else 0.56) for c in words)


def shift(drawing: Drawing, x: float, y: float) -> str:
    """Move a drawing."""
    return f'<g transform="translate({x:.1f} {y:.1f})">{drawing[0]}</g>'


def draw_structure(family: str, language: str) -> Drawing:
    """Draw a family's blocks from its tokens below to its output above, as its model has them."""
    text = read_strings(language)
    diagram = describe_structure(family)["diagram"]
    plans = []
    for stack in diagram["stacks"]:
        items: list[tuple[str, list[str], list[tuple[int, int]], int]] = []
        items += [("wash", [text[f"part_{name}"]], [], 0) for name in stack["input"]]
        for group in stack["groups"]:
            parts = [text[f"part_{name}"] for name in group["parts"]]
            norm, lines, bows = text["part_norm"], parts, []
            if group["order"] in ("pre", "normed"):
                lines = [one for part in parts for one in (norm, part)]
                bows = [(2 * i + (group["order"] == "normed"), 2 * i + 1) for i in range(len(parts))]
            if group["order"] == "post":
                lines = [one for part in parts for one in (part, norm)]
                bows = [(2 * i, 2 * i) for i in range(len(parts))]
            if group["order"] == "parallel":
                lines, bows = [norm, " ∥ ".join(parts)], [(0, 1)]
            items.append(("group", lines, bows, group["count"]))
        if stack["has_norm"]:
            items.append(("box", [text["part_norm"]], [], 0))
        height = sum(len(lines) * LINE + (34 if kind == "group" else 0) for kind, lines, _, _ in items)
        plans.append((stack, items, height))
    tallest = max(height for _, _, height in plans)
    bottom = 44 + tallest
    parts_svg = []
    for number, (stack, items, height) in enumerate(plans):
        left, y, middle = number * (COLUMN + 22), bottom, number * (COLUMN + 22) + COLUMN / 2
        is_last = number == len(plans) - 1
        top = bottom - height
        parts_svg.append(draw_path([(middle, bottom), (middle, 26 if is_last else top - 8)], "wire"))
        for kind, lines, bows, count in items:
            if kind == "group":
                inside = len(lines) * LINE + 28
                parts_svg.append(draw_box(left + 2, y - inside, COLUMN - 4, inside, "frame", 6))
                name = (
                    "shared_layer"
                    if stack["is_shared"]
                    else "layers_in_turn"
                    if len(stack["groups"]) > 1 and bows
                    else "layers_times"
                )
                words = text[name].replace("{count}", str(count))
                parts_svg.append(draw_words(left + 10, y - inside + 15, words, "accent"))
                y -= 4
                for low, high in bows:
                    a, b, edge = y - low * LINE, y - (high + 1) * LINE, left + COLUMN - 12
                    parts_svg.append(draw_path([(middle, a), (edge, a), (edge, b), (middle, b)], "bow"))
            for words in lines:
                fill = "wash" if words == text["part_norm"] or kind == "wash" else "box"
                parts_svg.append(draw_box(left + 20, y - LINE + 3, COLUMN - 40, LINE - 7, fill))
                size = 12 if measure_words(words) < COLUMN - 46 else 10
                parts_svg.append(draw_words(middle, y - LINE / 2 + 3.5, words, anchor="middle", size=size))
                y -= LINE
            y -= 30 if kind == "group" else 0
        label = text[f"side_{stack['name']}"]
        if stack["positions"] != "none":
            label += " · " + text["positions"].replace("{name}", text[f"positions_{stack['positions']}"])
        parts_svg.append(draw_words(middle, bottom + 18, label, "soft", "middle"))
        if is_last and diagram["output"] != "none":
            parts_svg.append(draw_box(left + 20, 4, COLUMN - 40, 22, "box"))
            parts_svg.append(
                draw_words(middle, 19, text["part_output"].replace("{name}", diagram["output"]), anchor="middle")
            )
        elif not is_last:
            to_y = bottom - plans[number + 1][2] / 2
            turn = [
                (middle, top - 8),
                (left + COLUMN + 8, top - 8),
                (left + COLUMN + 8, to_y),
                (left + COLUMN + 24, to_y),
            ]
            parts_svg.append(draw_path(turn, "cross", ' stroke-width="2"'))
    return "".join(parts_svg), len(plans) * (COLUMN + 22) - 22, bottom + 28


def draw_matrix(values: Tensor, title: str, rows: str = "", columns: str = "", cell: int = 14) -> Drawing:
    """Draw numbers as cells, the darker the larger; negative ones have the other colour."""
    largest = float(values.abs().max()) or 1.0
    left, top = (16, 36) if rows else (0, 22)
    height, width = values.shape[0] * cell, values.shape[1] * cell
    parts = [draw_words(0, 12, title), draw_box(left, top, width, height, "grid", 0)]
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            if abs(value) / largest > 0.01:
                opacity = f' fill-opacity="{abs(value) / largest:.2f}"'
                kind = "cell" if value > 0 else "neg"
                parts.append(draw_box(left + j * cell, top + i * cell, cell - 1, cell - 1, kind, 0, opacity))
    if rows:
        label = draw_words(0, 0, rows, "soft", "middle", 11)
        parts.append(f'<g transform="translate(10 {top + height / 2:.1f}) rotate(-90)">{label}</g>')
        parts.append(draw_words(left + width / 2, top - 6, columns, "soft", "middle", 11))
    return "".join(parts), max(left + width, measure_words(title)), top + height


def draw_token_rows(rows: Sequence[tuple[str, Sequence[tuple[str, str]]]], width: float = 400) -> Drawing:
    """Draw rows of tokens in boxes under their titles, by what has become of each token."""
    parts, y = [], 12.0
    for title, tokens in rows:
        parts.append(draw_words(0, y, title, "soft"))
        x, y = 0.0, y + 8
        for words, kind in tokens:
            long = measure_words(words, 11) + 10
            if x + long > width and x:
                x, y = 0.0, y + 24
            parts.append(draw_box(x, y, long, 20, kind))
            parts.append(draw_words(x + long / 2, y + 14, words, "soft" if kind == "wash" else "ink", "middle", 11))
            x += long + 4
        y += 44
    return "".join(parts), width, y - 22


def draw_curves(lines: Mapping[str, Sequence[tuple[float, float]]], title: str, across: str) -> Drawing:
    """Draw lines over a common axis, with the ends of both axes."""
    points = [point for line in lines.values() for point in line]
    (low_x, high_x), (low_y, high_y) = ((min(p[i] for p in points), max(p[i] for p in points)) for i in (0, 1))
    width, height, top, left = 290, 170, 28, 34
    parts = [draw_words(0, 12, title), draw_box(left, top, width, height, "grid", 0)]

    def place(x: float, y: float) -> tuple[float, float]:
        return left + width * (x - low_x) / (high_x - low_x), top + height * (high_y - y) / (high_y - low_y)

    for value in (low_y, high_y):
        parts.append(draw_words(left - 5, place(low_x, value)[1] + 4, f"{value:.3g}", "soft", "end", 10))
    for value in (low_x, high_x):
        parts.append(draw_words(place(value, low_y)[0], top + height + 14, f"{value:.4g}", "soft", "middle", 10))
    parts.append(draw_words(left + width / 2, top + height + 14, across, "soft", "middle", 10))
    for number, (name, line) in enumerate(lines.items()):
        colour = f' stroke="{COLOURS[number]}"'
        parts.append(draw_path([place(*point) for point in line], "line", colour))
        key = top + 14 + 16 * number
        parts.append(draw_path([(left + width + 8, key - 4), (left + width + 24, key - 4)], "line", colour))
        parts.append(draw_words(left + width + 28, key, name, size=11))
    return "".join(parts), left + width + 28 + max(measure_words(n, 11) for n in lines), top + height + 20


def draw_bars(values: Mapping[str, Sequence[tuple[str, float]]], title: str, unit: float = 1e6) -> Drawing:
    """Draw a bar for each name, made of parts of different kinds; numbers are in millions."""
    largest = max(sum(size for _, size in parts) for parts in values.values())
    parts_svg, y = [draw_words(0, 12, title)], 24.0
    for name, parts in values.items():
        total = sum(size for _, size in parts)
        parts_svg.append(draw_words(0, y + 11, f"{name}: {total / unit:,.1f} M", "soft", size=11))
        x = 0.0
        for number, (_, size) in enumerate(parts):
            long = 380 * size / largest
            parts_svg.append(draw_box(x, y + 16, max(1.0, long), 16, "neg" if number else "cell", 0))
            x += long
        y += 42
    kinds = [kind for kind, _ in next(iter(values.values())) if kind]
    for number, kind in enumerate(kinds):
        parts_svg.append(draw_box(130 * number, y, 10, 10, "neg" if number else "cell", 0))
        parts_svg.append(draw_words(130 * number + 15, y + 10, kind, size=11))
    return "".join(parts_svg), 400, y + (14 if kinds else 0)


def stack_drawings(*drawings: Drawing, beside: bool = False) -> Drawing:
    """Put drawings below or beside each other."""
    parts, at = [], 0.0
    for drawing in drawings:
        parts.append(shift(drawing, at, 0) if beside else shift(drawing, 0, at))
        at += (drawing[1] if beside else drawing[2]) + 22
    widths, heights = [d[1] for d in drawings], [d[2] for d in drawings]
    return "".join(parts), at - 22 if beside else max(widths), max(heights) if beside else at - 22


@functools.cache
def train_word_tokenizer(family: str, language: str) -> Tokenizer:
    """Train a family's kind of tokenizer on the sentence alone, so that most of its words are one token."""
    return train_tokenizer(family, [TEXTS[language]] * 60, 400)


BOX_KINDS = {"kept": "box", "special": "wash", "moved": "box", "hidden": "wash", "target": "target"}


def draw_objective(
    name: str,
    family: str,
    language: str,
    shown: Mapping[int, str],
    seed: int = 0,
    wanted: Callable[[StepToken], bool] = lambda t: True,
) -> Drawing:
    """Draw some of the steps in which an objective makes an example of the sentence, under given titles."""
    explanation = explain_objective(name, [TEXTS[language]], train_word_tokenizer(family, language), "small", seed)
    assert explanation is not None
    rows = []
    for number, title in shown.items():
        tokens = [t for t in explanation.steps[number].tokens if wanted(t)]
        rows.append((title, [(t.text, BOX_KINDS.get(t.state, "masked")) for t in tokens]))
    return draw_token_rows(rows)


def compute_influence(family: str, length: int, side: slice, **sizes: object) -> Tensor:
    """Return which input tokens (columns) reach which outputs (rows) of a small model: where the gradient is not 0."""
    former = formers.build(family, seed=0, **sizes)
    ids = torch.arange(1, length + 1)
    if former.definition.reads_characters:
        ids = torch.randint(1, 200, (length, former.config.slots), generator=torch.Generator().manual_seed(0))
    batch = Batch.from_rows([ids.tolist()])
    rows = []
    for i in range(length):
        found: list[Tensor] = []

        def keep(_: object, __: object, out: Tensor, found: list[Tensor] = found) -> None:
            out.retain_grad()
            found.append(out)

        handle = former.model.body.embed.register_forward_hook(keep)
        hidden = former.model.body(batch)
        handle.remove()
        hidden[i, side].sum().backward()
        assert found[0].grad is not None
        rows.append(found[0].grad.abs().sum(-1) > 0)
    return torch.stack(rows).float()


def localise(language: str, english: str, korean: str) -> str:
    """Choose the words of a language."""
    return korean if language == "ko" else english


def draw_idea(family: str, language: str) -> Drawing:
    """Draw what is new about a family."""
    say = functools.partial(localise, language)
    query, key = say("query", "쿼리"), say("key", "키")
    if family == "vectors":
        return draw_subwords(language)
    if family == "seq2seq":
        return draw_sampling_schedules(language)
    if family == "gnmt":
        lines = {f"α = {a:g}": [(n, compute_length_penalty(n, a)) for n in range(1, 51)] for a in (0.0, 0.2, 0.6, 1.0)}
        return draw_curves(
            lines,
            say("what a beam's log-probability is divided by", "빔의 로그 확률을 나누는 값"),
            say("length", "길이"),
        )
    if family == "textcnn":
        return draw_feature_map(language)
    if family == "elmo":
        sizes = {
            "dim": 8,
            "cell": 8,
            "layers": 1,
            "vocab": 20,
            "slots": 6,
            "filters": ((1, 4), (2, 4)),
            "highways": 1,
            "dropout": 0.0,
        }
        halves = [compute_influence("elmo", 10, side, **sizes) for side in (slice(0, 4), slice(4, 8))]
        titles = (
            say("forward: sees the words before", "순방향: 앞 단어들을 봅니다"),
            say("backward: the words after", "역방향: 뒤 단어들을 봅니다"),
        )
        names = say("output of a word", "단어의 출력"), say("words read", "읽은 단어")
        return stack_drawings(
            *(draw_matrix(half, title, *names) for half, title in zip(halves, titles, strict=True)), beside=True
        )
    if family == "transformer":
        waves = draw_matrix(
            SinusoidalPositions(32)(torch.arange(24)),
            say("sinusoidal positions", "사인 함수 위치 임베딩"),
            say("position", "위치"),
            say("dimension", "차원"),
            8,
        )
        masks = [
            draw_matrix(evaluate_mask(mask, 10).float(), title, query, key, 12)
            for mask, title in ((None, say("encoder", "인코더")), (causal, say("decoder", "디코더")))
        ]
        return stack_drawings(waves, stack_drawings(*masks, beside=True))
    if family in ("bert", "roberta"):
        if family == "bert":
            titles = {
                0: say("the text", "텍스트"),
                2: say("the model sees", "모델이 보는 것"),
                3: say("and predicts", "예측하는 것"),
            }
            return draw_objective("mlm", "bert", language, titles, seed=1)
        epochs = [
            draw_objective("mlm", "bert", language, {2: say(f"epoch {n}", f"에포크 {n}")}, seed=n) for n in (1, 2, 3)
        ]
        return stack_drawings(*epochs)
    if family == "albert":
        names = {"bert-base": "bert", "albert-base": "albert", "bert-large": "bert", "albert-xxlarge": "albert"}
        known = {n: f for n, f in names.items() if n in FAMILIES[f].definition.presets}
        return draw_bars(
            {n: [("", sum(count_preset_parameters(f, n).values()))] for n, f in known.items()},
            say("parameters", "파라미터"),
        )
    if family == "ernie":
        titles = {
            1: say("whole phrases are chosen (orange)", "구 전체를 고릅니다(주황)"),
            2: say("the model sees", "모델이 보는 것"),
            3: say("and predicts", "예측하는 것"),
        }
        return draw_ernie(language, titles)
    if family == "gpt":
        return draw_input_transformations(language)
    if family == "gpt2":
        masks = draw_matrix(evaluate_mask(causal, 14).float(), say("the causal mask", "인과 마스크"), query, key)
        return masks
    if family in ("gpt3", "gpt_neo"):
        band = combine_masks(causal, WindowMask(4))
        titles = say("dense layer", "전체 어텐션 레이어"), say("local layer (window 4)", "국소 레이어(창 4)")
        return stack_drawings(
            *(
                draw_matrix(evaluate_mask(m, 14).float(), t, query, key, 12)
                for m, t in zip((causal, band), titles, strict=True)
            ),
            beside=True,
        )
    if family in ("gptj", "gpt_neox"):
        return draw_rotary(family, language)
    if family == "transformer_xl":
        seen = evaluate_on_grid(causal, (1, 1, 8, 16), torch.device("cpu"), offset=8)[0, 0].float()
        title = say(
            "8 new tokens, and 8 states remembered from the segment before",
            "새 토큰 8개와 앞 세그먼트에서 기억한 상태 8개",
        )
        return draw_matrix(seen, title, query, say("memory | new tokens", "메모리 | 새 토큰"), 18)
    if family == "xlnet":
        order = torch.tensor([2, 5, 0, 7, 3, 1, 6, 4])
        tables = build_order_masks(order, Batch.from_rows([list(range(8))]).layout)
        titles = say("content stream", "내용 스트림"), say("query stream", "쿼리 스트림")
        grids = [
            draw_matrix(t[0].float(), title, query, key, 16)
            for t, title in zip(tables, titles, strict=True)
            if t is not None
        ]
        words = say("order of prediction: ", "예측 순서: ") + " ".join(str(int(i) + 1) for i in order)
        return stack_drawings((draw_words(0, 12, words), 300, 16), stack_drawings(*grids, beside=True))
    if family in ("bart", "mbart"):
        titles = {
            0: say("the text", "텍스트"),
            -2: say("the encoder reads", "인코더가 읽는 것"),
            -1: say("the decoder writes", "디코더가 쓰는 것"),
        }
        return draw_objective("denoising", family, language, titles, seed=1)
    if family == "t5":
        titles = {
            0: say("the text", "텍스트"),
            2: say("the encoder reads", "인코더가 읽는 것"),
            3: say("the decoder writes", "디코더가 쓰는 것"),
        }
        buckets = BucketBias(1, bidirectional=True).compute_bucket(torch.arange(-24, 25)).float()[None]
        bias = draw_matrix(
            buckets + 1, say("bucket of each distance from -24 to 24", "거리 -24부터 24까지의 버킷"), cell=8
        )
        return stack_drawings(draw_objective("span-corruption", "t5", language, titles, seed=4), bias)
    if family == "mt5":
        return draw_bars(
            split_embeddings({"t5-v1_1-small": "t5", "mt5-small": "mt5"}, say), say("parameters", "파라미터")
        )
    if family == "switch":
        return draw_routing(language)
    assert family == "bloom", family
    grid = [evaluate_on_grid(build_alibi(8), (1, 8, 14, 14), torch.device("cpu"))[0, h] for h in (0, 3)]
    seen = evaluate_mask(causal, 14).float()
    titles = say("head 1: looks near", "헤드 1: 가까이 봅니다"), say("head 4: looks far", "헤드 4: 멀리 봅니다")
    weights = [bias.exp() * seen for bias in grid]
    return stack_drawings(
        *(draw_matrix(w, t, query, key, 12) for w, t in zip(weights, titles, strict=True)), beside=True
    )


def draw_subwords(language: str) -> Drawing:
    """Draw the character n-grams of two words of one stem, shared ones marked."""
    lengths = (3, 4) if language == "en" else (2, 3)
    words = ("teacher", "teachers") if language == "en" else ("고양이가", "고양이를")
    grams = [[f"<{w}>"[i : i + n] for n in lengths for i in range(len(w) + 3 - n)] for w in words]
    rows = [(word, [(g, "target" if g in grams[1 - k] else "box") for g in grams[k]]) for k, word in enumerate(words)]
    return draw_token_rows(rows)


def draw_sampling_schedules(language: str) -> Drawing:
    """Draw how often the decoder is shown the true token, by the schedules of scheduled sampling."""
    from formers.objectives.registry import build_objective

    tokenizer = train_tokenizer("seq2seq", ["a b c"] * 5, 270)
    lines = {}
    for name, decay in (("linear", 1e-3), ("exponential", 0.997), ("inverse-sigmoid", 150.0)):
        objective = build_objective("seq2seq", tokenizer, 16, sampling_schedule=name, sampling_decay=decay)
        lines[name] = [(step, objective.compute_teacher_forcing(step)) for step in range(0, 1001, 20)]
    title = localise(language, "how often the decoder reads the true token", "디코더가 정답 토큰을 읽는 비율")
    return draw_curves(lines, title, localise(language, "step", "스텝"))


def draw_feature_map(language: str) -> Drawing:
    """Draw what the filters of a small TextCNN find at each place of a text, with the maxima that it keeps."""
    former = formers.build("textcnn", vocab=50, embed=8, filters=4, labels=2, dropout=0.0, seed=1)
    batch = Batch.from_rows([list(range(1, 13))])
    with torch.no_grad():
        body = former.model.body
        found: list[Tensor] = []
        hooks = [
            m.register_forward_hook(lambda _, __, out: found.append(out))
            for m in body.modules()
            if type(m).__name__ == "PackedConv"
        ]
        body(batch)
        for hook in hooks:
            hook.remove()
    maps = found[0].relu()
    title = localise(
        language,
        "4 filters of each width 3, 4, 5 over 12 tokens; the last column is the maximum",
        "너비 3, 4, 5의 필터 4개씩, 토큰 12개; 마지막 열이 최댓값",
    )
    best = maps.max(0).values[:, None]
    values = torch.cat((maps.T, torch.zeros_like(best), best), 1)
    return draw_matrix(
        values,
        title,
        localise(language, "filter", "필터"),
        localise(language, "place in the text → maximum", "텍스트의 위치 → 최댓값"),
        16,
    )


def draw_ernie(language: str, titles: Mapping[int, str]) -> Drawing:
    """Draw a stage of ERNIE in which whole phrases are hidden, with a seed that hides a phrase of several tokens."""
    for seed in range(40):
        tokenizer = train_word_tokenizer("ernie", language)
        explanation = explain_objective("ernie-units", [TEXTS[language]], tokenizer, "small", seed)
        assert explanation is not None
        states = [t.state for t in explanation.steps[1].tokens]
        runs = [len(run) for run in "".join("x" if s == "hidden" else " " for s in states).split()]
        if runs and max(runs) >= 2 and sum(runs) <= 5:
            rows = []
            for number, title in titles.items():
                kinds = {"hidden": "masked"} if number == 1 else {}
                tokens = explanation.steps[number].tokens
                rows.append((title, [(t.text, (BOX_KINDS | kinds).get(t.state, "masked")) for t in tokens]))
            return draw_token_rows(rows)
    raise AssertionError("no seed hides a phrase")


def draw_input_transformations(language: str) -> Drawing:
    """Draw how GPT-1 writes tasks as one sequence."""
    say = functools.partial(localise, language)
    start, delimiter, extract = (
        (say(*w), "masked") for w in (("start", "시작"), ("delimiter", "구분"), ("extract", "추출"))
    )
    text, premise, hypothesis = (
        (say(*w), "box") for w in (("text", "텍스트"), ("premise", "전제"), ("hypothesis", "가설"))
    )
    one, two = (say("text 1", "텍스트 1"), "box"), (say("text 2", "텍스트 2"), "box")
    rows = [
        (say("classification", "분류"), [start, text, extract]),
        (say("entailment", "함의"), [start, premise, delimiter, hypothesis, extract]),
        (say("similarity: both orders, summed", "유사도: 두 순서를 더함"), [start, one, delimiter, two, extract]),
        ("", [start, two, delimiter, one, extract]),
    ]
    mask = draw_matrix(
        evaluate_mask(causal, 10).float(),
        say("the causal mask, the same for all", "모든 과제에 공통인 인과 마스크"),
        say("query", "쿼리"),
        say("key", "키"),
        12,
    )
    return stack_drawings(draw_token_rows(rows), mask)


def draw_rotary(family: str, language: str) -> Drawing:
    """Draw the angles by which a head's numbers are turned, and that a score depends on the distance alone."""
    say = functools.partial(localise, language)
    head, share, interleaved = (16, 16, True) if family == "gptj" else (32, 8, False)
    rotary = RotaryEmbedding(share, is_interleaved=interleaved)
    unit = torch.zeros(24, 1, head)
    unit[:, 0, 0 : head : 2 if interleaved else 1] = 1.0
    turned = rotary.rotate(unit, rotary.compute_angles(torch.arange(24)))[:, 0]
    maps = draw_matrix(
        turned,
        say("one vector at 24 positions", "24개 위치에 놓인 같은 벡터"),
        say("position", "위치"),
        say("numbers of a head", "헤드의 값"),
        10,
    )
    scores = turned[:, :share] @ turned[:, :share].T
    grid = draw_matrix(
        scores, say("scores between them", "벡터 사이의 점수"), say("query", "쿼리"), say("key", "키"), 8
    )
    return stack_drawings(maps, grid)


def split_embeddings(presets: Mapping[str, str], say: Callable[[str, str], str]) -> dict[str, list[tuple[str, float]]]:
    """Return the parameters of presets: tables of tokens, and all the rest."""
    sizes = {}
    for preset, family in presets.items():
        definition = FAMILIES[family].definition
        config = definition.config_class(**definition.presets[preset])
        total = sum(count_preset_parameters(family, preset).values())
        tables = config.vocab * config.dim * (1 if config.tied else 2)
        sizes[preset] = [
            (say("layers", "레이어"), total - tables),
            (say("embeddings and output", "임베딩과 출력"), float(tables)),
        ]
    return sizes


def draw_routing(language: str) -> Drawing:
    """Draw the probabilities with which a small Switch sends tokens to its experts; the largest one is taken."""
    former = formers.build(
        "switch", vocab=50, dim=16, layers=2, decoder_layers=2, heads=2, head_dim=8, ff=16, experts=8, sparse=1, seed=0
    )
    experts = next(m for m in former.model.body.modules() if type(m).__name__ == "Experts")
    with torch.no_grad():
        probability = experts.route(3 * torch.randn(14, 16, generator=torch.Generator().manual_seed(1)))
    chosen = torch.zeros_like(probability).scatter(1, probability.argmax(-1, keepdim=True), 1.0)
    say = functools.partial(localise, language)
    names = say("token", "토큰"), say("expert", "전문가")
    return stack_drawings(
        draw_matrix(probability, say("router's probabilities", "라우터의 확률"), *names, 16),
        draw_matrix(chosen * probability, say("one expert each", "토큰마다 하나"), *names, 16), beside=True,
    )  # fmt: skip


def draw_family(family: str, language: str) -> str:
    """Draw a family's picture as an SVG file."""
    structure, idea = draw_structure(family, language), draw_idea(family, language)
    margin = 12
    beside = structure[1] + idea[1] < 760
    x, y = (structure[1] + 40, 0.0) if beside else (0.0, structure[2] + 26)
    width = (x + idea[1] if beside else max(structure[1], idea[1])) + 2 * margin
    height = (max(structure[2], idea[2]) if beside else y + idea[2]) + 2 * margin
    name = FAMILIES[family].card.title
    name = name.replace(" and ", ", ") if language == "ko" else name
    title = f"{name}: {localise(language, 'its blocks, and what is new', '구조와 새로운 점')}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' width="{width:.0f}" role="img" aria-label="{escape(title)}"><style>{STYLE}</style>'
        f"{shift(structure, margin, margin)}{shift(idea, margin + x, margin + y)}</svg>\n"
    )


if __name__ == "__main__":
    for family in sys.argv[1:] or FAMILIES:
        for language in TEXTS:
            path = PICTURES / language / f"{family}.svg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(draw_family(family, language), encoding="utf-8")
