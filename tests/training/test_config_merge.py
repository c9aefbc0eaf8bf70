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
    configure_finetuning,
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
    ({"lora": 4, "features": "mix"}, "tune.lora learns beside layers that tune.features does not let learn"),
    ({"lora": 4, "freeze": 1}, "with tune.lora all weights stay as they are already"),
    ({"features": "mix", "freeze": 1}, "with tune.features all layers stay as they are already"),
    ({"freeze": -5}, "-5 layers cannot be held still"),
    ({"freeze": 99}, "has 2 layers: 99 cannot be held still"),
    ({"features": "cat4"}, "'cat4' reads 4 layers, and this model has 2"),
    ({"features": "sum4"}, "'sum4' reads 4 layers, and this model has 2"),
    ({"lm_loss_weight": 0.5}, "roberta is no language model that reads from left to right"),
    ({"seq_length": 200}, "this roberta reads 64 tokens at once, not 200"),
    ({"task": "regress", "balance": True}, "there are no classes to balance in regress"),
    ({"task": "regress", "label_smoothing": 0.1}, "tune.label_smoothing has no meaning where regress is learned"),
    ({"task": "regress", "label_as_text": True}, "tune.label_as_text writes labels, and regress has none to write"),
    ({"task": "tag", "long_texts": "cut"}, "tag reads long texts in windows, or refuses them"),
    ({"model": "textcnn", "features": "mix"}, "a model from scratch has learned no features yet"),
    ({"model": "gpt2", "task": "tag", "lm_loss_weight": 0.5}, "tune.lm_loss_weight does not go with tag"),
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


def test_a_list_of_labels_where_one_is_learnt(tmp_path, small_checkpoint):
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
    """Its training part is learnt, its validation part held out; one that is given goes first."""
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
    asked = request.configure(None)
    before = dict(asked.model)
    run = request.build(*request.prepare(asked, tmp_path / "run", ProcessGroup()), tmp_path / "run", ProcessGroup())
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
