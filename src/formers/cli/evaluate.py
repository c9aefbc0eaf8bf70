"""formers evaluate: what a model is worth on a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from .common import Placement, load_model
from .convert import noted
from .progress import progress
from .reading import Reading
from .screen import Screen, print_json


def evaluate(
    model: str,
    *,
    data: Path,
    kind: Literal["perplexity", "pairs", "choices", "cloze", "task"] | None = None,
    columns: str | None = None,
    stride: int | None = None,
    memory: int | None = None,
    batch: int = 16,
    limit: int | None = None,
    as_json: Annotated[bool, Parameter(help="One line of JSON.")] = False,
    placement: Placement | None = None,
    reading: Reading | None = None,
) -> None:
    """Measure a model on a file: perplexity, minimal pairs, choices, last words, or the measures of its task.

    formers evaluate my-gpt2 --data test.txt --stride 256
    formers evaluate my-bert --data blimp.jsonl
    formers evaluate my-gpt2 --data copa.jsonl --kind choices
    formers evaluate runs/bert-classify-1/model --data nsmc.test.tsv
    formers evaluate runs/bert-classify-1/model --data old.csv --encoding cp949 --delimiter ";"

    Parameters
    ----------
    model
        A formers directory, a Hugging Face directory, hub:owner/name, or the folder of a training run.
    data
        Texts, pairs (good and bad), choices, or labelled examples: txt, jsonl, csv, tsv, parquet, conll, SQuAD's json.
    kind
        What to measure; found by the columns and the model by default. cloze is the last word of each text.
    columns
        What is what: "text=document", "good=a bad=b".
    stride
        Of texts longer than the context: how many tokens of each window count; half of the context by default.
    memory
        States that Transformer-XL and XLNet remember; their own number by default.
    batch
        Texts at once.
    limit
        The first so many examples only.
    """
    from ..inspection.evaluate import evaluate as measure

    with progress(Screen(stderr=True), "evaluate", quiet=2) as tell, noted():
        former = load_model(model, placement, tell)
        how: dict[str, Any] = {"batch": batch, "stride": stride, "memory": memory}
        more: dict[str, Any] = {**how, "tell": tell}
        found = measure(former, data, kind, columns=columns, limit=limit, **(reading or Reading()).options(), **more)
    console = Screen()
    if as_json:
        quoted = {"signatures": found.signatures} if found.signatures else {}
        said = {"kind": found.kind, "examples": found.examples, **found.measures, **quoted}
        print_json(said)
        return
    console.print(f"{found.kind}, {found.examples:,} examples ({found.said})")
    for name, value in found.measures.items():
        number = f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value > 1e4 else f"{value:.4f}"
        console.print(f"{name:<18} {number}")
    for name, words in found.signatures.items():
        console.print(f"{name:<18} {words}")
