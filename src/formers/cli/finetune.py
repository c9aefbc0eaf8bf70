"""formers finetune MODEL: a model is trained on the examples of a task, from a file to a report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from cyclopts import Parameter, Token

from ..config import Settings
from ..errors import Error
from ..option_aliases import resolve_task_name
from .common import ColumnRoles, MixtureOption, ModelRunFlags, SettingWords, TextFileOptions, parse_overrides
from .terminal import SafeConsole, escape_line, print_table, print_text, show_progress

TABLES = ("data", "model", "tune", "train", "mixture")  # of settings, as --TABLE.NAME
TaskName = Literal["classify", "regress", "tag", "answer", "choose", "translate", "summarise", "lm"]


def parse_task(kind: object, tokens: Sequence[Token]) -> str:
    """Parse the name of a task, or another word for it such as ner."""
    name = resolve_task_name(tokens[0].value)
    if name not in get_args(TaskName):
        from ..config import suggest_name

        raise Error(f"there is no task {tokens[0].value!r}", fix=suggest_name(str(name), get_args(TaskName)))
    return str(name)


def finetune(
    model: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None, *settings: SettingWords,
    task: Annotated[TaskName | None, Parameter(converter=parse_task)] = None,
    train: Annotated[str | None, Parameter(accepts_keys=False)] = None, valid: str | None = None,
    test: str | None = None, columns: ColumnRoles = None, mixture: MixtureOption = None, epochs: float | None = None,
    batch_size: int | None = None, lr: float | None = None, lora: int | None = None,
    features: Literal["last", "second", "sum4", "concat4", "mix"] | None = None, vectors: str | None = None,
    freeze_vectors: bool = False, folds: int | None = None, seeds: int | None = None, sweep: str | None = None,
    run: ModelRunFlags | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Fine-tune MODEL on the examples of a task, evaluate it, and write a report.

    MODEL is a folder (formers or Hugging Face), hub:owner/name, or a family or preset that starts from scratch. If no
    task is named, the columns decide. Any setting can be given by its name: --tune.layer_decay 0.9, --tune.patience 3,
    --tune.balance true, --model.dropout 0.3, --train.grad_clip 0.5. Ctrl-C, SIGTERM and a closed terminal save the run;
    --resume continues it.

    formers finetune runs/bert-1/model --train reviews.tsv --valid reviews.dev.tsv
    formers finetune textcnn --task classify --train trec.tsv --test trec.test.tsv --epochs 10
    formers finetune textcnn --train reviews.tsv --vectors runs/fasttext-1
    formers finetune transformer --task translate --train en-de.tsv --valid en-de.dev.tsv --columns text=en,target=de
    formers finetune runs/gpt2-1/model --task lm --train articles.txt --epochs 2
    formers finetune textcnn --train old.csv --encoding cp949 --delimiter ";" --columns text=review,label=stars
    formers finetune my-bert --task tag --train ner.txt --columns words=0,tags=3
    formers finetune my-t5 --mixture sst2=sst2.tsv rte=rte.tsv --mixture.strategy temperature --mixture.temperature 2
    formers finetune my-t5 --mixture tasks.yaml
    formers finetune bert-mini --train stsb.tsv --sweep "lr=1e-4,3e-4 epochs=3,5"
    formers finetune runs/bert-1/model --train reviews.tsv --dry-run
    formers finetune bert-mini --train reviews.tsv --print-config > run.yaml

    Exit codes: 2 an error, 3 the loss is not finite, 130 after Ctrl-C, 143 after SIGTERM (saved, can be resumed).

    Args:
        model: A folder, hub:owner/name, a family (bert, textcnn, seq2seq …) or a preset (bert-mini).
        task: classify, regress (a score), tag (token classification, NER), answer (extractive question answering),
            choose (multiple choice), translate, summarise, or lm (continued pretraining on plain text). By default the
            columns decide.
        train: Training examples: tsv, csv, jsonl, parquet, CoNLL, SQuAD's JSON, also compressed.
        valid: Validation examples; by default a tenth of the training examples.
        test: Test examples, evaluated once at the end.
        epochs: Passes over the training examples.
        batch_size: Approximate number of examples in a step; batches are packed by tokens.
        lr: The peak learning rate.
        lora: Rank of LoRA adapters, which are trained instead of the weights.
        features: Train only a head, on features of the frozen model: its last layer, the second to last, the sum or
            concatenation of the last four, or a weighted sum of all.
        vectors: Word vectors for the embeddings of a TextCNN: a run or folder of formers pretrain word2vec, glove or
            fasttext, or a published file (glove.6B.100d.txt, GoogleNews….bin.gz, cc.ko.300.vec.gz, cc.ko.300.bin).
        freeze_vectors: Do not train the word vectors.
        folds: Cross-validation with this many folds.
        seeds: Train with this many seeds, starting from --seed.
        sweep: Train with each combination of settings: "lr=1e-4,3e-4 batch_size=16,32".
        settings: Dotted settings with their values: --tune.patience 3.
    """
    run = run or ModelRunFlags()
    if folds == 0:
        raise Error("0 folds make no comparison", fix="take --folds 5, or leave it out")
    words = list(settings)
    if model is not None and model.startswith("--"):  # no MODEL, as with --resume: it is the first of the settings
        words, model = [model, *settings], None
    overrides = parse_overrides(words, finetune, TABLES) | (reading or TextFileOptions()).to_overrides()
    run.add_settings(overrides)
    short: Settings = {"epochs": epochs, "batch_size": batch_size, "lora": lora, "features": features}
    short |= {"vectors": vectors, "vectors_frozen": freeze_vectors or None}
    overrides |= {f"tune.{name}": value for name, value in short.items() if value is not None}
    if lr is not None:
        overrides["train.lr"] = lr
    options: Settings = {"task": task, "columns": columns, "config": run.config, "overrides": overrides, "test": test}
    if mixture:
        if folds or seeds or sweep:
            raise Error("--mixture cannot be combined with --folds, --seeds or --sweep", fix="leave them out")
        options["mixture"] = mixture
    if run.print_config:
        from ..training.runs.finetune import request_finetuning

        print_text(request_finetuning(model, train, valid, **options).render_settings(), end="")
    elif run.dry_run:
        from ..training.runs.cross_validation import expand_sweep
        from ..training.runs.dry_run import dry_run_finetuning

        rows = dry_run_finetuning(model, train, valid, device=run.device, **options)
        if folds or seeds or sweep:
            runs = max(1, folds or 0) * (seeds or 1) * len(expand_sweep(sweep or ""))
            rows.append(("runs", f"{runs:,} such runs"))
        print_table(rows)
    else:
        comparison = {"folds": folds or 0, "seeds": 1 if seeds is None else seeds, "sweep": sweep or ""}
        is_comparison = folds is not None or seeds is not None or bool(sweep)
        run_finetuning(model, train, valid, run, options, comparison if is_comparison else None)


def run_finetuning(
    model: str | None, train: str | None, valid: str | None, run: ModelRunFlags, options: Settings,
    comparison: Settings | None,
) -> None:  # fmt: skip
    """Train once, or once for each fold, seed and setting of a comparison, and print the progress and the result."""
    from ..atomic_files import check_overwrite
    from ..training.tracking import open_trackers

    first = os.environ.get("RANK", "0") == "0"
    console = SafeConsole(stderr=True, quiet=not first)
    check_overwrite(run.out, run.resume, run.overwrite)
    options |= {"out": run.out, "device": run.device, "say": console.print, "overwrite": run.overwrite}
    trackers = open_trackers(run.tensorboard and first, run.wandb and first)
    with trackers as hook, show_progress(console, "finetune") as tell:
        options |= {"hook": hook, "tell": tell}
        if comparison is not None:
            from ..training.runs.cross_validation import compare_settings

            done = compare_settings(model, train, valid, **comparison, **options)
            if first:
                print_text(done.format_table())
            return done.raise_if_diverged()
        from ..training.runs.finetune import finetune

        result = finetune(model, train, valid, resume=run.resume, **options)
    console = SafeConsole(quiet=not first)
    for name, values in (("validation", result.valid), ("test", result.test)):
        if values:
            console.print(f"{name}: {', '.join(f'{key} {value:.4f}' for key, value in values.items())}")
    if result.baseline_summary:
        console.print(result.baseline_summary)
    console.print(
        f"model: {escape_line(result.folder / 'model')}\nreport: {escape_line(result.folder / 'report.html')}"
    )
