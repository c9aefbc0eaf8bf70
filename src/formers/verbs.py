"""What a loaded model can do: f.generate(...) is formers.generate(f, ...). The functions are defined in rooms above;
the package root attaches them, and they are imported when they are first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .config import AnyConfig, JSONObject, count_noun
from .errors import Error

if TYPE_CHECKING:
    from .family import Family
    from .model import Model

# The names of functions whose first argument is a Former.
VERBS = (
    "augment", "embed", "evaluate", "fill", "inspect", "neighbours", "classify", "score", "tag", "answer", "choose",
    "generate", "summarise", "translate",
)  # fmt: skip
METHODS = ("attention", "continue_ids", "export", "save")  # what else a loaded model does
FUNCTION_IMPORTERS: dict[str, Callable[[], Callable[..., object]]] = {}  # verb or method → imports its function


def attach_verb(name: str, import_function: Callable[[], Callable[..., object]]) -> None:
    """Say what imports the function of a verb or method."""
    if name not in VERBS and name not in METHODS:
        raise Error(f"{name!r} is neither a verb nor a method of a loaded model", fix="add it to VERBS or METHODS")
    FUNCTION_IMPORTERS[name] = import_function


def resolve_verb(name: str) -> Callable[..., object]:
    """Return the function that a verb or a method calls."""
    return FUNCTION_IMPORTERS[name]()


# Verb → the heads that answer it. Heads of a task answer its verb alone (TASKS in task.py).
GENERATIVE_HEADS = ("lm", "double")
LM_PARTS = {"lm": "lm", "double": "lm", "mlm": "mlm", "pretraining": "mlm"}  # head → the part that predicts tokens


class LoadedModel(Protocol):
    """What decides about a Former's verbs."""

    family: str
    head: str
    config: AnyConfig
    model: Model
    labels: tuple[str, ...]
    task: JSONObject
    tasks: dict[str, JSONObject]

    @property
    def definition(self) -> Family:
        """What the family's file declares."""


def list_active_tasks(former: LoadedModel) -> list[JSONObject]:
    """List the tasks that a model answers now: the selected one, else all of its mixture."""
    return [former.task] if former.task else list(former.tasks.values())


def is_pretrained_only(former: LoadedModel) -> bool:
    """Return whether a model still does what it was pretrained to: it has no task, or text was part of its mixture."""
    tasks = list_active_tasks(former)
    return not tasks or (not former.task and any(task["name"] == "lm" for task in tasks))


def can_generate(former: LoadedModel) -> bool:
    """Return whether a model continues text token by token: a decoder, an encoder-decoder, or XLNet's two streams. ELMo
    reads words as characters and has no token to continue with; BERT with a language-model head reads both ways."""
    if former.head not in GENERATIVE_HEADS or "lm" not in former.model.parts or former.definition.reads_characters:
        return False
    declared = former.definition
    return declared.is_two_stream or not declared.can_be_causal or former.config.causal


BLANK = "___"  # what a text has in place of a token that is to be filled in


def can_fill(former: LoadedModel) -> bool:
    """Return whether a model guesses hidden tokens: a masked language model."""
    return former.head in ("mlm", "pretraining")


SENTINEL_OBJECTIVES = ("span-corruption", "switch")  # pretraining that writes spans after sentinels
SPAN_OBJECTIVES = (*SENTINEL_OBJECTIVES, "denoising")  # pretraining that writes what blanks of any length hid


def can_fill_spans(former: LoadedModel) -> bool:
    """Return whether a model writes what a blank hides, of any number of tokens: an encoder-decoder that was pretrained
    to (T5, Switch, BART) and not fine-tuned to another task."""
    declared = former.definition
    is_two_sided = declared.is_encoder_decoder and former.model.body.encoder is not None
    return (
        can_generate(former) and is_two_sided and declared.objective in SPAN_OBJECTIVES and is_pretrained_only(former)
    )


def list_verbs(former: LoadedModel) -> tuple[str, ...]:
    """Return the verbs that a loaded model answers, in the order of VERBS."""
    head = former.head.split("@")[0].split("+")[0]
    known = {"embed", "inspect", "neighbours"}
    if can_generate(former):
        known |= {"generate", "translate", "summarise", "augment"}
    if can_fill(former):
        known |= {"fill", "augment"}
    if can_fill_spans(former):
        known |= {"fill"}
    if tasks := list_active_tasks(former):
        names = (str(task["name"]) for task in tasks)
        known |= {"evaluate", *({"regress": "score", "lm": "score"}.get(name, name) for name in names)}
    elif LM_PARTS.get(head) in former.model.parts:
        known |= {"score", "evaluate"}
    elif head in ("classify", "tag", "answer", "choose"):
        known |= {"score" if head == "classify" and len(former.labels) == 1 else head, "evaluate"}
    return tuple(name for name in VERBS if name in known)


def check_verb(former: LoadedModel, name: str) -> None:
    """Raise an Error that names the verbs which do work, if a model does not answer this one."""
    if name in (known := list_verbs(former)):
        return
    names = dict.fromkeys(str(task["name"]) for task in list_active_tasks(former))
    trained = f"was trained to {', '.join(names)}, and " if names else ""
    labels = f" of {count_noun(len(former.labels), 'label')}" if former.labels else ""
    what = f"this {former.family} with head {former.head!r}{labels} {trained}does not {name}"
    raise Error(what, fix=f"it can {', '.join(known)}; {VERB_HINTS.get(name, '')}".rstrip("; "))


# Verb → what to do for it.
VERB_HINTS = {
    "generate": "to continue text, load a decoder such as gpt2 with head='lm'",
    "translate": "to translate, load an encoder-decoder or a decoder with head='lm'",
    "summarise": "to summarise, load an encoder-decoder or a decoder with head='lm'",
    "fill": "to fill blanks, load a masked language model with head='mlm', or a T5 or BART with head='lm'",
    "augment": "to augment, load a masked language model (head='mlm') or a decoder (head='lm')",
    "score": "to score, load a language model (head='lm' or 'mlm'), or fine-tune with --task regress",
    "evaluate": "to evaluate, load it with the head of a language model or of a task",
    **{name: f"to {name}, run formers finetune MODEL --task {name} --train FILE"
       for name in ("classify", "tag", "answer", "choose")},
}  # fmt: skip
