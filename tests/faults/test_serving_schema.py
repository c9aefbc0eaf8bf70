"""Row 20: whatever is sent, right or wrong by the server's own OpenAPI, the answer is as documented and never a 500."""

from __future__ import annotations

import contextlib

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serving.server_thread import run_in_thread

COUNTS = {False: 4, True: 180}  # examples of each operation and mode; the full count makes over 10,000
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def server(models):
    with run_in_thread(models, read_seconds=5, request_seconds=20) as server:
        yield server


def run_operation(operation, mode, address, session, count: int) -> int:
    """Send generated requests to one operation and check the answers; returns their number."""
    checks = CHECKS + ([negative_data_rejection] if mode is GenerationMode.NEGATIVE else [])
    sent = 0

    @settings(
        max_examples=count, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        nonlocal sent
        sent += 1
        case.validate_response(case.call(base_url=address, session=session, timeout=120), checks=checks)

    with contextlib.suppress(Unsatisfiable):  # nothing wrong can be said in the path /v1/models/{model}
        send()
    return sent


@pytest.mark.filterwarnings("ignore")
def test_no_answer_is_a_500(server, full):
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    counted = dict.fromkeys(GenerationMode, 0)
    session = requests.Session()
    for operation in operations:
        for mode in GenerationMode:
            if mode is GenerationMode.NEGATIVE and not (operation.body or operation.path_parameters or operation.query):
                continue
            counted[mode] += run_operation(operation, mode, server.address, session, COUNTS[full])
    rows = " ".join(f"{mode.value} {count}" for mode, count in counted.items())
    print(
        f"row 20: {sum(counted.values())} requests over {len(operations)} operations ({rows}), none answered by a 500"
    )
    assert counted[GenerationMode.POSITIVE] > len(operations)
    assert counted[GenerationMode.NEGATIVE] > len(operations)
