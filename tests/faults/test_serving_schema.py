"""Row 20: whatever is sent, right or wrong by the server's own OpenAPI, the answer is as documented and never a 500."""

from __future__ import annotations

import contextlib
import copy

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

import formers
from formers.text.korean import get_analyser
from tests.serving.server_thread import run_in_thread

COUNTS = {False: 2, True: 300}  # examples of each operation and mode
MAX_SLOW, SLOW_PATHS = 20, ("/playground/objectives",)  # a text with new letters waits until tokenizers are trained
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def server(models):
    with contextlib.suppress(formers.Error):  # where it is installed, the first Korean text would wait for it to load
        get_analyser()
    with run_in_thread(models, read_seconds=5, request_seconds=110) as server:
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
        case.validate_response(case.call(base_url=address, session=session, timeout=600), checks=checks)

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
            count = min(COUNTS[full], MAX_SLOW) if operation.path in SLOW_PATHS else COUNTS[full]
            counted[mode] += run_operation(operation, mode, server.address, session, count)
    rows = " ".join(f"{mode.value} {count}" for mode, count in counted.items())
    print(
        f"row 20: {sum(counted.values())} requests over {len(operations)} operations ({rows}), none answered by a 500"
    )
    assert counted[GenerationMode.POSITIVE] > len(operations)
    assert counted[GenerationMode.NEGATIVE] > len(operations)


ODD_VALUES = [
    None, True, 5, -1, 1.5, 1e308, 2**70, 10**400, "", " ", "\x00", "😀", "가" * 300, "[MASK]", [], [[]], [None], [5],
    [[5]], [10**9], [True], [""], ["x", ""], [["x", "y"], ["z"]], {}, {"text": "x"}, [{}],
]  # fmt: skip
RIGHT_BODIES = {
    "/v1/completions": {"model": "gpt2", "prompt": "the cat", "max_tokens": 2},
    "/v1/embeddings": {"model": "bert", "input": "the cat"},
    "/v1/rerank": {"model": "ranker", "query": "the", "documents": ["a", "b"]},
    "/embed": {"inputs": "the cat"}, "/embed_all": {"inputs": "the cat"},
    "/predict": {"model": "classifier", "inputs": "the cat"},
    "/rerank": {"model": "ranker", "query": "the", "texts": ["a", "b"]},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}},
    "/tokenize": {"inputs": "the cat"}, "/decode": {"ids": [5, 6]}, "/detokenize": {"tokens": [5, 6]},
    "/playground/inspect": {"model": "bert", "text": "the cat"}, "/playground/objectives": {"text": "the cat"},
    "/playground/fill": {"model": "bert", "text": "the [MASK] sat"},
    "/playground/generate": {"model": "gpt2", "text": "the cat"},
    "/bert/fill-mask": {"inputs": "the [MASK] sat", "parameters": {"top_k": 2}},
    "/classifier/text-classification": {"inputs": "the cat", "parameters": {"top_k": 1}},
    "/tagger/token-classification": {"inputs": "the cat", "parameters": {"aggregation_strategy": "none"}},
    "/answerer/question-answering": {"inputs": {"question": "who", "context": "the cat sat"}},
    "/bart/translation": {"inputs": "the cat", "parameters": {"generate_parameters": {"max_new_tokens": 2}}},
    "/gpt2/text-generation": {"inputs": "the cat", "parameters": {
        "max_new_tokens": 2, "temperature": 1.0, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.1, "seed": 1,
        "stop": ["x"], "do_sample": True, "details": True, "return_full_text": True, "top_n_tokens": 2,
    }},
    "/bert/feature-extraction": {"inputs": "the cat", "parameters": {"normalize": True, "truncate": True}},
    "/entailment/zero-shot-classification": {
        "inputs": "the cat", "parameters": {"candidate_labels": ["a", "b"], "multi_label": True}
    },
}  # fmt: skip


def list_places(value, path=()):
    """The keys of a body, also those inside of others."""
    for name, inside in value.items():
        yield (*path, name)
        if isinstance(inside, dict):
            yield from list_places(inside, (*path, name))


@pytest.mark.filterwarnings("ignore")
def test_an_odd_value_in_any_place_is_no_500(server, full):
    """Right bodies with one value replaced by an odd one: what generated data seldom hits."""
    paths = requests.get(f"{server.address}/openapi.json", timeout=60).json()
    session, sent = requests.Session(), 0
    for path, right in RIGHT_BODIES.items():
        answer = session.post(server.address + path, json=right, timeout=600)
        assert answer.status_code == 200, (path, answer.text)
        named = list_fields(paths, path)
        places = dict.fromkeys([*list_places(right), *((name,) for name in named)])
        for number, place in enumerate(places):
            for odd in ODD_VALUES if full else ODD_VALUES[number % len(ODD_VALUES) :: len(ODD_VALUES)]:
                body = copy.deepcopy(right)
                inner = body
                for name in place[:-1]:
                    inner = inner[name]
                inner[place[-1]] = odd
                answer = session.post(server.address + path, json=body, timeout=600)
                assert answer.status_code < 500, (path, place, odd, answer.text)
                if "json" in answer.headers["content-type"]:
                    answer.json()
                sent += 1
    print(f"row 20: {sent} requests with an odd value in one place, none answered by a 500")
    assert sent > 100


def list_fields(description, path: str) -> list[str]:
    """The fields of a route's body, by the server's OpenAPI."""
    known = path if path in description["paths"] else "/{model}/{task}"
    schema = description["paths"][known]["post"]["requestBody"]["content"]["application/json"]["schema"]
    if "$ref" in schema:
        schema = description["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return list(schema.get("properties", {}))
