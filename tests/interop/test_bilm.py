"""bilm-tf's files: in and out without a bit lost, and nothing hostile followed."""

from __future__ import annotations

import json
import random
import sys

import numpy as np
import pytest
import torch

import formers
from formers import Error
from formers.cli.main import app
from formers.interop import sandbox
from formers.text import word_level
from tests.models import reference_elmo as reference

h5py = pytest.importorskip("h5py")

OPTIONS = {  # in the words of the published files, with training's own left in
    "lstm": {
        "use_skip_connections": True, "projection_dim": 6, "cell_clip": 3, "proj_clip": 3, "dim": 10, "n_layers": 2,
    },
    "char_cnn": {
        "activation": "relu", "filters": [[1, 4], [3, 5]], "n_highway": 2, "embedding": {"dim": 4},
        "n_characters": 262, "max_characters_per_token": 50,
    },
    "n_tokens_vocab": 458, "n_epochs": 10, "batch_size": 128, "unroll_steps": 20, "bidirectional": True,
}  # fmt: skip
TEXT = ["나는", "cats", "좋아한다"]


def list_shapes():
    found = {"char_embed": (261, 4), "CNN_proj/W_proj": (9, 6), "CNN_proj/b_proj": (6,)}
    for i, (width, count) in enumerate(OPTIONS["char_cnn"]["filters"]):
        found |= {f"CNN/W_cnn_{i}": (1, width, 4, count), f"CNN/b_cnn_{i}": (count,)}
    for i in range(2):
        for kind in ("carry", "transform"):
            found |= {f"CNN_high_{i}/W_{kind}": (9, 9), f"CNN_high_{i}/b_{kind}": (9,)}
        for layer in range(2):
            cell = f"RNN_{i}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            found |= {f"{cell}/W_0": (12, 40), f"{cell}/B": (40,), f"{cell}/W_P_0": (10, 6)}
    return found


@pytest.fixture
def published_files(tmp_path):
    """A directory as bilm-tf writes it, made without formers, and its arrays."""
    where = tmp_path / "published"
    where.mkdir()
    (where / "options.json").write_text(json.dumps(OPTIONS))
    draw = np.random.default_rng(0)
    arrays = {name: (draw.standard_normal(shape) * 0.6).astype(np.float32) for name, shape in list_shapes().items()}
    with h5py.File(where / "elmo_weights.hdf5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, array.shape, dtype="float32")[...] = array
    return where, arrays


def read_content(path):
    found = {}
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def test_a_published_directory(published_files):
    where, arrays = published_files
    f = formers.load(where)
    assert (f.family, f.head) == ("elmo", "none")
    assert (f.config.dim, f.config.cell, f.config.vocab, f.config.clip) == (12, 10, 458, 3.0)
    weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
    ids = word_level.encode_sentence(TEXT)
    want, _ = reference.read_sentence(weights, OPTIONS, ids.tolist())
    torch.testing.assert_close(f.hidden(ids[None], layer=None)[:, 0], want, atol=1e-5, rtol=1e-5)


def test_no_bit_is_lost(published_files, tmp_path):
    where, arrays = published_files
    formers.save(formers.load(where), tmp_path / "own")
    formers.export(formers.load(tmp_path / "own"), tmp_path / "back")
    again = read_content(tmp_path / "back" / "weights.hdf5")
    assert set(again) == set(arrays)
    assert all(np.array_equal(again[name], array) and again[name].dtype == np.float32 for name, array in arrays.items())
    assert json.loads((tmp_path / "back" / "options.json").read_text()) == OPTIONS | {"dropout": 0.1}


def test_the_softmax_travels_too(published_files, tmp_path):
    where, _ = published_files
    with pytest.warns(UserWarning, match=r"new, untrained: heads.lm.out.bias, heads.lm.out.weight"):
        f = formers.load(where, head="lm")
    formers.export(f, tmp_path / "lm")
    again = formers.load(tmp_path / "lm")
    assert again.head == "lm"
    ids = word_level.encode_sentence(TEXT)[None]
    assert torch.equal(f.logits(ids), again.logits(ids))
    assert formers.load(tmp_path / "lm", head="none").head == "none"
    half = f.to(dtype=torch.bfloat16)
    formers.export(half, tmp_path / "half")  # written as float32
    assert torch.equal(formers.load(tmp_path / "half", dtype=torch.bfloat16).logits(ids), half.logits(ids))


def test_a_task_starts_from_the_file(published_files):
    with pytest.warns(UserWarning, match="heads.tag.mix.scale, heads.tag.mix.weight, heads.tag.out.bias"):
        f = formers.load(published_files[0], head="tag", labels=["O", "B"])
    assert f.logits(word_level.encode_sentence(TEXT)[None]).shape == (1, 5, 2)


def test_by_command(published_files, tmp_path, capsys):
    app(["import", str(published_files[0]), str(tmp_path / "own")], result_action="return_value")
    assert "elmo, head none" in capsys.readouterr().out
    app(["export", str(tmp_path / "own"), str(tmp_path / "back")], result_action="return_value")
    assert formers.load(tmp_path / "back").config == formers.load(published_files[0]).config


def test_a_task_and_vectors_without_a_tokenizer(published_files, tmp_path):
    where, arrays = published_files
    words = [("good", "fine"), ("bad", "poor")]
    rows = [{"text": " ".join(words[i % 2]) + f" {i}", "label": ("pos", "neg")[i % 2]} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = tmp_path / "run"
    finetune = ["finetune", str(where), "--train", str(tmp_path / "rows.jsonl"), "--out", str(run), "--epochs", "12"]
    app([*finetune, "--lr", "0.02", "--tune.baseline", "false"], result_action="return_value")
    assert json.loads((run / "run.json").read_text())["data"]["tokenizer"] is None
    tuned = formers.load(run)
    assert tuned.tokenizer is None
    assert [tuned.classify(text).label for text in ("good fine 3", "bad poor 4")] == ["pos", "neg"]
    # Vectors of words are those of the published character ids, at every layer.
    weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
    want, _ = reference.read_sentence(weights, OPTIONS, word_level.encode_sentence(TEXT).tolist())
    found = formers.load(where).embed(" ".join(TEXT), level="word", layers=[0, 1, 2], mix="concat")
    torch.testing.assert_close(found.vectors, torch.cat(list(want[:, 1:-1]), -1), atol=1e-5, rtol=1e-5)


def test_options_of_a_training_run(published_files):
    where, _ = published_files
    options = json.loads(json.dumps(OPTIONS))
    options["char_cnn"]["n_characters"] = 261  # what training calls it
    (where / "options.json").write_text(json.dumps(options))
    assert formers.load(where).config.characters == 262


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("surprise", 1, "unknown key 'surprise'"),
        ("bidirectional", False, "bidirectional: formers cannot honour False"),
        ("lstm.dim", "many", "setting 'cell' must be int"),
        ("lstm.dim", 11, "has shape (2, 12, 40), the config asks for (2, 12, 44)"),
        ("lstm.n_layers", 3, "'RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0' is missing"),
        ("lstm.n_layers", 1, "unknown tensor 'RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/B'"),
        ("lstm.projection_dim", [1], "setting 'dim' must be int"),
        ("lstm.projection_dim", None, "lstm.projection_dim: None makes no sense here"),
        ("char_cnn.activation", "gelu", "char_cnn.activation: value 'gelu' is not supported"),
        ("char_cnn.filters", [[1, 4], [60, 5]], "filters must be pairs"),
        ("char_cnn.filters", "wide", "setting 'filters' must be"),
        ("char_cnn.n_characters", 263, "has shape (262, 4), the config asks for (263, 4)"),
        ("lstm", 5, "unknown key 'lstm'"),
        ("a.b", {"c.d": 5}, "unknown key 'c.d'"),
    ],
)
def test_options_that_do_not_fit(published_files, path, value, message):
    where, _ = published_files
    options = json.loads(json.dumps(OPTIONS))
    *folders, last = path.split(".")
    here = options
    for folder in folders:
        here = here.setdefault(folder, {})
    here[last] = value
    (where / "options.json").write_text(json.dumps(options))
    with pytest.raises(Error) as caught:
        formers.load(where)
    assert message in str(caught.value)


def write_outside_file(tmp_path):
    """A valid file elsewhere, which must not be opened."""
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["x"] = np.ones((9, 6), np.float32)
    return tmp_path / "secret.hdf5"


def external_link(file, tmp_path):
    file["CNN_proj/W_proj"] = h5py.ExternalLink(str(write_outside_file(tmp_path)), "x")


def soft_link(file, tmp_path):
    file["CNN_proj/W_proj"] = h5py.SoftLink("/char_embed")


def write_virtual(file, tmp_path):
    layout = h5py.VirtualLayout(shape=(9, 6), dtype="float32")
    layout[...] = h5py.VirtualSource(str(write_outside_file(tmp_path)), "x", shape=(9, 6))
    file.create_virtual_dataset("CNN_proj/W_proj", layout)


def write_external(file, tmp_path):
    (tmp_path / "raw").write_bytes(np.ones(54, np.float32).tobytes())
    file.create_dataset("CNN_proj/W_proj", (9, 6), dtype="float32", external=[(str(tmp_path / "raw"), 0, 216)])


def write_compressed(file, tmp_path):
    file.create_dataset("CNN_proj/W_proj", data=np.zeros((9, 6), np.float32), compression="gzip")


def write_huge_chunks(file, tmp_path):
    file.create_dataset("CNN_proj/W_proj", (2**20, 2**20), dtype="float32", chunks=(1024, 1024))


def write_hollow(file, tmp_path):
    file.create_dataset("CNN_proj/W_proj", (2**20, 2**20), dtype="float32")


def write_cycle(file, tmp_path):
    file["CNN_proj/again"] = file["CNN_proj"]


def write_links(file, tmp_path):
    for i in range(200):
        file[f"more/{i}"] = file["char_embed"]


def write_integers(file, tmp_path):
    file["CNN_proj/W_proj"] = np.ones((9, 6), np.int32)


def write_big_endian(file, tmp_path):
    file["CNN_proj/W_proj"] = np.ones((9, 6), ">f4")


def write_string(file, tmp_path):
    file["CNN_proj/W_proj"] = "text"


def write_type(file, tmp_path):
    file["CNN_proj/W_proj"] = np.dtype("f4")


def write_unknown_name(file, tmp_path):
    file["CNN_proj/W_other"] = np.ones((9, 6), np.float32)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (external_link, "'CNN_proj/W_proj' is a link to elsewhere"),
        (soft_link, "'CNN_proj/W_proj' is a link to elsewhere"),
        (write_virtual, "packed or lies in pieces"),
        (write_external, "lies in another file"),
        (write_compressed, "packed or lies in pieces"),
        (write_huge_chunks, "packed or lies in pieces"),
        (write_hollow, "does not have 0 bytes"),
        (write_cycle, "more names than any model"),
        (write_links, "its arrays claim"),
        (write_integers, "is of type int32"),
        (write_big_endian, "is of type >f4"),
        (write_string, "is of type object"),
        (write_type, "neither a folder nor an array"),
        (write_unknown_name, "'CNN_proj/W_proj' is missing"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_hostile_files(published_files, tmp_path, attack, message):
    where, _ = published_files
    with h5py.File(where / "elmo_weights.hdf5", "r+") as file:
        del file["CNN_proj/W_proj"]
        attack(file, tmp_path)
    with pytest.raises(Error) as caught:
        formers.load(where)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_link_out_of_the_folder(published_files, tmp_path):
    where, _ = published_files
    (where / "elmo_weights.hdf5").rename(tmp_path / "away.hdf5")
    (where / "elmo_weights.hdf5").symlink_to(tmp_path / "away.hdf5")
    with pytest.raises(Error, match="out of"):
        formers.load(where)


def test_broken_files_never_bring_the_house_down(published_files, full):
    where, _ = published_files
    path = where / "elmo_weights.hdf5"
    data, draw = path.read_bytes(), random.Random(0)
    said = []
    for attempt in range(300 if full else 5):
        broken = bytearray(data)
        for _ in range(20):  # the places of names, links and shapes are the first ones
            broken[draw.randrange(len(data) if attempt % 4 == 0 else 8192)] = draw.randrange(256)
        path.write_bytes(broken if attempt % 5 else broken[: draw.randrange(len(data))])
        try:
            formers.load(where)
        except Error as error:
            said.append(str(error))
    assert said
    assert not any("\n" in text for text in said)
    path.write_bytes(b"not hdf5 at all")
    with pytest.raises(Error, match="the hdf5 file was refused"):
        formers.load(where)


def test_which_file_is_meant(published_files):
    where, _ = published_files
    (where / "embeddings.hdf5").write_bytes(b"")
    with pytest.raises(Error, match="there are 2 hdf5 files, 'elmo_weights.hdf5' and 'embeddings.hdf5'"):
        formers.load(where)
    for path in where.glob("*.hdf5"):
        path.unlink()
    with pytest.raises(Error, match="neither formers.json nor config.json"):
        formers.load(where)


def test_what_cannot_be_exported(published_files, tmp_path):
    with pytest.warns(UserWarning, match="untrained"):
        tagger = formers.load(published_files[0], head="tag")
    with pytest.raises(Error, match="hold no head 'tag'"):
        formers.export(tagger, tmp_path / "out")
    bare = formers.load(published_files[0])
    with pytest.raises(Error, match="float32, not bfloat16"):
        formers.export(bare, tmp_path / "out", dtype=torch.bfloat16)
    wide = formers.build("elmo", "none", dim=20, cell=10, filters=((1, 4),))
    with pytest.raises(Error, match="no projection where the width"):
        formers.export(wide, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_the_extra(published_files, tmp_path, monkeypatch):
    bare = formers.load(published_files[0])
    monkeypatch.setitem(sys.modules, "h5py", None)
    for call in (lambda: formers.load(published_files[0]), lambda: formers.export(bare, tmp_path / "out")):
        with pytest.raises(Error, match=r"need h5py. pip install 'formers\[elmo\]'"):
            call()


def test_the_process_has_limits(published_files, monkeypatch):
    monkeypatch.setattr(sandbox, "TIMEOUT_SECONDS", 1)
    monkeypatch.setattr(sandbox, "CONVERTER_CODE", "import time; time.sleep(60)")
    with pytest.raises(Error, match="converting the hdf5 file took more than 1 s"):
        formers.load(published_files[0])
