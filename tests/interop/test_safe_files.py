"""Reading and writing untrusted files: names, sizes, headers, weights bit for bit, and writing all or nothing."""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

import formers
from formers import Error, atomic_files
from formers.interop import safe_files
from formers.interop.safe_files import Weights, write_weights
from formers.registry import train_tokenizer
from formers.text.tokenizer import Tokenizer

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip


def make_every_dtype(*, empty: bool = True) -> dict[str, torch.Tensor]:
    """A tensor of every type that we read, of random bits: no value is rounded or normalised on the way."""
    tensors = {}
    for dtype in DTYPES:
        bits = torch.randint(0, 2 if dtype == torch.bool else 256, (3, 5 * dtype.itemsize), dtype=torch.uint8)
        tensors[f"a.{dtype}"] = bits.view(dtype)
    shapes = {"scalar": (), "deep": (1, 2, 1, 3, 1, 1, 2, 1)} | ({"empty": (0, 4)} if empty else {})
    return tensors | {name: torch.randn(shape) for name, shape in shapes.items()}


def has_equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """The same bits, not a number included."""
    raw = one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8)
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*raw)


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], shard: int) -> None:
    groups = ({name: value} for name, value in tensors.items())
    write_weights(folder, groups, [t.nbytes for t in tensors.values()], shard)


# --- folders and names


def test_folder(tmp_path):
    with pytest.raises(Error, match="no such directory.*hub:owner/name"):
        safe_files.find_model_folder(tmp_path / "nothing")
    with pytest.raises(Error, match="no such directory. The model that comes with formers is formers/word-vectors"):
        safe_files.find_model_folder("word-vectors")
    with pytest.raises(Error, match="the directory is empty"):
        safe_files.find_model_folder(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    for name in ("run", "run/model"):
        with pytest.raises(Error, match="this run has made no model yet. Bring it to its end with --resume"):
            safe_files.find_model_folder(tmp_path / name)
    (tmp_path / "file").write_text("x")
    with pytest.raises(Error, match="not a directory"):
        safe_files.find_model_folder(tmp_path / "file")
    with pytest.raises(Error, match="cannot be read"):
        safe_files.find_model_folder("x" * 5000)
    assert safe_files.find_model_folder(str(tmp_path)) == tmp_path


def test_a_folder_that_may_not_be_listed(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(Error, match=r"cannot be read \(Permission denied\). Check the path and its permissions"):
        safe_files.find_model_folder(tmp_path)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/a", "../a", "a/..", "a\\b", "..\\a", "a\0", "x" * 256, "a/", "//"]
)
def test_member_takes_base_names_only(tmp_path, name):
    with pytest.raises(Error, match="is not the name of a file in this folder") as caught:
        safe_files.resolve_file(tmp_path, name)
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


def test_member_and_links(tmp_path):
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    (home / "file").write_text("x")
    (other / "file").write_text("x")
    (home / "inner").symlink_to("file")
    (home / "outer").symlink_to(other / "file")
    (home / "chain").symlink_to("outer")
    (home / "loop").symlink_to("loop")
    (tmp_path / "homes").mkdir()
    (home / "sibling").symlink_to("../homes")  # a name that begins like the folder's is not inside it
    (home / "dangling").symlink_to("nothing")
    assert safe_files.read_bytes(home, "inner") == b"x"
    for name in ("outer", "chain", "sibling"):
        with pytest.raises(Error, match=f"{name} is a link that leads out of the folder"):
            safe_files.resolve_file(home, name)
    with pytest.raises(Error, match="cannot be read|leads out"):
        safe_files.resolve_file(home, "loop")
    assert not safe_files.has_file(home, "dangling")
    (tmp_path / "alias").symlink_to("home")
    assert safe_files.read_bytes(tmp_path / "alias", "inner") == b"x"  # the folder itself may be reached by a link


def test_read_bytes(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"12345")
    assert safe_files.read_bytes(tmp_path, "file", 5) == b"12345"
    with pytest.raises(Error, match="file has 5 bytes, more than 4"):
        safe_files.read_bytes(tmp_path, "file", 4)
    with pytest.raises(Error, match="other is missing"):
        safe_files.read_bytes(tmp_path, "other")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Error, match="pipe is missing"):  # and nobody waits for a writer
        safe_files.read_bytes(tmp_path, "pipe")

    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(Error, match=r"file: cannot be read \(Permission denied\)"):
        safe_files.read_bytes(tmp_path, "file")


# --- headers and indices


def file_of(path: Path, table: object, data: bytes = b"") -> Path:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def make_header(shape, span, dtype="F32"):
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": span}}


def test_header_of_an_honest_file(tmp_path):
    tensors = make_every_dtype()
    save_file(tensors, tmp_path / "m", metadata={"format": "pt"})
    assert safe_files.read_tensor_shapes(tmp_path / "m") == {name: tuple(t.shape) for name, t in tensors.items()}
    assert safe_files.read_tensor_shapes(file_of(tmp_path / "none", {})) == {}
    assert safe_files.read_tensor_shapes(file_of(tmp_path / "spaces", b"{}      ")) == {}


@pytest.mark.parametrize(
    ("table", "data", "said"),
    [
        (b"", b"", "not a safetensors file: a header of 0 bytes"),
        (b"x" * 10, b"", "not valid JSON"),
        (b'"xx"', b"", "a JSON object is expected"),
        (b"\xff\xff", b"", "not UTF-8"),
        (make_header([1], [0, 4]), b"123", "4 bytes of data are declared, 3 are there"),
        (make_header([1], [0, 4]), b"12345", "4 bytes of data are declared, 5 are there"),
        (make_header([2], [0, 4]), b"1234", r"tensor 'x' of shape \(2,\) does not have 4 bytes"),
        (make_header([1], [4, 0]), b"1234", "does not have -4 bytes"),
        (make_header([1], [1, 5]), b"12345", "a gap or an overlap at byte 1"),
        (make_header([True], [0, 4]), b"1234", "tensor 'x' is described by"),
        (make_header([1.0], [0, 4]), b"1234", "tensor 'x' is described by"),
        (make_header("1", [0, 4]), b"1234", "tensor 'x' is described by"),
        (make_header([1], [0, 4, 4]), b"1234", "tensor 'x' is described by"),
        (make_header([1], [0]), b"1234", "tensor 'x' is described by"),
        (make_header([2**63, 0], [0, 0]), b"", "tensor 'x' is described by"),
        (make_header([1] * 9, [0, 4]), b"1234", "tensor 'x' is described by"),
        (make_header([1], [0, 4], "F4"), b"1234", "tensor 'x' is of type 'F4', which formers does not read"),
        (make_header([1], [0, 4], ["F32"]), b"1234", "tensor 'x' is described by"),
        ({"x": None}, b"", "tensor 'x' is described by None"),
        ({"x": {}}, b"", "tensor 'x' is described by"),
        (make_header([1], [0, 4]) | {"y": make_header([1], [0, 4])["x"]}, b"1234", "a gap or an overlap at byte 0"),
        (make_header([1], [0, 4]) | {"y": make_header([1], [2, 6])["x"]}, b"123456", "a gap or an overlap at byte 2"),
    ],
)
def test_headers_that_lie(tmp_path, table, data, said):
    path = file_of(tmp_path / "m.safetensors", table, data)
    with pytest.raises(Error, match=said) as caught:
        safe_files.read_tensor_shapes(path)
    assert str(path) in str(caught.value)


def test_a_header_that_cannot_be_read(tmp_path):
    with pytest.raises(Error, match="the file is missing"):
        safe_files.read_tensor_shapes(tmp_path / "m")
    (tmp_path / "short").write_bytes(b"1234567")
    with pytest.raises(Error, match="not a safetensors file: a header of 0 bytes in a file of 7"):
        safe_files.read_tensor_shapes(tmp_path / "short")


def test_a_file_that_may_not_be_opened(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    save_file({"x": torch.zeros(1)}, tmp_path / "m")
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(Error, match=r"m: cannot be read \(Permission denied\)"):
        safe_files.read_tensor_shapes(tmp_path / "m")


def test_the_bounds_are_where_they_are_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_files, "MAX_TENSORS", 3)
    monkeypatch.setattr(safe_files, "MAX_HEADER_BYTES", 300)
    save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, tmp_path / "two")
    save_file({"a": torch.zeros(1), "b": torch.zeros(1), "c": torch.zeros(1)}, tmp_path / "three")
    save_file({"a" * 300: torch.zeros(1)}, tmp_path / "long")
    assert len(safe_files.read_tensor_shapes(tmp_path / "two")) == 2
    with pytest.raises(Error, match="3 tensors are more than a model of these families has"):
        safe_files.read_tensor_shapes(tmp_path / "three")
    with pytest.raises(Error, match="not a safetensors file: a header of"):
        safe_files.read_tensor_shapes(tmp_path / "long")


@pytest.mark.parametrize(
    "table", [{}, {"weight_map": {}}, {"weight_map": []}, {"weight_map": {"x": 1}}, {"weight_map": {"x": None}}]
)
def test_an_index_without_names(tmp_path, table):
    (tmp_path / "index").write_text(json.dumps(table))
    with pytest.raises(Error, match="weight_map is not a table of file names") as caught:
        safe_files.read_shard_index(tmp_path, "index")
    assert str(tmp_path / "index") in str(caught.value)


def test_shards_groups_by_file(tmp_path):
    (tmp_path / "index").write_text(json.dumps({"weight_map": {"x": "b", "y": "a", "z": "b"}}))
    assert safe_files.read_shard_index(tmp_path, "index") == {"a": {"y"}, "b": {"x", "z"}}
    assert list(safe_files.read_shard_index(tmp_path, "index")) == ["a", "b"]


# --- weights


@pytest.mark.parametrize(("shard", "files"), [(10**9, 1), (100, 6), (1, 12)])
def test_weights_come_back_bit_for_bit(tmp_path, shard, files):
    tensors = make_every_dtype(empty=False)
    write_shards(tmp_path, tensors, shard)
    found = sorted(p.name for p in tmp_path.glob("*.safetensors"))
    assert len(found) == files
    index = tmp_path / "model.safetensors.index.json"
    assert index.exists() == (files > 1)
    if files > 1:
        assert found[0] == f"model-00001-of-{files:05d}.safetensors"
        about = json.loads(index.read_text())
        assert about["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
        assert set(about["weight_map"]) == set(tensors)
    weights = Weights(tmp_path)
    assert len(weights) == len(tensors)
    assert set(weights) == set(tensors)
    assert "nothing" not in weights
    for name, value in tensors.items():
        assert weights.shapes[name] == tuple(value.shape)
        assert has_equal_bits(weights.get_tensor(name), value), name


def test_empty_tensors_and_views(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "empty": torch.zeros(0, 4),
        "turned": base.T,
        "row": base[1].clone(),
        "parameter": torch.nn.Parameter(base),
    }
    write_shards(tmp_path, tensors, 10**9)
    weights = Weights(tmp_path)
    assert all(has_equal_bits(weights.get_tensor(name), value.detach()) for name, value in tensors.items())


def test_equal(tmp_path):
    x = torch.randn(3)
    save_file({"a": x, "b": x.clone(), "c": x + 1, "d": x[None].clone()}, tmp_path / "model.safetensors")
    weights = Weights(tmp_path)
    assert weights.is_equal("a", "b")
    assert not weights.is_equal("a", "c")
    assert not weights.is_equal("a", "d")


def test_the_single_file_goes_before_an_index(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text("broken")
    assert list(Weights(tmp_path)) == ["a"]


def test_a_file_that_only_the_library_refuses(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise SafetensorError("first line\nsecond line")

    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    monkeypatch.setattr("formers.interop.safe_files.safe_open", refuse)
    with pytest.raises(Error, match=r"not a valid safetensors file \(first line second line\). Fetch it again"):
        Weights(tmp_path)


# --- writing


def test_staged_appears_when_all_is_written(tmp_path):
    mask = os.umask(0o027)
    try:
        with atomic_files.stage_directory(tmp_path / "a" / "b" / "out") as folder:
            (folder / "file").write_text("x")
            (folder / "inner").mkdir()
            (folder / "inner" / "file").write_text("y")
            assert not (tmp_path / "a" / "b" / "out").exists()
            assert folder.parent == tmp_path / "a" / "b"  # the same disk: a rename, not a copy
    finally:
        os.umask(mask)
    out = tmp_path / "a" / "b" / "out"
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    assert sorted(p.name for p in out.rglob("*")) == ["file", "file", "inner"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o750


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, MemoryError, GeneratorExit])
def test_staged_leaves_nothing_when_it_is_left_early(tmp_path, error):
    with pytest.raises(error), atomic_files.stage_directory(tmp_path / "a" / "b" / "out") as folder:  # noqa: PT012
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("x")
        raise error
    assert not list(tmp_path.iterdir())


def test_staged_keeps_what_was_there_before(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_text("x")
    with pytest.raises(RuntimeError), atomic_files.stage_directory(tmp_path / "old" / "new" / "out") as folder:  # noqa: PT012
        (folder / "file").write_text("x")
        raise RuntimeError
    assert [p.name for p in tmp_path.rglob("*")] == ["old", "file"]


def test_staged_into_an_empty_folder_and_not_into_another(tmp_path):
    (tmp_path / "empty").mkdir()
    with atomic_files.stage_directory(tmp_path / "empty") as folder:
        (folder / "file").write_text("x")
    assert (tmp_path / "empty" / "file").read_text() == "x"
    for taken in ("empty", "empty/file"):
        with pytest.raises(Error, match="exists already. Choose another name, or overwrite it"):
            atomic_files.stage_directory(tmp_path / taken).__enter__()
    with pytest.raises(Error, match=r"cannot write here \((Not a directory|File exists)\). Choose another place"):
        atomic_files.stage_directory(tmp_path / "empty" / "file" / "out").__enter__()
    assert [p.name for p in tmp_path.rglob("*")] == ["empty", "file"]


def test_a_race_for_the_name_is_lost_without_harm(tmp_path):
    lost = pytest.raises(Error, match=r"out: writing failed \(.*\). Something else was written there")
    with lost, atomic_files.stage_directory(tmp_path / "out") as folder:
        (folder / "mine").write_text("x")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").write_text("y")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["out", "theirs"]


@pytest.mark.parametrize("step", ["mkdir", "mkdtemp"])
def test_a_place_where_one_may_not_write(tmp_path, monkeypatch, step):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(*((Path, "mkdir") if step == "mkdir" else (atomic_files.tempfile, "mkdtemp")), refuse)
    with pytest.raises(Error, match=r"out: cannot write here \(Permission denied\). Choose another place"):
        atomic_files.stage_directory(tmp_path / "new" / "out").__enter__()
    assert not list(tmp_path.iterdir())


def build_model() -> formers.Former:
    former = formers.build("gpt2", vocab=11, context=8, dim=8, layers=1, heads=2, bos=None, eos=None)
    former.tokenizer = train_tokenizer("bpe", ["a b"], 270)
    former.source_files = {"generation_config.json": b"{}"}
    return former


STEPS = ("save_file", "write_json", "sync", "rename", "write_bytes", "tokenizer")


@pytest.mark.parametrize("verb", ["save", "export"])
@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk_at_every_step(tmp_path, monkeypatch, verb, step):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    place, name = {
        "save_file": (safetensors.torch, "save_file"), "write_json": (safe_files, "write_json"),
        "sync": (atomic_files.os, "fsync"),
        "rename": (atomic_files.os, "rename"), "write_bytes": (Path, "write_bytes"),
        "tokenizer": (Tokenizer, "save"),
    }[step]  # fmt: skip
    former = build_model()
    with monkeypatch.context() as patch, pytest.raises(Error) as caught:  # noqa: PT012
        patch.setattr(place, name, full)
        getattr(formers, verb)(former, tmp_path / "new" / "out")
    said = str(caught.value)
    assert said == f"{tmp_path / 'new' / 'out'}: writing failed (No space left on device). Make room and try again"
    assert not list(tmp_path.iterdir())
    getattr(formers, verb)(former, tmp_path / "new" / "out")  # and all is well when there is room
    assert formers.load(tmp_path / "new" / "out").tokenizer is not None


def test_a_full_disk_as_the_rust_library_tells_it(tmp_path, monkeypatch):
    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left\non device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(Error, match=r"writing failed \(.*No space left on device \(os error 28\)\). Is the disk full"):
        formers.save(build_model(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    order = []
    sync, rename = atomic_files.sync_to_disk, os.rename
    monkeypatch.setattr(atomic_files, "sync_to_disk", lambda path: (order.append(Path(path).name), sync(path)))
    monkeypatch.setattr(atomic_files.os, "rename", lambda *a: (order.append("rename"), rename(*a)))
    with atomic_files.stage_directory(tmp_path / "out") as folder:
        (folder / "file").write_text("x")
    assert order == ["file", folder.name, "rename", tmp_path.name]


def test_write_json_is_read_back(tmp_path):
    value = {"한국어": ["a", 1, 2.5, None, True], "x": {}}
    safe_files.write_json(tmp_path / "x.json", value)
    assert "한국어" in (tmp_path / "x.json").read_text(encoding="utf-8")
    assert safe_files.read_json(tmp_path, "x.json") == value
