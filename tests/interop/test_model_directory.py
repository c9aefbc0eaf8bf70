"""What a checkpoint's files say before its weights are read."""

from __future__ import annotations

import json

import pytest

import formers
from formers import Error
from formers.interop.model_directory import CheckpointInfo, read_checkpoint_info
from formers.training.runs.task_model import read_checkpoint_family


@pytest.fixture(scope="module")
def former():
    return formers.build("bert", "mlm", vocab=50, context=16, dim=8, layers=1, heads=2, ff=16)


def test_a_formers_directory_says_all(former, tmp_path):
    formers.save(former, tmp_path / "own")
    info = read_checkpoint_info(tmp_path / "own")
    assert (info.family, info.head, info.is_own) == ("bert", "mlm", True)
    assert info.settings["dim"] == 8
    (tmp_path / "own" / "model.safetensors").unlink()
    assert read_checkpoint_family(str(tmp_path / "own")) == "bert"


def test_a_hugging_face_directory_says_it_in_its_own_words(former, tmp_path):
    formers.export(former, tmp_path / "hf")
    info = read_checkpoint_info(str(tmp_path / "hf"))
    assert (info.family, info.head, info.is_own) == ("bert", "mlm", False)
    assert info.settings["dim"] == 8
    path = tmp_path / "hf" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"hidden_act": "unheard-of"}))
    assert read_checkpoint_info(tmp_path / "hf").settings is None
    path.write_text(json.dumps({key: value for key, value in config.items() if key != "model_type"}))
    assert read_checkpoint_info(tmp_path / "hf") == CheckpointInfo()


def test_nothing_is_fetched_and_nothing_is_guessed(tmp_path):
    assert read_checkpoint_info("hub:owner/name") == CheckpointInfo()
    (tmp_path / "weights.bin").touch()
    assert read_checkpoint_info(tmp_path) == CheckpointInfo()
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(Error, match="unheard-of"):
        read_checkpoint_info(tmp_path)
    with pytest.raises(Error, match="no such directory"):
        read_checkpoint_info(tmp_path / "none")
