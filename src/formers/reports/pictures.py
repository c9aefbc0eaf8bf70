"""Pictures of experiments as SVG: matrices of any sign, curves with logarithmic axes, bars and points."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Mapping, Sequence

from torch import Tensor

from .html import (
    COLOURS as REPORT_COLOURS,
)
from .html import (
    Line,
    compute_ticks,
    draw_rule,
    draw_text,
    find_label_position,
    shorten_piece,
    wrap_figure,
)

COLOURS = (*REPORT_COLOURS, "#dc2626", "#0891b2", "#9d174d", "#65a30d")
GREY = "#98a2b3"
WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 720, 280, 70, 170, 46, 14
MAX_MARKERS = 24
MAX_ROW_NAME = 26  # letters of a matrix row's name
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
STRONG_SHARE = 0.8  # of the largest number: cells as dark as this have their number in the other colour
MAX_POINT_NAME = 18  # letters of a point's name
MAX_NAMES = 12  # of points; more would cover each other, and show their names under the pointer


def draw_matrix(
    values: Tensor, label: str, rows: Sequence[str] = (), columns: Sequence[str] = (), cell: int = 15,
    with_numbers: bool = False,
) -> str:  # fmt: skip
    """Draw a matrix (rows, columns): the darker, the larger; negative numbers have the other colour, and a cell that is
    not a number stays empty."""
    room = max(78, *(8 + measure_label(name) for name in rows)) if rows else 4
    shown_columns = [shorten_piece(name) for name in columns]
    widest = max(map(measure_label, shown_columns), default=0)
    is_narrow = widest > cell - 4  # labels that are wider than a cell are turned
    top = 4 if not columns else 10 + widest if is_narrow else 20
    width, height = room + cell * values.shape[1] + 4, top + cell * values.shape[0] + 4
    largest = float(values.nan_to_num().abs().max()) or 1.0
    digits = 2 if largest >= 0.1 else 3
    parts = []
    for i, name in enumerate(rows):
        parts.append(
            draw_text(room - 4, top + cell * (i + 0.5) + 4, name[:MAX_ROW_NAME], text_anchor="end", class_="small")
        )
    for i, name in enumerate(shown_columns):
        middle = room + cell * (i + 0.5)
        if measure_label(name) > cell - 4:
            turned = f"translate({middle + 4:.1f} {top - 4}) rotate(-90)"
            parts.append(draw_text(0, 0, name, transform=turned, class_="small"))
        else:
            parts.append(draw_text(middle, top - 6, name, text_anchor="middle", class_="small"))
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            if math.isnan(value):
                continue
            share, side = abs(value) / largest, cell - (cell > 6)
            place = f'x="{room + cell * j}" y="{top + cell * i}" width="{side}" height="{side}"'
            kind = "cell" if value >= 0 else "neg"
            tip = f"<title>{value:.3f}</title>" if cell > 6 else ""
            if share > 0.01:
                parts.append(f'<rect class="{kind}" {place} fill-opacity="{share:.2f}">{tip}</rect>')
            if with_numbers:
                x, y = room + cell * (j + 0.5), top + cell * (i + 0.5) + 4
                style = f"small on-{kind}" if share > STRONG_SHARE else "small"
                parts.append(draw_text(x, y, f"{value:z.{digits}f}", text_anchor="middle", class_=style))
    return wrap_figure(width, height, "".join(parts), label)


def measure_label(name: str) -> int:
    """Estimate the width of a row's name in pixels; Hangul and the like are twice as wide as letters."""
    return sum(10 if unicodedata.east_asian_width(letter) in "WF" else 6 for letter in name[:MAX_ROW_NAME])


def draw_curves(
    lines: Mapping[str, Line], label: str, across: str = "", up: str = "", log_x: bool = False, log_y: bool = False,
    dots: bool = False,
) -> str:  # fmt: skip
    """Draw lines over a common axis; `across` and `up` name the axes. With `dots`, points without lines."""
    points = [p for line in lines.values() for p in line if math.isfinite(p[1])]
    if not points:
        return ""
    (low_x, high_x), (low_y, high_y) = (find_range([p[i] for p in points], log) for i, log in ((0, log_x), (1, log_y)))

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        x, y = math.log10(x) if log_x else x, math.log10(y) if log_y else y
        across_share, up_share = (x - low_x) / (high_x - low_x), (y - low_y) / (high_y - low_y)
        return LEFT + (WIDTH - LEFT - RIGHT) * across_share, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * up_share

    parts = []
    for value, name in find_ticks(low_y, high_y, log_y):
        y = to_pixels(10**low_x if log_x else low_x, value)[1]
        parts += [
            draw_rule(LEFT, WIDTH - RIGHT, y, "axis"),
            draw_text(LEFT - 8, y + 4, name, text_anchor="end", class_="soft"),
        ]
    are_whole = not log_x and all(float(x).is_integer() for x, _ in points)  # there is no layer 1.5
    for value, name in compute_ticks(low_x, high_x, True) if are_whole else find_ticks(low_x, high_x, log_x):
        x = to_pixels(value, 10**low_y if log_y else low_y)[0]
        short = shorten_number(name, value) if log_x else name
        parts.append(draw_text(x, HEIGHT - BOTTOM + 18, short, text_anchor="middle", class_="soft"))
    parts.append(draw_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, across, text_anchor="middle", class_="soft"))
    parts.append(
        draw_text(
            0, 0, up, transform=f"translate(12 {HEIGHT / 2:.0f}) rotate(-90)", text_anchor="middle", class_="soft"
        )
    )
    drawn = {name: [to_pixels(*p) for p in line if math.isfinite(p[1])] for name, line in lines.items()}
    labels = iter(spread_labels([places[-1][1] for places in drawn.values() if places], TOP, HEIGHT - BOTTOM))
    for (name, places), colour in zip(drawn.items(), COLOURS * 3, strict=False):
        if not places:
            continue
        if not dots:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        shown = places if dots or len(places) <= MAX_MARKERS else ()
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in shown]
        parts.append(draw_text(WIDTH - RIGHT + 8, next(labels) + 4, name, style=f"fill:{colour}"))
    return wrap_figure(WIDTH, HEIGHT, "".join(parts), label)


def spread_labels(wanted: Sequence[float], low: float, high: float, gap: float = 14) -> list[float]:
    """Return a place for each label near the wanted one, in the order of the wanted ones and at least `gap` apart.
    Labels that would overlap form a block around their middle, which stays between the two borders."""
    blocks: list[tuple[float, list[int]]] = []  # the middle of each block, and its labels from top to bottom
    for index in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        middle, block = wanted[index], [index]
        while True:
            half = gap * (len(block) - 1) / 2
            middle = max(low + half, min(high - half, middle))
            if not blocks or blocks[-1][0] + gap * len(blocks[-1][1]) / 2 <= middle - half - gap / 2 + 1e-9:
                break
            block = blocks.pop()[1] + block
            middle = sum(wanted[i] for i in block) / len(block)
        blocks.append((middle, block))
    places = dict[int, float]()
    for middle, block in blocks:
        places |= {index: middle + gap * (at - (len(block) - 1) / 2) for at, index in enumerate(block)}
    return [places[index] for index in range(len(wanted))]


def find_range(values: Sequence[float], log: bool) -> tuple[float, float]:
    """Find the ends of an axis, with some room; of a logarithmic one, the powers of ten."""
    values = [math.log10(value) for value in values] if log else list(values)
    low, high = min(values), max(values)
    room = 0.04 * (high - low) or 0.5
    return low - room, high + room


def find_ticks(low: float, high: float, log: bool) -> list[tuple[float, str]]:
    """Find places on an axis with their labels; a logarithmic axis has powers of ten, and halves between few of
    them."""
    if not log:
        return compute_ticks(low, high)
    steps = (1, 2, 5) if high - low < 2 else (1,)
    values = [step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
    ticks = [(v, name_tick(v)) for v in values if low <= math.log10(v) <= high]
    return ticks if len(ticks) > 1 else compute_ticks(10**low, 10**high)


def name_tick(value: float) -> str:
    """Name a number of a logarithmic axis: as it is, or by its power of ten if it is large or small."""
    if 0.001 <= value < 10**7:
        return f"{value:,.0f}" if value >= 1 else f"{value:g}"
    return write_power(value)


def write_power(value: float) -> str:
    """Write a number of one or two digits by its power of ten: 2·10⁻⁴, 1.5·10¹²."""
    first, power = f"{value:.1e}".replace(".0e", "e").split("e")
    ten = "10" + str(int(power)).translate(SUPERSCRIPTS)
    return ten if first == "1" else f"{first}·{ten}"


def draw_bars(values: Mapping[str, float], label: str, digits: int = 3, limit: float | None = None) -> str:
    """Draw a bar for each name, with its number; `limit` is the number of the longest bar there can be, by default the
    largest of these."""
    room, height = 190, 24
    largest = limit or max((abs(v) for v in values.values() if math.isfinite(v)), default=1.0) or 1.0
    parts = []
    for i, (name, value) in enumerate(values.items()):
        long = 380 * abs(value) / largest if math.isfinite(value) else 0.0
        y = height * i
        parts.append(draw_text(room - 8, y + 16, name, text_anchor="end"))
        kind = "cell" if value >= 0 else "neg"
        parts.append(
            f'<rect class="{kind}" x="{room}" y="{y + 4}" width="{max(1.0, long):.1f}" height="{height - 8}"/>'
        )
        parts.append(draw_text(room + long + 6, y + 16, f"{value:,.{digits}f}", class_="soft"))
    return wrap_figure(WIDTH, height * len(values) + 4, "".join(parts), label)


def draw_points(groups: Mapping[str, Sequence[tuple[float, float, str]]], label: str) -> str:
    """Draw named points (x, y, name) in the plane, each group in its colour; earlier groups have larger dots, so that
    equal points of several groups show as rings."""
    every = [point for group in groups.values() for point in group]
    (low_x, high_x), (low_y, high_y) = (
        find_range([p[0] for p in every], False),
        find_range([p[1] for p in every], False),
    )
    width, height = WIDTH, 420
    frame = f'x="1" y="1" width="{width - 202}" height="{height - 2}" rx="4" fill="none"'
    parts = [f'<rect class="axis" {frame}/>']
    dots: list[tuple[float, float, int, str]] = []  # the middle of each dot, its radius and its name
    for number, (group, colour) in enumerate(zip(groups.values(), COLOURS * 3, strict=False)):
        radius = 4 + 2 * (len(groups) - 1 - number)
        for x, y, word in group:
            px = 20 + (width - 300) * (x - low_x) / (high_x - low_x)
            py = height - 20 - (height - 40) * (y - low_y) / (high_y - low_y)
            place, title = f'cx="{px:.1f}" cy="{py:.1f}" r="{radius}"', html.escape(word)
            parts.append(f'<circle {place} fill="{colour}"><title>{title}</title></circle>')
            dots.append((px, py, radius, word[:MAX_POINT_NAME]))
    if len(dots) <= MAX_NAMES:
        parts += [draw_text(x, y + 4, name, class_="small") for x, y, name in place_names(dots, height)]
    for i, (name, colour) in enumerate(zip(groups, COLOURS * 3, strict=False)):
        parts.append(f'<circle cx="{width - 190}" cy="{20 + 20 * i}" r="5" fill="{colour}"/>')
        parts.append(draw_text(width - 178, 24 + 20 * i, name))
    return wrap_figure(width, height, "".join(parts), label)


def place_names(dots: Sequence[tuple[float, float, int, str]], height: int) -> list[tuple[float, float, str]]:
    """Place the names of dots (x, y, radius, name) to their right, where they cover no other dot and no other name:
    where each begins, and its middle."""
    placed = list[tuple[float, float, str]]()
    for x, y, radius, name in dots:
        left, right = x + radius + 3, x + radius + 3 + measure_label(name)
        taken = [middle for begin, middle, other in placed if begin < right and left < begin + measure_label(other)]
        taken += [at for center, at, size, _ in dots if left < center + size and center - size < right]
        placed.append((left, find_label_position(y, taken, 10, height - 10), name))
    return placed


def find_frontier(points: Sequence[tuple[float, float, str]], is_cheaper_better: bool) -> list[tuple[float, float]]:
    """Find the points that no other one beats in both numbers, from left to right: a higher y is better, and a lower x
    unless `is_cheaper_better` says otherwise."""
    sign = 1 if is_cheaper_better else -1
    kept, best = list[tuple[float, float]](), -math.inf
    for x, y, _ in sorted(points, key=lambda p: (sign * p[0], -p[1])):
        if y > best:
            kept.append((x, y))
            best = y
    return sorted(kept)


def draw_frontier(
    points: Sequence[tuple[float, float, str]], label: str, across: str, up: str, is_cheaper_better: bool = True
) -> str:
    """Draw named points (x, y, name) over a logarithmic axis, and the line through those that no other beats. The names
    stand in a column beside the picture, in the order of y, each with a line to its point."""
    (low_x, high_x), (low_y, high_y) = (
        find_range([p[0] for p in points], True),
        find_range([p[1] for p in points], False),
    )
    width, height, right = WIDTH, max(380, 14 * len(points) + BOTTOM + TOP), RIGHT

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        x_share, y_share = (math.log10(x) - low_x) / (high_x - low_x), (y - low_y) / (high_y - low_y)
        return LEFT + (width - LEFT - right) * x_share, height - BOTTOM - (height - BOTTOM - TOP) * y_share

    parts = []
    for value, name in find_ticks(low_y, high_y, False):
        y = to_pixels(10**low_x, value)[1]
        parts += [draw_rule(LEFT, width - right, y, "axis"),
                  draw_text(LEFT - 8, y + 4, name, text_anchor="end", class_="soft")]  # fmt: skip
    for value, name in find_ticks(low_x, high_x, True):
        x = to_pixels(value, low_y)[0]
        parts.append(
            draw_text(x, height - BOTTOM + 18, shorten_number(name, value), text_anchor="middle", class_="soft")
        )
    parts.append(draw_text((LEFT + width - right) / 2, height - 8, across, text_anchor="middle", class_="soft"))
    turned = f"translate(12 {height / 2:.0f}) rotate(-90)"
    parts.append(draw_text(0, 0, up, transform=turned, text_anchor="middle", class_="soft"))
    line = " ".join("{:.1f},{:.1f}".format(*to_pixels(*p)) for p in find_frontier(points, is_cheaper_better))
    parts.append(f'<polyline class="level" points="{line}" fill="none" stroke-width="1.5"/>')
    best = set(find_frontier(points, is_cheaper_better))
    by_score = sorted(points, key=lambda p: (-p[1], p[0]))
    dots = [to_pixels(x, y) for x, y, _ in by_score]
    places = spread_labels([y for _, y in dots], TOP, height - BOTTOM)
    ends = (width - right + 2, width - right + 18)  # of the lines to the names: slanted, then level
    for (x, y), place in zip(dots, places, strict=True):
        path = f"{x:.1f},{y:.1f} {ends[0]},{place:.1f} {ends[1]},{place:.1f}"
        parts.append(f'<polyline points="{path}" fill="none" stroke="{GREY}" stroke-width="0.6"/>')
    for (x, y, name), (dot_x, dot_y), place in zip(by_score, dots, places, strict=True):
        colour, title = COLOURS[0] if (x, y) in best else GREY, html.escape(name)
        parts.append(f'<circle cx="{dot_x:.1f}" cy="{dot_y:.1f}" r="4" fill="{colour}"><title>{title}</title></circle>')
        style = {"style": f"fill:{colour}"} if (x, y) in best else {}
        parts.append(draw_text(ends[1] + 5, place + 4, name, **style))
    return wrap_figure(width, height, "".join(parts), label)


def shorten_number(name: str, value: float) -> str:
    """Shorten the label of a large number to its power of ten, where that says the same."""
    digits = 1 if value >= 1e7 else 0  # after the point
    return write_power(value) if value >= 1e5 and float(f"{value:.{digits}e}") == value else name
