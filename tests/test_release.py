"""What a release says of itself: every dependency has its licence listed, and the versions agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import formers

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def list_dependencies():
    """The packages that the project or one of its extras installs."""
    lines = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]
    return {re.match(r"[\w.-]+", line)[0] for line in lines} - {"formers"}


def test_every_dependency_has_its_licence_listed():
    table = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8")
    listed = {name.strip() for row in re.findall(r"^\| ([^|]+) \|", table, re.M) for name in row.split(",")}
    assert not list_dependencies() - listed
    assert (
        not {name for name in listed if re.fullmatch(r"[a-z][\w.-]+", name)}
        - list_dependencies()
        - {"what", "packages"}
    )


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == formers.__version__
    licences = PROJECT["license"].split(" AND ")
    assert citation["license"] == licences, "CFF lists the licences: it takes no SPDX expression"
    assert len(licences) > 1


def test_every_shipped_model_is_named_with_its_licence():
    words = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8").lower().replace(" ", "-")
    for card in sorted((ROOT / "src" / "formers" / "pretrained").glob("*/README.md")):
        licence = re.search(r"^license: (\S+)$", card.read_text(encoding="utf-8"), re.M)[1]
        assert re.search(rf"`formers/{card.parent.name}`[^|;]*{re.escape(licence)}", words), card
