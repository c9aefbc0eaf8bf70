"""The page of an experiment: it collects tables and pictures, in one language, and becomes one HTML file."""

from __future__ import annotations

import dataclasses
import html
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import __version__
from ..config import ProgressCallback, count_noun
from ..data.preparation.corpus_filters import hold_out_documents
from ..data.readers import load_bundled_corpus
from ..errors import Error
from ..inspection.sides import Token
from ..reports.html import render_page
from ..reports.run_report import render_html_table
from ..text.normalise import Language, normalise
from .registry import ExperimentEntry

STYLE = """<style>
.chip { display: inline-block; padding: 0 .35rem; margin: .1rem .12rem; border-radius: .25rem; background: var(--wash) }
.chip.on { background: var(--mark); color: var(--paper) }
.chip.off { opacity: .35 }
.chip.warm { background: #b45309; color: #ffffff }
.chip.hidden { background: none; outline: 1px dashed var(--soft); outline-offset: -1px; color: var(--soft) }
.chip sub { opacity: .7; margin-left: .2rem }
.side { display: flex; flex-wrap: wrap; gap: 1.25rem }
.side figure { margin: .5rem 0 }
.side figcaption { width: 0; min-width: 100% }
svg .neg { fill: #d97706 }
</style>"""
LOOK = ("What to look at", "살펴볼 점")
JOINED_NOTE = (
    "· stands for a further byte of the character before it: a rare character is several tokens.",
    "·는 앞 글자의 나머지 바이트를 뜻합니다. 드문 글자 하나는 토큰 여러 개가 됩니다.",
)
MIN_DOCUMENTS = 20  # of a training text: every twentieth is held out


@dataclass(frozen=True)
class TableBlock:
    """A table of the page, which is printed on the terminal too."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass
class Page:
    """What an experiment writes to: `language` is that of its words, `text` the user's own sentence, `documents` the
    user's own training text; where they are None, the experiment takes bundled ones."""

    language: Language = "en"
    text: str | None = None
    documents: list[str] | None = None
    tell: ProgressCallback = lambda what, done, of, detail: None
    tables: list[TableBlock] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # those that the terminal shows too
    is_overfitted: bool = False  # a model of this page has learned its training text by heart
    body: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def localise(self, english: str, korean: str) -> str:
        """Return words in the page's language."""
        return korean if self.language == "ko" else english

    def choose_text(self, english: str, korean: str) -> str:
        """Return the user's own text, or the usual one of the language."""
        return normalise(self.text or "").strip() or self.localise(english, korean)

    def load_documents(self, max_characters: int) -> tuple[list[str], list[str]]:
        """Return documents to train on and documents that are held out: of the user's own text, or of the bundled
        corpus, in pieces of some lines each."""
        documents = load_bundled_corpus(self.language)[0] if self.documents is None else self.documents
        lines = [line for document in documents for line in document.split("\n") if line.strip()]
        total, taken = 0, []
        for line in lines:
            if total >= max_characters:
                break
            taken.append(line)
            total += len(line)
        size = max(1, min(2000, total // (2 * MIN_DOCUMENTS)))
        pieces, piece = [], ""
        for line in taken:
            piece = f"{piece}\n{line}" if piece else line
            if len(piece) >= size:
                pieces.append(piece)
                piece = ""
        pieces += [piece] if piece else []
        pieces = taken if len(pieces) < MIN_DOCUMENTS else pieces  # of a few lines each is a piece
        if len(pieces) < MIN_DOCUMENTS:
            what = f"the text has {count_noun(len(pieces), 'line')}, and {MIN_DOCUMENTS} are needed"
            raise Error(what, fix=f"give a file of at least {MIN_DOCUMENTS} lines")
        return hold_out_documents(pieces)

    def add_heading(self, title: str) -> None:
        """Begin a section."""
        self.body.append(f"<h2>{html.escape(title)}</h2>")

    def add_subheading(self, title: str) -> None:
        """Begin a part of a section."""
        self.body.append(f"<h3>{html.escape(title[:1].upper() + title[1:])}</h3>")

    def add_note(self, words: str, shown: bool = False) -> None:
        """Add a paragraph; `shown` ones are printed on the terminal too."""
        self.notes += [words] if shown else []
        self.body.append(f"<p>{escape_words(words)}</p>")

    def add_table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[object]], shown: bool = True) -> None:
        """Add a table; floats get three digits. Tables that are not `shown` stay off the terminal."""
        block = TableBlock(title, tuple(head), [tuple(map(format_cell, row)) for row in rows])
        if shown:
            self.tables.append(block)
        table = render_html_table(block.head, block.rows)
        self.body.append(f"<h3>{html.escape(title)}</h3><figure>{table}</figure>")

    def add_picture(self, *pictures: str) -> None:
        """Add pictures, side by side if there are several."""
        self.body.append(pictures[0] if len(pictures) == 1 else f'<div class="side">{"".join(pictures)}</div>')

    def render(self, entry: ExperimentEntry, explanation: Sequence[tuple[str, str]], command: str) -> str:
        """Render the page: the title, what to look at, then everything that was added."""
        title = self.localise(*entry.title)
        looks = "".join(f"<li>{escape_words(self.localise(*pair))}</li>" for pair in explanation)
        seconds = round(time.perf_counter() - self.began)
        spent = self.localise(f"{seconds} second{'' if seconds == 1 else 's'}", f"{seconds}초")
        end = f"<code>{html.escape(command)}</code> · formers {__version__} · {spent}"
        about = self.localise(*entry.help)
        top = [STYLE, f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(about[0].upper() + about[1:])}.</p>"]
        look = f"<h2>{self.localise(*LOOK)}</h2><ol>{looks}</ol>"
        return render_page(title, [*top, look, *self.body, f'<p class="soft">{end}</p>'], self.language)


def check_settings(settings: Any) -> None:  # dynamic: settings of any experiment
    """Refuse settings of an experiment that are numbers below 1, or below 0 where the default is 0."""
    for setting in dataclasses.fields(settings):
        setting_value, usual = getattr(settings, setting.name), setting.default  # dynamic: the caller's settings
        least = 0 if usual == 0 or (isinstance(usual, tuple) and 0 in usual) else 1
        for value in setting_value if isinstance(setting_value, tuple) else (setting_value,):
            if isinstance(value, int) and value < least:
                option = f"--{setting.name.replace('_', '-')}"
                raise Error(
                    f"{option} must be at least {least}, got {value}", fix=f"leave {option} out for the default"
                )


def escape_words(words: str) -> str:
    """Escape a text for a page; no line breaks inside an option such as --lr."""
    return re.sub(r"--[a-z]+", r'<span style="white-space: nowrap">\g<0></span>', html.escape(words))


def format_cell(value: object) -> str:
    """Format a cell: floats with three digits (fewer if they are large), whole numbers with commas."""
    if isinstance(value, float):
        if value == 0 or abs(value) >= 100:
            return f"{value:,.0f}" if value == 0 or abs(value) >= 1000 else f"{value:.1f}"
        return f"{value:.3f}" if abs(value) >= 0.001 else f"{value:.1e}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def name_tokens(tokens: Sequence[Token]) -> list[str]:
    """Name tokens by the characters that a person reads; a piece inside a character, which the piece before it shows,
    is a dot."""
    return ["·" if token.is_joined else token.text.strip() or "␣" for token in tokens]


def render_chips(tokens: Sequence[tuple[str, str]], notes: Sequence[str] = ()) -> str:
    """Render tokens as chips, each with a class: "", on, off, warm or hidden; `notes` stand below the line after them."""
    small = [f"<sub>{html.escape(note)}</sub>" for note in notes] or [""] * len(tokens)
    chips = (
        f'<span class="chip {kind}">{html.escape(text) or "&nbsp;"}{note}</span>'
        for (text, kind), note in zip(tokens, small, strict=True)
    )
    return f"<p>{''.join(chips)}</p>"
