"""A run that trains word vectors: from text files to a model that formers neighbours and formers finetune take.

The program is that of every run (training/runs/run.py); what is trained and how is in word2vec.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ...config import JSONObject, ProgressCallback, build_config, check_setting_names, get_schema
from ...data.readers import find_files
from ...data.readers import read_documents as read_text
from ...errors import Error
from ...former import Former
from ...interop.word_vectors import build_vectors_model
from ...models.vectors import METHODS, VectorsConfig
from ...reports.run_report import write_text_file
from ...tasks.word_vectors import find_nearest_words, get_unit_vectors
from ..checkpoint.local import Tensors
from ..config_merge import ConfigFile, GivenSettings, PretrainDataConfig, RunConfig, read_config_tables, to_plain
from ..distributed.process_group import ProcessGroup
from ..run_folder import RunFolder
from ..runs.prepare_data import RunText, check_data_unchanged, check_texts, read_excerpt
from ..runs.run import (
    TIMED_STEPS,
    DurationEstimate,
    EarlierRun,
    PretrainArguments,
    Run,
    RunRequest,
    format_epochs,
    measure_steps,
)
from ..train_config import SettingValue
from ..trainer import StepResult
from .word2vec import Corpus, VectorTrainConfig, VectorTrainer, build_learner

VECTOR_DATA_SETTINGS = ("source", "column", "unit", "encoding", "skip")
# The text decides how many words there are.
VECTOR_MODEL_SETTINGS = tuple(name for name in get_schema(VectorsConfig) if name != "vocab")
SHOWN_WORDS, SHOWN_NEIGHBOURS = 8, 5  # words whose neighbours a report shows, and how many of them
SCRIPT_SAMPLE_CHARS = 100_000  # characters from which the script is known
VECTOR_SETTINGS: dict[str, tuple[str, ...]] = {
    "data": VECTOR_DATA_SETTINGS, "model": VECTOR_MODEL_SETTINGS,
    "train": tuple(name for name in get_schema(VectorTrainConfig) if name != "steps"),  # they follow from the text
}  # fmt: skip
VECTOR_KEYS = ("family", "method")  # of a file, beside its tables
# What may change when a run is resumed.
RESUMABLE_VECTOR_SETTINGS = ("data.source", "train.epochs", "train.lr", "train.threads")


@dataclass(frozen=True, kw_only=True)
class VectorRunConfig(RunConfig):
    """All settings of a run of word vectors."""

    method: str
    data: PretrainDataConfig
    model: VectorsConfig
    train: VectorTrainConfig
    model_overrides: frozenset[str] = frozenset()  # the settings of the model that were asked for

    def to_dict(self) -> JSONObject:
        """Return the settings as run.json keeps them: those that a user of word vectors can choose."""
        tables = {"data": to_plain(self.data), "model": to_plain(self.model), "train": to_plain(self.train)}
        chosen = {table: {name: tables[table][name] for name in names} for table, names in VECTOR_SETTINGS.items()}
        if self.train.steps:
            chosen["train"]["steps"] = self.train.steps
        return {"family": "vectors", "method": self.method, **chosen}


def configure_vectors(method: str | None, config: ConfigFile, overrides: Mapping[str, SettingValue]) -> VectorRunConfig:
    """Merge and check the settings of a method: its defaults < `config` (a file or a table) < dotted overrides."""
    settings = GivenSettings.read(config, overrides, tuple(VECTOR_SETTINGS), VECTOR_KEYS)
    if settings.top.get("family") == "vectors" and "train.steps" not in overrides:
        settings.tables["train"].pop("steps", None)  # a run's own file also says how many steps it took
    method = method if method in METHODS else settings.top.get("method", method)
    if method not in METHODS:
        raise Error(f"there is no method {method!r}", fix=f"choose {', '.join(METHODS)}")
    usual = METHODS[method]
    for table, values in settings.tables.items():
        check_setting_names(values, VECTOR_SETTINGS[table], table)
    merged = settings.merge_over({"model": {"kind": usual.kinds[0], **usual.model}, "train": {"epochs": usual.epochs}})
    source = merged["data"].get("source") or ()
    merged["data"]["source"] = [source] if isinstance(source, str) else source
    if merged["model"]["kind"] not in usual.kinds:
        what = f"{method} is not trained as {merged['model']['kind']!r}"
        raise Error(what, fix=f"--model.kind {' or '.join(usual.kinds)}")
    return VectorRunConfig(
        method=method, data=build_config(PretrainDataConfig, merged["data"], where="data"),
        model=build_config(VectorsConfig, merged["model"], where="model"),
        train=build_config(VectorTrainConfig, merged["train"], where="train"),
        model_overrides=frozenset(settings.tables["model"]),
    )  # fmt: skip


@dataclass(frozen=True)
class VectorData:
    """The words of a run's text, and what run.json keeps of it."""

    corpus: Corpus
    content_hash: str
    num_documents: int
    text_ratio: float = 1.0  # times as much text as was read: a dry run takes an excerpt


Prepared = tuple[VectorRunConfig, VectorData]


class VectorRequest(PretrainArguments, RunRequest[VectorRunConfig, None, VectorRunConfig, VectorData]):
    """A request for a run of word vectors. A resumed one reads its text again: only the vectors are saved."""

    @property
    def device(self) -> str:
        """The processor: word vectors are not trained on a GPU."""
        return "cpu"

    def configure(self, earlier: EarlierRun | None) -> tuple[VectorRunConfig, None]:
        """Merge the settings, of a new run or of a resumed one, and refuse what word vectors do not have."""
        other = {**self.keys, "tokenizer": self.tokenizer or self.given.get("data.tokenizer"), "valid": self.valid}
        for name, value in other.items():
            if value is not None:
                raise Error(f"{name} does not apply to word vectors", fix="leave it out")
        config = configure_vectors(self.family, self.file, self.given) if earlier is None else self.merge_with(earlier)
        if self.text is None and not config.data.source:
            fix = "give --data FILES" if earlier is None else "give the text that the run began with: it is read again"
            raise Error("there is no text to learn from", fix=fix)
        return config, None

    def merge_with(self, earlier: EarlierRun) -> VectorRunConfig:
        """Merge the settings of a resumed run with those that may change."""
        file_tables, before = read_config_tables(self.file, tuple(VECTOR_SETTINGS), VECTOR_KEYS), earlier.settings
        method = self.family if self.family in METHODS else file_tables.get("method")
        known = before.get("method", before["family"])
        if known not in METHODS or method not in (None, known):
            what = f"is a run of {known}, not of {method or 'word vectors'}"
            raise Error(what, where=earlier.path, fix="choose another --out")

        def configure(file: ConfigFile, given: Mapping[str, SettingValue]) -> VectorRunConfig:
            config = configure_vectors(known, file, given)
            steps = earlier.compute_steps(config.train.epochs)
            return dataclasses.replace(config, train=dataclasses.replace(config.train, steps=steps))

        return earlier.merge_settings(file_tables, self.given, configure, RESUMABLE_VECTOR_SETTINGS)

    def get_stem(self, config: VectorRunConfig) -> str:
        """Return the method."""
        return config.method

    def prepare(self, config: VectorRunConfig, inputs: None, folder: Path, world: ProcessGroup) -> Prepared:
        """Read the text: its words, and how often each occurs."""
        if world.size > 1:
            fix = "start it without torchrun; --train.threads says how many cores it takes"
            raise Error("word vectors are trained in one process", fix=fix)
        config, data = self.read_words(config, self.text)
        check_data_unchanged(folder, {"store": data.content_hash}, self.same)
        return config, data

    def prepare_excerpt(self, config: VectorRunConfig, inputs: None, folder: Path, world: ProcessGroup) -> Prepared:
        """Read the beginning of the text."""
        text, ratio = read_excerpt(config.data)
        config, data = self.read_words(config, text)
        return config, dataclasses.replace(data, text_ratio=ratio)

    def read_words(self, config: VectorRunConfig, source: object) -> Prepared:
        """Read text out of memory, or if there is none from files; fastText's n-grams may follow from it."""
        text = RunText(find_files(list(config.data.source)) if source is None else source, config.data)
        for line in check_texts(text, RunText(None, config.data)):
            self.options.say(line)
        config = choose_ngram_lengths(config, text, self.options.say)
        digest, count, options = hashlib.sha256(), itertools.count(), config.data.reader_options
        texts = hash_and_count(read_text(text.source, **options), digest.update, count, self.options.report)
        corpus = Corpus.from_texts(texts, config.model.min_count, config.train.lower)
        return config, VectorData(corpus, digest.hexdigest(), next(count))

    def build(self, config: VectorRunConfig, data: VectorData, folder: Path, world: ProcessGroup) -> VectorRun:
        """Build the tables and the trainer."""
        return VectorRun(config, data, world, self.options.say)


class VectorRun(Run[VectorRunConfig]):
    """A run that trains word vectors. `former` gets its table when the vectors are finished."""

    trainer: VectorTrainer
    has_validation = False

    def __init__(self, config: VectorRunConfig, data: VectorData, world: ProcessGroup, say: Callable[[str], None]):
        self.data, self.world, self.say = data, world, say
        self.trainer = VectorTrainer(build_learner(data.corpus, config.model, config.train), config.train)
        self.config = dataclasses.replace(config, train=self.trainer.config)
        more = {name: value for name, value in config.model.to_settings().items() if name in VECTOR_MODEL_SETTINGS}
        table = self.trainer.learner.groups["model"]["input"]
        self.former = build_vectors_model(data.corpus.words, table, lower=config.train.lower, **more)
        self.describe_metric = str  # nothing: there is no perplexity

    def take_steps(self, until: int | None = None) -> Iterator[StepResult]:
        """Take steps over stretches of the text."""
        return self.trainer.train(until)

    def describe(self) -> Iterator[str]:
        """Yield how much there is to learn, and whether it can be repeated."""
        words, places, epochs = len(self.data.corpus.words), len(self.data.corpus.ids), self.config.train.epochs
        yield f"{self.config.method}: {words:,} words, {places:,} places of text, {format_epochs(epochs)}"
        if self.trainer.threads > 1:
            threads = f"{self.trainer.threads} threads share the vectors without locks"
            yield f"note: {threads}: another run, or a resumed one, differs a little; --train.threads 1 repeats exactly"

    def list_estimates(self) -> list[tuple[str, str]]:
        """List words, text and steps for a dry run."""
        s, corpus, ratio = self.config.train, self.data.corpus, self.data.text_ratio
        words = f"{len(corpus.words):,} of {self.config.model.dim:,} numbers each"
        return [
            ("words", words if ratio == 1 else f"at least {words}: the text was read in part"),
            ("text", f"about {len(corpus.ids) * ratio:,.0f} places, {format_epochs(s.epochs)}"),
            ("steps", f"about {s.steps * ratio:,.0f}, threads: {self.trainer.threads}"),
        ]  # fmt: skip

    def estimate_duration(self) -> DurationEstimate:
        """Take a few steps; the time of the others follows from their number."""
        s, last = self.config.train, min(1 + TIMED_STEPS, self.config.train.steps)
        first, rest = measure_steps(self, 0, last)
        tokens, done = self.trainer.learner.num_items * s.epochs * self.data.text_ratio, self.trainer.tokens
        return DurationEstimate(first, (first + rest) * tokens / done, tokens, done / last)

    def record(self) -> JSONObject:
        """Return the fingerprints of words and text, and their size."""
        assert self.former.tokenizer is not None
        facts = {"store": self.data.content_hash, "documents": self.data.num_documents}
        facts["tokens"] = len(self.data.corpus.ids)
        return {"data": {"tokenizer": self.former.tokenizer.fingerprint, **facts}}

    @torch.no_grad()
    def build_model(self, groups: Mapping[str, Tensors]) -> Former:
        """Finish the vectors of a checkpoint."""
        self.trainer.learner.restore_tables(groups)
        finished, words = self.trainer.learner.finish(), len(self.data.corpus.words)
        table = self.former.model.body.embedding_table
        table[:words] = finished[:words]
        table[len(table) - len(finished) + words :] = finished[words:]  # n-grams, after the unknown word
        return self.former

    def compute_result(self, folder: RunFolder, best: int) -> tuple[tuple[None, None], JSONObject]:
        """Keep the neighbours of some words; there are no scores."""
        samples = [{"step": best, **sample} for sample in list_neighbour_samples(self.former)]
        lines = (json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
        write_text_file(folder.path / "samples.jsonl", "".join(lines))
        for sample in samples:
            self.say(f"{sample['given']}: {sample['made']}")
        return (None, None), {"score": None}


def choose_ngram_lengths(config: VectorRunConfig, text: RunText, say: Callable[[str], None]) -> VectorRunConfig:
    """Take shorter n-grams for fastText where the text is Korean, unless their lengths were given."""
    settings = METHODS[config.method].korean_model
    if not settings or config.model_overrides & set(settings):
        return config
    taken, letters, hangul = 0, 0, 0
    for document in text.look():
        taken += len(document)
        letters += sum(c.isalpha() for c in document[:SCRIPT_SAMPLE_CHARS])
        hangul += sum("가" <= c <= "힣" for c in document[:SCRIPT_SAMPLE_CHARS])
        if taken >= SCRIPT_SAMPLE_CHARS:
            break
    if 2 * hangul <= letters or not letters:
        return config
    model = dataclasses.replace(config.model, **settings)
    say(f"Korean text: n-grams of {model.min_n} to {model.max_n} characters (--model.min_n, --model.max_n)")
    return dataclasses.replace(config, model=model)


def hash_and_count(
    texts: Iterable[str], update_hash: Callable[[bytes], None], count: Iterator[int], tell: ProgressCallback
) -> Iterator[str]:
    """Yield the texts, hashed and counted on their way."""
    for text in texts:
        update_hash(text.encode("utf-8", "surrogatepass") + b"\0")
        if (number := next(count)) % 10_000 == 0 and number:
            tell("reading", number, number, f"{number:,} texts")
        yield text


def list_neighbour_samples(former: Former) -> list[dict[str, str]]:
    """List frequent words and their nearest neighbours; the most frequent of all say nothing about their neighbours."""
    assert former.tokenizer is not None
    size, unknown = former.config.vocab, former.tokenizer.id("unk")
    names = [former.tokenizer.get_token_text(i) for i in range(size) if i != unknown]
    wordy = [name for name in names if len(name) > 1 and name.isalpha()]
    chosen = wordy[min(50, len(wordy) // 3) :][: SHOWN_WORDS * 3 : 3]
    samples = []
    for word in chosen:
        near = find_nearest_words(former, get_unit_vectors(former, [word])[0], SHOWN_NEIGHBOURS, [word])
        samples.append({"given": word, "made": ", ".join(name for name, _ in near)})
    return samples
