"""Draw docs/rooms.svg, the rooms of formers and which imports which: python scripts/make_rooms.py

A room stands above all rooms it imports; lazy imports and imports by name count. A line that follows from others (a
room imports another through a third) is left out.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from html import escape
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
ROOT = REPOSITORY / "src" / "formers"
PICTURE = REPOSITORY / "docs" / "rooms.svg"
# Single files beside the rooms are drawn as boxes: foundation (they import no room), family, model and protocols, which
# rooms stand upon, and former (the rest: the registry, which imports the models, and what reads it).
FOUNDATION = {"errors", "ragged_arrays", "option_aliases", "config", "atomic_files", "batch", "keymap"}
ENTRY_POINTS = {"__init__", "__main__"}
WIDTH, BOX_WIDTH, BOX_HEIGHT, LEVEL_HEIGHT, MARGIN = 860, 116, 34, 68, 20


def list_modules(path: Path) -> Iterator[str]:
    """The first part, below formers, of every module that a file imports."""
    package = ("formers", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = tuple(node.module.split(".")) if node.module else ()
            names = [(*base, *module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            names = [tuple(part.rstrip(".").split(".")) for part in parts if isinstance(part, str)]
        else:
            continue
        yield from (name[1] for name in names if name[0] == "formers" and len(name) > 1)


def get_box(module: str) -> str | None:
    """The box of a module: its folder, or one of the boxes of single files; None if it is not drawn."""
    if (ROOT / module).is_dir():
        return f"{module}/"
    if module in ENTRY_POINTS or not (ROOT / f"{module}.py").is_file():
        return None
    if module in ("family", "protocols"):
        return module
    if module in ("model", "inputs"):
        return "model"
    return "foundation" if module in FOUNDATION else "former"


def read_graph() -> dict[str, set[str]]:
    """Which boxes each box imports."""
    graph: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        box = get_box(path.relative_to(ROOT).parts[0].removesuffix(".py"))
        if box is not None:
            targets = {get_box(module) for module in list_modules(path)}
            graph.setdefault(box, set()).update(target for target in targets if target not in (None, box))
    return graph


def sort_into_levels(graph: dict[str, set[str]]) -> list[list[str]]:
    """Boxes from the ground up, each one level above the highest that it imports."""
    level: dict[str, int] = {}
    while len(level) < len(graph):
        ready = [box for box in graph if box not in level and graph[box] <= set(level)]
        if not ready:
            raise ValueError(f"a cycle among {sorted(set(graph) - set(level))}")
        level |= {box: max((level[below] + 1 for below in graph[box]), default=0) for box in ready}
    return [sorted(box for box in graph if level[box] == n) for n in range(max(level.values()) + 1)]


def reduce_edges(graph: dict[str, set[str]], order: list[str]) -> list[tuple[str, str]]:
    """The imports that do not follow from others; `order` is from the ground up."""
    reach: dict[str, set[str]] = {}
    for box in order:
        reach[box] = graph[box].union(*(reach[below] for below in graph[box]))
    return [
        (box, below)
        for box in order
        for below in sorted(graph[box])
        if not any(below in reach[other] for other in graph[box] - {below})
    ]


def place_boxes(levels: list[list[str]], edges: list[tuple[str, str]], height: int) -> dict[str, tuple[float, float]]:
    """The middle of each box: of all orders within the levels, one with short lines, few of them behind a box."""

    def place(orders: tuple[tuple[str, ...], ...]) -> dict[str, tuple[float, float]]:
        middle = {}
        for number, boxes in enumerate(orders):
            y = height - MARGIN - BOX_HEIGHT / 2 - number * LEVEL_HEIGHT
            for column, box in enumerate(boxes):
                middle[box] = WIDTH / 2 + (column - (len(boxes) - 1) / 2) * WIDTH / (len(boxes) + 0.4), y
        return middle

    def measure(orders: tuple[tuple[str, ...], ...]) -> float:
        middle, cost = place(orders), 0.0
        for upper, lower in edges:
            (x, y), (to_x, to_y) = middle[upper], middle[lower]
            cost += abs(x - to_x)
            for other_x, other_y in middle.values():
                if y < other_y < to_y:
                    at = x + (to_x - x) * (other_y - y) / (to_y - y)
                    cost += WIDTH * (abs(at - other_x) < BOX_WIDTH * 0.6)
        return cost

    return place(min(itertools.product(*map(itertools.permutations, levels)), key=measure))


def draw() -> str:
    """The picture as SVG text."""
    graph = read_graph()
    levels = sort_into_levels(graph)
    edges = reduce_edges(graph, [box for level in levels for box in level])
    height = LEVEL_HEIGHT * (len(levels) - 1) + BOX_HEIGHT + 2 * MARGIN
    place = place_boxes(levels, edges, height)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-size="14"'
        ' font-family="ui-monospace, monospace">',
        "<title>The modules of formers: a module imports those that its lines lead down to</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for upper, lower in edges:
        (x, y), (to_x, to_y) = place[upper], place[lower]
        y, to_y = y + BOX_HEIGHT / 2, to_y - BOX_HEIGHT / 2
        ends = f'x1="{x:.0f}" y1="{y:.0f}" x2="{to_x:.0f}" y2="{to_y:.0f}"'
        lines.append(f'<line {ends} stroke="#7a8699" stroke-width="1.3"/>')
    for box, (x, y) in place.items():
        left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
        size = f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"'
        lines.append(f'<rect x="{left:.0f}" y="{top:.0f}" {size} fill="#eef3fb" stroke="#35507a"/>')
        lines.append(f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" fill="#14233c">{escape(box)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
