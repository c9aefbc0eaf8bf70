"""Damaged stores: every flipped bit and every truncation is noticed, its place is named, and it can be skipped."""

from __future__ import annotations

import shutil
import warnings

import numpy as np
import pytest

import formers
from formers import Error, Store
from formers.data.preparation.pipeline import prepare
from formers.data.store import BLOCK_BYTES
from formers.registry import train_tokenizer


@pytest.fixture(scope="module")
def good_store(tmp_path_factory):
    """A store of several shards, sentences and units, and what it holds."""
    words = np.random.default_rng(0).integers(0, 500, (1500, 60))
    texts = [" ".join(f"w{w}" for w in row[: 10 + i % 50]) + f". And {i}." for i, row in enumerate(words)]
    folder = tmp_path_factory.mktemp("faults")
    (folder / "list.txt").write_text("w1 w2\n", encoding="utf-8")
    tokenizer = train_tokenizer("bpe", texts[:50], 300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("formers.data.preparation.pipeline.CHUNK_CHARACTERS", 50_000)
        store = formers.prepare(texts, tokenizer, folder / "s", shard=60_000, units=str(folder / "list.txt"))
    assert len(store.directory.part_metadata["shards"]) > 1
    return folder / "s", read_everything(store), texts


def read_everything(store):
    """All that a store says, read the way a run reads it."""
    spans = store.starts[:-1], store.starts[1:]
    ids, first, units = store.read_spans(*spans)
    return ids.tobytes(), first.tobytes(), units.tobytes(), store.starts.tobytes(), store.tokenizer.json_text


def damage_store(path, random, truncate):
    """One bit flipped, or the end cut off, in any file of the store; the offset."""
    files = sorted(p for p in path.iterdir() if p.is_file())
    sizes = np.array([p.stat().st_size for p in files])
    file = files[random.choice(len(files), p=None if random.random() < 0.5 else sizes / sizes.sum())]
    data = bytearray(file.read_bytes())
    at = int(random.integers(len(data)))
    if truncate:
        del data[at:]
    else:
        data[at] ^= 1 << int(random.integers(8))
    file.write_bytes(data)
    return file, at


def is_block_named(message, file, at):
    """Does a message name the file and the block?"""
    offset = int(message.split("offset ")[1].split()[0].replace(",", ""))
    return file in message and offset <= at < offset + BLOCK_BYTES


@pytest.mark.parametrize("truncate", [False, True], ids=["flips", "truncations"])
def test_no_damage_is_silent(good_store, tmp_path, truncate, full):
    path, whole, _ = good_store
    random, silent, harmless, count = np.random.default_rng(7 + truncate), [], 0, 1000 if full else 60
    for number in range(count):
        copy = tmp_path / str(number)
        shutil.copytree(path, copy)
        file, at = damage_store(copy, random, truncate)
        try:
            store = Store.open(copy)
            if read_everything(store) == whole:
                harmless += 1  # what was hit is not needed to read: a shard's own tables, or spaces in a JSON file
                if file.suffix == ".bin":
                    store.verify()
                    silent.append((file.name, at))
            else:
                silent.append((file.name, at))
        except Error as error:
            if file.suffix == ".bin" and not is_block_named(str(error), file.name, at):
                silent.append((file.name, at, str(error)))
        shutil.rmtree(copy)
    print(f"{count} {'truncations' if truncate else 'flips'}: {len(silent)} silent, {harmless} in what is not read")
    assert not silent


def test_check_reads_everything(good_store, tmp_path):
    path, whole, _ = good_store
    shutil.copytree(path, tmp_path / "s")
    store = Store.open(tmp_path / "s")
    shard = store.directory.part_metadata["shards"][0]
    file = tmp_path / "s" / shard["name"]
    data = bytearray(file.read_bytes())
    at = shard["arrays"]["starts"]["at"] + 5
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(
        Error, match=f"{shard['name']}: the block at offset {at // BLOCK_BYTES * BLOCK_BYTES:,} is not as it was"
    ):
        Store.open(tmp_path / "s").verify()
    assert read_everything(Store.open(tmp_path / "s", verify=False)) == whole


@pytest.mark.parametrize("kind", ["flip", "truncation", "missing"])
def test_skip_leaves_out_the_damaged_documents_only(good_store, tmp_path, kind):
    path, _, texts = good_store
    clean = Store.open(path)
    shutil.copytree(path, tmp_path / "s")
    shard = clean.directory.part_metadata["shards"][1]
    base = clean.directory.part_metadata["shards"][0]["arrays"]["tokens"]["count"]
    file = tmp_path / "s" / shard["name"]
    data = bytearray(file.read_bytes())
    at = 20_001
    if kind == "flip":
        data[at] ^= 4
        low, high = 0, BLOCK_BYTES
        file.write_bytes(data)
    elif kind == "truncation":
        at = shard["arrays"]["units"]["at"] + 100
        low, high = at // BLOCK_BYTES * BLOCK_BYTES, len(data)
        file.write_bytes(data[:at])
    else:
        low, high = 0, len(data)
        file.unlink()
    with pytest.raises(Error, match=shard["name"]):
        read_everything(Store.open(tmp_path / "s"))
    with pytest.warns(UserWarning, match="damaged documents are left out"):
        left = Store.open(tmp_path / "s", damaged="skip")
    arrays = shard["arrays"]

    def hit(a, b):
        """Does a document of this shard lie in the damaged bytes, with its tokens or its units?"""
        tokens = arrays["tokens"]["at"] + 2 * a, arrays["tokens"]["at"] + 2 * b
        units = arrays["units"]["at"] + a, arrays["units"]["at"] + b
        return any(x < high and y > low for x, y in (tokens, units))

    inside = [base <= s < base + arrays["tokens"]["count"] for s in clean.starts[:-1]]
    spans = list(zip(clean.starts[:-1], clean.starts[1:], strict=True))
    kept = [i for i, (a, b) in enumerate(spans) if not (inside[i] and hit(a - base, b - base))]
    assert 0 < left.skipped_documents == len(texts) - len(kept)
    expected = clean.read_spans(clean.starts[:-1][kept], clean.starts[1:][kept])
    got = left.read_spans(left.starts[:-1], left.starts[1:])
    assert all(np.array_equal(x, y) for x, y in zip(expected, got, strict=True))
    assert left.content_hash != clean.content_hash
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Store.open(path, damaged="skip").skipped_documents == 0


def test_a_full_disk_leaves_finished_shards(tmp_path, monkeypatch):
    texts = [f"text number {i} of many" for i in range(2000)]
    tokenizer = train_tokenizer("bpe", texts[:20], 280)
    monkeypatch.setattr("formers.data.preparation.pipeline.CHUNK_CHARACTERS", 4000)
    import formers.data.store as shards

    real, written = shards.ArrayFileWriter.write_bytes, [0]

    def write(self, data):
        written[0] += len(data)
        if written[0] > 30_000:
            raise OSError(28, "No space left on device")
        real(self, data)

    monkeypatch.setattr(shards.ArrayFileWriter, "write_bytes", write)
    with pytest.raises((Error, OSError), match="[Nn]o space left"):
        prepare(texts, tokenizer, tmp_path / "s", shard=3000)
    assert not list((tmp_path / "s").glob("*.tmp"))
    done = len(list((tmp_path / "s").glob("done-*")))
    assert done
    monkeypatch.setattr(shards.ArrayFileWriter, "write_bytes", real)
    assert len(prepare(texts, tokenizer, tmp_path / "s", shard=3000).starts) - 1 == len(texts)
