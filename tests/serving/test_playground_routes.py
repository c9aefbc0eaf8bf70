"""What the playground's page asks for."""

from __future__ import annotations

import json
import re

import pytest
import torch

from formers import registry
from formers.inputs import get_start_token
from tests.serving.small_models import build_small, open_client


def read_events(client, **body) -> list[dict]:
    with client.stream("POST", "/playground/generate", json=body) as answer:
        assert answer.status_code == 200
        return [json.loads(line[5:]) for line in answer.iter_lines() if line]


def test_models_say_what_they_can(client):
    rows = {one["name"]: one for one in client.get("/playground/models").json()["models"]}
    assert "generate" in rows["gpt2"]["verbs"]
    assert rows["bert"]["mask"] == "[MASK]"
    assert rows["bart"]["encoder_decoder"]
    assert rows["classifier"]["labels"] == ["bad", "good"]


def test_tokens_come_with_their_alternatives(client, models):
    events = read_events(client, model="gpt2", text="the cat", max_new_tokens=5, temperature=0, alternatives=4)
    *tokens, end = events
    assert end == {"finish_reason": "length", "text": models["gpt2"].generate("the cat", 5, temperature=0)}
    assert "".join(one["piece"] for one in tokens) == end["text"]
    named = [one for one in tokens if "id" in one]
    assert [one["index"] for one in named] == list(range(5))
    for one in named:
        chances = [other["probability"] for other in one["alternatives"]]
        assert len(chances) == 4
        assert chances == sorted(chances, reverse=True)
        assert one["probability"] == pytest.approx(chances[0]), "greedy takes the likeliest"


def test_another_choice_is_gone_on_from(client, models):
    first = next(one for one in read_events(client, model="gpt2", text="the cat", max_new_tokens=1) if "id" in one)
    other = first["alternatives"][3]["id"]
    events = read_events(client, model="gpt2", text="the cat", ids=[other], max_new_tokens=4, temperature=0)
    ids = models["gpt2"].tokenizer.encode("the cat", special=False)
    want = models["gpt2"].continue_ids([[*ids, other]], 4, temperature=0)[0]
    assert [one["id"] for one in events if "id" in one] == want
    refused = client.post("/playground/generate", json={"model": "gpt2", "text": "x", "ids": [10**6]})
    assert refused.status_code == 422


def test_blanks_are_guessed(client, models):
    blanks = client.post("/playground/fill", json={"model": "bert", "text": "the ___ sat", "top_k": 3}).json()["blanks"]
    assert [one["token"] for one in blanks[0]] == [one.token for one in models["bert"].fill("the ___ sat", 3)]
    two = client.post("/playground/fill", json={"model": "bert", "text": "___ cat ___"}).json()["blanks"]
    assert len(two) == 2


def test_the_root_leads_to_the_playground(client):
    answer = client.get("/", follow_redirects=False)
    assert answer.headers["location"] == "/playground/"


def test_the_family_is_shown_with_its_structure(client):
    rows = {one["name"]: one for one in client.get("/playground/family").json()["members"]}
    assert set(rows) == set(registry.FAMILIES)
    assert {"name": "bert-base", "parameters": 109_482_240} in rows["bert"]["presets"]
    assert rows["bert"]["new"][1] == "next sentence prediction"
    stacks = {name: row["diagram"]["stacks"] for name, row in rows.items()}
    assert [one["name"] for one in stacks["t5"]] == ["encoder", "decoder"]
    assert stacks["t5"][1]["groups"] == [
        {"order": "pre", "parts": ["causal attention", "cross attention", "feed-forward"], "count": 6}
    ]
    assert [one["parts"][0] for one in stacks["gpt3"][0]["groups"]] == ["causal attention", "local attention"]
    assert stacks["albert"][0]["is_shared"]
    assert not stacks["bert"][0]["is_shared"]
    assert stacks["switch"][0]["groups"][1]["parts"] == ["attention", "experts"]
    assert stacks["gpt_neox"][0]["groups"][0]["order"] == "parallel"
    kinds = {"bloom": "ALiBi", "gptj": "rotary", "transformer": "sinusoidal", "xlnet": "relative", "bert": "learned"}
    assert {name: stacks[name][0]["positions"] for name in kinds} == kinds
    assert all(re.search("[가-힣]", row["korean"]) for row in rows.values())


def test_objectives_are_drawn_by_a_seed(client):
    asked = {"model": "bert", "text": "the cat sat on the mat and the dog ran"}
    first, again, other = (
        client.post("/playground/objectives", json={**asked, "seed": seed}).json()["objectives"] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert {"bert", "t5", "xlnet"} <= {one["family"] for one in first}


def test_the_page_and_its_modules_are_served(client):
    page = client.get("/playground/")
    assert page.headers["content-type"].startswith("text/html")
    for path in ("playground.js", "playground.css", "page/viewer.js", "page/page.css"):
        answer = client.get(f"/playground/{path}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/css" if path.endswith("css") else "text/javascript")


@pytest.mark.parametrize(("family", "more"), [("t5", {}), ("bart", {}), ("seq2seq", {"attention": "additive"})])
def test_an_encoder_decoder_continues_from_another_choice(family, more):
    """The tokens after a decoder's prefix are those that the model itself finds likeliest, one by one."""
    former = build_small(family, "lm", **more)
    text, count = "the cat sat on the mat", 5
    source = torch.tensor([former.tokenizer.encode(text)])
    with open_client({family: former}) as client:
        first, second, *_ = (
            one for one in read_events(client, model=family, text=text, max_new_tokens=3, temperature=0) if "id" in one
        )
        prefix = [first["id"], second["alternatives"][4]["id"]]
        *tokens, end = read_events(
            client, model=family, text=text, ids=prefix, max_new_tokens=count, temperature=0, alternatives=3
        )
        written = [one["id"] for one in tokens if "id" in one]
        row = [get_start_token(former.config), *prefix]
        for index in written:
            with torch.inference_mode():
                logits = former.logits(source, target=torch.tensor([row]))[0, -1]
            assert index == int(logits.argmax())
            row.append(index)
        assert 1 <= len(written) <= count
        assert end["text"].endswith("".join(one["piece"] for one in tokens))
        assert end["text"] == former.output_tokenizer.decode([*prefix, *written])
        drawn = [
            [
                one.get("id")
                for one in read_events(client, model=family, text=text, ids=prefix, max_new_tokens=count, seed=5)
            ]
            for _ in range(2)
        ]
        assert drawn[0] == drawn[1]
        refused = client.post("/playground/generate", json={"model": family, "text": "x", "ids": [10**6]})
        assert refused.status_code == 422


def test_views_are_added_and_windows_chosen(client, models):
    long = "the cat sat on the mat " * 40
    body = {"model": "bert", "text": long, "views": ["attention"]}
    first, third = (client.post("/playground/inspect", json=body | more).json() for more in ({}, {"window": 2}))
    assert first["sides"]["text"]["window"]["index"] == 0
    assert third["sides"]["text"]["window"]["index"] == 2
    assert third["sides"]["text"]["window"]["first"] == 2 * first["sides"]["text"]["window"]["last"]
    short = {"model": "bert", "text": "the cat sat"}
    made = client.post("/playground/inspect", json=short | {"views": ["default"]}).json()
    assert {one["name"] for one in made["left_out"]} == {"attribution", "heads", "neuron"}
    more = {"views": ["default", "attribution"], "methods": ["occlusion"], "masked": False}
    made = client.post("/playground/inspect", json=short | more).json()
    assert list(made["attribution"]["methods"]) == ["occlusion"]
    assert made["prediction"]["method"] == "unmasked"
