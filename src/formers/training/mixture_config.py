"""Settings of a multi-task text-to-text mixture (Raffel et al. 2019, §2.1.3 and §3.5.2).

A mixture is a table `mixture:` of a run's settings, or a YAML file of its own (`--mixture FILE`): tasks by name, each
with its own files, prefix and metric, and one strategy that says how often each is drawn. e_m is the number of training
examples of task m, K the size limit:

proportional   r_m ∝ min(e_m, K)             examples-proportional mixing with an artificial data set size limit
temperature    r_m ∝ min(e_m, K)^(1/T)       temperature-scaled mixing
equal          r_m ∝ 1                       equal mixing

Design. Every task is read and written as text by one head, so a mixture needs an encoder-decoder, and a label is a word
that the decoder writes. The paper draws each example's task at random; here each epoch takes its exact share of every
task and shuffles them by counter-based draws (data/mixture.py), which has the same rates without their noise, and is
the same for any number of loader workers and after a resumed run. An epoch is Σ min(e_m, K) examples: with
proportional mixing no example comes twice in it. In pretraining, the text is one more task of the mixture, with as many
examples as its objective cuts from it. The best checkpoint is chosen by the mean of the tasks' main metrics, as GLUE's
average is.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config import Settings, build_config, check_setting_names, check_sizes, coerce_value, get_schema
from ..data.readers import is_path_source
from ..errors import Error

SPLIT_KEYS = ("train", "valid", "test")
TASK_NAME = re.compile(r"\w[\w.-]*")
TEXT_TASK = "text"  # the name of the unsupervised task in a pretraining mixture
EXAMPLE = "for example tasks: {sst2: {train: sst2.tsv}, trec: {train: trec.tsv}}"


@dataclass(frozen=True, kw_only=True)
class MixtureTaskConfig:
    """One task of a mixture. What is None is as the `data:` table says, or the usual."""

    train: str | None = None
    valid: str | None = None
    test: str | None = None
    task: Literal["classify", "regress", "translate", "summarise"] | None = None  # None: found by the columns
    prefix: str | None = (
        None  # in front of every text; None: "NAME sentence: " as T5 has it, of texts to write "NAME: "
    )
    other_prefix: str | None = None  # in front of the second text of a pair; None: "sentence2: "
    labels: dict | None = None  # words that are written for labels: {0: negative, 1: positive}
    metric: str | None = None  # which one counts in the average; None: the task's first
    columns: str | None = None
    column: str | None = None
    encoding: str | None = None
    skip: bool | None = None
    delimiter: str | None = None
    header: bool | None = None
    valid_fraction: float | None = None
    limit: int | None = None  # at most this many training examples, drawn at random
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        check_sizes(self, "limit", "max_output_tokens")
        words = list((self.labels or {}).values())
        if not all(isinstance(word, str) and word.strip() for word in words) or len({*words}) != len(words):
            raise Error("labels are mapped to different words", fix="for example labels: {0: negative, 1: positive}")

    def to_settings(self) -> Settings:
        """Return the settings that were given."""
        every = dataclasses.asdict(self)
        return {name: value for name, value in every.items() if value is not None}

    def pick_reader_settings(self, known: Mapping[str, object]) -> Settings:
        """Return the settings that were given and that a table of `data` has too."""
        return {name: value for name, value in self.to_settings().items() if name in known}


@dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """Which tasks are mixed, and at which rates."""

    tasks: dict[str, MixtureTaskConfig]
    strategy: Literal["proportional", "temperature", "equal"] = "proportional"
    size_limit: int | None = 2**19  # K: a task counts as at most so many examples (the paper's best); None: no limit
    temperature: float | None = None  # T of the strategy temperature; None: the paper's 2

    def __post_init__(self) -> None:
        if len(self.tasks) < 1:
            raise Error("a mixture has no tasks", fix=EXAMPLE)
        for name in self.tasks:
            if not TASK_NAME.fullmatch(name) or name == TEXT_TASK:
                fix = f"use letters, digits, - and _, and not {TEXT_TASK!r}, which is the text of pretraining"
                raise Error(f"a task cannot be called {name!r}", fix=fix)
        check_sizes(self, "size_limit")
        if self.temperature is not None and self.strategy != "temperature":
            what = f"mixture.temperature does nothing with the strategy {self.strategy}"
            raise Error(what, fix="--mixture.strategy temperature, or leave it out")
        if self.temperature is not None and not self.temperature >= 1:
            what = f"mixture.temperature must be at least 1, got {self.temperature}"
            raise Error(what, fix="1 is proportional mixing; larger values come closer to equal mixing")

    @property
    def exponent_temperature(self) -> float:
        """T of min(e_m, K)^(1/T); 1 unless the strategy is temperature."""
        return (self.temperature or 2.0) if self.strategy == "temperature" else 1.0

    def to_settings(self) -> Settings:
        """Return the table as a file has it: of the tasks, what was given."""
        tasks = {name: task.to_settings() for name, task in self.tasks.items()}
        rates = {"strategy": self.strategy, "size_limit": self.size_limit, "temperature": self.temperature}
        return {**rates, "tasks": tasks}


def build_mixture_config(table: Mapping[str, object]) -> MixtureConfig | None:
    """Build and check a mixture from its table; None if the table is empty."""
    if not table:
        return None
    known = get_schema(MixtureConfig)
    check_setting_names(table, known, "mixture")
    tasks = table.get("tasks") or {}
    if not isinstance(tasks, Mapping):
        raise Error("the tasks of a mixture are a table", fix=EXAMPLE)
    configs = {str(name): build_task_config(str(name), entry) for name, entry in tasks.items()}
    rest = {key: coerce_value(value, known[key], f"mixture.{key}") for key, value in table.items() if key != "tasks"}
    return MixtureConfig(tasks=configs, **rest)


def build_task_config(name: str, entry: object) -> MixtureTaskConfig:
    """Build one task of a mixture: a table of settings, or the path of its training examples."""
    if isinstance(entry, str | Path):
        entry = {"train": str(entry)}
    if not isinstance(entry, Mapping):
        raise Error(f"the task {name} of a mixture is {entry!r}", fix="give a table with train, or the path of a file")
    values = {key: str(value) if isinstance(value, Path) else value for key, value in entry.items()}
    return build_config(MixtureTaskConfig, values, where=f"mixture.tasks.{name}")


MixtureSources = dict[str, dict[str, object]]  # task → split → examples in memory


def split_mixture(mixture: object) -> tuple[Settings, MixtureSources]:
    """Split what a caller gives as a mixture into settings under dotted names and examples in memory.

    It is a table with `tasks`, or the tasks alone by name. A task is a table (train, valid, test, prefix, …), the path
    of its training examples, or the examples themselves."""
    if mixture is None:
        return {}, {}
    if not isinstance(mixture, Mapping):
        raise Error(f"a mixture is a table of tasks, not {type(mixture).__name__}", fix=EXAMPLE)
    table = dict(mixture) if isinstance(mixture.get("tasks"), Mapping) else {"tasks": mixture}
    entries, sources = dict[str, object](), MixtureSources()
    for name, entry in table.pop("tasks").items():
        values = dict(entry) if isinstance(entry, Mapping) else {"train": entry}
        in_memory = {key: values.pop(key) for key in SPLIT_KEYS if key in values and not is_path_source(values[key])}
        entries[str(name)] = {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}
        sources[str(name)] = {key: value for key, value in in_memory.items() if value is not None}
    settings: Settings = {f"mixture.{key}": value for key, value in table.items()}
    return {**settings, "mixture.tasks": entries}, {name: parts for name, parts in sources.items() if parts}


def describe_strategy(config: MixtureConfig) -> str:
    """Describe how the tasks are mixed, in a few words."""
    if config.strategy == "equal":
        return "equal mixing"
    limit = "" if config.size_limit is None else f", K = {config.size_limit:,}"
    if config.strategy == "proportional":
        return f"examples-proportional mixing{limit}"
    return f"temperature-scaled mixing, T = {config.exponent_temperature:g}{limit}"
