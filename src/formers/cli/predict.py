"""formers classify, score, tag, answer, choose, evaluate, synthetic: a model's predictions, as text on a terminal and
as JSON lines in a pipe, its metrics on a file, and test sets made by rule."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ..config import JSONObject, count_noun
from ..errors import Error, UnsupportedTask
from ..verbs import can_fill
from . import common
from .common import (
    ColumnRoles,
    CommandInput,
    FileOption,
    JsonFlag,
    ModelArgument,
    OverwriteFlag,
    Placement,
    TaskOption,
    TextArgument,
    TextFileOptions,
)
from .terminal import SafeConsole, escape_line, print_json, print_table, print_text, show_progress

if TYPE_CHECKING:
    from ..evaluation.few_shot import FewShotResult
    from ..former import Former

Result = Any  # dynamic: by the verb a label, a number, tags, an answer or a text
OtherOption = Annotated[str | None, Parameter(help="The second text of a pair, for all texts.")]


def run_verb(
    model: str, verb: str, inputs: str | list[CommandInput], *more: object, placement: Placement | None,
    task: str | None = None, **options: object,
) -> Result:  # fmt: skip
    """Load a model and apply a verb of it, or of one task of its mixture; of a list, one result for each text, None for
    a blank one."""
    with show_progress(SafeConsole(stderr=True), verb, delay_seconds=2.0) as tell, common.summarise_warnings():
        former = common.load_model(model, placement).select_task(task)
        method = getattr(former, verb)  # dynamic: a verb by its name
        if isinstance(inputs, str):
            return method(inputs, *more, tell=tell, **options)
        pairs = can_read_pairs(former)  # with a tab between the two
        texts = [tuple(t.split("\t", 1)) if pairs and isinstance(t, str) and "\t" in t else t for t in inputs]
        results = iter(method([text for text in texts if text], tell=tell, **options))
        return [next(results) if text else None for text in texts]


def can_read_pairs(former: Former) -> bool:
    """Return whether a tab may separate two texts: the model was not trained on single texts alone."""
    if former.task:
        return former.task["name"] in ("classify", "regress") and former.task.get("takes_pairs") is not False
    return former.head.split("@")[0] == "classify" or (former.is_encoder_decoder and former.head == "lm")


def collect_inputs(
    texts: Iterable[str], file: Path | None, reading: TextFileOptions | None, other: str | None, words: bool = False
) -> list[CommandInput]:
    """Collect the texts of the command line and of a file; a pair is given with --other, or has a tab between. A blank
    row of a file keeps its place."""
    inputs: list[CommandInput] = list(texts)
    if blank := next((n for n, text in enumerate(inputs, 1) if not text.strip()), None):
        raise Error(f"text {blank} is empty", fix="leave empty texts out")
    if file is not None:
        more, note = common.read_inputs(file, reading or TextFileOptions(), words)
        if gaps := sum(not one for one in more):
            note = "; ".join(filter(None, (note, f"{gaps:,} without text, answered by null")))
        if note:
            SafeConsole(stderr=True).print(f"{escape_line(file)}: {note}")
        inputs += more
    if not any(inputs):
        raise Error("there is no text", fix="give texts after the model, or --file FILE")
    if other is None:
        return inputs
    if any(isinstance(one, tuple) or "\t" in one for one in inputs):
        raise Error("a pair has its second text already", fix="leave --other out, or name one column: --column NAME")
    return [(one, other) if one else one for one in inputs]


def print_results(rows: Sequence[Result], format_row: Callable[[int, Result], str], as_json: bool) -> None:
    """Print one line of JSON for each result; on a terminal, unless JSON is asked for, text for people."""
    for number, row in enumerate(rows):
        if as_json or not sys.stdout.isatty():
            print_json(row)
        else:
            print_text("" if row is None else format_row(number, row))


def format_one_line(text: str | tuple[str, ...] | list[str]) -> str:
    """Format a text or a pair in one line."""
    return " | ".join(" ".join(str(part).split()) for part in (text if isinstance(text, tuple) else (text,)))


def classify(
    model: ModelArgument, *texts: TextArgument, task: TaskOption = None, other: OtherOption = None,
    file: FileOption = None, as_json: JsonFlag = False, placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Print the label of each text and its probability (text classification); as JSON, with all probabilities.

    formers classify runs/textcnn-classify-1/model "A fine film." "Dull."
    formers classify runs/bert-classify-1/model --file reviews.txt
    formers classify runs/bert-classify-1/model --file pairs.tsv --column premise,hypothesis > labels.jsonl
    formers classify runs/t5-mixture-1/model "A fine film." --task sst2

    Args:
        texts: Texts; for a model that reads pairs, both texts with a tab between them.
    """
    inputs = collect_inputs(texts, file, reading, other)
    rows = [one and asdict(one) for one in run_verb(model, "classify", inputs, task=task, placement=placement)]
    wide = max(map(len, next(filter(None, rows))["probabilities"]))

    def format_row(number: int, row: JSONObject) -> str:
        name = ", ".join(row["labels"]) or row["label"]
        return f"{row['probability']:6.1%}  {name:<{wide}}  {format_one_line(inputs[number])}"

    print_results(rows, format_row, as_json)


def score(
    model: ModelArgument, *texts: TextArgument, task: TaskOption = None, other: OtherOption = None,
    file: FileOption = None, as_json: JsonFlag = False, placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Print the score of each text or pair (regression): a rating or similarity; with a language model, the text's
    log-probability in nats and its perplexity.

    formers score runs/bert-regress-1/model "A man is running." --other "Someone runs."
    formers score my-gpt2 "The people of the United States"

    Args:
        texts: Texts, or pairs of texts with a tab between them.
    """
    inputs = collect_inputs(texts, file, reading, other)
    rows = [
        {"total": s.total_log_prob, "tokens": len(s.tokens), "perplexity": s.perplexity}
        if s is not None and not isinstance(s, float)
        else s
        for s in run_verb(model, "score", inputs, task=task, placement=placement)
    ]

    def format_row(number: int, row: dict[str, float] | float) -> str:
        form = "{total:9.2f} nats  perplexity {perplexity:<9.4g}"
        result = form.format(**row) if isinstance(row, dict) else f"{row:9.4f}"
        return f"{result}  {format_one_line(inputs[number])}"

    print_results(rows, format_row, as_json)


def tag(
    model: ModelArgument, *texts: TextArgument, file: FileOption = None, entities: bool = False,
    as_json: JsonFlag = False, placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Print the words of each text with their tags (token classification, NER), or the entities that the tags mark.

    formers tag runs/bert-tag-1/model "Anna lives in Seoul."
    formers tag runs/bert-tag-1/model "Anna lives in Seoul." --entities
    formers tag runs/bert-tag-1/model --file test.conll

    Args:
        texts: Texts. --file may also be a CoNLL file, whose words are read.
        entities: Print entities such as persons and places, each with its label, instead of tagged words.
    """
    inputs = collect_inputs(texts, file, reading, None, words=True)
    rows = run_verb(model, "tag", inputs, entities=entities, placement=placement)

    def format_row(number: int, row: list[JSONObject]) -> str:
        keys = ("score", "text", "label") if entities else ("probability", "word", "tag")
        cells = [tuple(word[key] for key in keys) for word in row]
        wide = max((len(text) for _, text, _ in cells), default=0)
        lines = [f"{probability:6.1%}  {text:<{wide}}  {label}" for probability, text, label in cells]
        return "\n".join(["", *lines] if number else lines)

    print_results([None if row is None else [asdict(word) for word in row] for row in rows], format_row, as_json)


def answer(
    model: ModelArgument, question: str, context: str | None = None, *, file: FileOption = None, best: int = 1,
    abstain: Annotated[bool | None, Parameter(negative="--no-abstain")] = None, as_json: JsonFlag = False,
    placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Find the answer to a question in a context (extractive question answering).

    formers answer runs/bert-answer-1/model "Who wrote it?" "It was written by Kim Sowol."
    formers answer runs/bert-answer-1/model "Who wrote it?" --file book.txt --best 3

    Args:
        question: The question.
        context: The text that contains the answer, of any length; or give it with --file.
        best: How many answers to print.
        abstain: Allow "no answer"; --no-abstain does not. By default as the model was trained.
    """
    if file is not None:
        context = common.read_whole_text(file, reading or TextFileOptions())
    if context is None:
        raise Error("there is no context", fix="give it after the question, or --file FILE")
    answers = run_verb(model, "answer", question, context, best=best, abstain=abstain, placement=placement)
    rows = [asdict(one) for one in (answers if isinstance(answers, list) else [answers])]

    def format_row(number: int, row: JSONObject) -> str:
        where = f"  ({row['start']}-{row['end']})" if row["start"] >= 0 else "no answer"
        return f"{row['probability']:6.1%}  {format_one_line(row['text'])}{where}"

    print_results(rows, format_row, as_json)


def choose(
    model: ModelArgument, question: str, *choices: TextArgument, as_json: JsonFlag = False,
    placement: Placement | None = None,
) -> None:  # fmt: skip
    """Print the likeliest of several choices (multiple choice), with all probabilities.

    formers choose runs/bert-choose-1/model "She opened the umbrella because" "it rained." "it was dry."

    Args:
        question: The text before the choices.
        choices: The choices, two or more.
    """
    row = asdict(run_verb(model, "choose", question, list(choices), placement=placement))
    order = sorted(zip(row["probabilities"], choices, strict=True), reverse=True)
    lines = [f"{probability:6.1%}  {format_one_line(text)}" for probability, text in order]
    print_results([row], lambda *_: "\n".join(lines), as_json)


@Parameter(name="*")
@dataclass(frozen=True)
class ShotOptions:
    """Few-shot evaluation: the task as a prompt."""

    shots: Annotated[
        str | None, Parameter(help="Put the task as a prompt with so many solved examples: 0,1,8 tries each number.")
    ] = None
    train: Annotated[
        Path | None, Parameter(help="With --shots: draw the examples from this file; by default from the other rows.")
    ] = None
    template: Annotated[
        str | None,
        Parameter(
            help="With --shots: how a row is written: 'Review: {text}\\nSentiment: {answer}'. \\n is a new line."
        ),
    ] = None
    instruction: Annotated[
        str, Parameter(help="With --shots: what stands once, before all examples.", show_default=False)
    ] = ""
    label_words: Annotated[
        str | None, Parameter(help="With --shots: the words that stand for labels: 0=bad,1=good.")
    ] = None
    null_context: Annotated[
        str | None,
        Parameter(
            help="With --shots: what an answer is compared after, without its question; the template's last line."
        ),
    ] = None
    scoring: Annotated[
        str | None,
        Parameter(help="With --shots: likelihood, generation, or both: likelihood,generation."),
    ] = None
    draws: Annotated[int, Parameter(help="With --shots: how often examples are drawn anew.")] = 3
    same_shots: Annotated[
        bool, Parameter(help="With --shots: all rows of a draw share their examples, which are read once.")
    ] = False
    seed: Annotated[int, Parameter(help="With --shots: the seed of the draws.")] = 0
    max_new_tokens: Annotated[
        int | None,
        Parameter(help="With --shots: the longest answer that is written; by default a little more than needed."),
    ] = None

    def to_keywords(self) -> JSONObject:
        """Return the options as keywords of `evaluate`; refuse those that do nothing without --shots."""
        settings = asdict(self)
        if self.shots is None:
            usual = asdict(ShotOptions())
            if odd := next((name for name, value in settings.items() if value != usual[name]), None):
                raise Error(f"--{odd.replace('_', '-')} goes with --shots", fix="add for example --shots 0,1,8")
            return {}
        for name in ("template", "instruction", "null_context"):
            settings[name] = settings[name] and settings[name].replace("\\n", "\n")
        settings["scoring"] = None if self.scoring is None else self.scoring.split(",")
        return settings


@Parameter(name="*")
@dataclass(frozen=True)
class SuiteOptions:
    """A suite of tasks on the files that its authors publish."""

    suite: Annotated[
        Literal["glue", "klue", "squad", "korquad"] | None,
        Parameter(help="Evaluate a model for each task: MODEL is a folder with one for each, DATA that of the files."),
    ] = None
    tasks: Annotated[str | None, Parameter(help="With --suite: only these tasks: CoLA,RTE.")] = None
    split: Annotated[
        Literal["dev", "test"], Parameter(help="With --suite: test writes the predictions to submit to --out.")
    ] = "dev"
    out: Annotated[
        Path | None, Parameter(help="With --suite: a folder for predictions in the form of a submission.")
    ] = None
    finetune_to: Annotated[
        Path | None,
        Parameter(help="With --suite: first fine-tune MODEL to each task, into this folder; those in it are kept."),
    ] = None
    config: Annotated[Path | None, Parameter(help="With --finetune-to: a YAML file with settings of fine-tuning.")] = (
        None
    )
    overwrite: OverwriteFlag = False

    def check(self) -> None:
        """Refuse options that do nothing without --suite."""
        usual = asdict(SuiteOptions())
        odd = next((name for name, value in asdict(self).items() if value != usual[name]), None)
        if self.suite is None and odd is not None:
            raise Error(f"--{odd.replace('_', '-')} goes with --suite", fix="add for example --suite glue")
        if self.config is not None and self.finetune_to is None:
            raise Error("--config goes with --finetune-to", fix="add --finetune-to FOLDER, or leave it out")


def evaluate(
    model: ModelArgument, data: Path, *,
    kind: Literal["perplexity", "pairs", "choices", "cloze", "task"] | None = None,
    task: str | None = None, columns: ColumnRoles = None, stride: int | None = None, memory_length: int | None = None,
    batch_size: int = 16, limit: int | None = None, few_shot: ShotOptions | None = None,
    suites: SuiteOptions | None = None,
    as_json: Annotated[bool, Parameter(help="Print one line of JSON.")] = False, placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Evaluate a model on a file: perplexity, minimal pairs, choices, last words, the metrics of its task, a task as a
    prompt with few examples, or a suite of tasks.

    formers evaluate my-gpt2 test.txt --stride 256
    formers evaluate my-bert blimp.jsonl
    formers evaluate formers/bert-mini minimal-pairs-ko
    formers evaluate my-gpt2 copa.jsonl --kind choices
    formers evaluate runs/bert-classify-1/model nsmc.test.tsv
    formers evaluate runs/t5-mixture-1/model sst2.test.tsv --task sst2
    formers evaluate my-gpt2 nsmc.test.tsv --shots 0,1,8 --train nsmc.train.tsv --label-words 0=부정,1=긍정
    formers evaluate runs/glue GLUE --suite glue
    formers evaluate my-bert GLUE --suite glue --tasks CoLA,RTE --finetune-to runs/glue

    Args:
        data: Texts, pairs (good and bad), choices, or labelled examples: txt, jsonl, csv, tsv, parquet, conll,
            SQuAD's json. minimal-pairs-en and minimal-pairs-ko are grammatical pairs that come with formers. With
            --suite, the folder of its files.
        kind: What to compute; by default the columns and the model decide. cloze predicts the last word of each text.
        task: The task of a model that was trained on a mixture, by its name. With --shots, what the rows are: classify,
            choose, complete (a text and its target), answer, translate or summarise; by default the columns decide.
        stride: For texts longer than the context: how many tokens of each window count; half of the context by default.
        memory_length: How many hidden states Transformer-XL and XLNet keep in memory; by default as the model says.
        batch_size: Texts in a batch.
        limit: Read only this many examples, from the first on.
    """
    from ..evaluation.api import evaluate as run_evaluation
    from ..evaluation.few_shot import FewShotResult

    shot_settings, suites = (few_shot or ShotOptions()).to_keywords(), suites or SuiteOptions()
    suites.check()
    if suites.suite is not None:
        if shot_settings or any(option is not None for option in (kind, task, columns)):
            raise Error("--suite knows its tasks and columns", fix="leave --shots, --kind, --task and --columns out")
        if any(option is not None for option in (stride, memory_length, reading)):
            what = "--suite reads its files and texts in its own way"
            raise Error(what, fix="leave --stride, --memory-length and options of reading such as --encoding out")
        return run_suite(model, data, suites, limit, as_json, placement)
    if shot_settings and not (stride is None and memory_length is None):
        what = "--stride and --memory-length are for texts, and --shots makes prompts, which are read whole"
        raise Error(what, fix="leave them out")
    options: JSONObject = {"batch_size": batch_size, "limit": limit, **shot_settings}
    if not shot_settings:
        options |= {"stride": stride, "memory_length": memory_length}
    options |= (reading or TextFileOptions()).to_keywords()
    with show_progress(SafeConsole(stderr=True), "evaluate", delay_seconds=2) as tell, common.summarise_warnings():
        former = common.load_model(model, placement, tell)
        evaluation = run_evaluation(former, data, kind, task=task, columns=columns, tell=tell, **options)
    if isinstance(evaluation, FewShotResult):
        return print_few_shot(evaluation, as_json)
    if as_json:
        quoted = {"signatures": evaluation.signatures} if evaluation.signatures else {}
        return print_json(
            {"kind": evaluation.kind, "examples": evaluation.num_examples, **evaluation.metrics, **quoted}
        )
    console = SafeConsole()
    console.print(f"{evaluation.kind}, {count_noun(evaluation.num_examples, 'example')} ({evaluation.summary})")
    for name, value in evaluation.metrics.items():
        number = f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value > 1e4 else f"{value:.4f}"
        console.print(f"{escape_line(name):<26} {number}")
    for name, words in evaluation.signatures.items():
        console.print(f"{name:<26} {words}")
    if evaluation.kind == "perplexity" and can_fill(former):
        console.print("pseudo-likelihoods: each token is predicted from both sides; not comparable with a decoder's")
    return None


def print_few_shot(result: FewShotResult, as_json: bool) -> None:
    """Print a row of metrics for each number of shots, the mean over the draws and their standard deviation."""
    if as_json:
        scores = [
            {"shots": one.shots, "mean": one.mean, "spread": one.spread, "draws": one.draws, "shortened": one.shortened}
            for one in result.scores
        ]
        fields = {"task": result.task, "examples": result.num_examples, "prompt": result.prompt}
        return print_json({**fields, "majority": result.majority, "scores": scores, "notes": result.notes})
    console = SafeConsole()
    console.print(f"{result.task}, {count_noun(result.num_examples, 'example')} ({result.summary})")
    console.print("a prompt:")
    for line in result.prompt.splitlines():
        console.print(f"  | {escape_line(line)}")
    names = list(result.scores[0].mean)
    rows = []
    for one in result.scores:
        mean, spread, draws = one.mean, one.spread, len(one.draws)
        cells = [f"{mean[n]:.4f}" + (f" ± {spread[n]:.4f}" if draws > 1 else "") for n in names]
        rows.append([str(one.shots), str(draws), *cells])
    print_table(rows, ["shots", "draws", *names])
    if result.majority is not None:
        console.print(f"the most frequent label is right in {result.majority:.4f}")
    return None


def run_suite(
    model: str, data: Path, options: SuiteOptions, limit: int | None, as_json: bool, placement: Placement | None
) -> None:
    """Evaluate the models of a suite, fine-tuning them first if that is asked for, and print the scores."""
    from ..evaluation.suites import evaluate_suite, find_task_folder, select_tasks

    assert options.suite is not None
    names = [name.strip() for name in options.tasks.split(",")] if options.tasks else []
    chosen = select_tasks(options.suite, names)
    groups = list(dict.fromkeys(one.group for one in chosen))
    if options.finetune_to is not None:
        finetune_suite(model, data, options, groups, placement)
        model = str(options.finetune_to)
    is_folder = Path(model).is_dir()
    if not is_folder and not model.startswith(("formers/", "hub:")):
        raise Error("there is no such folder", where=model, fix="give a model, or a folder with one for each task")
    files = ("formers.json", "config.json", "run.json")
    is_single = not is_folder or any((Path(model) / name).is_file() for name in files)
    if is_single and len(groups) > 1 and options.suite in ("glue", "klue"):
        what = f"this is one model, and {options.suite} needs one for each task"
        fix = (
            "give a folder with one for each (FOLDER/CoLA …), add --finetune-to FOLDER, or name its task: --tasks CoLA"
        )
        raise Error(what, where=model, fix=fix)

    with show_progress(SafeConsole(stderr=True), "evaluate", delay_seconds=2) as tell, common.summarise_warnings():

        def load_task_model(group: str) -> Former | None:
            folder = Path(model) if is_single else find_task_folder(Path(model), group)
            return None if folder is None else common.load_model(str(folder), placement, tell)

        result = evaluate_suite(
            options.suite, data, load_task_model, split=options.split, tasks=names, limit=limit, out=options.out,
            overwrite=options.overwrite, tell=tell,
        )  # fmt: skip
    if as_json:
        tasks = [
            {"task": one.name, "examples": one.num_examples, "score": one.score, **one.metrics} for one in result.scores
        ]
        return print_json({
            "suite": result.suite, "split": result.split, "tasks": tasks, "average": result.average,
            "partial": result.is_partial, "missing": result.missing, "files": [str(path) for path in result.files],
        })  # fmt: skip
    console = SafeConsole()
    if result.scores:
        cells = [
            [
                one.name,
                f"{one.num_examples:,}",
                f"{one.score:.4f}",
                ", ".join(f"{n} {v:.4f}" for n, v in one.metrics.items()),
            ]
            for one in result.scores
        ]
        print_table(cells, ["task", "examples", "score", "metrics"])
    for name, why in result.missing.items():
        console.print(f"missing: {name} ({why})")
    if result.average is not None:
        kind = f"average of {count_noun(len({one.group for one in result.scores}), 'task')}"
        kind = f"PARTIAL {kind}, not comparable with published ones" if result.is_partial else kind
        console.print(f"{kind}: {result.average:.4f}")
    for path in result.files:
        console.print(f"written: {escape_line(path)}")
    return None


SUITE_COLUMNS = {
    "classify": ("text", "other", "label"), "regress": ("text", "other", "label"), "tag": ("words", "tags"),
    "answer": ("question", "context", "answers", "id"), "summarise": ("text", "target"),
}  # fmt: skip


def finetune_suite(
    model: str, data: Path, options: SuiteOptions, groups: Sequence[str], placement: Placement | None
) -> None:
    """Fine-tune a model to each task that has training and validation files, unless that was done before."""
    from ..evaluation.suites import read_suite_rows, select_tasks
    from ..training.runs.finetune import finetune

    assert options.suite is not None
    assert options.finetune_to is not None
    console = SafeConsole(stderr=True)
    for group in groups:
        task, out = select_tasks(options.suite, [group])[0], options.finetune_to / group
        train, valid = (read_suite_rows(options.suite, group, data, split) for split in ("train", "dev"))
        if train is None or valid is None or (out / "model").is_dir():
            continue
        if task.task == "tag":  # KLUE-DP has distances that no training sentence has: they count as wrong afterwards
            known = {tag for row in train for tag in row["tags"]}
            valid = [row for row in valid if known.issuperset(row["tags"])] or train
        console.print(f"fine-tuning to {group}: {count_noun(len(train), 'example')}, into {escape_line(out)}")
        parts = [name for name in SUITE_COLUMNS[task.task] if train[0].get(name) is not None]
        rows = [[{name: row[name] for name in parts} for row in side] for side in (train, valid)]
        try:
            with show_progress(console, group) as tell, common.summarise_warnings():
                finetune(
                    model, *rows, task=task.task, columns={name: name for name in parts}, out=out,
                    config=options.config, resume=out.is_dir(), device=placement.device if placement else None,
                    tell=tell, tune=task.tune if options.config is None else {},
                )  # fmt: skip
        except UnsupportedTask as error:
            if len(groups) == 1:
                raise
            console.print(f"left out: {group} ({error.what})")


def synthetic(
    *sets: str, out: Path | None = None, language: Literal["en", "ko", "both"] = "both", count: int = 2000,
    seed: int = 0, text: Path | None = None, overwrite: OverwriteFlag = False,
) -> None:  # fmt: skip
    """Write test sets made by rule (arithmetic, scrambled words, errors to correct), or list them.

    formers synthetic
    formers synthetic add2 mul2 --out sets --count 500
    formers synthetic correction --out sets --text essays.txt --language en
    formers evaluate my-gpt2 sets/add2.en.tsv --shots 0,1,8

    Args:
        sets: Names of sets; with --out and without names, all of them.
        out: The folder for the tables; without it, the sets are listed.
        language: English, Korean or both.
        count: Rows of each set.
        seed: The seed of the draws: the same seed makes the same rows.
        text: Where words and sentences come from; the bundled corpus by default.
    """
    from ..evaluation.synthetic_sets import SETS, write_synthetic_sets

    if out is None:
        if sets:
            raise Error("there is no folder to write to", fix="add --out FOLDER; without names the sets are listed")
        return print_table([(name, *about) for name, about in SETS.items()], ["set", "GPT-3", "what is asked for"])
    languages = ("en", "ko") if language == "both" else (language,)
    paths = write_synthetic_sets(
        out, sets, languages=languages, count=count, seed=seed, text=text, overwrite=overwrite
    )  # fmt: skip
    for path in paths:
        print_text(str(path))
    return None
