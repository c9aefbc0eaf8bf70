"""A run that trains word vectors: from text files to a model that formers neighbours and formers finetune take."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import ProgressCallback, build_config, check_sizes, get_schema, suggest_name
from ...data.readers import find_files
from ...data.readers import read_documents as read_text
from ...errors import Error
from ...former import Former
from ...interop.model_directory import save
from ...models.vectors import VectorsConfig
from ...reports.run_report import write_report, write_text_file
from ...tasks.word_vectors import find_nearest_words, get_unit_vectors
from ..config_merge import GivenSettings, PretrainDataConfig, RunConfig, to_plain
from ..distributed.process_group import ProcessGroup
from ..hardware import describe_hardware, get_peak_memory
from ..run_folder import RunFolder, open_run_folder
from ..runs.prepare_data import RunText, check_texts, make_changed_error
from ..runs.run import RunOptions
from ..tracking import Tracker
from .word2vec import train_word_vectors

VECTOR_METHODS = {"word2vec": "skipgram", "glove": "glove", "fasttext": "fasttext"}
VECTOR_DATA_SETTINGS = ("source", "column", "unit", "encoding", "skip")
# The text decides how many words there are.
VECTOR_MODEL_SETTINGS = tuple(name for name in get_schema(VectorsConfig) if name != "vocab")
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


VECTOR_SETTINGS: dict[str, tuple[str, ...]] = {
    "data": VECTOR_DATA_SETTINGS, "model": VECTOR_MODEL_SETTINGS, "train": tuple(get_schema(VectorTrainConfig)),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class VectorRunConfig(RunConfig):
    """All that a run of word vectors is asked to do."""

    method: str
    data: PretrainDataConfig
    model: VectorsConfig
    train: VectorTrainConfig
    model_overrides: frozenset[str] = frozenset()  # the settings of the model that were asked for

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as run.json keeps them: those that a user of word vectors can choose."""
        data, model = to_plain(self.data), to_plain(self.model)
        return {
            "family": "vectors", "method": self.method, "data": {name: data[name] for name in VECTOR_DATA_SETTINGS},
            "model": {name: model[name] for name in VECTOR_MODEL_SETTINGS}, "train": to_plain(self.train),
        }  # fmt: skip


def configure_vectors(method: str | None, config: Any, overrides: Mapping[str, Any]) -> VectorRunConfig:
    """Merge and check the settings of a method: its defaults < `config` (a file or a table) < dotted overrides."""
    given = GivenSettings.read(config, overrides, tuple(VECTOR_SETTINGS), ("family", "method"))
    if given.top.get("family") == "vectors" and "train.steps" not in overrides:
        given.tables["train"].pop("steps", None)  # a run's own file also says how many steps it took
    method = method if method in VECTOR_METHODS else given.top.get("method", method)
    if method not in VECTOR_METHODS:
        raise Error(f"there is no method {method!r}", fix=f"choose {', '.join(VECTOR_METHODS)}")
    for table, values in given.tables.items():
        for key in values:
            if key not in VECTOR_SETTINGS[table]:
                raise Error(f"unknown setting {key!r} of {table}", fix=suggest_name(key, VECTOR_SETTINGS[table]))
    kind = {"kind": VECTOR_METHODS[method], **({"buckets": NGRAM_BUCKETS} if method == "fasttext" else {})}
    merged = given.merge_over({"model": kind, "train": {"epochs": DEFAULT_EPOCHS[method]}})
    source = merged["data"].get("source") or ()
    merged["data"]["source"] = [source] if isinstance(source, str) else source
    if merged["model"]["kind"] not in METHOD_KINDS[method]:
        what = f"{method} is not trained as {merged['model']['kind']!r}"
        raise Error(what, fix=f"--model.kind {' or '.join(METHOD_KINDS[method])}")
    return VectorRunConfig(
        method=method, data=build_config(PretrainDataConfig, merged["data"], where="data"),
        model=build_config(VectorsConfig, merged["model"], where="model"),
        train=build_config(VectorTrainConfig, merged["train"], where="train"),
        model_overrides=frozenset(given.tables["model"]),
    )  # fmt: skip


@dataclass
class VectorRequest:
    """A run of word vectors that was asked for. There are no checkpoints: what is stopped begins again."""

    method: str | None  # or "vectors": the file of settings says which
    text: Any  # documents in memory; None: the files of the settings
    valid: Any
    file: Any
    given: dict[str, Any]
    top: dict[str, str | None]
    tokenizer: Any
    same: Mapping[str, Any] | None
    options: RunOptions

    def configure(self) -> VectorRunConfig:
        """Merge the settings, and refuse what word vectors do not have."""
        options = self.options
        other = {**self.top, "tokenizer": self.tokenizer or self.given.get("data.tokenizer"), "valid": self.valid}
        for name, value in {**other, "resume": options.resume or None}.items():
            if value is not None:
                raise Error(f"{name} does not apply to word vectors", fix="leave it out")
        asked = configure_vectors(self.method, self.file, self.given)
        if self.text is None and not asked.data.source:
            raise Error("there is no text to learn from", fix="give --data FILES")
        if options.path is not None and not options.overwrite and (options.path / "run.json").is_file():
            what = "there is a run here already, and word vectors are trained in one go"
            raise Error(what, where=options.path, fix="replace it with --overwrite, or choose another --out")
        return asked

    def carry_out(self) -> tuple[Path, Former, tuple[None, None]]:
        """Train in a folder of their own; returns the folder, the vectors, and no scores."""
        asked, options = self.configure(), self.options
        text = RunText(find_files(list(asked.data.source)) if self.text is None else self.text, asked.data)
        for words in check_texts(text, RunText(None, asked.data)):
            options.say(words)
        asked = choose_ngram_lengths(asked, text, options.say)
        inputs = (asked.to_dict(), self.file)
        with open_run_folder(options.path, asked.method, options.overwrite, inputs) as (folder, _):
            if isinstance(options.hook, Tracker):
                options.hook.begin(folder.path, asked.to_dict())
            rows, places = list[dict[str, Any]](), 0

            def note(row: dict[str, Any]) -> None:
                nonlocal places
                if "places" in row:
                    places = row["places"]
                    return
                rows.append(row)
                if options.hook is not None:
                    options.hook(row)

            digest, count = hashlib.sha256(), itertools.count()
            texts = read_text(text.source, **asked.data.reader_options)
            t, c = asked.train, asked.model
            more = {name: getattr(c, name) for name in VECTOR_MODEL_SETTINGS if name != "kind"}
            former = train_word_vectors(
                hash_and_count(texts, digest, count, options.report), c.kind, epochs=t.epochs, lr=t.lr, lower=t.lower,
                seed=t.seed, threads=t.threads, tell=options.report, note=note, **more,
            )  # fmt: skip
            if self.same is not None and self.same.get("store") != digest.hexdigest():
                raise make_changed_error("the text", folder.path)
            save(former, folder.path / "model")
            facts = {"store": digest.hexdigest(), "documents": next(count), "tokens": places}
            write_vector_run(folder, asked, former, rows, facts)
        for line in list_neighbour_samples(former):
            options.say(f"{line['given']}: {line['made']}")
        return folder.path, former, (None, None)


def choose_ngram_lengths(asked: VectorRunConfig, text: RunText, say: Callable[[str], None]) -> VectorRunConfig:
    """Take shorter n-grams for fastText where the text is Korean, unless their lengths were given."""
    if asked.method != "fasttext" or asked.model_overrides & set(KOREAN_NGRAMS):
        return asked
    taken, letters, hangul = 0, 0, 0
    for document in text.look():
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
    """Yield the texts, hashed and counted on their way."""
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        if (number := next(count)) % 10_000 == 0 and number:
            tell("reading", number, number, f"{number:,} texts")
        yield text


def list_neighbour_samples(former: Former) -> list[dict[str, Any]]:
    """List frequent words and their nearest neighbours; the most frequent of all say nothing about their neighbours."""
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
    size, memory = former.config.num_rows * former.config.dim, get_peak_memory(world.device)
    result = {"score": None, "best": steps, "parameters": size, "memory": memory}
    folder.write_info({"config": table, "data": data, "machine": describe_hardware(world), "result": result})
    write_report(folder)
