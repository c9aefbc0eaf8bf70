"""The family: name → module. The only lookup table; nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .config import suggest_name
from .errors import Error

if TYPE_CHECKING:
    from .family import Family

CARD_FIELDS = ("Parent", "New", "Shapes", "Differs from the reference:")


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


@dataclass(frozen=True)
class FamilyEntry:
    """One member of the family; its file holds the rest."""

    name: str
    help: str
    aliases: tuple[str, ...] = ()  # Hugging Face's model_type where it is another word
    is_variant: bool = False  # same machinery as its parent, other values

    @property
    def definition(self) -> Family:
        """What the member's file declares."""
        return importlib.import_module(f"formers.models.{self.name}").FAMILY

    @property
    def card(self) -> FamilyCard:
        """The member's docstring, read without importing the file."""
        return read_card(self.name)


FAMILIES = {
    member.name: member
    for member in (
        FamilyEntry("vectors", "static word vectors: word2vec, GloVe, fastText"),
        FamilyEntry("seq2seq", "a recurrent encoder-decoder, with or without attention"),
        FamilyEntry("gnmt", "a deep LSTM encoder-decoder with residual connections"),
        FamilyEntry("textcnn", "a classifier: convolutions over word vectors"),
        FamilyEntry("elmo", "two LSTM language models over characters, all layers mixed by the task"),
        FamilyEntry("transformer", "an encoder-decoder: attention alone, sinusoids", aliases=("marian",)),
        FamilyEntry("bert", "an encoder: masked tokens and next sentence"),
        FamilyEntry("roberta", "BERT without next sentence, byte-level BPE", is_variant=True),
        FamilyEntry("albert", "BERT with one shared block and narrow embeddings"),
        FamilyEntry("ernie", "BERT that hides phrases and entities; task types"),
        FamilyEntry("gpt", "a decoder: learned positions, post-norm, fine-tuned by task", aliases=("openai-gpt",)),
        FamilyEntry("gpt2", "a decoder: pre-norm, byte-level BPE"),
        FamilyEntry("gpt3", "GPT-2 with dense and banded attention in turn"),
        FamilyEntry("gpt_neo", "GPT-2 with dense and local attention in turn, unscaled"),
        FamilyEntry("gptj", "a decoder: rotary positions, parallel blocks"),
        FamilyEntry("gpt_neox", "GPT-J with two norms and rotary halves"),
        FamilyEntry("transformer_xl", "a decoder: segments, a memory, relative positions", aliases=("transfo-xl",)),
        FamilyEntry("bloom", "a decoder: ALiBi, 59 languages"),
        FamilyEntry("xlnet", "two streams: tokens predicted in any order, from both sides"),
        FamilyEntry("bart", "an encoder-decoder: BERT's encoder, GPT's decoder, noise undone"),
        FamilyEntry("mbart", "BART in 25 and more languages, pre-norm", is_variant=True),
        FamilyEntry("t5", "an encoder-decoder: text to text, span corruption"),
        FamilyEntry("mt5", "T5 1.1 in 101 languages", is_variant=True),
        FamilyEntry("switch", "T5 with many experts, one for each token", aliases=("switch_transformers",)),
    )
}
FAMILY_ALIASES = {alias: member.name for member in FAMILIES.values() for alias in member.aliases}


# Who publishes the checkpoints that are known by a bare name; the same name may be a size of ours with random weights.
HUB_OWNERS = {
    "google-bert": ("bert-base-uncased", "bert-large-uncased", "bert-base-cased", "bert-large-cased",
                    "bert-base-multilingual-cased", "bert-base-multilingual-uncased", "bert-base-chinese"),
    "FacebookAI": ("roberta-base", "roberta-large"),
    "albert": tuple(f"albert-{size}-{v}" for size in ("base", "large", "xlarge", "xxlarge") for v in ("v1", "v2")),
    "nghuyong": ("ernie-1.0-base-zh", "ernie-2.0-base-en", "ernie-2.0-large-en", "ernie-3.0-base-zh"),
    "openai-community": ("openai-gpt", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"),
    "EleutherAI": ("gpt-neo-125m", "gpt-neo-1.3B", "gpt-neo-2.7B", "gpt-j-6b", "gpt-neox-20b", "pythia-70m",
                   "pythia-160m", "pythia-410m"),
    "transfo-xl": ("transfo-xl-wt103",),
    "bigscience": ("bloom-560m", "bloom-1b1", "bloom-1b7", "bloom-3b", "bloom-7b1", "bloom"),
    "xlnet": ("xlnet-base-cased", "xlnet-large-cased"),
    "facebook": ("bart-base", "bart-large", "mbart-large-cc25", "mbart-large-50"),
    "google-t5": ("t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b"),
    "google": (*(f"{kind}-{size}" for kind in ("t5-v1_1", "mt5") for size in ("small", "base", "large", "xl", "xxl")),
               *(f"switch-base-{n}" for n in (8, 16, 32, 64, 128, 256)), "switch-large-128"),
}  # fmt: skip
PUBLISHED_CHECKPOINTS = {name.lower(): f"hub:{owner}/{name}" for owner, names in HUB_OWNERS.items() for name in names}


def find_published_checkpoint(name: str) -> str | None:
    """Where a checkpoint that is known by a bare name is published (hub:owner/name). owner/name is taken at its word,
    unless it begins with a folder that is here: then it is a path with a mistake in it."""
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) and not Path(name).parent.exists():
        return f"hub:{name}"
    return PUBLISHED_CHECKPOINTS.get(name.lower())


def find_family(name: str) -> FamilyEntry:
    """A member by its name or alias."""
    if not isinstance(name, str):
        raise Error(f"a family is a name, not {name!r}", fix="known: " + ", ".join(FAMILIES))
    found = FAMILIES.get(FAMILY_ALIASES.get(name, name))
    if found is None:
        raise Error(f"unknown family {name!r}", fix=suggest_name(name, [*FAMILIES, *FAMILY_ALIASES]))
    return found


def find_preset(name: str, preset_name: str | None) -> tuple[FamilyEntry, dict[str, object]]:
    """A member and the settings of one of its presets; a variant's preset leads to the variant."""
    found = find_family(name)
    if preset_name is None:
        return found, {}
    if not isinstance(preset_name, str):
        raise Error(f"a preset is a name, not {preset_name!r}", fix="known: " + ", ".join(found.definition.presets))
    variants = [m for m in FAMILIES.values() if m.is_variant and m.card.parent == found.name]
    for one in (found, *variants):
        if preset_name in one.definition.presets:
            return one, dict(one.definition.presets[preset_name])
    if place := find_published_checkpoint(preset_name):
        what = f"{preset_name!r} is a published checkpoint, no preset of {found.name}"
        raise Error(
            what, fix=f"start from its weights with --init {place}; presets: {', '.join(found.definition.presets)}"
        )
    raise Error(f"{found.name} has no preset {preset_name!r}", fix=suggest_name(preset_name, found.definition.presets))


@cache
def read_card(name: str) -> FamilyCard:
    """Take a model file's docstring apart: a line "Title (authors year, paper)", then the fields."""
    path = Path(__file__).parent / "models" / f"{name}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    head, _, rest = text.partition("\n")
    line = re.match(r"(?P<title>[^(]+?) \((?P<paper>.*?(?P<year>\d{4}).*?)\)", head)
    starts = [rest.find(f"\n{field}") for field in CARD_FIELDS]
    if line is None or -1 in starts:
        raise Error(
            f"the docstring of {name} is not in form", where=path, fix="see CONTRIBUTING.md: " + ", ".join(CARD_FIELDS)
        )
    ends = [*starts[1:], len(rest)]
    parts = [" ".join(rest[a + 1 + len(f) : b].split()) for f, a, b in zip(CARD_FIELDS, starts, ends, strict=True)]
    return FamilyCard(line["title"], line["paper"], int(line["year"]), parts[0].split(" ")[0], *parts[1:])
