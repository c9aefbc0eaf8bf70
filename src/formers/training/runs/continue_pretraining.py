"""The task `lm`: a checkpoint goes on with its own objective on new text. A pretraining run, asked for as a task."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...atomic_files import TAKEN_HINT, replace_folder
from ...config import ProgressCallback
from ...data.readers import is_path_source
from ...data.readers import read_documents as read_text
from ...data.store import Store
from ...errors import Error
from ...former import Former
from ...interop.hub import fetch_model
from ...interop.model_directory import load, save
from ...objectives.registry import UNPAIRED_OBJECTIVES
from ...registry import find_family
from ...task import choose_length
from ...tasks.examples import Examples, make_label_prefix, parse_columns, read_examples
from ...text.tokenizer import Tokenizer
from ..config_merge import PretrainConfig, configure_pretraining, flatten_tables, read_config
from ..recipes import LR_TIMES_DIM
from ..run_folder import RUN_FOLDER, RunFolder
from ..validation import Score
from .finetune_config import TuneConfig, resolve_model
from .prepare_data import get_valid_source, prepare_data
from .pretrain import PretrainResult, claim_run_folder, pretrain
from .splits import format_overlap_warnings, hash_content
from .task_model import read_checkpoint_family

MAX_COMPARED_DOCUMENTS = 100_000  # documents that are compared
MIN_EPOCH_STEPS = 10  # of an epoch, at least, if the text is long enough
PRETRAIN_SETTING_NAMES = {"data.columns": "data.column"}  # what pretraining calls otherwise
LM_TUNE_SETTINGS = ("tune.epochs", "tune.batch_size", "tune.seq_length", "tune.warmup_ratio", "tune.evals_per_epoch")


def is_text_run(task: str | None, out: Any, resume: bool) -> bool:
    """Is this a run on plain text: one that is begun, or one that goes on?"""
    if task is not None or not resume or out is None or not (Path(out) / "run.json").is_file():
        return task == "lm"
    return "task" not in RunFolder(Path(out)).read_info()["asked"]


def continue_pretraining(
    model: Any, sources: Mapping[str, Any], given: Mapping[str, Any], out: Any, resume: bool, config: Any,
    overwrite: bool = False, **how: Any,
) -> PretrainResult:  # fmt: skip
    """Pretraining that starts from `model`; epochs and examples become steps and tokens."""
    single, plain = split_settings(sources, given)
    text, held = sources["train"], sources["valid"]
    if is_path_source(held):
        held, plain["data.valid"] = None, [str(held)]
    if resume and out is not None and (Path(out) / "run.json").is_file():
        check_text_settings(Path(out), {k: v for k, v in single.items() if k in LM_TUNE_SETTINGS}, {}, "leave it out")
        return pretrain(None, text, out=out, config=config, resume=True, held=held, overrides=plain, **how)
    source = require_checkpoint(model, text)
    wanted = None if out is None else Path(out)
    if wanted is not None and not overwrite and (wanted / "run.json").is_file():
        raise Error("there is a run here already", where=wanted, fix=TAKEN_HINT)
    with (
        replace_folder(wanted, RUN_FOLDER, overwrite, (source, list(sources.values()), plain, config)),
        claim_run_folder(wanted, f"{read_checkpoint_family(source)}-lm") as path,
    ):
        settings, tokenizer = schedule_text_run(
            source, path, text, held, plain, single, config, how["tell"], how["say"]
        )
        settings = {key: value for key, value in settings.items() if key not in flatten_tables(read_config(config))}
        return pretrain(
            read_checkpoint_family(source), text, out=path, config=config, init=source, held=held,
            overrides={**settings, **plain}, tokenizer=tokenizer, **how,
        )  # fmt: skip


@dataclass(frozen=True)
class TextRunPlan:
    """What a run on plain text comes to: pretraining of a family that starts from a checkpoint, with these settings."""

    family: str
    source: str
    settings: dict[str, Any]
    config: Any

    def build_config(self) -> PretrainConfig:
        """The settings of the pretraining run."""
        return configure_pretraining(self.family, self.config, self.settings, init=self.source)


def plan_text_run(
    model: Any, sources: Mapping[str, Any], given: Mapping[str, Any], config: Any, path: Path, tell: Any
) -> TextRunPlan:
    """The plan for `model` and text in files; `path` is a folder for the token store that counting its tokens needs."""
    single, plain = split_settings(sources, given)
    text, held = sources["train"] or read_text_source(config), sources["valid"]
    if not is_path_source(text) or (held is not None and not is_path_source(held)):
        raise Error("only text in files can be planned", fix="give the path of a file")
    source = require_checkpoint(model, text)
    if held is not None:
        plain["data.valid"] = [str(held)]
    settings, tokenizer = schedule_text_run(source, path, text, None, plain, single, config, tell)
    settings = {key: value for key, value in settings.items() if key not in flatten_tables(read_config(config))}
    own = (
        {}
        if tokenizer is None
        else {"data.tokenizer": str(fetch_model(source)) if source.startswith("hub:") else source}
    )
    return TextRunPlan(
        read_checkpoint_family(source), source, {**settings, **plain, **own, "data.source": [str(text)]}, config
    )


def read_text_source(config: Any) -> Any:
    """The text that a file of settings names."""
    found = flatten_tables(read_config(config)).get("data.source")
    return found[0] if isinstance(found, list) and len(found) == 1 else found


def split_settings(sources: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All single settings under the names that pretraining has for them, and those of its own tables."""
    single = {
        PRETRAIN_SETTING_NAMES.get(key, key): value
        for key, value in given.items()
        if key not in ("data.train", "data.valid")
    }
    if "=" in str(single.get("data.column", "")):  # --columns text=NAME
        single["data.column"] = parse_columns(single["data.column"])[0].get("text")
    if sources["test"] is not None:
        raise Error("plain text is judged by held-out text alone", fix="leave test out, and give valid")
    for key in single:
        if key.startswith("tune.") and key not in LM_TUNE_SETTINGS:
            raise Error(f"{key} does not apply to --task lm", fix="leave it out")
    return single, {key: value for key, value in single.items() if not key.startswith("tune.")}


def require_checkpoint(model: Any, text: Any) -> str:
    """The checkpoint that goes on learning; a family alone has nothing to go on with."""
    if model is None or text is None:
        raise Error("a model and text are needed", fix="formers finetune MODEL --task lm --train FILE")
    family, source, named = resolve_model(str(model))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # the text is counted here, before the processes know each other
        what = "with several processes, steps and tokens must be said"
        raise Error(what, fix="formers pretrain FAMILY --init MODEL --data FILE --train.steps 1000")
    if source is None:
        what = f"{named or family} has nothing to go on with"
        raise Error(what, fix=f"from scratch it learns by: formers pretrain {family} --data FILE")
    return source


def schedule_text_run(
    source: str,
    path: Path,
    text: Any,
    held: Any,
    plain: dict[str, Any],
    single: dict[str, Any],
    config: Any,
    tell: Any,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Any], Tokenizer | None]:
    """Steps, tokens and rate for the text, which is made a store of the checkpoint's own tokens on the way; and its
    tokenizer, if none was asked for and the text is not a store yet."""
    former = load(source)
    if former.tokenizer is None:
        raise Error("this model has no tokenizer", where=source, fix="put its tokenizer.json beside it")
    told = {
        name: single.get(f"tune.{name}", getattr(TuneConfig(), name))
        for name in ("epochs", "batch_size", "warmup_ratio", "evals_per_epoch")
    }
    length = single.get("tune.seq_length") or choose_length(former.context)
    (path / "data").mkdir(parents=True, exist_ok=True)
    (path / "data" / "tune.json").write_text(json.dumps({**told, "seq_length": length}), encoding="utf-8")
    files = {"data.source": [str(text)]} if is_path_source(text) else {}
    asked = configure_pretraining(former.family, config, {**files, **plain, "train.seq_length": 1}, init=source)
    for line in find_shared_documents(text, get_valid_source(asked.data, held), asked.data.reader_options):
        say(line)
    done = isinstance(text, Store) or (bool(files) and (Path(str(text)) / "store.json").is_file())
    tokenizer = None if done or asked.data.tokenizer is not None else former.tokenizer
    found = prepare_data(asked.family, asked.data, path / "data", None if files else text, tokenizer, held, tell)
    count = len(found.store.tokens)
    tokens = max(length, min(round(told["batch_size"] * length), count // MIN_EPOCH_STEPS))
    epoch = max(1.0, count / tokens)
    steps = max(1, round(told["epochs"] * epoch))
    check = max(1, round(epoch / told["evals_per_epoch"]))
    lr = LR_TIMES_DIM / getattr(former.config, "dim", 768)
    settings = {
        "train.seq_length": length, "train.batch_tokens": tokens, "train.steps": steps,
        "train.warmup_steps": round(told["warmup_ratio"] * steps), "train.eval_every": check,
        "train.save_every": check, "train.lr": lr, "train.schedule": "linear", **choose_objective(former),
    }  # fmt: skip
    return settings, tokenizer


def find_shared_documents(text: Any, held: Any, reading: Mapping[str, Any]) -> list[str]:
    """A warning where held-out documents are among those to learn from; of both, the first MAX_COMPARED_DOCUMENTS are
    compared."""
    if any(source is None or isinstance(source, Iterator | Store) for source in (text, held)):
        return []
    if is_path_source(text) and (Path(str(text)) / "store.json").is_file():
        return []
    both = (
        [hash_content({"text": d}) for d in itertools.islice(read_text(s, **reading), MAX_COMPARED_DOCUMENTS)]
        for s in (text, held)
    )
    learnt, asked = both
    known = set(learnt)
    shared = sum(key in known for key in asked)
    return format_overlap_warnings([("valid", "train", shared, len(asked))] if shared else [], "documents")


def choose_objective(former: Former) -> dict[str, Any]:
    """A checkpoint that learned to fill in words alone goes on with that, also where its family learns pairs."""
    declared = find_family(former.family).definition
    alone = former.head != declared.pretraining_head and "mlm" in former.model.parts
    return {"objective.name": UNPAIRED_OBJECTIVES.get(declared.objective, declared.objective)} if alone else {}


def check_text_settings(path: Path, given: Mapping[str, Any], asked: Mapping[str, Any], fix: str) -> None:
    """Refuse settings that are not those of the run in a folder: `asked` is its run.json's."""
    file = path / "data" / "tune.json"
    tables = {**asked, "tune": json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}}
    for key, value in given.items():
        table, _, name = PRETRAIN_SETTING_NAMES.get(key, key).partition(".")
        was = tables.get(table, {}).get(name, value)
        if was != json.loads(json.dumps(value)) and key not in ("data.train", "data.valid"):  # text has a fingerprint
            raise Error(f"the run here has {key} {was}, not {value}", where=path, fix=fix)


def compute_lm_metrics(score: Score | None) -> dict[str, float]:
    """What a language model is judged by; of masked ones, the perplexity of what was hidden."""
    if score is None:
        return {}
    right = {} if math.isnan(score.accuracy) else {"accuracy": score.accuracy}
    return {"perplexity": math.exp(min(score.loss, 700.0)), "loss": score.loss, **right}


def train_conditional(
    former: Former, train: Any, folder: str | Path, *, columns: Any = None, epochs: float = 3.0,
    label_names: Mapping[str, str] | None = None, tell: ProgressCallback | None = None, **settings: Any,
) -> Former:  # fmt: skip
    """Continue pretraining on "label: text", for augmentation with conditional=True; returns the trained model.

    Examples do not follow each other, so objectives on sentence pairs are left out. A folder where this was begun with
    the same model and examples is resumed. `settings` are those of train.
    """
    from .finetune import finetune

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
    overrides = {f"train.{name}": value for name, value in settings.items()}
    if (objective := find_family(former.family).definition.objective) in UNPAIRED_OBJECTIVES:
        overrides["objective.name"] = UNPAIRED_OBJECTIVES[objective]
    run = finetune(start, texts, task="lm", out=Path(folder) / "run", resume=True, epochs=epochs, overrides=overrides,
                   tell=tell)  # fmt: skip
    return run.former
