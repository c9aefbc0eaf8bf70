"""formers augment: more training examples out of few."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ..errors import Error
from ..verbs import fills
from .common import Overwrite, Placement, check_output, load_model, place_model
from .convert import noted, opened
from .progress import progress
from .reading import Reading
from .screen import Screen, show_line


def augment(
    model: str,
    *,
    train: Path,
    out: Path,
    way: Literal["fill", "continue"] | None = None,
    times: int = 1,
    rate: float | None = None,
    keep: str = "linear",
    sure: float = 0.0,
    teach: float = 0.0,
    names: str | None = None,
    top: int = 20,
    temperature: float = 1.0,
    tokens: int = 40,
    seed: int = 0,
    columns: str | None = None,
    overwrite: Overwrite = False,
    placement: Placement | None = None,
    reading: Reading | None = None,
) -> None:
    """Make new labelled examples: words hidden and refilled by a masked model, or texts continued by a decoder.

    formers augment my-bert --train few.tsv --out more.jsonl --times 4
    formers augment my-gpt2 --train few.tsv --out more.jsonl --teach 5 --rate 1 --names "0=negative 1=positive"
    formers augment my-bert --train few.tsv --out more.jsonl --keep runs/bert-classify-1/model --sure 0.8

    New examples that are no news, and those whose label a classifier no longer sees, are left out. A command that was
    stopped goes on when it is given again.

    Parameters
    ----------
    model
        A masked language model (BERT and its kin), or a decoder (GPT and its kin).
    train
        Examples with labels: csv, tsv, jsonl, parquet.
    out
        The new examples, a jsonl file.
    way
        fill or continue; what the model can do by default.
    times
        New examples for each.
    rate
        The share of words to hide (0.15), or of a text's end to write anew (0.5; 1: all of it).
    keep
        What judges the labels of new examples: linear (learned from the same file), none, or a fine-tuned model.
    sure
        The least probability of the label.
    teach
        First let the model learn how each label speaks, in so many epochs; what it learned stays beside OUT.
    names
        Words for labels, for --teach: "0=negative 1=positive".
    top
        Draw among so many likeliest tokens.
    temperature
        Higher is bolder.
    tokens
        The most tokens that are written behind a beginning.
    seed
        Another seed, other examples.
    columns
        What is what: "text=document label=class".
    """
    from ..generation.augment import augment as make
    from ..generation.augment import teach as taught
    from ..tasks.examples import read_columns, read_examples

    if out.suffix != ".jsonl":
        raise Error("new examples are written as JSON lines", where=out, fix="name it .jsonl")
    check_output(out, overwrite)
    if not teach >= 0:
        raise Error(f"a model cannot learn for {teach:g} epochs", fix="take --teach 3, or leave it out")
    found = read_examples(train, "classify", columns, **(reading or Reading()).options())
    console = Screen(stderr=True)
    console.print(found.said)
    words = read_columns(names)[0] if names else {}
    how: dict[str, Any] = {
        "times": times, "sure": sure, "top": top, "temperature": temperature, "tokens": tokens, "seed": seed,
        "conditional": teach > 0, "names": words,
    }  # fmt: skip
    with progress(console, "augment", quiet=2) as tell, noted():
        former = opened(model, dtype=None, tell=tell)
        if teach > 0:
            former = taught(former, found, Path(f"{out}.taught"), epochs=teach, names=words, tell=tell)
        former = place_model(former, placement, pack=False)
        masks = fills(former)
        how |= {
            "way": way or ("fill" if masks else "continue"),
            "rate": (0.15 if masks else 0.5) if rate is None else rate,
        }
        words_of = {"linear": "linear", "none": None}
        judge: Any = words_of[keep] if keep in words_of else load_model(keep, placement, tell)
        made = make(former, found, out, keep=judge, tell=tell, overwrite=overwrite, **how)
    Screen().print(f"{show_line(out)}: {made.said}")
