"""Row 15: every known class of attack on a reader of checkpoints. Each is refused by one line that names the culprit;
nothing is executed, nothing written, and no safetensors file that fails makes formers turn to a pickle.

A process that has formers ready forks for each attack: the fork has a memory limit, an alarm and the audit hook of
row 14. A payload that ran would leave a marker behind.
"""

from __future__ import annotations

import base64
import builtins
import io
import json
import os
import pickle
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load

import formers
from formers.interop import hub, safe_files, sandbox  # noqa: F401
from formers.registry import train_tokenizer
from tests.faults.audit_watch import AuditWatch

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "parity" / "golden"
SECONDS, MEMORY, GROWTH = 10, 2**30, 200 * 2**20  # of one case: time, address space, memory in use
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
BIN, BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
MARKER = "marker"  # what a payload leaves behind when it runs; payloads are run in the folder of the test


@dataclass
class Attack:
    """How a folder becomes hostile, what must be said about it, and the name that must be said with it."""

    make: Callable[[Path], object]
    said: str
    culprit: str
    base: str = "GPT2LMHeadModel-0"
    how: dict = field(default_factory=dict)
    bypass: bool = False  # weights_only is switched off in the converter
    fresh: bool = True  # the converter is a new process, as in earnest; else a fork, which has torch ready


ATTACKS: dict[str, Attack] = {}


def add_attack(name, make, said, culprit, **more):
    """Note an attack; what is no field of it is an argument of formers.load."""
    fields = {key: more.pop(key) for key in ("base", "bypass", "fresh") if key in more}
    assert name not in ATTACKS
    ATTACKS[name] = Attack(make, said, culprit, how=more, **fields)


# --- payloads


class Runs:
    """Unpickled without care, calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def make_touching_pickle(folder: Path) -> Runs:
    return Runs(os.system, f"touch {folder.parent / MARKER}")


def make_evaluating_pickle(folder: Path) -> Runs:
    return Runs(builtins.eval, f"open({str(folder.parent / MARKER)!r}, 'w').close()")


def save_to_bytes(state, **how) -> bytes:
    data = io.BytesIO()
    torch.save(state, data, **how)
    return data.getvalue()


def replace_by_pickle(content: Callable[[Path, dict], bytes]) -> Callable[[Path], None]:
    """The weights as a pickle only: `content` makes it out of the folder and the honest tensors."""

    def make(folder: Path) -> None:
        state = load((folder / WEIGHTS).read_bytes())
        (folder / WEIGHTS).unlink()
        (folder / BIN).write_bytes(content(folder, state))

    return make


def make_tar(folder: Path, state: dict) -> bytes:
    """torch's first format, which weights_only once let through (CVE-2025-32434)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as file:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            inside = pickle.dumps(make_touching_pickle(folder), protocol=2)
            about = tarfile.TarInfo(name)
            about.size = len(inside)
            file.addfile(about, io.BytesIO(inside))
    return data.getvalue()


def make_torchscript(folder: Path, state: dict) -> bytes:
    """A TorchScript archive, another way around weights_only."""
    return add_zip_members(
        save_to_bytes(state), {"constants.pkl": pickle.dumps(make_touching_pickle(folder), protocol=2)}
    )


def make_double_member(folder: Path, state: dict) -> bytes:
    """A zip with two members of one name, an honest one and another: readers differ in which they take."""
    return add_zip_members(save_to_bytes(state), {"data.pkl": pickle.dumps(make_touching_pickle(folder), protocol=2)})


def add_zip_members(data: bytes, more: dict[str, bytes], method=zipfile.ZIP_STORED) -> bytes:
    """A torch.save file with more members, perhaps compressed."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as old,
        zipfile.ZipFile(out, "w", method) as new,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # Python minds the same name twice
        top = old.namelist()[0].split("/")[0]
        for name in old.namelist():
            new.writestr(name, old.read(name))
        for name, inside in more.items():
            new.writestr(f"{top}/{name}", inside)
    return out.getvalue()


def make_bomb(folder: Path, state: dict) -> bytes:
    """64 MB of zeros in some kilobytes."""
    return add_zip_members(save_to_bytes(state | {"x": torch.zeros(2**24)}), {}, zipfile.ZIP_DEFLATED)


REFUSED = "the pickle was refused "
ASKED = REFUSED + r"\(it asks for "
add_attack(
    "a pickle, unasked",
    replace_by_pickle(lambda f, s: save_to_bytes(s | {"x": make_touching_pickle(f)})),
    f"no {WEIGHTS} and no .*--pickle",
    "/model",
)
add_attack(
    "an honest pickle, unasked",
    replace_by_pickle(lambda f, s: save_to_bytes(s)),
    f"no {WEIGHTS} and no .*--pickle",
    "/model",
)
with_word = {
    "os.system": (lambda f, s: save_to_bytes(s | {"x": make_touching_pickle(f)}), ASKED + "posix.system"),
    "eval in the older format": (
        lambda f, s: save_to_bytes(s | {"x": make_evaluating_pickle(f)}, _use_new_zipfile_serialization=False),
        ASKED + "eval",
    ),
    "no torch file at all": (lambda f, s: pickle.dumps(make_touching_pickle(f), protocol=0), REFUSED),
    "a gadget of torch's own": (
        lambda f, s: save_to_bytes({"x": Runs(torch.storage._load_from_bytes, save_to_bytes(make_touching_pickle(f)))}),
        ASKED + "torch.storage._load_from_bytes",
    ),
    "the tar of torch 0.1": (make_tar, REFUSED),
    "a TorchScript archive": (make_torchscript, REFUSED + ".*TorchScript"),
    "two members of one name": (make_double_member, REFUSED),
    "a pickle before a zip": (
        lambda f, s: (
            save_to_bytes({"x": make_touching_pickle(f)}, _use_new_zipfile_serialization=False) + save_to_bytes(s)
        ),
        ASKED + "posix.system",
    ),
    "one number as a terabyte": (
        lambda f, s: save_to_bytes(s | {"x": torch.zeros(1).expand(10**12)}),
        REFUSED + r"\(its tensors claim 4,000,000,0..,... bytes, the file has",
    ),
    "a terabyte by an allowed function": (
        lambda f, s: save_to_bytes(s | {"x": Runs(bytearray, 10**12)}),
        "MemoryError",
    ),
    "a compressed terabyte": (make_bomb, REFUSED + r"\(its tensors claim 67,"),
    "an import by an allowed function": (
        lambda f, s: save_to_bytes(s | {"x": Runs(__import__("_codecs").encode, "x", "rot13")}),
        REFUSED + r"\(it tried import",
    ),
}
for name, (content, said) in with_word.items():
    fresh = name in ("os.system", "the tar of torch 0.1", "one number as a terabyte")
    add_attack(f"a pickle, asked for: {name}", replace_by_pickle(content), said, BIN, pickle=True, fresh=fresh)
add_attack(
    "a pickle, asked for, that gets around weights_only",
    replace_by_pickle(lambda f, s: save_to_bytes({"x": make_touching_pickle(f)})),
    REFUSED + r"\(it tried pickle.find_class",
    BIN,
    pickle=True,
    bypass=True,
)


# --- a safetensors file that is none, beside a pickle that would load


def disguise_file(content: Callable[[Path, dict], bytes]) -> Callable[[Path], None]:
    """Something else under the name of the safetensors file, and an honest pickle beside it."""

    def make(folder: Path) -> None:
        state = load((folder / WEIGHTS).read_bytes())
        (folder / WEIGHTS).write_bytes(content(folder, state))
        (folder / BIN).write_bytes(save_to_bytes(state))

    return make


for asked in (False, True):
    for name, content in {
        "a pickle": lambda f, s: pickle.dumps(make_touching_pickle(f)),
        "a torch.save": lambda f, s: save_to_bytes(s | {"x": make_touching_pickle(f)}),
        "nothing": lambda f, s: b"",
        "half a file": lambda f, s: (f / WEIGHTS).read_bytes()[:-1000],
    }.items():
        word = "asked for" if asked else "unasked"
        said = "not a safetensors file|bytes of data are declared"
        add_attack(
            f"{name} named {WEIGHTS}, a pickle beside it {word}", disguise_file(content), said, WEIGHTS, pickle=asked
        )


def make_own_directory(folder: Path) -> None:
    """A formers directory with a pickle instead of its weights."""
    former = formers.load(folder)
    shutil.rmtree(folder)
    formers.save(former, folder)
    replace_by_pickle(lambda f, s: save_to_bytes(s))(folder)


add_attack(
    "a formers directory with a pickle, asked for",
    make_own_directory,
    f"{WEIGHTS}: the file is missing",
    "/model",
    pickle=True,
)


# --- names that lead elsewhere


def write_shard_index(folder: Path, file: str = "part.safetensors", index: str = INDEX, **more) -> None:
    """The weights as one shard of this name in the index, whatever its real name is."""
    os.rename(folder / WEIGHTS, folder / "part.safetensors")
    with safe_open(folder / "part.safetensors", framework="pt") as opened:
        table = dict.fromkeys(opened.keys(), file)
    (folder / index).write_text(json.dumps({"weight_map": table} | more))


NOT_HERE = "is not the name of a file in this folder"
PATHS = {
    "../part.safetensors": NOT_HERE, "../../etc/passwd": NOT_HERE, "/etc/passwd": NOT_HERE, "a/../part": NOT_HERE,
    "..\\part.safetensors": NOT_HERE, "C:\\x": NOT_HERE, "..": NOT_HERE, ".": NOT_HERE, "": NOT_HERE,
    "part\0.safetensors": NOT_HERE, "x" * 300: NOT_HERE, "huggingface/part": NOT_HERE, "~/part": NOT_HERE,
}  # fmt: skip
for file, said in PATHS.items():
    add_attack(f"an index that names {file[:20]!r}", lambda f, file=file: write_shard_index(f, file), said, "/model")
add_attack(
    "an index of pickles that names ../x, asked for",
    lambda f: write_shard_index(f, "../x.bin", BIN_INDEX),
    NOT_HERE,
    "/model",
    pickle=True,
)
add_attack(
    "an index that lists no names",
    lambda f: write_shard_index(f, ["a"]),
    "weight_map is not a table of file names",
    INDEX,
)
for name in (
    "hub:../../x",
    "hub:../x",
    "hub:a/..",
    "hub:a/b@x/../../y",
    "hub:owner/name@../../y",
    "hub:/etc/passwd",
    "hub:a/b/../../c",
    "hub:a/b@/etc",
    "hub:..\\x",
):
    add_attack(f"the name {name}", lambda f, name=name: name, "is not the name of a model", name.replace("\\", "\\\\"))


# --- links and files that are none


def replace_by_link(name: str, target: str | None = None) -> Callable[[Path], None]:
    """One of the folder's files as a link: to itself moved out of the folder, or to something else."""

    def make(folder: Path) -> None:
        path = folder / name
        outside = folder.parent / "outside"
        outside.mkdir()
        if path.exists():
            shutil.move(path, outside / name)
        else:
            (outside / name).write_text("{}")
        path.symlink_to(outside / name if target is None else target)

    return make


OUT = "is a link that leads out of the folder"
beside = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "generation_config.json", "formers.json")
for name in (WEIGHTS, "config.json", *beside):
    add_attack(f"{name} as a link out of the folder", replace_by_link(name), f"{name} {OUT}", name)
add_attack("a link upwards", replace_by_link(WEIGHTS, "../outside/model.safetensors"), OUT, WEIGHTS)
add_attack("a link to /dev/zero", replace_by_link(WEIGHTS, "/dev/zero"), OUT, WEIGHTS)
add_attack("a link to /proc/self/mem", replace_by_link("config.json", "/proc/self/mem"), OUT, "config.json")
add_attack("a link to itself", replace_by_link("config.json", "config.json"), "cannot be read|leads out", "config.json")
add_attack(
    "a pickle as a link, asked for", lambda f: (replace_by_link(BIN)(f), (f / WEIGHTS).unlink()), OUT, BIN, pickle=True
)


def shard_of(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def make_folder(folder: Path) -> None:
        write_shard_index(folder, "shard.safetensors")
        make(folder / "shard.safetensors")

    return make_folder


add_attack("a shard that is /dev/zero", shard_of(lambda p: p.symlink_to("/dev/zero")), OUT, "shard.safetensors")
add_attack("a shard that is a pipe", shard_of(os.mkfifo), "the file is missing", "shard.safetensors")
add_attack("a shard that is a folder", shard_of(os.mkdir), "the file is missing", "shard.safetensors")


def link_in_a_cache(folder: Path) -> Path:
    """Laid out like the hub's cache, whose links to its blobs are fine; this one leads past them."""
    home = folder.parent / "models--a--b"
    (home / "blobs").mkdir(parents=True)
    (home / "snapshots").mkdir()
    shutil.move(folder / WEIGHTS, folder.parent / "elsewhere")
    (folder / WEIGHTS).symlink_to("../../blobs/../../elsewhere")
    return folder.rename(home / "snapshots" / "0123")


add_attack("a link past the blobs of a hub cache", link_in_a_cache, OUT, WEIGHTS)
for name, said in ((WEIGHTS, f"no {WEIGHTS}"), ("config.json", "neither formers.json nor config.json")):
    add_attack(f"{name} as a pipe", lambda f, n=name: ((f / n).unlink(), os.mkfifo(f / n)), said, "/model")


# --- headers that lie


def change_header(change: Callable[[dict, bytes], object]) -> Callable[[Path], None]:
    """The safetensors file with another header: `change` returns a new table, or the bytes of one, or None."""

    def make(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        table = json.loads(data[8 : 8 + length])
        table.pop("__metadata__", None)
        new = change(table, data[8 + length :])
        new = table if new is None else new
        text = new if isinstance(new, bytes) else json.dumps(new).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return make


def change_entry(**values) -> Callable[[Path], None]:
    return change_header(lambda table, _: table["transformer.wte.weight"].update(values))


def shift_offsets(by: int) -> Callable[[dict, bytes], None]:
    def change(table: dict, data: bytes) -> None:
        last = max(table.values(), key=lambda e: e["data_offsets"])
        last["data_offsets"] = [n + by for n in last["data_offsets"]]

    return change


def write_header_length(number: int, size: int = 0) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        with open(folder / WEIGHTS, "r+b") as file:
            file.write(struct.pack("<Q", number))
            file.truncate(max(size, (folder / WEIGHTS).stat().st_size))

    return make


def drop_last_tensor(table: dict, data: bytes) -> dict:
    """Leave the last tensor's bytes in the file and out of the header: room for something else."""
    del table[max(table, key=lambda name: table[name]["data_offsets"])]
    return table


def add_many_entries(table: dict, data: bytes) -> dict:
    nothing = {"dtype": "F32", "shape": [0], "data_offsets": [len(data), len(data)]}
    return table | {f"x{i}": nothing for i in range(100_000)}


def repeat_key(table: dict, data: bytes) -> bytes:
    text = json.dumps(table)
    return b'{"transformer.wte.weight": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, ' + text[1:].encode()


WTE = r"tensor 'transformer.wte.weight' "
SAID = "a header of .* bytes in a file of"
for name, make, said in (
    ("a shape larger than the file", change_entry(shape=[10**6, 10**6]), WTE + "of shape .* does not have"),
    ("a shape that overflows", change_entry(shape=[2**62, 2**62, 4]), WTE + "of shape .* does not have"),
    ("a shape that overflows to its size", change_entry(shape=[2**63, 2]), WTE + "is described by"),
    ("a negative shape", change_entry(shape=[-1, -1]), WTE + "is described by"),
    ("a fractional shape", change_entry(shape=[1.5, 2]), WTE + "is described by"),
    ("a shape of a million axes", change_entry(shape=[1] * 10**6), WTE + "is described by"),
    ("offsets beyond the file", change_entry(data_offsets=[10**15, 10**15 + 4]), WTE + "of shape .* does not have"),
    ("offsets backwards", change_entry(data_offsets=[100, 0]), WTE + "of shape .* does not have -100"),
    ("offsets that are words", change_entry(data_offsets="ab"), WTE + "is described by"),
    ("a type that is none", change_entry(dtype="PICKLE"), WTE + "is of type 'PICKLE'"),
    ("a tensor that is a number", change_header(lambda t, _: t | {"x": 7}), "tensor 'x' is described by 7"),
    ("tensors that overlap", change_header(shift_offsets(-4)), "a gap or an overlap at byte"),
    ("tensors with a gap", change_header(shift_offsets(4)), "a gap or an overlap at byte"),
    ("bytes that no tensor owns", change_header(drop_last_tensor), "bytes of data are declared, .* are there"),
    ("a tensor twice", change_header(repeat_key), "key 'transformer.wte.weight' is there twice"),
    (
        "a header of 100,000 tensors",
        change_header(add_many_entries),
        "tensors are more than a model of these families has",
    ),
    ("a header of 2**63 bytes", write_header_length(2**63), SAID),
    ("a header of 2**64 - 1 bytes", write_header_length(2**64 - 1), SAID),
    ("a header of 100 MB", write_header_length(10**8 + 1, 2 * 10**8), "a header of 100,000,001 bytes"),
    ("a header of no bytes", write_header_length(0), SAID),
    ("a header that is a list", change_header(lambda t, _: b"[1]"), "a JSON object is expected"),
    (
        "a header 100,000 levels deep",
        change_header(lambda t, _: b'{"x":' * 10**5 + b"1" + b"}" * 10**5),
        "not valid JSON",
    ),
):
    add_attack(name, make, said, WEIGHTS)
add_attack(
    "an index of 100,000 tensors",
    lambda f: write_shard_index(f, weight_map={f"x{i}": "a" for i in range(10**5)}),
    "100,000 tensors are more than",
    INDEX,
)
add_attack(
    "a shard that holds less than the index says",
    lambda f: (write_shard_index(f), change_json_value(f, INDEX, ("weight_map", "x"), "part.safetensors")),
    "1 tensors of the index are in no shard, 'x' first",
    INDEX,
)
add_attack(
    "a shard that holds more than the index says",
    lambda f: write_shard_index(f, weight_map={"x": "part.safetensors"}),
    "is not in the index",
    "part.safetensors",
)


# --- configurations


def change_json_value(folder: Path, file: str, path: tuple[str, ...], value: object) -> None:
    """Change one value of a JSON file."""
    table = here = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    (folder / file).write_text(json.dumps(table))


def change_config(**values) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for key, value in values.items():
            change_json_value(folder, "config.json", (key,), value)
        code = f"open({str(folder.parent / MARKER)!r}, 'w').close()"
        for name in ("modeling_evil.py", "gpt2.py", "__init__.py", "tokenization_evil.py"):
            (folder / name).write_text(code)

    return make


CLASSES = {"AutoModel": "modeling_evil.Evil", "AutoConfig": "evil/repo--modeling_evil.Evil"}
for name, values, said in (
    ("code by auto_map", {"auto_map": CLASSES}, "unknown key 'auto_map'"),
    ("code by trust_remote_code", {"trust_remote_code": True}, "unknown key 'trust_remote_code'"),
    ("code by custom_pipelines", {"custom_pipelines": {"x": {"impl": "evil.Evil"}}}, "unknown key 'custom_pipelines'"),
    ("code by _target_", {"_target_": "os.system"}, "unknown key '_target_'"),
    ("a class by name", {"architectures": ["os.system"]}, "'os.system' is not a class of gpt2"),
    ("a module by name", {"model_type": "modeling_evil"}, "unknown family 'modeling_evil'"),
    ("a module by path", {"model_type": "../../evil"}, "unknown family '../../evil'"),
    ("a function by name", {"activation_function": "__import__('os').system"}, "activation_function: value "),
    ("a vocabulary of 10**12", {"vocab_size": 10**12}, "vocab must be at most"),
    ("a context of 10**15", {"n_positions": 10**15}, "context must be at most"),
    ("a width of 2**40", {"n_embd": 2**40}, "dim must be at most"),
    ("10**9 layers", {"n_layer": 10**9}, "layers must be at most 1,000"),
    ("999 layers", {"n_layer": 999}, "the config asks for 999 layers, and there are"),
    ("10**9 labels", {"id2label": None, "num_labels": 10**9}, "num_labels: 1000000000 is not a number of labels"),
    ("200,000 names of labels", {"id2label": {str(i): "x" for i in range(200_000)}}, "id2label: .*does not number"),
    ("a label numbered 10**12", {"id2label": {"1000000000000": "x"}}, "id2label: .*does not number"),
    ("a size of 5,000 digits", {"n_embd": int("9" * 4000)}, "setting 'dim' must be int"),
):
    add_attack(f"config: {name}", change_config(**values), said, "config.json")


def write_text_file(file: str, content: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)


for name, content, said in (
    ("a key twice", '{"model_type": "bert", "model_type": "gpt2"}', "key 'model_type' is there twice"),
    ("100,000 levels", "[" * 10**5 + "]" * 10**5, "not valid JSON"),
    ("40 levels", '{"x": ' + "[" * 40 + "]" * 40 + "}", "more than 32 levels"),
    ("no text", b"\xff\xfe\x00", "not UTF-8 text"),
    ("a pickle", pickle.dumps(Runs(os.system, f"touch {MARKER}")), "not UTF-8 text|not valid JSON"),
    ("half a character", '{"model_type": "\\ud800"}', "not valid JSON"),
    ("20 MB", '{"x": "' + "y" * 20 * 2**20 + '"}', "more than 16,777,216"),
):
    add_attack(f"config.json: {name}", write_text_file("config.json", content), said, "config.json")


def make_wide_config(folder: Path) -> None:
    """T5 with a width that its own tensors do not pay for: a classifier's dense layer would take its square."""
    shutil.rmtree(folder)
    with torch.device("meta"):
        former = formers.build("t5", vocab=4, dim=2**18, layers=1, heads=1, head_dim=1, ff=1)
    former.model.to_empty(device="cpu")
    for weight in former.model.parameters():  # what lies in fresh memory may be NaN, which is not exported
        torch.nn.init.zeros_(weight)
    formers.export(former, folder, dtype=torch.float16)


add_attack(
    "a head larger than the file",
    make_wide_config,
    "the new parts would have 68,7..,...,... numbers",
    "/model",
    head="classify",
)


# --- tokenizers


def write_tokenizer(**stages) -> Callable[[Path], object]:
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return write_text_file(
        "tokenizer.json", json.dumps({"version": "1.0", "added_tokens": [], "model": model} | empty | stages)
    )


def make_replace_step(text: str, pattern: dict) -> dict:
    return {"type": "Replace", "pattern": pattern, "content": text}


def make_template_step(single: list, special: dict) -> dict:
    pair = [{"Sequence": {"id": side, "type_id": 0}} for side in "AB"]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


A, X = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": 0}}
DOUBLE = make_replace_step("aa", {"String": "a"})
FAILED, GROWS, SLOW = "the tokenizer failed: ", "lets a text grow more than 1,000 times", "is too slow"
for name, stages, said in (
    ("a letter into gigabytes", {"normalizer": {"type": "Sequence", "normalizers": [DOUBLE] * 40}}, "normalizer"),
    ("gigabytes by few steps", {"normalizer": {"type": "Sequence", "normalizers": [
     make_replace_step("a" * 900, {"Regex": "."})] * 4}}, GROWS),
    ("gigabytes in disguise", {"normalizer": {"type": "Sequence", "normalizers": [DOUBLE | {"x": []}] * 15}}, GROWS),
    ("gigabytes by bytes", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel",
     "add_prefix_space": False, "trim_offsets": True, "use_regex": False}] * 19}}, GROWS),
    ("gigabytes when decoding", {"decoder": {"type": "Sequence", "decoders": [DOUBLE] * 15}}, GROWS),
    ("gigabytes by a table of characters", {"normalizer": {"type": "Precompiled", "precompiled_charsmap":
     base64.b64encode(struct.pack("<I", 1024) + bytes(1024) + b"x" * 10**5).decode()}}, GROWS),
    ("a table that claims gigabytes", {"normalizer": {"type": "Precompiled", "precompiled_charsmap":
     base64.b64encode(b"\xff\xff\xff\x7fabcd").decode()}}, "precompiled_charsmap is broken"),
    ("a template of 100,000 texts", {"post_processor": make_template_step([A] * 10**5, {})}, "a list of more than 100"),
    ("a token of 10,000 ids", {"post_processor": make_template_step([X, A], {"x": {"id": "x", "ids": [0] * 10**4,
     "tokens": ["a"] * 10**4}})}, "a list of more than 100"),
    ("a piece of 10,000,000 letters", {"model": {"type": "BPE", "vocab": {"x" * 10**7: 0}, "merges": []}},
     "a piece has more than 1,000 characters"),
    ("a panic when encoding", {"pre_tokenizer": {"type": "FixedLength", "length": 0}}, FAILED),
    ("a panic by a template", {"post_processor": make_template_step([X, A], {})}, FAILED),
    ("a panic when decoding", {"decoder": {"type": "Strip", "content": "a", "start": 10**18, "stop": 10**18}}, FAILED),
    ("a regular expression without end", {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"},
     "behavior": "Isolated", "invert": False}}, SLOW),
    ("a regular expression without measure", {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(" * 10**5 + ")"
     * 10**5}, "behavior": "Isolated", "invert": False}}, SLOW),
    ("a merge of nothing", {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a c"]}}, FAILED),
):  # fmt: skip
    add_attack(
        f"tokenizer: {name}", write_tokenizer(**stages), said, "tokenizer" if said == FAILED else "tokenizer.json"
    )
add_attack(
    "tokenizer: a key twice",
    write_text_file("tokenizer.json", '{"version": "1.0", "version": "1.0"}'),
    "is there twice",
    "tokenizer.json",
)
add_attack(
    "tokenizer: a pickle",
    write_text_file("tokenizer.json", b"\x80\x04cposix\nsystem\n"),
    "not UTF-8 text",
    "tokenizer.json",
)
add_attack(
    "tokenizer: 40 MB", write_text_file("tokenizer.json", " " * 40 * 2**20), "more than 33,554,432", "tokenizer.json"
)
add_attack(
    "tokenizer: the number 4,000,000,000",
    lambda f: (write_text_file("vocab.json", '{"a": 0, "b": 4000000000}')(f), write_text_file("merges.txt", "a b")(f)),
    "large gaps",
    "merges.txt",
)


# --- the process that is attacked


class Guard(AuditWatch):
    """The audit hook of row 14; the converter's process and its empty input are the only things more."""

    pickle = False

    def __call__(self, event: str, arguments: tuple) -> None:
        started = event == "subprocess.Popen" and arguments[0] == sys.executable
        if self.pickle and (started or event == "os.fork" or (event == "open" and arguments[0] == os.devnull)):
            return
        super().__call__(event, arguments)


def build_forking_run(guard: Guard) -> Callable:
    """What stands in for subprocess.run: the same program in a fork that has torch ready."""

    def run(command, *, cwd, **_):
        inlet, outlet = os.pipe()
        pid = os.fork()
        if pid == 0:
            guard.armed = False
            os.dup2(outlet, 2)
            os.chdir(cwd)
            try:
                exec(command[2])
            finally:
                os._exit(1)
        os.close(outlet)
        with open(inlet, errors="replace") as file:
            said = file.read()
        return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "", said)

    return run


def load_and_use(job: dict) -> dict:
    """Load what is hostile, and use it if it loads."""
    if not job["how"].get("pickle"):
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    if job["bypass"]:
        sandbox.CONVERTER_CODE = (
            "import torch; real = torch.load; "
            "torch.load = lambda *a, **k: real(*a, **(k | dict(weights_only=False))); " + sandbox.CONVERTER_CODE
        )
    guard = Guard(*map(Path, job["roots"]))
    guard.pickle = job["how"].get("pickle", False)
    if not job.get("fresh", True):
        subprocess.run = build_forking_run(guard)
    used, began, said = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic(), None
    signal.alarm(3 * SECONDS)
    guard.armed = True
    try:
        former = formers.load(job["where"], **job["how"])
        if former.tokenizer is not None:
            former.tokenizer.encode("a" * 30 + "!")
            former.tokenizer.decode([0, 1])
    except formers.Error as error:
        said = str(error)
    guard.armed = False
    return {
        "said": said,
        "seen": guard.seen,
        "seconds": time.monotonic() - began,
        "grown": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) * 1024,
    }


def write_within_limit(job: dict) -> dict:
    """Write where no file may be larger than so many bytes."""
    former = formers.load(job["where"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], job["limit"]))
    try:
        getattr(formers, job["verb"])(former, job["out"], shard=job["shard"])
    except formers.Error as error:
        return {"said": str(error)}
    return {"said": None}


def load_carelessly(job: dict) -> dict:
    """What others do."""
    torch.load(job["where"], weights_only=False)
    return {}


TASKS = {"attacked": load_and_use, "written": write_within_limit, "careless": load_carelessly}


def serve_jobs() -> None:
    """For each line of JSON, a fork that answers with another; one that dies is answered for."""
    for folder in (GOLDEN / "GPT2LMHeadModel-0", GOLDEN / "T5ForConditionalGeneration-0"):
        formers.load(folder)  # what is imported on first use is imported here
    train_tokenizer("bpe", ["a b"], 270).encode("a")
    for line in sys.stdin:
        job = json.loads(line)
        inlet, outlet = os.pipe()
        pid = os.fork()
        if pid == 0:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1), os.dup2(quiet, 2)  # a Rust panic has its say there
            try:
                answer = TASKS[job["task"]](job)
            except BaseException as error:
                answer = {"crash": f"{type(error).__name__}: {error}"}
            os.write(outlet, json.dumps(answer).encode())
            os._exit(0)
        os.close(outlet)
        with open(inlet, "rb") as file:
            answer = file.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(answer.decode() if code == 0 else json.dumps({"crash": f"exit {code}"}), flush=True)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """The process that forks: ask(task, ...) → what happened."""
    temporary = tmp_path_factory.mktemp("temporary")
    environment = os.environ | {"TMPDIR": str(temporary), "RUST_BACKTRACE": "0", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )

    def one(task: str, **job) -> dict:
        process.stdin.write(json.dumps({"task": task, "roots": [str(temporary), *job.pop("roots", [])], **job}) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert "crash" not in answer, answer["crash"]
        assert not list(temporary.glob("formers-*"))
        return answer

    yield one
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def list_tree(folder: Path) -> dict[str, tuple]:
    """Every file below a folder: its kind, size and time."""
    found = {p: p.lstat() for p in folder.rglob("*")}
    return {str(p): (stat.st_mode, stat.st_size, stat.st_mtime_ns) for p, stat in found.items()}


RESULTS: dict[str, bool] = {}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name, ask, tmp_path):
    RESULTS[name] = False
    case, folder = ATTACKS[name], tmp_path / "model"
    shutil.copytree(GOLDEN / case.base, folder, ignore=shutil.ignore_patterns("expected.*"))
    made = case.make(folder)
    where = made if isinstance(made, str | Path) else folder
    before = list_tree(tmp_path)
    job = {"where": str(where), "how": case.how, "bypass": case.bypass, "fresh": case.fresh}
    answer = ask("attacked", **job, roots=[str(tmp_path)])
    said = answer["said"]
    assert said is not None, "it loads"
    assert re.search(case.said, said), said
    assert case.culprit in said
    assert said.isprintable()
    assert len(said.replace(str(tmp_path), "")) < 1200
    assert answer["seen"] == []
    assert list_tree(tmp_path) == before
    assert answer["seconds"] < SECONDS
    assert answer["grown"] < GROWTH
    RESULTS[name] = True


def test_figure():
    """Run after all others, so that it can count them."""
    print(f"\nrow 15: {sum(RESULTS.values())}/{len(RESULTS)} refused ({len(ATTACKS)} known attacks)")
    assert all(RESULTS.values())


# --- what the figure rests on: the payloads work, and what is harmless loads


def test_honest_files_load(ask, tmp_path):
    for name in (ATTACKS["a header of 2**63 bytes"].base, "T5ForConditionalGeneration-0"):
        answer = ask("attacked", where=str(GOLDEN / name), how={}, bypass=False, roots=[str(GOLDEN)])
        assert answer["said"] is None
        assert answer["seen"] == []


@pytest.mark.parametrize("payload", [make_touching_pickle, make_evaluating_pickle])
def test_the_payloads_run_where_nobody_cares(payload, ask, tmp_path):
    (tmp_path / "file").write_bytes(save_to_bytes(payload(tmp_path / "model")))
    ask("careless", where=str(tmp_path / "file"))
    assert (tmp_path / MARKER).exists()


def test_a_hub_cache_has_links_of_its_own(ask, tmp_path):
    """snapshots/COMMIT/file → ../../blobs/HASH is how the client keeps its files."""
    folder = tmp_path / "models--a--b" / "snapshots" / "0123"
    (tmp_path / "models--a--b" / "blobs").mkdir(parents=True)
    folder.mkdir(parents=True)
    for number, name in enumerate(("config.json", WEIGHTS)):
        shutil.copy(GOLDEN / "GPT2LMHeadModel-0" / name, tmp_path / "models--a--b" / "blobs" / str(number))
        (folder / name).symlink_to(f"../../blobs/{number}")
    answer = ask("attacked", where=str(folder), how={}, bypass=False, roots=[str(tmp_path)])
    assert answer["said"] is None
    assert answer["seen"] == []


def test_templates_and_classes_of_a_tokenizer_are_words(ask, tmp_path):
    """Chat templates are programs to others (CVE-2024-34359); here they are text that survives an export."""
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "GPT2LMHeadModel-0", folder, ignore=shutil.ignore_patterns("expected.*"))
    write_tokenizer()(folder)
    change_config()(folder)
    evil = f"{{{{ cycler.__init__.__globals__.os.system('touch {tmp_path / MARKER}') }}}}"
    about = {
        "chat_template": evil,
        "auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]},
        "tokenizer_class": "Evil",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "chat_template.jinja").write_text(evil)
    before = list_tree(tmp_path)
    answer = ask("attacked", where=str(folder), how={}, bypass=False, roots=[str(tmp_path)])
    assert answer["said"] is None
    assert answer["seen"] == []
    assert list_tree(tmp_path) == before
    formers.export(formers.load(folder), tmp_path / "out")
    limit = {"model_max_length": 24}  # what it did not say
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text()) == about | limit


def test_ignoring_auto_map_does_not_run_it(ask, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "GPT2LMHeadModel-0", folder, ignore=shutil.ignore_patterns("expected.*"))
    change_config(auto_map=CLASSES)(folder)
    before = list_tree(tmp_path)
    answer = ask("attacked", where=str(folder), how={"ignore": ["auto_map"]}, bypass=False, roots=[str(tmp_path)])
    assert answer["said"] is None
    assert answer["seen"] == []
    assert list_tree(tmp_path) == before


@pytest.mark.parametrize("verb", ["save", "export"])
@pytest.mark.parametrize(
    ("limit", "shard"),
    [(0, 10**4), (100, 10**4), (1000, 10**4), (0, 10**9), (100, 10**9), (1000, 10**9), (20_000, 10**9)],
)
def test_writing_that_fails_midway_leaves_nothing(verb, shard, limit, ask, tmp_path):
    """The kernel refuses to let a file grow, as a full disk would; folders made on the way are gone as well."""
    where = GOLDEN / "GPT2LMHeadModel-0"
    answer = ask("written", where=str(where), verb=verb, out=str(tmp_path / "new" / "out"), limit=limit, shard=shard)
    assert re.search(r"out: writing failed \(.+\)\. Is the disk full\?", answer["said"]), answer["said"]
    assert answer["said"].isprintable()
    assert not list(tmp_path.iterdir())


def test_an_import_that_is_refused_leaves_nothing(tmp_path, capsys):
    from formers.cli.main import main

    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "GPT2LMHeadModel-0", folder, ignore=shutil.ignore_patterns("expected.*"))
    change_config(auto_map=CLASSES)(folder)
    before = list_tree(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["import", str(folder), str(tmp_path / "new" / "out")])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "unknown key 'auto_map'" in lines[0]
    assert list_tree(tmp_path) == before


if __name__ == "__main__":
    serve_jobs()
