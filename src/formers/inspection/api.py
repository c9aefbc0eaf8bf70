"""inspect: everything that can be seen of a model at work on a text, as tensors, a document, a page or a picture."""

from __future__ import annotations

import html
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..atomic_files import create_file
from ..config import JSONObject, format_value, suggest_name
from ..errors import Error
from ..former import Former
from ..reports.html import draw_standalone_heatmap
from .attention import AttentionMap, NeuronView, read_attention, record_attention
from .attribution import METHODS, Attribution, attribute
from .document import FORMAT, describe_attention, describe_neurons, draw_png, name_tokens
from .extras import Extras, read_extras
from .heads import HeadCosts, measure_heads
from .objective_steps import ObjectiveSteps, explain_objectives, get_own_objective
from .page_file import render_page
from .prediction import Prediction, predict_tokens
from .recording import count_remembered, get_model_kind, record_pass
from .sides import Side, TextInputs, add_memory, encode_inputs
from .states import States, compare_views, look_up_states, read_states

VIEWS = ("attention", "prediction", "states", "extra", "objectives", "neuron", "attribution", "heads")
DEFAULT_VIEWS = ("attention", "prediction", "states", "extra", "objectives")
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

    def save(self, path: str | Path) -> Path:
        """Write the document whole, as .html or .json; returns the path."""
        path = Path(path)
        with create_file(path) as file:
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
        """Collect the facts of a model; a family may have no layers or heads."""
        config = former.config
        sizes = {key: getattr(config, key, 0) for key in ("layers", "heads")}  # dynamic: some families declare none
        return ModelFacts(
            name or former.family, former.family, former.head, get_model_kind(former), sizes["layers"], sizes["heads"],
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
            "format": FORMAT, "model": vars(self.model).copy(), "note": NOTE,
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
        return document

    def draw_svg(self, layer: int | None = None, head: int | None = None, kind: str | None = None) -> str:
        """Draw one head's weights as SVG; by default the chosen one, or the first."""
        kind, layer, head = self.choose_head(kind, layer, head)
        one = self.attention[kind]
        label = f"{self.model.name}, {kind}, layer {layer}, head {head}"
        return draw_standalone_heatmap(
            self.name_side(one.queries), one.weights[layer, head], label, self.name_side(one.keys, one.memory)
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
        layer, head = before[1] if layer is None else layer, before[2] if head is None else head
        self.attention[kind].check_head(layer, head)
        return kind, layer, head

    def save(
        self, path: str | Path, *, layer: int | None = None, head: int | None = None, kind: str | None = None
    ) -> Path:
        """Write the view: .html and .json whole, .svg and .png the weights of one head; returns the path."""
        if (layer, head, kind) != (None, None, None):
            return replace(self, chosen=self.choose_head(kind, layer, head)).save(path)
        return super().save(path)

    def encode(self, path: Path) -> bytes:
        """Return the bytes of a file, by the ending of its name."""
        if path.suffix == ".svg":
            return self.draw_svg().encode("utf-8", "backslashreplace")
        if path.suffix == ".png":
            kind, layer, head = self.choose_head(None, None, None)
            return draw_png(self.attention[kind].weights[layer, head])
        if path.suffix not in SUFFIXES:
            what = f"a view is not written as {path.suffix or 'a file without an ending'}"
            raise Error(what, where=path, fix="name it " + ", ".join(SUFFIXES))
        return super().encode(path)


@dataclass(frozen=True, repr=False)
class Comparison(Document):
    """Two views side by side: of two texts, or of two models."""

    first: View
    second: View

    def __repr__(self) -> str:
        """Describe both views."""
        return f"Comparison({self.first!r}, {self.second!r})"

    def to_dict(self) -> JSONObject:
        """Return both documents, and of one model what changes between the texts."""
        document: JSONObject = {"format": FORMAT, "compare": [self.first.to_dict(), self.second.to_dict()]}
        changes = compare_views(self.first, self.second) if self.first.model == self.second.model else None
        return document if changes is None else document | {"changes": changes}


def inspect(
    former: Former, text: str, second: str | None = None, *, views: Sequence[str] | str = DEFAULT_VIEWS,
    compare: str | Former | None = None, before: str | None = None, kind: str | None = None, layer: int | None = None,
    head: int | None = None, target: str | int | None = None, contrast: str | int | None = None,
    position: int | None = None, methods: Sequence[str] = METHODS, masked: bool | None = None,
    objectives: Sequence[str] | str = "own", seed: int = 0, name: str | None = None,
) -> Any:  # fmt: skip  # dynamic: a View, or a Comparison of two
    """Look at a model at work on a text: attention of all sides, predictions, attributions, heads, states, objectives.

    `second` is the second text of a pair, or the target of an encoder-decoder, which it writes itself if there is none;
    `before` is what a model with a memory has read earlier. `views` names what to look at, or is "all"; what a family
    does not have is left out. With `compare`, another text or another model, a `Comparison` of two views is returned.

    attention, neuron: `kind`, `layer` and `head` (from 0) choose a head to see whole and by dimension.
    prediction: `masked` makes a masked model hide each token in turn, by default in short texts only.
    attribution: `methods` explain the token `target` at `position` (or a label), with `contrast` rather than another.
    objectives: "own", "all", or names; what a pretraining objective hides of the text, with the draws of `seed`.
    """
    wanted = check_views(views)
    how: dict[str, Any] = {  # dynamic: keywords of two functions
        "before": before, "kind": kind, "layer": layer, "head": head, "target": target, "contrast": contrast,
        "position": position, "methods": methods, "masked": masked, "objectives": objectives, "seed": seed,
    }  # fmt: skip
    first = look_inside(former, text, second, wanted, name=name, **how)
    if compare is None:
        return first
    if isinstance(compare, Former):
        return Comparison(first, look_inside(compare, text, second, wanted, name=None, **how))
    return Comparison(first, look_inside(former, compare, second, wanted, name=name, **how))


def look_inside(
    former: Former, text: str, second: str | None, wanted: set[str], *, before: str | None, kind: str | None,
    layer: int | None, head: int | None, target: str | int | None, contrast: str | int | None, position: int | None,
    methods: Sequence[str], masked: bool | None, objectives: Sequence[str] | str, seed: int, name: str | None,
) -> View:  # fmt: skip
    """Make the view of one model and one text."""
    inputs = encode_inputs(former, text, second, before)
    if before is not None:
        inputs = add_memory(inputs, count_remembered(former, inputs))
    view = View(ModelFacts.from_former(former, name), inputs.sides)
    if inputs.batch is None:
        view = replace(view, states=look_up_states(former, inputs)) if "states" in wanted else view
    else:
        view = add_recorded_parts(view, former, inputs, wanted, (kind, layer, head), masked)
        if "attribution" in wanted:
            made = attribute(former, inputs, target, contrast, position, methods, seed)
            view = replace(view, attribution=made)
        if "heads" in wanted:
            view = replace(view, heads=measure_heads(former, inputs))
    if "objectives" in wanted and (objectives != "own" or get_own_objective(former.family)):
        own = [get_own_objective(former.family)] if objectives == "own" else None
        names = own if isinstance(objectives, str) and objectives in ("own", "all") else objectives
        names = names.split(",") if isinstance(names, str) else names
        made_steps = explain_objectives(
            text, names, former.tokenizer, target=second, seed=seed, trains_tokenizer=objectives != "own"
        )
        view = replace(view, objectives=made_steps)
    return view


def add_recorded_parts(
    view: View, former: Former, inputs: TextInputs, wanted: set[str], place: tuple[str | None, int | None, int | None],
    masked: bool | None,
) -> View:  # fmt: skip
    """Add what one recorded pass shows: attention, one head by dimension, predictions, states, and what only some
    families have."""
    if not {"attention", "neuron", "prediction", "states", "extra"} & wanted:
        return view
    if {"attention", "neuron"} & wanted:
        recording = record_attention(former, inputs)
        view = replace(view, attention=read_attention(former, inputs, recording))
        if view.attention and (place != (None, None, None) or "neuron" in wanted):
            chosen = view.choose_head(*place)
            view = replace(view, chosen=chosen)
            if "neuron" in wanted and view.attention[chosen[0]].vectors:
                view = replace(view, neurons={chosen[0]: view.attention[chosen[0]].get_neurons(*chosen[1:])})
    else:
        recording = record_pass(former, inputs, with_hidden=True)
    if "prediction" in wanted:
        view = replace(view, prediction=predict_tokens(former, inputs, masked, recording))
    if "states" in wanted and recording.states:
        view = replace(view, states=read_states(former, inputs, recording))
    return replace(view, extras=read_extras(former, inputs, recording)) if "extra" in wanted else view


def check_views(views: Sequence[str] | str) -> set[str]:
    """Return the views that are asked for; refuse an unknown one."""
    names = list(VIEWS) if views == "all" else views.split(",") if isinstance(views, str) else list(views)
    for name in names:
        if name not in VIEWS:
            raise Error(f"there is no view {format_value(name)}", fix=f"choose of {', '.join(VIEWS)}, or all")
    return set(names)
