"""Documents out of files. A document is a block of lines; blank lines stand between documents."""

from __future__ import annotations

import lzma
from importlib import resources
from typing import Literal

from ..errors import Error
from ..text.normalise import Changes, clean

LANGUAGES = ("en", "ko")


def bundled(language: Literal["en", "ko"] = "en") -> tuple[list[str], Changes]:
    """The small corpus that comes with formers (data/corpus/README.md names its source and licence)."""
    if language not in LANGUAGES:
        raise Error(f"there is no bundled corpus for {language!r}", fix="choose " + " or ".join(LANGUAGES))
    packed = resources.files("formers.data").joinpath("corpus", f"{language}.txt.xz").read_bytes()
    return documents(lzma.decompress(packed).decode("utf-8"))


def documents(text: str) -> tuple[list[str], Changes]:
    """Blocks between blank lines, cleaned and normalised, and what was changed."""
    lines, changes = clean(text.split("\n"))
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return ["\n".join(block) for block in blocks if block], changes


def split(documents: list[str], every: int = 20) -> tuple[list[str], list[str]]:
    """Held-out documents (each twentieth) apart from the rest."""
    held = documents[every - 1 :: every]
    if not held:
        raise Error(f"{len(documents)} documents are too few to hold some out", fix=f"give at least {every} documents")
    return [d for i, d in enumerate(documents) if i % every != every - 1], held
