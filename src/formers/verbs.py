"""What a loaded model can do: f.generate(...) is formers.generate(f, ...). A verb is imported when it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

# Verb → the module, and the function in it whose first argument is a Former.
VERBS = {
    "augment": ("generation.augment", "augment"),
    "embed": ("inspection.embed", "embed"),
    "evaluate": ("inspection.evaluate", "evaluate"),
    "fill": ("generation.fill", "fill"),
    "neighbours": ("inspection.neighbours", "neighbours"),
    "classify": ("tasks.ask", "classify"),
    "score": ("inspection.evaluate", "score"),
    "tag": ("tasks.ask", "tag"),
    "answer": ("tasks.ask", "answer"),
    "choose": ("tasks.ask", "choose"),
    "generate": ("generation.text", "generate"),
    "summarise": ("generation.translate", "summarise"),
    "translate": ("generation.translate", "translate"),
}


def verb(name: str) -> Callable[..., Any]:
    """The function behind a verb."""
    module, attribute = VERBS[name]
    return getattr(importlib.import_module(f"formers.{module}"), attribute)
