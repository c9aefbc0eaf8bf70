"""Input transformations: how GPT-1 and BERT turn classification, entailment, similarity and multiple choice into one
sequence, on a row of one's own."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ..config import JSONValue
from ..data.encoded_examples import EncodedExamples
from ..errors import Error
from ..former import Former, build
from ..inspection.objective_steps import TokenNames
from ..registry import train_tokenizer
from ..task import Task
from ..tasks.encoding import TaskEncoder, encode_examples
from ..text.normalise import normalise
from .page import Page, render_chips

EXPLANATION = (
    ("Every task becomes one sequence of tokens, so that one pretrained model can do them all with a small head.",
     "모든 과제가 하나의 토큰 열이 되므로, 사전 학습된 모델 하나에 작은 헤드만 붙여 모두 처리할 수 있습니다."),
    ("GPT-1 puts its delimiter between two texts and answers at the last token, which has seen everything before it.",
     "GPT-1은 두 텍스트 사이에 구분 토큰을 넣고, 앞의 모든 것을 본 마지막 토큰에서 답합니다."),
    ("BERT answers at the first token and tells the two texts apart by segments as well, the letters A and B beside its tokens.",
     "BERT는 첫 토큰에서 답하고, 두 텍스트를 세그먼트로도 구분합니다. 토큰 옆의 글자 A와 B가 세그먼트입니다."),
    ("Similarity has no order: GPT-1 reads both orders and adds the two results, because it reads from left to right.",
     "유사도에는 순서가 없으므로, 왼쪽부터 읽는 GPT-1은 두 순서를 모두 읽고 결과를 더합니다."),
    ("Multiple choice is one sequence for each choice, and the scores of all choices go through one softmax.",
     "객관식은 선택지마다 하나의 열을 만들고, 모든 선택지의 점수에 소프트맥스를 함께 적용합니다."),
)  # fmt: skip
ROWS = {
    "en": (
        "The court upheld the law | The law was struck down",
        "The law stays in force | The law is gone | The court has no power",
    ),
    "ko": (
        "법원은 그 법률이 유효하다고 보았다 | 그 법률은 효력을 잃었다",
        "법률은 그대로 시행된다 | 법률이 폐지되었다 | 법원에는 권한이 없다",
    ),
}
# What each task asks, and how many texts of the row it reads.
TASK_TITLES = {
    "classify": ("classification", "분류"), "entail": ("entailment", "함의"), "similar": ("similarity", "유사도"),
    "choose": ("multiple choice", "객관식"),
}  # fmt: skip
VOCAB_SIZE, TOKENIZER_CHARACTERS = 1500, 80_000
MARKS = ("on", "", "on", "warm", "on")  # before, first text, between, second text, after


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment. --text is a row: two texts with | between them.

    Attributes:
        choices: The choices of a question about the first text, with | between them.
    """

    choices: str | None = None


@dataclass(frozen=True)
class TokenSequence:
    """One sequence that the model reads: its tokens, each with the part of the frame that it belongs to, and with its
    segment where the model has segments."""

    ids: list[int]
    parts: list[int]
    segments: str


def build_reader(page: Page, family: str, texts: list[str]) -> Former:
    """Build a small model with a tokenizer that knows the texts and some of the page's training text."""
    lines = [*texts * 3, *page.load_documents(TOKENIZER_CHARACTERS)[0]]
    letters = {letter for line in lines for letter in line}
    tokenizer = train_tokenizer(family, lines, max(VOCAB_SIZE, 3 * len(letters)))
    former = build(family, head="none", vocab=len(tokenizer), dim=32, layers=1, heads=2, context=128)
    former.tokenizer = tokenizer
    return former


def encode_task(former: Former, task_name: str, texts: list[str], choices: list[str]) -> EncodedExamples:
    """Encode the row for a task, by the functions that fine-tuning uses."""
    is_gpt = not former.can_read_segments
    row: dict[str, JSONValue] = {"text": texts[0], "other": None if task_name == "classify" else texts[1]}
    task = Task(name="classify", both_orders=task_name == "similar" and is_gpt, length=128)
    if task_name == "choose":
        task = Task(name="choose", kind="choice", length=128)
        row = {"text": texts[0], "choices": list(choices), "other": None}
    return encode_examples(task, [row], TaskEncoder.from_former(former, task))


def list_sequences(former: Former, data: EncodedExamples) -> list[TokenSequence]:
    """List the sequences of an encoded row; a token's part is found by the special tokens around it."""
    assert former.tokenizer is not None
    special, sequences = TokenNames(former.tokenizer).special, []
    starts = np.asarray(data.starts).tolist()
    for low, high in itertools.pairwise(starts):
        ids, parts, part = np.asarray(data.ids[low:high]).tolist(), [], 0
        for i, token in enumerate(ids):
            if token in special:
                part = 0 if i == 0 else part + (part % 2)
                parts.append(part)
            else:
                part = part + 1 if part % 2 == 0 else part
                parts.append(part)
        segments = () if data.segments is None else np.asarray(data.segments[low:high]).tolist()
        sequences.append(TokenSequence(ids, parts, "".join("AB"[segment] for segment in segments)))
    return sequences


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Show the sequences of every task for GPT-1 and BERT."""
    local = page.localise
    texts = [normalise(t).strip() for t in page.choose_text(*(ROWS[name][0] for name in ("en", "ko"))).split("|")]
    choices = [normalise(t).strip() for t in (settings.choices or ROWS[page.language][1]).split("|")]
    if len(texts) != 2 or not all(texts) or len(choices) < 2 or not all(choices):
        raise Error("a row has two texts, and a question two choices or more", fix='--text "one text | another"')
    page.add_note(local("Special tokens are blue, the second text or the choice is orange.",
                        "특수 토큰은 파란색, 두 번째 텍스트나 선택지는 주황색입니다."))  # fmt: skip
    rows, counts = [], {}
    for family in ("gpt", "bert"):
        page.tell("tokenizer", 0, 1, family)
        former = build_reader(page, family, [*texts, *choices])
        assert former.tokenizer is not None
        names = TokenNames(former.tokenizer)
        page.add_heading("GPT-1" if family == "gpt" else "BERT")
        for task, titles in TASK_TITLES.items():
            sequences = list_sequences(former, encode_task(former, task, texts, choices))
            counts[f"{family} {task}"] = len(sequences)
            page.add_subheading(local(*titles))
            page.body += [
                render_chips(
                    list(zip(names.name_all(one.ids), (MARKS[min(p, 4)] for p in one.parts), strict=True)), one.segments
                )
                for one in sequences
            ]
            reads = local("the last token", "마지막 토큰") if family == "gpt" else local("the first token", "첫 토큰")
            rows.append(
                (
                    "GPT-1" if family == "gpt" else "BERT",
                    local(*titles),
                    len(sequences),
                    sum(len(one.ids) for one in sequences),
                    reads,
                )
            )
    head = (
        local("model", "모델"),
        local("task", "과제"),
        local("sequences", "토큰 열 수"),
        local("tokens", "토큰 수"),
        local("answers at", "답하는 곳"),
    )
    page.add_table(local("All tasks", "모든 과제"), head, rows)
    return {name: float(count) for name, count in counts.items()}
