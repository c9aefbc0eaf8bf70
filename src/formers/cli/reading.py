"""How commands read text files: the same options everywhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from cyclopts import Parameter


@Parameter(name="*")
@dataclass(frozen=True)
class Reading:
    """How files are read."""

    column: Annotated[
        str | None, Parameter(help="The column or key with the text, in tables and jsonl; two for pairs: de,en.")
    ] = None
    encoding: Annotated[str, Parameter(help="How text files are encoded: utf-8, cp949, utf-16, …")] = "utf-8"
    skip: Annotated[bool, Parameter(help="Count broken rows of tables and leave them out, instead of stopping.")] = (
        False
    )

    def options(self) -> dict[str, Any]:
        """As formers.data.readers.read and formers.prepare want them."""
        return asdict(self)
