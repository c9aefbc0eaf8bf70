"""A deployment on Ray Serve: two replicas answer as `formers serve` does, and one continues when the other is killed.

Runs where Ray is installed (make ray), on a Ray of its own.
"""

from __future__ import annotations

import json
import secrets
import time
import urllib.error
import urllib.request

import pytest

import formers
from tests.serving.server_process import find_free_port
from tests.serving.small_models import build_small

ray = pytest.importorskip("ray")
pytest.importorskip("ray.serve")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray, about itself
TEXT = "the cat sat on the mat"


def ask(address: str, path: str, body: dict | None = None, token: str | None = "secret-token-1") -> tuple[dict, str]:
    """The JSON of an answer, and the replica that gave it."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    request = urllib.request.Request(address + path, data, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read()), answer.headers["x-formers-replica"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    made = {
        "gpt2": build_small("gpt2", "lm"),
        "classifier": build_small("bert", "classify", labels=["bad", "good"]),
    }
    for name, former in made.items():
        formers.save(former, folder / name)
    return folder, {name: formers.load(folder / name) for name in made}


@pytest.fixture(scope="module")
def address(models):
    from ray import serve

    from formers.serving.ray_deployment import serve_on_ray

    port, monkeypatch = find_free_port(), pytest.MonkeyPatch()
    monkeypatch.setenv("FORMERS_SERVE_TOKEN", "secret-token-1")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one into the home directory
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    try:
        paths = [str(models[0] / name) for name in models[1]]
        serve_on_ray(*paths, port=port, replicas=2, cpus=0.1)
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()
    finally:
        ray.shutdown()
        monkeypatch.undo()


def collect_replicas(address: str, count: int, seconds: float) -> set[str]:
    """Ask until so many replicas have answered; refused and broken requests are passed over."""
    seen: set[str] = set()
    deadline = time.monotonic() + seconds
    while len(seen) < count and time.monotonic() < deadline:
        try:
            seen.add(ask(address, "/v1/embeddings", {"model": "classifier", "input": TEXT})[1])
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return seen


def test_both_replicas_answer_as_the_models_do(address, models):
    gpt2, classifier = models[1]["gpt2"], models[1]["classifier"]
    vector = formers.embed(classifier, TEXT, normalise=True).tolist()
    written = formers.generate(gpt2, TEXT, max_new_tokens=6, temperature=0.0)
    said = formers.classify(classifier, TEXT)
    seen = set()
    for _ in range(40):
        found, replica = ask(address, "/v1/embeddings", {"model": "classifier", "input": TEXT})
        assert found["data"][0]["embedding"] == pytest.approx(vector, abs=1e-5)
        body = {"model": "gpt2", "prompt": TEXT, "max_tokens": 6, "temperature": 0}
        assert ask(address, "/v1/completions", body)[0]["choices"][0]["text"] == written
        answer = ask(address, "/predict", {"inputs": TEXT})[0]
        best = max(answer, key=lambda one: one["score"])
        assert best["label"] == said.label
        seen.add(replica)
        if len(seen) == 2:
            break
    assert len(seen) == 2, "every replica gets requests"


def test_the_token_is_asked_for_by_every_replica(address):
    for token in (None, "another-token"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(address, "/v1/models", token=token)


def test_one_replica_is_killed_and_the_other_continues(address):
    before = collect_replicas(address, 2, 60)
    assert len(before) == 2
    victim, survivor = sorted(before)
    ray.kill(ray.get_actor(f"SERVE_REPLICA::formers#formers#{victim}", namespace="serve"))
    found, failed = [], 0
    deadline = time.monotonic() + 60
    while len(found) < 20 and time.monotonic() < deadline:
        try:
            found.append(ask(address, "/v1/embeddings", {"model": "classifier", "input": TEXT})[1])
        except (urllib.error.URLError, OSError):
            failed += 1
    assert survivor in found
    assert victim not in found
    assert failed <= 2, "at most what was under way to the killed one"
    after = collect_replicas(address, 2, 120)
    assert len(after) == 2, "Ray starts a new one"
    assert victim not in after


def test_options_are_read_as_the_command_line_gives_them():
    from pydantic import ValidationError

    from formers.serving.ray_deployment import DeploymentOptions

    options = DeploymentOptions.model_validate({"models": "a,b=runs/1", "replicas": "2", "gpus": "0.5"})
    assert (options.models, options.replicas, options.gpus) == (("a", "b=runs/1"), 2, 0.5)
    for wrong in ({"models": ""}, {"dtype": "int9"}, {"replica": 2}, {"replicas": 0}):
        with pytest.raises(ValidationError):
            DeploymentOptions.model_validate({"models": "a", **wrong})


def test_an_open_address_needs_a_token(monkeypatch):
    from formers.serving.ray_deployment import serve_on_ray

    monkeypatch.delenv("FORMERS_SERVE_TOKEN", raising=False)
    with pytest.raises(formers.Error, match="there is no token"):
        serve_on_ray("my-bert", host="0.0.0.0")
