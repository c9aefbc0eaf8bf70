"""inspect: everything that can be seen of a model at work on a text, as tensors, a document, a page or a picture."""

from __future__ import annotations

import html
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..atomic_files import create_file
from ..config import JSONObject, ProgressCallback, format_value, suggest_name
from ..errors import Error
from ..former import Former
from ..reports.html import draw_standalone_heatmap
from .attention import AttentionMap, NeuronView, read_attention, record_attention
from .attribution import METHODS, Attribution, attribute, choose_methods
from .document import FORMAT, describe_attention, describe_neurons, draw_png, name_tokens
from .effort import LeftOut
from .extras import Extras, read_extras
from .heads import HeadCosts, measure_heads
from .objective_steps import ObjectiveSteps, explain_objectives, get_own_objective
from .page_file import render_page
from .prediction import Prediction, can_read_layers, get_lm_part, predict_tokens
from .recording import count_remembered, get_model_kind, record_pass
from .sides import Side, TextInputs, add_memory, encode_inputs
from .states import States, compare_views, look_up_states, read_states

VIEWS = ("attention", "prediction", "layers", "states", "extra", "objectives", "neuron", "attribution", "heads")
DEFAULT_VIEWS = ("attention", "prediction", "layers", "states", "extra", "objectives")
DEFAULT = "default"  # stands for the default views, less what would take long
SUFFIXES = (".html", ".json", ".svg", ".png")
SHARED_KEYS = ("format", "model", "note", "sides")  # of every document
NOTE = (
    "Attention shows where a layer reads from. Alone it does not explain what the model answers: compare it with the "
    "attributions and their deletion curves."
)
FRAME_HEIGHT = 720  # pixels of a view in a notebook
WIDGET_SCRIPT = """
export default {
  render({ model, el }) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts allow-downloads");
    frame.style.cssText = `width:100%;height:${model.get("height")}px;border:0`;
    const draw = () => { frame.srcdoc = model.get("page"); };
    model.on("change:page", draw);
    draw();
    el.append(frame);
  },
};
"""


class Document(ABC):
    """A view, or two of them, that can be written and shown."""

    @abstractmethod
    def to_dict(self) -> JSONObject:
        """Return the view document: what a page draws and a server sends, as JSON."""

    def to_html(self) -> str:
        """Return the document as one HTML page, which loads nothing from a network."""
        return render_page(self.to_dict())

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the document whole, as .html or .json; returns the path."""
        path = Path(path)
        with create_file(path, overwrite) as file:
            file.write(self.encode(path))
        return path

    def encode(self, path: Path) -> bytes:
        """Return the bytes of a file, by the ending of its name."""
        if path.suffix == ".html":
            return self.to_html().encode("utf-8", "backslashreplace")
        if path.suffix == ".json":
            return json.dumps(self.to_dict(), ensure_ascii=False).encode("utf-8", "backslashreplace")
        what = f"this is not written as {path.suffix or 'a file without an ending'}"
        raise Error(what, where=path, fix="name it " + " or ".join(SUFFIXES[:2]))

    def _repr_html_(self) -> str:
        page = html.escape(self.to_html(), quote=True)
        style = f"width:100%;height:{FRAME_HEIGHT}px;border:0"
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts allow-downloads" style="{style}"></iframe>'

    def make_widget(self, height: int = FRAME_HEIGHT) -> Any:  # dynamic: a class of another library
        """Return the page as a notebook widget (pip install "formers[notebook]")."""
        try:
            import anywidget
            import traitlets
        except ImportError:
            fix = 'pip install "formers[notebook]"; a view also shows itself as the last line of a cell'
            raise Error("a widget needs anywidget", fix=fix) from None

        class ViewWidget(anywidget.AnyWidget):
            """A frame that shows the page."""

            _esm = WIDGET_SCRIPT
            page = traitlets.Unicode().tag(sync=True)
            height = traitlets.Int().tag(sync=True)

        return ViewWidget(page=self.to_html(), height=height)


@dataclass(frozen=True)
class ModelFacts:
    """What a view says of the model: name, family, head, kind and sizes."""

    name: str
    family: str
    head: str
    kind: str
    layers: int
    heads: int
    dim: int
    vocab: int
    parameters: int

    @staticmethod
    def from_former(former: Former, name: str | None = None) -> ModelFacts:
        """Collect the facts of a model; a family may have 0 layers or heads."""
        config = former.config
        return ModelFacts(
            name or former.family, former.family, former.head, get_model_kind(former), config.layers, config.heads,
            config.dim, former.output_vocab, former.num_parameters,
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class View(Document):
    """What was seen: the model, the sides of the text, and a part for each thing that was looked at; a part that the
    family does not have, or that was not asked for, is empty."""

    model: ModelFacts
    sides: dict[str, Side]
    attention: dict[str, AttentionMap] = field(default_factory=dict)  # by kind
    neurons: dict[str, NeuronView] = field(default_factory=dict)  # of the chosen head
    prediction: Prediction | None = None
    attribution: Attribution | None = None
    heads: HeadCosts | None = None
    states: States | None = None
    objectives: list[ObjectiveSteps] = field(default_factory=list)
    extras: Extras = field(default_factory=Extras)
    chosen: tuple[str, int, int] | None = None  # the kind, layer and head of a picture
    left_out: list[LeftOut] = field(default_factory=list)

    def __repr__(self) -> str:
        """Describe the view in one line."""
        tokens = ", ".join(f"{len(side.tokens)} tokens of {name}" for name, side in self.sides.items())
        parts = {
            "attention": self.attention, "neuron": self.neurons, "prediction": self.prediction,
            "attribution": self.attribution, "heads": self.heads, "states": self.states, "objectives": self.objectives,
        }  # fmt: skip
        shown = ", ".join(name for name, part in parts.items() if part)
        return f"View({self.model.name}: {tokens}; {shown or 'nothing else'})"

    def to_dict(self) -> JSONObject:
        """Return the view document: what a page draws and a server sends, as JSON."""
        document: JSONObject = {
            "format": FORMAT, "model": asdict(self.model), "note": NOTE,
            "sides": {name: side.to_dict() for name, side in self.sides.items()},
        }  # fmt: skip
        if self.attention:
            document["attention"] = describe_attention(self.attention, self.chosen)
        if self.neurons:
            document["neuron"] = {kind: describe_neurons(one) for kind, one in self.neurons.items()}
        parts = {
            "prediction": self.prediction, "attribution": self.attribution, "heads": self.heads, "states": self.states,
        }  # fmt: skip
        document |= {name: part.to_dict() for name, part in parts.items() if part is not None}
        if self.objectives:
            document["objectives"] = [one.to_dict() for one in self.objectives]
        if extra := self.extras.to_dict():
            document["extra"] = extra
        if self.left_out:
            document["left_out"] = [one.to_dict() for one in self.left_out]
        return document

    def draw_svg(self, layer: int | None = None, head: int | None = None, kind: str | None = None) -> str:
        """Draw one head's weights as SVG; by default the chosen one, or the first."""
        kind, layer, head = self.choose_head(kind, layer, head)
        one = self.attention[kind]
        label = f"{self.model.name}, {kind}, layer {layer}, head {head}"
        return draw_standalone_heatmap(
            self.name_side(one.queries), one.layers[layer][head], label, self.name_side(one.keys, one.memory)
        )

    def name_side(self, name: str, memory: int = 0) -> list[str]:
        """Return the names of a side's tokens, those of the memory first."""
        side = self.sides[name]
        earlier = side.memory if memory else []
        return name_tokens([token.text for token in (*earlier, *side.tokens)])

    def choose_head(self, kind: str | None, layer: int | None, head: int | None) -> tuple[str, int, int]:
        """Choose the kind, layer and head of a picture: those given, else those chosen before, else the first."""
        if not self.attention:
            what = f"this view of {self.model.name} has no attention to draw"
            raise Error(what, fix="write .html or .json, or ask for views=['attention']")
        before = self.chosen or (next(iter(self.attention)), 0, 0)
        kind = before[0] if kind is None else kind
        if kind not in self.attention:
            raise Error(f"there is no attention {format_value(kind)}", fix=suggest_name(str(kind), self.attention))
        layer, one = before[1] if layer is None else layer, self.attention[kind]
        one.check_head(layer, 0)
        if head is None:
            is_left = self.chosen is not None or not one.kept_heads or before[2] in one.kept_heads[layer]
            head = before[2] if is_left else one.kept_heads[layer][0]
        one.check_head(layer, head)
        return kind, layer, head

    def save(
        self, path: str | Path, *, layer: int | None = None, head: int | None = None, kind: str | None = None,
        overwrite: bool = False,
    ) -> Path:  # fmt: skip
        """Write the view: .html and .json whole, .svg and .png the weights of one head; returns the path."""
        if (layer, head, kind) != (None, None, None):
            return replace(self, chosen=self.choose_head(kind, layer, head)).save(path, overwrite=overwrite)
        return super().save(path, overwrite=overwrite)

    def encode(self, path: Path) -> bytes:
        """Return the bytes of a file, by the ending of its name."""
        if path.suffix == ".svg":
            return self.draw_svg().encode("utf-8", "backslashreplace")
        if path.suffix == ".png":
            kind, layer, head = self.choose_head(None, None, None)
            return draw_png(self.attention[kind].layers[layer][head])
        if path.suffix not in SUFFIXES:
            what = f"a view is not written as {path.suffix or 'a file without an ending'}"
            raise Error(what, where=path, fix="name it " + ", ".join(SUFFIXES))
        return super().encode(path)


@dataclass(frozen=True, repr=False)
class Comparison(Document):
    """Two views side by side: of two texts, or of two models."""

    first: View
    second: View

    @property
    def left_out(self) -> list[LeftOut]:
        """What the first view does not have."""
        return self.first.left_out

    def __repr__(self) -> str:
        """Describe both views."""
        return f"Comparison({self.first!r}, {self.second!r})"

    def to_dict(self) -> JSONObject:
        """Return both documents, and of one model what changes between the texts."""
        document: JSONObject = {"format": FORMAT, "compare": [self.first.to_dict(), self.second.to_dict()]}
        changes = compare_views(self.first, self.second) if self.first.model == self.second.model else None
        return document if changes is None else document | {"changes": changes}


def inspect(
    former: Former, text: str, second: str | None = None, *, views: Sequence[str] | str = DEFAULT,
    compare: str | Former | None = None, before: str | None = None, window: int | None = None, kind: str | None = None,
    layer: int | None = None, head: int | None = None, target: str | int | None = None,
    contrast: str | int | None = None, position: int | None = None, methods: Sequence[str] | str | None = None,
    masked: bool | None = None, objectives: Sequence[str] | str = "own", seed: int = 0, name: str | None = None,
    tell: ProgressCallback | None = None,
) -> Any:  # fmt: skip  # dynamic: a View, or a Comparison of two
    """Look at a model at work on a text: attention of all sides, predictions, attributions, heads, states, objectives.

    `second` is the second text of a pair, or the target of an encoder-decoder, which it writes itself if there is none;
    `before` is what a model with a memory has read earlier. `views` names what to look at: "all", or names, of which
    "default" stands for attention, prediction, layers (the prediction of each layer), states, extra and objectives,
    less what would take long for this model and text; `View.left_out` says what that was. What a family does not have
    is not there. Of a text that is longer than the model reads, a `window` is shown (from 0), without a choice the
    first, with a warning. With `compare`, another text or another model, a `Comparison` of two views is returned.

    attention, neuron: `kind`, `layer` and `head` (from 0) choose a head to see whole and by dimension.
    prediction: `masked` makes a masked model hide each token in turn, by default in short texts only.
    attribution: `methods` explain the token `target` at `position` (or a label), with `contrast` rather than another;
    by default all that do not take too long.
    objectives: "own", "all", or names; what a pretraining objective hides of the text, with the draws of `seed`.
    `tell` is called with the progress of what takes long.
    """
    names = check_views(views)
    methods = methods.split(",") if isinstance(methods, str) else methods
    how: dict[str, Any] = {  # dynamic: keywords of two functions
        "before": before, "window": window, "kind": kind, "layer": layer, "head": head, "target": target,
        "contrast": contrast, "position": position, "methods": methods, "masked": masked, "objectives": objectives,
        "seed": seed, "tell": tell,
    }  # fmt: skip
    first = look_inside(former, text, second, names, name=name, **how)
    if compare is None:
        return first
    if isinstance(compare, Former):
        return Comparison(first, look_inside(compare, text, second, names, name=None, **how))
    return Comparison(first, look_inside(former, compare, second, names, name=name, **how))


def look_inside(
    former: Former, text: str, second: str | None, views: set[str], *, before: str | None, window: int | None,
    kind: str | None, layer: int | None, head: int | None, target: str | int | None, contrast: str | int | None,
    position: int | None, methods: Sequence[str] | None, masked: bool | None, objectives: Sequence[str] | str,
    seed: int, name: str | None, tell: ProgressCallback | None,
) -> View:  # fmt: skip
    """Make the view of one model and one text."""
    if tell is not None:
        tell("text", 0, 1, "")
    inputs = encode_inputs(former, text, second, before, window)
    if before is not None:
        inputs = add_memory(inputs, count_remembered(former, inputs))
    view = View(ModelFacts.from_former(former, name), inputs.sides)
    if inputs.batch is None:
        view = replace(view, states=look_up_states(former, inputs)) if {"states", DEFAULT} & views else view
    else:
        view = add_recorded_parts(view, former, inputs, views, (kind, layer, head), masked, tell)
        if "attribution" in views:
            attributions = attribute(former, inputs, target, contrast, position, methods, seed, tell)
            view = replace(view, attribution=attributions)
        if "heads" in views:
            view = replace(view, heads=measure_heads(former, inputs, tell=tell))
        view = replace(view, left_out=list_left_out(former, inputs, view, views, masked, methods))
    if {"objectives", DEFAULT} & views and (objectives != "own" or get_own_objective(former.family)):
        own = [get_own_objective(former.family)] if objectives == "own" else None
        names = own if isinstance(objectives, str) and objectives in ("own", "all") else objectives
        names = names.split(",") if isinstance(names, str) else names
        made_steps = explain_objectives(
            text, names, former.tokenizer, target=second, seed=seed, trains_tokenizer=objectives != "own"
        )
        view = replace(view, objectives=made_steps)
    return view


def add_recorded_parts(
    view: View, former: Former, inputs: TextInputs, views: set[str], place: tuple[str | None, int | None, int | None],
    masked: bool | None, tell: ProgressCallback | None,
) -> View:  # fmt: skip
    """Add what one recorded pass shows: attention, one head by dimension, predictions, states, and what only some
    families have."""
    if not {"attention", "neuron", "prediction", "layers", "states", "extra", DEFAULT} & views:
        return view
    if {"attention", "neuron", DEFAULT} & views:
        recording = record_attention(former, inputs)
        view = replace(view, attention=read_attention(former, inputs, recording))
        if view.attention and (place != (None, None, None) or "neuron" in views):
            chosen = view.choose_head(*place)
            view = replace(view, chosen=chosen)
            if "neuron" in views and view.attention[chosen[0]].vectors:
                view = replace(view, neurons={chosen[0]: view.attention[chosen[0]].get_neurons(*chosen[1:])})
    else:
        recording = record_pass(former, inputs, with_hidden=True)
    if tell is not None:
        tell("text", 1, 1, "")
    if {"prediction", "layers", DEFAULT} & views:
        with_layers = True if "layers" in views else None if DEFAULT in views else False
        prediction = predict_tokens(former, inputs, masked, recording, with_layers=with_layers, tell=tell)
        view = replace(view, prediction=prediction)
    if {"states", DEFAULT} & views and recording.states:
        view = replace(view, states=read_states(former, inputs, recording))
    return replace(view, extras=read_extras(former, inputs, recording)) if {"extra", DEFAULT} & views else view


def list_left_out(
    former: Former, inputs: TextInputs, view: View, views: set[str], masked: bool | None,
    methods: Sequence[str] | None,
) -> list[LeftOut]:  # fmt: skip
    """List what the model could show of the text and the view does not have, where that was not the caller's choice."""
    left_out = []
    part, prediction = get_lm_part(former), view.prediction
    if prediction is not None and part is not None and DEFAULT in views:
        if not prediction.layers and can_read_layers(former, part):
            left_out.append(LeftOut("layers", "--views default,layers", "size"))
        if prediction.method == "unmasked" and masked is None:
            left_out.append(LeftOut("masked", "--masked", "size"))
    if view.attribution is not None and methods is None:
        skipped = [name for name in METHODS if name not in choose_methods(former, inputs)]
        left_out += [LeftOut(name, f"--methods {name}", "size") for name in skipped]
    if DEFAULT in views:
        known = {
            "attribution": prediction is not None, "heads": prediction is not None and bool(view.attention),
            "neuron": any(one.vectors for one in view.attention.values()),
        }  # fmt: skip
        names = [name for name, is_known in known.items() if is_known and name not in views]
        left_out += [LeftOut(name, f"--views default,{name}", "default") for name in names]
    return left_out


def check_views(views: Sequence[str] | str) -> set[str]:
    """Return the views that are asked for; refuse an unknown one."""
    names = list(VIEWS) if views == "all" else views.split(",") if isinstance(views, str) else list(views)
    for name in names:
        if name not in (DEFAULT, *VIEWS):
            raise Error(f"there is no view {format_value(name)}", fix=f"choose of {', '.join(VIEWS)}, default or all")
    return set(names)
