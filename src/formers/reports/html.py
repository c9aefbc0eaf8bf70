"""Pictures without a library: line charts and attention maps as SVG inside one HTML page."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from importlib import resources

from torch import Tensor

from .translations import translate_report

COLOURS = ("#2563eb", "#d97706", "#059669", "#7c3aed")
MAX_MARKERS = 12  # a line of no more points shows each of them
Line = Sequence[tuple[float, float]]


def render_page(title: str, body: Sequence[str], language: str = "en") -> str:
    """Render a self-contained HTML page."""
    style = resources.files("formers.reports").joinpath("page.css").read_text(encoding="utf-8")
    head = [
        f'<!doctype html><html lang="{language}"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body>",
    ]
    return "\n".join([*head, *body, "</body></html>\n"])


def draw_text(x: float, y: float, words: str, **attributes: str) -> str:
    """Draw a label."""
    extra = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra.replace("class-", "class")}>{html.escape(words)}</text>'


def draw_rule(left: float, right: float, y: float, kind: str) -> str:
    """Draw a horizontal line."""
    return f'<line class="{kind}" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'


def compute_ticks(low: float, high: float, whole: bool = False) -> list[tuple[float, str]]:
    """Return places on an axis and their labels: round numbers between two values, with as many digits as tell them
    apart. `whole`: integers only."""
    high = high if high > low else low + 1
    size = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(size * n for n in (1, 2, 5, 10, 20) if (high - low) / (size * n) <= 6)
    step = max(step, 1.0) if whole else step
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first = math.ceil(low / step - 1e-9)
    places = [round(n * step, digits) for n in range(first, math.floor(high / step + 1e-9) + 1)]
    return [(place, f"{place:,.{digits}f}") for place in places]


def draw_chart(lines: Mapping[str, Line], label: str, reference_line: tuple[str, float] | None = None) -> str:
    """Draw lines over steps, slightly smoothed; `reference_line` is a dashed horizontal line with its label."""
    width, height, left, bottom, right = 720, 260, 52, 34, 150
    if not (points := [p for line in lines.values() for p in line]):
        return ""
    values = [y for _, y in points] + ([reference_line[1]] if reference_line else [])
    low, high, last = min(values), max(values), max(x for x, _ in points) or 1
    high = high if high > low else low + 1

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        return left + (width - left - right) * x / last, 12 + (height - bottom - 12) * (high - y) / (high - low)

    parts = []
    for value, name in compute_ticks(low, high):
        y = to_pixels(0, value)[1]
        number = draw_text(left - 8, y + 4, name, text_anchor="end", class_="soft")
        parts += [draw_rule(left, width - right, y, "axis"), number]
    for step, name in compute_ticks(0, last, whole=True):
        parts.append(draw_text(to_pixels(step, low)[0], height - 12, name, text_anchor="middle", class_="soft"))
    taken: list[float] = []
    if reference_line:
        taken.append(to_pixels(0, reference_line[1])[1])
        label_ = draw_text(width - right + 8, taken[0] + 4, reference_line[0], class_="soft")
        parts += [draw_rule(left, width - right, taken[0], "level"), label_]
    for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
        if not line:
            continue
        places = [to_pixels(*p) for p in smooth_line(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        y = find_label_position(places[-1][1], taken, 12, height - bottom)
        taken.append(y)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        shown = places if len(places) <= MAX_MARKERS else ()
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in shown]
        parts.append(draw_text(width - right + 8, y + 4, name, style=f"fill:{colour}"))
    return wrap_figure(width, height, "".join(parts), label)


def find_label_position(position: float, taken: Sequence[float], low: float, high: float) -> float:
    """Find the free position for a label that is nearest to the wanted one, between two borders."""
    shifts = sorted(range(-300, 301), key=abs)
    free = (
        position + s for s in shifts if low <= position + s <= high and all(abs(position + s - t) >= 14 for t in taken)
    )
    return next(free, position)


def wrap_figure(width: int, height: int, drawing: str, caption: str) -> str:
    """Wrap a drawing with its caption."""
    name = html.escape(caption)
    svg = f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{name}">{drawing}</svg>'
    return f"<figure>{svg}<figcaption>{name}</figcaption></figure>"


def smooth_line(line: Line, most: int = 200) -> list[tuple[float, float]]:
    """Average neighbouring points, down to about `most` points."""
    group = max(1, len(line) // most)
    groups = [line[i : i + group] for i in range(0, len(line), group)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def draw_heatmap(pieces: Sequence[str], weights: Tensor, label: str, keys: Sequence[str] | None = None) -> str:
    """Draw one head's weights (queries, keys): rows are queries, columns are keys, `pieces` as well if not given."""
    cell, room, keys = 15, 78, pieces if keys is None else keys
    width, height = room + cell * len(keys), room + cell * len(pieces)
    parts = []
    for i, piece in enumerate(pieces):
        middle = room + cell * (i + 0.75)
        parts.append(draw_text(room - 4, middle, shorten_piece(piece), text_anchor="end", class_="small"))
    for i, piece in enumerate(keys):
        turned = f"translate({room + cell * (i + 0.75):.1f} {room - 4}) rotate(-90)"
        parts.append(draw_text(0, 0, shorten_piece(piece), transform=turned, class_="small"))
    for i, row in enumerate(weights.tolist()):
        for j, value in enumerate(row):
            if value > 0.005:
                place = f'x="{room + cell * j}" y="{room + cell * i}" width="{cell - 1}" height="{cell - 1}"'
                tip = html.escape(f"{pieces[i]} → {keys[j]}: {value:.2f}")
                opacity = f'fill-opacity="{min(1.0, value):.2f}"'
                parts.append(f'<rect class="cell" {place} {opacity}><title>{tip}</title></rect>')
    name = html.escape(label)
    box = f'viewBox="0 0 {width} {height}" role="img" aria-label="{name}" style="width:100%;max-width:{width}px"'
    return f"<svg {box}>{''.join(parts)}</svg>"


def draw_standalone_heatmap(pieces: Sequence[str], weights: Tensor, label: str, keys: Sequence[str]) -> str:
    """Draw one head's weights as an SVG file, which brings its own colours and fonts."""
    style = ".cell{fill:#0c2c84}.small{font:10px 'Noto Sans','Noto Sans KR','Malgun Gothic',sans-serif;fill:#222}"
    width, height = 78 + 15 * len(keys), 78 + 15 * len(pieces)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    drawing = draw_heatmap(pieces, weights, label, keys).removeprefix("<svg ")
    begin, _, rest = drawing.partition(">")
    return f"{opening}{begin}><style>{style}</style>{rest}\n"


def shorten_piece(piece: str) -> str:
    """Shorten a token to what a label has room for."""
    short = piece.strip() or "␣"
    return short if len(short) <= 9 else short[:8] + "…"


def draw_attention(pieces: Sequence[str], weights: Tensor, caption: str, language: str = "en") -> str:
    """Draw all heads of a stack (layers, heads, queries, keys) side by side."""
    cells = []
    for layer in range(weights.shape[0]):
        for head in range(weights.shape[1]):
            name = translate_report("layer {layer}, head {head}", language, layer=layer + 1, head=head + 1)
            cells.append(f"<div><h3>{name}</h3>{draw_heatmap(pieces, weights[layer, head], name)}</div>")
    return f'<figure><div class="heads">{"".join(cells)}</div><figcaption>{html.escape(caption)}</figcaption></figure>'
