"""Stand-ins for readers and a sentence splitter until the full ones are there: text files, one document a line, block
or file, and sentences that end with a full stop, a question or an exclamation mark."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import lzma
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..text.normalise import Changes, normalise
from .readers import documents

OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
END = re.compile(r"(?<=[.!?…])[\"'”’)]*\s+|\n")


def full(module: str, name: str, otherwise: Any) -> Any:
    """The full function, if it is there."""
    try:
        return getattr(importlib.import_module(f"formers.{module}"), name, otherwise)
    except ImportError:
        return otherwise


def find(inputs: Any) -> list[Path]:
    """Files of a path, or of several."""
    several = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    return sorted(p for i in several for p in (Path(i).rglob("*.*") if Path(i).is_dir() else [Path(i)]))


def read(
    source: Any, *, unit: str = "auto", column: str | None = None, changes: Changes | None = None
) -> Iterator[str]:
    """Documents of files or of a list."""
    if not (isinstance(source, list) and source and isinstance(source[0], Path)):
        yield from (normalise(str(text)) for text in (source if column is None else source[column]))
        return
    for path in source:
        with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
            if unit == "line":
                yield from (line.rstrip("\n") for line in file if line.strip())
            elif unit == "file":
                yield file.read()
            else:
                yield from documents(file.read())[0]


class Held:
    """Which documents are held out: the text alone decides."""

    def __init__(self, share: float):
        self.share = share

    def __call__(self, document: str) -> bool:
        """Whether this document is held out."""
        draw = hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(draw, "little") < self.share * 2**64


def split(text: str, *, splitter: str = "rules") -> list[str]:
    """Sentences of a text."""
    return [part for part in END.split(text) if part.strip()]
