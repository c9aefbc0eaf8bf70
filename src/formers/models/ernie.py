"""ERNIE (Sun et al. 2019, arXiv:1904.09223), versions 1.0 and 2.0 (arXiv:1907.12412)

Parent  bert
New     1. whole phrases and entities are hidden, in three stages   2. dialogue language model
        3. version 2.0: many tasks learned one after the other, each with an embedding of its own
Shapes  ids (N,), segments (N,), tasks (N,) → hidden (N, dim) → mlm logits (M, vocab), nsp logits (D, 2)
Differs from the reference: nothing known
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from ..config import ConfigMap, positive
from ..family import Family, Format
from ..keymap import KeyMap
from . import bert


@dataclass(frozen=True, kw_only=True)
class ERNIEConfig(bert.BERTConfig):
    """ERNIE's sizes and rates; the defaults are version 1.0."""

    vocab: int = 18000
    context: int = 513
    act: str = "relu"
    eps: float = 1e-5
    tasks: int = 3
    use_tasks: bool = False  # version 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "tasks")


class ERNIE(bert.BERT):
    """BERT, with a task beside token, position and segment."""

    def __init__(self, config: ERNIEConfig):
        super().__init__(config)
        self.embed.task = nn.Embedding(config.tasks, config.dim) if config.use_tasks else None


HF_CONFIG = ConfigMap(
    bert.ROWS | {"task_type_vocab_size": "tasks", "use_task_id": "use_tasks"},
    fixed=bert.FIXED,
    irrelevant=bert.HF_CONFIG.irrelevant,
    defaults={"vocab_size": 30522, "max_position_embeddings": 512, "hidden_act": "gelu", "layer_norm_eps": 1e-12},
)


def keys(c: ERNIEConfig, head: str) -> KeyMap:
    """BERT's names, and the tasks'."""
    return bert.keys(c, head, "ernie", bert.BODY | {"embeddings.task_type_embeddings.weight": "embed.task.weight"})


SECOND = {"vocab": 30522, "context": 512, "act": "gelu", "segments": 4, "tasks": 16, "use_tasks": True}
PRESETS: dict[str, dict[str, Any]] = {
    "ernie-1.0": {},
    "ernie-2.0-base-en": SECOND,
    "ernie-2.0-large-en": SECOND | {"dim": 1024, "layers": 24, "heads": 16, "ff": 4096},
}

FAMILY = Family(
    ERNIEConfig, ERNIE, bert.heads, pretraining="pretraining", counted="none", init=bert.init, presets=PRESETS,
    segments=True, tokenizer="wordpiece", objective="units", norm_order="post",
    hf=Format("ernie", {
        "ErnieModel": "none", "ErnieForPreTraining": "pretraining", "ErnieForMaskedLM": "mlm", "ErnieForCausalLM": "lm",
        "ErnieForNextSentencePrediction": "nsp", "ErnieForSequenceClassification": "classify",
        "ErnieForTokenClassification": "tag", "ErnieForQuestionAnswering": "answer", "ErnieForMultipleChoice": "choose",
    }, HF_CONFIG, keys),
)  # fmt: skip
