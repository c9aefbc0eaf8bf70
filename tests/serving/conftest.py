"""Small models, and a client of a server that has them all."""

from __future__ import annotations

import pytest

from tests.serving.small_models import build_models, open_client


@pytest.fixture(scope="session")
def models():
    return build_models()


@pytest.fixture(scope="session")
def client(models):
    with open_client(models) as client:
        yield client
