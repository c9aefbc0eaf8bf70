"""Small models with tokenizers, and clients of a server around them."""

from __future__ import annotations

from starlette.testclient import TestClient

import formers
from formers import registry
from formers.serving.app import build_app
from formers.serving.settings import ServerLimits, ServerSettings

LINES = [
    "the cat sat on the mat and the dog ran",
    "a bird sang in the tree , then it flew away .",
    "고양이가 앉았다",
] * 4
SIZES = {"dim": 16, "layers": 2, "heads": 2, "context": 64, "init": 0.4}


def build_small(family: str, head: str, **more) -> formers.Former:
    """A small model with a tokenizer of its family's kind."""
    tokenizer = registry.train_tokenizer(family, LINES, 300)
    roles = {role: tokenizer.id(role) for role in ("pad", "bos", "eos") if tokenizer.id(role) is not None}
    known = registry.find_family(family).definition.config_class.__dataclass_fields__
    sizes = {name: value for name, value in {**SIZES, **roles, **more}.items() if name in known or name == "labels"}
    former = formers.build(family, head=head, vocab=len(tokenizer), seed=3, **sizes)
    former.tokenizer = tokenizer
    return former


def build_models() -> dict[str, formers.Former]:
    """One model for each thing that the server does."""
    return {
        "gpt2": build_small("gpt2", "lm"), "bert": build_small("bert", "mlm"), "bart": build_small("bart", "lm"),
        "classifier": build_small("bert", "classify", labels=["bad", "good"]),
        "ranker": build_small("bert", "classify", labels=["relevance"]),
        "tagger": build_small("bert", "tag", labels=["O", "B-PER", "I-PER"]),
        "answerer": build_small("bert", "answer"),
        "entailment": build_small("bert", "classify", labels=["contradiction", "neutral", "entailment"]),
    }  # fmt: skip


def open_client(models, names=None, *, settings=None, **limits) -> TestClient:
    """A client of a server around models; use it as a context manager."""
    settings = settings or ServerSettings(limits=ServerLimits(**limits))
    app = build_app([f"{name}={name}" for name in names or models], models.__getitem__, settings)
    return TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
