"""Small models for the faults of the server."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def models():
    from tests.serving.small_models import build_models

    return build_models()
