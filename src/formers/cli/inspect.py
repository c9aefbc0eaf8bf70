"""formers inspect: a model at work on a text, as one HTML page, JSON or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..errors import Error
from . import common
from .common import ModelArgument, OverwriteFlag, Placement, TextArgument
from .terminal import SafeConsole, escape_line, show_progress

TextOption = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


def inspect(
    model: ModelArgument, text: TextArgument, *, out: Path, with_: TextOption = None, compare: TextOption = None,
    compare_model: str | None = None, before: TextOption = None, window: int | None = None, views: str | None = None,
    kind: str | None = None, layer: int | None = None, head: int | None = None, target: TextOption = None,
    contrast: TextOption = None, position: int | None = None, methods: str | None = None, objectives: str = "own",
    seed: int = 0,
    masked: Annotated[bool | None, Parameter(negative="--no-masked")] = None, overwrite: OverwriteFlag = False,
    placement: Placement | None = None,
) -> None:  # fmt: skip
    """Look inside a model at work on a text: attention, predictions, attributions, heads, states, objectives.

    formers inspect my-bert "The cat sat on the ___." --out view.html
    formers inspect my-bert "The cat sat." --with "It purred." --views all --out view.html
    formers inspect my-t5 "That is good." --with "Das ist gut." --out view.html
    formers inspect my-gpt2 "옛날 옛적에" --layer 3 --head 1 --out head.svg
    formers inspect my-gpt2 "Once upon a time" --views attribution --target " there" --contrast " a" --out why.json
    formers inspect my-bert "She is a nurse." --compare "He is a nurse." --out both.html

    The page needs no network. Layers, heads and positions count from 0.

    Args:
        text: The text; ___ is a blank for a masked model.
        out: view.html or view.json, the whole view; head.svg or head.png, the weights of one head.
        with_: The second text of a pair, or the target of an encoder-decoder, which it writes itself if not given.
        compare: Another text, whose view stands beside the first.
        compare_model: Another model, whose view of the text stands beside the first.
        before: What a model with a memory has read earlier (Transformer-XL, XLNet).
        window: The part of a text that is longer than the model reads (from 0); without it the first, with a note.
        views: Of attention, prediction, layers (the prediction of each layer), states, extra, objectives, neuron,
            attribution and heads, with commas; or all. By default: the first six, less what takes long for this model
            and text. default,attribution adds to these.
        kind: The attention of --layer and --head: encoder, decoder, cross, alignment, content or query.
        layer: The layer that is shown whole.
        head: The head that is shown whole.
        target: The token or label that is explained; the model's own answer by default.
        contrast: Explain the target rather than this token or label.
        position: The position of the token that is explained.
        methods: Of input_x_gradient, integrated_gradients, occlusion and value_zeroing, with commas; by default all
            that do not take too long for this model and text.
        objectives: The model's own pretraining objective (own), all, or names with commas: mlm,plm.
        seed: Random seed of the objectives and of the random order that attributions are compared with.
        masked: Hide each token of a masked model in turn, also in a long text.
    """
    if out.suffix not in (".html", ".json", ".svg", ".png"):
        raise Error(f"a view is not written as {out.suffix or 'this'}", where=out, fix="name it view.html")
    if compare is not None and compare_model is not None:
        raise Error("--compare and --compare-model are two comparisons", fix="give one of them")
    common.check_output_file(out, overwrite)
    how: dict[str, Any] = {  # dynamic: options of several types
        "before": before, "window": window, "kind": kind, "layer": layer, "head": head, "target": target,
        "contrast": contrast, "position": position, "methods": methods, "objectives": objectives, "seed": seed,
        "masked": masked, "name": Path(model).name or model,
    }  # fmt: skip
    if views is not None:
        how["views"] = views
    elif out.suffix in (".svg", ".png"):
        how["views"] = "attention"
    with show_progress(SafeConsole(stderr=True), "inspect", delay_seconds=2) as tell, common.summarise_warnings():
        former = common.load_model(model, placement, tell, prepack=False)
        if compare_model is not None:
            how["compare"] = common.load_model(compare_model, placement, tell, prepack=False)
        elif compare is not None:
            how["compare"] = compare
        view = former.inspect(text, with_, tell=tell, **how)
        view.save(out, overwrite=overwrite)
    SafeConsole().print(f"{escape_line(out)}: {escape_line(repr(view))}")
    for one in view.left_out:
        if one.reason == "size":
            SafeConsole().print(f"left out, because it takes long here: {one.name} (add it with {one.option})")
