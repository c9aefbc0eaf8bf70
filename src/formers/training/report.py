"""The report of a run, or of several side by side: self-contained HTML, and Markdown, out of the run's folder."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..errors import Error, advise_on_write
from ..inspection.attention import Attention
from ..inspection.html import attention_figure, chart, page
from ..registry import member
from .runs import Folder, lines

Rows = list[tuple[str, str]]


class Story:
    """What a run's folder tells: words, numbers, curves and samples."""

    def __init__(self, folder: Folder):
        self.folder, self.about = folder, folder.about()
        self.asked, self.result = self.about["asked"], self.about.get("result") or {}
        self.title = member(self.asked["family"]).card.title
        self.rows = folder.history()
        self.steps = [row for row in self.rows if "losses" in row]
        held = [(row["step"], row["held"]) for row in self.rows if "held" in row]
        self.held = [(step, seen) for step, seen in held if seen.get("loss") is not None]  # what was no number is null

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """Loss over steps, in training and on held-out text."""
        training = [(float(r["step"]), float(r["loss"])) for r in self.steps if r["loss"] is not None]
        held = [(float(step), float(seen["loss"])) for step, seen in self.held]
        return {"training": training, "held out": held}

    def facts(self) -> Rows:
        """The run in numbers."""
        data, machine, result = self.about["data"], self.about["machine"], self.result
        last = self.steps[-1] if self.steps else {"step": 0, "tokens": 0, "seconds": 0.0}
        skipped = sum(bool(row.get("skipped")) for row in self.steps)
        speed = last["tokens"] / last["seconds"] if last["seconds"] else 0.0
        of, best = self.asked["train"]["steps"], result.get("best", "–")
        parts = f"{machine['processes']} process(es), {machine['threads']} threads"
        rows = [
            ("parameters", f"{result.get('parameters', 0):,}"),
            ("text", f"{data['tokens']:,} tokens in {data['documents']:,} documents"),
            ("steps", f"{last['step']:,} of {of:,}; best checkpoint {best}"),
            ("speed", f"{speed:,.0f} tokens/s, {last['tokens']:,} tokens in {last['seconds']:,.0f} s"),
            ("machine", f"{machine['name']} ({machine['device']}), {parts}"),
            ("versions", f"formers {machine['formers']}, torch {machine['torch']}, Python {machine['python']}"),
            ("tokenizer", data["tokenizer"]),
            ("store", data["store"]),
        ]  # fmt: skip
        if result.get("memory"):
            rows.insert(4, ("peak memory", f"{result['memory'] / 2**30:.2f} GiB"))
        if result.get("share"):
            rows.insert(4, ("of the machine's peak", f"{result['share']:.0%}"))
        return [*rows, ("steps left out", f"{skipped}")] if skipped else rows

    def scores(self) -> list[tuple[str, str, str]]:
        """Held-out text: the unigram, then the model."""
        rows = []
        for name, key in (("unigram (token frequencies alone)", "baseline"), (f"this {self.title}", "score")):
            score = self.result.get(key)
            if score:
                right = "–" if score["accuracy"] is None else f"{score['accuracy']:.1%}"
                rows.append((name, "–" if score["loss"] is None else f"{score['loss']:.2f}", right))
        return rows

    def others(self) -> Rows:
        """Every other number on held-out text: NSP, bits per byte."""
        found = (self.result.get("score") or {}).get("all", {})
        return [(k, f"{v:.1%}" if k.endswith("/right") else f"{v:.3f}") for k, v in found.items() if v is not None]

    def samples(self) -> list[dict[str, Any]]:
        """What the model could do at some steps."""
        return [s for s in lines(self.folder.path / "samples.jsonl") if "given" in s and "made" in s]

    def sections(self) -> list[dict[str, Any]]:
        """Tables of a fine-tuned model: measures, confusion, worst examples."""
        file = self.folder.path / "evaluation.json"
        return json.loads(file.read_text(encoding="utf-8"))["sections"] if file.is_file() else []

    def level(self) -> tuple[str, float] | None:
        """The unigram's loss, to compare with; only where the model has one loss."""
        base = self.result.get("baseline")
        one = len({name for row in self.steps[:1] for name in row["losses"]}) == 1
        return ("unigram", base["loss"]) if base and one else None


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns but the first hold numbers."""
    style = ["", *[' class="num"'] * (len(head) - 1)]
    top = "".join(f"<th{s}>{html.escape(cell)}</th>" for s, cell in zip(style, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{s}>{html.escape(c)}</td>" for s, c in zip(style, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def section(story: Story, samples: Sequence[tuple[str, str]] = (), looked: Attention | None = None) -> list[str]:
    """One model: scores, curve, samples, attention."""
    last = story.steps[-1] if story.steps else {"tokens": 0, "seconds": 0}
    spent = f"{last['tokens']:,} tokens in {last['seconds']:.0f} s"
    parts = [
        f"<h2>{html.escape(story.title)}</h2>",
        f'<p class="soft">{story.result.get("parameters", 0):,} parameters; {spent}.</p>',
        table(["on held-out text", "nats per token", "accuracy"], story.scores())
        if story.scores() and not story.sections()
        else "",
        chart(story.curves(), f"{story.title}: loss over steps", story.level()),
    ]
    for title, text in samples:
        parts += [f"<p>{html.escape(title)}</p>", f"<blockquote>{html.escape(text)}</blockquote>"]
    if looked is not None:
        kind, weights = next(iter(looked.weights.items()))
        caption = f"Attention of the {kind}: each row is a token, the darker squares are what it reads from."
        parts.append(attention_figure(looked.pieces, weights, caption + " This shows where, not why."))
    return parts


def report(folder: Folder) -> Path:
    """Write report.html and report.md of a run; the first one's path."""
    try:
        pages = render(folder)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, OSError) as error:
        what = f"a file of this run is damaged ({type(error).__name__}: {error})"
        fix = "compare run.json, metrics.jsonl and evaluation.json with another run's, or train once more"
        raise Error(what, where=folder.path, fix=fix) from None
    for name, text in pages.items():
        put(folder.path / name, text)
    return folder.path / "report.html"


def render(folder: Folder) -> dict[str, str]:
    """Make report.html and report.md of a run, by name."""
    story = Story(folder)
    title = f"{story.title}: {folder.path.name}"
    told = [(f"After step {s['step']:,}", shown(s)) for s in story.samples()]
    settings = yaml.safe_dump(story.asked, sort_keys=False, allow_unicode=True)
    body = [
        f"<h1>{html.escape(title)}</h1>", *section(story, told), table(["", ""], story.facts()),
        table(["held-out text", ""], story.others()) if story.others() and not story.sections() else "",
        *(f"<h2>{html.escape(s['title'])}</h2>{table(s['head'], s['rows'])}" for s in story.sections()),
        f"<h2>Settings</h2><pre>{html.escape(settings)}</pre>",
    ]  # fmt: skip
    return {"report.html": page(title, body), "report.md": "\n".join(markdown(story, title, told, settings))}


def shown(sample: Mapping[str, Any]) -> str:
    """One sample in words."""
    asked = f"\nasked: {sample['asked']}" if "asked" in sample else ""
    return f"given: {sample['given']}{asked}\nmodel: {sample['made']}"


def markdown(story: Story, title: str, told: Sequence[tuple[str, str]], settings: str) -> list[str]:
    """The same for a terminal or a README."""
    lines = [f"# {title}", "", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in story.facts()), ""]
    if story.scores() and not story.sections():
        lines += ["| on held-out text | nats per token | accuracy |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in story.scores()] + [""]
    lines += [f"- {key}: {value}" for key, value in story.others()]
    for part in story.sections():
        lines += ["", f"## {part['title']}", "", *rows_of(part["head"]), f"|{'---|' * len(part['head'])}"]
        lines += [line for row in part["rows"] for line in rows_of(row)]
    lines += ["", "## Loss on held-out text", "", "| step | loss |", "|---|---|"]
    lines += [f"| {step:,} | {seen['loss']:.4f} |" for step, seen in story.held]
    for name, text in told:
        lines += ["", f"## {name}", "", "```", text, "```"]
    return [*lines, "", "## Settings", "", "```yaml", settings, "```", ""]


def rows_of(cells: Sequence[str]) -> list[str]:
    """A row of a Markdown table."""
    return ["| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"]


def write(
    path: Path,
    title: str,
    intro: str,
    runs: Mapping[str, Path],
    samples: Mapping[str, Sequence[tuple[str, str]]],
    looked: Mapping[str, Attention],
    language: str = "en",
) -> None:
    """One page for several runs, by their folders."""
    body = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(intro)}</p>"]
    machine = ""
    for name, run in runs.items():
        story = Story(Folder(run))
        body += section(story, samples.get(name, ()), looked.get(name))
        machine = ", ".join(value for key, value in story.facts() if key in ("versions", "machine"))
    body.append(f'<p class="soft">{html.escape(machine)}</p>')
    put(path, page(title, body, language))


def put(path: Path, text: str) -> None:
    """Write a file; where that fails, an Error."""
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")  # a name may hold half a character
    except OSError as error:
        raise Error(f"cannot be written ({error.strerror})", where=path, fix=advise_on_write(error)) from None
