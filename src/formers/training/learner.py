"""Who learns a task: a checkpoint with a new head or a new model, its tokenizer, and which weights may move."""

from __future__ import annotations

import dataclasses
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import nn

from ..config import Tell, schema
from ..errors import Error
from ..family import Family
from ..former import Former, build, empty
from ..interop import safe
from ..interop.directory import load
from ..interop.tokenizers import load_tokenizer, save_tokenizer
from ..models.textcnn import TextCNN
from ..nn.init import initialise
from ..objectives.supervised import Supervised, class_weights, label_weights
from ..objectives.targets import Ends
from ..registry import member
from ..tasks.encoded import Encoded
from ..tasks.examples import Examples
from ..tasks.inputs import start_token
from ..tasks.predict import part_of
from ..tasks.task import NUMBER, TASKS, Task, tasks_of, window
from ..tasks.word_split import find_detached, find_mark_words
from ..text.templates import FAMILY, style
from ..text.tokenizer import Tokenizer
from ..text.trainers import train as train_tokenizer
from .adopt import resized
from .refusals import readable, refuse
from .tuning import Tune, Wanted
from .world import World

Rows = Sequence[dict[str, Any]]


def labels_of(wanted: Wanted, examples: Examples) -> tuple[str, ...]:
    """The labels of the training examples, in order."""
    if wanted.task == "regress":
        return (NUMBER,)
    if wanted.task not in ("classify", "tag"):
        return ()
    if len(examples.labels) < 2:
        only = f" ({examples.labels[0]!r})" if examples.labels else ""
        raise Error(f"the training examples have {len(examples.labels)} label(s){only}", fix="give two or more")
    return examples.labels


def task_for(wanted: Wanted, examples: Examples) -> Task:
    """The task as the examples and the settings say it; the model has a say in its length."""
    t, kind = wanted.tune, TASKS[wanted.task][0][0]
    many = examples.several if t.many is None else t.many
    if wanted.task == "classify" and many:
        kind = "many"
    abstains = wanted.task == "answer" and any(not row["possible"] for row in examples.rows)
    pairs = {row.get("other") is not None for row in examples.rows} if wanted.task in ("classify", "regress") else set()
    characters = wanted.task == "tag" and all(len(word) == 1 for row in examples.rows for word in row["words"])
    tagged = [row["words"] for row in examples.rows] if wanted.task == "tag" else []
    detached = find_detached(tagged) if wanted.task == "tag" else None
    prefix, words = t.prefix, t.text and wanted.task == "classify"
    return Task(
        name=wanted.task, kind="text" if words else kind, length=t.length or 512, long=t.long, stride=t.stride,
        both=t.both, prefix=prefix, words=words, most=t.most, output=t.output, abstains=abstains, characters=characters,
        pair=pairs.pop() if len(pairs) == 1 else None, detached=detached, mark_words=find_mark_words(tagged),
    )  # fmt: skip


def able(family: Family, config: Any, task: Task, name: str) -> None:
    """Refuse a task that a family has no head for, and say what it can do."""
    heads = family.heads(config)
    pair = hasattr(config, "decoder_layers") or hasattr(config, "target_vocab")
    can = tasks_of(family, config)
    if task.words and pair and "lm" in heads:
        return
    if task.name in can and not task.words:
        return
    fix = f"it can learn: {', '.join(can)}" if can else "it has no head for any task; its vectors can go into another"
    if task.name == "classify" and not task.words and pair and "lm" in heads:
        fix += "; with --tune.text true it writes a label as a word"
    way = " by writing labels" if task.words else ""
    raise Error(f"{name} cannot learn to {task.name}{way}", fix=fix)


def learner(
    wanted: Wanted, task: Task, labels: tuple[str, ...], rows: Rows, folder: Path, world: World, tell: Tell,
    say: Callable[[str], None],
) -> tuple[Former, Task]:  # fmt: skip
    """The model that is to learn, and the task with the length that it takes."""
    refuse(wanted, task)
    tune, declared = wanted.tune, member(wanted.family).family
    head = task.head
    if head == "choose" and "choose" not in declared.heads(declared.config()):
        head = "double"  # GPT's: the choice and the language model
    if tune.auxiliary and head in ("classify", "choose"):
        head += "+lm"
    if tune.features != "no":
        head += "@" + ("plain" if tune.features == "mix" else tune.features)
    resumed = (folder.parent / "run.json").is_file()  # the checkpoint has the embeddings
    vectors = None if tune.vectors is None or resumed else read_vectors(tune.vectors, tell)
    fits = vectors is not None and wanted.source is None and "embed" in schema(declared.config)
    if fits and vectors is not None and "embed" not in wanted.options:
        wanted.model["embed"] = vectors.config.dim
    if wanted.source is None:
        config = declared.config(**wanted.model)
        able(declared, config, task, wanted.family)
        tokenizer = world.agreed(lambda: tokenizer_for(wanted, rows, folder, tell))
        former = scratch(wanted, head, labels, tokenizer)
    else:
        former = opened(wanted, head, labels, task)
    readable(former, tune.length)
    length = min(task.length, window(former.config, tune.length or 512))
    task = dataclasses.replace(task, length=length, labels=labels if task.words else ())
    if tune.vectors is not None:
        start_from(former, vectors, tune.vectors_frozen, say)
    former.task = task.table()
    return former, task


def opened(wanted: Wanted, head: str, labels: tuple[str, ...], task: Task) -> Former:
    """A checkpoint with the head of the task; one that has it already for other labels gets a new one."""
    assert wanted.source is not None
    own, config = described(wanted.source)
    if config is not None:
        able(member(wanted.family).family, config, task, wanted.family)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "new, untrained")  # as it should be
        return fitted(wanted, head, labels, own)


def fitted(wanted: Wanted, head: str, labels: tuple[str, ...], own: str | None) -> Former:
    """The checkpoint, whose own head is `own`, with the head of the task."""
    if "@" in head:  # what a pooler has learnt is of no use to a head that reads other layers
        return refitted(load(wanted.source, head="none"), head, labels, wanted.train.seed)
    if wanted.family == "gpt" and head != "lm":
        former = load(wanted.source, head="lm")
        if former.tokenizer is not None and former.tokenizer.id("cls") is None:
            return refitted(marked(former), head, labels, wanted.train.seed)
    if own is not None and own.partition("+")[0] == head.partition("+")[0]:  # a language model beside it or not
        former = load(wanted.source)
        if labels and former.labels != labels:
            return refitted(former, head, labels, wanted.train.seed)
        if own == head:
            return former
    return load(wanted.source, head=head, labels=list(labels) or None)


def refitted(former: Former, head: str, labels: tuple[str, ...], seed: int) -> Former:
    """The same body with another head, or one for other labels."""
    new = empty(former.family, former.config, head, labels)
    new.model.to_empty(device="cpu")
    initialise(new.model, member(former.family).family.init(new.config), seed)
    old = dict(former.model.named_parameters())
    with torch.no_grad():
        for name, weight in new.model.named_parameters():
            if name in old and old[name].shape == weight.shape and ".out." not in name:
                weight.copy_(old[name])
    new.tokenizer = former.tokenizer
    return new


def marked(former: Former) -> Former:
    """GPT with the three tokens that fine-tuning adds: start, delimiter, extract (§3.3)."""
    old = former.tokenizer
    assert old is not None
    rust = tokenizers.Tokenizer.from_str(old.text)
    wanted = style("gpt")
    rust.add_special_tokens(list(wanted.last))
    wanted.finish(rust, {token: rust.token_to_id(token) or 0 for token in wanted.last})
    roles = {role: token for role, token in wanted.special.items() if token in wanted.last}
    return resized(former, old, Tokenizer(rust.to_str(), {**old.special, **roles}), {})


def described(source: str) -> tuple[str | None, Any]:
    """The head that a checkpoint has and its config, as far as its files say it before it is loaded."""
    if source.startswith("hub:"):
        return None, None
    folder = safe.folder(source)
    if safe.exists(folder, "formers.json"):
        about = safe.read_json(folder, "formers.json")
        return about.get("head"), member(about["family"]).family.config(**about["config"])
    if safe.exists(folder, "config.json"):
        about = safe.read_json(folder, "config.json")
        hf = member(str(about.get("model_type"))).family.hf
        named = (about.get("architectures") or [None])[0]
        return None if hf is None else hf.architectures.get(named), None
    return None, None


def family_of(source: str) -> str:
    """The family of a checkpoint."""
    if not source.startswith("hub:"):
        folder = safe.folder(source)
        for file, key in (("formers.json", "family"), ("config.json", "model_type")):
            if safe.exists(folder, file) and isinstance(name := safe.read_json(folder, file).get(key), str):
                return member(name).name
    return load(source).family


def scratch(wanted: Wanted, head: str, labels: tuple[str, ...], tokenizer: Tokenizer) -> Former:
    """A new model that fits a tokenizer."""
    declared = member(wanted.family).family
    known = schema(declared.config)
    found: dict[str, Any] = {role: tokenizer.id(role) for role in ("pad", "bos", "eos")} | {"vocab": len(tokenizer)}
    if "start" in known:
        found["start"] = Ends.of(tokenizer, ("bos", "pad", "cls", "eos")).start
    values = {**wanted.model, **{key: value for key, value in found.items() if key in known}}
    if wanted.tune.length and "context" in known and "context" not in wanted.options:
        values["context"] = max(values.get("context") or 0, wanted.tune.length)
    made = build(wanted.family, head=head, seed=wanted.train.seed, labels=list(labels) or None, **values)
    made.tokenizer = tokenizer
    return made


def tokenizer_for(wanted: Wanted, rows: Rows, folder: Path, tell: Tell) -> Tokenizer:
    """The tokenizer that was asked for, the run's own, or one trained now."""
    if wanted.data.tokenizer is not None:
        return load_tokenizer(wanted.data.tokenizer)
    kept = folder / "tokenizer"
    if kept.is_dir() and (folder.parent / "run.json").is_file():
        return load_tokenizer(kept)
    kind, style = FAMILY[wanted.family]
    kind = wanted.data.kind or kind
    tell("tokenizer", 0, 1, f"{kind}, {wanted.data.pieces:,} pieces")
    lines = [line for row in rows for line in texts(row)]
    pieces = wanted.data.pieces
    if kind in ("wordpiece", "unigram"):  # pieces made of characters must hold the script as well
        pieces = max(pieces, 2 * len(set().union(*lines)))
    least = 1 if wanted.tune.vectors is not None else 2  # a word that is seen once may have a vector
    options = {"lower": True, "least": least} if kind == "words" and wanted.family == "textcnn" else {}
    made = train_tokenizer(kind, lines, pieces, style=style, **options)
    shutil.rmtree(kept, ignore_errors=True)  # of a try that was refused, perhaps with other examples
    save_tokenizer(made, kept)
    tell("tokenizer", 1, 1, f"{kind}, {len(made):,} pieces")
    return made


def texts(row: dict[str, Any]) -> list[str]:
    """All text of a row."""
    found = [row.get(key) for key in ("text", "other", "target", "question", "context")]
    return [str(t) for t in (*found, *row.get("choices", ()), " ".join(row.get("words", ()))) if t]


def goal_of(
    former: Former, task: Task, data: Encoded, tune: Tune, labels: Any = None, train: bool = True
) -> Supervised:
    """What the examples ask for; `labels` are the answers of the training examples, by which others are judged."""
    part = part_of(former, task)
    start, wraps = None, getattr(former.config, "wraps", False)
    if former.pair and not (wraps and task.kind != "text"):
        start = start_token(former.config)
    weights: tuple[float, ...] = ()
    if tune.balance:
        weights = (label_weights if task.kind == "many" else class_weights)(np.asarray(labels), len(former.labels))
    scale = 1.0
    if task.kind == "number":
        scale = max(1e-6, float(np.std(labels[labels[:, 1] > 0, 0])))
    return Supervised(
        data, task.kind, part, start, shifted=former.pair and task.kind != "text", wraps=wraps, weights=weights,
        scale=scale, smoothing=tune.smoothing if train else 0.0, auxiliary=tune.auxiliary if train else 0.0,
    )  # fmt: skip


def read_vectors(source: str, tell: Tell) -> Former:
    """Word vectors: a formers directory or a run that made one, or a published file (GloVe, word2vec, fastText)."""
    from ..interop.vectors import read

    found = read(source, tell=tell) if Path(source).expanduser().is_file() else load(source)
    if found.family != "vectors":
        raise Error(f"is a {found.family}, not word vectors", where=source, fix="formers pretrain word2vec makes them")
    return found


def start_from(former: Former, vectors: Former | None, frozen: bool, say: Callable[[str], None]) -> None:
    """Make word vectors the embeddings, in both channels of a TextCNN that has two; `frozen` ones do not learn. None
    leaves the embeddings to the checkpoint of a run that goes on."""
    from ..tasks.words import fill

    body: Any = former.model.body
    embed = getattr(getattr(body, "embed", None), "token", None)
    if not isinstance(embed, nn.Embedding) or former.tokenizer is None:
        raise Error(f"a {former.family} does not take word vectors", fix="leave --vectors out")
    learns = embed.weight.requires_grad and not frozen
    if vectors is not None:
        found = fill(embed, former.tokenizer, vectors)
        if not found.found:
            what = f"none of the {found.of:,} words of the examples has a vector (for example {found.missing[0]!r})"
            raise Error(what, fix="take vectors of the same language, split into words in the same way")
        if isinstance(body, TextCNN):  # words without a vector get the variance of the others (Kim, §4.3)
            body.start_from(embed.weight.detach().clone(), found.known)
        say(f"vectors: {found}")
    embed.weight.requires_grad_(learns)
