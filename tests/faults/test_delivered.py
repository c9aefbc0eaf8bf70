"""A delivered model carries checksums: one flipped bit anywhere in its directory is noticed when it is loaded."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch

import formers
from formers import Error
from formers.registry import train_tokenizer

GOLDEN = Path(__file__).parent.parent / "parity" / "golden"
SENTENCES = [f"number {n} of some sentences with words" for n in range(50)]


@pytest.fixture(scope="module")
def delivered_folder(tmp_path_factory):
    """A model of several shards, with a tokenizer, labels and what an imported checkpoint said."""
    where = tmp_path_factory.mktemp("delivered") / "model"
    former = formers.load(GOLDEN / "RobertaForSequenceClassification-1")
    former.tokenizer = train_tokenizer("bert", SENTENCES, 60)
    former.source_files["config.json"] = (GOLDEN / "RobertaForSequenceClassification-1" / "config.json").read_bytes()
    formers.save(former, where, shard=20_000)
    return where


def list_files(where):
    return sorted(path for path in where.rglob("*") if path.is_file())


def flip_bit(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_every_flipped_bit_is_noticed(delivered_folder, tmp_path, full):
    dice, silent, count = random.Random(11), [], 2000 if full else 60
    places = list_files(delivered_folder)
    assert {path.name for path in places} >= {"formers.json", "tokenizer.json", "config.json"}
    assert sum(path.suffix == ".safetensors" for path in places) > 1
    copy = tmp_path / "copy"
    shutil.copytree(delivered_folder, copy)
    for number in range(count):
        path = places[number % len(places)]
        target, bit = copy / path.relative_to(delivered_folder), dice.randrange(8 * path.stat().st_size)
        flip_bit(target, bit)
        try:
            formers.load(copy)
            silent.append((path.name, bit))
        except Error as error:
            if path.name != "formers.json" and path.name not in str(error):
                silent.append((path.name, bit, str(error)))
        shutil.copyfile(path, target)
    formers.load(copy)
    print(f"{count} flips in a delivered model: {len(silent)} silent")
    assert not silent


def test_a_truncated_or_missing_file_is_noticed(delivered_folder, tmp_path):
    for path in list_files(delivered_folder):
        copy = tmp_path / "copy"
        shutil.copytree(delivered_folder, copy)
        target = copy / path.relative_to(delivered_folder)
        target.write_bytes(path.read_bytes()[:-2])
        with pytest.raises(Error):
            formers.load(copy)
        target.unlink()
        if path.parent == delivered_folder:
            with pytest.raises(Error):
                formers.load(copy)
        else:
            formers.load(copy)  # what an imported checkpoint said beside may be left out
        shutil.rmtree(copy)


def test_an_edit_is_accepted_when_it_is_meant(delivered_folder, tmp_path):
    shutil.copytree(delivered_folder, tmp_path / "m")
    file = tmp_path / "m" / "formers.json"
    lines = file.read_text().replace('"format": 2', '"format": 2 ').splitlines(keepends=True)
    file.write_text("".join(lines))
    formers.load(tmp_path / "m")  # spacing means nothing
    about = json.loads(file.read_text())
    file.write_text("".join(lines).replace('"LABEL_0"', '"bad"'))
    with pytest.raises(Error, match="is not as it was written") as error:
        formers.load(tmp_path / "m")
    assert 'take the line "seal" out of it' in str(error.value)
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if '"seal"' not in line))
    assert formers.load(tmp_path / "m").labels[0] == "bad"
    shard = next((tmp_path / "m").glob("*.safetensors"))
    flip_bit(shard, 8 * shard.stat().st_size - 3)
    with pytest.raises(Error, match="is not the file that was saved") as error:
        formers.load(tmp_path / "m")
    assert 'take "files" and "seal" out of formers.json' in str(error.value)
    file.write_text(json.dumps({key: value for key, value in about.items() if key not in ("files", "seal")}))
    formers.load(tmp_path / "m")  # as one that was saved before there were checksums


def test_copies_carry_checksums_of_their_own(delivered_folder, tmp_path):
    """Exported, imported again and saved; the values are the same all the way."""
    former = formers.load(delivered_folder)
    formers.export(former, tmp_path / "hf")
    formers.save(formers.load(tmp_path / "hf"), tmp_path / "back")
    again = formers.load(tmp_path / "back")
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(again.hidden(ids), former.hidden(ids))
    listed = json.loads((tmp_path / "back" / "formers.json").read_text())["files"]
    assert {"model.safetensors", "tokenizer.json", "huggingface/config.json"} <= set(listed)


@pytest.mark.parametrize(
    "names", ["x", {"../../etc/passwd": "0"}, {"/etc/passwd": "0"}, {"huggingface/../x": "0"}, {"a/b": "0"},
              {"no": "0"}, {"model.safetensors": 5}],
)  # fmt: skip
def test_names_that_lead_out_are_refused(names, delivered_folder, tmp_path):
    shutil.copytree(delivered_folder, tmp_path / "m")
    about = json.loads((tmp_path / "m" / "formers.json").read_text())
    about |= {"files": names}
    del about["seal"]
    (tmp_path / "m" / "formers.json").write_text(json.dumps(about))
    with pytest.raises(Error):
        formers.load(tmp_path / "m")
