"""Suites: GLUE, KLUE, SQuAD and KorQuAD on the files that their authors publish, with their metrics and averages.

A task of a suite says where its files lie, how their rows are read, and which metrics make its score. Models are handed
in by task; each answers with its own verb. A missing file or model is named, and the average is then marked partial.
KLUE's trees are put as tags, its dialogue states as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..atomic_files import create_file
from ..config import JSONObject, ProgressCallback
from ..data.readers import read_lines, read_text
from ..errors import Error
from ..former import Former
from ..tasks.api import Classification, get_task
from ..tasks.encoding import TaskEncoder, encode_examples
from ..tasks.example_tables import read_squad
from ..tasks.examples import Row, parse_answers, parse_number
from ..text.normalise import compose_nfc
from .metrics import (
    SIMILAR_FROM,
    Answer,
    Tree,
    compute_auprc,
    compute_metrics,
    score_dialogue_states,
    score_klue_answers,
    score_klue_tags,
    score_klue_trees,
    score_relations,
)
from .task import evaluate_generated_text

EMPTY_TEXT = "."  # what a model reads where a file has an empty text, which no verb takes
ENTAILMENT = ("entailment", "neutral", "contradiction")
BINARY = ("0", "1")
NO_SLOTS = "none"  # what is written for a dialogue that says nothing yet


@dataclass(frozen=True)
class Predictions:
    """What a model says of rows: labels, numbers, tags or answers, and for labels the probability of each."""

    answers: list[Answer]
    labels: tuple[str, ...] = ()
    probabilities: np.ndarray | None = None  # (rows, labels)


Scorer = Callable[[list[Answer], Predictions], dict[str, float]]


@dataclass(frozen=True)
class SuiteTask:
    """A task of a suite: its verb, its files by split, how a file is read, its metrics, and the task in whose place it
    stands in the average (MNLI has two parts). `submission` is the name of its file of predictions. `decode` turns
    what a model says into an answer, `tune` are settings of fine-tuning that it needs."""

    name: str
    task: str
    files: Mapping[str, tuple[str, ...]]  # split → where its file may lie, below the folder or in one of its name
    read: Callable[[Path, str], list[Row]]
    score: Scorer
    group: str
    labels: tuple[str, ...] = ()
    submission: str = ""
    decode: Callable[[Answer], Answer] | None = None
    tune: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """The tasks of a suite, and whether their mean is the suite's score."""

    tasks: tuple[SuiteTask, ...]
    has_average: bool = True


@dataclass(frozen=True)
class TaskScore:
    """The metrics of a task, and their mean, which is its score."""

    name: str
    group: str
    num_examples: int
    metrics: dict[str, float]

    @property
    def score(self) -> float:
        """The mean of the task's metrics."""
        return sum(self.metrics.values()) / len(self.metrics)


@dataclass(frozen=True)
class SuiteResult:
    """The scores of the tasks that could be evaluated, why others could not, and the files that were written."""

    suite: str
    split: str
    scores: list[TaskScore]
    missing: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    has_average: bool = True

    @property
    def is_partial(self) -> bool:
        """True if a task of the suite is not in the average."""
        return bool(self.missing)

    @property
    def average(self) -> float | None:
        """The mean over tasks, each of which counts once; None where a suite has no such number, or no task."""
        groups: dict[str, list[float]] = {}
        for one in self.scores:
            groups.setdefault(one.group, []).append(one.score)
        means = [sum(values) / len(values) for values in groups.values()]
        return sum(means) / len(means) if means and self.has_average else None


def evaluate_suite(
    suite: str, folder: str | Path, models: Mapping[str, Former] | Callable[[str], Former | None], *,
    split: str = "dev", tasks: Sequence[str] = (), limit: int | None = None, out: str | Path | None = None,
    overwrite: bool = False, tell: ProgressCallback | None = None,
) -> SuiteResult:  # fmt: skip
    """Evaluate fine-tuned models on a suite: glue, klue, squad or korquad.

    `folder` holds the files as they are published, `models` the model of each task by its name (CoLA, SST-2, MNLI …),
    or finds it. `tasks` are those to evaluate, all by default; `limit` reads only so many rows of each. `out` is a
    folder for predictions in the form that is submitted; the split test has nothing but these."""
    chosen = select_tasks(suite, tasks)
    if split not in ("dev", "test"):
        raise Error(f"a suite is evaluated on dev or test, not on {split!r}", fix="split='dev'")
    if split == "test" and out is None:
        raise Error("the test sets have no labels", fix="write the predictions to submit: out='FOLDER'")
    if not Path(folder).is_dir():
        raise Error("there is no such folder", where=folder, fix=f"give the folder of {suite}'s files")
    scores, files = list[TaskScore](), list[Path]()
    missing: dict[str, str] = {}
    last: tuple[str, Former | None] | None = None  # the parts of a task share a model, which is loaded once
    for task in chosen:
        path = find_task_file(Path(folder), task, split)
        if path is None:
            places = " or ".join(str(Path(task.group) / name) for name in task.files.get(split, ())[:2])
            missing[task.name] = f"no file {places}" if places else f"there is no {split} split"
            continue
        if last is None or last[0] != task.group:
            last = task.group, (models.get(task.group) if isinstance(models, Mapping) else models(task.group))
        if (former := last[1]) is None:
            missing[task.name] = "no model"
            continue
        rows = task.read(path, split)[:limit]
        predictions = predict_suite_rows(former, task, rows, tell)
        if out is not None and (written := write_submission(Path(out), task, rows, predictions, overwrite)) is not None:
            files.append(written)
        if split == "dev":
            metrics = task.score([row["reference"] for row in rows], predictions)
            scores.append(TaskScore(task.name, task.group, len(rows), metrics))
    if not scores and not files:
        reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise Error(f"no task of {suite} can be evaluated ({reasons})", where=folder, fix="see docs/en/evaluation.md")
    return SuiteResult(suite, split, scores, missing, files, SUITES[suite].has_average)


def select_tasks(suite: str, names: Sequence[str]) -> list[SuiteTask]:
    """Select tasks of a suite by their names, or by those of their groups; capitals and hyphens do not matter."""
    if suite not in SUITES:
        raise Error(f"there is no suite {suite!r}", fix="choose " + ", ".join(SUITES))
    all_tasks = SUITES[suite].tasks
    if not names:
        return list(all_tasks)
    chosen = {simplify_name(name) for name in names}
    known = {simplify_name(name) for one in all_tasks for name in (one.name, one.group)}
    if odd := [name for name in names if simplify_name(name) not in known]:
        raise Error(f"{suite} has no task {odd[0]!r}", fix="choose " + ", ".join(one.name for one in all_tasks))
    return [one for one in all_tasks if chosen & {simplify_name(one.name), simplify_name(one.group)}]


def simplify_name(name: str) -> str:
    """Return the letters and digits of a name, as small ones: SST-2, sst2 and SST_2 are the same."""
    return "".join(filter(str.isalnum, name.lower()))


def find_task_folder(folder: Path, name: str) -> Path | None:
    """Find the folder of a task inside another, however its name is spelled."""
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    return next((one for one in inside if one.is_dir() and simplify_name(one.name) == simplify_name(name)), None)


def find_task_file(folder: Path, task: SuiteTask, split: str) -> Path | None:
    """Find the file of a task's split: in a folder of the task's name, in the folder itself, or in any inside it."""
    places = [find_task_folder(folder, task.group), folder, *sorted(one for one in folder.iterdir() if one.is_dir())]
    generic = {"train.tsv", "dev.tsv", "test.tsv"}  # names that several tasks have
    for name in task.files.get(split, ()):
        usable = places[:1] if name in generic and folder.name.lower() != task.group.lower() else places
        for place in usable:
            for suffix in ("", ".xz", ".gz"):
                if place is not None and (path := place / f"{name}{suffix}").is_file():
                    return path
    return None


def read_suite_rows(suite: str, name: str, folder: str | Path, split: str) -> list[Row] | None:
    """Read the rows of a task's split for fine-tuning or evaluation; None where there is no file."""
    task = select_tasks(suite, [name])[0]
    path = find_task_file(Path(folder), task, split)
    return None if path is None else task.read(path, split)


def predict_suite_rows(
    former: Former, task: SuiteTask, rows: Sequence[Row], tell: ProgressCallback | None
) -> Predictions:
    """Ask a model about rows, by the verb of its task."""
    name = former.task["name"] if former.task else former.head.split("@")[0].split("+")[0]
    if name != task.task and not (task.task == "regress" and not former.task and len(former.labels) == 1):
        what = f"the model of {task.name} does {name}, and the task is {task.task}"
        raise Error(what, fix=f"fine-tune one: formers finetune MODEL --task {task.task} --train FILE")
    report = tell and (lambda _, done, total, unit: tell(task.name, done, total, unit))
    if task.task in ("classify", "regress"):
        texts = [fill_empty(row["text"]) for row in rows]
        inputs: list[object] = list(texts)
        if rows[0].get("other") is not None:
            inputs = [(text, fill_empty(row["other"])) for text, row in zip(texts, rows, strict=True)]
        if task.task == "regress":
            return Predictions(former.score(inputs, tell=report))
        labels = tuple(former.task.get("labels") or former.labels)
        if task.labels and set(labels) != set(task.labels):
            what = f"the model of {task.name} has the labels {', '.join(labels)}, the task {', '.join(task.labels)}"
            raise Error(what, fix="load it with the names of the task, in the order of its own: labels=[...]")
        results: list[Classification] = former.classify(inputs, tell=report)
        shares = np.array([[one.probabilities[label] for label in labels] for one in results])
        return Predictions([one.label for one in results], labels, shares)
    if task.task == "tag":
        tagged = former.tag([row["words"] for row in rows], tell=report)
        return decode_answers(task, [[word.tag for word in words] for words in tagged])
    if task.task == "summarise":
        about = get_task(former, task.task)
        encoded = encode_examples(about, rows, TaskEncoder.from_former(former, about))
        return decode_answers(task, evaluate_generated_text(former, about, encoded, rows, report).predictions)
    pairs = [(row["question"], row["context"]) for row in rows]
    return Predictions([one.text for one in former.answer(pairs, tell=report)])


def decode_answers(task: SuiteTask, answers: list[Answer]) -> Predictions:
    """Turn what a model says into the answers of a task."""
    return Predictions(answers if task.decode is None else [task.decode(one) for one in answers])


def fill_empty(text: str) -> str:
    """Return a text that a model can read: a full stop for an empty one."""
    return text if text.strip() else EMPTY_TEXT


def write_submission(
    out: Path, task: SuiteTask, rows: Sequence[Row], predictions: Predictions, overwrite: bool
) -> Path | None:
    """Write predictions as they are submitted: a table of index and prediction (GLUE), or answers by id (SQuAD)."""
    if not task.submission:
        return None
    out.mkdir(parents=True, exist_ok=True)
    path = out / task.submission
    if path.suffix == ".json":
        answers = {row["id"]: answer for row, answer in zip(rows, predictions.answers, strict=True)}
        content = json.dumps(answers, ensure_ascii=False) + "\n"
    else:
        cells = [f"{one:.3f}" if isinstance(one, float) else str(one) for one in predictions.answers]
        lines = [f"{row['id']}\t{cell}" for row, cell in zip(rows, cells, strict=True)]
        content = "\n".join(["index\tprediction", *lines]) + "\n"
    with create_file(path, overwrite) as file:
        file.write(content.encode())
    return path


def pick_label_metrics(*names: str, positive: str | None = None) -> Scorer:
    """Return a scorer that picks metrics of labels; F1 is that of the label `positive`."""

    def score(references: list[Answer], predictions: Predictions) -> dict[str, float]:
        is_there = positive in {*references, *predictions.answers}
        metrics = compute_metrics(
            "classify", references, predictions.answers, **({"positive": positive} if is_there else {})
        )
        return {name: metrics.get(name, 0.0) for name in names}

    return score


def score_similarity(references: list[Answer], predictions: Predictions) -> dict[str, float]:
    """Compute Pearson's and Spearman's correlation (STS-B)."""
    metrics = compute_metrics("regress", references, predictions.answers)
    return {name: metrics[name] for name in ("pearson", "spearman")}


def score_klue_similarity(references: list[Answer], predictions: Predictions) -> dict[str, float]:
    """Compute Pearson's correlation, and F1 of what is similar (KLUE-STS)."""
    similar = [[str(int(value >= SIMILAR_FROM)) for value in side] for side in (references, predictions.answers)]
    f1 = pick_label_metrics("f1", positive="1")(similar[0], Predictions(similar[1]))
    return {"pearson": compute_metrics("regress", references, predictions.answers)["pearson"], **f1}


def score_klue_relations(references: list[Answer], predictions: Predictions) -> dict[str, float]:
    """Compute F1 of relations, and the area under precision over recall (KLUE-RE)."""
    assert predictions.probabilities is not None
    auprc = compute_auprc(references, predictions.probabilities, predictions.labels)
    return {"f1_micro": score_relations(references, predictions.answers), "auprc": auprc}


def score_spans(version: int, language: str) -> Scorer:
    """Return a scorer of answers by SQuAD's script of a version, or KorQuAD's: exact match and F1."""

    def score(references: list[Answer], predictions: Predictions) -> dict[str, float]:
        metrics = compute_metrics("answer", references, predictions.answers, version=version, language=language)
        return {name: metrics[name] for name in ("exact", "f1")}

    return score


def read_glue_table(
    columns: Mapping[str, str], headless: Mapping[str, int] | None = None, is_number: bool = False
) -> Callable[[Path, str], list[Row]]:
    """Return a reader of GLUE's tables: fields between tabs, in which quotes mean nothing. `columns` names those of
    text, other and label; `headless` numbers them in files that have no header (CoLA's train and dev)."""

    def read(path: Path, split: str) -> list[Row]:
        lines = read_lines(path)
        roles: dict[str, int]
        if headless is not None and split != "test":
            roles, first = dict(headless), 0
        else:
            names = [name.strip().lstrip("\ufeff") for name in lines[0].split("\t")]
            titles = {part: name for part, name in columns.items() if part != "label" or split != "test"}
            if lacking := [name for name in titles.values() if name not in names]:
                raise Error(f"there is no column {lacking[0]!r}", where=path, fix="give the file as GLUE publishes it")
            roles, first = {part: names.index(name) for part, name in titles.items()}, 1
            if index := next((name for name in ("index", "id") if name in names), None):
                roles["id"] = names.index(index)
        rows: list[Row] = []
        for number, line in enumerate(lines[first:]):
            fields = line.split("\t")
            if not line.strip():
                continue
            if len(fields) <= max(roles.values()):
                what = f"a line has {len(fields)} fields, {max(roles.values()) + 1} are wanted"
                raise Error(what, where=f"{path}, line {number + first + 1}", fix="repair it, or leave it out")
            row: Row = {part: compose_nfc(fields[at]).strip() for part, at in roles.items()}
            row = {"id": str(number), "other": None, **row}
            if split != "test":
                if row["label"] in ("", "-"):  # MNLI has pairs that nobody agreed on
                    continue
                if is_number and parse_number(row["label"]) is None:
                    where = f"{path}, line {number + first + 1}"
                    raise Error(f"the label {row['label']!r} is not a number", where=where, fix="repair it")
                row["label"] = float(row["label"]) if is_number else row["label"]
                row["reference"] = row["label"]
            rows.append(row)
        return check_rows(rows, path)

    return read


def check_rows(rows: list[Row], path: Path) -> list[Row]:
    """Return rows; refuse a file without any."""
    if not rows:
        raise Error("there are no rows", where=path, fix="give the file as it is published")
    return rows


def read_json_list(path: Path) -> list[JSONObject]:
    """Read a file that is one list of records, or has one under `data`."""
    try:
        value = json.loads(read_text(path), strict=False)
    except (ValueError, RecursionError) as error:
        raise Error(f"this is no JSON ({error})", where=path, fix="give the file as it is published") from None
    value = value.get("data") if isinstance(value, dict) else value
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise Error("there is no list of records", where=path, fix="give the file as it is published")
    return value


def read_klue_records(make_row: Callable[[JSONObject], Row]) -> Callable[[Path, str], list[Row]]:
    """Return a reader of KLUE's lists of records; `make_row` makes the row of one."""

    def read(path: Path, split: str) -> list[Row]:
        rows: list[Row] = []
        for number, record in enumerate(read_json_list(path), 1):
            try:
                row = make_row(record)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                where = f"{path}, record {number}"
                raise Error(f"a field is missing or invalid ({error})", where=where, fix="repair it") from None
            rows.append({"id": str(record.get("guid", number)), **row, "reference": row["label"]})
        return check_rows(rows, path)

    return read


def make_klue_topic(record: JSONObject) -> Row:
    """Make a row of KLUE-TC (YNAT)."""
    return {"text": record["title"], "other": None, "label": str(record["label"])}


def make_klue_similarity(record: JSONObject) -> Row:
    """Make a row of KLUE-STS, with the mean of the annotators' scores."""
    score = float(record["labels"]["real-label"])
    return {"text": record["sentence1"], "other": record["sentence2"], "label": score}


def make_klue_inference(record: JSONObject) -> Row:
    """Make a row of KLUE-NLI."""
    return {"text": record["premise"], "other": record["hypothesis"], "label": str(record["gold_label"])}


def make_klue_relation(record: JSONObject) -> Row:
    """Make a row of KLUE-RE: the sentence with its two entities between marks, as in KLUE's baseline."""
    text, marks = str(record["sentence"]), []
    for part, mark in (("subject_entity", "subj"), ("object_entity", "obj")):
        entity = record[part]
        marks += [(int(entity["start_idx"]), f"<{mark}>"), (int(entity["end_idx"]) + 1, f"</{mark}>")]
    for place, mark in sorted(marks, key=lambda pair: (pair[0], not pair[1].startswith("</")), reverse=True):
        text = text[:place] + mark + text[place:]
    return {"text": text, "other": None, "label": str(record["label"])}


def read_klue_tags(path: Path, split: str) -> list[Row]:
    """Read KLUE-NER: a character and its tag in each line, comments with ##, a blank line between sentences. Spaces
    between words are left out, as in KLUE's baseline."""
    rows: list[Row] = []
    words, tags = list[str](), list[str]()
    for number, line in enumerate([*read_text(path).split("\n"), ""], 1):
        if line.startswith("##"):
            continue
        character, tab, tag = line.partition("\t")
        if not line.strip():
            if words:
                rows.append({"id": str(len(rows)), "words": words, "tags": tags, "reference": tags})
            words, tags = [], []
        elif not tab or not tag.strip():
            raise Error("a line has a character and its tag", where=f"{path}, line {number}", fix="repair it")
        elif character.strip():
            words.append(compose_nfc(character))
            tags.append(tag.strip())
    return check_rows(rows, path)


def read_klue_trees(path: Path, split: str) -> list[Row]:
    """Read KLUE-DP: a word in each line (number, word, lemma, tags, head, relation), a line with ## before a sentence.
    A model learns the tags of `encode_tree`."""
    rows: list[Row] = []
    words, tree = list[str](), list[tuple[int, str]]()
    name = ""
    for number, line in enumerate([*read_text(path).split("\n"), ""], 1):
        if not line.strip() or line.startswith("#"):
            if words:
                rows.append(
                    {"id": name or str(len(rows)), "words": words, "tags": encode_tree(tree), "reference": tree}
                )
            words, tree = [], []
            name = line.strip("#").split("\t")[0].strip()
            continue
        fields = [one.strip() for one in line.split("\t")]
        if len(fields) < 6 or not fields[4].isdecimal() or not fields[5] or fields[0] != str(len(words) + 1):
            what = "a line has the word's number, the word, its lemma, its tags, its head's number and its relation"
            raise Error(what, where=f"{path}, line {number}", fix="repair it")
        words.append(compose_nfc(fields[1]))
        tree.append((int(fields[4]), fields[5]))
    return check_rows(rows, path)


def encode_tree(tree: Tree) -> list[str]:
    """Return a tag for each word of a tree: its relation and how far away its head is, NP_SBJ>2 to the right or AP<1 to
    the left, VP^ for the root (dependency parsing as tagging, Strzyz et al. 2019)."""
    tags = []
    for place, (head, name) in enumerate(tree, 1):
        distance = head - place
        tags.append(f"{name}^" if head == 0 else f"{name}{'>' if distance > 0 else '<'}{abs(distance)}")
    return tags


def decode_tree(tags: Sequence[str]) -> list[tuple[int, str]]:
    """Return the tree of tags; a word whose head would be outside of the sentence is a root."""
    tree = []
    for place, tag in enumerate(tags, 1):
        match = re.fullmatch(r"(.*)([<>])(\d+)", tag)
        distance = 0 if match is None else int(match[3]) * (1 if match[2] == ">" else -1)
        head = place + distance if distance and 0 < place + distance <= len(tags) else 0
        tree.append((head, tag.rstrip("^") if match is None else match[1]))
    return tree


def read_klue_dialogues(path: Path, split: str) -> list[Row]:
    """Read KLUE-DST (Wizard of Seoul): a row for each turn of the user, with all that was said, the last turn first,
    because long texts are cut at their end; a model writes the state."""
    rows: list[Row] = []
    for number, record in enumerate(read_json_list(path), 1):
        turns: list[str] = []
        try:
            for turn in record["dialogue"]:
                turns.insert(0, f"{turn['role']}: {compose_nfc(str(turn['text'])).strip()}")
                if turn["role"] != "user":
                    continue
                state = [clean_slot(str(slot)) for slot in turn["state"]]
                name = f"{record.get('guid', number)}-{sum(one.startswith('user: ') for one in turns) - 1}"
                target = "; ".join(state) or NO_SLOTS
                rows.append({"id": name, "text": "\n".join(turns), "target": target, "reference": state})
        except (KeyError, TypeError) as error:
            where = f"{path}, record {number}"
            raise Error(f"a field is missing or invalid ({error})", where=where, fix="repair it") from None
    return check_rows(rows, path)


def decode_state(text: str) -> list[str]:
    """Return the slots of a state that a model wrote, each once."""
    slots = dict.fromkeys(map(clean_slot, text.split(";")))
    return [slot for slot in slots if slot not in ("", NO_SLOTS)]


def clean_slot(text: str) -> str:
    """Return a slot (domain-slot-value) without spaces that a tokenizer may add around hyphens."""
    return re.sub(r"\s*-\s*", "-", " ".join(compose_nfc(text).split()))


def read_questions(path: Path, split: str) -> list[Row]:
    """Read SQuAD's, KorQuAD's and KLUE-MRC's nested form."""
    rows: list[Row] = []
    for _, item in read_squad(read_json_list(path), path):
        is_impossible = item.get("is_impossible") is True
        answers = [] if is_impossible else [text for text, _ in parse_answers(item.get("answers"), None)]
        row = {"id": str(item["id"]), "question": item["question"], "context": item["context"]}
        nested = [] if is_impossible else item.get("answers", [])
        rows.append({**row, "answers": nested, "is_impossible": is_impossible, "reference": answers})
    return check_rows(rows, path)


def make_glue_task(
    name: str, score: Scorer, columns: Mapping[str, str], labels: tuple[str, ...] = (), *, task: str = "classify",
    headless: Mapping[str, int] | None = None, part: str = "", more_files: Mapping[str, tuple[str, ...]] | None = None,
) -> SuiteTask:  # fmt: skip
    """Make a task of GLUE; `part` is matched or mismatched (MNLI), whose test sets are submitted apart."""
    ending = f"_{part}.tsv" if part else ".tsv"
    usual = {"train": "train.tsv", "dev": f"dev{ending}", "test": f"test{ending}"}
    files = {split: (name, *(more_files or {}).get(split, ())) for split, name in usual.items()}
    shown = name + {"": "", "matched": "-m", "mismatched": "-mm"}[part]
    read = read_glue_table(columns, headless, task == "regress")
    return SuiteTask(shown, task, files, read, score, name, labels, submission=f"{shown}.tsv")


def make_klue_task(
    name: str, stem: str, task: str, read: Callable[[Path, str], list[Row]], score: Scorer,
    decode: Callable[[Answer], Answer] | None = None, tune: Mapping[str, int] | None = None,
) -> SuiteTask:  # fmt: skip
    """Make a task of KLUE, whose files are named by a stem and a version. Answers of a task with a `decode` are not
    labels; they are written as JSON by ids."""
    suffix = ".tsv" if task == "tag" else ".json"
    files = {
        split: tuple(f"{stem}-{version}_{split}{suffix}" for version in ("v1.1", "v1")) for split in ("train", "dev")
    }
    submission = "" if decode is None else f"{name}.json"
    return SuiteTask(name, task, files, read, score, name, submission=submission, decode=decode, tune=tune or {})


ACCURACY = pick_label_metrics("accuracy")
F1_ACCURACY = pick_label_metrics("f1", "accuracy", positive="1")
SENTENCES = {"text": "sentence1", "other": "sentence2"}
MNLI_COLUMNS = {**SENTENCES, "label": "gold_label"}
MRPC_FILES = {"train": ("msr_paraphrase_train.txt",), "test": ("msr_paraphrase_test.txt",)}
ENTAILMENT_2 = ("entailment", "not_entailment")
GLUE = (
    make_glue_task("CoLA", pick_label_metrics("matthews"), {"text": "sentence"}, BINARY,
                   headless={"label": 1, "text": 3}),
    make_glue_task("SST-2", ACCURACY, {"text": "sentence", "label": "label"}, BINARY),
    make_glue_task("MRPC", F1_ACCURACY, {"text": "#1 String", "other": "#2 String", "label": "Quality"}, BINARY,
                   more_files=MRPC_FILES),
    make_glue_task("STS-B", score_similarity, {**SENTENCES, "label": "score"}, task="regress"),
    make_glue_task("QQP", F1_ACCURACY, {"text": "question1", "other": "question2", "label": "is_duplicate"}, BINARY),
    make_glue_task("MNLI", ACCURACY, MNLI_COLUMNS, ENTAILMENT, part="matched"),
    make_glue_task("MNLI", ACCURACY, MNLI_COLUMNS, ENTAILMENT, part="mismatched"),
    make_glue_task("QNLI", ACCURACY, {"text": "question", "other": "sentence", "label": "label"}, ENTAILMENT_2),
    make_glue_task("RTE", ACCURACY, {**SENTENCES, "label": "label"}, ENTAILMENT_2),
    make_glue_task("WNLI", ACCURACY, {**SENTENCES, "label": "label"}, BINARY),
)  # fmt: skip
KLUE = (
    make_klue_task("TC", "ynat", "classify", read_klue_records(make_klue_topic), pick_label_metrics("f1_macro")),
    make_klue_task("STS", "klue-sts", "regress", read_klue_records(make_klue_similarity), score_klue_similarity),
    make_klue_task("NLI", "klue-nli", "classify", read_klue_records(make_klue_inference), ACCURACY),
    make_klue_task("NER", "klue-ner", "tag", read_klue_tags, lambda right, got: score_klue_tags(right, got.answers)),
    make_klue_task("RE", "klue-re", "classify", read_klue_records(make_klue_relation), score_klue_relations),
    make_klue_task(
        "DP", "klue-dp", "tag", read_klue_trees, lambda right, got: score_klue_trees(right, got.answers), decode_tree
    ),
    make_klue_task(
        "MRC", "klue-mrc", "answer", read_questions, lambda right, got: score_klue_answers(right, got.answers)
    ),
    make_klue_task(
        "DST", "wos", "summarise", read_klue_dialogues,
        lambda right, got: score_dialogue_states(right, got.answers), decode_state, {"max_output_tokens": 512},
    ),
)  # fmt: skip


def make_question_task(name: str, stem: str, version: int, language: str, pattern: str) -> SuiteTask:
    """Make a task of SQuAD's form; `pattern` names its files by split."""
    files = {split: (pattern.format(split=split, stem=stem),) for split in ("train", "dev", "test")}
    score = score_spans(version, language)
    return SuiteTask(name, "answer", files, read_questions, score, name, submission=f"{name}-predictions.json")


SUITES: dict[str, Suite] = {
    "glue": Suite(GLUE),
    "klue": Suite(KLUE),
    "squad": Suite((
        make_question_task("SQuAD1.1", "v1.1", 1, "en", "{split}-{stem}.json"),
        make_question_task("SQuAD2.0", "v2.0", 2, "en", "{split}-{stem}.json"),
    ), has_average=False),
    "korquad": Suite(
        (make_question_task("KorQuAD1.0", "v1.0", 1, "ko", "KorQuAD_{stem}_{split}.json"),), has_average=False
    ),
}  # fmt: skip


def list_groups(suite: str) -> Iterable[str]:
    """List the tasks of a suite that have a model each."""
    return dict.fromkeys(task.group for task in SUITES[suite].tasks)
