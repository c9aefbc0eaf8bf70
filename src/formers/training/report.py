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
from ..inspection.html import attention_figure, chart, page
from ..inspection.report_strings import translate
from ..registry import member
from ..text.language import Language, detect_language
from .runs import Folder, lines

Rows = list[tuple[str, str]]
NUMBER = re.compile(r"[-–−]?[\d.,]*%?|inf|nan")
ATTENTION = (
    "Attention of the {kind}: each row is a token, the darker squares are what it reads from. "
    "This shows where, not why."
)


class Story:
    """What a run's folder tells: words, numbers, curves and samples, in the language of the run's text unless another
    is asked for."""

    def __init__(self, folder: Folder, language: Language | None = None):
        self.folder, self.about = folder, folder.about()
        self.asked, self.result = self.about["asked"], self.about.get("result") or {}
        self.title = member(self.asked["family"]).card.title
        self.rows = folder.history()
        self.steps = [row for row in self.rows if "losses" in row]
        held = [(row["step"], row["held"]) for row in self.rows if "held" in row]
        self.held = [(step, seen) for step, seen in held if seen.get("loss") is not None]  # what was no number is null
        self.language: Language = language or self.result.get("language") or self.detect()

    def detect(self) -> Language:
        """The language of the samples: for a run that has not ended, or was made before its result named one."""
        return detect_language(str(sample["given"]) for sample in self.samples())

    def say(self, words: str, **values: Any) -> str:
        """Words of the report in its language."""
        return translate(words, self.language, **values)

    @property
    def part(self) -> str | None:
        """The loss of the tokens, where a model has several (NSP, SOP, the balance of experts): the unigram has that
        one alone, and the chart shows it."""
        score = self.result.get("score") or {}
        several = any(len(row["losses"]) > 1 for row in self.steps[:1])
        found = [k for k, v in score.get("all", {}).items() if v is not None and v == score.get("loss")]
        return next((k for k in found if several and all(k in row["losses"] for row in self.steps)), None)

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """Loss over steps, in training and on validation text."""
        part = self.part
        training = [(r["step"], r["losses"][part] if part else r["loss"]) for r in self.steps]
        held = [(step, seen.get(part or "loss")) for step, seen in self.held]
        return {
            self.say(name): [(float(step), float(loss)) for step, loss in line if loss is not None]
            for name, line in (("training", training), ("validation", held))
        }

    def chart(self) -> str:
        """The curves as a picture."""
        words = "{title}: loss over steps" + (" ({part})" if self.part else "")
        return chart(self.curves(), self.say(words, title=self.title, part=self.part), self.level())

    def spent(self) -> dict[str, Any]:
        """What was done so far: the last step, its tokens and seconds."""
        return self.steps[-1] if self.steps else {"step": 0, "tokens": 0, "seconds": 0.0}

    def facts(self) -> Rows:
        """The run in numbers, each with a key of the table of strings."""
        data, machine, result, last, say = (
            self.about["data"],
            self.about["machine"],
            self.result,
            self.spent(),
            self.say,
        )
        skipped = sum(bool(row.get("skipped")) for row in self.steps)
        speed = last["tokens"] / last["seconds"] if last["seconds"] else 0.0
        done = {"step": last["step"], "steps": self.asked["train"]["steps"], "best": result.get("best", "–")}
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

    def scores(self) -> list[list[str]]:
        """Validation text: what the columns are, the unigram, then the model; nothing where there is no score."""
        rows = []
        names = (self.say("unigram (token frequencies alone)"), self.say("this {title}", title=self.title))
        for name, key in zip(names, ("baseline", "score"), strict=True):
            if score := self.result.get(key):
                right = "–" if score["accuracy"] is None else f"{score['accuracy']:.1%}"
                rows.append([name, "–" if score["loss"] is None else f"{score['loss']:.2f}", right])
        head = [self.say(word) for word in ("validation text", "nats per token", "accuracy")]
        return [head, *rows] if rows and not self.sections() else []

    def others(self) -> Rows:
        """Every other number on validation text: NSP, bits per byte."""
        found = (self.result.get("score") or {}).get("all", {})
        return [(k, format_number(k, v)) for k, v in found.items() if v is not None and not self.sections()]

    def samples(self) -> list[dict[str, Any]]:
        """What the model could do at some steps."""
        return [s for s in lines(self.folder.path / "samples.jsonl") if "given" in s and "made" in s]

    def told(self) -> Rows:
        """The samples in words, each with a heading."""
        rows = []
        for sample in self.samples():
            asked = [("asked: {text}", sample["asked"])] if "asked" in sample else []
            parts = [("given: {text}", sample["given"]), *asked, ("model: {text}", sample["made"])]
            words = "\n".join(self.say(form, text=text) for form, text in parts)
            rows.append((self.say("After step {step:,}", step=sample["step"]), words))
        return rows

    def sections(self) -> list[dict[str, Any]]:
        """Tables of a fine-tuned model: measures, confusion, worst examples. What is not ours (labels, names of
        measures, texts) is not translated."""
        file = self.folder.path / "evaluation.json"
        found = json.loads(file.read_text(encoding="utf-8"))["sections"] if file.is_file() else []
        made = []
        for part in found:
            head, rows = part["head"], part["rows"]
            if head[:1] != [""]:  # the others have labels or measures in their head
                head = [self.say(word) for word in head]
            if part["title"] == "Measures":
                rows = [[self.say(row[0]), *row[1:]] for row in rows]
            made.append({"title": self.say(part["title"]), "head": head, "rows": rows})
        return made

    def level(self) -> tuple[str, float] | None:
        """The unigram's loss, to compare with: the chart shows the same loss, of the same text."""
        base = self.result.get("baseline")
        one = self.part is not None or all(len(row["losses"]) == 1 for row in self.steps[:1])
        return (self.say("unigram, validation"), base["loss"]) if base and base["loss"] is not None and one else None


def format_number(name: str, value: float, digits: int = 3) -> str:
    """A share of right guesses as per cent, a count as an integer, anything else with so many digits."""
    if name.endswith("/right"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; columns that hold numbers are set right."""
    numbers = [i > 0 and all(NUMBER.fullmatch(row[i]) for row in rows) for i in range(len(head))]
    style = [' class="num"' if number else "" for number in numbers]
    top = "".join(f"<th{s}>{html.escape(cell)}</th>" for s, cell in zip(style, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{s}>{html.escape(c)}</td>" for s, c in zip(style, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def section(story: Story, samples: Sequence[tuple[str, str]] = (), looked: Attention | None = None) -> list[str]:
    """One model: scores, curve, samples, attention."""
    last, scores = story.spent(), story.scores()
    spent = {"parameters": story.result.get("parameters", 0), "tokens": last["tokens"], "seconds": last["seconds"]}
    words = story.say("{parameters:,} parameters; {tokens:,} tokens in {seconds:.0f} s.", **spent)
    parts = [
        f"<h2>{html.escape(story.title)}</h2>",
        f'<p class="soft">{html.escape(words)}</p>',
        table(scores[0], scores[1:]) if scores else "",
        story.chart(),
    ]
    for title, text in samples:
        parts += [f"<p>{html.escape(title)}</p>", f"<blockquote>{html.escape(text)}</blockquote>"]
    if looked is not None:
        kind, weights = next(iter(looked.weights.items()))
        caption = story.say(ATTENTION, kind=story.say(kind))
        parts.append(attention_figure(looked.pieces, weights, caption, story.language))
    return parts


def report(folder: Folder, language: Language | None = None) -> Path:
    """Write report.html and report.md of a run, in the language of its text or in another; the first one's path."""
    try:
        pages = render(folder, language)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, OSError) as error:
        what = f"a file of this run is damaged ({type(error).__name__}: {error})"
        fix = "compare run.json, metrics.jsonl and evaluation.json with another run's, or train once more"
        raise Error(what, where=folder.path, fix=fix) from None
    for name, text in pages.items():
        put(folder.path / name, text)
    return folder.path / "report.html"


def render(folder: Folder, language: Language | None = None) -> dict[str, str]:
    """Make report.html and report.md of a run, by name."""
    story = Story(folder, language)
    title = f"{story.title}: {folder.path.name}"
    settings = yaml.safe_dump(story.asked, sort_keys=False, allow_unicode=True)
    facts, others = [(story.say(key), value) for key, value in story.facts()], story.others()
    body = [
        f"<h1>{html.escape(title)}</h1>", *section(story, story.told()), table(["", ""], facts),
        table([story.say("validation text"), ""], others) if others else "",
        *(f"<h2>{html.escape(s['title'])}</h2>{table(s['head'], s['rows'])}" for s in story.sections()),
        f"<h2>{story.say('Settings')}</h2><pre>{html.escape(settings)}</pre>",
    ]  # fmt: skip
    text = "\n".join(markdown(story, title, settings))
    return {"report.html": page(title, body, story.language), "report.md": text}


def markdown(story: Story, title: str, settings: str) -> list[str]:
    """The same for a terminal or a README."""
    facts = [(story.say(key), value) for key, value in story.facts()]
    lines = [f"# {escape_markdown(title)}", "", *table_of(["", ""], facts), ""]
    if scores := story.scores():
        lines += [*table_of(scores[0], scores[1:]), ""]
    lines += [f"- {escape_markdown(key)}: {value}" for key, value in story.others()]
    for part in story.sections():
        lines += ["", f"## {escape_markdown(part['title'])}", "", *table_of(part["head"], part["rows"])]
    losses = [(f"{int(step):,}", f"{loss:.4f}") for step, loss in story.curves()[story.say("validation")]]
    head = [story.say("step"), story.say("loss") + (f" ({story.part})" if story.part else "")]
    lines += ["", f"## {story.say('Validation loss')}", "", *table_of(head, losses)]
    for name, text in story.told():
        lines += ["", f"## {name}", "", *fenced(text)]
    return [*lines, "", f"## {story.say('Settings')}", "", *fenced(settings, "yaml"), ""]


def escape_markdown(text: str) -> str:
    """A text on one line that no reader of Markdown takes for HTML, or for the end of a table's cell."""
    return " ".join(html.escape(text, quote=False).replace("|", "\\|").split())


def fenced(text: str, kind: str = "") -> list[str]:
    """A text as it is, between fences longer than any in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [fence + kind, text, fence]


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [*rows_of(head), f"|{'---|' * len(head)}", *(line for row in rows for line in rows_of(row))]


def rows_of(cells: Sequence[str]) -> list[str]:
    """A row of a Markdown table."""
    return ["| " + " | ".join(map(escape_markdown, cells)) + " |"]


def write(
    path: Path,
    title: str,
    intro: str,
    runs: Mapping[str, Path],
    samples: Mapping[str, Sequence[tuple[str, str]]],
    looked: Mapping[str, Attention],
    language: Language = "en",
) -> None:
    """One page for several runs, by their folders."""
    body = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(intro)}</p>"]
    machine = ""
    for name, run in runs.items():
        story = Story(Folder(run), language)
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
