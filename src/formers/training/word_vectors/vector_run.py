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
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ...atomic_files import replace_folder
from ...config import ProgressCallback, build_config, check_sizes, get_schema, suggest_name
from ...data.readers import find_files, is_path_source
from ...data.readers import read_documents as read_text
from ...errors import Error
from ...former import Former
from ...interop.model_directory import save
from ...models.vectors import VectorsConfig
from ...reports.run_report import write_report, write_text_file
from ...tasks.word_vectors import find_nearest_words, get_unit_vectors
from ..config_merge import PretrainDataConfig, read_config, tuples_to_lists, unflatten_tables
from ..distributed.process_group import ProcessGroup
from ..hardware import describe_hardware, get_peak_memory
from ..run_folder import RUN_FOLDER, RunFolder
from ..runs.prepare_data import check_readable, make_changed_error
from ..tracking import Tracker
from .word2vec import train_word_vectors

VECTOR_METHODS = {"word2vec": "skipgram", "glove": "glove", "fasttext": "fasttext"}
VECTOR_TABLES = ("data", "model", "train")
VECTOR_DATA_SETTINGS = ("source", "column", "unit", "encoding", "skip")
VECTOR_MODEL_SETTINGS = tuple(
    name for name in get_schema(VectorsConfig) if name != "vocab"
)  # the text decides how many words there are
METHOD_KINDS = {"word2vec": ("skipgram", "cbow"), "glove": ("glove",), "fasttext": ("fasttext",)}
DEFAULT_EPOCHS = {"word2vec": 5, "fasttext": 5, "glove": 15}  # as the released programs have them by default
NGRAM_BUCKETS = 200_000  # of fastText's n-grams: the released 2,000,000 take 800 MB at 100 numbers each
KOREAN_NGRAMS: dict[str, Any] = {"min_n": 2, "max_n": 4}  # a syllable is what two or three letters are elsewhere
SHOWN_WORDS, SHOWN_NEIGHBOURS = 8, 5  # words whose neighbours a report shows, and how many of them
SCRIPT_SAMPLE_CHARS = 100_000  # characters from which the script is known


@dataclass(frozen=True, kw_only=True)
class VectorTrainConfig:
    """How word vectors are trained."""

    epochs: int = 5
    lr: float | None = None  # None: the method's own
    lower: bool = True  # the words are put into lower case
    seed: int = 0
    threads: int | None = None  # None: all cores; only one thread gives the same bits again

    def __post_init__(self) -> None:
        check_sizes(self, "epochs", "threads")
        check_sizes(self, "seed", minimum=0)
        if self.lr is not None and not self.lr > 0:
            raise Error(f"the learning rate must be above 0, got {self.lr}", fix="leave train.lr out")


@dataclass(frozen=True, kw_only=True)
class VectorRunConfig:
    """All that a run of word vectors is asked to do."""

    method: str
    data: PretrainDataConfig
    model: VectorsConfig
    train: VectorTrainConfig
    model_overrides: frozenset[str] = frozenset()  # the settings of the model that were asked for

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as run.json keeps them."""
        data, model = dataclasses.asdict(self.data), dataclasses.asdict(self.model)
        return {
            "family": "vectors", "method": self.method,
            "data": tuples_to_lists({name: data[name] for name in VECTOR_DATA_SETTINGS}),
            "model": {name: model[name] for name in VECTOR_MODEL_SETTINGS}, "train": dataclasses.asdict(self.train),
        }  # fmt: skip

    def to_yaml(self) -> str:
        """The settings as YAML, for --config."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def configure_vectors(method: str | None, config: Any, overrides: Mapping[str, Any]) -> VectorRunConfig:
    """Merge and check the settings of a method: its defaults < `config` (a file or a table) < dotted overrides."""
    told, single = read_config(config), unflatten_tables(overrides, VECTOR_TABLES)
    if told.get("family") == "vectors":  # a run's own file also says how many steps it took
        told["train"] = {key: value for key, value in (told.get("train") or {}).items() if key != "steps"}
    for key in told:
        if key not in (*VECTOR_TABLES, "family", "method"):
            raise Error(f"unknown setting {key!r}", fix=suggest_name(key, VECTOR_TABLES))
    method = method if method in VECTOR_METHODS else told.get("method", method)
    if method not in VECTOR_METHODS:
        raise Error(f"there is no method {method!r}", fix=f"choose {', '.join(VECTOR_METHODS)}")
    kind = {"kind": VECTOR_METHODS[method], **({"buckets": NGRAM_BUCKETS} if method == "fasttext" else {})}
    merged: dict[str, dict[str, Any]] = {"data": {}, "model": kind, "train": {"epochs": DEFAULT_EPOCHS[method]}}
    known = {
        "data": VECTOR_DATA_SETTINGS,
        "model": VECTOR_MODEL_SETTINGS,
        "train": tuple(get_schema(VectorTrainConfig)),
    }
    for layer in (told, single):
        for table in VECTOR_TABLES:
            for key, value in (layer.get(table) or {}).items():
                if key not in known[table]:
                    raise Error(f"unknown setting {key!r} of {table}", fix=suggest_name(key, known[table]))
                merged[table][key] = value
    source = merged["data"].get("source") or ()
    merged["data"]["source"] = [source] if isinstance(source, str) else source
    if merged["model"]["kind"] not in METHOD_KINDS[method]:
        what = f"{method} is not trained as {merged['model']['kind']!r}"
        raise Error(what, fix=f"--model.kind {' or '.join(METHOD_KINDS[method])}")
    return VectorRunConfig(
        method=method, data=build_config(PretrainDataConfig, merged["data"], where="data"),
        model=build_config(VectorsConfig, merged["model"], where="model"),
        train=build_config(VectorTrainConfig, merged["train"], where="train"),
        model_overrides=frozenset({*(told.get("model") or {}), *single.get("model", {})}),
    )  # fmt: skip


def pretrain_vectors(
    method: str, text: Any, out: str | Path | None, config: Any, overrides: Mapping[str, Any], *,
    tell: ProgressCallback, say: Callable[[str], None], hook: Callable[[dict[str, Any]], None] | None,
    same: Mapping[str, Any] | None = None, overwrite: bool = False,
) -> tuple[Path, Former, float]:  # fmt: skip
    """Train word vectors on text (files, or documents in memory) in a folder of their own; the folder, the vectors and
    the seconds it took. There are no checkpoints: what is stopped begins again."""
    from ..runs.pretrain import claim_run_folder

    began = time.perf_counter()
    asked = configure_vectors(method, config, overrides)
    if is_path_source(text):
        paths = tuple(str(one) for one in (text if isinstance(text, list | tuple) else [text]))
        asked, text = dataclasses.replace(asked, data=dataclasses.replace(asked.data, source=paths)), None
    if text is None and not asked.data.source:
        raise Error("there is no text to learn from", fix="give --data FILES")
    path = None if out is None else Path(out)
    if path is not None and not overwrite and (path / "run.json").is_file():
        what = "there is a run here already, and word vectors are trained in one go"
        raise Error(what, where=path, fix="replace it with --overwrite, or choose another --out")
    for chosen in check_readable(asked.data, text):
        say(chosen)
    source: Any = text if text is not None else find_files(list(asked.data.source))
    texts = partial(read_text, source, **asked.data.reader_options)
    asked = choose_ngram_lengths(asked, texts, say)
    with ExitStack() as stack:
        stack.enter_context(replace_folder(path, RUN_FOLDER, overwrite, (asked.to_dict(), config)))
        here = stack.enter_context(claim_run_folder(path, asked.method))
        folder = stack.enter_context(RunFolder(here).lock())
        if isinstance(hook, Tracker):
            hook.begin(here, asked.to_dict())
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
        more = {name: getattr(c, name) for name in VECTOR_MODEL_SETTINGS if name != "kind"}
        former = train_word_vectors(
            hash_and_count(texts(), digest, count, tell), c.kind, epochs=t.epochs, lr=t.lr, lower=t.lower, seed=t.seed,
            threads=t.threads, tell=tell, note=note, **more,
        )  # fmt: skip
        if same is not None and same.get("store") != digest.hexdigest():
            raise make_changed_error("the text", here)
        save(former, here / "model")
        seconds = time.perf_counter() - began
        text_facts = {"store": digest.hexdigest(), "documents": next(count), "tokens": places}
        write_vector_run(folder, asked, former, rows, text_facts)
    for line in list_neighbour_samples(former):
        say(f"{line['given']}: {line['made']}")
    return here, former, seconds


def choose_ngram_lengths(
    asked: VectorRunConfig, texts: Callable[[], Iterable[str]], say: Callable[[str], None]
) -> VectorRunConfig:
    """Take shorter n-grams for fastText where the text is Korean, unless their lengths were given."""
    if asked.method != "fasttext" or asked.model_overrides & set(KOREAN_NGRAMS):
        return asked
    taken, letters, hangul = 0, 0, 0
    for document in texts():
        taken += len(document)
        letters += sum(c.isalpha() for c in document[:SCRIPT_SAMPLE_CHARS])
        hangul += sum("가" <= c <= "힣" for c in document[:SCRIPT_SAMPLE_CHARS])
        if taken >= SCRIPT_SAMPLE_CHARS:
            break
    if 2 * hangul <= letters or not letters:
        return asked
    shortest, longest = KOREAN_NGRAMS["min_n"], KOREAN_NGRAMS["max_n"]
    say(f"Korean text: n-grams of {shortest} to {longest} characters (--model.min_n, --model.max_n)")
    return dataclasses.replace(asked, model=dataclasses.replace(asked.model, **KOREAN_NGRAMS))


def hash_and_count(texts: Iterable[str], digest: Any, count: Iterator[int], tell: ProgressCallback) -> Iterator[str]:
    """The texts, counted and summed up on their way."""
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        if (number := next(count)) % 10_000 == 0 and number:
            tell("reading", number, number, f"{number:,} texts")
        yield text


def list_neighbour_samples(former: Former) -> list[dict[str, Any]]:
    """Frequent words and what lies nearest to them; the most frequent of all say nothing about their neighbours."""
    assert former.tokenizer is not None
    size, unknown = former.config.vocab, former.tokenizer.id("unk")
    names = [former.tokenizer.get_token_text(i) for i in range(size) if i != unknown]
    wordy = [name for name in names if len(name) > 1 and name.isalpha()]
    some = wordy[min(50, len(wordy) // 3) :][: SHOWN_WORDS * 3 : 3]
    found = []
    for word in some:
        near = find_nearest_words(former, get_unit_vectors(former, [word])[0], SHOWN_NEIGHBOURS, [word])
        found.append({"step": 0, "given": word, "made": ", ".join(name for name, _ in near)})
    return found


def write_vector_run(
    folder: RunFolder, asked: VectorRunConfig, former: Former, rows: list[dict[str, Any]], facts: dict[str, Any]
) -> None:
    """Write run.json, the measurements, some neighbours and the report."""
    assert former.tokenizer is not None
    for name, lines in (("metrics.jsonl", rows), ("samples.jsonl", list_neighbour_samples(former))):
        write_text_file(folder.path / name, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    table, world = asked.to_dict(), ProcessGroup()
    steps = rows[-1]["step"] if rows else 0
    table["train"]["steps"] = steps
    data = {"tokenizer": former.tokenizer.fingerprint, **facts}
    size = former.config.num_rows * former.config.dim
    result = {
        "score": None,
        "baseline": None,
        "best": steps,
        "parameters": size,
        "memory": get_peak_memory(world.device),
    }
    folder.write_info({"asked": table, "data": data, "machine": describe_hardware(world), "result": result})
    write_report(folder)
