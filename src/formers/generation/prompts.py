"""Tasks as prompts, for decoders that were never trained on them (Radford et al. 2019, §3; Brown et al. 2020, §2)."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Error

Examples = Sequence[tuple[str, str]]


def few_shot(
    query: str,
    examples: Examples = (),
    *,
    task: str = "",
    asks: str = "Q: ",
    answers: str = "A:",
    between: str = "\n\n",
) -> str:
    """A task, some examples with their answers, and a question to be answered: the model goes on behind it. Stop at
    what stands `between` two examples."""
    if not between:
        raise Error("nothing stands between two examples", fix="take an empty line: between='\\n\\n'")
    shots = [f"{asks}{question}\n{answers} {answer}" for question, answer in pairs(examples)]
    return between.join([*([task] if task else []), *shots, f"{asks}{query}\n{answers}"])


def translation(text: str, to: str, source: str = "English", examples: Examples = ()) -> str:
    """A translation, line by line: every example shows what is wanted. Stop at the end of the line."""
    lines = [f"{source}: {one(left)}\n{to}: {one(right)}\n" for left, right in pairs(examples)]
    task = f"Translate {source} to {to}.\n\n" if not lines else ""
    return task + "\n".join([*lines, f"{source}: {one(text)}\n{to}:"])


def summary(text: str, cue: str = "TL;DR:") -> str:
    """A text and the cue that people on the web write before a short version (Radford et al. 2019, §3.6)."""
    return f"{text.rstrip()}\n{cue}"


def question(context: str, query: str, examples: Examples = ()) -> str:
    """A text, some questions with their answers, and one more (Radford et al. 2019, §3.5)."""
    return few_shot(query, examples, task=context.strip(), between="\n")


def pairs(examples: Examples) -> list[tuple[str, str]]:
    """Examples as pairs; anything else is refused."""
    if not all(isinstance(e, tuple | list) and len(e) == 2 and all(isinstance(s, str) for s in e) for e in examples):
        raise Error("an example must be a pair of texts", fix="for example [('cheese', 'fromage')]")
    return [(left.strip(), right.strip()) for left, right in examples]


def one(text: str) -> str:
    """A text in one line."""
    return " ".join(text.split())
