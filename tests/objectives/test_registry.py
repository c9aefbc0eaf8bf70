"""Objectives by name: their options, help, limits and earlier names."""

from __future__ import annotations

import pytest

from formers import Error
from formers.objectives.causal import CausalLM
from formers.objectives.masking import (
    MaskedLM,
)
from formers.objectives.registry import (
    OBJECTIVE_ALIASES,
    OBJECTIVES,
    UNPAIRED_OBJECTIVES,
    build_objective,
    list_options,
    resolve_objective,
)
from formers.registry import train_tokenizer
from tests.objectives import toys


def test_objectives_by_name():
    pieces = train_tokenizer("wordpiece", ["the cat sat on the mat"] * 3, 60)
    masked = build_objective("mlm", pieces, 16)
    assert masked.frame == ((pieces.id("cls"),), (pieces.id("sep"),))
    assert masked.mask == pieces.id("mask")
    assert pieces.id("unk") not in masked.special
    assert set(masked.special) == {pieces.id(r) for r in ("pad", "cls", "sep", "mask")}
    assert build_objective("causal", pieces, 16) == CausalLM(16)
    assert build_objective("causal", pieces, 16, across_documents=True).across_documents
    assert build_objective("ngrams", pieces, 16).max_ngram == 3
    assert build_objective("whole-word", pieces, 16, max_ngram=2).max_ngram == 2
    assert build_objective("mlm", pieces, 16, mask_rate=1).mask_rate == 1.0
    with pytest.raises(Error, match="objective 'denoisin' is not available. Did you mean 'denoising'"):
        build_objective("denoisin", pieces, 16)
    with pytest.raises(Error, match="'mlm' has no option 'mask_rates'. Did you mean 'mask_rate'"):
        build_objective("mlm", pieces, 16, mask_rates=0.2)
    with pytest.raises(Error, match="'vocab'"):
        build_objective("mlm", pieces, 16, vocab=7)
    with pytest.raises(Error, match="mask_rate is a share between 0 and 1, got 1.5"):
        build_objective("mlm", pieces, 16, mask_rate=1.5)
    assert build_objective("mlm", pieces, 16, mask_rate=0).mask_rate == 0
    with pytest.raises(Error, match="examples of 2 tokens are too short"):
        build_objective("mlm", pieces, 2)
    assert build_objective("mlm", pieces, 3).length == 3
    with pytest.raises(Error, match="'mask_rate'"):
        build_objective("mlm", pieces, 16, mask_rate="much")
    with pytest.raises(Error, match="no \\[CLS\\]"):
        build_objective("mlm", train_tokenizer("bpe", ["a b"] * 3, 258), 16)


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, "across_documents") for name in ("nsp", "sop", "unit-pairs", "dialogue")]
    + [(name, option) for name in ("ernie-units", "unit-pairs", "dialogue") for option in ("max_ngram", "max_masked")]
    + [("dialogue", "short_seq_prob")],
)
def test_an_option_that_would_do_nothing_is_refused(name, option):
    with pytest.raises(Error, match=f"objective '{name}' has no option '{option}'"):
        build_objective(name, toys.build_tokenizer(), 24, **{option: 1})


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("mlm", {"length": 4}, "no option 'length'"),
        ("mlm", {"name": "x"}, "no option 'name'"),
        ("ngrams", {"max_ngram": 65}, "max_ngram must be at least 0 and at most 64, got 65"),
        ("plm", {"context_factor": 0}, "context_factor must be at least 1 and at most 1000, got 0"),
        ("dialogue", {"num_turns": 1}, "num_turns must be at least 2 and at most 1000, got 1"),
        ("bidirectional", {"slots": 2}, "slots must be at least 3 and at most 1000, got 2"),
        ("span-corruption", {"start": 80}, "start=80 is not a token of this tokenizer, which has 80"),
        ("seq2seq", {"start": 99999999}, "start=99999999 is not a token"),
        ("denoising", {"start": 99999999}, "start=99999999 is not a token"),
        ("span-corruption", {"mean_span_length": 0.5}, "mean_span_length=0.5 is shorter than a token"),
        ("denoising", {"mean_span_length": 1e9}, "mean_span_length must be above 0 and at most 64"),
        ("denoising", {"mean_span_length": 0.0}, "mean_span_length must be above 0 and at most 64, got 0"),
        ("mlm", {"max_masked": 0}, "max_masked must be above 0, got 0"),
        ("plm", {"max_ngram": 0}, "max_ngram must be above 0 and at most 64, got 0"),
        ("causal", {"num_streams": -1}, "num_streams must be at least 0, got -1"),
        ("ernie-units", {"task_id": -1}, "task_id must be at least 0, got -1"),
        ("mlm", {"mask_ratio": 0.9, "random_ratio": 0.2}, "mask_ratio and random_ratio are 1.1 together"),
        ("plm", {"target_ratio": 1.1}, "target_ratio is a share between 0 and 1, got 1.1"),
        ("seq2seq", {"label_smoothing": -0.1}, "label_smoothing is a share"),
        ("nsp", {"short_seq_prob": 2}, "short_seq_prob is a share"),
        ("switch", {"balance_weight": float("nan")}, "'balance_weight' must be float, not nan"),
    ],
)
def test_odd_options_are_refused_in_one_line(name, options, match):
    with pytest.raises(Error, match=match) as caught:
        build_objective(name, toys.build_tokenizer(60, sentinels=20), 24, **options)
    assert "\n" not in str(caught.value)


def test_limits_themselves_are_allowed():
    pieces = toys.build_tokenizer(60, sentinels=20)
    for name, options in (
        ("span-corruption", {"start": 79, "mean_span_length": 1}), ("dialogue", {"num_turns": 2}),
        ("ngrams", {"max_ngram": 64}), ("plm", {"max_ngram": 1, "context_factor": 1}),
        ("bidirectional", {"slots": 3}), ("denoising", {"mean_span_length": 64}),
    ):  # fmt: skip
        made = build_objective(name, pieces, 24, **options)
        assert all(getattr(made, key) == value for key, value in options.items() if key != "slots")


MASKED = {
    "mask_rate",
    "mask_ratio",
    "random_ratio",
    "max_masked",
    "max_ngram",
    "across_documents",
    "part",
    "whole_sentences",
}
UNITS = MASKED - {"max_ngram", "max_masked"} | {"stage", "stage_ends", "task_id"}
OWN = {
    "causal": {"across_documents", "is_prefix_lm", "streams_per_batch", "num_streams", "part"},
    "seq2seq": {
        "start", "label_smoothing", "prefix", "part", "teacher_forcing", "sampling_schedule", "sampling_decay",
        "min_teacher_forcing", "sampled_token",
    },
    "bidirectional": {"slots", "num_sampled", "streams_per_batch", "num_streams", "part"},
    "mlm": MASKED,
    "nsp": MASKED - {"across_documents", "whole_sentences"} | {"short_seq_prob", "pair_part"},
    "sop": MASKED - {"across_documents", "whole_sentences"} | {"short_seq_prob", "pair_part", "random_fallback"},
    "plm": {
        "target_ratio", "max_ngram", "context_factor", "as_released", "streams_per_batch", "num_streams", "reversed",
        "part",
    },
    "denoising": {
        "start", "language", "infill_ratio", "mean_span_length", "permute_ratio", "mask_ratio", "delete_ratio",
        "insert_ratio", "rotate_ratio", "as_released", "across_documents", "part",
    },
    "span-corruption": {
        "start", "noise_density", "mean_span_length", "corruption", "balance_weight", "across_documents", "part",
    },
    "ernie-units": UNITS,
    "unit-pairs": UNITS - {"across_documents", "whole_sentences"} | {"short_seq_prob", "pair_part"},
    "continual": UNITS - {"across_documents", "whole_sentences", "task_id"} | {"task_starts"},
    "dialogue": UNITS - {"across_documents", "whole_sentences"} | {"pair_part", "num_turns"},
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_the_options_are_these(name):
    assert set(list_options(OBJECTIVES[name].objective_class)) == OWN[name]


def test_every_objective_has_help_and_options():
    assert set(OBJECTIVES) == {
        "causal", "prefix", "seq2seq", "bidirectional", "mlm", "whole-word", "ngrams", "nsp", "sop", "plm",
        "denoising", "span-corruption", "switch", "prefix-spans", "deshuffle", "ernie-units", "unit-pairs",
        "continual", "dialogue",
    }  # fmt: skip
    pieces = toys.build_tokenizer(60, sentinels=20)
    made = {name: build_objective(name, pieces, 24) for name in OBJECTIVES}
    assert made == {name: build_objective(name, pieces, 24) for name in OBJECTIVES}, "what is set alike is equal"
    assert not any("array" in repr(goal) for goal in made.values()), "and is said in a line"
    assert made["prefix"].is_prefix_lm
    assert [made[name].max_ngram for name in ("whole-word", "ngrams", "sop", "nsp")] == [1, 3, 3, 0]
    assert (made["switch"].balance_weight, made["span-corruption"].balance_weight) == (0.01, 0.0)
    kinds = [made[name].corruption for name in ("prefix-spans", "deshuffle", "span-corruption")]
    assert kinds == ["prefix", "deshuffle", "spans"]
    for name, choice in OBJECTIVES.items():
        assert choice.help, name
        assert set(dict(choice.options)) <= set(list_options(choice.objective_class)), name
    assert "across_documents" in list_options(MaskedLM)
    both = {"across_documents", "short_seq_prob"}
    assert both & set(list_options(OBJECTIVES["unit-pairs"].objective_class)) == {"short_seq_prob"}


@pytest.mark.parametrize(("alias", "name"), OBJECTIVE_ALIASES.items())
def test_earlier_names_are_accepted(alias, name):
    assert alias not in OBJECTIVES
    assert resolve_objective(alias) == resolve_objective(name) == name
    pieces = toys.build_tokenizer(60, sentinels=20)
    assert build_objective(alias, pieces, 24) == build_objective(name, pieces, 24)


@pytest.mark.parametrize("name", ["", "maskd", 3, None, ["mlm"]])
def test_names_that_are_not_available(name):
    with pytest.raises(Error, match="is not available"):
        resolve_objective(name)


def test_an_objective_of_pairs_has_one_without():
    assert set(UNPAIRED_OBJECTIVES) | set(UNPAIRED_OBJECTIVES.values()) <= set(OBJECTIVES)
