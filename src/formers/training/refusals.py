"""Settings that contradict each other, or would do nothing for a task and a model, are refused: none is ignored."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Error
from ..former import Former
from ..registry import member
from ..tasks.task import Task
from .tuning import Wanted

CLASSES = ("class", "many", "tags")
SMOOTH = ("class", "tags", "text")
WHOLE = ("class", "many", "number", "choice")  # one answer to a whole text


def refuse(wanted: Wanted, task: Task) -> None:
    """Stop before anything is trained or written if a setting could not be obeyed."""
    for wrong, what, fix in (*contradictions(wanted), *idle(wanted, task)):
        if wrong:
            raise Error(what, fix=fix)


def contradictions(wanted: Wanted) -> Iterator[tuple[bool, str, str]]:
    """(is it so, what is wrong, what to do) of settings that say two things about the same weights."""
    t, features = wanted.tune, wanted.tune.features != "no"
    both = "tune.lora learns beside layers that tune.features does not let learn"
    yield bool(t.lora and features), both, "give one of them"
    yield bool(t.lora and t.freeze), "with tune.lora all weights stay as they are already", "leave tune.freeze out"
    yield features and t.freeze > 0, "with tune.features all layers stay as they are already", "leave tune.freeze out"
    yield t.freeze < -1, f"{t.freeze} layers cannot be held still", "give a number of layers, or -1 for all of them"
    helps = "a language model's loss cannot help layers that do not learn"
    yield bool(t.auxiliary and features), helps, "leave tune.auxiliary or tune.features out"
    yield bool(t.vectors_frozen and t.vectors is None), "there are no vectors to hold still", "give --vectors PATH"
    scratch = features and wanted.source is None
    fix = f"pretrain it first (formers pretrain {wanted.family}), or leave tune.features out"
    yield scratch, "a model from scratch has learnt no features yet", fix


def idle(wanted: Wanted, task: Task) -> Iterator[tuple[bool, str, str]]:
    """The same of settings that this task or this family has no use for."""
    t, name = wanted.tune, task.name
    yield t.balance and task.kind not in CLASSES, f"there are no classes to balance in {name}", "leave tune.balance out"
    yield (
        bool(t.smoothing) and task.kind not in SMOOTH,
        f"tune.smoothing has no meaning where {'several labels are' if task.kind == 'many' else name + ' is'} learnt",
        "leave it out",
    )
    cut = f"{name} reads long texts in windows, or refuses them"
    yield task.long == "cut" and task.kind in ("tags", "span"), cut, "take tune.long windows or error"
    yield t.text and name != "classify", f"tune.text writes labels, and {name} has none to write", "leave it out"
    if t.auxiliary:
        causal = member(wanted.family).family.objective == "causal"
        who = f"{wanted.family} is no language model that reads from left to right"
        yield not causal, f"{who}: tune.auxiliary would teach it to copy", "leave tune.auxiliary out"
        yield task.kind not in WHOLE, f"tune.auxiliary does not go with {name}", "leave it out"


def readable(former: Former, length: int | None) -> None:
    """Refuse a length that the model's positions do not have."""
    most = getattr(former.config, "context", None)
    if length is not None and most is not None and length > most:
        fix = f"--tune.length {most} or less; longer texts are read in windows"
        raise Error(f"this {former.family} reads {most} tokens at once, not {length}", fix=fix)
