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

from ..data.readers import by_path
from ..data.readers import read as read_text
from ..data.replacement import TAKEN, replacing
from ..data.store import Store
from ..errors import Error
from ..former import Former
from ..interop.directory import load
from ..interop.hub import fetch
from ..objectives.choose import WITHOUT_PAIRS
from ..registry import member
from ..tasks.examples import read_columns
from ..tasks.task import window
from ..text.tokenizer import Tokenizer
from .configure import Asked, by_dots, configure, read
from .evaluate import Score
from .learner import family_of
from .material import aside_of, material
from .parts import content, overlap_said
from .pretrain import Run, claim_run_folder, pretrain
from .recipes import RATE
from .runs import Folder
from .tuning import Tune, find

MANY = 100_000  # documents that are compared
STEPS = 10  # of an epoch, at least, if the text is long enough
SAME = {"data.columns": "data.column"}  # what pretraining calls otherwise
TUNED = ("tune.epochs", "tune.batch", "tune.length", "tune.warm", "tune.checks")


def is_text(task: str | None, out: Any, resume: bool) -> bool:
    """Is this a run on plain text: one that is begun, or one that goes on?"""
    if task is not None or not resume or out is None or not (Path(out) / "run.json").is_file():
        return task == "lm"
    return "task" not in Folder(Path(out)).about()["asked"]


def continued(
    model: Any, sources: Mapping[str, Any], given: Mapping[str, Any], out: Any, resume: bool, config: Any,
    overwrite: bool = False, **how: Any,
) -> Run:  # fmt: skip
    """Pretraining that starts from `model`; epochs and examples become steps and tokens."""
    single, plain = parted(sources, given)
    text, held = sources["train"], sources["valid"]
    if by_path(held):
        held, plain["data.held"] = None, [str(held)]
    if resume and out is not None and (Path(out) / "run.json").is_file():
        same_text(Path(out), {k: v for k, v in single.items() if k in TUNED}, {}, "leave it out")
        return pretrain(None, text, out=out, config=config, resume=True, held=held, overrides=plain, **how)
    source = checkpoint_of(model, text)
    wanted = None if out is None else Path(out)
    if wanted is not None and not overwrite and (wanted / "run.json").is_file():
        raise Error("there is a run here already", where=wanted, fix=TAKEN)
    with (
        replacing(wanted, "run", overwrite, (source, list(sources.values()), plain, config)),
        claim_run_folder(wanted, f"{family_of(source)}-lm") as path,
    ):
        settings, tokenizer = schedule(source, path, text, held, plain, single, config, how["tell"], how["say"])
        settings = {key: value for key, value in settings.items() if key not in by_dots(read(config))}
        return pretrain(
            family_of(source), text, out=path, config=config, init=source, held=held,
            overrides={**settings, **plain}, tokenizer=tokenizer, **how,
        )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What a run on plain text comes to: pretraining of a family that starts from a checkpoint, with these settings."""

    family: str
    source: str
    settings: dict[str, Any]
    config: Any

    def asked(self) -> Asked:
        """The settings of the pretraining run."""
        return configure(self.family, self.config, self.settings, init=self.source)


def plan_text(
    model: Any, sources: Mapping[str, Any], given: Mapping[str, Any], config: Any, path: Path, tell: Any
) -> Plan:
    """The plan for `model` and text in files; `path` is a folder for the token store that counting its tokens needs."""
    single, plain = parted(sources, given)
    text, held = sources["train"] or read_source(config), sources["valid"]
    if not by_path(text) or (held is not None and not by_path(held)):
        raise Error("only text in files can be planned", fix="give the path of a file")
    source = checkpoint_of(model, text)
    if held is not None:
        plain["data.held"] = [str(held)]
    settings, tokenizer = schedule(source, path, text, None, plain, single, config, tell)
    settings = {key: value for key, value in settings.items() if key not in by_dots(read(config))}
    own = {} if tokenizer is None else {"data.tokenizer": str(fetch(source)) if source.startswith("hub:") else source}
    return Plan(family_of(source), source, {**settings, **plain, **own, "data.source": [str(text)]}, config)


def read_source(config: Any) -> Any:
    """The text that a file of settings names."""
    found = by_dots(read(config)).get("data.source")
    return found[0] if isinstance(found, list) and len(found) == 1 else found


def parted(sources: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All single settings under the names that pretraining has for them, and those of its own tables."""
    single = {SAME.get(key, key): value for key, value in given.items() if key not in ("data.train", "data.valid")}
    if "=" in str(single.get("data.column", "")):  # --columns text=NAME
        single["data.column"] = read_columns(single["data.column"])[0].get("text")
    if sources["test"] is not None:
        raise Error("plain text is judged by held-out text alone", fix="leave test out, and give valid")
    for key in single:
        if key.startswith("tune.") and key not in TUNED:
            raise Error(f"{key} is nothing that a language model on plain text takes", fix="leave it out")
    return single, {key: value for key, value in single.items() if not key.startswith("tune.")}


def checkpoint_of(model: Any, text: Any) -> str:
    """The checkpoint that goes on learning; a family alone has nothing to go on with."""
    if model is None or text is None:
        raise Error("a model and text are needed", fix="formers finetune MODEL --task lm --train FILE")
    family, source, named = find(str(model))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # the text is counted here, before the processes know each other
        what = "with several processes, steps and tokens must be said"
        raise Error(what, fix="formers pretrain FAMILY --init MODEL --data FILE --train.steps 1000")
    if source is None:
        what = f"{named or family} has nothing to go on with"
        raise Error(what, fix=f"from scratch it learns by: formers pretrain {family} --data FILE")
    return source


def schedule(
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
    told = {name: single.get(f"tune.{name}", getattr(Tune(), name)) for name in ("epochs", "batch", "warm", "checks")}
    length = single.get("tune.length") or window(former.config)
    (path / "data").mkdir(parents=True, exist_ok=True)
    (path / "data" / "tune.json").write_text(json.dumps({**told, "length": length}), encoding="utf-8")
    files = {"data.source": [str(text)]} if by_path(text) else {}
    asked = configure(former.family, config, {**files, **plain, "train.length": 1}, init=source)
    for line in shared_documents(text, aside_of(asked.data, held), asked.data.reading):
        say(line)
    done = isinstance(text, Store) or (bool(files) and (Path(str(text)) / "store.json").is_file())
    tokenizer = None if done or asked.data.tokenizer is not None else former.tokenizer
    found = material(asked.family, asked.data, path / "data", None if files else text, tokenizer, held, tell)
    count = len(found.store.tokens)
    tokens = max(length, min(round(told["batch"] * length), count // STEPS))
    epoch = max(1.0, count / tokens)
    steps = max(1, round(told["epochs"] * epoch))
    check = max(1, round(epoch / told["checks"]))
    lr = RATE / getattr(former.config, "dim", 768)
    settings = {
        "train.length": length, "train.tokens": tokens, "train.steps": steps,
        "train.warmup": round(told["warm"] * steps), "train.check": check, "train.save": check, "train.lr": lr,
        "train.schedule": "linear", **own(former),
    }  # fmt: skip
    return settings, tokenizer


def shared_documents(text: Any, held: Any, reading: Mapping[str, Any]) -> list[str]:
    """A warning where held-out documents, of the first MANY, are among the first MANY to learn from."""
    if any(source is None or isinstance(source, Iterator | Store) for source in (text, held)):
        return []
    if by_path(text) and (Path(str(text)) / "store.json").is_file():
        return []
    both = ([content({"text": d}) for d in itertools.islice(read_text(s, **reading), MANY)] for s in (text, held))
    learnt, asked = both
    known = set(learnt)
    shared = sum(key in known for key in asked)
    return overlap_said([("valid", "train", shared, len(asked))] if shared else [], "documents")


def own(former: Former) -> dict[str, Any]:
    """A checkpoint that learned to fill in words alone goes on with that, also where its family learns pairs."""
    declared = member(former.family).family
    alone = former.head != declared.pretraining and "mlm" in former.model.parts
    return {"objective.name": WITHOUT_PAIRS.get(declared.objective, declared.objective)} if alone else {}


def same_text(path: Path, given: Mapping[str, Any], asked: Mapping[str, Any], fix: str) -> None:
    """Refuse settings that are not those of the run in a folder: `asked` is its run.json's."""
    file = path / "data" / "tune.json"
    tables = {**asked, "tune": json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}}
    for key, value in given.items():
        table, _, name = SAME.get(key, key).partition(".")
        was = tables.get(table, {}).get(name, value)
        if was != json.loads(json.dumps(value)) and key not in ("data.train", "data.valid"):  # text has a fingerprint
            raise Error(f"the run here has {key} {was}, not {value}", where=path, fix=fix)


def measures(score: Score | None) -> dict[str, float]:
    """What a language model is judged by; of masked ones, the perplexity of what was hidden."""
    if score is None:
        return {}
    right = {} if math.isnan(score.accuracy) else {"accuracy": score.accuracy}
    return {"perplexity": math.exp(min(score.loss, 700.0)), "loss": score.loss, **right}
