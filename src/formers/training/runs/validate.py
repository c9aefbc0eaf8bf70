"""Settings that contradict each other, or would do nothing for a task and a model, are refused: none is ignored."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import Error
from ...former import Former
from ...registry import find_family
from ...task import Task
from ..config_merge import SMOOTHABLE_KINDS, FinetuneConfig

CLASS_KINDS = ("class", "many", "tags")
TEXT_LEVEL_KINDS = ("class", "many", "number", "choice")  # one answer to a whole text


def validate_settings(wanted: FinetuneConfig, task: Task) -> None:
    """Stop before anything is trained or written if a setting could not be obeyed."""
    for wrong, what, fix in (*find_contradictions(wanted), *find_unused_settings(wanted, task)):
        if wrong:
            raise Error(what, fix=fix)


def find_contradictions(wanted: FinetuneConfig) -> Iterator[tuple[bool, str, str]]:
    """(is it so, what is wrong, what to do) of settings that say two things about the same weights."""
    t, features = wanted.tune, wanted.tune.features != "no"
    both = "tune.lora learns beside layers that tune.features does not let learn"
    yield bool(t.lora and features), both, "give one of them"
    yield bool(t.lora and t.freeze), "with tune.lora all weights stay as they are already", "leave tune.freeze out"
    yield features and t.freeze > 0, "with tune.features all layers stay as they are already", "leave tune.freeze out"
    yield t.freeze < -1, f"{t.freeze} layers cannot be held still", "give a number of layers, or -1 for all of them"
    helps = "a language model's loss cannot help layers that do not learn"
    yield bool(t.lm_loss_weight and features), helps, "leave tune.lm_loss_weight or tune.features out"
    yield bool(t.vectors_frozen and t.vectors is None), "there are no vectors to hold still", "give --vectors PATH"
    scratch = features and wanted.source is None
    fix = f"pretrain it first (formers pretrain {wanted.family}), or leave tune.features out"
    yield scratch, "a model from scratch has learnt no features yet", fix


def find_unused_settings(wanted: FinetuneConfig, task: Task) -> Iterator[tuple[bool, str, str]]:
    """Yield (is given, message, remedy) for settings that this task or family ignores."""
    t, name = wanted.tune, task.name
    yield (
        t.balance and task.kind not in CLASS_KINDS,
        f"there are no classes to balance in {name}",
        "leave tune.balance out",
    )
    learnt = "several labels are" if task.kind == "many" else f"{name} is"
    yield (
        bool(t.label_smoothing) and task.kind not in SMOOTHABLE_KINDS,
        f"tune.label_smoothing has no meaning where {learnt} learnt",
        "leave it out",
    )
    cut = f"{name} reads long texts in windows, or refuses them"
    yield task.long == "cut" and task.kind in ("tags", "span"), cut, "take tune.long_texts windows or error"
    yield (
        t.label_as_text and name != "classify",
        f"tune.label_as_text writes labels, and {name} has none to write",
        "leave it out",
    )
    if t.lm_loss_weight:
        causal = find_family(wanted.family).definition.objective == "causal"
        who = f"{wanted.family} is no language model that reads from left to right"
        yield not causal, f"{who}: tune.lm_loss_weight would teach it to copy", "leave tune.lm_loss_weight out"
        yield task.kind not in TEXT_LEVEL_KINDS, f"tune.lm_loss_weight does not go with {name}", "leave it out"


def check_length(former: Former, length: int | None) -> None:
    """Refuse a length that the model's positions do not have."""
    most = former.context
    if length is not None and most is not None and length > most:
        fix = f"--tune.seq_length {most} or less; longer texts are read in windows"
        raise Error(f"this {former.family} reads {most} tokens at once, not {length}", fix=fix)
