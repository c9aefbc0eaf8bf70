"""Real clients, unmodified, against a running server. They live in a virtual environment of their own: make clients."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import formers
from formers.evaluation.api import evaluate
from tests.serving.server_process import start_server

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("FORMERS_CLIENTS", ROOT / ".venv-clients")) / "bin" / "python"
TOKEN = "a-token-for-clients"
TEXTS = ["the cat", "고양이"]
pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="the clients are not installed: make clients"),
    pytest.mark.xdist_group("clients"),
]


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    for name, former in models.items():
        formers.save(former, folder / name)
    words = [str(folder / name) for name in models]
    with start_server(folder, *words, "--token-ids", environment={"FORMERS_SERVE_TOKEN": TOKEN}) as server:
        yield server


def call(server, name: str, *words: str) -> dict:
    """Run a client's script and read the JSON that it prints last."""
    script = ROOT / "tests" / "serving" / "clients" / f"{name}.py"
    settings = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(server.log.parent / "hf"),
                "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1", "PYTHONPATH": ""}  # fmt: skip
    command = [str(PYTHON), str(script), server.address, TOKEN, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **settings}, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def check_vectors(found, models) -> None:
    want = models["bert"].embed(TEXTS, normalise=True).numpy()
    assert np.abs(np.array(found) - want).max() <= 1e-5


def test_openai(server, models):
    found = call(server, "call_openai")
    assert found["models"] == list(models)
    greedy = models["gpt2"].generate("the cat", 6, temperature=0)
    assert found["text"] == "the cat" + greedy
    assert found["streamed"] == greedy
    assert found["log_probs"][0] is None
    assert found["drawn"] == models["gpt2"].generate("the cat", 6, seed=4, num_samples=2, stop=["\n\n"])
    assert "not chat models" in found["chat"]
    assert found["locked"]
    check_vectors(found["packed"], models)
    check_vectors(found["plain"], models)


def test_huggingface_hub(server, models):
    found, text = call(server, "call_huggingface"), "the cat sat on the mat"
    assert found["fill"] == [one.token for one in models["bert"].fill("the ___ sat", 3)]
    assert found["label"] == models["classifier"].classify(text).label
    assert found["tags"] == [one.tag for one in models["tagger"].tag(text)]
    assert found["answer"] == models["answerer"].answer("who sat ?", text).text
    assert found["zero"] == ["animals", "weather"]
    assert found["text"] == found["streamed"] == models["gpt2"].generate("the cat", 6, temperature=0)
    assert found["details"] == 6
    assert found["translation"] == models["bart"].translate(text)
    assert found["summary"] == models["bart"].summarise(text)
    assert found["similarity"][0] == pytest.approx(1, abs=1e-5)
    check_vectors(found["vectors"], models)


def test_langchain(server, models):
    found = call(server, "call_langchain")
    check_vectors(found["vectors"], models)
    assert found["text"] == found["streamed"] == models["gpt2"].generate("the cat", 6, temperature=0)


def test_cohere(server, models):
    documents = ["the dog ran", "a bird sang in the tree", "the cat sat on the mat"]
    scores = models["ranker"].score([("the cat", one) for one in documents])
    found = call(server, "call_cohere")
    assert found["order"] == sorted(range(3), key=lambda i: -scores[i])[:2]


def test_llama_index(server, models, tmp_path):
    formers.save(models["bert"], tmp_path / "bert")
    with start_server(tmp_path, str(tmp_path / "bert"), environment={"FORMERS_SERVE_TOKEN": TOKEN}) as alone:
        check_vectors(call(alone, "call_llamaindex")["vectors"], models)


def test_litellm(server, models):
    found = call(server, "call_litellm")
    assert found["text"] == models["gpt2"].generate("the cat", 6, temperature=0)
    check_vectors(found["vectors"], models)


@pytest.mark.parametrize("sent", ["ids", "text"])
def test_lm_eval_gives_the_number_of_formers_evaluate(server, models, tmp_path, sent):
    lines = ["the cat sat on the mat and the dog ran", "a bird sang in the tree , then it flew away .", "the dog sat"]
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    found = call(server, "call_lm_eval", str(file), str(models["gpt2"].context), sent)
    want = evaluate(models["gpt2"], str(file), "perplexity").metrics
    assert found["word_perplexity"] == pytest.approx(want["perplexity_word"], rel=1e-5)
    assert found["byte_perplexity"] == pytest.approx(want["perplexity_byte"], rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(want["bits_byte"], rel=1e-5)
