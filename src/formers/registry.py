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
