"""The report of a run, or of several side by side: self-contained HTML, and Markdown, out of the run's folder."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..errors import Error, advise_on_write
from ..inspection.attention import Attention
from ..protocols import RunRecords
from ..registry import find_family
from ..text.language import Language, detect_language
from .html import draw_attention, draw_chart, render_page
from .translations import translate_report

LabelledRows = list[tuple[str, str]]
NUMBER_PATTERN = re.compile(r"[-–−]?[\d.,]*%?|inf|nan")
ATTENTION_CAPTION = (
    "Attention of the {kind}: each row is a token, the darker squares are what it reads from. "
    "This shows where, not why."
)


class RunReport:
    """The words, numbers, curves and samples of a run, in the language of its text unless another is asked for."""

    def __init__(self, run: RunRecords, language: Language | None = None):
        self.run, self.run_info = run, run.read_info()
        self.settings, self.result = self.run_info["asked"], self.run_info.get("result") or {}
        self.title = find_family(self.settings["family"]).card.title
        self.history = run.read_history()
        self.step_rows = [row for row in self.history if "losses" in row]
        held = [(row["step"], row["held"]) for row in self.history if "held" in row]
        self.valid_losses = [
            (step, seen) for step, seen in held if seen.get("loss") is not None
        ]  # what was no number is null
        self.language: Language = language or self.result.get("language") or self.guess_language()

    def guess_language(self) -> Language:
        """The language of the samples: for a run that has not ended, or was made before its result named one."""
        return detect_language(str(sample["given"]) for sample in self.run.read_samples())

    def localise(self, words: str, **values: Any) -> str:
        """Words of the report in its language."""
        return translate_report(words, self.language, **values)

    @property
    def loss_name(self) -> str | None:
        """The loss of the tokens, where a model has several (NSP, SOP, the balance of experts): the unigram has that
        one alone, and the chart shows it."""
        score = self.result.get("score") or {}
        several = any(len(row["losses"]) > 1 for row in self.step_rows[:1])
        found = [k for k, v in score.get("all", {}).items() if v is not None and v == score.get("loss")]
        return next((k for k in found if several and all(k in row["losses"] for row in self.step_rows)), None)

    def get_curves(self) -> dict[str, list[tuple[float, float]]]:
        """Loss over steps, in training and on validation text."""
        part = self.loss_name
        training = [(r["step"], r["losses"][part] if part else r["loss"]) for r in self.step_rows]
        held = [(step, seen.get(part or "loss")) for step, seen in self.valid_losses]
        return {
            self.localise(name): [(float(step), float(loss)) for step, loss in line if loss is not None]
            for name, line in (("training", training), ("validation", held))
        }

    def render_chart(self) -> str:
        """The curves as a picture."""
        words = "{title}: loss over steps" + (" ({part})" if self.loss_name else "")
        return draw_chart(
            self.get_curves(), self.localise(words, title=self.title, part=self.loss_name), self.get_unigram_level()
        )

    def get_last_step(self) -> dict[str, Any]:
        """What was done so far: the last step, its tokens and seconds."""
        return self.step_rows[-1] if self.step_rows else {"step": 0, "tokens": 0, "seconds": 0.0}

    def list_facts(self) -> LabelledRows:
        """The run in numbers, each with a key of the table of strings."""
        data, machine, result, last, say = (
            self.run_info["data"],
            self.run_info["machine"],
            self.result,
            self.get_last_step(),
            self.localise,
        )
        skipped = sum(bool(row.get("skipped")) for row in self.step_rows)
        speed = last["tokens"] / last["seconds"] if last["seconds"] else 0.0
        done = {"step": last["step"], "steps": self.settings["train"]["steps"], "best": result.get("best", "–")}
        spent = {"speed": speed, "tokens": last["tokens"], "seconds": last["seconds"]}
        place = {key: machine[key] for key in ("name", "device", "processes", "threads")}
        size = {key: data[key] for key in ("tokens", "documents")}
        rows = [
            ("parameters", f"{result.get('parameters', 0):,}"),
            ("text", say("{tokens:,} tokens in {documents:,} documents", **size)),
            ("steps", say("{step:,} of {steps:,}; best checkpoint {best}", **done)),
            ("speed", say("{speed:,.0f} tokens/s, {tokens:,} tokens in {seconds:,.0f} s", **spent)),
            ("machine", say("{name} ({device}), {processes} process(es), {threads} threads", **place)),
            ("versions", f"formers {machine['formers']}, torch {machine['torch']}, Python {machine['python']}"),
            ("tokenizer", data["tokenizer"]),
            ("store", data["store"]),
        ]  # fmt: skip
        if stuck := result.get("stuck_parts"):
            rows.insert(3, ("note", " ".join(say(str(form), **values) for form, values in stuck)))
        if result.get("memory"):
            rows.insert(4, ("peak memory", f"{result['memory'] / 2**30:.2f} GiB"))
        if result.get("share"):
            rows.insert(4, ("of the machine's peak", f"{result['share']:.0%}"))
        return [*rows, ("steps left out", f"{skipped}")] if skipped else rows

    def build_score_table(self) -> list[list[str]]:
        """Validation text: what the columns are, the unigram, then the model; nothing where there is no score."""
        rows = []
        names = (self.localise("unigram (token frequencies alone)"), self.localise("this {title}", title=self.title))
        for name, key in zip(names, ("baseline", "score"), strict=True):
            if score := self.result.get(key):
                right = "–" if score["accuracy"] is None else f"{score['accuracy']:.1%}"
                rows.append([name, "–" if score["loss"] is None else f"{score['loss']:.2f}", right])
        head = [self.localise(word) for word in ("validation text", "nats per token", "accuracy")]
        return [head, *rows] if rows and not self.read_sections() else []

    def list_other_metrics(self) -> LabelledRows:
        """Every other number on validation text: NSP, bits per byte."""
        found = (self.result.get("score") or {}).get("all", {})
        return [(k, format_number(k, v)) for k, v in found.items() if v is not None and not self.read_sections()]

    def format_samples(self) -> LabelledRows:
        """The samples in words, each with a heading."""
        rows = []
        for sample in self.run.read_samples():
            asked = [("asked: {text}", sample["asked"])] if "asked" in sample else []
            parts = [("given: {text}", sample["given"]), *asked, ("model: {text}", sample["made"])]
            words = "\n".join(self.localise(form, text=text) for form, text in parts)
            rows.append((self.localise("After step {step:,}", step=sample["step"]), words))
        return rows

    def read_sections(self) -> list[dict[str, Any]]:
        """Tables of a fine-tuned model: measures, confusion, worst examples. What is not ours (labels, names of
        measures, texts) is not translated."""
        file = self.run.path / "evaluation.json"
        found = json.loads(file.read_text(encoding="utf-8"))["sections"] if file.is_file() else []
        made = []
        for part in found:
            head, rows = part["head"], part["rows"]
            if head[:1] != [""]:  # the others have labels or measures in their head
                head = [self.localise(word) for word in head]
            if part["title"] == "Measures":
                rows = [[self.localise(row[0]), *row[1:]] for row in rows]
            made.append({"title": self.localise(part["title"]), "head": head, "rows": rows})
        return made

    def get_unigram_level(self) -> tuple[str, float] | None:
        """The unigram's loss, to compare with: the chart shows the same loss, of the same text."""
        base = self.result.get("baseline")
        one = self.loss_name is not None or all(len(row["losses"]) == 1 for row in self.step_rows[:1])
        return (
            (self.localise("unigram, validation"), base["loss"]) if base and base["loss"] is not None and one else None
        )


def format_number(name: str, value: float, digits: int = 3) -> str:
    """A share of right guesses as per cent, a count as an integer, anything else with so many digits."""
    if name.endswith("/right"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def render_html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; columns that hold numbers are set right."""
    numbers = [i > 0 and all(NUMBER_PATTERN.fullmatch(row[i]) for row in rows) for i in range(len(head))]
    style = [' class="num"' if number else "" for number in numbers]
    top = "".join(f"<th{s}>{html.escape(cell)}</th>" for s, cell in zip(style, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{s}>{html.escape(c)}</td>" for s, c in zip(style, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def render_section(
    story: RunReport, samples: Sequence[tuple[str, str]] = (), looked: Attention | None = None
) -> list[str]:
    """One model: scores, curve, samples, attention."""
    last, scores = story.get_last_step(), story.build_score_table()
    spent = {"parameters": story.result.get("parameters", 0), "tokens": last["tokens"], "seconds": last["seconds"]}
    words = story.localise("{parameters:,} parameters; {tokens:,} tokens in {seconds:.0f} s.", **spent)
    parts = [
        f"<h2>{html.escape(story.title)}</h2>",
        f'<p class="soft">{html.escape(words)}</p>',
        render_html_table(scores[0], scores[1:]) if scores else "",
        story.render_chart(),
    ]
    for title, text in samples:
        parts += [f"<p>{html.escape(title)}</p>", f"<blockquote>{html.escape(text)}</blockquote>"]
    if looked is not None:
        kind, weights = next(iter(looked.weights.items()))
        caption = story.localise(ATTENTION_CAPTION, kind=story.localise(kind))
        parts.append(draw_attention(looked.tokens, weights, caption, story.language))
    return parts


def write_report(run: RunRecords, language: Language | None = None) -> Path:
    """Write report.html and report.md of a run, in the language of its text or in another; the first one's path."""
    try:
        pages = render_report(run, language)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, OSError) as error:
        what = f"a file of this run is damaged ({type(error).__name__}: {error})"
        fix = "compare run.json, metrics.jsonl and evaluation.json with another run's, or train once more"
        raise Error(what, where=run.path, fix=fix) from None
    for name, text in pages.items():
        write_text_file(run.path / name, text)
    return run.path / "report.html"


def render_report(run: RunRecords, language: Language | None = None) -> dict[str, str]:
    """Make report.html and report.md of a run, by name."""
    story = RunReport(run, language)
    title = f"{story.title}: {run.path.name}"
    settings = yaml.safe_dump(story.settings, sort_keys=False, allow_unicode=True)
    facts, others = [(story.localise(key), value) for key, value in story.list_facts()], story.list_other_metrics()
    body = [
        f"<h1>{html.escape(title)}</h1>", *render_section(story, story.format_samples()),
        render_html_table(["", ""], facts),
        render_html_table([story.localise("validation text"), ""], others) if others else "",
        *(f"<h2>{html.escape(s['title'])}</h2>{render_html_table(s['head'], s['rows'])}"
          for s in story.read_sections()),
        f"<h2>{story.localise('Settings')}</h2><pre>{html.escape(settings)}</pre>",
    ]  # fmt: skip
    text = "\n".join(render_markdown(story, title, settings))
    return {"report.html": render_page(title, body, story.language), "report.md": text}


def render_markdown(story: RunReport, title: str, settings: str) -> list[str]:
    """Render the report as Markdown, for a terminal or a README."""
    facts = [(story.localise(key), value) for key, value in story.list_facts()]
    lines = [f"# {escape_markdown(title)}", "", *render_markdown_table(["", ""], facts), ""]
    if scores := story.build_score_table():
        lines += [*render_markdown_table(scores[0], scores[1:]), ""]
    lines += [f"- {escape_markdown(key)}: {value}" for key, value in story.list_other_metrics()]
    for part in story.read_sections():
        lines += ["", f"## {escape_markdown(part['title'])}", "", *render_markdown_table(part["head"], part["rows"])]
    losses = [(f"{int(step):,}", f"{loss:.4f}") for step, loss in story.get_curves()[story.localise("validation")]]
    head = [story.localise("step"), story.localise("loss") + (f" ({story.loss_name})" if story.loss_name else "")]
    lines += ["", f"## {story.localise('Validation loss')}", "", *render_markdown_table(head, losses)]
    for name, text in story.format_samples():
        lines += ["", f"## {name}", "", *fence_text(text)]
    return [*lines, "", f"## {story.localise('Settings')}", "", *fence_text(settings, "yaml"), ""]


def escape_markdown(text: str) -> str:
    """A text on one line that no reader of Markdown takes for HTML, or for the end of a table's cell."""
    return " ".join(html.escape(text, quote=False).replace("|", "\\|").split())


def fence_text(text: str, kind: str = "") -> list[str]:
    """A text as it is, between fences longer than any in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [fence + kind, text, fence]


def render_markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [
        *render_markdown_row(head),
        f"|{'---|' * len(head)}",
        *(line for row in rows for line in render_markdown_row(row)),
    ]


def render_markdown_row(cells: Sequence[str]) -> list[str]:
    """A row of a Markdown table."""
    return ["| " + " | ".join(map(escape_markdown, cells)) + " |"]


def write_runs_page(
    path: Path,
    title: str,
    intro: str,
    runs: Mapping[str, RunRecords],
    samples: Mapping[str, Sequence[tuple[str, str]]],
    looked: Mapping[str, Attention],
    language: Language = "en",
) -> None:
    """Write one page for several runs."""
    body = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(intro)}</p>"]
    machine = ""
    for name, run in runs.items():
        story = RunReport(run, language)
        body += render_section(story, samples.get(name, ()), looked.get(name))
        machine = ", ".join(value for key, value in story.list_facts() if key in ("versions", "machine"))
    body.append(f'<p class="soft">{html.escape(machine)}</p>')
    write_text_file(path, render_page(title, body, language))


def write_text_file(path: Path, text: str) -> None:
    """Write a file; where that fails, an Error."""
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")  # a name may hold half a character
    except OSError as error:
        raise Error(f"cannot be written ({error.strerror})", where=path, fix=advise_on_write(error)) from None
