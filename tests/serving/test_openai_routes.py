"""OpenAI's routes give what the library's own functions give, and refuse clearly what they do not take."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json

import numpy as np
import pytest
import torch

from formers.evaluation.likelihood import compute_id_log_probs
from formers.serving.responses import Overloaded
from formers.serving.served_models import ModelLease
from formers.serving.settings import ServerSettings
from tests.serving.small_models import open_client

TEXTS = ["the cat sat", "a bird flew away .", "고양이가 앉았다"]


def read_events(response) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_models_are_listed(client, models):
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == list(models)
    assert client.get("/v1/models/bert").json()["family"] == "bert"
    missing = client.get("/v1/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_embeddings_are_those_of_the_library(client, models):
    want = models["bert"].embed(TEXTS, normalise=True).numpy()
    answer = client.post("/v1/embeddings", json={"model": "bert", "input": TEXTS}).json()
    rows = np.array([one["embedding"] for one in answer["data"]], np.float32)
    assert np.abs(rows - want).max() <= 1e-6
    assert [one["index"] for one in answer["data"]] == [0, 1, 2]
    packed = client.post("/v1/embeddings", json={"model": "bert", "input": TEXTS, "encoding_format": "base64"}).json()
    unpacked = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in packed["data"]]
    assert np.array_equal(np.stack(unpacked), rows)
    tokens = sum(len(models["bert"].tokenizer.encode(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    one = client.post("/v1/embeddings", json={"model": "bert", "input": TEXTS[0]}).json()
    assert np.abs(np.array(one["data"][0]["embedding"]) - want[0]).max() <= 1e-6


def test_a_long_text_is_read_in_windows_and_not_cut(client, models):
    text = "the cat sat on the mat " * 20
    assert len(models["bert"].tokenizer.encode(text)) > models["bert"].context
    answer = client.post("/v1/embeddings", json={"model": "bert", "input": text}).json()
    want = models["bert"].embed(text, normalise=True).numpy()
    assert np.abs(np.array(answer["data"][0]["embedding"]) - want).max() <= 1e-6


@pytest.mark.parametrize(("body", "status", "words"), [
    ({"input": "x", "dimensions": 4}, 400, "are not shortened"),
    ({"input": [1, 2, 3]}, 400, "check_embedding_ctx_length=False"),
    ({"input": [[1, 2], [3]]}, 400, "token ids"),
    ({"input": []}, 400, "no texts"),
    ({"input": [1.5]}, 400, "strings"),
    ({"input": 5}, 400, "strings"),
    ({"input": {"a": 1}}, 400, "strings"),
    ({"input": "x", "model": "other"}, 404, "no such model"),
    ({"input": "x", "surprise": 1}, 400, "surprise"),
    ({"input": "x", "encoding_format": "hex"}, 400, "encoding_format"),
    ({}, 400, "input"),
], ids=str)  # fmt: skip
def test_embeddings_refuse_clearly(client, body, status, words):
    answer = client.post("/v1/embeddings", json={"model": "bert", **body})
    assert answer.status_code == status
    error = answer.json()["error"]
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("name", ["gpt2", "bart"])
@pytest.mark.parametrize("how", [
    {"temperature": 0}, {"seed": 5}, {"seed": 5, "top_k": 7, "temperature": 0.8}, {"seed": 2, "top_p": 0.9},
    {"temperature": 0, "top_p": 0.5}, {"temperature": 0, "repetition_penalty": 1.5, "no_repeat_ngram": 2},
], ids=str)  # fmt: skip
def test_completions_are_those_of_the_library(client, models, name, how):
    own = {k: v for k, v in how.items() if k != "top_p" or how.get("temperature") != 0}
    want = models[name].generate(TEXTS, 9, **own)
    answer = client.post("/v1/completions", json={"model": name, "prompt": TEXTS, "max_tokens": 9, **how}).json()
    assert [one["text"] for one in answer["choices"]] == want
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]


def test_several_samples_are_those_of_the_library(client, models):
    want = models["gpt2"].generate("the cat", 9, seed=4, num_samples=3)
    body = {"model": "gpt2", "prompt": "the cat", "max_tokens": 9, "seed": 4, "n": 3}
    assert [one["text"] for one in client.post("/v1/completions", json=body).json()["choices"]] == want


def test_a_stream_joined_is_the_text(client, models):
    body = {"model": "gpt2", "prompt": ["the cat", "고양이"], "max_tokens": 12, "temperature": 0, "stream": True}
    with client.stream("POST", "/v1/completions", json={**body, "stream_options": {"include_usage": True}}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = read_events(answer)
    texts = ["", ""]
    for event in events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == models["gpt2"].generate(["the cat", "고양이"], 12, temperature=0)
    assert events[-1]["usage"]["completion_tokens"] == 24
    ends = [choice["finish_reason"] for event in events[:-1] for choice in event["choices"] if choice["finish_reason"]]
    assert ends == ["length", "length"]


def test_a_stop_string_ends_a_text(client, models):
    whole = models["gpt2"].generate("the cat", 20, seed=3)
    stop = whole[6:9]
    assert len(stop) == 3
    body = {"model": "gpt2", "prompt": "the cat", "max_tokens": 20, "seed": 3, "stop": [stop]}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"


def test_log_probabilities_of_prompt_and_text(client, models):
    former = models["gpt2"]
    body = {"model": "gpt2", "prompt": "the cat sat", "max_tokens": 3, "temperature": 0, "logprobs": 4, "echo": True}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    found = choice["logprobs"]
    ids = former.tokenizer.encode("the cat sat", special=False)
    new = former.continue_ids([ids], 3, temperature=0)[0]
    assert found["tokens"] == [former.tokenizer.get_token_text(i) for i in [*ids, *new]]
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    want = compute_id_log_probs(former, [[*ids, *new]])[0]
    assert torch.allclose(torch.tensor(found["token_logprobs"][1:]), want, atol=1e-5)
    for value, top in zip(found["token_logprobs"][1:], found["top_logprobs"][1:], strict=True):
        assert 4 <= len(top) <= 5
        assert value in top.values()
    assert max(found["top_logprobs"][-1].values()) == found["token_logprobs"][-1], "greedy takes the likeliest"
    assert choice["text"] == "the cat sat" + former.generate("the cat sat", 3, temperature=0)
    assert len(found["text_offset"]) == len(found["tokens"])
    scored = client.post("/v1/completions", json={**body, "max_tokens": 0}).json()["choices"][0]
    assert scored["logprobs"]["token_logprobs"] == found["token_logprobs"][:-3]
    assert scored["text"] == "the cat sat"


@pytest.mark.parametrize(("body", "status", "words"), [
    ({"prompt": "the " * 80}, 400, "reads 64 at once"),
    ({"prompt": "the cat", "max_tokens": 100}, 400, "Ask for at most"),
    ({"prompt": [1, 2]}, 400, "--token-ids"),
    ({"prompt": "x", "suffix": "y"}, 400, "suffix is not supported"),
    ({"prompt": "x", "presence_penalty": 0.5}, 400, "not supported"),
    ({"prompt": "x", "best_of": 3}, 400, "best_of"),
    ({"prompt": "x", "max_tokens": 0}, 400, "nothing to answer"),
    ({"prompt": "x", "temperature": -1}, 400, "temperature"),
    ({"prompt": "x", "n": 1000}, 400, "n: "),
    ({"prompt": "x", "stop": [""]}, 400, "stop string"),
    ({"prompt": "x", "model": "bert"}, 400, "does not generate"),
    ({"prompt": []}, 400, "no prompt"),
    ({"prompt": 5}, 400, "strings"),
    ({"prompt": {}}, 400, "strings"),
    ({"prompt": "x", "stream": "yes"}, 400, "stream"),
], ids=str)  # fmt: skip
def test_completions_refuse_clearly(client, body, status, words):
    answer = client.post("/v1/completions", json={"model": "gpt2", **body})
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("text", [
    '{"prompt": "\\ud800"}', '{"prompt": "x", "temperature": NaN}', '{"prompt": "x", "top_p": 1e999}', "{", "", "[]",
    "nul", '{"prompt": ' + "[" * 5000 + "]" * 5000 + "}", '{"prompt": "x", "seed": ' + "9" * 5000 + "}",
], ids=lambda text: text[:30])  # fmt: skip
def test_malformed_bodies_get_valid_json(client, text):
    answer = client.post("/v1/completions", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_nul_and_odd_characters_are_text_like_any_other(client):
    for prompt in ("\x00", "a\x00b", "\u202e", "😀" * 4, "\ufffe"):
        assert client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2}).status_code == 200


def test_token_ids_are_taken_where_the_server_was_told_so(models):
    ids = models["gpt2"].tokenizer.encode("the cat", special=False)
    with open_client(models, ["gpt2"], settings=ServerSettings(takes_token_ids=True)) as client:
        body = {"prompt": [ids], "max_tokens": 5, "temperature": 0}
        text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert text == models["gpt2"].generate("the cat", 5, temperature=0)
        assert client.post("/v1/completions", json={**body, "prompt": ids}).json()["choices"][0]["text"] == text
        assert client.post("/v1/completions", json={**body, "prompt": [100_000]}).status_code == 400


def test_chat_is_refused_with_the_way_out(client):
    answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hello"}]})
    assert answer.status_code == 400
    assert "not chat models" in answer.json()["error"]["message"]
    assert "/v1/completions" in answer.json()["error"]["message"]


def test_documents_are_ranked(client, models):
    documents = ["the dog ran", "a bird sang in the tree", "the cat sat on the mat"]
    body = {"query": "the cat", "documents": documents, "return_documents": True}
    ranked = client.post("/v1/rerank", json={**body, "model": "ranker"}).json()["results"]
    scores = models["ranker"].score([("the cat", one) for one in documents])
    want = sorted(range(3), key=lambda i: -scores[i])
    assert [one["index"] for one in ranked] == want
    assert ranked[0]["relevance_score"] == pytest.approx(1 / (1 + np.exp(-scores[want[0]])))
    assert ranked[0]["document"]["text"] == documents[want[0]]
    cosines = client.post("/v1/rerank", json={**body, "model": "bert", "top_n": 1}).json()["results"]
    vectors = models["bert"].embed(["the cat", *documents], normalise=True)
    assert len(cosines) == 1
    named = client.post("/v2/rerank", json={**body, "documents": [{"text": one} for one in documents]}).json()
    assert [one["index"] for one in named["results"]] == want
    for wrong in ({"title": "a"}, {"text": "a", "title": "b"}):  # what is not read is not ignored
        refused = client.post("/v2/rerank", json={**body, "documents": [documents[0], wrong]})
        assert refused.status_code == 400
        assert "document 1 must be a text" in refused.json()["error"]["message"]
    assert cosines[0]["relevance_score"] == pytest.approx(float((vectors[1:] @ vectors[0]).max()), abs=1e-6)


@pytest.mark.parametrize("path", ["/v1/completions", "/playground/generate", "/gpt2/text-generation"])
def test_a_stream_whose_client_is_gone_before_its_first_event_frees_its_slot(client, path):
    """Such a stream's iterator is never begun, so that no code of it could free anything."""
    served = client.app.state.server.models.find("gpt2")
    body = {"/v1/completions": {"prompt": "the cat", "max_tokens": 50, "stream": True, "model": "gpt2"}}.get(path)
    body = body or {"text": "the cat", "max_new_tokens": 50, "model": "gpt2"}
    if path.endswith("text-generation"):
        body = {"inputs": "the cat", "parameters": {"max_new_tokens": 50}, "stream": True}
    data = json.dumps(body).encode()
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "method": "POST", "path": path,
        "raw_path": path.encode(), "query_string": b"", "headers": headers, "scheme": "http", "root_path": "",
        "http_version": "1.1", "server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 9),
    }  # fmt: skip
    messages = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive():
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message):
        raise OSError("the client is gone")

    async def ask():
        with contextlib.suppress(Exception):
            await client.app(scope, receive, send)

    asyncio.run(ask())
    assert served.num_requests == 0


def test_a_replaced_model_answers_those_who_hold_it_and_no_one_else(models):
    with open_client(models, ["gpt2"]) as client:
        table = client.app.state.server.models
        old = table.find("gpt2")
        with ModelLease(table, old):
            table.load_all()
            assert table.find("gpt2") is not old
            assert not old.is_closed  # a request still holds it
            assert old.engine.submit([1], 3).result()
        assert old.is_closed
        with pytest.raises(Overloaded, match="being replaced") as refused, ModelLease(table, old):
            pass
        assert (refused.value.status, refused.value.retry_after, old.num_requests) == (503, 1, 0)


def test_a_reload_that_fails_in_any_way_leaves_the_model_as_it_was(models, caplog):
    with open_client(models, ["gpt2"]) as client:
        table = client.app.state.server.models
        old, table.load = table.find("gpt2"), lambda source: [][1]
        table.load_all()
        assert table.find("gpt2") is old
