"""Task: what a fine-tuned model does, as a value that is saved with it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from .config import JSONObject, build_config, check_sizes, coerce_value, suggest_name
from .errors import Error
from .family import Family, HeadTable
from .text.tokenizer import Template, Tokenizer

AnswerKind = Literal["class", "many", "number", "tags", "span", "choice", "text"]
LongTextMode = Literal["windows", "cut", "error"]
# Task → the kinds of answer it may ask for, and the head that gives them.
TASKS: dict[str, tuple[tuple[AnswerKind, ...], str]] = {
    "classify": (("class", "many"), "classify"), "regress": (("number",), "classify"), "tag": (("tags",), "tag"),
    "answer": (("span",), "answer"), "choose": (("choice",), "choose"), "translate": (("text",), "lm"),
    "summarise": (("text",), "lm"), "lm": (("text",), "lm"),
}  # fmt: skip
# Heads whose texts end with an end mark, also where the tokenizer puts none.
END_MARKED_HEADS = ("classify", "tag", "answer", "beam", "choose")
SCORE_LABEL = "score"  # the one label of a model that gives a number


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is asked, and how texts are read for it."""

    name: str = "classify"
    kind: AnswerKind = "class"
    length: int = 512  # tokens of a document; longer ones are read in windows
    long: LongTextMode = "windows"
    stride: int = 128  # tokens that two windows share at most
    takes_pairs: bool | None = None  # texts come in pairs, or alone; None: both, or nobody knows
    both_orders: bool = False  # a pair is read in both orders, and the answers are added (GPT, §3.3)
    prefix: str = ""  # before every text (T5),
    other_prefix: str = ""  # and in front of the second text of a pair that is read as one text
    source_language: str = ""  # the code that mBART reads with a text; empty: the tokenizer's own
    target_language: str = ""  # the code that it writes with one; empty: none
    label_as_text: bool = False  # the label, or a number, is written as a word by the decoder (T5),
    labels: tuple[str, ...] = ()  # one of these
    max_answer_tokens: int = 30  # tokens of an answer that is looked for in a context
    max_output_tokens: int = 128  # tokens of a text that is written
    allows_no_answer: bool = False  # a question may have no answer
    detached_marks: str | None = None  # marks that were words of their own among the tagged words; None: nobody knows
    mark_words: tuple[str, ...] = ()  # words of several marks among the tagged words: "...", ":)"
    tags_characters: bool = False  # words that get a tag are single characters (KLUE-NER)

    def __post_init__(self) -> None:
        check_sizes(self, "length", "max_answer_tokens", "max_output_tokens")
        check_sizes(self, "stride", minimum=0)
        if self.name not in TASKS:
            raise Error(f"there is no task {self.name!r}", fix=suggest_name(self.name, TASKS))
        if self.name == "regress" and self.label_as_text and not all(map(is_finite_number, self.labels or ("",))):
            raise Error("the labels of a score are not numbers", fix="correct the task's labels")

    @property
    def head(self) -> str:
        """The head that does it."""
        return "lm" if self.label_as_text else TASKS[self.name][1]

    def format_label(self, label: object) -> str:
        """Return what a decoder writes for a label; for a number, the nearest of the numbers among `labels`."""
        if self.name != "regress":
            return str(label)
        return min(self.labels, key=lambda one: abs(float(one) - float(str(label))))

    def to_dict(self) -> JSONObject:
        """Return the fields as formers.json keeps them."""
        return dataclasses.asdict(self)


def is_finite_number(text: str) -> bool:
    """Return whether a text is a number that is neither infinite nor NaN."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def read_mixture_tasks(tables: object, where: object) -> dict[str, JSONObject]:
    """Read the tasks of a mixture by their names, as a file has them; checked as every file is."""
    named: JSONObject = coerce_value(tables, dict, "tasks", where)
    tasks = {str(name): coerce_value(table, dict, f"tasks.{name}", where) for name, table in named.items()}
    return {name: build_config(Task, table, where=where).to_dict() for name, table in tasks.items()}


def find_head(heads: HeadTable, name: str) -> str:
    """Return the head of that name; where there is none, the first with such a part (GPT's choice beside an lm)."""
    return name if name in heads else next((head for head, parts in heads.items() if name in parts), name)


def list_tasks(family: Family, config: object) -> list[str]:
    """Return the tasks that a family has a head for and can learn; translating and summarising need two sides."""
    heads = family.build_heads(config)
    can = [name for name, (_, head) in TASKS.items() if find_head(heads, head) in heads]
    return can if family.is_encoder_decoder else [name for name in can if name not in ("translate", "summarise")]


def choose_length(context: int | None, most: int = 512) -> int:
    """Choose how many tokens a model reads at once: its context, or as many as is usual."""
    return min(context or most, most)


def get_frame(tokenizer: Tokenizer, pair: bool) -> Template:
    """Return the tokenizer's own template; where it has none, the end mark after each text."""
    frame, end = tokenizer.get_template(pair), tokenizer.id("eos")
    if frame.before or frame.after or end is None:
        return frame
    a, b = frame.segments[1], frame.segments[3]
    return Template((), (end,), (end,), ((), a, (a,), b, (b,)))
