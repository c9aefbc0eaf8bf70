"""The routes of text-embeddings-inference: its answers, its errors, and vLLM's bodies told apart by their keys."""

from __future__ import annotations

import numpy as np
import pytest

from tests.serving.small_models import open_client

TEXTS = ["the cat sat", "a bird flew away .", "고양이가 앉았다"]


def post(client, path, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_embed_gives_a_list_of_vectors(client, models):
    former = models["bert"]
    rows = post(client, "/embed", model="bert", inputs=TEXTS)
    assert np.abs(np.array(rows) - former.embed(TEXTS, normalise=True).numpy()).max() <= 1e-6
    one = post(client, "/embed", model="bert", inputs=TEXTS[0], normalize=False)
    assert np.abs(np.array(one) - former.embed([TEXTS[0]]).numpy()).max() <= 1e-5


def test_truncation_happens_only_on_request(client, models):
    former, text = models["bert"], "the cat sat on the mat " * 20
    ids = former.tokenizer.encode(text, special=False)[: former.context - 2]
    cut = former.tokenizer.decode(ids)
    whole = post(client, "/embed", model="bert", inputs=text)
    truncated = post(client, "/embed", model="bert", inputs=text, truncate=True)
    assert np.abs(np.array(whole[0]) - former.embed(text, normalise=True).numpy()).max() <= 1e-6
    assert np.abs(np.array(truncated[0]) - former.embed(cut, normalise=True).numpy()).max() <= 1e-5
    assert np.abs(np.array(whole) - np.array(truncated)).max() > 1e-3


def test_embed_all_gives_every_token(client, models):
    former = models["bert"]
    rows = post(client, "/embed_all", model="bert", inputs=TEXTS[:2])
    for text, row in zip(TEXTS, rows, strict=False):
        assert len(row) == len(former.tokenizer.encode(text))
        inner = former.embed(text, level="token").vectors.numpy()
        assert np.abs(np.array(row)[1:-1] - inner).max() <= 1e-5


def test_predict_ranks_labels(client, models):
    want = models["classifier"].classify(TEXTS[:2])
    one = post(client, "/predict", model="classifier", inputs=TEXTS[0])
    assert [row["label"] for row in one] == sorted(want[0].probabilities, key=lambda k: -want[0].probabilities[k])
    assert one[0]["score"] == pytest.approx(want[0].probability)
    many = post(client, "/predict", model="classifier", inputs=[[TEXTS[0]], [TEXTS[1]]])
    assert [row[0]["score"] for row in many] == pytest.approx([one.probability for one in want])
    pair = post(client, "/predict", model="entailment", inputs=[TEXTS[0], TEXTS[1]])
    assert pair[0]["score"] == pytest.approx(models["entailment"].classify((TEXTS[0], TEXTS[1])).probability)
    assert post(client, "/predict", inputs=TEXTS[0])[0]["label"] in ("bad", "good"), "the first that classifies"


def test_rerank_takes_both_bodies(client, models):
    scores = models["ranker"].score([("the cat", text) for text in TEXTS])
    want = sorted(range(3), key=lambda i: -scores[i])
    rows = post(client, "/rerank", query="the cat", texts=TEXTS, return_text=True)
    assert [row["index"] for row in rows] == want
    assert rows[0]["text"] == TEXTS[want[0]]
    raw = post(client, "/rerank", query="the cat", texts=TEXTS, raw_scores=True)
    assert raw[0]["score"] == pytest.approx(max(scores), abs=1e-5)
    vllm = post(client, "/rerank", query="the cat", documents=TEXTS, top_n=2)
    assert [row["index"] for row in vllm["results"]] == want[:2]


def test_similarity_is_a_cosine(client, models):
    rows = post(client, "/similarity", model="bert", inputs={"source_sentence": TEXTS[0], "sentences": TEXTS})
    vectors = models["bert"].embed(TEXTS, normalise=True)
    assert rows == pytest.approx((vectors @ vectors[0]).tolist(), abs=1e-5)


def test_tokenize_takes_both_bodies_and_decode_returns(client, models):
    tokenizer = models["bert"].tokenizer
    ids = tokenizer.encode(TEXTS[0])
    rows = post(client, "/tokenize", model="bert", inputs=TEXTS[:2])
    assert [one["id"] for one in rows[0]] == ids
    assert rows[0][0] == {"id": ids[0], "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert TEXTS[0][rows[0][1]["start"] : rows[0][1]["stop"]] == "the"
    bare = post(client, "/tokenize", model="bert", inputs=TEXTS[0], add_special_tokens=False)
    assert [one["id"] for one in bare[0]] == ids[1:-1]
    vllm = post(client, "/tokenize", model="bert", prompt=TEXTS[0], return_token_strs=True)
    assert (vllm["tokens"], vllm["count"], vllm["max_model_len"]) == (ids, len(ids), 64)
    assert vllm["token_strs"][0] == "[CLS]"
    assert post(client, "/detokenize", model="bert", tokens=ids)["prompt"] == tokenizer.decode(ids, special=True)
    assert client.get("/tokenizer_info?model=bert").json()["mask_token"] == "[MASK]"
    assert post(client, "/decode", model="bert", ids=[ids, ids]) == [tokenizer.decode(ids)] * 2
    assert "[CLS]" in post(client, "/decode", model="bert", ids=ids, skip_special_tokens=False)[0]


def test_info_says_what_is_served(client):
    info = client.get("/info").json()
    assert (info["model_id"], info["max_concurrent_requests"]) == ("gpt2", 512)
    assert client.get("/info?model=ranker").json()["model_type"] == {
        "reranker": {"id2label": {"0": "relevance"}, "label2id": {"relevance": 0}}
    }
    assert "classifier" in client.get("/info?model=classifier").json()["model_type"]


@pytest.mark.parametrize(("path", "body", "status", "kind"), [
    ("/embed", {"inputs": []}, 422, "validation"),
    ("/embed", {"inputs": "x", "prompt_name": "query"}, 400, "validation"),
    ("/embed", {"inputs": "x", "dimensions": 3}, 400, "validation"),
    ("/embed", {"inputs": "x", "model": "other"}, 404, "validation"),
    ("/embed", {"inputs": ["x"] * 3000}, 413, "validation"),
    ("/embed", {"inputs": "the cat " * 9000}, 413, "validation"),
    ("/predict", {"inputs": "x", "model": "gpt2"}, 400, "validation"),
    ("/predict", {"inputs": " ", "model": "classifier"}, 422, "validation"),
    ("/decode", {"ids": [10**9]}, 422, "tokenizer"),
    ("/rerank", {"query": "x"}, 422, "validation"),
    ("/tokenize", {}, 422, "validation"),
], ids=str)  # fmt: skip
def test_errors_have_their_shape(client, path, body, status, kind):
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "error_type"}
    assert answer.json()["error_type"] == kind


def test_batches_over_the_limit_are_split(models):
    texts = [f"{text} {number}" for number in range(40) for text in TEXTS]
    with open_client(models, ["bert"], max_batch_tokens=64) as client:
        rows = post(client, "/embed", inputs=texts)
        metrics = client.get("/metrics").text
    assert np.abs(np.array(rows) - models["bert"].embed(texts, normalise=True).numpy()).max() <= 1e-5
    count = float(next(line for line in metrics.splitlines() if line.startswith("te_batch_next_size_count")).split()[1])
    assert count > 10


def test_metrics_have_both_families_of_names(client):
    post(client, "/embed", model="bert", inputs="the cat")
    client.post("/v1/completions", json={"model": "gpt2", "prompt": "the", "max_tokens": 4})
    client.post("/embed", json={"inputs": "x", "model": "other"})
    text = client.get("/metrics").text
    for name in (
        'te_request_count{method="embed"}', "te_request_success", 'te_request_failure{err="validation"}',
        "te_request_duration_bucket", "te_request_tokenization_duration_count", "te_request_inference_duration_sum",
        "te_request_input_length_bucket", "te_request_queue_duration_count",
        "te_batch_next_size_sum", "te_batch_next_tokens_bucket", "te_queue_size",
        'vllm:num_requests_running{model_name="gpt2"}', "vllm:num_requests_waiting", "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_bucket", "vllm:request_success_total",
        "vllm:inter_token_latency_seconds_count", "vllm:e2e_request_latency_seconds_sum",
    ):  # fmt: skip
        assert name in text, name
    assert "the cat" not in text


@pytest.mark.parametrize(("path", "body", "words"), [
    ("/embed", b"{", "the body is not valid JSON (at character 1)"),
    ("/embed", b'{"inputs": 5}', "inputs: Input should be a valid string"),
    ("/rerank", b'{"query": "x"}', "texts: Field required; documents: Field required"),
    ("/predict", b'{"inputs": [["a", 5]]}', "inputs"), ("/rerank", b'{"query": "x", "texts": ["a", 5]}', "texts.1: "),
    ("/decode", b'{"ids": [-1]}', "ids"),
])  # fmt: skip
def test_problems_are_named_as_the_client_wrote_them(client, path, body, words):
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    message = answer.json()["error"]
    assert message.startswith(words)
    assert "Body" not in message, "names of classes are of no use to a client"
    assert "[str]" not in message
    for unreadable in (b"\xff", b"[" * 5000):
        broken = client.post(path, content=unreadable, headers={"Content-Type": "application/json"})
        assert broken.status_code in (400, 422)
        assert broken.json()["error"].startswith(("the body cannot be read", "the body is not valid JSON"))
