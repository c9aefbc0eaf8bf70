"""The report of a run, or of several side by side: one self-contained HTML page."""

from __future__ import annotations

import html
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from .. import __version__
from ..errors import Error
from ..former import count
from ..inspection.attention import Attention
from ..inspection.html import attention_figure, chart, page
from ..registry import member
from .pretrain import Run


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns but the first hold numbers."""
    style = ["", *[' class="num"'] * (len(head) - 1)]
    top = "".join(f"<th{s}>{html.escape(cell)}</th>" for s, cell in zip(style, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{s}>{html.escape(c)}</td>" for s, c in zip(style, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def scores(run: Run) -> str:
    """The model beside the unigram."""
    return table(
        ["on held-out text", "nats per token", "accuracy"],
        [
            ["unigram (token frequencies alone)", f"{run.baseline.loss:.2f}", f"{run.baseline.accuracy:.1%}"],
            [f"this {member(run.former.family).card.title}", f"{run.score.loss:.2f}", f"{run.score.accuracy:.1%}"],
        ],
    )


def section(run: Run, samples: Sequence[tuple[str, str]], looked: Attention | None) -> list[str]:
    """One model: scores, curve, samples, attention."""
    card = member(run.former.family).card
    config = ", ".join(
        f"{key} {value}"
        for key, value in asdict(run.former.config).items()
        if key in ("layers", "dim", "heads", "vocab", "context")
    )
    spent = f"{run.history.tokens:,} tokens in {run.history.seconds:.0f} s"
    parts = [
        f"<h2>{html.escape(card.title)}</h2>",
        f'<p class="soft">{count(run.former.model):,} parameters ({html.escape(config)}); {spent}.</p>',
        scores(run),
        chart(
            {"training": run.history.losses, "held out": run.history.held},
            f"{card.title}: nats per token over steps",
            ("unigram", run.baseline.loss),
        ),
    ]
    for title, text in samples:
        parts += [f"<p>{html.escape(title)}</p>", f"<blockquote>{html.escape(text)}</blockquote>"]
    if looked is not None:
        kind, weights = next(iter(looked.weights.items()))
        caption = f"Attention of the {kind}: each row is a token, the darker squares are what it reads from."
        parts.append(attention_figure(looked.pieces, weights, caption + " This shows where, not why."))
    return parts


def write(
    path: Path,
    title: str,
    intro: str,
    runs: Mapping[str, Run],
    samples: Mapping[str, Sequence[tuple[str, str]]],
    looked: Mapping[str, Attention],
    language: str = "en",
) -> None:
    """Write the page."""
    body = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(intro)}</p>"]
    for name, run in runs.items():
        body += section(run, samples.get(name, ()), looked.get(name))
    versions = f"formers {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    machine = f"{versions}, {platform.machine()}, {torch.get_num_threads()} threads"
    body.append(f'<p class="soft">{html.escape(machine)}</p>')
    try:
        path.write_text(page(title, body, language), encoding="utf-8")
    except OSError as error:
        raise Error(
            f"cannot be written ({error.strerror})", where=path, fix="make room, or choose another place"
        ) from None
