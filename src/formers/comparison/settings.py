"""What a comparison is asked to do, and what it makes of each family by the facts that its file declares."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..config import JSONObject, Settings, build_config, check_sizes, coerce_value, get_schema, suggest_name
from ..errors import Error
from ..objectives.causal import CausalLM
from ..objectives.masking import UnitMaskedLM
from ..objectives.registry import OBJECTIVES
from ..registry import FAMILIES, find_family
from ..verbs import LM_PARTS

NAME_PATTERN = re.compile(r"[\w.+-]+")  # of tasks and budgets: they are parts of file names
TABLE_FIELDS = ("tasks", "pairs", "train", "tune")
ModelKind = Literal["causal", "masked", "encoder-decoder", "other"]


@dataclass(frozen=True)
class Budget:
    """How long a model is pretrained: a number of passes over the text, or a number of operations. Those of a `family`
    are what it takes for the first budget of epochs."""

    kind: Literal["epochs", "flops"]
    amount: float = 0.0
    family: str | None = None

    @staticmethod
    def parse(words: str) -> Budget:
        """Read epochs:10, flops:2e17 or flops:bert."""
        kind, _, amount = words.partition(":")
        fix = "write epochs:10, flops:2e17, or flops:bert for the operations of a family's epochs"
        if kind == "flops" and amount in FAMILIES:
            return Budget("flops", family=amount)
        try:
            value = float(amount)
        except ValueError:
            value = 0.0
        if kind not in ("epochs", "flops") or not 0 < value < float("inf"):
            raise Error(f"{words!r} is not a budget", fix=fix)
        return Budget("flops" if kind == "flops" else "epochs", value)

    @property
    def name(self) -> str:
        """The budget as a part of file names, such as epochs-10."""
        return f"{self.kind}-{self.family or f'{self.amount:g}'}"


@dataclass(frozen=True)
class TaskSource:
    """The examples of a task, in files."""

    train: str
    valid: str | None = None
    test: str | None = None


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """All that a comparison is asked to do. Families, tasks, budgets and seeds may be added later."""

    families: tuple[str, ...]
    tasks: Mapping[str, TaskSource] = field(default_factory=dict)
    pairs: Mapping[str, str] = field(default_factory=dict)  # name → file of good and bad sentences
    budgets: tuple[str, ...] = ("epochs:10",)
    words: int | None = None  # of the training text; None: all
    body_size: int = 1_000_000  # parameters of the body, as if nothing were shared and a layer had one expert
    tolerance: float = 0.05  # how far a body may be from that size
    layers: int = 4  # of an encoder-decoder: both sides together
    seq_length: int = 64  # tokens of an example
    batch_tokens: int = 2048
    vocab_size: int = 4000  # pieces of the common tokenizer, without a family's special tokens
    lr_factors: tuple[float, ...] = (0.5, 1.0, 2.0)  # learning rates that are tried, as multiples of the recipe's
    search_share: float = 0.1  # of the steps of the first budget that a trial takes
    seeds: int = 1
    headline: tuple[str, ...] = ()  # families that are run with more seeds,
    headline_seeds: int = 3  # seeds of each of them
    tune_epochs: float = 3.0
    tune_search_epochs: float = 1.0  # of a trial
    tune_limit: int | None = None  # training examples of each task
    tune_batch_size: int = 32
    score_characters: int = 200_000  # of the test text that bits per byte are measured on
    masked_characters: int = 20_000  # of it that masked models are asked for, token by token
    max_minutes: float | None = None  # training time of one pretraining run
    measure_speed: bool = True  # each family alone on the machine
    train: Settings = field(default_factory=dict)  # settings of every pretraining run
    tune: Settings = field(default_factory=dict)  # settings of every fine-tuning run

    def __post_init__(self) -> None:
        check_sizes(self, "words", "body_size", "layers", "seq_length", "batch_tokens", "vocab_size", "seeds")
        check_sizes(self, "headline_seeds", "tune_limit", "tune_batch_size", "score_characters", "masked_characters")
        for name in (*self.tasks, *self.pairs):
            if not NAME_PATTERN.fullmatch(name):
                raise Error(f"{name!r} cannot name a task", fix="letters, digits, - and _ only")
        if not self.families:
            raise Error("no family is named", fix="formers compare bert gpt2 …; formers tree lists them")
        for name in (*self.families, *self.headline):
            check_family(name)
        if len({budget.name for budget in self.parsed_budgets}) < len(self.budgets) or not self.budgets:
            raise Error("a comparison has one budget or several different ones", fix="--budget epochs:10")
        if not self.lr_factors or any(not factor > 0 for factor in self.lr_factors):
            raise Error("learning rates are tried as multiples above 0", fix="--lr-factors 0.5 1 2")
        if not 0 < self.search_share <= 1:
            raise Error(f"a trial takes a share of the steps, not {self.search_share}", fix="--search-share 0.1")
        if self.max_minutes is not None and not (self.max_minutes > 0 and self.measure_speed):
            what = "a limit in minutes becomes one in steps by the measured speed"
            raise Error(what, fix="--max-minutes 5, without --no-measure-speed")
        named = [budget.family for budget in self.parsed_budgets if budget.family is not None]
        if named and (named[0] not in self.families or self.parsed_budgets[0].kind != "epochs"):
            what = f"the operations of {named[0]} are those of its epochs"
            raise Error(what, fix=f"--budget epochs:10 --budget flops:{named[0]}, with {named[0]} among the families")

    @property
    def parsed_budgets(self) -> list[Budget]:
        """The budgets in their order."""
        return [Budget.parse(words) for words in self.budgets]

    def count_seeds(self, family: str) -> int:
        """Return with how many seeds a family is run."""
        return max(self.seeds, self.headline_seeds) if family in self.headline else self.seeds

    def to_dict(self) -> JSONObject:
        """Return the settings as comparison.json has them."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Settings) -> CompareConfig:
        """Read what `to_dict` wrote, or what a caller gives."""
        known = get_schema(CompareConfig)
        for key in values:
            if key not in known:
                raise Error(f"a comparison has no setting {key!r}", fix=suggest_name(key, known))
        tables: Settings = {name: values.get(name) or {} for name in TABLE_FIELDS}
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise Error(f"{name} is a table", fix="give for example tasks={'reviews': {'train': 'a.tsv'}}")
        tasks = {
            name: one if isinstance(one, TaskSource) else build_config(TaskSource, one, where=f"task {name}")
            for name, one in tables.pop("tasks").items()
        }
        plain: Settings = {k: coerce_value(v, known[k], k) for k, v in values.items() if k not in TABLE_FIELDS}
        return CompareConfig(**{**plain, **tables, "tasks": tasks})


def check_family(name: str) -> None:
    """Refuse a family that cannot be pretrained."""
    entry = find_family(name)
    if entry.name != name:
        raise Error(f"{name!r} is another word for a family", fix=f"name it {entry.name}")
    if not entry.is_pretrained:
        raise Error(f"{name} is not pretrained, and a race is about that", fix="leave it out")


@dataclass(frozen=True)
class TextForm:
    """What a family reads of the common corpus: the kind of its tokenizer, and whether the text becomes pairs of
    neighbouring sentences or has its phrases marked. `note` says why it differs from the others, if it does."""

    tokenizer: str
    style: str
    is_paired: bool = False
    has_units: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """The name of the folder with this form of the corpus."""
        marks = [self.style, self.tokenizer, *(["pairs"] if self.is_paired else []), *["units"] * self.has_units]
        return "-".join(marks)


COMMON_TOKENIZER = "bpe"  # on bytes: no text has an unknown piece, in any language


def choose_text_form(family: str) -> TextForm:
    """Choose what a family reads, by what its file declares: everything but a reader of characters takes the pieces of
    the common tokenizer, with special tokens of its own."""
    declared = find_family(family).definition
    objective = OBJECTIVES[declared.objective]
    own = declared.reads_characters
    note = ""
    if own:
        note = "reads characters and predicts words of a closed vocabulary: a tokenizer of its own"
    elif objective.takes_pairs:
        note = "learns from pairs: each sentence of the corpus with the one that follows it"
    return TextForm(
        declared.tokenizer if own else COMMON_TOKENIZER, declared.tokenizer_style.name, objective.takes_pairs,
        issubclass(objective.objective_class, UnitMaskedLM), note,
    )  # fmt: skip


def classify_family(family: str) -> ModelKind:
    """Return how a family's likelihoods may be compared: causal models with each other, by bits per byte; masked ones
    by pseudo-perplexity; encoder-decoders, and models of another order or vocabulary, with none."""
    declared = find_family(family).definition
    if declared.is_encoder_decoder:
        return "encoder-decoder"
    if LM_PARTS.get(declared.pretraining_head) == "mlm":
        return "masked"
    return "causal" if OBJECTIVES[declared.objective].objective_class is CausalLM else "other"
