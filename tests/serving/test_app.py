"""Nothing of a request stays behind: the objects of the process are as many after hundreds of requests as before."""

from __future__ import annotations

import collections
import gc
import urllib.parse

import pytest

from tests.serving.small_models import open_client

REQUESTS = [
    ("/v1/embeddings", {"model": "bert", "input": ["the cat", "고양이"]}, 200),
    (
        "/v1/completions",
        {"model": "gpt2", "prompt": "the", "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 2},
        200,
    ),
    ("/v1/completions", {"model": "bart", "prompt": "the cat", "max_tokens": 3, "temperature": 0, "stream": True}, 200),
    ("/predict", {"model": "classifier", "inputs": "the cat"}, 200),
    ("/rerank", {"model": "ranker", "query": "the cat", "texts": ["a bird", "the dog"]}, 200),
    ("/bert/fill-mask", {"inputs": "the [MASK] sat"}, 200),
    ("/tokenize", {"model": "gpt2", "inputs": "the cat"}, 200),
    ("/v1/completions", {"model": "gpt2", "prompt": 5}, 400),
    ("/v1/embeddings", {"model": "nobody-{number}", "input": "x"}, 404),
    ("/nobody-{number}/fill-mask", {"inputs": "x"}, 404),
    ("/nowhere/{number}/at/all", {}, 404),
]


def count_objects() -> collections.Counter:
    urllib.parse.clear_cache()  # of the client
    gc.collect()
    return collections.Counter(type(one).__name__ for one in gc.get_objects())


def read_series(serving) -> set[str]:
    """The names and labels of all metrics, without their values."""
    return {line.rsplit(" ", 1)[0] for line in serving.get("/metrics").text.splitlines() if not line.startswith("#")}


@pytest.fixture(scope="module")
def serving(models):
    with open_client(models) as client:
        yield client


def test_requests_leave_no_objects_behind(serving):
    """Each name of a model and each path is another one: what kept them would grow with every request."""
    number = 0

    def ask(rounds: int) -> None:
        nonlocal number
        for _ in range(rounds):
            for path, body, status in REQUESTS:
                number += 1
                named = {key: v.format(number=number) if isinstance(v, str) else v for key, v in body.items()}
                answer = serving.post(path.format(number=number), json=named)
                assert answer.status_code == status, (path, answer.text)

    ask(15)
    segments, series = [], read_series(serving)
    for _ in range(3):  # Python's own caches grow once, a leak in each
        before = count_objects()
        ask(30)
        segments.append(count_objects() - before)
    grown = min(segments, key=lambda one: sum(one.values()))
    assert sum(grown.values()) < 20, f"more than before, of 30 requests of each kind: {grown.most_common(8)}"
    assert read_series(serving) == series, "metrics have no label that clients choose"
