"""The family: name → module. The only lookup table; nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .config import suggest
from .errors import Error

if TYPE_CHECKING:
    from .family import Family

FIELDS = ("Parent", "New", "Shapes", "Differs from the reference:")


@dataclass(frozen=True)
class Card:
    """What a model file's docstring says."""

    title: str
    paper: str
    year: int
    parent: str
    new: str
    shapes: str
    differs: str


@dataclass(frozen=True)
class Member:
    """One member of the family; its file holds the rest."""

    name: str
    help: str
    aliases: tuple[str, ...] = ()  # Hugging Face's model_type where it is another word
    variant: bool = False  # same machinery as its parent, other values

    @property
    def family(self) -> Family:
        """What the member's file declares."""
        return importlib.import_module(f"formers.models.{self.name}").FAMILY

    @property
    def card(self) -> Card:
        """The member's docstring, read without importing the file."""
        return read_card(self.name)


MEMBERS = {
    member.name: member
    for member in (
        Member("vectors", "static word vectors: word2vec, GloVe, fastText"),
        Member("seq2seq", "a recurrent encoder-decoder, with or without attention"),
        Member("gnmt", "a deep LSTM encoder-decoder with residual connections"),
        Member("textcnn", "a classifier: convolutions over word vectors"),
        Member("elmo", "two LSTM language models over characters, all layers mixed by the task"),
        Member("transformer", "an encoder-decoder: attention alone, sinusoids", aliases=("marian",)),
        Member("bert", "an encoder: masked tokens and next sentence"),
        Member("roberta", "BERT without next sentence, byte-level BPE", variant=True),
        Member("albert", "BERT with one shared block and narrow embeddings"),
        Member("ernie", "BERT that hides phrases and entities; task types"),
        Member("gpt", "a decoder: learned positions, post-norm, fine-tuned by task", aliases=("openai-gpt",)),
        Member("gpt2", "a decoder: pre-norm, byte-level BPE"),
        Member("gpt3", "GPT-2 with dense and banded attention in turn"),
        Member("gpt_neo", "GPT-2 with dense and local attention in turn, unscaled"),
        Member("gptj", "a decoder: rotary positions, parallel blocks"),
        Member("gpt_neox", "GPT-J with two norms and rotary halves"),
        Member("transformer_xl", "a decoder: segments, a memory, relative positions", aliases=("transfo-xl",)),
        Member("bloom", "a decoder: ALiBi, 59 languages"),
        Member("xlnet", "two streams: tokens predicted in any order, from both sides"),
        Member("bart", "an encoder-decoder: BERT's encoder, GPT's decoder, noise undone"),
        Member("mbart", "BART in 25 and more languages, pre-norm", variant=True),
        Member("t5", "an encoder-decoder: text to text, span corruption"),
        Member("mt5", "T5 1.1 in 101 languages", variant=True),
        Member("switch", "T5 with many experts, one for each token", aliases=("switch_transformers",)),
    )
}
ALIASES = {alias: member.name for member in MEMBERS.values() for alias in member.aliases}


# Who publishes the checkpoints that are known by a bare name; the same name may be a size of ours with random weights.
OWNERS = {
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
PUBLISHED = {name.lower(): f"hub:{owner}/{name}" for owner, names in OWNERS.items() for name in names}


def find_published(name: str) -> str | None:
    """Where a checkpoint that is known by a bare name is published (hub:owner/name). owner/name is taken at its word,
    unless it begins with a folder that is here: then it is a path with a mistake in it."""
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) and not Path(name).parent.exists():
        return f"hub:{name}"
    return PUBLISHED.get(name.lower())


def member(name: str) -> Member:
    """A member by its name or alias."""
    if not isinstance(name, str):
        raise Error(f"a family is a name, not {name!r}", fix="known: " + ", ".join(MEMBERS))
    found = MEMBERS.get(ALIASES.get(name, name))
    if found is None:
        raise Error(f"unknown family {name!r}", fix=suggest(name, [*MEMBERS, *ALIASES]))
    return found


def preset(name: str, values: str | None) -> tuple[Member, dict[str, object]]:
    """A member and the settings of one of its presets; a variant's preset leads to the variant."""
    found = member(name)
    if values is None:
        return found, {}
    if not isinstance(values, str):
        raise Error(f"a preset is a name, not {values!r}", fix="known: " + ", ".join(found.family.presets))
    variants = [m for m in MEMBERS.values() if m.variant and m.card.parent == found.name]
    for one in (found, *variants):
        if values in one.family.presets:
            return one, dict(one.family.presets[values])
    if place := find_published(values):
        what = f"{values!r} is a published checkpoint, no preset of {found.name}"
        raise Error(what, fix=f"start from its weights with --init {place}; presets: {', '.join(found.family.presets)}")
    raise Error(f"{found.name} has no preset {values!r}", fix=suggest(values, found.family.presets))


@cache
def read_card(name: str) -> Card:
    """Take a model file's docstring apart: a line "Title (authors year, paper)", then the fields."""
    path = Path(__file__).parent / "models" / f"{name}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    head, _, rest = text.partition("\n")
    line = re.match(r"(?P<title>[^(]+?) \((?P<paper>.*?(?P<year>\d{4}).*?)\)", head)
    starts = [rest.find(f"\n{field}") for field in FIELDS]
    if line is None or -1 in starts:
        raise Error(
            f"the docstring of {name} is not in form", where=path, fix="see CONTRIBUTING.md: " + ", ".join(FIELDS)
        )
    ends = [*starts[1:], len(rest)]
    parts = [" ".join(rest[a + 1 + len(f) : b].split()) for f, a, b in zip(FIELDS, starts, ends, strict=True)]
    return Card(line["title"], line["paper"], int(line["year"]), parts[0].split(" ")[0], *parts[1:])
