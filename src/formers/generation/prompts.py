"""Tasks as prompts, for decoders that were never trained on them (Radford et al. 2019, §3; Brown et al. 2020, §2)."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Error

FewShotExamples = Sequence[tuple[str, str]]


def make_few_shot_prompt(
    query: str,
    examples: FewShotExamples = (),
    *,
    task: str = "",
    question_prefix: str = "Q: ",
    answer_prefix: str = "A:",
    separator: str = "\n\n",
) -> str:
    """Write a prompt of a task, examples with answers, and a question; stop generation at the `separator`."""
    if not separator:
        raise Error("nothing stands between two examples", fix="take an empty line: separator='\\n\\n'")
    shots = [f"{question_prefix}{question}\n{answer_prefix} {answer}" for question, answer in check_pairs(examples)]
    return separator.join([*([task] if task else []), *shots, f"{question_prefix}{query}\n{answer_prefix}"])


def make_translation_prompt(text: str, to: str, source: str = "English", examples: FewShotExamples = ()) -> str:
    """Write a prompt for translation with examples, line by line; stop generation at the end of the line."""
    lines = [f"{source}: {to_one_line(left)}\n{to}: {to_one_line(right)}\n" for left, right in check_pairs(examples)]
    task = f"Translate {source} to {to}.\n\n" if not lines else ""
    return task + "\n".join([*lines, f"{source}: {to_one_line(text)}\n{to}:"])


def make_summary_prompt(text: str, cue: str = "TL;DR:") -> str:
    """Write a prompt for a summary: the text and the cue before summaries on the web (Radford et al. 2019, §3.6)."""
    return f"{text.rstrip()}\n{cue}"


def make_question_prompt(context: str, query: str, examples: FewShotExamples = ()) -> str:
    """Write a prompt of a text, questions with answers, and a last question (Radford et al. 2019, §3.5)."""
    return make_few_shot_prompt(query, examples, task=context.strip(), separator="\n")


def check_pairs(examples: FewShotExamples) -> list[tuple[str, str]]:
    """Return examples as stripped pairs; refuse anything else."""
    if not all(isinstance(e, tuple | list) and len(e) == 2 and all(isinstance(s, str) for s in e) for e in examples):
        raise Error("an example must be a pair of texts", fix="for example [('cheese', 'fromage')]")
    return [(left.strip(), right.strip()) for left, right in examples]


def to_one_line(text: str) -> str:
    """Put a text on one line."""
    return " ".join(text.split())
