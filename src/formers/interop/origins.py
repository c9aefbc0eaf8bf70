"""The shipped models that a model was made of, with their licences: read from card.json, kept through saving and
training in formers.json ("training"), and stated on the card of an export."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ..config import JSONObject, JSONValue
from ..errors import Error
from . import safe_files
from .shipped_models import CARD_FILE, SHIPPED_PREFIX

ORIGINS_KEY = "origins"  # of a model's training_info
MANIFEST_FILE = "formers.json"
LICENCE_NAME = re.compile(r"[a-z][a-z0-9.-]{1,40}")
LANGUAGE_CODE = re.compile(r"[a-z]{2,3}")
MAX_ORIGINS, MAX_TEXTS = 8, 20
LICENCES = {  # by the hub's name: title and page
    "cc-by-sa-3.0": ("CC BY-SA 3.0", "https://creativecommons.org/licenses/by-sa/3.0/"),
    "cc-by-4.0": ("CC BY 4.0", "https://creativecommons.org/licenses/by/4.0/"),
}


def format_licence(name: str) -> str:
    """Return a licence's title, linked to its page where that is known."""
    return "[{}]({})".format(*LICENCES[name]) if name in LICENCES else name


def is_share_alike(name: str) -> bool:
    """Return whether what is derived must have the same licence."""
    return "-sa-" in name


def parse_origins(values: JSONValue) -> list[JSONObject]:
    """Return what formers.json says of origins, which may be anything, with values of the right form alone."""
    origins: list[JSONObject] = []
    for one in values if isinstance(values, list) else ():
        if not isinstance(one, dict) or not isinstance(one.get("license"), str):
            continue
        if not LICENCE_NAME.fullmatch(one["license"]) or not isinstance(one.get("model"), str):
            continue
        lists = {key: one[key] if isinstance(one.get(key), list) else [] for key in ("languages", "data", "data_ko")}
        texts = {key: [v for v in value if isinstance(v, str)][:MAX_TEXTS] for key, value in lists.items()}
        texts["languages"] = [code for code in texts["languages"] if LANGUAGE_CODE.fullmatch(code)]
        origin = {"model": one["model"], "license": one["license"], **texts}
        origins.append(origin | ({"changed": True} if one.get("changed") is True else {}))
    return origins[:MAX_ORIGINS]


def read_origins(folder: Path, training: JSONValue) -> list[JSONObject]:
    """Return the origins of a formers directory: those that its facts of the training list, or the model itself where a
    record of a shipped model (card.json) lies beside it."""
    if isinstance(training, dict) and (known := parse_origins(training.get(ORIGINS_KEY))):
        return known
    if not safe_files.has_file(folder, CARD_FILE):
        return []
    try:
        card = safe_files.read_json(folder, CARD_FILE)
    except Error:  # no part of the model: a damaged one does not keep it from loading
        return []
    korean = card.get("korean")
    name = card.get("title")
    record = {
        "model": f"{SHIPPED_PREFIX}{name}" if isinstance(name, str) else None, "license": card.get("license"),
        "languages": card.get("languages"), "data": card.get("data"),
        "data_ko": korean.get("data") if isinstance(korean, dict) else None,
    }  # fmt: skip
    return parse_origins([record])


def find_origins(sources: Iterable[str | None]) -> list[JSONObject]:
    """Return the origins of a model that is trained from these checkpoints, each once; of the hub's and of files that
    are no formers directory, nothing is known."""
    origins: dict[str, JSONObject] = {}
    for source in sources:
        if source is None or source.startswith("hub:"):
            continue
        try:
            folder = safe_files.find_model_folder(source)
            if safe_files.has_file(folder, MANIFEST_FILE):
                about = safe_files.read_json(folder, MANIFEST_FILE)
                for one in read_origins(folder, about.get("training")):
                    origins.setdefault(str(one["model"]), {**one, "changed": True})
        except Error:  # a file of vectors, or a checkpoint that is gone since the run began
            continue
    return list(origins.values())
