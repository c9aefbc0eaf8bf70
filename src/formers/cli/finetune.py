"""formers finetune MODEL: a model learns a task from examples, from a file to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from .pretrain import Rest, overrides
from .progress import progress
from .screen import Screen, print_text, show_line

Name = Literal["classify", "regress", "tag", "answer", "choose", "translate", "summarise", "lm"]


def finetune(
    model: str | None = None,
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
    folds: int | None = None,
    seeds: int | None = None,
    sweep: str | None = None,
    resume: bool = False,
    device: str | None = None,
) -> None:
    """Teach MODEL a task from examples, judge it by others, and write a report.

    MODEL is a folder (formers or Hugging Face), hub:owner/name, or a family or preset that starts from scratch. The
    task is found by the columns if it is not named. Any setting can be given by its name: --tune.layer_decay 0.9,
    --tune.patience 3, --tune.balance true, --model.dropout 0.3, --train.clip 0.5. Ctrl-C, SIGTERM and a closed
    terminal save; --resume goes on.

    formers finetune runs/bert-1/model --train reviews.tsv --valid reviews.dev.tsv
    formers finetune textcnn --task classify --train trec.tsv --test trec.test.tsv --epochs 10
    formers finetune transformer --task translate --train en-de.tsv --valid en-de.dev.tsv --columns text=en,target=de
    formers finetune runs/gpt2-1/model --task lm --train articles.txt --epochs 2
    formers finetune bert-mini --train stsb.tsv --sweep "lr=1e-4,3e-4 epochs=3,5"

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
        Which column is what: text=document,label=class.
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
    folds
        Learn so many times, each time judged by another part of the examples.
    seeds
        Learn with so many seeds, from --seed on.
    sweep
        Learn with each combination of settings: "lr=1e-4,3e-4 batch=16,32".
    resume
        Go on with the run in --out.
    device
        cuda, cuda:1, cpu; what there is by default.
    settings
        Dotted settings with their values: --tune.patience 3.
    """
    import os

    given = overrides(settings)
    short = {"epochs": epochs, "batch": batch, "lora": lora, "features": features}
    given |= {f"tune.{name}": value for name, value in short.items() if value is not None}
    given |= {f"train.{name}": value for name, value in {"lr": lr, "seed": seed}.items() if value is not None}
    first = os.environ.get("RANK", "0") == "0"
    console = Screen(stderr=True, quiet=not first)
    told: dict[str, Any] = {"task": task, "columns": columns, "config": config, "device": device, "say": console.print}
    with progress(console, "finetune") as tell:
        if folds or seeds or sweep:
            from ..training.folds import compare

            more: dict[str, Any] = {
                "folds": folds or 0,
                "seeds": seeds or 1,
                "sweep": sweep or "",
                "overrides": given,
                "tell": tell,
            }
            done = compare(model, train, valid, test=test, out=out, **more, **told)
            if first:
                print_text(done.words())
            return
        from ..training.finetune import finetune as teach

        made = teach(model, train, valid, test=test, out=out, resume=resume, overrides=given, tell=tell, **told)
    out_ = Screen(quiet=not first)
    for name, values in (("held-out", made.valid), ("test", made.test), ("baseline", made.baseline)):
        if values:
            out_.print(f"{name}: {', '.join(f'{key} {value:.4f}' for key, value in values.items())}")
    out_.print(f"model: {show_line(made.folder / 'model')}\nreport: {show_line(made.folder / 'report.html')}")
