"""formers augment: more training examples out of few."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ..errors import Error
from ..verbs import can_fill
from .common import (
    OverwriteFlag,
    Placement,
    check_output_file,
    load_model,
    load_with_notes,
    place_model,
    summarise_warnings,
)
from .terminal import SafeConsole, escape_line, show_progress
from .text_input import TextFileOptions


def augment(
    model: str,
    *,
    train: Path,
    out: Path,
    method: Literal["fill", "continue"] | None = None,
    times: int = 1,
    rate: float | None = None,
    label_filter: str = "linear",
    min_probability: float = 0.0,
    teach: float = 0.0,
    label_names: str | None = None,
    top_k: int = 20,
    temperature: float = 1.0,
    max_new_tokens: int = 40,
    seed: int = 0,
    columns: str | None = None,
    overwrite: OverwriteFlag = False,
    placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:
    """Make new labelled examples: a masked model replaces words, or a decoder continues texts.

    formers augment my-bert --train few.tsv --out more.jsonl --times 4
    formers augment my-gpt2 --train few.tsv --out more.jsonl --teach 5 --rate 1 --label-names "0=negative 1=positive"
    formers augment my-bert --train few.tsv --out more.jsonl --label-filter my-classifier --min-probability 0.8

    New examples that repeat an old one, and those whose label the filter does not confirm, are left out. After an
    interruption, the same command continues.

    Parameters
    ----------
    model
        A masked language model (BERT and its kin), or a decoder (GPT and its kin).
    train
        Labelled examples: csv, tsv, jsonl, parquet.
    out
        The new examples, a jsonl file.
    method
        fill (mask words and fill them in) or continue (generate the rest of a text); by default what the model can do.
    times
        New examples for each example.
    rate
        The fraction of words to mask (0.15), or of the text to generate anew at its end (0.5; 1 is all of it).
    label_filter
        What checks the labels of new examples: linear (a classifier trained on the same file), none, or a fine-tuned
        model.
    min_probability
        The lowest probability of the label that the filter accepts.
    teach
        First continue pretraining on "label: text" for this many epochs; the adapted model is kept beside OUT.
    label_names
        Words for labels, for --teach: "0=negative 1=positive".
    top_k
        Sample from this many of the likeliest tokens.
    temperature
        Sampling temperature.
    max_new_tokens
        The most tokens to generate for an example.
    seed
        Random seed.
    columns
        Which column is what: "text=document label=class".
    """
    from ..generation.augment import augment as run_augmentation
    from ..tasks.examples import parse_columns, read_examples
    from ..training.runs.continue_pretraining import train_conditional

    if out.suffix != ".jsonl":
        raise Error("new examples are written as JSON lines", where=out, fix="name it .jsonl")
    check_output_file(out, overwrite)
    if not teach >= 0:
        raise Error(f"a model cannot learn for {teach:g} epochs", fix="take --teach 3, or leave it out")
    file_options = (reading or TextFileOptions()).to_keywords()
    found = read_examples(train, "classify", columns, **file_options)
    console = SafeConsole(stderr=True)
    console.print(found.summary)
    words = parse_columns(label_names)[0] if label_names else {}
    how: dict[str, Any] = {
        "times": times, "min_probability": min_probability, "top_k": top_k, "temperature": temperature,
        "max_new_tokens": max_new_tokens, "seed": seed, "conditional": teach > 0, "label_names": words,
    }  # fmt: skip
    with show_progress(console, "augment", delay_seconds=2) as tell, summarise_warnings():
        former = load_with_notes(model, dtype=None, tell=tell)
        if teach > 0:
            former = train_conditional(former, found, Path(f"{out}.taught"), epochs=teach, label_names=words, tell=tell)
        former = place_model(former, placement, prepack=False)
        masks = can_fill(former)
        how |= {
            "method": method or ("fill" if masks else "continue"),
            "rate": (0.15 if masks else 0.5) if rate is None else rate,
        }
        words_of = {"linear": "linear", "none": None}
        judge: Any = words_of[label_filter] if label_filter in words_of else load_model(label_filter, placement, tell)
        made = run_augmentation(former, found, out, label_filter=judge, tell=tell, overwrite=overwrite, **how)
    SafeConsole().print(f"{escape_line(out)}: {made.summary}")
