"""inspect: everything that can be seen of a model at work on a text, as tensors, a document, a page or a picture."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..atomic_files import create_file
from ..config import suggest_name
from ..errors import Error
from ..former import Former
from ..reports.html import draw_standalone_heatmap
from .attention import AttentionMap, NeuronView, read_attention, record_attention
from .document import FORMAT, Json, describe_attention, describe_neurons, draw_png, name_tokens
from .page_file import render_page
from .recording import count_remembered, get_model_kind
from .sides import Side, add_memory, encode_inputs

VIEWS = ("attention", "prediction", "states", "extra", "objectives", "neuron", "attribution", "heads")
DEFAULT_VIEWS = ("attention", "prediction", "states", "extra", "objectives")
SUFFIXES = (".html", ".json", ".svg", ".png")
NOTE = (
    "Attention shows where a layer reads from. Alone it does not explain what the model answers: compare it with the "
    "attributions and their deletion curves."
)
FRAME_HEIGHT = 720  # pixels of a view in a notebook


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
        sizes = {key: getattr(config, key, 0) for key in ("layers", "heads")}  # declared by some families only
        return ModelFacts(
            name or former.family, former.family, former.head, get_model_kind(former), sizes["layers"], sizes["heads"],
            config.dim, former.output_vocab, former.num_parameters,
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class View:
    """What was seen: the model, the sides of the text, and a part for each thing that was looked at; a part that the
    family does not have, or that was not asked for, is empty."""

    model: ModelFacts
    sides: dict[str, Side]
    attention: dict[str, AttentionMap] = field(default_factory=dict)
    neurons: dict[str, NeuronView] = field(default_factory=dict)
    chosen: tuple[str, int, int] | None = None  # the kind, layer and head of a picture

    def __repr__(self) -> str:
        """Describe the view in one line."""
        tokens = ", ".join(f"{len(side.tokens)} tokens of {name}" for name, side in self.sides.items())
        parts = ", ".join(name for name in self.to_dict() if name not in SHARED_KEYS)
        return f"View({self.model.name}: {tokens}; {parts or 'nothing else'})"

    def to_dict(self) -> Json:
        """Return the view document: what a page draws and a server sends, as JSON."""
        document: Json = {
            "format": FORMAT, "model": vars(self.model).copy(), "note": NOTE,
            "sides": {name: side.to_dict() for name, side in self.sides.items()},
        }  # fmt: skip
        if self.attention:
            document["attention"] = describe_attention(self.attention, self.chosen)
        if self.neurons:
            document["neuron"] = {kind: describe_neurons(one) for kind, one in self.neurons.items()}
        return document

    def to_html(self) -> str:
        """Return the view as one HTML page, which loads nothing from a network."""
        return render_page(self.to_dict())

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
            raise Error(f"there is no attention {kind!r}", fix=suggest_name(kind, self.attention))
        layer, head = before[1] if layer is None else layer, before[2] if head is None else head
        self.attention[kind].check_head(layer, head)
        return kind, layer, head

    def save(
        self, path: str | Path, *, layer: int | None = None, head: int | None = None, kind: str | None = None
    ) -> Path:
        """Write the view: .html and .json whole, .svg and .png the weights of one head; returns the path."""
        path = Path(path)
        if path.suffix == ".html":
            data = self.to_html().encode("utf-8", "backslashreplace")
        elif path.suffix == ".json":
            data = json.dumps(self.to_dict(), ensure_ascii=False).encode("utf-8", "backslashreplace")
        elif path.suffix == ".svg":
            data = self.draw_svg(layer, head, kind).encode("utf-8", "backslashreplace")
        elif path.suffix == ".png":
            kind, layer, head = self.choose_head(kind, layer, head)
            data = draw_png(self.attention[kind].weights[layer, head])
        else:
            what = f"a view is not written as {path.suffix or 'a file without an ending'}"
            raise Error(what, where=path, fix="name it " + ", ".join(SUFFIXES))
        with create_file(path) as file:
            file.write(data)
        return path

    def _repr_html_(self) -> str:
        page = html.escape(self.to_html(), quote=True)
        style = f"width:100%;height:{FRAME_HEIGHT}px;border:0"
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts allow-downloads" style="{style}"></iframe>'


SHARED_KEYS = ("format", "model", "note", "sides")


def inspect(
    former: Former, text: str, second: str | None = None, *, views: Sequence[str] | str = DEFAULT_VIEWS,
    before: str | None = None, kind: str | None = None, layer: int | None = None, head: int | None = None,
    name: str | None = None,
) -> View:  # fmt: skip
    """Look at a model at work on a text: attention of all sides, predictions, attributions, heads, states, objectives.

    `second` is the second text of a pair, or the target of an encoder-decoder, which it writes itself if there is none;
    `before` is what a model with a memory has read earlier. `views` names what to look at, or is "all"; what a family
    does not have is left out. `kind`, `layer` and `head` (from 0) choose a head to see whole and by dimension.
    """
    wanted = check_views(views)
    inputs = encode_inputs(former, text, second, before)
    if before is not None:
        inputs = add_memory(inputs, count_remembered(former, inputs))
    view = View(ModelFacts.from_former(former, name), inputs.sides)
    if inputs.batch is not None and {"attention", "neuron"} & wanted:
        view = replace(view, attention=read_attention(former, inputs, record_attention(former, inputs)))
        if view.attention and (kind, layer, head) != (None, None, None):
            view = replace(view, chosen=view.choose_head(kind, layer, head))
        if view.attention and "neuron" in wanted:
            place = view.choose_head(kind, layer, head)
            if view.attention[place[0]].vectors:
                view = replace(view, chosen=place, neurons={place[0]: view.attention[place[0]].get_neurons(*place[1:])})
    return view


def check_views(views: Sequence[str] | str) -> set[str]:
    """Return the views that are asked for; refuse an unknown one."""
    names = list(VIEWS) if views == "all" else views.split(",") if isinstance(views, str) else list(views)
    for name in names:
        if name not in VIEWS:
            raise Error(f"there is no view {name!r}", fix=f"choose of {', '.join(VIEWS)}, or all")
    return set(names)
