"""The family: name → module, the only such table; nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import suggest_name
from .errors import Error

if TYPE_CHECKING:
    from .family import Family
    from .text.tokenizer import Tokenizer
    from .text.tokenizer_kinds import TokenizerStyle

CARD_FIELDS = {  # of a model file's docstring → of its card
    "Parent": "parent", "New": "new", "Korean": "korean", "Shapes": "shapes", "Differs from the reference:": "differs",
}  # fmt: skip
OPTIONAL_FIELDS = {"Korean"}
NO_PARENT = "–"  # of a card whose family descends from none and from no kind of network


@dataclass(frozen=True)
class FamilyCard:
    """What a model file's docstring says."""

    title: str
    paper: str
    year: int
    parent: str
    new: str
    shapes: str
    differs: str
    korean: str = ""  # what is new, for docs/ko; members outside of formers need not have it


@dataclass(frozen=True)
class FamilyEntry:
    """One member of the family; its file holds the rest."""

    name: str
    help: str
    aliases: tuple[str, ...] = ()  # Hugging Face's model_type where it is another word
    is_variant: bool = False  # same machinery as its parent, other values
    module: str = ""  # where its definition and its card are; formers.models.NAME if not named
    # Known here as well as in the file, for help without torch.
    is_pretrained: bool = True
    takes_pairs: bool = False  # it learns from a source and its target
    example_settings: tuple[str, ...] = ()  # settings of its own that the help of formers pretrain shows
    # Names of the ways to train it, where there are several (word vectors), with a line of help.
    methods: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def definition(self) -> Family:
        """What the member's file declares."""
        return importlib.import_module(self.module or f"formers.models.{self.name}").FAMILY

    @property
    def card(self) -> FamilyCard:
        """The member's docstring, read without importing the file."""
        return read_card(self.module or f"formers.models.{self.name}")


FAMILIES = {
    member.name: member
    for member in (
        FamilyEntry(
            "vectors",
            "static word vectors: word2vec, GloVe, fastText",
            is_pretrained=False,
            methods={
                "word2vec": "word vectors by skip-gram (or CBOW: --model.kind cbow)",
                "glove": "word vectors from counts of words that occur together",
                "fasttext": "word vectors made of character n-grams, also for words never seen; good for Korean",
            },
        ),
        FamilyEntry(
            "seq2seq",
            "a recurrent encoder-decoder, with or without attention",
            takes_pairs=True,
            example_settings=(
                "--model.attention local --model.window 10 --model.feed true",
                "--objective.teacher_forcing 0.8",
                "--objective.sampling_schedule inverse-sigmoid --objective.sampling_decay 1000",
            ),
        ),
        FamilyEntry(
            "gnmt",
            "a deep LSTM encoder-decoder with residual connections",
            takes_pairs=True,
            example_settings=(
                "--objective.teacher_forcing 0.8",
                "--objective.sampling_schedule linear --objective.sampling_decay 0.0001",
            ),
        ),
        FamilyEntry("textcnn", "a classifier: convolutions over word vectors", is_pretrained=False),
        FamilyEntry("elmo", "two LSTM language models over characters; a task weights their layers"),
        FamilyEntry(
            "transformer",
            "an encoder-decoder of attention alone, with sinusoidal positions",
            aliases=("marian",),
            takes_pairs=True,
        ),
        FamilyEntry("bert", "an encoder: masked language modelling and next sentence prediction"),
        FamilyEntry("roberta", "BERT without next sentence prediction, with byte-level BPE", is_variant=True),
        FamilyEntry("albert", "BERT with one shared block and narrow embeddings"),
        FamilyEntry("ernie", "BERT that masks whole phrases and entities; task embeddings"),
        FamilyEntry(
            "gpt", "a decoder: learned positions, post-norm; fine-tuned for each task", aliases=("openai-gpt",)
        ),
        FamilyEntry("gpt2", "a decoder: pre-norm, byte-level BPE"),
        FamilyEntry("gpt3", "GPT-2 with alternating dense and banded attention"),
        FamilyEntry("gpt_neo", "GPT-2 with alternating dense and local attention, unscaled"),
        FamilyEntry("gptj", "a decoder: rotary positions, parallel blocks"),
        FamilyEntry("gpt_neox", "GPT-J with two norms in each block and another rotary layout"),
        FamilyEntry(
            "transformer_xl",
            "a decoder with a memory of earlier segments and relative positions",
            aliases=("transfo-xl",),
        ),
        FamilyEntry("bloom", "a decoder: ALiBi, 59 languages"),
        FamilyEntry("xlnet", "permutation language modelling: predicts tokens in any order, with two streams"),
        FamilyEntry("bart", "an encoder-decoder that restores corrupted text"),
        FamilyEntry("mbart", "BART in 25 or more languages, pre-norm", is_variant=True),
        FamilyEntry("t5", "an encoder-decoder: every task as text to text; span corruption"),
        FamilyEntry("mt5", "T5 1.1 in 101 languages", is_variant=True),
        FamilyEntry("switch", "T5 with many experts, one for each token", aliases=("switch_transformers",)),
    )
}


def list_published_checkpoints() -> dict[str, str]:
    """List checkpoints known by a bare name (which may also be a preset): name in lower case → hub:owner/name."""
    places = [place for member in FAMILIES.values() for place in member.definition.hub_checkpoints]
    return {place.split("/")[1].lower(): f"hub:{place}" for place in places}


def find_published_checkpoint(name: str) -> str | None:
    """Return where a checkpoint known by a bare name is published (hub:owner/name). An owner/name is taken as given,
    unless it begins with an existing folder: then it is a mistyped path."""
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) and not Path(name).parent.exists():
        return f"hub:{name}"
    return list_published_checkpoints().get(name.lower())


def find_family(name: str) -> FamilyEntry:
    """Find a member by its name or alias."""
    if not isinstance(name, str):
        raise Error(f"a family is a name, not {name!r}", fix="known: " + ", ".join(FAMILIES))
    if name in FAMILIES:
        return FAMILIES[name]
    aliases = {alias: member for member in FAMILIES.values() for alias in member.aliases}
    if name not in aliases:
        raise Error(f"unknown family {name!r}", fix=suggest_name(name, [*FAMILIES, *aliases]))
    return aliases[name]


def find_pretrained_family(name: str) -> FamilyEntry:
    """Find a member by its name or alias, or by the name of a way to train it (word2vec)."""
    return next((member for member in FAMILIES.values() if name in member.methods), None) or find_family(name)


def find_shown_family(objective: str) -> FamilyEntry:
    """Find the member whose tokenizer shows an objective best: one that says so, or the first with this objective."""
    for is_shown in (lambda one: objective in one.shown_objectives, lambda one: objective == one.objective):
        if entry := next((member for member in FAMILIES.values() if is_shown(member.definition)), None):
            return entry
    raise Error(f"no family shows the objective {objective!r}", fix="give a tokenizer")


def list_tokenizer_styles() -> list[TokenizerStyle]:
    """List the tokenizer styles that the families declare, each once, in the families' order."""
    return list(dict.fromkeys(member.definition.tokenizer_style for member in FAMILIES.values()))


def find_tokenizer_style(name: str) -> TokenizerStyle:
    """Find a tokenizer style by a family's name or its own."""
    if name in FAMILIES:
        return FAMILIES[name].definition.tokenizer_style
    styles = {style.name: style for style in list_tokenizer_styles()}
    if name not in styles:
        raise Error(f"there is no style {name!r}", fix=suggest_name(name, [*styles, *FAMILIES]))
    return styles[name]


def find_default_style(kind: str) -> TokenizerStyle:
    """Find the style of a kind of tokenizer that is trained for no family in particular."""
    default = next((style for style in list_tokenizer_styles() if kind in style.default_kinds), None)
    if default is None:
        raise Error(f"{kind} tokenizers have no style of their own", fix="name one with style=")
    return default


def train_tokenizer(name: str, lines: Iterable[str], vocab_size: int, **options: object) -> Tokenizer:
    """Train a tokenizer of a family (bert, t5, …: its kind, special tokens and template), or of a kind with the options
    of text/tokenizer_kinds.py; a `style` may be the name of a family."""
    from .text.tokenizer_kinds import TRAINERS, train_by_kind

    if name not in FAMILIES and name not in TRAINERS:
        fix = suggest_name(name, [*TRAINERS, *FAMILIES])
        raise Error(f"formers does not train {name!r} tokenizers", fix=fix)
    kind = FAMILIES[name].definition.tokenizer if name in FAMILIES else name
    style: Any = options.pop("style", None)  # dynamic: a style, or the name of a family
    if style is None:
        style = find_tokenizer_style(name) if name in FAMILIES else find_default_style(name)
    elif isinstance(style, str):
        style = find_tokenizer_style(style)
    return train_by_kind(kind, lines, vocab_size, style=style, **options)


def find_preset(name: str, preset_name: str | None) -> tuple[FamilyEntry, dict[str, object]]:
    """Find a member and the settings of one of its presets; a variant's preset leads to the variant."""
    entry = find_family(name)
    if preset_name is None:
        return entry, {}
    if not isinstance(preset_name, str):
        raise Error(f"a preset is a name, not {preset_name!r}", fix="known: " + ", ".join(entry.definition.presets))
    variants = [m for m in FAMILIES.values() if m.is_variant and m.card.parent == entry.name]
    for one in (entry, *variants):
        if preset_name in one.definition.presets:
            return one, dict(one.definition.presets[preset_name])
    if place := find_published_checkpoint(preset_name):
        what, presets = (
            f"{preset_name!r} is a published checkpoint, no preset of {entry.name}",
            entry.definition.presets,
        )
        raise Error(what, fix=f"start from its weights with --init {place}; presets: {', '.join(presets)}")
    raise Error(f"{entry.name} has no preset {preset_name!r}", fix=suggest_name(preset_name, entry.definition.presets))


@cache
def read_card(module: str) -> FamilyCard:
    """Parse a model file's docstring: a line "Title (authors year, paper)", then the fields."""
    spec = importlib.util.find_spec(module)
    path = Path((spec and spec.origin) or module)
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    head, _, rest = text.partition("\n")
    line = re.match(r"(?P<title>[^(]+?) \((?P<paper>.*?(?P<year>\d{4}).*?)\)", head)
    places = {field: at for field in CARD_FIELDS if (at := rest.find(f"\n{field}")) >= 0}
    starts = dict(sorted(places.items(), key=lambda item: item[1]))
    if line is None or not CARD_FIELDS.keys() - OPTIONAL_FIELDS <= starts.keys():
        what = f"the docstring of {module} is not in form"
        raise Error(what, where=path, fix="see CONTRIBUTING.md: " + ", ".join(CARD_FIELDS))
    ends = [*list(starts.values())[1:], len(rest)]
    texts = {
        CARD_FIELDS[field]: " ".join(rest[start + 1 + len(field) : end].split())
        for (field, start), end in zip(starts.items(), ends, strict=True)
    }
    texts["parent"] = texts["parent"].split(" ")[0]
    return FamilyCard(line["title"], line["paper"], int(line["year"]), **texts)
