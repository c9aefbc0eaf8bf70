"""The task `lm`: continues the pretraining of a checkpoint on new text, by a pretraining run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...config import ProgressCallback, Settings, build_config
from ...data.readers import is_path_source
from ...data.store import Store
from ...errors import Error
from ...former import Former
from ...interop.hub import fetch_model
from ...interop.model_directory import load, save
from ...objectives.registry import UNPAIRED_OBJECTIVES
from ...registry import find_family
from ...task import choose_length
from ...tasks.examples import Columns, Examples, make_label_prefix, parse_columns, read_examples
from ...text.tokenizer import Tokenizer
from ..config_merge import (
    ConfigFile,
    PretrainConfig,
    PretrainSettings,
    TuneConfig,
    derive_step_settings,
    flatten_tables,
    parse_value,
    read_config,
    resolve_model,
)
from ..distributed.process_group import ProcessGroup
from ..recipes import LR_TIMES_DIM
from ..train_config import SettingValue
from ..validation import Score
from .prepare_data import RunText
from .pretrain import Prepared, PretrainRequest, RunSettings
from .run import EarlierRun, RunOptions, RunResult, check_parallel_settings
from .splits import format_overlap_warnings, hash_content

MAX_COMPARED_DOCUMENTS = 100_000  # documents that are compared
MIN_EPOCH_STEPS = 10  # of an epoch, at least, if the text is long enough
PRETRAIN_SETTING_NAMES = {"data.columns": "data.column"}  # what pretraining calls otherwise
LM_TUNE_SETTINGS = ("tune.epochs", "tune.batch_size", "tune.seq_length", "tune.warmup_ratio", "tune.evals_per_epoch")


def is_text_run(task: str | None, options: RunOptions) -> bool:
    """Return whether a run is on plain text: a new one of the task lm, or a resumed one without a task."""
    settings = options.read_resumed_settings()
    return task == "lm" if task is not None or settings is None else "task" not in settings


def request_text_run(
    model: str | Path | None, sources: Mapping[str, object], given: Mapping[str, SettingValue], config: ConfigFile,
    options: RunOptions,
) -> TextRequest:  # fmt: skip
    """Request pretraining that starts from `model`; settings of `tune` become steps and tokens."""
    names = (key for key in given if key not in ("data.train", "data.valid"))
    single = {PRETRAIN_SETTING_NAMES.get(key, key): given[key] for key in names}
    if "=" in str(single.get("data.column", "")):  # --columns text=NAME
        single["data.column"] = parse_columns(single["data.column"])[0].get("text")
    if sources.get("test") is not None:
        raise Error("plain text is evaluated on validation text alone", fix="leave test out, and give valid")
    for key in single:
        if key.startswith("tune.") and key not in LM_TUNE_SETTINGS:
            raise Error(f"{key} does not apply to --task lm", fix="leave it out")
    tune = {key: parse_value(value) if isinstance(value, str) else value
            for key, value in single.items() if key in LM_TUNE_SETTINGS}  # fmt: skip
    plain = {key: value for key, value in single.items() if key not in tune}
    text, valid = sources["train"], sources.get("valid")
    if is_path_source(text):
        text, plain["data.source"] = None, [str(text)]
    if is_path_source(valid):
        valid, plain["data.valid"] = None, [str(valid)]
    keys = dict.fromkeys(("recipe", "preset", "init"))
    return TextRequest(None, text, valid, config, plain, keys, None, None, options, model=model, tune=tune)


@dataclass(frozen=True)
class TextRequest(PretrainRequest):
    """Pretraining that continues from a checkpoint; its steps follow from the epochs and the text."""

    model: str | Path | None = None
    tune: Settings = field(default_factory=dict)  # the settings of `tune` that were given, under dotted names

    def carry_out(self) -> tuple[Path, Former, RunResult]:
        """Train; returns the folder, the model, and metrics like those of any task."""
        self.options.say("plain text: the model continues its pretraining, as formers pretrain --init does")
        folder, former, (score, baseline) = super().carry_out()
        measures = {"valid": compute_lm_metrics(score), "baseline": compute_lm_metrics(baseline)}
        return folder, former, {**measures, "test": {}, "majority": {}}

    def get_stem(self, settings: RunSettings) -> str:
        """Return the family and the task."""
        return f"{settings.family}-lm"

    def configure(self, earlier: EarlierRun | None) -> tuple[RunSettings, Former | None]:
        """Merge the settings; of a new run, those that follow from the text are still missing. Returns also the model
        that a new run starts from."""
        if earlier is not None:
            check_text_settings(earlier.path, self.tune, {}, "leave it out")
            return super().configure(earlier)
        file = flatten_tables(read_config(self.file))
        text = self.given.get("data.source") or file.get("data.source") if self.text is None else self.text
        if self.model is None or text is None:
            raise Error("a model and text are needed", fix="formers finetune MODEL --task lm --train FILE")
        family, source, preset = resolve_model(str(self.model))
        if source is None:
            what = f"{preset or family} has no pretrained weights to continue from"
            raise Error(what, fix=f"pretrain it from scratch: formers pretrain {family} --data FILE")
        former = load(source)
        if former.tokenizer is None:
            raise Error("this model has no tokenizer", where=source, fix="put its tokenizer.json into the same folder")
        settings = PretrainSettings.read(former.family, self.file, self.given, {**self.keys, "init": source})
        settings.check()
        return settings, former

    def prepare(self, settings: RunSettings, inputs: Former | None, folder: Path, world: ProcessGroup) -> Prepared:
        """Make a store of the checkpoint's own tokens; steps, tokens and rate follow from their number."""
        if isinstance(settings, PretrainConfig) or inputs is None:  # of a resumed run
            return super().prepare(settings, inputs, folder, world)
        tune = build_config(TuneConfig, {key.removeprefix("tune."): value for key, value in self.tune.items()})
        length = tune.seq_length or choose_length(inputs.context)
        saved = {
            "epochs": tune.epochs, "batch_size": tune.batch_size, "warmup_ratio": tune.warmup_ratio,
            "evals_per_epoch": tune.evals_per_epoch, "seq_length": length,
        }  # fmt: skip
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "data" / "tune.json").write_text(json.dumps(saved), encoding="utf-8")
        data = self.prepare_text(settings, folder, self.choose_tokenizer(settings, inputs))
        count = len(data.store.tokens)
        tokens = max(length, min(round(tune.batch_size * length), count // MIN_EPOCH_STEPS))
        train = derive_step_settings(tune, max(1.0, count / tokens), settings.given.tables["train"])
        train |= {"seq_length": length, "batch_tokens": tokens, "lr": LR_TIMES_DIM / inputs.config.dim}
        tables = {"train": {**train, "schedule": "linear"}}
        config = settings.resolve({**flatten_tables(tables), **choose_objective(inputs)})
        check_parallel_settings(config.train, world)
        return config, data

    def choose_tokenizer(self, settings: RunSettings, former: Former) -> Tokenizer | None:
        """Return the checkpoint's own tokenizer; None where the settings name another, or the text is a store."""
        text = [Path(one) for one in settings.data.source] if self.text is None else self.text
        return None if is_store(text) or settings.data.tokenizer is not None else former.tokenizer

    def report_texts(self, text: RunText, valid: RunText) -> None:
        """Check the first documents, and warn of validation documents that are among those to learn from."""
        super().report_texts(text, valid)
        for line in find_shared_documents(text, valid):
            self.options.say(line)

    def prepare_excerpt(
        self, settings: RunSettings, inputs: Former | None, folder: Path, world: ProcessGroup
    ) -> Prepared:
        """Prepare all of the text: the number of its tokens says how long the run is."""
        if self.text is not None or self.valid is not None:
            raise Error("only text in files can be planned", fix="give the path of a file")
        return self.prepare(settings, inputs, folder, world)

    def render_settings(self) -> str:
        """Return all settings of the pretraining run as YAML, with the tokenizer that it takes."""
        if self.text is None and "data.source" not in {**flatten_tables(read_config(self.file)), **self.given}:
            raise Error("the settings of --task lm depend on the text", fix="give --train FILE")
        settings, former = self.configure(None)
        with tempfile.TemporaryDirectory() as folder:
            config, _ = self.prepare_excerpt(settings, former, Path(folder), ProcessGroup())
        if former is not None and self.choose_tokenizer(settings, former) is not None:
            init = str(config.init)
            own = str(fetch_model(init)) if init.startswith("hub:") else init
            config = dataclasses.replace(config, data=dataclasses.replace(config.data, tokenizer=own))
        return config.to_yaml()


def is_store(text: object) -> bool:
    """Return whether a source is a token store, open or by its path."""
    path = text[0] if isinstance(text, list) and len(text) == 1 and isinstance(text[0], Path) else text
    return isinstance(text, Store) or (isinstance(path, str | Path) and (Path(path) / "store.json").is_file())


def find_shared_documents(text: RunText, valid: RunText) -> list[str]:
    """Warn where validation documents are among those to learn from; of both, the first MAX_COMPARED_DOCUMENTS are
    compared, of a stream none."""
    if not all(one.is_text and not isinstance(one.source, Iterator) for one in (text, valid)):
        return []
    documents = (itertools.islice(one.look(), MAX_COMPARED_DOCUMENTS) for one in (text, valid))
    train_hashes, valid_hashes = ([hash_content({"text": document}) for document in texts] for texts in documents)
    known = set(train_hashes)
    shared = sum(key in known for key in valid_hashes)
    return format_overlap_warnings([("valid", "train", shared, len(valid_hashes))] if shared else [], "documents")


def choose_objective(former: Former) -> Settings:
    """Choose masked words alone for a checkpoint without a head for pairs, even if its family learns pairs."""
    declared = find_family(former.family).definition
    alone = former.head != declared.pretraining_head and "mlm" in former.model.parts
    return {"objective.name": UNPAIRED_OBJECTIVES.get(declared.objective, declared.objective)} if alone else {}


def check_text_settings(path: Path, given: Mapping[str, object], config: Mapping[str, SettingValue], fix: str) -> None:
    """Refuse settings that are not those of the run in a folder: `config` is its run.json's."""
    file = path / "data" / "tune.json"
    tables = {**config, "tune": json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}}
    for key, value in given.items():
        table, _, name = PRETRAIN_SETTING_NAMES.get(key, key).partition(".")
        was = tables.get(table, {}).get(name, value)
        if was != json.loads(json.dumps(value)) and key not in ("data.train", "data.valid"):  # text has a fingerprint
            raise Error(f"the run here has {key} {was}, not {value}", where=path, fix=fix)


def compute_lm_metrics(score: Score | None) -> dict[str, float]:
    """Compute a language model's metrics; of a masked one, the perplexity of the hidden tokens."""
    if score is None:
        return {}
    right = {} if math.isnan(score.accuracy) else {"accuracy": score.accuracy}
    return {"perplexity": math.exp(min(score.loss, 700.0)), "loss": score.loss, **right}


def train_conditional(
    former: Former, train: object, folder: str | Path, *, columns: Columns = None, epochs: float = 3.0,
    label_names: Mapping[str, str] | None = None, tell: ProgressCallback | None = None, **settings: object,
) -> Former:  # fmt: skip
    """Continue pretraining on "label: text", for augmentation with conditional=True; returns the trained model.
    Examples do not follow each other, so objectives on sentence pairs are left out. A folder where this was begun with
    the same model and examples is resumed. `settings` are those of train."""
    if former.tokenizer is None:
        raise Error(f"this {former.family} has no tokenizer", fix="load it with its tokenizer")
    examples = train if isinstance(train, Examples) else read_examples(train, "classify", columns)
    texts = [make_label_prefix(row, label_names or {}) + row["text"] for row in examples.rows]
    start = Path(folder) / "start"
    start.parent.mkdir(parents=True, exist_ok=True)
    if not start.exists():
        save(former, start)
    elif load(start).fingerprint != former.fingerprint:
        raise Error("another model was trained here", where=folder, fix="remove it, or give another name")
    overrides = {"tune.epochs": epochs, **{f"train.{name}": value for name, value in settings.items()}}
    if (objective := find_family(former.family).definition.objective) in UNPAIRED_OBJECTIVES:
        overrides["objective.name"] = UNPAIRED_OBJECTIVES[objective]
    options = RunOptions(Path(folder) / "run", resume=True, tell=tell)
    return request_text_run(start, {"train": texts}, overrides, None, options).carry_out()[1]
