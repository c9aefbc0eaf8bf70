"""formers finetune MODEL: a model learns a task from examples, from a file to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ..errors import Error
from .common import Overwrite, TrainingType, take_dtype
from .pretrain import Rest, Switch, overrides
from .pretrain import tell as tell_rows
from .progress import progress
from .reading import Reading
from .screen import Screen, print_text, show_line

Name = Literal["classify", "regress", "tag", "answer", "choose", "translate", "summarise", "lm"]


def finetune(
    model: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    *settings: Rest,
    task: Name | None = None,
    train: Annotated[str | None, Parameter(accepts_keys=False)] = None,
    valid: str | None = None,
    test: str | None = None,
    columns: str | None = None,
    out: Path | None = None,
    config: Path | None = None,
    epochs: float | None = None,
    batch: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    lora: int | None = None,
    features: Literal["last", "second", "sum4", "cat4", "mix"] | None = None,
    vectors: str | None = None,
    freeze_vectors: Switch = False,
    folds: int | None = None,
    seeds: int | None = None,
    sweep: str | None = None,
    resume: bool = False,
    overwrite: Overwrite = False,
    print_config: Switch = False,
    dry_run: Switch = False,
    device: str | None = None,
    dtype: TrainingType = None,
    tensorboard: Switch = False,
    wandb: Switch = False,
    reading: Reading | None = None,
) -> None:
    """Teach MODEL a task from examples, judge it by others, and write a report.

    MODEL is a folder (formers or Hugging Face), hub:owner/name, or a family or preset that starts from scratch. The
    task is found by the columns if it is not named. Any setting can be given by its name: --tune.layer_decay 0.9,
    --tune.patience 3, --tune.balance true, --model.dropout 0.3, --train.clip 0.5. Ctrl-C, SIGTERM and a closed
    terminal save; --resume goes on.

    formers finetune runs/bert-1/model --train reviews.tsv --valid reviews.dev.tsv
    formers finetune textcnn --task classify --train trec.tsv --test trec.test.tsv --epochs 10
    formers finetune textcnn --train reviews.tsv --vectors runs/fasttext-1
    formers finetune transformer --task translate --train en-de.tsv --valid en-de.dev.tsv --columns text=en,target=de
    formers finetune runs/gpt2-1/model --task lm --train articles.txt --epochs 2
    formers finetune textcnn --train old.csv --encoding cp949 --delimiter ";" --columns text=review,label=stars
    formers finetune my-bert --task tag --train ner.txt --columns words=0,tags=3
    formers finetune bert-mini --train stsb.tsv --sweep "lr=1e-4,3e-4 epochs=3,5"
    formers finetune runs/bert-1/model --train reviews.tsv --dry-run
    formers finetune bert-mini --train reviews.tsv --print-config > run.yaml

    Exit codes: 2 an error, 3 the result is not finite, 130 after Ctrl-C, 143 after SIGTERM (saved, can be resumed).

    Parameters
    ----------
    model
        A folder, hub:owner/name, a family (bert, textcnn, seq2seq …) or a preset (bert-mini).
    task
        What is learnt; found by the columns if left out. lm goes on with pretraining on plain text.
    train
        Examples to learn from: tsv, csv, jsonl, parquet, CoNLL, SQuAD's JSON, also packed.
    valid
        Examples to be judged by; if left out, a tenth of the training examples.
    test
        Examples that are looked at once, at the end.
    columns
        Which column is what, by name or number from 0: text=document,label=class.
    out
        The run's folder; runs/FAMILY-TASK-NUMBER by default.
    config
        A YAML file with settings (tables data, model, tune, train).
    epochs
        How often the examples are seen.
    batch
        Examples of a step, about.
    lr
        The highest learning rate.
    seed
        Of the new weights, the order and dropout.
    lora
        The rank of adapters that learn in place of the weights.
    features
        Learn a head on a frozen model: its last layer, the second to last, sum or concatenation of four, a mix of all.
    vectors
        Word vectors for the embeddings of a TextCNN: a run or folder of formers pretrain word2vec, glove or fasttext,
        or a published file (glove.6B.100d.txt, GoogleNews….bin.gz, cc.ko.300.vec.gz, cc.ko.300.bin).
    freeze_vectors
        The word vectors stay as they are.
    folds
        Learn so many times, each time judged by another part of the examples.
    seeds
        Learn with so many seeds, from --seed on.
    sweep
        Learn with each combination of settings: "lr=1e-4,3e-4 batch=16,32".
    resume
        Go on with the run in --out.
    print_config
        Print all settings as YAML, for --config, and end.
    dry_run
        Say what was understood of the examples, how large and how long the run would be, from a few measured steps,
        and end.
    device
        cuda, cuda:1, cpu; what there is by default.
    tensorboard
        Write the metrics for TensorBoard as well (extra track).
    wandb
        Send the metrics to Weights & Biases as well (extra track); the project is the folder around the run's.
    settings
        Dotted settings with their values: --tune.patience 3.
    """
    import os

    if folds == 0:
        raise Error("0 folds make no comparison", fix="take --folds 5, or leave it out")
    if model is not None and model.startswith("--"):  # no MODEL, as with --resume: it is the first of the settings
        given, model = overrides([model, *settings], finetune), None
    else:
        given = overrides(settings, finetune)
    given |= (reading or Reading()).given()
    take_dtype(given, dtype)
    short: dict[str, Any] = {"epochs": epochs, "batch": batch, "lora": lora, "features": features, "vectors": vectors}
    short["vectors_frozen"] = freeze_vectors or None
    given |= {f"tune.{name}": value for name, value in short.items() if value is not None}
    given |= {f"train.{name}": value for name, value in {"lr": lr, "seed": seed}.items() if value is not None}
    first = os.environ.get("RANK", "0") == "0"
    console = Screen(stderr=True, quiet=not first)
    told: dict[str, Any] = {"task": task, "columns": columns, "config": config}
    if print_config or dry_run:
        return preview(
            print_config, model, train, valid, folds, seeds, sweep, device, test=test, overrides=given, **told
        )
    from ..data.replacement import check_overwrite
    from ..training.tracking import track

    check_overwrite(out, resume, overwrite)
    told |= {"device": device, "say": console.print, "overwrite": overwrite}
    with track(tensorboard and first, wandb and first) as hook, progress(console, "finetune") as tell:
        told["hook"] = hook
        if folds is not None or seeds is not None or sweep:
            from ..training.folds import compare

            more: dict[str, Any] = {
                "folds": folds or 0,
                "seeds": 1 if seeds is None else seeds,
                "sweep": sweep or "",
                "overrides": given,
                "tell": tell,
            }
            done = compare(model, train, valid, test=test, out=out, **more, **told)
            if first:
                print_text(done.words())
            return done.check()
        from ..training.finetune import finetune as teach

        made = teach(model, train, valid, test=test, out=out, resume=resume, overrides=given, tell=tell, **told)
    out_ = Screen(quiet=not first)
    for name, values in (("held-out", made.valid), ("test", made.test)):
        if values:
            out_.print(f"{name}: {', '.join(f'{key} {value:.4f}' for key, value in values.items())}")
    if made.baseline_line:
        out_.print(made.baseline_line)
    out_.print(f"model: {show_line(made.folder / 'model')}\nreport: {show_line(made.folder / 'report.html')}")


def preview(
    print_config: bool, model: str | None, train: str | None, valid: str | None, folds: int | None, seeds: int | None,
    sweep: str | None, device: str | None, **asked: Any,
) -> None:  # fmt: skip
    """Say what a run would do, and write nothing: its settings, or its size and time."""
    from ..training.finetune import print_settings, rehearse_task

    if print_config:
        print_text(print_settings(model, train, valid, **asked), end="")
        return
    rows = rehearse_task(model, train, valid, device=device, **asked)
    if folds or seeds or sweep:
        from ..training.folds import combinations

        runs = max(1, folds or 0) * (seeds or 1) * len(combinations(sweep or ""))
        rows.append(("runs", f"{runs:,} such runs"))
    tell_rows(rows)
