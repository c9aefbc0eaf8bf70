"""The models that come with the package: folder pretrained/ of formers, opened by names such as formers/bert-mini.

Each is a formers directory with compact weights and a record of how it was made (card.json: languages, licence, data,
figures), from which interop/model_card.py writes its README.md."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..config import JSONObject
from ..errors import Error

SHIPPED_PREFIX = "formers/"
SHIPPED_FOLDER = Path(__file__).parent.parent / "pretrained"
CARD_FILE = "card.json"


@dataclass(frozen=True)
class ShippedModel:
    """A bundled model: its name, its folder, and what its record says."""

    name: str
    folder: Path
    card: JSONObject

    @property
    def num_bytes(self) -> int:
        """The size of all its files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def list_shipped_models() -> list[ShippedModel]:
    """List the bundled models by name."""
    if not SHIPPED_FOLDER.is_dir():
        return []
    folders = [path for path in sorted(SHIPPED_FOLDER.iterdir()) if (path / "formers.json").is_file()]
    models = []
    for folder in folders:
        path = folder / CARD_FILE
        card = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        models.append(ShippedModel(SHIPPED_PREFIX + folder.name, folder, card))
    return models


def is_shipped_name(source: object) -> bool:
    """Return whether a source names a bundled model; a folder that exists under this path comes first."""
    return isinstance(source, str) and source.startswith(SHIPPED_PREFIX) and not Path(source).exists()


def find_shipped_name(short: str) -> str | None:
    """Return the name of the bundled model that is meant by its last part (bert-mini); None if there is none."""
    return next((model.name for model in list_shipped_models() if model.folder.name == short), None)


def find_shipped_folder(name: str) -> Path:
    """Return the folder of a bundled model; an Error lists those that there are."""
    known = {model.name: model.folder for model in list_shipped_models()}
    if name in known:
        return known[name]
    if not known:
        fix = "this package was built without models: give the directory of one, or train one (formers demo --train)"
    else:
        fix = f"shipped are {', '.join(known)}"
    raise Error(f"no model {name!r} comes with formers", fix=fix)
