"""What --recipe paper holds: every setting has a source, the values are those of the papers, and every one of them
trains and resumes."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

import formers
from formers.config import build_config
from formers.models.vectors import KINDS, METHODS
from formers.registry import FAMILIES
from formers.training.config_merge import configure_pretraining
from formers.training.recipes import list_recipe_rows
from formers.training.word_vectors.vector_run import configure_vectors
from tests.command_line import run_command

PAPERS = [name for name, member in FAMILIES.items() if member.definition.paper_recipe.settings]
PRETRAINED = [name for name in PAPERS if FAMILIES[name].definition.objective]
PRESETS = [(name, preset) for name in PRETRAINED for preset in FAMILIES[name].definition.presets]
SETTINGS_OF = {name: FAMILIES[name].definition.config_class.__dataclass_fields__ for name in PRETRAINED}
STATED = (
    "objective.name", "train.optimizer", "train.lr", "train.weight_decay", "train.schedule", "train.warmup_steps",
    "train.steps", "train.seq_length", "train.batch_tokens", "train.accumulate", "train.grad_clip", "data.vocab_size",
)  # fmt: skip
# family or preset: optimizer, lr, schedule, its end, warmup, steps, sequences × length or tokens, clipping, vocabulary
VALUES = {
    "rnnsearch": ("adadelta", 1.0, "constant", 0.1, 0, 288_000, 2_400, 1.0, 30_000),
    "cho-2014": ("adadelta", 1.0, "constant", 0.1, 0, 288_000, 512, 1.0, 15_000),
    "sutskever-2014": ("sgd", 0.7, "halving", 0.1, 0, 703_125, 3_840, 5.0, 160_000),
    "luong-global": ("sgd", 1.0, "halving", 0.1, 0, 421_875, 3_840, 5.0, 50_000),
    "gnmt": ("adam-sgd", 2e-4, "halving", 0.1, 0, 2_000_000, 3_840, 5.0, 32_000),
    "elmo-original": ("adagrad", 0.2, "constant", 0.1, 0, 1_000_840, 7_680, 10.0, 793_471),
    "transformer-base": ("adam", (512 * 4000) ** -0.5, "inverse_sqrt", 0.1, 4000, 100_000, 25_000, 0.0, 37_000),
    "transformer-big": ("adam", (1024 * 4000) ** -0.5, "inverse_sqrt", 0.1, 4000, 300_000, 25_000, 0.0, 37_000),
    "bert-base": ("adamw", 1e-4, "linear", 0.1, 10_000, 1_000_000, 256 * 512, 1.0, 30_000),
    "bert-large": ("adamw", 1e-4, "linear", 0.1, 10_000, 1_000_000, 256 * 512, 1.0, 30_000),
    "roberta-base": ("adamw", 6e-4, "linear", 0.1, 24_000, 500_000, 8192 * 512, 0.0, 50_000),
    "roberta-large": ("adamw", 4e-4, "linear", 0.1, 30_000, 500_000, 8192 * 512, 0.0, 50_000),
    "albert-base": ("lamb", 1.76e-3, "linear", 0.1, 3_125, 125_000, 4096 * 512, 1.0, 30_000),
    "albert-xxlarge": ("lamb", 1.76e-3, "linear", 0.1, 3_125, 1_500_000, 4096 * 512, 1.0, 30_000),
    "ernie-1.0": ("adamw", 1e-4, "linear", 0.1, 5_000, 1_000_000, 65_536, 1.0, 18_000),
    "ernie-2.0-base-en": ("adamw", 5e-5, "inverse_sqrt", 0.1, 4_000, 1_000_000, 393_216, 1.0, 30_522),
    "openai-gpt": ("adamw", 2.5e-4, "cosine", 0.0, 2_000, 2_441_406, 64 * 512, 1.0, 40_000),
    "gpt2": ("adamw", 6e-4, "cosine", 0.1, 715, 600_000, 512 * 1024, 1.0, 50_257),
    "gpt2-xl": ("adamw", 2e-4, "cosine", 0.1, 715, 600_000, 512 * 1024, 1.0, 50_257),
    "gpt3-small": ("adamw", 6e-4, "cosine", 0.1, 3_952, 579_834, 256 * 2048, 1.0, 50_257),
    "gpt3-175b": ("adamw", 0.6e-4, "cosine", 0.1, 746, 94_667, 1568 * 2048, 1.0, 50_257),
    "gpt-neo-1.3b": ("adamw", 2e-4, "cosine", 0.1, 3_000, 362_000, 512 * 2048, 1.0, 50_257),
    "gpt-neo-125m": ("adamw", 6e-4, "cosine", 0.1, 3_000, 572_300, 256 * 2048, 1.0, 50_257),
    "gpt-j-6b": ("adamw", 1.2e-4, "cosine", 0.1, 3_000, 383_500, 512 * 2048, 1.0, 50_257),
    "gpt-neox-20b": ("adamw", 0.97e-4, "cosine", 0.1, 1_500, 150_000, 1536 * 2048, 1.0, 50_257),
    "pythia-160m": ("adamw", 6e-4, "cosine", 0.1, 1_430, 143_000, 1024 * 2048, 1.0, 50_257),
    "transfo-xl-wt103": ("adam", 2.5e-4, "cosine", 0.0, 16_000, 4_000_000, 128 * 384, 0.25, 267_735),
    "bloom-560m": ("adamw", 3e-4, "cosine", 1 / 30, 954, 659_209, 256 * 2048, 1.0, 250_680),
    "bloom": ("adamw", 6e-5, "cosine", 0.1, 726, 91_339, 2048 * 2048, 1.0, 250_680),
    "xlnet-large": ("adamw", 4e-4, "linear", 0.1, 40_000, 500_000, 8192 * 512, 1.0, 32_000),
    "bart-large": ("adamw", 4e-4, "linear", 0.1, 30_000, 500_000, 8000 * 512, 0.0, 50_257),
    "mbart-large-cc25": ("adamw", 4e-4, "linear", 0.1, 30_000, 500_000, 8000 * 512, 0.0, 250_000),
    "t5-small": ("adafactor", 1e-2, "rsqrt", 0.1, 10_000, 1_000_000, 2048 * 512, 0.0, 32_000),
    "t5-11b": ("adafactor", 1e-2, "rsqrt", 0.1, 10_000, 1_000_000, 2048 * 512, 0.0, 32_000),
    "t5-v1_1-base": ("adafactor", 1e-2, "rsqrt", 0.1, 10_000, 1_000_000, 2048 * 512, 0.0, 32_000),
    "mt5-small": ("adafactor", 1e-2, "rsqrt", 0.1, 10_000, 1_000_000, 1024 * 1024, 0.0, 250_000),
    "switch-base-8": ("adafactor", 1e-2, "rsqrt", 0.1, 10_000, 550_000, 2**20, 0.0, 32_000),
}
PINNED_BY_VALUES = {
    "train.optimizer", "train.lr", "train.schedule", "train.min_lr_ratio", "train.warmup_steps", "train.steps",
    "train.batch_tokens", "train.accumulate", "train.grad_clip", "data.vocab_size",
}  # fmt: skip
SIZES = {
    "dim": 16, "embed": 16, "layers": 2, "heads": 2, "ff": 32, "context": 64, "head_dim": 8, "rotary": 4, "cell": 32,
    "memory": 8, "char_dim": 4, "filters": [[1, 8], [2, 8]], "highways": 1, "cutoffs": [], "window": 8, "experts": 2,
    "sparse": 1, "readout": None,
}  # fmt: skip
# What VALUES leaves open, the settings of the objective, the optimizer's details, lengths and dropout of each family.
OTHER_VALUES = {
    "seq2seq": {
        "objective.name": "seq2seq", "train.betas": (0.0, 0.95), "train.eps": 1e-06, "train.weight_decay": 0.0,
        "train.seq_length": 50, "model.dropout": 0.0,
    },
    "gnmt": {
        "objective.name": "seq2seq", "train.betas": (0.9, 0.999), "train.eps": 1e-08, "train.switch_step": 60_000,
        "train.switch_lr": 0.5, "train.weight_decay": 0.0, "train.decay_start": 1_200_000, "train.decay_every": 200_000,
        "train.seq_length": 128, "model.dropout": 0.2,
    },
    "textcnn": {
        "train.optimizer": "adadelta", "train.lr": 1.0, "train.betas": (0.0, 0.95), "train.eps": 1e-06,
        "train.weight_decay": 0.0, "train.schedule": "constant", "tune.batch_size": 50, "tune.epochs": 25,
        "model.dropout": 0.5, "model.max_norm": 3.0, "data.vocab_size": 18765,
    },
    "elmo": {
        "objective.name": "bidirectional", "objective.num_sampled": 8192, "train.weight_decay": 0.0,
        "train.seq_length": 20, "model.dropout": 0.1,
    },
    "transformer": {
        "objective.name": "seq2seq", "objective.label_smoothing": 0.1, "train.betas": (0.9, 0.98), "train.eps": 1e-09,
        "train.weight_decay": 0.0, "train.seq_length": 256, "model.dropout": 0.1, "model.attention_dropout": 0.0,
        "model.act_dropout": 0.0,
    },
    "bert": {
        "objective.name": "nsp", "objective.mask_rate": 0.15, "objective.short_seq_prob": 0.1,
        "train.betas": (0.9, 0.999), "train.eps": 1e-06, "train.weight_decay": 0.01, "train.seq_length": 512,
        "train.short_length": 128, "model.dropout": 0.1, "model.attention_dropout": 0.1,
    },
    "roberta": {
        "objective.name": "mlm", "objective.mask_rate": 0.15, "objective.across_documents": True,
        "objective.whole_sentences": True, "train.betas": (0.9, 0.98), "train.eps": 1e-06, "train.weight_decay": 0.01,
        "train.seq_length": 512, "model.dropout": 0.1, "model.attention_dropout": 0.1,
    },
    "albert": {
        "objective.name": "sop", "objective.max_ngram": 3, "objective.mask_rate": 0.15,
        "objective.short_seq_prob": 0.1, "train.betas": (0.9, 0.999), "train.eps": 1e-06, "train.weight_decay": 0.01,
        "train.seq_length": 512, "model.dropout": 0.1, "model.attention_dropout": 0.1,
    },
    "ernie": {
        "objective.name": "ernie-units", "objective.mask_rate": 0.15, "train.betas": (0.9, 0.999), "train.eps": 1e-08,
        "train.weight_decay": 0.01, "train.seq_length": 512, "model.dropout": 0.1, "model.attention_dropout": 0.1,
    },
    "gpt": {
        "objective.name": "causal", "train.betas": (0.9, 0.999), "train.eps": 1e-08, "train.weight_decay": 0.01,
        "train.seq_length": 512, "model.dropout": 0.1, "model.embed_dropout": 0.1, "model.attention_dropout": 0.1,
    },
    "gpt2": {
        "objective.name": "causal", "objective.across_documents": True, "train.betas": (0.9, 0.95),
        "train.eps": 1e-08, "train.weight_decay": 0.1, "train.seq_length": 1024, "model.dropout": 0.1,
        "model.embed_dropout": 0.1, "model.attention_dropout": 0.1,
    },
    "gpt3": {
        "objective.name": "causal", "objective.across_documents": True, "train.betas": (0.9, 0.95),
        "train.eps": 1e-08, "train.weight_decay": 0.1, "model.dropout": 0.1, "model.embed_dropout": 0.1,
        "model.attention_dropout": 0.1, "train.seq_length": 2048, "train.batch_rampup_steps": 15259,
        "train.decay_steps": 503540,
    },
    "gpt_neo": {
        "objective.name": "causal", "objective.across_documents": True, "train.betas": (0.9, 0.95),
        "train.eps": 1e-08, "train.weight_decay": 0.1, "train.seq_length": 2048, "model.dropout": 0.0,
        "model.embed_dropout": 0.0, "model.attention_dropout": 0.0,
    },
    "gptj": {
        "objective.name": "causal", "objective.across_documents": True, "train.betas": (0.9, 0.999),
        "train.eps": 1e-08, "train.weight_decay": 0.1, "train.decay_steps": 303000, "train.seq_length": 2048,
        "model.dropout": 0.0, "model.embed_dropout": 0.0, "model.attention_dropout": 0.0,
    },
    "gpt_neox": {
        "objective.name": "causal", "objective.across_documents": True, "train.betas": (0.9, 0.95),
        "train.eps": 1e-08, "train.weight_decay": 0.01, "train.seq_length": 2048, "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
    },
    "transformer_xl": {
        "objective.name": "causal", "train.betas": (0.9, 0.999), "train.eps": 1e-08, "train.weight_decay": 0.0,
        "train.seq_length": 384, "train.carry_memory": True, "model.memory": 384, "model.dropout": 0.2,
        "model.attention_dropout": 0.2,
    },
    "bloom": {
        "objective.name": "causal", "objective.across_documents": True, "train.betas": (0.9, 0.95),
        "train.eps": 1e-08, "train.weight_decay": 0.1, "model.dropout": 0.0, "model.attention_dropout": 0.0,
        "train.seq_length": 2048, "train.decay_steps": 790816, "train.batch_rampup_start": 6,
        "train.batch_rampup_steps": 46950,
    },
    "xlnet": {
        "objective.name": "plm", "objective.target_ratio": 85 / 512, "objective.max_ngram": 5,
        "objective.context_factor": 6, "objective.reversed": False, "train.betas": (0.9, 0.999), "train.eps": 1e-06,
        "train.weight_decay": 0.01, "train.seq_length": 512, "train.carry_memory": True, "model.memory": 384,
        "model.dropout": 0.1,
    },
    "bart": {
        "objective.name": "denoising", "objective.infill_ratio": 0.3, "objective.mean_span_length": 3.0,
        "objective.permute_ratio": 1.0, "train.betas": (0.9, 0.98), "train.eps": 1e-06, "train.weight_decay": 0.01,
        "train.seq_length": 512, "model.dropout": 0.1, "model.attention_dropout": 0.0, "model.act_dropout": 0.0,
    },
    "mbart": {
        "objective.name": "denoising", "objective.infill_ratio": 0.35, "objective.mean_span_length": 3.5,
        "objective.permute_ratio": 1.0, "train.betas": (0.9, 0.98), "train.eps": 1e-06, "train.weight_decay": 0.01,
        "train.seq_length": 512, "model.dropout": 0.1, "model.attention_dropout": 0.0, "model.act_dropout": 0.0,
    },
    "t5": {
        "objective.name": "span-corruption", "objective.noise_density": 0.15, "objective.mean_span_length": 3.0,
        "objective.across_documents": True, "train.weight_decay": 0.0, "train.seq_length": 512, "model.dropout": 0.1,
    },
    "mt5": {
        "objective.name": "span-corruption", "objective.noise_density": 0.15, "objective.mean_span_length": 3.0,
        "objective.across_documents": True, "train.weight_decay": 0.0, "train.seq_length": 1024, "model.dropout": 0.0,
    },
    "switch": {
        "objective.name": "switch", "objective.noise_density": 0.15, "objective.mean_span_length": 3.0,
        "objective.across_documents": True, "train.weight_decay": 0.0, "train.seq_length": 512, "model.dropout": 0.1,
        "objective.balance_weight": 0.01, "model.capacity_factor": 1.25, "model.eval_capacity_factor": 2.0,
        "model.jitter": 0.01,
    },
}  # fmt: skip


def find_owner(preset):
    return next(name for name in PRETRAINED if preset in FAMILIES[name].definition.presets)


@pytest.mark.parametrize("preset", VALUES)
def test_values_are_the_papers(preset):
    asked = configure_pretraining(find_owner(preset), recipe="paper", preset=preset)
    t = asked.train
    tokens = t.batch_tokens * t.accumulate
    made = (t.optimizer, t.lr, t.schedule, t.min_lr_ratio, t.warmup_steps, t.steps, tokens, t.grad_clip)
    assert (*made, asked.data.vocab_size) == pytest.approx(VALUES[preset])


@pytest.mark.parametrize("name", PAPERS)
def test_the_other_values_are_the_papers(name):
    """With VALUES no setting of a recipe can change unnoticed."""
    settings = FAMILIES[name].definition.paper_recipe.settings
    pinned = PINNED_BY_VALUES if name in PRETRAINED else set()
    others = {field: value for field, (value, _) in settings.items() if field not in pinned}
    assert others == OTHER_VALUES[name]


def test_every_family_is_pinned():
    assert {find_owner(preset) for preset in VALUES} == set(PRETRAINED)
    assert len(PAPERS) == 23


@pytest.mark.parametrize("name", PAPERS)
def test_every_setting_has_a_source(name):
    """A place in a paper, a file of released code, what was published with a model, another paper's, or ours."""
    paper = FAMILIES[name].definition.paper_recipe
    place = re.compile(
        r"§|arXiv|table|appendix|algorithm|released|published|README|\.py\b|model card|ours|(none|not) stated|not used"
    )
    for cited in (paper.settings, *paper.by_preset.values()):
        for field, (_, source) in cited.items():
            assert place.search(source), (field, source)
    assert set(paper.by_preset) <= set(FAMILIES[name].definition.presets)
    if name in PRETRAINED:
        assert set(STATED) <= set(paper.settings)
        assert paper.settings["objective.name"][0] == FAMILIES[name].definition.objective


@pytest.mark.parametrize(("name", "preset"), PRESETS, ids=lambda word: word)
def test_every_preset_has_a_run(name, preset):
    asked = configure_pretraining(name, recipe="paper", preset=preset)
    assert asked.train.steps >= 100
    if preset in FAMILIES[name].definition.paper_recipe.by_preset:
        for field, value, _ in list_recipe_rows(name, "paper", preset):
            table, _, key = field.partition(".")
            found = {**vars(asked), "train": vars(asked.train), "data": vars(asked.data)}[table]
            assert found[key] == (pytest.approx(value) if isinstance(value, float) else value), field


# Rates of heads that are fine-tuned: no pretraining run reads them.
FINETUNING_DROPOUT = ("head_dropout", "summary_dropout", "expert_dropout")
ALL_PRESETS = [(name, preset) for name in PAPERS for preset in (None, *FAMILIES[name].definition.presets)]


@pytest.mark.parametrize(("name", "preset"), ALL_PRESETS, ids=str)
def test_every_dropout_and_the_end_of_every_cosine_are_stated(name, preset):
    declared = FAMILIES[name].definition
    rows = {field: value for field, value, _ in list_recipe_rows(name, "paper", preset)}
    if declared.objective:
        asked = configure_pretraining(name, recipe="paper", preset=preset)
        model = build_config(declared.config_class, asked.model)
        if rows["train.schedule"] == "cosine":
            assert rows["train.min_lr_ratio"] == pytest.approx(asked.train.min_lr_ratio)
    else:
        model = build_config(declared.config_class, {} if preset is None else declared.presets[preset])
    names = {field.name for field in dataclasses.fields(declared.config_class)}
    rates = {name for name in names if name.endswith("dropout") and name not in FINETUNING_DROPOUT}
    assert {name: rows.get(f"model.{name}") for name in rates} == {name: getattr(model, name) for name in rates}


def test_the_baseline_of_t5_differs_from_the_published_sizes():
    baseline = configure_pretraining("t5", recipe="paper").train
    assert (baseline.steps, baseline.batch_tokens * baseline.accumulate) == (524_288, 128 * 512)


def test_single_facts_of_single_papers():
    assert configure_pretraining("roberta", recipe="paper").objective["across_documents"], "§4.2: FULL-SENTENCES"
    albert = configure_pretraining("albert", recipe="paper")
    assert (albert.train.betas, albert.objective["max_ngram"], albert.model["dropout"]) == ((0.9, 0.999), 3, 0.1)
    assert configure_pretraining("albert", recipe="paper", preset="albert-xxlarge").model["dropout"] == 0.0, "§4.9"
    assert configure_pretraining("transformer", recipe="paper").objective["label_smoothing"] == 0.1
    assert configure_pretraining("transformer", recipe="paper", preset="transformer-big").model["dropout"] == 0.3
    gnmt = configure_pretraining("gnmt", recipe="paper").train
    assert (gnmt.switch_step, gnmt.switch_lr, gnmt.decay_start, gnmt.decay_every) == (60_000, 0.5, 1_200_000, 200_000)
    seq2seq = configure_pretraining("seq2seq", recipe="paper", preset="rnnsearch").train
    assert (seq2seq.betas[1], seq2seq.eps) == (0.95, 1e-6)
    luong = configure_pretraining("seq2seq", recipe="paper", preset="luong-local").train
    assert (luong.decay_start, luong.betas[0]) == (281_250, 0.0)
    gpt3 = configure_pretraining("gpt3", recipe="paper").train
    tokens = gpt3.batch_tokens * gpt3.count_batches_between(0, gpt3.steps)
    assert tokens == pytest.approx(300e9, rel=0.01), "table 2.1"
    assert gpt3.batch_tokens * gpt3.count_batches_between(0, gpt3.warmup_steps) == pytest.approx(375e6, rel=0.01)
    assert gpt3.batch_tokens * gpt3.count_batches_between(0, gpt3.decay_steps) == pytest.approx(260e9, rel=0.01)
    for preset, tokens in (("bloom-560m", 341e9), ("bloom-1b7", 341e9), ("bloom", 366e9)):
        bloom = configure_pretraining("bloom", recipe="paper", preset=preset).train
        assert bloom.batch_tokens * bloom.count_batches(0) == 192 * 2048, "released scripts: rampup-batch-size 192"
        growing = bloom.count_batches_between(0, bloom.batch_rampup_steps)
        assert bloom.batch_tokens * growing == pytest.approx(9_765_625 * 2048, rel=0.02), "of so many sequences"
        steps = {tokens: bloom.steps, 410e9: bloom.decay_steps, 375e6: bloom.warmup_steps}
        for total, count in steps.items():
            assert bloom.batch_tokens * bloom.count_batches_between(0, count) == pytest.approx(total, rel=0.02), preset
    assert configure_pretraining("mt5", recipe="paper").model["dropout"] == 0.0


def test_a_preset_whose_paper_has_another_objective_takes_it():
    """ERNIE 2.0 ran the stages of 1.0 with the recipe quick, and its task embedding learned nothing."""
    for recipe in ("quick", "paper"):
        second = configure_pretraining("ernie", recipe=recipe, preset="ernie-2.0-base-en")
        assert (second.objective["name"], second.model["use_tasks"]) == ("continual", True)
        first = configure_pretraining("ernie", recipe=recipe, preset="ernie-1.0")
        assert first.objective["name"] == "ernie-units"
    given = configure_pretraining("ernie", None, {"objective.name": "mlm"}, preset="ernie-2.0-base-en")
    assert given.objective["name"] == "mlm"


def test_a_smaller_model_and_a_shorter_run_keep_the_shape():
    small = configure_pretraining("transformer", None, {"model.dim": 256, "model.heads": 4}, recipe="paper").train
    assert small.lr == pytest.approx((256 * small.warmup_steps) ** -0.5), "equation 3 with its own width"
    narrow = configure_pretraining("gptj", None, {"model.dim": 96}, recipe="paper").model
    assert narrow["rotary"] == 24, "all of a head of 96 / 4, where an error was about a rotary that nobody had set"
    short = configure_pretraining("gnmt", None, {"train.steps": 2_000}, recipe="paper").train
    assert (short.switch_step, short.decay_start, short.decay_every) == (60, 1_200, 200)
    kept = configure_pretraining("gnmt", None, {"train.steps": 2_000, "train.switch_step": 7}, recipe="paper").train
    assert kept.switch_step == 7
    other = configure_pretraining("bert", None, {"objective.name": "causal"}, recipe="paper")
    assert other.objective == {"name": "causal"}, "what the paper says of next sentences belongs to another objective"


@pytest.mark.parametrize("dim", [64, 100, 192])
@pytest.mark.parametrize("name", [name for name in PRETRAINED if "heads" in SETTINGS_OF[name]])
def test_a_width_alone_is_enough(name, dim):
    """'12 heads do not divide dim 64' blamed heads that nobody had set; the feed-forward stayed 3,072 wide."""
    family = FAMILIES[name].definition
    first = next(iter(family.presets))
    for recipe, preset in (("paper", None), ("paper", first), ("quick", first)):
        published = build_config(family.config_class, {} if preset is None else family.presets[preset])
        asked = configure_pretraining(name, None, {"model.dim": dim}, recipe=recipe, preset=preset).model
        config = build_config(family.config_class, asked)
        assert "head_dim" in SETTINGS_OF[name] or dim % config.heads == 0
        if "ff" in SETTINGS_OF[name] and published.ff is not None:
            assert config.ff == round(published.ff * dim / published.dim)
    kept = configure_pretraining("bert", None, {"model.dim": 192, "model.ff": 99}, recipe="paper").model
    assert (kept["ff"], kept.get("heads", 12)) == (99, 12)


TEXT = [" ".join(f"{w} goes to {v}." for v in ("town", "sea", "bed")) for w in "abcdefghijklmnopqrst"]
PAIRS = [f"{'abcdefgh'[i % 8]} goes to town {i}\t{'hgfedcba'[i % 8]} town {i}" for i in range(64)]


@pytest.mark.parametrize("name", ["seq2seq", "gnmt", "t5", "transformer_xl", "roberta"])
def test_the_papers_run_resumes_bit_for_bit(name, tmp_path):
    """Adadelta, Adam then SGD, Adafactor, a cosine with a memory; the switch falls after the checkpoint."""
    family = FAMILIES[name].definition
    known = {field.name for field in family.config_class.__dataclass_fields__.values()}
    sizes = {key: value for key, value in SIZES.items() if key in known} | (
        {"cell": "gru"} if name == "seq2seq" else {}
    )
    text = PAIRS if family.objective == "seq2seq" else TEXT
    train = {
        "steps": 6, "batch_tokens": 128, "accumulate": 1, "seq_length": 16, "warmup_steps": 2, "eval_every": 6,
        "save_every": 3, "samples": 0, **({"switch_step": 4, "decay_start": 5} if name == "gnmt" else {}),
    }  # fmt: skip

    def run(folder, **more):
        return formers.pretrain(
            name,
            text,
            recipe="paper",
            out=tmp_path / folder,
            model=sizes,
            data={"vocab_size": 300},
            train=train,
            **more,
        )

    whole = run("whole").former.model.state_dict()

    def stop(line):
        if line["step"] == 4:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        run("cut", hook=stop)
    again = run("cut", resume=True).former.model.state_dict()
    assert whole.keys() == again.keys()
    for key, value in whole.items():
        assert (value == again[key]).all(), key


def test_the_command_lists_recipes_with_their_sources(capsys):
    _, said, _ = run_command(capsys, "recipes")
    assert all(name in said for name in PAPERS), "textcnn, which is not pretrained, was left out"
    assert "25 epochs" in said
    _, said, _ = run_command(capsys, "recipes", "--recipe", "quick")
    assert "textcnn" not in said
    _, said, _ = run_command(capsys, "recipes", "roberta", "--preset", "roberta-large")
    assert "train.lr" in said
    assert "table 9: large" in said
    _, said, _ = run_command(capsys, "recipes", "bert", "--recipe", "quick", "--as-json")
    assert {row["source"] for row in json.loads(said)} == {"ours"}
    _, said, _ = run_command(capsys, "recipes", "t5", "--as-json")
    rows = {row["field"]: row for row in json.loads(said)}
    assert rows["train.schedule"] == {"field": "train.schedule", "value": "rsqrt", "source": "§3.1.2: 1/√max(n, k)"}


@pytest.mark.parametrize("method", METHODS)
def test_word_vectors_train_with_what_their_recipe_says(method):
    rows = list_recipe_rows(method)
    config = configure_vectors(method, None, {})
    model, train = vars(config.model), {**vars(config.train), "lr": KINDS[config.model.kind].lr}
    values = {f"model.{name}": value for name, value in model.items()}
    values |= {f"train.{name}": value for name, value in train.items()}
    assert all(values[name] == value and source for name, value, source in rows)
    unused = {"glove": ("negatives", "sample"), "word2vec": (), "fasttext": ()}[method]
    expected = {"dim", "window", "negatives", "sample", "min_count"}.difference(unused)
    assert {f"model.{name}" for name in expected} | {"train.epochs", "train.lr"} <= {name for name, _, _ in rows}


def test_a_recipe_by_the_name_of_a_size_or_of_a_way_to_train_vectors(capsys):
    def read(*words):
        return run_command(capsys, "recipes", *words)

    assert read("gpt3-175b") == read("gpt3", "--preset", "gpt3-175b")
    assert read("bloom") != read("bloom", "--preset", "bloom"), "a family's name is not that of its largest size"
    code, out, _ = read("fasttext")
    assert (code, "0.0001 in the released args.cc" in out) == (0, True)
    for words in (["vectors"], ["glove", "--preset", "glove-6b-50d"]):
        code, _, err = read(*words)
        assert (code, "formers recipes word2vec or glove or fasttext" in err) == (2, True)
