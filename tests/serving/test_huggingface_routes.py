"""Hugging Face's inference protocol: every task gives what the library's verb gives."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.serving.small_models import open_client

TEXT = "the cat sat on the mat"


def post(client, path, inputs, status=200, **more):
    answer = client.post(path, json={"inputs": inputs, **more})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_fill_mask_with_a_span(client, models):
    want = models["bart"].fill("the ___ sat", top_k=2)
    rows = post(client, "/bart/fill-mask", "the <mask> sat", parameters={"top_k": 2})
    assert [(row["token_str"], row["sequence"]) for row in rows] == [(one.token, one.text) for one in want]


def test_fill_mask(client, models):
    want = models["bert"].fill("the ___ sat", top_k=3)
    rows = post(client, "/bert/fill-mask", "the [MASK] sat", parameters={"top_k": 3})
    assert [row["token_str"] for row in rows] == [one.token for one in want]
    assert [row["score"] for row in rows] == pytest.approx([one.probability for one in want])
    assert rows[0]["token"] == models["bert"].tokenizer.backend.token_to_id(want[0].token)
    two = post(client, "/bert/fill-mask", ["the [MASK] sat on the [MASK]"])
    assert [len(blank) for blank in two[0]] == [5, 5]


def test_text_classification(client, models):
    want = models["classifier"].classify(TEXT)
    rows = post(client, "/classifier/text-classification", TEXT, parameters={"top_k": 1})
    assert rows == [{"label": want.label, "score": pytest.approx(want.probability)}]


def test_token_classification(client, models):
    words = models["tagger"].tag(TEXT)
    rows = post(client, "/tagger/token-classification", TEXT, parameters={"aggregation_strategy": "none"})
    assert [row["word"] for row in rows] == [one.word for one in words if one.tag != "O"]
    groups = post(client, "/tagger/token-classification", TEXT)
    assert [row["entity_group"] for row in groups] == [one.label for one in models["tagger"].tag(TEXT, entities=True)]
    assert all(TEXT[row["start"] : row["end"]] == row["word"] for row in groups)


def test_question_answering(client, models):
    want = models["answerer"].answer("who sat ?", TEXT)
    given = {"question": "who sat ?", "context": TEXT}
    row = post(client, "/answerer/question-answering", given)
    assert (row["answer"], row["start"], row["end"]) == (want.text, want.start, want.end)
    assert len(post(client, "/answerer/question-answering", given, parameters={"top_k": 3})) == 3
    long = {"question": "who " * 50, "context": TEXT}
    assert "nothing is cut" in post(client, "/answerer/question-answering", long, 413)["error"]
    post(client, "/answerer/question-answering", "who?", 422)


def test_translation_and_summarization(client, models):
    options = {"max_new_tokens": 6}
    rows = post(client, "/bart/translation", TEXT, parameters={"generate_parameters": options})
    assert rows == [{"translation_text": models["bart"].translate(TEXT, max_new_tokens=6)}]
    rows = post(client, "/bart/summarization", [TEXT, "a bird"], parameters={"generate_parameters": options})
    assert [row["summary_text"] for row in rows] == models["bart"].summarise([TEXT, "a bird"], max_new_tokens=6)
    post(client, "/bart/summarization", "the cat " * 60, 413)
    for bad in ({"texts": "x"}, {"num_beams": 10_000}, {"surprise": 1}, {"bad_words": ["x"]}):
        post(client, "/bart/summarization", TEXT, 422, parameters={"generate_parameters": bad})


def test_text_generation(client, models):
    greedy = models["gpt2"].generate("the cat", 6, temperature=0)
    assert post(client, "/gpt2/text-generation", "the cat", parameters={"max_new_tokens": 6}) == [
        {"generated_text": greedy}
    ]
    drawn = {"max_new_tokens": 6, "do_sample": True, "seed": 3, "temperature": 0.9, "return_full_text": True}
    row = post(client, "/gpt2/text-generation", "the cat", parameters=drawn)[0]
    assert row["generated_text"] == "the cat" + models["gpt2"].generate("the cat", 6, seed=3, temperature=0.9)
    details = {"max_new_tokens": 6, "details": True, "top_n_tokens": 2}
    row = post(client, "/gpt2/text-generation", "the cat", parameters=details)[0]
    assert row["details"]["generated_tokens"] == 6
    assert [len(top) for top in row["details"]["top_tokens"]] == [2] * len(row["details"]["tokens"])
    body = {"inputs": "the cat", "parameters": {"max_new_tokens": 6}, "stream": True}
    with client.stream("POST", "/gpt2/text-generation", json=body) as answer:
        events = [json.loads(line[5:]) for line in answer.iter_lines() if line]
    assert "".join(event["token"]["text"] for event in events) == greedy
    assert events[-1]["generated_text"] == greedy
    assert events[-1]["details"]["finish_reason"] == "length"


def test_feature_extraction_and_similarity(client, models):
    rows = post(client, "/bert/feature-extraction", [TEXT, "a bird"], normalize=False)
    assert np.abs(np.array(rows) - models["bert"].embed([TEXT, "a bird"]).numpy()).max() <= 1e-5
    given = {"source_sentence": TEXT, "sentences": [TEXT, "a bird"]}
    assert post(client, "/bert/sentence-similarity", given)[0] == pytest.approx(1, abs=1e-5)


def test_zero_shot_classification_asks_for_entailment(client, models):
    labels = ["animals", "weather"]
    rows = post(client, "/entailment/zero-shot-classification", TEXT, parameters={"candidate_labels": labels})
    found = models["entailment"].classify([(TEXT, f"This example is {label}.") for label in labels])
    want = np.array([one.probabilities["entailment"] for one in found])
    assert {row["label"]: row["score"] for row in rows} == pytest.approx(
        dict(zip(labels, want / want.sum(), strict=True))
    )
    several = {"candidate_labels": labels, "multi_label": True}
    rows = post(client, "/entailment/zero-shot-classification", TEXT, parameters=several)
    pairs = [(one.probabilities["entailment"], one.probabilities["contradiction"]) for one in found]
    assert sorted(row["score"] for row in rows) == pytest.approx(sorted(a / (a + b) for a, b in pairs))
    refused = post(client, "/classifier/zero-shot-classification", TEXT, 422, parameters={"candidate_labels": labels})
    assert "no label entailment" in refused["error"]


@pytest.mark.parametrize(("name", "inputs", "key"), [
    ("bert", "the [MASK] sat", "token_str"), ("classifier", TEXT, "label"), ("gpt2", TEXT, "generated_text"),
    ("answerer", {"question": "who?", "context": TEXT}, "answer"),
])  # fmt: skip
def test_the_first_models_own_task_answers_at_the_root(models, name, inputs, key):
    with open_client(models, [name]) as client:
        found = post(client, "/", inputs)
        assert key in (found[0] if isinstance(found, list) else found)


@pytest.mark.parametrize(("path", "body", "status"), [
    ("/bert/no-such-task", {"inputs": "x"}, 404), ("/other/fill-mask", {"inputs": "x"}, 404),
    ("/bert/text-generation", {"inputs": "x"}, 400), ("/bert/fill-mask", {"inputs": "no blank"}, 422),
    ("/bert/fill-mask", {"inputs": "[MASK]", "parameters": {"targets": ["x"]}}, 422),
    ("/bert/fill-mask", {"inputs": "[MASK]", "parameters": {"top_k": "x"}}, 422),
    ("/gpt2/text-generation", {"inputs": "x", "parameters": {"temperature": "hot", "do_sample": True}}, 422),
    ("/gpt2/text-generation", {"inputs": "x", "parameters": {"top_n_tokens": "x"}}, 422),
    ("/gpt2/text-generation", {"inputs": "x", "parameters": {"temperature": 10**400}}, 422),
    ("/gpt2/text-generation", {"inputs": ["x", "y"], "stream": True}, 422), ("/bert/fill-mask", {}, 422),
    ("/tagger/token-classification", {"inputs": [1]}, 422),
], ids=str)  # fmt: skip
def test_mistakes_are_refused(client, path, body, status):
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]


def test_an_integer_of_many_digits_is_a_number_like_any_other(client):
    body = {"inputs": "x", "parameters": {"repetition_penalty": 2**70, "max_new_tokens": 2}}
    assert client.post("/gpt2/text-generation", json=body).status_code == 200
