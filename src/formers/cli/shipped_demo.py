"""formers demo: what the models that come with the package can do, at once."""

from __future__ import annotations

import shlex
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from ..errors import Error
from ..former import Former
from ..interop.shipped_models import SHIPPED_PREFIX, list_shipped_models
from .terminal import SafeConsole, escape_line, show_progress

if TYPE_CHECKING:
    from ..generation.fill import Guess

ENCODER, DECODER, TITLER, VECTORS = (
    f"{SHIPPED_PREFIX}{name}" for name in ("bert-mini", "gpt2-mini", "t5-bill-titles", "word-vectors")
)
BLANKS = ("The president of the United ___ spoke to Congress.", "배우들의 연기가 정말 ___ .")
GUESSES, WORDS_SHOWN = 20, 4  # of a blank: asked for, and shown at most
MIN_SHOWN = 0.01  # the probability of a shown word
STORIES = ("The old man looked at the sea and", "오랜만에")
STORY_TOKENS = 48
BILL = (
    "현행법은 어린이 보호구역에서 자동차의 통행속도를 시속 30킬로미터 이내로 제한할 수 있도록 규정하고 있음. "
    "그런데 보호구역의 안전시설이 부족하여 어린이 교통사고가 계속 발생하고 있다는 지적이 있음. "
    "이에 보호구역에 신호기와 안전표지를 의무적으로 설치하도록 하여 어린이를 교통사고의 위험으로부터 보호하려는 것임."
)
WORDS = ("king", "river", "영화", "국가")
INSIDE_TEXT = "The president of the United [MASK] spoke to Congress."
INSIDE_FILE = "inside.html"


@dataclass(frozen=True)
class DemoPart:
    """A part of the demo: the models that it can be shown with, the first that is there, and what it is in words."""

    models: tuple[str, ...]
    title: str
    show: Callable[[SafeConsole, Former, Path, int], None]


def show_shipped_models(console: SafeConsole, where: Path, seed: int) -> None:
    """Show every part of the demo whose model comes with this package; say which others do not."""
    known, began = {model.name for model in list_shipped_models()}, time.perf_counter()
    formers_by_name: dict[str, Former] = {}
    missing: dict[str, list[str]] = {}
    for part in DEMO_PARTS:
        name = next((one for one in part.models if one in known), None)
        if name is None:
            missing.setdefault(part.models[0], []).append(part.title)
            continue
        if name not in formers_by_name:
            formers_by_name[name] = load_quietly(name)
        console.print(Text.assemble("\n", (name, "bold"), f" {part.title}"))
        part.show(console, formers_by_name[name], where, seed)
    if missing:
        console.print()
    for name, titles in missing.items():
        console.print(f"{name} does not come with this package; left out: {', '.join(titles)}")
    if not formers_by_name:
        raise Error("no model comes with this package", fix="formers demo --train trains two small ones in two minutes")
    console.print(f"\n{time.perf_counter() - began:.0f} s after torch was loaded. formers models lists these models;")
    console.print("formers demo --train trains a GPT-2 and a BERT on this machine in two minutes")


def load_quietly(name: str) -> Former:
    """Load a model for inference; what it says about missing parts does not matter here."""
    from ..interop.model_directory import load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(name)


def show_blanks(console: SafeConsole, former: Former, where: Path, seed: int) -> None:
    """Fill an English and a Korean blank."""
    from ..generation.fill import fill

    for text in BLANKS:
        console.print(f"  {text}\n    → {escape_line(format_words(fill(former, text, GUESSES)))}")


def format_words(guesses: Sequence[Guess]) -> str:
    """List the likeliest words: the blanks stand between spaces, where neither a piece (##ing) nor a mark belongs."""
    words = [guess for guess in guesses if guess.token.isalnum()]
    likely = [guess for guess in words if guess.probability >= MIN_SHOWN] or words[:1]
    return ", ".join(f"{guess.token} {guess.probability:.0%}" for guess in likely[:WORDS_SHOWN])


def show_stories(console: SafeConsole, former: Former, where: Path, seed: int) -> None:
    """Continue an English and a Korean text."""
    from ..generation.api import generate

    for prompt in STORIES:
        text = generate(former, prompt, STORY_TOKENS, temperature=0.7, top_k=40, seed=seed)
        assert former.tokenizer is not None
        is_cut = len(former.tokenizer.encode(text, special=False)) >= STORY_TOKENS - 2  # another split may be shorter
        if is_cut and " " in text and not text.endswith((".", "!", "?")):
            text = f"{text.rpartition(' ')[0]} …"
        console.print(f"  {escape_line(' '.join(f'{prompt}{text}'.split()))}")


def show_title(console: SafeConsole, former: Former, where: Path, seed: int) -> None:
    """Write a title for a bill."""
    from ..generation.translate import summarise

    console.print(f"  {BILL}\n    → {escape_line(summarise(former, BILL, max_new_tokens=40))}")


def show_neighbours(console: SafeConsole, former: Former, where: Path, seed: int) -> None:
    """Show the nearest words of some words."""
    from ..tasks.word_vectors import find_nearest_words, get_unit_vectors

    for word in WORDS:
        words = find_nearest_words(former, get_unit_vectors(former, [word])[0], 5, [word])
        nearest = ", ".join(f"{name} {likeness:.2f}" for name, likeness in words)
        console.print(f"  {word}: {escape_line(nearest)}")


def show_inside(console: SafeConsole, former: Former, where: Path, seed: int) -> None:
    """Write the page that shows a model at work on a sentence."""
    from ..inspection.api import inspect

    path = where / INSIDE_FILE
    where.mkdir(parents=True, exist_ok=True)
    with show_progress(SafeConsole(stderr=True), "inspect", delay_seconds=2) as tell:
        inspect(former, INSIDE_TEXT, name=former.family, tell=tell).save(path, overwrite=True)
    console.print(f"  {escape_line(path)}: open it in a browser; formers inspect makes one of any text")
    console.print(f"  python -m webbrowser -t {shlex.quote(str(path))}")


DEMO_PARTS = (
    DemoPart((ENCODER,), "fills blanks", show_blanks),
    DemoPart((DECODER,), "continues texts", show_stories),
    DemoPart((TITLER,), "writes a title for a bill of the National Assembly of Korea", show_title),
    DemoPart((VECTORS,), "finds similar words", show_neighbours),
    DemoPart((ENCODER,), "from the inside", show_inside),
)
