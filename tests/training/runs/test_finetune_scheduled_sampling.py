"""Fine-tuning a translator on its own predictions: what is learned, resumed and validated, and who is refused."""

from __future__ import annotations

import os
import signal

import pytest
import torch

import formers
from formers.errors import Error
from formers.nn.encoder_decoder import RecurrentEncoderDecoder
from formers.training.config_merge import ModelChoice, configure_finetuning
from formers.training.loop import Stopped
from tests.training.toy_runs import REVIEWS, finetune_toy

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier"}
PAIRS = [{"text": f"{a} {b}", "target": f"{WORDS[a]} {WORDS[b]}"} for a in WORDS for b in WORDS] * 3
FALLING = {"teacher_forcing": 0.9, "sampling_schedule": "linear", "sampling_decay": 0.1, "min_teacher_forcing": 0.2}


def translate_toy(out, family="seq2seq", **more):
    """Fine-tune a tiny translator from scratch."""
    more = {"task": "translate", "epochs": 2, "lr": 5e-3, "metric": "loss", "patience": 0, **more}
    sizes = {"dim": 16, "layers": 2 if family == "gnmt" else 1}
    return finetune_toy(family, PAIRS, PAIRS[:16], sizes=sizes, out=out, **more)


def list_losses(run):
    return [row["loss"] for row in run.history if "losses" in row]


def have_equal_weights(first, second):
    pairs = zip(first.former.model.parameters(), second.former.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("family", ["seq2seq", "gnmt"])
def test_a_translator_learns_from_its_own_predictions(tmp_path, family, monkeypatch):
    decode, in_training = RecurrentEncoderDecoder.decode_predicted, []

    def record(self, *args):
        in_training.append(self.training)
        return decode(self, *args)

    monkeypatch.setattr(RecurrentEncoderDecoder, "decode_predicted", record)
    plain, forced = (translate_toy(tmp_path / name, family, **more)
                     for name, more in (("plain", {}), ("forced", {"teacher_forcing": 1.0})))  # fmt: skip
    assert have_equal_weights(plain, forced)
    assert list_losses(plain) == list_losses(forced)
    assert not in_training, "a share of 1 is teacher forcing, at its speed"
    mixed = translate_toy(tmp_path / "mixed", family, teacher_forcing=0.5, epochs=12)
    losses = list_losses(mixed)
    assert losses[0] != list_losses(forced)[0]
    assert losses[-1] < 0.8 * losses[0]
    assert len(in_training) >= len(losses)
    assert all(in_training), "validation reads the target"
    validated = [row["valid"]["loss"] for row in mixed.history if "valid" in row]
    assert validated[-1] < validated[0]


def test_stopped_and_resumed_is_as_if_never_stopped(tmp_path):
    whole = translate_toy(tmp_path / "whole", **FALLING)

    def hook(line):
        if line["step"] == 3 and "losses" in line:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="after step 3; saved"):
        translate_toy(tmp_path / "cut", hook=hook, **FALLING)
    with pytest.raises(Error, match="tune.sampling_decay cannot change in a resumed run"):
        formers.finetune(out=tmp_path / "cut", resume=True, sampling_decay=0.2)
    again = formers.finetune(out=tmp_path / "cut", resume=True)
    assert again.valid == whole.valid
    assert have_equal_weights(whole, again)
    assert not have_equal_weights(whole, translate_toy(tmp_path / "other", **FALLING | {"sampling_decay": 0.2}))


def test_the_tasks_of_a_mixture_are_learned_so_too(tmp_path):
    tasks = {"films": REVIEWS, "words": {"train": PAIRS, "task": "translate", "max_output_tokens": 16}}
    sizes = {"model.dim": 16, "model.layers": 1, "data.vocab_size": 300}
    runs = [
        formers.finetune("seq2seq", mixture={"tasks": tasks}, epochs=0.5, overrides=sizes, out=tmp_path / str(share),
                         teacher_forcing=share)
        for share in (1.0, 0.5)
    ]  # fmt: skip
    assert list_losses(runs[0])[0] != list_losses(runs[1])[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"family": "bert", "teacher_forcing": 0.5},
         "tune.teacher_forcing does not apply to classify: the model writes no text"),
        ({"family": "transformer", "teacher_forcing": 0.5},
         "tune.teacher_forcing does not apply to transformer: only a recurrent decoder can be trained on its own "
         "predictions. Leave out tune.teacher_forcing, or train seq2seq or gnmt"),
        ({"family": "transformer", "sampling_schedule": "linear", "sampling_decay": 0.1},
         "tune.sampling_schedule does not apply to transformer"),
        ({"family": "transformer", "sampled_token": "likeliest"}, "tune.sampled_token does not apply to transformer"),
        ({"sampled_token": "likeliest"}, "tune.sampled_token has no effect where the decoder reads the target alone"),
        ({"teacher_forcing": 1.2}, "tune: teacher_forcing is a share between 0 and 1, got 1.2"),
        ({"min_teacher_forcing": 0.2}, "tune: min_teacher_forcing belongs to a sampling_schedule"),
        ({"sampling_schedule": "linear"}, "tune: the sampling_schedule linear needs a sampling_decay between 0 and 1"),
        ({"sampling_schedule": "cosine"}, "tune: setting 'sampling_schedule' cannot be 'cosine'"),
        ({"teacher_forcing_ratio": 0.5}, "finetune has no argument 'teacher_forcing_ratio'.*'teacher_forcing'"),
        ({"overrides": {"tune.scheduled_sampling": "linear"}}, "formers calls it 'sampling_schedule'"),
    ],
)  # fmt: skip
def test_what_cannot_be_obeyed_is_refused_before_training(tmp_path, given, message):
    given = {"family": "seq2seq", **given}
    is_bert = given["family"] == "bert"
    rows = [{"text": row["text"], "label": row["label"]} for row in REVIEWS] if is_bert else PAIRS
    task = "classify" if is_bert else "translate"
    with pytest.raises(Error, match=message):
        finetune_toy(given.pop("family"), rows, rows[:8], task=task, out=tmp_path / "run", sizes={}, **given)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_plain_text_has_no_target(tmp_path):
    with pytest.raises(Error, match="tune.teacher_forcing does not apply to --task lm"):
        formers.finetune("bert", ["a b c"] * 8, task="lm", teacher_forcing=0.5, out=tmp_path / "run")


def test_the_settings_are_saved_with_the_others():
    tune = configure_finetuning(ModelChoice("gnmt"), "translate", {"tune": FALLING}, {}).to_dict()["tune"]
    assert {name: tune[name] for name in FALLING} == FALLING
    assert tune["sampled_token"] == "drawn"
