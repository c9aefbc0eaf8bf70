"""A run that trains word vectors: from text files to a model that formers neighbours and formers finetune take."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..config import Tell, build, positive, schema, suggest
from ..data.readers import by_path, find
from ..data.readers import read as read_text
from ..data.replacement import replacing
from ..errors import Error
from ..former import Former
from ..inspection.neighbours import nearest, unit
from ..interop.directory import save
from ..models.vectors import VectorsConfig
from .configure import Data, dotted, plain, read
from .machine import machine, memory
from .material import changed, check_text
from .report import put, report
from .runs import Folder
from .tracking import Tracker
from .vectors import train
from .world import World

METHODS = {"word2vec": "skipgram", "glove": "glove", "fasttext": "fasttext"}
TABLES = ("data", "model", "train")
READING = ("source", "column", "unit", "encoding", "skip")
SIZES = tuple(name for name in schema(VectorsConfig) if name != "vocab")  # the text decides how many words there are
KINDS = {"word2vec": ("skipgram", "cbow"), "glove": ("glove",), "fasttext": ("fasttext",)}
EPOCHS = {"word2vec": 5, "fasttext": 5, "glove": 15}  # as the released programs have them by default
BUCKETS = 200_000  # of fastText's n-grams: the released 2,000,000 take 800 MB at 100 numbers each
HANGUL: dict[str, Any] = {"min_n": 2, "max_n": 4}  # a syllable is what two or three letters are elsewhere
SHOWN, NEAR = 8, 5  # words whose neighbours a report shows, and how many of them
LOOK = 100_000  # characters from which the script is known


@dataclass(frozen=True, kw_only=True)
class VectorTrain:
    """How word vectors are trained."""

    epochs: int = 5
    lr: float | None = None  # None: the method's own
    lower: bool = True  # the words are put into lower case
    seed: int = 0
    threads: int | None = None  # None: all cores; only one thread gives the same bits again

    def __post_init__(self) -> None:
        positive(self, "epochs", "threads")
        positive(self, "seed", least=0)
        if self.lr is not None and not self.lr > 0:
            raise Error(f"the learning rate must be above 0, got {self.lr}", fix="leave train.lr out")


@dataclass(frozen=True, kw_only=True)
class VectorSettings:
    """All that a run of word vectors is asked to do."""

    method: str
    data: Data
    model: VectorsConfig
    train: VectorTrain
    given: frozenset[str] = frozenset()  # the settings of the model that were asked for

    def table(self) -> dict[str, Any]:
        """As the file of a run says it."""
        data, model = dataclasses.asdict(self.data), dataclasses.asdict(self.model)
        return {
            "family": "vectors", "method": self.method, "data": plain({name: data[name] for name in READING}),
            "model": {name: model[name] for name in SIZES}, "train": dataclasses.asdict(self.train),
        }  # fmt: skip

    def text(self) -> str:
        """The settings as YAML, for --config."""
        return yaml.safe_dump(self.table(), sort_keys=False, allow_unicode=True)


def configure_vectors(method: str | None, config: Any, overrides: Mapping[str, Any]) -> VectorSettings:
    """Merge and check the settings of a method: its defaults < `config` (a file or a table) < dotted overrides."""
    told, single = read(config), dotted(overrides, TABLES)
    if told.get("family") == "vectors":  # a run's own file also says how many steps it took
        told["train"] = {key: value for key, value in (told.get("train") or {}).items() if key != "steps"}
    for key in told:
        if key not in (*TABLES, "family", "method"):
            raise Error(f"unknown setting {key!r}", fix=suggest(key, TABLES))
    method = method if method in METHODS else told.get("method", method)
    if method not in METHODS:
        raise Error(f"there is no method {method!r}", fix=f"choose {', '.join(METHODS)}")
    kind = {"kind": METHODS[method], **({"buckets": BUCKETS} if method == "fasttext" else {})}
    merged: dict[str, dict[str, Any]] = {"data": {}, "model": kind, "train": {"epochs": EPOCHS[method]}}
    known = {"data": READING, "model": SIZES, "train": tuple(schema(VectorTrain))}
    for layer in (told, single):
        for table in TABLES:
            for key, value in (layer.get(table) or {}).items():
                if key not in known[table]:
                    raise Error(f"unknown setting {key!r} of {table}", fix=suggest(key, known[table]))
                merged[table][key] = value
    source = merged["data"].get("source") or ()
    merged["data"]["source"] = [source] if isinstance(source, str) else source
    if merged["model"]["kind"] not in KINDS[method]:
        what = f"{method} is not trained as {merged['model']['kind']!r}"
        raise Error(what, fix=f"--model.kind {' or '.join(KINDS[method])}")
    return VectorSettings(
        method=method, data=build(Data, merged["data"], where="data"),
        model=build(VectorsConfig, merged["model"], where="model"),
        train=build(VectorTrain, merged["train"], where="train"),
        given=frozenset({*(told.get("model") or {}), *single.get("model", {})}),
    )  # fmt: skip


def pretrain_vectors(
    method: str, text: Any, out: str | Path | None, config: Any, overrides: Mapping[str, Any], *, tell: Tell,
    say: Callable[[str], None], hook: Callable[[dict[str, Any]], None] | None, same: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> tuple[Path, Former, float]:  # fmt: skip
    """Train word vectors on text (files, or documents in memory) in a folder of their own; the folder, the vectors and
    the seconds it took. There are no checkpoints: what is stopped begins again."""
    from .pretrain import claim_run_folder

    began = time.perf_counter()
    asked = configure_vectors(method, config, overrides)
    if by_path(text):
        source = tuple(str(one) for one in (text if isinstance(text, list | tuple) else [text]))
        asked, text = dataclasses.replace(asked, data=dataclasses.replace(asked.data, source=source)), None
    if text is None and not asked.data.source:
        raise Error("there is no text to learn from", fix="give --data FILES")
    path = None if out is None else Path(out)
    if path is not None and not overwrite and (path / "run.json").is_file():
        what = "there is a run here already, and word vectors are trained in one go"
        raise Error(what, where=path, fix="replace it with --overwrite, or choose another --out")
    for chosen in check_text(asked.data, text):
        say(chosen)
    texts = lambda: read_text(text if text is not None else find(list(asked.data.source)), **asked.data.reading)  # noqa: E731
    asked = fit_script(asked, texts, say)
    with ExitStack() as stack:
        stack.enter_context(replacing(path, "run", overwrite, (asked.table(), config)))
        here = stack.enter_context(claim_run_folder(path, asked.method))
        folder = stack.enter_context(Folder(here).held())
        if isinstance(hook, Tracker):
            hook.begin(here, asked.table())
        rows, places = list[dict[str, Any]](), 0

        def note(row: dict[str, Any]) -> None:
            nonlocal places
            if "places" in row:
                places = row["places"]
                return
            rows.append(row)
            if hook is not None:
                hook(row)

        digest, count = hashlib.sha256(), itertools.count()
        t, c = asked.train, asked.model
        more = {name: getattr(c, name) for name in SIZES if name != "kind"}
        former = train(
            counted(texts(), digest, count, tell), c.kind, epochs=t.epochs, lr=t.lr, lower=t.lower, seed=t.seed,
            threads=t.threads, tell=tell, note=note, **more,
        )  # fmt: skip
        if same is not None and same.get("store") != digest.hexdigest():
            raise changed("the text", here)
        save(former, here / "model")
        seconds = time.perf_counter() - began
        text_facts = {"store": digest.hexdigest(), "documents": next(count), "tokens": places}
        write_run(folder, asked, former, rows, text_facts)
    for line in samples_of(former):
        say(f"{line['given']}: {line['made']}")
    return here, former, seconds


def fit_script(asked: VectorSettings, texts: Callable[[], Iterable[str]], say: Callable[[str], None]) -> VectorSettings:
    """Take shorter n-grams for fastText where the text is Korean, unless their lengths were given."""
    if asked.method != "fasttext" or asked.given & set(HANGUL):
        return asked
    taken, letters, hangul = 0, 0, 0
    for document in texts():
        taken += len(document)
        letters += sum(c.isalpha() for c in document[:LOOK])
        hangul += sum("가" <= c <= "힣" for c in document[:LOOK])
        if taken >= LOOK:
            break
    if 2 * hangul <= letters or not letters:
        return asked
    say(f"Korean text: n-grams of {HANGUL['min_n']} to {HANGUL['max_n']} characters (--model.min_n, --model.max_n)")
    return dataclasses.replace(asked, model=dataclasses.replace(asked.model, **HANGUL))


def counted(texts: Iterable[str], digest: Any, count: Iterator[int], tell: Tell) -> Iterator[str]:
    """The texts, counted and summed up on their way."""
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        if (number := next(count)) % 10_000 == 0 and number:
            tell("reading", number, number, f"{number:,} texts")
        yield text


def samples_of(former: Former) -> list[dict[str, Any]]:
    """Frequent words and what lies nearest to them; the most frequent of all say nothing about their neighbours."""
    assert former.tokenizer is not None
    size, unknown = former.config.vocab, former.tokenizer.id("unk")
    names = [former.tokenizer.token(i) for i in range(size) if i != unknown]
    wordy = [name for name in names if len(name) > 1 and name.isalpha()]
    some = wordy[min(50, len(wordy) // 3) :][: SHOWN * 3 : 3]
    found = []
    for word in some:
        near = nearest(former, unit(former, [word])[0], NEAR, [word])
        found.append({"step": 0, "given": word, "made": ", ".join(name for name, _ in near)})
    return found


def write_run(
    folder: Folder, asked: VectorSettings, former: Former, rows: list[dict[str, Any]], facts: dict[str, Any]
) -> None:
    """Write run.json, the measurements, some neighbours and the report."""
    assert former.tokenizer is not None
    for name, lines in (("metrics.jsonl", rows), ("samples.jsonl", samples_of(former))):
        put(folder.path / name, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    table, world = asked.table(), World()
    steps = rows[-1]["step"] if rows else 0
    table["train"]["steps"] = steps
    data = {"tokenizer": former.tokenizer.fingerprint, **facts}
    size = former.config.rows * former.config.dim
    result = {"score": None, "baseline": None, "best": steps, "parameters": size, "memory": memory(world.device)}
    folder.describe({"asked": table, "data": data, "machine": machine(world), "result": result})
    report(folder)
