"""ERNIE (Sun et al. 2019, arXiv:1904.09223), versions 1.0 and 2.0 (arXiv:1907.12412)

Parent  bert
New     1. whole phrases and entities are masked, in three stages   2. a dialogue language model
        3. version 2.0: continual pretraining on many tasks, each with a task embedding
Korean  구와 개체를 통째로 가리며 세 단계로 학습합니다. 대화 언어 모델도 학습합니다. 2.0은 과제마다 임베딩을 두고 여러
        과제를 차례로 더해 학습합니다.
Shapes  ids (N,), segments (N,), tasks (N,) → hidden (N, dim) → mlm logits (M, vocab), nsp logits (D, 2)
Differs from the reference: no known differences
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from ..config import ConfigMap, check_sizes
from ..family import OURS, CheckpointFormat, CitedSettings, Family, Head, PaperRecipe, Presets, cite_batch
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
        check_sizes(self, "tasks")


# The classes of the tasks of version 2.0, as objectives/continual.py asks for them.
TOKEN_TASK_CLASSES = {"capital": 2, "document": 2}
TEXT_TASK_CLASSES = {"reorder": 8, "distance": 3, "discourse": 8, "relevance": 3}


class ERNIE(bert.BERT):
    """BERT, with a task beside token, position and segment."""

    def __init__(self, config: ERNIEConfig):
        super().__init__(config)
        self.embed.task = nn.Embedding(config.tasks, config.dim) if config.use_tasks else None


def build_heads(c: ERNIEConfig) -> dict[str, dict[str, Head]]:
    """Build BERT's heads, and that of continual pretraining: a part for each task (objectives/continual.py)."""
    heads = bert.build_heads(c)
    mlm, pooled = heads["mlm"]["mlm"], heads["nsp"]["nsp"]
    tokens = {name: Head(out=count) for name, count in TOKEN_TASK_CLASSES.items()}
    texts = {name: replace(pooled, out=count) for name, count in TEXT_TASK_CLASSES.items()}
    return {**heads, "multitask": {"mlm": mlm, **tokens, **texts}}


HF_CONFIG = ConfigMap(
    bert.CONFIG_ROWS | {"task_type_vocab_size": "tasks", "use_task_id": "use_tasks"},
    fixed_values=bert.FIXED_CONFIG,
    irrelevant_keys=bert.HF_CONFIG.irrelevant_keys,
    defaults={"vocab_size": 30522, "max_position_embeddings": 512, "hidden_act": "gelu", "layer_norm_eps": 1e-12},
)


def build_key_map(c: ERNIEConfig, head: str) -> KeyMap:
    """Map BERT's names, and the task embeddings'."""
    body = bert.BODY_KEYS | {"embeddings.task_type_embeddings.weight": "embed.task.weight"}
    return bert.build_key_map(c, head, "ernie", body)


ERNIE_2 = {"vocab": 30522, "context": 512, "act": "gelu", "segments": 4, "tasks": 16, "use_tasks": True}
PRESETS: Presets = {
    "ernie-1.0": {},
    "ernie-2.0-base-en": ERNIE_2,
    "ernie-2.0-large-en": ERNIE_2 | {"dim": 1024, "layers": 24, "heads": 16, "ff": 4096},
}

PAPER_2: CitedSettings = {  # ERNIE 2.0, Sun et al. 2019 (arXiv:1907.12412)
    "objective.name": ("continual", "arXiv:1907.12412, Pre-training Tasks; some of them made otherwise"),
    "train.lr": (5e-5, "arXiv:1907.12412, Pre-training Settings: English"),
    "train.betas": ((0.9, 0.98), "arXiv:1907.12412, Pre-training Settings"),
    "train.schedule": ("inverse_sqrt", "arXiv:1907.12412, Pre-training Settings: noam"),
    "train.warmup_steps": (4_000, "arXiv:1907.12412, Pre-training Settings"),
    "train.steps": (1_000_000, OURS),
    **cite_batch(768, 512, "arXiv:1907.12412, Pre-training Settings: 393,216 tokens"),
    "data.vocab_size": (30_522, "published vocab.txt of ernie-2.0-base-en"),
}
PAPER = PaperRecipe(
    {
        "objective.name": ("ernie-units", "§3.2"),
        "objective.mask_rate": (0.15, "§3.2.1"),
        "train.optimizer": ("adamw", "released optimization.py: Adam, then decay by rate and weight"),
        "train.lr": (1e-4, "released script/zh_task/pretrain.sh"),
        "train.betas": ((0.9, 0.999), "released optimization.py: the defaults of Paddle"),
        "train.eps": (1e-8, "released optimization.py: the defaults of Paddle"),
        "train.weight_decay": (0.01, "released script/zh_task/pretrain.sh"),
        "train.schedule": ("linear", "released ERNIE/pretrain_args.py: linear_warmup_decay"),
        "train.warmup_steps": (5_000, "released ERNIE/pretrain_args.py"),
        "train.steps": (1_000_000, "released script/zh_task/pretrain.sh"),
        **cite_batch(128, 512, "released script/zh_task/pretrain.sh: 8,192 tokens on each of 8 GPUs"),
        "train.grad_clip": (1.0, "released optimization.py"),
        "model.dropout": (0.1, "published ernie_config.json"),
        "model.attention_dropout": (0.1, "published ernie_config.json"),
        "data.vocab_size": (18_000, "published ernie_config.json"),
    },
    {"ernie-2.0-base-en": PAPER_2, "ernie-2.0-large-en": PAPER_2},
)

FAMILY = Family(
    ERNIEConfig, ERNIE, build_heads, pretraining_head="pretraining", counted_head="none", presets=PRESETS,
    reads_segments=True, can_be_causal=True, reads_tasks=True, tokenizer="wordpiece",
    tokenizer_style=bert.FAMILY.tokenizer_style, objective="ernie-units",
    shown_objectives=("unit-pairs", "dialogue", "continual"), norm_order="post",
    quick_recipe=bert.FAMILY.quick_recipe,
    paper_recipe=PAPER,
    hub_checkpoints=tuple(
        f"nghuyong/ernie-{name}" for name in ("1.0-base-zh", "2.0-base-en", "2.0-large-en", "3.0-base-zh")
    ),
    hf_format=CheckpointFormat("ernie", {
        "ErnieModel": "none", "ErnieForPreTraining": "pretraining", "ErnieForMaskedLM": "mlm", "ErnieForCausalLM": "lm",
        "ErnieForNextSentencePrediction": "nsp", "ErnieForSequenceClassification": "classify",
        "ErnieForTokenClassification": "tag", "ErnieForQuestionAnswering": "answer", "ErnieForMultipleChoice": "choose",
    }, HF_CONFIG, build_key_map),
)  # fmt: skip
