"""formers inspect: a model at work on a text, as one HTML page, JSON or a picture."""

from __future__ import annotations

from pathlib import Path

from ..errors import Error
from . import common
from .common import ModelArgument, OverwriteFlag, Placement, TextArgument
from .terminal import SafeConsole, escape_line, show_progress


def inspect(
    model: ModelArgument, text: TextArgument, *, out: Path, with_: str | None = None, before: str | None = None,
    views: str | None = None, kind: str | None = None, layer: int | None = None, head: int | None = None,
    overwrite: OverwriteFlag = False, placement: Placement | None = None,
) -> None:  # fmt: skip
    """Look inside a model at work on a text: attention, predictions, attributions, heads, states, objectives.

    formers inspect my-bert "The cat sat on the ___." --out view.html
    formers inspect my-bert "The cat sat." --with "It purred." --views all --out view.html
    formers inspect my-t5 "That is good." --with "Das ist gut." --out view.html
    formers inspect my-gpt2 "옛날 옛적에" --layer 3 --head 1 --out head.svg

    The page needs no network. Layers and heads count from 0.

    Args:
        text: The text; ___ is a blank for a masked model.
        out: view.html or view.json, the whole view; head.svg or head.png, the weights of one head.
        with_: The second text of a pair, or the target of an encoder-decoder, which it writes itself if not given.
        before: What a model with a memory has read earlier (Transformer-XL, XLNet).
        views: Of attention, prediction, states, extra, objectives, neuron, attribution and heads, with commas, or all;
            by default the first five, which take one pass.
        kind: The attention of --layer and --head: encoder, decoder, cross, alignment, content or query.
        layer: The layer that is shown whole.
        head: The head that is shown whole.
    """
    if out.suffix not in (".html", ".json", ".svg", ".png"):
        raise Error(f"a view is not written as {out.suffix or 'this'}", where=out, fix="name it view.html")
    common.check_output_file(out, overwrite)
    how = {"before": before, "kind": kind, "layer": layer, "head": head, "name": Path(model).name or model}
    if views is not None:
        how["views"] = views
    elif out.suffix in (".svg", ".png"):
        how["views"] = "attention"
    with show_progress(SafeConsole(stderr=True), "inspect", delay_seconds=2) as tell, common.summarise_warnings():
        former = common.load_model(model, placement, tell, prepack=False)
        view = former.inspect(text, with_, **how)
        view.save(out)
    SafeConsole().print(f"{escape_line(out)}: {escape_line(repr(view))}")
