"""formers evaluate: what a model is worth on a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from .convert import noted
from .embed import ready
from .progress import progress
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
    encoding: str = "utf-8",
    skip: bool = False,
    as_json: Annotated[bool, Parameter(help="One line of JSON.")] = False,
) -> None:
    """Measure a model on a file: perplexity, minimal pairs, choices, last words, or the measures of its task.

    formers evaluate my-gpt2 --data test.txt --stride 256
    formers evaluate my-bert --data blimp.jsonl
    formers evaluate my-gpt2 --data copa.jsonl --kind choices
    formers evaluate runs/bert-classify-1/model --data nsmc.test.tsv

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
    encoding
        How text files are encoded: utf-8, cp949, utf-16, …
    skip
        Count broken rows of tables and leave them out, instead of stopping.
    """
    from ..inspection.evaluate import evaluate as measure
    from ..inspection.evaluate import speaks

    with progress(Screen(stderr=True), "evaluate", quiet=2) as tell, noted():
        former = ready(model, tell)
        how = {"batch": batch, "stride": stride, "memory": memory} if speaks(former) and kind != "task" else {}
        more: dict[str, Any] = {**how, "tell": tell}
        found = measure(former, data, kind, columns=columns, skip=skip, encoding=encoding, limit=limit, **more)
    console = Screen()
    if as_json:
        quoted = {"signatures": found.signatures} if found.signatures else {}
        said = {"kind": found.kind, "examples": found.examples, **found.measures, **quoted}
        print_json(said)
        return
    console.print(f"{found.kind}, {found.examples:,} examples ({found.said})")
    for name, value in found.measures.items():
        console.print(f"{name:<18} {value:,.0f}" if value > 1e4 else f"{name:<18} {value:.4f}")
    for name, words in found.signatures.items():
        console.print(f"{name:<18} {words}")
