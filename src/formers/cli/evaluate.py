"""formers evaluate: the metrics of a model on a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from .common import Placement, load_model, summarise_warnings
from .terminal import SafeConsole, print_json, show_progress
from .text_input import TextFileOptions


def evaluate(
    model: str,
    *,
    data: Path,
    kind: Literal["perplexity", "pairs", "choices", "cloze", "task"] | None = None,
    columns: str | None = None,
    stride: int | None = None,
    memory_length: int | None = None,
    batch: int = 16,
    limit: int | None = None,
    as_json: Annotated[bool, Parameter(help="One line of JSON.")] = False,
    placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:
    """Evaluate a model on a file: perplexity, minimal pairs, choices, last words, or the metrics of its task.

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
        What to measure; by default the columns and the model decide. cloze is the last word of each text.
    columns
        Which column is what: "text=document", "good=a bad=b".
    stride
        For texts longer than the context: how many tokens of each window count; half of the context by default.
    memory_length
        How many hidden states Transformer-XL and XLNet keep in memory; by default as the model says.
    batch
        Texts in a batch.
    limit
        Only the first so many examples.
    """
    from ..evaluation.api import evaluate as run_evaluation

    with show_progress(SafeConsole(stderr=True), "evaluate", delay_seconds=2) as tell, summarise_warnings():
        former = load_model(model, placement, tell)
        how: dict[str, Any] = {"batch": batch, "stride": stride, "memory_length": memory_length}
        more: dict[str, Any] = {**how, "tell": tell}
        found = run_evaluation(
            former, data, kind, columns=columns, limit=limit, **(reading or TextFileOptions()).to_keywords(), **more
        )
    console = SafeConsole()
    if as_json:
        quoted = {"signatures": found.signatures} if found.signatures else {}
        said = {"kind": found.kind, "examples": found.num_examples, **found.metrics, **quoted}
        print_json(said)
        return
    console.print(f"{found.kind}, {found.num_examples:,} examples ({found.summary})")
    for name, value in found.metrics.items():
        number = f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value > 1e4 else f"{value:.4f}"
        console.print(f"{name:<18} {number}")
    for name, words in found.signatures.items():
        console.print(f"{name:<18} {words}")
