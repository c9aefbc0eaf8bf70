"""formers: the whole family of pretrained language models in one library.

import formers
f = formers.load("path/to/model")            # a formers or a Hugging Face directory, or "hub:owner/name"
f.logits(ids)"""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from .errors import Error, NonFinite
from .option_aliases import VERB_SYNONYMS
from .verbs import METHODS, VERBS, attach_verb

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .comparison.api import compare
    from .data.store import Store
    from .evaluation.api import evaluate, score
    from .former import Former, build, tree
    from .generation.api import generate
    from .generation.augment import augment
    from .generation.fill import fill
    from .generation.translate import summarise, translate
    from .inspection.api import inspect
    from .inspection.embed import embed, neighbours
    from .interop.model_directory import export, load, save
    from .interop.tokenizer_files import prepare
    from .tasks.api import answer, choose, classify, tag
    from .training.runs.finetune import finetune
    from .training.runs.pretrain import pretrain

# Names that need torch are imported when they are first used, so that the command line answers at once.
_LAZY_IMPORTS = {
    "Former": "former", "build": "former", "tree": "former", "prepare": "interop.tokenizer_files",
    "pretrain": "training.runs.pretrain", "finetune": "training.runs.finetune", "Store": "data.store",
    "load": "interop.model_directory", "save": "interop.model_directory", "export": "interop.model_directory",
    "augment": "generation.augment", "embed": "inspection.embed", "evaluate": "evaluation.api",
    "fill": "generation.fill", "inspect": "inspection.api", "neighbours": "inspection.embed", "classify": "tasks.api",
    "score": "evaluation.api", "tag": "tasks.api", "answer": "tasks.api", "choose": "tasks.api",
    "compare": "comparison.api", "generate": "generation.api",
    "summarise": "generation.translate", "translate": "generation.translate",
}  # fmt: skip
_METHOD_IMPORTS = {"attention": "inspection.attention", "continue_ids": "generation.decoding"}  # of a Former alone


def _import_name(name: str) -> Any:  # dynamic: public names, imported when they are used
    module = importlib.import_module(f"formers.{(_LAZY_IMPORTS | _METHOD_IMPORTS)[name]}")
    return getattr(module, name)  # dynamic: the table of public names says which


for _name in (*VERBS, *METHODS):  # this file stands above all rooms: a Former, far below, finds its verbs by it
    attach_verb(_name, partial(_import_name, _name))


def __getattr__(name: str) -> Any:  # dynamic: public names, imported when they are used
    name = VERB_SYNONYMS.get(name, name)
    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module 'formers' has no attribute {name!r}")
    return _import_name(name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Error", "Former", "NonFinite", "Store", "__version__", "answer", "augment", "build", "choose", "classify",
    "compare", "embed", "evaluate", "export", "fill", "finetune", "generate", "inspect", "load", "neighbours",
    "prepare", "pretrain", "save", "score", "summarise", "tag", "translate", "tree",
]  # fmt: skip
