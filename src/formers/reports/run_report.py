"""Reports of one run, or of several on one page: self-contained HTML, and Markdown."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from ..config import JSONObject
from ..errors import Error, advise_on_write
from ..protocols import AttentionWeights, RunRecords
from ..registry import find_family
from ..text.normalise import Language, detect_language
from .html import draw_attention, draw_chart, render_page
from .translations import translate_report

LabelledRows = list[tuple[str, str]]
NUMBER_PATTERN = re.compile(r"(?:< )?[-+–−]?[\d.,]*(e[-+]?\d+)?%?|inf|nan")
ATTENTION_CAPTION = (
    "Attention of the {kind}: each row is a token, the darker squares are what it reads from. "
    "This shows where, not why."
)


class RunReport:
    """The words, numbers, curves and samples of a run, in the language of its text unless another is asked for."""

    def __init__(self, run: RunRecords, language: Language | None = None):
        self.run, self.run_info = run, run.read_info()
        self.settings, self.result = self.run_info["config"], self.run_info.get("result") or {}
        self.title = find_family(self.settings["family"]).card.title
        self.history = run.read_history()
        self.step_rows = [row for row in self.history if "losses" in row]
        valid_rows = [(row["step"], row["valid"]) for row in self.history if "valid" in row]
        # What was not finite is null.
        self.valid_losses = [(step, seen) for step, seen in valid_rows if seen.get("loss") is not None]
        self.samples = run.read_samples()
        prompts = (str(sample["given"]) for sample in self.samples)
        self.language: Language = language or self.result.get("language") or detect_language(prompts)

    def localise(self, words: str, **values: object) -> str:
        """Translate words of the report into its language."""
        return translate_report(words, self.language, **values)

    @property
    def loss_name(self) -> str | None:
        """The name of the token loss, where there are several losses (NSP, SOP, expert balance): the chart shows it,
        because the unigram baseline has no other."""
        score = self.result.get("score") or {}
        several = any(len(row["losses"]) > 1 for row in self.step_rows[:1])
        names = [k for k, v in score.get("metrics", {}).items() if v is not None and v == score.get("loss")]
        return next((k for k in names if several and all(k in row["losses"] for row in self.step_rows)), None)

    def get_curves(self) -> dict[str, list[tuple[float, float]]]:
        """Return the loss over steps, in training and in validation."""
        part = self.loss_name
        training = [(r["step"], r["losses"][part] if part else r["loss"]) for r in self.step_rows]
        valid_rows = [(step, seen.get(part or "loss")) for step, seen in self.valid_losses]
        return {
            self.localise(name): [(float(step), float(loss)) for step, loss in line if loss is not None]
            for name, line in (("training", training), ("validation", valid_rows))
        }

    def render_chart(self) -> str:
        """Draw the curves as SVG."""
        words = "{title}: loss over steps" + (" ({part})" if self.loss_name else "")
        caption = self.localise(words, title=self.title, part=self.loss_name)
        return draw_chart(self.get_curves(), caption, self.get_unigram_level())

    def get_last_step(self) -> JSONObject:
        """Return the row of the last step: step, tokens and seconds."""
        return self.step_rows[-1] if self.step_rows else {"step": 0, "tokens": 0, "seconds": 0.0}

    def list_facts(self) -> LabelledRows:
        """List the facts of the run, each with its key for translation."""
        data, machine, result = self.run_info["data"], self.run_info["machine"], self.result
        last, say = self.get_last_step(), self.localise
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
            ("tokenizer", data["tokenizer"] or say("none: the model reads characters")),
            ("store", data["store"]),
        ]  # fmt: skip
        if stuck := result.get("stuck_parts"):
            rows.insert(3, ("note", " ".join(say(str(form), **values) for form, values in stuck)))
        if result.get("memory"):
            rows.insert(4, ("peak memory", f"{result['memory'] / 2**30:.2f} GiB"))
        if result.get("mfu"):
            rows.insert(4, ("of the machine's peak", f"{result['mfu']:.0%}"))
        return [*rows, ("steps left out", f"{skipped}")] if skipped else rows

    def build_score_table(self) -> list[list[str]]:
        """Build the table of validation scores: head, unigram, model; empty without a score."""
        rows = []
        names = (self.localise("unigram (token frequencies alone)"), self.localise("this {title}", title=self.title))
        for name, key in zip(names, ("baseline", "score"), strict=True):
            if score := self.result.get(key):
                right = "–" if score["accuracy"] is None else f"{score['accuracy']:.1%}"
                rows.append([name, "–" if score["loss"] is None else f"{score['loss']:.2f}", right])
        head = [self.localise(word) for word in ("validation text", "loss", "accuracy")]
        return [head, *rows] if rows and not self.read_sections() else []

    def list_other_metrics(self) -> LabelledRows:
        """List the other validation metrics: NSP, bits per byte."""
        metrics = (self.result.get("score") or {}).get("metrics", {})
        return [(k, format_number(k, v)) for k, v in metrics.items() if v is not None and not self.read_sections()]

    def format_samples(self) -> LabelledRows:
        """Format the samples, each with a heading."""
        rows = []
        for sample in self.samples:
            question = [("target: {text}", sample["target"])] if "target" in sample else []
            parts = [("given: {text}", sample["given"]), *question, ("model: {text}", sample["made"])]
            words = "\n".join(self.localise(form, text=text) for form, text in parts)
            rows.append((self.localise("After step {step:,}", step=sample["step"]), words))
        return rows

    def read_sections(self) -> list[JSONObject]:
        """Read the tables of a fine-tuned model: metrics, confusion matrix, worst examples. Labels, metric names and
        texts are not translated."""
        file = self.run.path / "evaluation.json"
        tables = json.loads(file.read_text(encoding="utf-8"))["sections"] if file.is_file() else []
        sections = []
        for part in tables:
            head, rows = part["head"], part["rows"]
            if head[:1] != [""]:  # the others have labels or measures in their head
                head = [self.localise(word) for word in head]
            if part["title"] == "Metrics":
                rows = [[self.localise(row[0]), *row[1:]] for row in rows]
            sections.append({"title": self.localise(part["title"]), "head": head, "rows": rows})
        return sections

    def get_unigram_level(self) -> tuple[str, float] | None:
        """Return the unigram's label and loss for the chart, None where the chart shows another loss."""
        loss = (self.result.get("baseline") or {}).get("loss")
        one = self.loss_name is not None or all(len(row["losses"]) == 1 for row in self.step_rows[:1])
        return (self.localise("unigram, validation"), loss) if loss is not None and one else None


def format_number(name: str, value: float, digits: int = 3) -> str:
    """Format an accuracy as per cent, a count as an integer, anything else with `digits` digits."""
    if name.endswith("/accuracy"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def render_html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a table as HTML; columns of numbers are right-aligned."""
    numbers = [i > 0 and all(NUMBER_PATTERN.fullmatch(row[i]) for row in rows) for i in range(len(head))]
    style = [' class="num"' if number else "" for number in numbers]
    top = "".join(f"<th{s}>{html.escape(cell)}</th>" for s, cell in zip(style, head, strict=True))
    cells = ("".join(f"<td{s}>{html.escape(c)}</td>" for s, c in zip(style, row, strict=True)) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><tr>{top}</tr>{body}</table>"


def render_section(
    report: RunReport, samples: Sequence[tuple[str, str]] = (), attention: AttentionWeights | None = None
) -> list[str]:
    """Render one model: scores, curve, samples, attention."""
    last, scores = report.get_last_step(), report.build_score_table()
    spent = {"parameters": report.result.get("parameters", 0), "tokens": last["tokens"], "seconds": last["seconds"]}
    words = report.localise("{parameters:,} parameters; {tokens:,} tokens in {seconds:.0f} s.", **spent)
    parts = [
        f"<h2>{html.escape(report.title)}</h2>", f'<p class="soft">{html.escape(words)}</p>',
        render_html_table(scores[0], scores[1:]) if scores else "", report.render_chart(),
    ]  # fmt: skip
    for title, text in samples:
        parts += [f"<p>{html.escape(title)}</p>", f"<blockquote>{html.escape(text)}</blockquote>"]
    if attention is not None:
        kind, weights = next(iter(attention.weights.items()))
        caption = report.localise(ATTENTION_CAPTION, kind=report.localise(kind))
        parts.append(draw_attention(attention.tokens, weights, caption, report.language))
    return parts


def write_report(run: RunRecords, language: Language | None = None) -> Path:
    """Write report.html and report.md into the run's folder; returns the path of the first."""
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
    """Render report.html and report.md of a run; returns them by name."""
    report = RunReport(run, language)
    title = f"{report.title}: {run.path.name}"
    settings = yaml.safe_dump(report.settings, sort_keys=False, allow_unicode=True)
    facts, others = [(report.localise(key), value) for key, value in report.list_facts()], report.list_other_metrics()
    body = [
        f"<h1>{html.escape(title)}</h1>", *render_section(report, report.format_samples()),
        render_html_table(["", ""], facts),
        render_html_table([report.localise("validation text"), ""], others) if others else "",
        *(f"<h2>{html.escape(s['title'])}</h2>{render_html_table(s['head'], s['rows'])}"
          for s in report.read_sections()),
        f"<h2>{report.localise('Settings')}</h2><pre>{html.escape(settings)}</pre>",
    ]  # fmt: skip
    text = "\n".join(render_markdown(report, title, settings))
    return {"report.html": render_page(title, body, report.language), "report.md": text}


def render_markdown(report: RunReport, title: str, settings: str) -> list[str]:
    """Render the report as Markdown, for a terminal or a README."""
    facts = [(report.localise(key), value) for key, value in report.list_facts()]
    lines = [f"# {escape_markdown(title)}", "", *render_markdown_table(["", ""], facts), ""]
    if scores := report.build_score_table():
        lines += [*render_markdown_table(scores[0], scores[1:]), ""]
    lines += [f"- {escape_markdown(key)}: {value}" for key, value in report.list_other_metrics()]
    for part in report.read_sections():
        lines += ["", f"## {escape_markdown(part['title'])}", "", *render_markdown_table(part["head"], part["rows"])]
    losses = [(f"{int(step):,}", f"{loss:.4f}") for step, loss in report.get_curves()[report.localise("validation")]]
    head = [report.localise("step"), report.localise("loss") + (f" ({report.loss_name})" if report.loss_name else "")]
    lines += ["", f"## {report.localise('Validation loss')}", "", *render_markdown_table(head, losses)]
    for name, text in report.format_samples():
        lines += ["", f"## {name}", "", *fence_text(text)]
    return [*lines, "", f"## {report.localise('Settings')}", "", *fence_text(settings, "yaml"), ""]


def escape_markdown(text: str) -> str:
    """Escape a text for a Markdown table cell: on one line, without HTML or cell borders."""
    return " ".join(html.escape(text, quote=False).replace("|", "\\|").split())


def fence_text(text: str, kind: str = "") -> list[str]:
    """Put a text between code fences longer than any in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [fence + kind, text, fence]


def render_markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Render a Markdown table."""
    top, *lines = (f"| {' | '.join(map(escape_markdown, cells))} |" for cells in (head, *rows))
    return [top, f"|{'---|' * len(head)}", *lines]


def write_runs_page(
    path: Path, title: str, intro: str, runs: Mapping[str, RunRecords],
    samples: Mapping[str, Sequence[tuple[str, str]]], attention: Mapping[str, AttentionWeights],
    language: Language = "en",
) -> None:  # fmt: skip
    """Write one page for several runs."""
    body = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(intro)}</p>"]
    machine = ""
    for name, run in runs.items():
        report = RunReport(run, language)
        body += render_section(report, samples.get(name, ()), attention.get(name))
        machine = ", ".join(value for key, value in report.list_facts() if key in ("versions", "machine"))
    body.append(f'<p class="soft">{html.escape(machine)}</p>')
    write_text_file(path, render_page(title, body, language))


def write_text_file(path: Path, text: str) -> None:
    """Write a text file; raises an Error if that fails."""
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")  # a name may hold half a character
    except OSError as error:
        raise Error(f"cannot be written ({error.strerror})", where=path, fix=advise_on_write(error)) from None
