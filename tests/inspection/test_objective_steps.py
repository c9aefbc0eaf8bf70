"""Objectives on one's own sentence: the steps are those of the batch that the real objective makes."""

from __future__ import annotations

import re

import pytest

from formers import Error
from formers.inspection.objective_steps import explain_objectives, find_dropped, get_own_objective
from formers.objectives.registry import OBJECTIVES
from formers.registry import FAMILIES
from tests.small_models import get_verb_model as model

TEXT = "the cat sat on the mat. the log is here and the cat is on it. we will see."
KOREAN = "오늘은 날씨가 좋습니다. 안녕하세요 여러분 오늘은 날씨가 좋습니다."
OWN = [name for name in FAMILIES if get_own_objective(name) not in ("", "seq2seq")]


def explain(name, text=TEXT, **how):
    f = model(name, FAMILIES[name].definition.pretraining_head)
    return explain_objectives(text, [get_own_objective(name)], f.tokenizer, trains_tokenizer=False, **how)


@pytest.mark.parametrize("name", OWN)
def test_every_family_has_its_own(name):
    made = explain(name)
    assert [one.name for one in made] == [get_own_objective(name)]
    assert made[0].tokenizer == "model"
    assert len(made[0].steps) >= 3
    for step in made[0].steps:
        assert step.title
        assert step.tokens
    assert made[0].to_dict()["help"] == OBJECTIVES[made[0].name].help
    assert explain(name, seed=0) == made


def test_a_masked_model_hides_what_it_predicts():
    steps = {step.title: step.tokens for step in explain("roberta")[0].steps}
    hidden = [i for i, token in enumerate(steps["chosen"]) if token.state == "hidden"]
    assert hidden
    assert hidden == [i for i, token in enumerate(steps["model predicts"]) if token.state == "target"]
    for i, (text, seen) in enumerate(zip(steps["text"], steps["model sees"], strict=True)):
        if i not in hidden:
            assert seen.state in ("kept", "special")
        elif seen.state == "masked":
            assert seen.text == "<mask>"
        else:
            assert seen.state in ("random", "target")
        if i in hidden:
            assert steps["model predicts"][i].text == text.text


def test_draws_depend_on_the_seed():
    assert explain("bert", seed=1) != explain("bert", seed=2)


def test_spans_become_sentinels():
    steps = {step.title: step.tokens for step in explain("t5")[0].steps}
    dropped = [token.state == "dropped" for token in steps["spans are dropped"]]
    assert any(dropped)
    spans = sum(now and not before for before, now in zip([False, *dropped], dropped, strict=False))
    assert spans == sum(token.state == "sentinel" for token in steps["encoder reads"])
    written = [token.text.lstrip("▁") for token in steps["decoder writes"] if token.state == "target"]
    out = [token.text.lstrip("▁") for token in steps["spans are dropped"] if token.state == "dropped"]
    assert [word for word in written if word and word != "</s>"] == [word for word in out if word]


def test_dropped_tokens_are_found_where_they_were():
    import numpy as np

    text = np.array([5, 6, 7, 8, 6, 7, 9])
    assert find_dropped(text, np.array([5, 100, 8, 101, 1]), {100, 101}) == [
        False, True, True, False, True, True, True,
    ]  # fmt: skip


def test_turns_of_a_permutation():
    made = explain("xlnet")[0]
    turns = [step for step in made.steps if step.title.startswith("turn")]
    targets = [i for i, token in enumerate(made.steps[1].tokens) if token.state == "hidden"]
    for step in turns:
        asked = [i for i, token in enumerate(step.tokens) if token.state == "target"]
        assert len(asked) == 1
        assert asked[0] in targets
    places = [next(i for i, token in enumerate(step.tokens) if token.state == "target") for step in turns]
    for number, step in enumerate(turns):  # what has had its turn is visible, what has not is hidden
        assert all(step.tokens[at].state in ("kept", "special") for at in places[:number])
        assert all(step.tokens[at].state == "hidden" for at in places[number + 1 :])


def test_pairs_have_a_question_and_single_sentences_none():
    assert explain("bert")[0].steps[-1].title == "question"
    assert explain("albert")[0].steps[-1].title == "question"
    alone = explain("albert", "the cat sat on the mat")
    assert [one.name for one in alone] == ["ngrams"]


def test_sentences_change_places():
    for seed in range(8):
        steps = explain("bart", seed=seed)[0].steps
        if any(step.title == "sentences change places" for step in steps):
            break
    moved = next(step for step in steps if step.title == "sentences change places")
    assert sorted(t.text for t in moved.tokens) == sorted(t.text for t in steps[0].tokens)


def test_korean_stays_readable():
    for name in ("gpt2", "bert", "t5", "bart"):
        for step in explain(name, KOREAN)[0].steps:
            assert not any(re.search("<[0-9a-f]{2,}>|�", token.text) for token in step.tokens), name


def test_a_draw_that_hides_nothing_is_drawn_again():
    for seed in range(6):
        steps = explain_objectives("나는 학교에 갔다.", ["ernie-units"], seed=seed)[0].steps
        assert any(token.state == "hidden" for token in steps[1].tokens), seed


def test_a_tokenizer_that_does_not_suit(monkeypatch):
    f = model("gpt2", "lm")
    assert explain_objectives(TEXT, ["mlm"], f.tokenizer, trains_tokenizer=False) == []
    monkeypatch.setattr("formers.inspection.objective_steps.MAX_TOKENIZER_DOCUMENTS", 5)
    monkeypatch.setattr("formers.inspection.objective_steps.SMALL_VOCAB_SIZE", 300)
    made = explain_objectives(TEXT, ["mlm"], f.tokenizer)
    assert made[0].tokenizer == "small"
    with pytest.raises(Error, match="not available"):
        explain_objectives(TEXT, ["mln"], f.tokenizer)
    pairs = explain_objectives("a source", ["seq2seq"], model("transformer", "lm").tokenizer, target="the mat")
    assert [step.title for step in pairs[0].steps] == ["text", "encoder reads", "decoder writes"]


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_every_objective_is_explained_in_korean(name):
    """Titles, notes and answers have Korean words with the same numbers; a page shows them by its language."""
    target = "the dog ran" if name == "seq2seq" else None
    made = explain_objectives(TEXT, [name], target=target)
    assert made, name
    document = made[0].to_dict()
    assert re.search("[가-힣]", document["ko"]["help"])
    for step in document["steps"]:
        for part in ("title", "note"):
            assert re.search("[가-힣]", step["ko"][part]), step[part]
            assert not re.search("[{}]", step["ko"][part] + step[part])
            assert re.findall(r"\d+", step["ko"][part]) == re.findall(r"\d+", step[part])
        for token in step["tokens"]:
            assert ("ko" in token) == (step["title"] == "question")
