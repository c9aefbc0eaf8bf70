"""Hypotheses are answered by records, whatever these say."""

from __future__ import annotations

import math

import pytest

from formers.comparison.hypotheses import answer_all, answer_hypothesis, format_rule, load_hypotheses, parse_hypothesis
from formers.comparison.measures import Measures
from formers.errors import Error
from tests.comparison.toy_records import make_plan, make_race, make_score

RULE = {
    "en": "BERT beats GPT-2", "ko": "BERT가 GPT-2보다 낫습니다", "margin": 0.01,
    "terms": [
        {"weight": 1, "quantity": "finetune", "budget": "epochs", "families": ["bert"]},
        {"weight": -1, "quantity": "finetune", "budget": "epochs", "families": ["gpt2"]},
    ],
}  # fmt: skip


def answer(scores, rule=RULE, **bits):
    return answer_hypothesis(parse_hypothesis("one", rule), Measures(make_race(scores, **bits)))


@pytest.mark.parametrize(
    ("bert", "gpt2", "verdict"),
    [([0.8], [0.7], "supported"), ([0.7], [0.8], "refuted"), ([0.705], [0.7], "refuted"),
     ([0.70, 0.90], [0.75, 0.76], "undecided"), ([0.80, 0.81], [0.70, 0.71], "supported")],
)  # fmt: skip
def test_the_records_decide(bert, gpt2, verdict):
    got = answer({"bert": bert, "gpt2": gpt2})
    assert got.verdict == verdict
    assert got.value == pytest.approx(sum(bert) / len(bert) - sum(gpt2) / len(gpt2))
    assert (got.noise is None) == (len(bert) == 1), "one seed says nothing about noise"


def test_the_noise_is_two_standard_errors():
    got = answer({"bert": [0.70, 0.74], "gpt2": [0.60, 0.60]})
    assert got.noise == pytest.approx(2 * math.sqrt((0.04**2 / 2) / 2))


def test_families_with_few_seeds_weigh_as_much_in_the_noise_as_in_the_mean():
    terms = [{**RULE["terms"][0], "families": ["bert", "albert"]}, RULE["terms"][1]]
    got = answer({"bert": [0.70, 0.74], "albert": [0.6], "gpt2": [0.60, 0.60]}, {**RULE, "terms": terms})
    assert got.noise == pytest.approx(2 * math.sqrt(0.04**2 / 2 * (1 / 2 + 1) / 2**2))


def test_one_seed_is_as_uncertain_as_the_seeds_of_other_families():
    alone = answer({"bert": [0.72], "gpt2": [0.60, 0.60]})
    assert alone.noise == 0
    got = answer({"bert": [0.72], "gpt2": [0.70], "albert": [0.50, 0.60]})
    assert got.noise == pytest.approx(2 * math.sqrt(2 * 0.1**2 / 2))
    assert got.verdict == "undecided"


def test_what_was_not_run_is_open():
    got = answer({"bert": [0.8]})
    assert got.verdict == "open"
    assert got.missing == ("finetune (epochs) of gpt2",)


def test_ratios():
    rule = {**RULE, "margin": 0, "log": True, "terms": [
        *RULE["terms"], {"weight": -1, "quantity": "parameters", "families": ["bert"]},
        {"weight": 1, "quantity": "parameters", "families": ["gpt2"]},
    ]}  # fmt: skip
    records = [*make_race({"bert": [0.6], "gpt2": [0.8]}), make_plan("bert", parameters=1000)]
    got = answer_hypothesis(parse_hypothesis("one", rule), Measures(records))
    assert got.value == pytest.approx(math.log(0.6 / 0.8) - math.log(1000 / 5000))
    assert got.verdict == "supported", "a quarter of the score is lost, four fifths of the parameters are saved"


def test_a_memory_is_scored_on_articles_against_sentences():
    rule = next(one for one in load_hypotheses() if one.name == "memory-pays-on-articles")
    records = [make_plan("gpt2"), make_plan("transformer_xl")]
    records += make_race({"gpt2": [0.5], "transformer_xl": [0.5]})
    records += [make_score("gpt2", 2.0, sentences=2.5), make_score("transformer_xl", 1.8, sentences=2.4)]
    got = answer_hypothesis(rule, Measures(records))
    assert got.value == pytest.approx((2.0 - 1.8) - (2.5 - 2.4))
    assert got.verdict == "supported"


def test_the_hypotheses_of_the_race():
    every = load_hypotheses()
    assert len(every) >= 10
    assert all(one.en.endswith(".") and one.ko.endswith("다.") for one in every)
    assert all(sum(term.weight for term in one.terms) == 0 for one in every), "differences, none of them absolute"
    assert {answer.verdict for answer in answer_all(Measures([]))} == {"open"}
    assert format_rule(every[0]) == "finetune(gpt2, gptj, bloom, A) − finetune(bert, roberta, albert, A) > 0"


@pytest.mark.parametrize(
    ("term", "words"),
    [({"quantity": "beauty"}, "is no quantity"), ({"families": ["bird"]}, "unknown family"),
     ({"quantity": "parameters"}, "is no quantity"), ({"budget": None}, "is no quantity")],
)  # fmt: skip
def test_a_rule_that_cannot_be_decided(term, words):
    with pytest.raises(Error, match=words):
        parse_hypothesis("one", {**RULE, "terms": [{**RULE["terms"][0], **term}]})
