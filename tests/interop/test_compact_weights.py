"""Compact storage: what is lost once, what is never lost again, and files that claim more than they hold."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import formers
from formers.errors import Error
from formers.interop import shipped_models
from formers.interop.compact_weights import SCALE_SUFFIX, quantise_rows, restore_rows
from formers.interop.model_directory import load, save

SIZES = {"vocab": 64, "context": 16, "dim": 64, "layers": 1, "heads": 2, "ff": 96}


@pytest.fixture(scope="module")
def bert():
    return formers.build("bert", head="mlm", seed=1, **SIZES)


def read_all(folder):
    return {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}


def test_rows_are_as_near_as_eight_bits_allow():
    matrix = torch.randn(7, 33, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 3, 7)[:, None]
    integers, scales = quantise_rows(matrix)
    assert integers.dtype == torch.int8
    assert integers.abs().amax(1).tolist() == [127] * 7  # the whole range is used
    assert ((restore_rows(integers, scales) - matrix).abs() <= 0.51 * scales[:, None]).all()


def test_rows_of_zeros_stay_zero():
    integers, scales = quantise_rows(torch.zeros(2, 3))
    assert restore_rows(integers, scales).eq(0).all()


@pytest.mark.parametrize("storage", ["int8", "bf16"])
def test_saving_again_changes_nothing(bert, tmp_path, storage):
    save(bert, tmp_path / "one", storage=storage)
    first = load(tmp_path / "one")
    assert first.dtype == torch.float32
    save(first, tmp_path / "two", storage=storage)
    one, two = read_all(tmp_path / "one"), read_all(tmp_path / "two")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert load(tmp_path / "two").fingerprint == first.fingerprint


def test_size_and_likeness(bert, tmp_path):
    sizes = {}
    for storage in ("full", "bf16", "int8"):
        save(bert, tmp_path / storage, storage=storage)
        sizes[storage] = (tmp_path / storage / "model.safetensors").stat().st_size
    assert sizes["bf16"] < 0.56 * sizes["full"]
    assert sizes["int8"] < 0.4 * sizes["full"]
    ids = torch.arange(12)[None]
    near = load(tmp_path / "int8").logits(ids)
    torch.testing.assert_close(near, bert.logits(ids), atol=0.05, rtol=0)
    assert json.loads((tmp_path / "full" / "formers.json").read_text())["format"] == 2  # older versions read it


def test_export_from_compact_storage(bert, tmp_path):
    save(bert, tmp_path / "small", storage="int8")
    small = load(tmp_path / "small")
    formers.export(small, tmp_path / "hf")
    assert torch.equal(load(tmp_path / "hf").logits(torch.arange(9)[None]), small.logits(torch.arange(9)[None]))


def test_damaged_scales_are_refused(bert, tmp_path):
    save(bert, tmp_path / "m", storage="int8")
    about = json.loads((tmp_path / "m" / "formers.json").read_text())
    for key in ("files", "seal"):
        about.pop(key)
    (tmp_path / "m" / "formers.json").write_text(json.dumps(about))
    tensors = read_all(tmp_path / "m")
    name = next(name for name in tensors if name.endswith(SCALE_SUFFIX))
    path = tmp_path / "m" / "model.safetensors"
    for bad, words in (
        (tensors | {name: tensors[name][:-1]}, "not one scale for each row"),
        ({key: value for key, value in tensors.items() if key != name}, "not one scale for each row"),
        (tensors | {"x:scale": torch.zeros(2)}, "belongs to no tensor"),
        (tensors | {name: tensors[name] * float("nan")}, "are not numbers"),
    ):
        save_file(bad, path)
        with pytest.raises(Error, match=words):
            load(tmp_path / "m")
    (tmp_path / "m" / "formers.json").write_text(json.dumps(about | {"storage": "int3"}))
    with pytest.raises(Error, match="the storage 'int3' is not known"):
        load(tmp_path / "m")


def test_a_model_of_the_package_is_found_by_name(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped_models, "SHIPPED_FOLDER", tmp_path / "pretrained")
    with pytest.raises(Error, match="built without models"):
        load("formers/bert-mini")
    (tmp_path / "pretrained").mkdir()
    save(bert, tmp_path / "pretrained" / "bert-mini", storage="int8")
    assert load("formers/bert-mini").family == "bert"
    with pytest.raises(Error, match="Shipped are formers/bert-mini"):
        load("formers/bert-maxi")
