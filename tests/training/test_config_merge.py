"""Settings that contradict each other or a model are refused in one line; a recipe's own give way."""

from __future__ import annotations

import copy
import dataclasses
import re

import numpy as np
import pytest
import torch

import formers
from formers.errors import Error
from formers.interop.model_directory import save
from formers.registry import train_tokenizer
from formers.training.config_merge import (
    DERIVED_SETTINGS,
    ModelChoice,
    build_model_config,
    configure_finetuning,
    configure_pretraining,
    derive_config,
    read_known_settings,
)
from formers.training.distributed.process_group import ProcessGroup
from formers.training.runs.cross_validation import compare_settings
from formers.training.runs.finetune import request_finetuning
from formers.training.train_config import TrainConfig
from tests.training.toy_runs import BERT_SIZES, REVIEWS, finetune_toy


@pytest.fixture(scope="module")
def small_checkpoint(tmp_path_factory):
    """A RoBERTa of two layers and 64 positions."""
    out = tmp_path_factory.mktemp("small") / "model"
    tokenizer = train_tokenizer("bpe", [row["text"] for row in REVIEWS], 300, style="roberta")
    former = formers.build("roberta", vocab=len(tokenizer), context=64, **BERT_SIZES)
    former.tokenizer = tokenizer
    save(former, out)
    return out


WRONG = [
    ({"lora": 4, "features": "mix"}, "tune.lora trains adapters in layers that tune.features freezes"),
    ({"lora": 4, "freeze": 1}, "with tune.lora all weights are frozen already"),
    ({"features": "mix", "freeze": 1}, "with tune.features all layers are frozen already"),
    ({"freeze": -5}, "-5 layers cannot be frozen"),
    ({"freeze": 99}, "has 2 layers: 99 cannot be frozen"),
    ({"features": "concat4"}, "'concat4' reads 4 layers, and this model has 2"),
    ({"features": "sum4"}, "'sum4' reads 4 layers, and this model has 2"),
    ({"lm_loss_weight": 0.5}, "roberta is not a left-to-right language model"),
    ({"seq_length": 200}, "this roberta reads 64 tokens at once, not 200"),
    ({"task": "regress", "balance": True}, "there are no classes to balance in regress"),
    ({"task": "regress", "label_smoothing": 0.1}, "tune.label_smoothing does not apply where regress is learned"),
    ({"task": "regress", "label_as_text": True}, "tune.label_as_text does not apply to regress"),
    ({"task": "tag", "long_texts": "cut"}, "tag reads long texts in windows, or refuses them"),
    ({"model": "textcnn", "features": "mix"}, "a model from scratch has no features to read yet"),
    ({"model": "gpt2", "task": "tag", "lm_loss_weight": 0.5}, "tune.lm_loss_weight does not apply to tag"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_a_setting_that_cannot_be_obeyed_is_refused(tmp_path, small_checkpoint, given, said):
    given = {"task": "classify", "model": str(small_checkpoint), **given}
    rows = [{**row, "words": row["text"].split(), "tags": ["a", "b"] * 4, "label": float(row["label"] == "yes")}
            for row in REVIEWS]  # fmt: skip
    if given["task"] == "tag":
        rows = [{"words": row["words"][:8], "tags": row["tags"][: len(row["words"])]} for row in rows]
    else:
        rows = [{key: row[key] for key in ("text", "label")} for row in rows]
    with pytest.raises(Error, match=re.escape(said)):
        finetune_toy(given.pop("model"), rows, rows[:12], out=tmp_path / "run", **given)


def test_a_model_without_layers_has_no_features(tmp_path):
    finetune_toy("textcnn", out=tmp_path / "one", sizes={"embed": 8, "filters": 4})
    with pytest.raises(Error, match="no layers one above the other"):
        finetune_toy(str(tmp_path / "one" / "model"), out=tmp_path / "two", features="mix")


def test_features_of_a_decoder_of_another_depth(tmp_path):
    """Its layers are mixed, not as many as the encoder has; GPT's recipe does without its language model."""
    sizes = {"dim": 16, "layers": 1, "decoder_layers": 3, "heads": 2, "head_dim": 8, "ff": 32}
    finetune_toy("t5", out=tmp_path / "t5", sizes=sizes)
    run = finetune_toy(str(tmp_path / "t5" / "model"), out=tmp_path / "mix", features="mix")
    assert len(run.former.model.parts["classify"].mix.weight) == 4
    finetune_toy("gpt", out=tmp_path / "gpt", sizes={"dim": 16, "layers": 1, "heads": 2})
    run = finetune_toy(str(tmp_path / "gpt" / "model"), out=tmp_path / "last", features="last")
    assert set(run.history[0]["losses"]) == {"classify"}


def test_a_recipes_length_gives_way_to_a_smaller_context(tmp_path):
    rows = [{"text": row["text"], "target": row["label"]} for row in REVIEWS]
    sizes = {"dim": 16, "layers": 1, "heads": 2, "ff": 32, "context": 40}
    run = finetune_toy("transformer", rows, rows[:8], task="translate", epochs=0.2, out=tmp_path / "run", sizes=sizes)
    assert run.former.task["length"] == 40
    again = formers.finetune(out=tmp_path / "run", resume=True)
    assert again.valid == run.valid


def test_a_list_of_labels_where_one_is_learned(tmp_path, small_checkpoint):
    rows = [{**row, "label": [row["label"]]} for row in REVIEWS]
    for learnt, more in ((rows, {"multilabel": False}), (REVIEWS, {})):
        words = r"a row has a list of labels, \['yes'\], and the task has one label. .*tune.multilabel"
        with pytest.raises(Error, match=words):
            finetune_toy(str(small_checkpoint), learnt, rows, task="classify", out=tmp_path / "run", **more)


def test_a_family_that_writes_labels_says_so(tmp_path):
    words = "switch cannot learn to classify.*with --tune.label_as_text true it writes a label"
    with pytest.raises(Error, match=words):
        finetune_toy("switch", out=tmp_path)


def test_a_dataset_of_several_parts(tmp_path, small_checkpoint):
    """Its training part is trained on, its validation part is for evaluation; one that is given takes precedence."""
    datasets = pytest.importorskip("datasets")
    parts = {"train": REVIEWS, "validation": REVIEWS[:10], "test": REVIEWS[:4]}
    whole = datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in parts.items()})
    for number, (data, valid, count) in enumerate([(whole, None, 10), (parts, None, 10), (whole, REVIEWS[:6], 6)]):
        said: list[str] = []
        finetune_toy(str(small_checkpoint), data, valid, epochs=0.2, out=tmp_path / str(number), say=said.append)
        assert f"{len(REVIEWS)} examples" in said[0]
        assert said[1].startswith("valid: ")
        assert f"{count} examples" in said[1]
        assert not any(line.startswith("test") for line in said)
    small_steps = {"tune.epochs": 0.2, "tune.batch_size": 16}
    first, again = (
        compare_settings(str(small_checkpoint), whole, out=tmp_path / "two", overrides=small_steps) for _ in range(2)
    )
    assert first == again
    folds = compare_settings(str(small_checkpoint), whole, folds=2, out=tmp_path / "folds", overrides=small_steps)
    assert len(folds.trials[0].runs) == 2
    with pytest.raises(Error, match="this holds several parts: 'a', 'b'"):
        finetune_toy(str(small_checkpoint), {"a": REVIEWS, "b": REVIEWS}, None, out=tmp_path / "odd")


@pytest.mark.parametrize("task", ["regress", "answer", "choose", "translate"])
def test_a_recipes_own_label_smoothing_gives_way_to_the_task(task):
    asked = configure_finetuning(ModelChoice("transformer"), task, None, {})
    assert asked.tune.label_smoothing == (0.1 if task == "translate" else 0.0)
    with_own = configure_finetuning(ModelChoice("transformer"), task, None, {"tune.label_smoothing": 0.2})
    assert with_own.tune.label_smoothing == 0.2  # what is given is kept, and refused where it has no meaning


def test_what_follows_from_the_examples_is_not_there_before_them():
    """No step, length or rate is made up before the examples are encoded; what is known is checked at once."""
    settings = configure_finetuning(ModelChoice("bert"), "classify", None, {})
    assert {*DERIVED_SETTINGS} & {*settings.to_dict()["train"]} == {"lr"}, "that of the recipe from scratch"
    assert {*settings.train_values, *DERIVED_SETTINGS} == {field.name for field in dataclasses.fields(TrainConfig)}
    given = configure_finetuning(ModelChoice("bert"), "classify", None, {"train.steps": 7})
    sizes = np.array([[5, 1, 0], [9, 1, 0]])
    made, config = derive_config(given, sizes, 32), derive_config(settings, sizes, 32).train
    assert (made.train.steps, made.train.seq_length, made.to_dict()["train"]["steps"]) == (7, 9, 7)
    assert (config.seq_length, config.batch_tokens, config.steps) == (9, 224, 10)
    assert (made.train.warmup_steps, config.warmup_steps) == (1, 1)
    for steps, warmup in ((3, 0), (40, 4)):  # "a warmup of 10 steps is longer than the run" blamed what nobody had set
        few = configure_finetuning(ModelChoice("bert"), "classify", None, {"train.steps": steps, "tune.epochs": 100})
        assert derive_config(few, sizes, 32).train.warmup_steps == warmup
    data, tune = read_known_settings(ModelChoice("bert"), None, {"data.column": "text", "tune.lora": 4})
    assert (data.column, tune.lora) == ("text", 4)
    wrong = {"train.lr": -1, "train.optimizer": "x", "tune.lora": -1, "model.dims": 3, "train.parallel": "fsdp"}
    for key, value in wrong.items():
        with pytest.raises(Error):
            read_known_settings(ModelChoice("bert"), None, {key: value})


def test_vectors_leave_the_settings_that_were_asked_for_as_they_are(tmp_path):
    """The width of word vectors goes into the settings of the run, not into those that it was given."""
    vectors = formers.pretrain(
        "word2vec", [row["text"] for row in REVIEWS] * 4, out=tmp_path / "vectors", model={"dim": 6, "min_count": 1},
    )  # fmt: skip
    request = request_finetuning(
        "textcnn", REVIEWS, REVIEWS[:8], overrides={"tune.vectors": str(vectors.folder / "model")}
    )
    asked, splits = request.configure(None)
    before, world = dict(asked.model), ProcessGroup()
    run = request.build(*request.prepare(asked, splits, tmp_path / "run", world), tmp_path / "run", world)
    assert asked.model == before
    assert "embed" not in before
    assert run.config.model["embed"] == run.former.config.embed == 6


def test_a_frozen_body_stays_in_evaluation_mode():
    model = formers.build("bert", head="classify", labels=["a", "b"], vocab=20, **BERT_SIZES).model
    model.train()
    assert model.body.training
    model.freeze_body()
    assert model.training
    torch.nn.Sequential(model).train()
    assert model.heads.training
    assert not any(part.training for part in model.body.modules())
    assert not any(weight.requires_grad for weight in model.body.parameters())
    assert all(weight.requires_grad for weight in model.heads.parameters())
    assert not copy.deepcopy(model).train().body.training


@pytest.mark.parametrize(
    ("family", "recipe", "given", "name", "value"),
    [
        ("bert", "paper", {"train.seq_length": 128}, "short_length", None),
        ("bert", "paper", {"model.context": 16}, "short_length", None),
        ("gpt2", "quick", {"train.seq_length": 4096, "model.context": 4096}, "batch_tokens", 4096),
    ],
)
def test_a_recipes_lengths_give_way_to_those_that_were_given(family, recipe, given, name, value):
    assert vars(configure_pretraining(family, None, given, recipe=recipe).train)[name] == value


def test_a_small_translators_local_attention_sees_as_far_as_luongs():
    """Window 10 (§4.1), not the 32 tokens of a small decoder's band: those are a whole sentence."""
    for recipe in ("quick", "paper"):
        config = configure_pretraining("seq2seq", None, {"model.attention": "local"}, recipe=recipe)
        assert config.model.get("window", 10) == 10


def test_lengths_that_were_given_and_contradict_each_other_are_refused():
    with pytest.raises(Error, match="short_length 128 is not shorter than seq_length 128"):
        configure_pretraining("bert", None, {"train.seq_length": 128, "train.short_length": 128}, recipe="paper")
    with pytest.raises(Error, match="does not fit into a batch of 64"):
        configure_pretraining("gpt2", None, {"train.batch_tokens": 64, "train.seq_length": 65, "model.context": 65})


def test_a_switch_of_one_layer_has_one_of_experts():
    for recipe in ("quick", "paper"):
        config = configure_pretraining("switch", None, {"model.layers": 1}, recipe=recipe)
        assert config.model["sparse"] == 1
    with pytest.raises(Error, match="more sparse layers than layers"):
        configure_pretraining("switch", None, {"model.layers": 1, "model.sparse": 2})
    short = configure_pretraining("switch", None, {"model.layers": 4, "model.sparse": 3, "model.decoder_layers": 1})
    assert build_model_config(short, vocab=100).num_decoder_sparse == 1, (
        "a shorter decoder has as many as it has layers"
    )


@pytest.mark.parametrize(
    ("family", "setting", "remedy"),
    [
        ("seq2seq", {"model.attention": "dot"}, "Set attention to general, or bidirectional to false"),
        ("seq2seq", {"model.feed": True}, "Leave feed out, or set attention to general"),
        ("gpt_neox", {"model.dim": 48}, "Set rotary_fraction to 1"),
    ],
)
def test_what_the_recipe_has_set_is_named_where_it_contradicts(family, setting, remedy):
    """The quick recipe has chosen the other setting: the message names it, and following it works."""
    with pytest.raises(Error, match=remedy):
        configure_pretraining(family, None, setting)
    fixes = {"model.attention": {"model.bidirectional": False}, "model.feed": {"model.attention": "general"},
             "model.dim": {"model.rotary_fraction": 1.0}}  # fmt: skip
    configure_pretraining(family, None, setting | fixes[next(iter(setting))])


def test_a_switch_without_experts_is_not_asked_for_their_dropout(tmp_path):
    """0.4 is the recipe's, of checkpoints with experts; one that was given is refused."""
    rows = [{"text": row["text"], "target": row["label"]} for row in REVIEWS]
    tokenizer = train_tokenizer("unigram", [row["text"] for row in REVIEWS], 300, style="switch")
    sizes = {"dim": 16, "layers": 1, "sparse": 0, "heads": 2, "head_dim": 8, "ff": 32}
    former = formers.build("switch", vocab=len(tokenizer), pad=tokenizer.id("pad"), eos=tokenizer.id("eos"), **sizes)
    former.tokenizer = tokenizer
    save(former, tmp_path / "model")
    how = {"task": "summarise", "epochs": 0.2}
    finetune_toy(str(tmp_path / "model"), rows, rows[:8], out=tmp_path / "one", **how)
    with pytest.raises(Error, match="a switch has no experts"):
        finetune_toy(str(tmp_path / "model"), rows, rows[:8], out=tmp_path / "two", expert_dropout=0.3, **how)


def test_the_context_of_a_small_model_follows_the_examples():
    """Nobody chose the context of 32 or 64, so no error is about it; a preset's or a given one is kept."""
    for family in ("bert", "albert", "gpt2"):
        assert configure_pretraining(family, None, {"train.seq_length": 100}).model["context"] == 100
        assert configure_pretraining(family, None, {"train.seq_length": 8}).model["context"] < 100
    assert (
        configure_pretraining("bert", None, {"train.seq_length": 100}, preset="bert-base").model.get("context") != 100
    )
    with pytest.raises(Error, match="longer than the model's context of 50"):
        configure_pretraining("gpt2", None, {"train.seq_length": 100, "model.context": 50})


def test_an_elmo_from_scratch_learns_at_a_rate_of_its_own():
    """At that of the other families it stays with the most frequent label."""
    config = configure_finetuning(ModelChoice("elmo"), "classify", None, {})
    assert config.train_values["lr"] == 2e-3
    assert configure_finetuning(ModelChoice("elmo"), "classify", None, {"train.lr": 1e-4}).train_values["lr"] == 1e-4
