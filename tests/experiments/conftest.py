"""Experiments with small settings: a page, and the numbers that `run` returns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from formers.experiments.page import Page
from formers.experiments.registry import find_experiment

SMALL_TEXT = 60_000  # characters of the bundled corpus


@pytest.fixture
def run_experiment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Page, dict[str, float]]]:
    """Run an experiment by its name with settings of its own; returns its page and its numbers."""

    monkeypatch.setattr("formers.experiments.small_models.MAX_CHARACTERS", SMALL_TEXT)

    def run_one(name: str, language: str = "en", text: str | None = None, **settings) -> tuple[Page, dict[str, float]]:
        module, page = find_experiment(name).load(), Page(language, text)
        known = module.Settings.__dataclass_fields__
        usual = {"characters": SMALL_TEXT, "steps": 2}
        chosen = {key: value for key, value in usual.items() if key in known} | settings
        return page, module.run(page, module.Settings(**chosen))

    return run_one
