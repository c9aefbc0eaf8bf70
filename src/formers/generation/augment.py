"""More training examples out of few: words hidden and refilled by a masked model (Wu et al. 2018), texts continued by a
decoder (Anaby-Tavor et al. 2019), both after training on the texts of each label (Kumar et al. 2020), and only those
kept to which a classifier still gives their label."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..atomic_files import ResumableFile
from ..config import ProgressCallback, Settings, check_sizes, suggest_name
from ..data.counter_rng import draw_bits
from ..errors import Error
from ..former import Former
from ..tasks.api import get_task
from ..tasks.example_tables import FileOptions
from ..tasks.examples import Columns, Examples, Row, flatten_names, make_label_prefix, read_examples
from ..text.normalise import normalise
from ..verbs import can_fill, check_verb
from .api import generate_texts
from .fill import RandomKey, infill_texts
from .options import Options

CHUNK_SIZE = 32  # examples at once
PUNCTUATION = re.compile(r"[\W_]+")
SKIP_REASONS = {
    "same": "the same as their example",
    "duplicate": "there already",
    "label": "with another label",
    "empty": "empty",
}
LabelFilter = Callable[[list[Row]], list[bool]]
LabelScorer = Callable[[list[Row]], list[dict[str, float]]]  # rows → the probabilities of their labels


@dataclass(frozen=True)
class AugmentConfig:
    """Settings of augmentation: `times` new examples of each, with `rate` of the words masked or of the text continued,
    sampled from the `top_k` likeliest tokens; `conditional` puts the label (or its name) before the text."""

    method: str = "fill"
    times: int = 1
    rate: float = 0.15
    top_k: int = 20
    temperature: float = 1.0
    max_new_tokens: int = 40
    seed: int = 0
    conditional: bool = False
    label_names: Mapping[str, str] = field(default_factory=dict)
    min_probability: float = 0.0  # the least probability of the label, where a classifier filters

    def __post_init__(self) -> None:
        if self.method not in ("fill", "continue"):
            raise Error(f"there is no method {self.method!r}", fix="choose fill or continue")
        if self.times < 1 or self.top_k < 1 or self.max_new_tokens < 1:
            raise Error("times, top_k and max_new_tokens are at least 1", fix="leave them out")
        check_sizes(self, "seed", minimum=0)
        if not 0 < self.rate <= 1 or not 0 <= self.min_probability <= 1 or self.temperature <= 0:
            raise Error("rate and min_probability are shares, and temperature is above 0", fix="leave them out")


@dataclass(frozen=True)
class AugmentResult:
    """New examples, each with the number of its source ("from"), and how many were skipped for which reason."""

    rows: list[Row]
    skipped: dict[str, int]
    summary: str


def augment(
    former: Former, train: object, out: str | Path | None = None, *, columns: Columns = None,
    label_filter: Former | str | None = "linear",
    column: str | None = None, encoding: str = "utf-8", skip: bool = False, delimiter: str | None = None,
    header: bool | None = None, tell: ProgressCallback | None = None, overwrite: bool = False, **how: object,
) -> AugmentResult:  # fmt: skip
    """Make new examples for classification out of a file, rows or a dataset, with a masked model or a decoder.

    `label_filter` is what checks the labels of new examples: "linear" (learned from the same examples), a fine-tuned
    Former, or None. `column`, `encoding`, `skip`, `delimiter` and `header` say how a file is read. With `out`, a jsonl
    file, a run that was stopped resumes, and a file of that name is replaced with `overwrite` only. The rest is
    `AugmentConfig`: method ("fill", "continue"), times, rate, top_k, temperature, max_new_tokens, seed, conditional
    (see `train_conditional`), label_names, min_probability."""
    check_verb(former, "augment")
    reading: FileOptions = {
        "column": column, "encoding": encoding, "skip": skip, "delimiter": delimiter, "header": header,
    }  # fmt: skip
    examples = (train if isinstance(train, Examples) else read_examples(train, "classify", columns, **reading)).rows
    config = build_config(former, how)
    keep_label = make_label_filter(label_filter, examples, config.min_probability)
    # A text is generated whatever probability its label must have, so a resumed run may change that.
    settings = {name: value for name, value in asdict(config).items() if name != "min_probability"}
    about = {} if out is None else {"rows": hash_rows(examples), "how": settings, "model": former.fingerprint}
    with nullcontext() if out is None else ResumableFile(Path(out), about, overwrite=overwrite) as file:
        texts: list[list[str]] = [] if file is None else [record["made"] for record in file.read_records()]
        for chunk in generate_candidates(former, examples, config, len(texts)):
            texts += chunk
            if file is not None:
                file.write_records(*({"made": candidates} for candidates in chunk))
            if tell is not None:
                tell("examples", len(texts), len(examples), config.method)
        rows, skipped = filter_candidates(examples, texts, keep_label)
        if file is not None:
            file.finish(lambda _, whole: whole.writelines(to_json_lines(rows)))
    words = ", ".join(f"{count:,} {SKIP_REASONS[why]}" for why, count in skipped.items() if count)
    total = sum(map(len, texts))
    summary = f"{len(rows):,} new examples out of {len(examples):,}; left out of {total:,}: {words or 'none'}"
    return AugmentResult(rows, skipped, summary)


def build_config(former: Former, settings: Settings) -> AugmentConfig:
    """Build the settings; the default method is what the model can do."""
    known = AugmentConfig.__dataclass_fields__
    if unknown := [name for name in settings if name not in known]:
        raise Error(f"augment does not take {unknown[0]!r}", fix=suggest_name(unknown[0], known))
    return AugmentConfig(**{"method": "fill" if can_fill(former) else "continue", **settings})


def generate_candidates(
    former: Former, rows: Sequence[Row], config: AugmentConfig, done: int = 0
) -> Iterator[list[list[str]]]:
    """Yield `times` new texts for each example, chunk by chunk, from number `done` on."""
    every = make_keys(rows, config)
    for low in range(done, len(rows), CHUNK_SIZE):
        chunk, keys = rows[low : low + CHUNK_SIZE], every[low : low + CHUNK_SIZE]
        fronts = [make_label_prefix(row, config.label_names) if config.conditional else "" for row in chunk]
        if config.method == "fill":
            texts = [row["text"] for row in chunk for _ in range(config.times)]
            fronts = [front for front in fronts for _ in range(config.times)]
            flat = [key for own in keys for key in own]
            new = infill_texts(former, texts, fronts, flat, config.rate, config.top_k, config.temperature)
        else:
            new = continue_texts(former, chunk, fronts, keys, config)
        yield [new[i : i + config.times] for i in range(0, len(new), config.times)]


def make_keys(rows: Sequence[Row], config: AugmentConfig) -> list[list[RandomKey]]:
    """Make the random keys of each example from its text (wherever it stands) and how often it occurred before."""
    before: Counter[str] = Counter()
    keys = []
    for row in rows:
        first = before[row["text"]] * config.times
        keys.append([(config.seed, hash_text(row["text"]), first + turn) for turn in range(config.times)])
        before[row["text"]] += 1
    return keys


def continue_texts(
    former: Former, rows: Sequence[Row], fronts: Sequence[str], keys: Sequence[Sequence[RandomKey]],
    config: AugmentConfig,
) -> list[str]:  # fmt: skip
    """Continue the beginnings of texts, which lack the last `rate` of their words; with rate 1 and a conditional model,
    write whole texts after the label."""
    words = [row["text"].split() for row in rows]
    beginnings = [" ".join(own[: math.floor(len(own) * (1 - config.rate))]) for own in words]
    prompts = [(f + b).strip() or b for f, b in zip(fronts, beginnings, strict=True)]
    options = Options(
        max_new_tokens=config.max_new_tokens, num_samples=config.times, top_k=config.top_k,
        temperature=config.temperature, seed=config.seed, stop=("\n",),
    )  # fmt: skip
    # Many prompts are equal, and their texts should not be.
    results = generate_texts(former, prompts, options, rng_streams=[[int(draw_bits(*k)) for k in one] for one in keys])
    several = [texts if isinstance(texts, list) else [texts] for texts in results]
    return [" ".join(f"{b}{text}".split()) for b, texts in zip(beginnings, several, strict=True) for text in texts]


def filter_candidates(
    rows: Sequence[Row], candidates: Sequence[Sequence[str]], keep_label: LabelFilter
) -> tuple[list[Row], dict[str, int]]:
    """Return the rows that are new and keep their label, and how many others there were for each reason."""
    skipped = dict.fromkeys(SKIP_REASONS, 0)
    seen = {to_comparison_form(row["text"]) for row in rows}
    new: list[Row] = []
    for number, (row, texts) in enumerate(zip(rows, candidates, strict=True)):
        own = to_comparison_form(row["text"])
        for text in texts:
            form = to_comparison_form(text)
            why = "empty" if not form else "same" if form == own else "duplicate" if form in seen else None
            if why is not None:
                skipped[why] += 1
                continue
            seen.add(form)
            new.append({**row, "text": normalise(text), "from": number})
    verdicts = keep_label(new) if new else []
    skipped["label"] += verdicts.count(False)
    return [row for row, kept in zip(new, verdicts, strict=True) if kept], skipped


def to_comparison_form(text: str) -> str:
    """Reduce a text to what is left without differences in spaces, punctuation and case."""
    return PUNCTUATION.sub(" ", normalise(text).lower()).strip() or "".join(normalise(text).split())


def hash_rows(rows: Sequence[Row]) -> str:
    """Hash the examples, to recognise them when a run is resumed."""
    return hashlib.sha256(repr([(row["text"], row.get("other"), row["label"]) for row in rows]).encode()).hexdigest()


def hash_text(text: str) -> int:
    """Hash a text to 64 bits, so that an example is changed in one way wherever it stands."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "little")


def to_json_lines(rows: Sequence[Row]) -> Iterator[bytes]:
    """Encode rows as JSON lines."""
    for row in rows:
        present = {name: value for name, value in row.items() if value is not None}
        yield json.dumps(present, ensure_ascii=False).encode() + b"\n"


def make_label_filter(judge: Former | str | None, rows: Sequence[Row], min_probability: float) -> LabelFilter:
    """Make the function that says of new rows whether a classifier still gives them their label. "linear" learns from
    `rows`, a Former was trained on such rows before, None keeps all. A row of one label needs that label as the
    likeliest, one of several exactly those above 0.5; each with `min_probability` at least."""
    if judge is None:
        return lambda new: [True] * len(new)
    if not isinstance(judge, Former) and judge != "linear":
        raise Error(f"{judge!r} is not a label filter", fix="take 'linear', a fine-tuned model, or None")
    multilabel = any(isinstance(row["label"], list) for row in rows)
    score = make_model_scorer(judge, rows, multilabel) if isinstance(judge, Former) else make_linear_scorer(rows)

    def has_same_label(shares: Mapping[str, float], row: Row) -> bool:
        own = flatten_names([row["label"]])
        if not multilabel:
            return shares[own[0]] >= max(min_probability, *shares.values())
        predicted = {name for name, share in shares.items() if share > 0.5}
        return predicted == set(own) and all(shares[name] >= min_probability for name in own)

    return lambda new: [has_same_label(shares, row) for shares, row in zip(score(new), new, strict=True)]


def make_linear_scorer(rows: Sequence[Row]) -> LabelScorer:
    """Train a linear model on the rows; returns a function from rows to label probabilities."""
    from ..evaluation.metrics import LinearBaseline, has_sklearn

    if not has_sklearn():
        fix = 'pip install "formers[eval]", or do without: label_filter="none", or a classifier of yours'
        raise Error("the linear label filter needs the package scikit-learn", fix=fix)
    model = LinearBaseline(rows)
    return lambda new: [dict(zip(model.labels, row.tolist(), strict=True)) for row in model.predict_probabilities(new)]


def make_model_scorer(judge: Former, rows: Sequence[Row], multilabel: bool) -> LabelScorer:
    """Check that a fine-tuned model has the labels of the rows; returns a function from rows to probabilities."""
    task = get_task(judge, "classify")
    known, own = set(task.labels or judge.labels), set(flatten_names(row["label"] for row in rows))
    if known != own:
        first, second = (", ".join(sorted(names)[:8]) for names in (known, own))
        what = f"this label filter knows the labels {first}, and the examples have {second}"
        raise Error(what, fix="take a model that was trained on such examples, or 'linear'")
    if (task.kind == "many") != multilabel:
        what = "the examples have several labels each" if multilabel else "the label filter gives several labels"
        rest = "the label filter gives one" if multilabel else "the examples have one"
        raise Error(f"{what}, and {rest}", fix="take 'linear'")

    def score(new: list[Row]) -> list[dict[str, float]]:
        texts = [(row["text"], row["other"]) if row.get("other") else row["text"] for row in new]
        return [one.probabilities for one in judge.classify(texts)]

    return score
