"""What a comparison may be asked to do, and what it makes of families by what their files declare."""

from __future__ import annotations

import json

import pytest

from formers.comparison.settings import Budget, CompareConfig, choose_text_form, classify_family
from formers.errors import Error
from formers.registry import FAMILIES


def test_budgets():
    names = [Budget.parse(words).name for words in ("epochs:10", "epochs:0.5", "flops:2e17", "flops:bert")]
    assert names == ["epochs-10", "epochs-0.5", "flops-2e+17", "flops-bert"]
    for words in ("epochs", "epochs:0", "epochs:nan", "flops:bird", "hours:2", "flops:-1"):
        with pytest.raises(Error, match="is not a budget"):
            Budget.parse(words)


def test_settings_survive_a_file():
    config = CompareConfig.from_dict({
        "families": ["bert", "gpt2"], "tasks": {"reviews": {"train": "a.tsv", "test": "b.tsv"}}, "seeds": 2,
        "budgets": ["epochs:1", "flops:bert"], "headline": ["bert"], "train": {"workers": 1},
    })  # fmt: skip
    assert CompareConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert [config.count_seeds(name) for name in config.families] == [3, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"families": []}, "no family is named"), ({"families": ["bird"]}, "unknown family"),
     ({"families": ["textcnn"]}, "not pretrained"), ({"families": ["marian"]}, "another word"),
     ({"budgets": ["epochs:1", "epochs:1"]}, "several different"), ({"lr_factors": [0.0]}, "multiples above 0"),
     ({"budgets": ["epochs:1", "flops:t5"]}, "operations of t5"), ({"body_size": 0}, "body_size"),
     ({"sizes": 3}, "no setting"),
     ({"tasks": {"a/b": {"train": "x"}}}, "cannot name a task"), ({"tasks": {"a": {}}}, "train"),
     ({"max_minutes": 3, "measure_speed": False}, "measured speed")],
)  # fmt: skip
def test_settings_that_make_no_sense(change, words):
    with pytest.raises((Error, TypeError), match=words):
        CompareConfig.from_dict({"families": ["bert"], **change})


def test_every_pretrained_family_has_a_form_and_a_kind():
    forms = {name: choose_text_form(name) for name, entry in FAMILIES.items() if entry.is_pretrained}
    own = {name for name, form in forms.items() if form.tokenizer != "bpe"}
    assert own == {name for name in forms if FAMILIES[name].definition.reads_characters}
    assert {name for name, form in forms.items() if form.is_paired} == {n for n in forms if FAMILIES[n].takes_pairs}
    assert all(bool(form.note) == (name in own or form.is_paired) for name, form in forms.items())
    kinds = [classify_family(name) for name in ("gpt2", "transformer_xl", "bert", "ernie", "t5", "xlnet", "elmo")]
    assert kinds == ["causal", "causal", "masked", "masked", "encoder-decoder", "other", "other"]
