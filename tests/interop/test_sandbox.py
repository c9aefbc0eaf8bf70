"""pytorch_model.bin: equal to the safetensors file bit for bit, on an explicit word only, by a process with limits.

The process is isolated by what the system offers everywhere, not by a sandbox of the kernel: limits on memory, time
and output, an environment without secrets, a folder of its own, and an audit hook under which Python code may read
the one file, write into that folder, and do nothing else.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save_file

import formers
from formers import Error
from formers.interop import safe_files, sandbox

GOLDEN = Path(__file__).parents[1] / "parity" / "golden"
NAME = "GPT2LMHeadModel-0"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go in this test."""
    where = tmp_path / "temporary"
    where.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(where))
    return where


def load_golden_tensors() -> dict[str, torch.Tensor]:
    return load((GOLDEN / NAME / "model.safetensors").read_bytes())


def write_pickles(folder: Path, files: dict[str, object], *, legacy: tuple[str, ...] = ()) -> Path:
    """A directory with the config of a golden one and its weights in these pickles."""
    folder.mkdir()
    shutil.copy(GOLDEN / NAME / "config.json", folder)
    for name, state in files.items():
        torch.save(state, folder / name, _use_new_zipfile_serialization=name not in legacy)
    return folder


def check_same_load(folder: Path, known: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """What loads from the pickle is what loads from a safetensors file of the same tensors."""
    plain = tmp_path / "plain"
    shutil.rmtree(plain, ignore_errors=True)
    plain.mkdir()
    shutil.copy(GOLDEN / NAME / "config.json", plain)
    save_file(known, plain / "model.safetensors")
    before = sorted((p.name, p.stat().st_mtime_ns) for p in folder.iterdir())
    one, other = formers.load(folder, pickle=True), formers.load(plain)
    assert one.dtype == other.dtype
    for (name, value), copy in zip(one.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        assert torch.equal(value, copy), name
    assert sorted((p.name, p.stat().st_mtime_ns) for p in folder.iterdir()) == before


def test_one_file_with_tied_tensors(tmp_path, temporary):
    """As old transformers wrote it: an OrderedDict, the head sharing the storage of the table, leftover buffers."""
    state = OrderedDict(load_golden_tensors())
    for name in list(state):
        state[name] = torch.nn.Parameter(state[name])
    state["lm_head.weight"] = state["transformer.wte.weight"]
    state["transformer.h.0.attn.bias"] = torch.ones(24, 24, dtype=torch.uint8).tril()[None, None]
    positions = state["transformer.wpe.weight"].detach()
    state["transformer.wpe.weight"] = torch.cat([positions, positions])[: len(positions)]  # half of a storage
    folder = write_pickles(tmp_path / "pickled", {"pytorch_model.bin": state})
    known = {k: v.detach().clone() for k, v in state.items() if k != "transformer.h.0.attn.bias"}
    check_same_load(folder, known, tmp_path)
    with pytest.raises(Error, match="no model.safetensors and no .*A pytorch_model.bin is read only if you say so"):
        formers.load(folder)
    assert not list(temporary.glob("formers-*"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_older_format_and_half_precision(tmp_path, temporary, dtype):
    known = {name: value.to(dtype) for name, value in load_golden_tensors().items()}
    wrapped = {"state_dict": known, "epoch": 3} if dtype == torch.float16 else known
    folder = write_pickles(tmp_path / "pickled", {"pytorch_model.bin": wrapped}, legacy=("pytorch_model.bin",))
    assert (folder / "pytorch_model.bin").read_bytes()[:2] != b"PK"
    check_same_load(folder, known, tmp_path)
    assert not list(temporary.glob("formers-*"))


def test_shards(tmp_path, temporary):
    known = load_golden_tensors()
    names = sorted(known)
    parts = {f"pytorch_model-0000{n + 1}-of-00002.bin": {k: known[k] for k in names[n::2]} for n in (0, 1)}
    folder = write_pickles(tmp_path / "pickled", parts, legacy=("pytorch_model-00002-of-00002.bin",))
    index = {"metadata": {}, "weight_map": {name: part for part, state in parts.items() for name in state}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    check_same_load(folder, known, tmp_path)
    with pytest.raises(Error, match="no model.safetensors and no .*--pickle"):
        formers.load(folder)
    (folder / "pytorch_model-00001-of-00002.bin").unlink()
    with pytest.raises(Error, match="pytorch_model-00001-of-00002.bin: the file is missing"):
        formers.load(folder, pickle=True)
    assert not list(temporary.glob("formers-*"))


def test_safetensors_go_before_a_pickle(tmp_path, monkeypatch):
    folder = write_pickles(tmp_path / "both", {"pytorch_model.bin": load_golden_tensors()})
    shutil.copy(GOLDEN / NAME / "model.safetensors", folder)

    def never(*_):
        raise AssertionError

    monkeypatch.setattr(safe_files, "convert_in_sandbox", never)
    formers.load(folder, pickle=True)


# --- the process that unpickles


PROGRAM = """
import ctypes, json, marshal, os, pickle, socket, subprocess, sys, time
from pathlib import Path
import torch
from formers.interop.sandbox import confine_process, convert_pickle
folder, outside = Path("folder"), Path("outside").resolve()
for name, code in json.load(sys.stdin).items():
    compiled = compile(code, "action", "exec")
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(f"{name}.said", os.O_WRONLY | os.O_CREAT), 2)
        try:
            act = {}
            exec(compiled, globals(), act)
            if "act" in act:
                confine_process("source.bin", folder, 256 * 2**20, 2**20, 1)
                act["act"]()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode())
            os._exit(3)
        os._exit(0)
    print(json.dumps([name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]), flush=True)
"""
ENDED = {  # what the process does, and what it says as it ends
    "a program": ("os.system('touch marker')", "it tried os.system"),
    "another program": ("subprocess.run(['touch', 'marker'])", "it tried subprocess.Popen"),
    "a spawned program": ("os.posix_spawn('/bin/true', ['true'], {})", "it tried os.posix_spawn"),
    "a program in its place": ("os.execv('/bin/true', ['true'])", "it tried os.exec"),
    "a fork": ("os.fork()", "it tried os.fork"),
    "a signal": ("os.kill(os.getppid(), 0)", "it tried os.kill"),
    "a socket": ("socket.socket()", "it tried socket.__new__"),
    "the host's name": ("socket.gethostname()", "it tried socket.gethostname"),
    "an import": ("__import__('this')", "it tried import"),
    "eval": ("eval('1 + 1')", "it tried compile"),
    "exec of code": ("exec(CODE)", "it tried exec"),
    "a pickle": ("pickle.loads(b'cposix\\nsystem\\n.')", "it tried pickle.find_class"),
    "marshal": ("marshal.loads(marshal.dumps(1))", "it tried marshal"),
    "a library": ("ctypes.CDLL(None)", "it tried ctypes.dlopen"),
    "reading elsewhere": ("open(outside)", "it tried to open .*outside"),
    "writing elsewhere": ("open('marker', 'w')", "it tried to open .*marker"),
    "writing elsewhere by number": ("os.open('marker', os.O_WRONLY | os.O_CREAT)", "it tried to open .*marker"),
    "writing up and down": ("open('folder/../marker', 'w')", "it tried to open .*marker"),
    "writing through a link": ("open('folder/link', 'w')", "it tried to open .*outside"),
    "writing to the source": ("open('source.bin', 'r+b')", "it tried to open .*source.bin"),
    "appending to the source": ("open('source.bin', 'ab')", "it tried to open .*source.bin"),
    "removing": ("os.remove('source.bin')", "it tried os.remove"),
    "renaming": ("os.rename('source.bin', 'marker')", "it tried os.rename"),
    "a link": ("os.symlink('/etc', 'folder/etc')", "it tried os.symlink"),
    "a folder": ("os.mkdir('marker')", "it tried os.mkdir"),
    "listing": ("os.listdir('/')", "it tried os.listdir"),
    "another hook": ("sys.addaudithook(print)", "it tried sys.addaudithook"),
}
LIMITED = {  # what the system refuses
    "memory": ("bytearray(2**30)", "MemoryError"),
    "memory of torch": ("torch.empty(2**30)", "RuntimeError: .*can't allocate memory"),
    "output": ("open('folder/out', 'wb', 0).write(bytes(2**20 + 1)) > 2**20 or open('folder/out', 'ab', 0).write(b'x')",
               "OSError: .*File too large"),
}  # fmt: skip
ALLOWED = {"the source": "open('source.bin', 'rb').read()", "its folder": "open('folder/file', 'wb').write(b'x')"}
FILES = {  # what a file holds, and what is said about it
    "list": ([1, 2, 3], "it does not hold a table of tensors"),
    "words": ({"x": "y"}, "it does not hold a table of tensors"),
    "numbers": ({1: torch.zeros(1)}, "it does not hold a table of tensors"),
    "sparse": ({"x": torch.eye(3).to_sparse()}, "(Runtime|Value)Error: .*"),
    "meta": ({"x": torch.empty(3, device="meta")}, "NotImplementedError: .*"),
    "large": ({"x": torch.zeros(1).expand(10**6)}, "its tensors claim 4,000,000 bytes, the file has 1,"),
    "protocol": (b"\x80\x05.", "UnpicklingError|IndexError|RuntimeError|EOFError"),
    "empty": (b"", "EOFError"),
}


@pytest.fixture(scope="module")
def exit_codes(tmp_path_factory):
    """How each of the above ends: exit status and last words, all from forks of one process that has torch ready."""
    where = tmp_path_factory.mktemp("confined")
    (where / "folder").mkdir()
    (where / "folder" / "link").symlink_to("../outside")
    for name in ("source.bin", "outside"):
        (where / name).write_bytes(b"x")
    codes = {name: f"def act(): {code}" for name, (code, _) in (ENDED | LIMITED).items()}
    codes |= {name: f"def act(): {code}" for name, code in ALLOWED.items()}
    codes["exec of code"] = "CODE = compile('1', 'x', 'exec')\ndef act(code=CODE): exec(code)"
    codes["time"] = "def act():\n  while True: pass"
    for name, (content, _) in FILES.items():
        source = where / f"{name}.bin"
        if isinstance(content, bytes):
            source.write_bytes(content)
        else:
            torch.save(content, source)
        codes[f"file {name}"] = f"convert_pickle({str(source)!r}, 'folder/{name}.safetensors', 2**28, 10)"
    before = {p.name: p.stat().st_size for p in where.iterdir() if p.is_file()}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(codes), capture_output=True, text=True, check=False, cwd=where
    )
    codes = dict(map(json.loads, done.stdout.splitlines()))
    assert done.returncode == 0, done.stderr
    left = {p.name: p.stat().st_size for p in where.iterdir() if p.suffix != ".said"}
    assert left == before | {"folder": left["folder"]}
    return {name: (code, (where / f"{name}.said").read_text()) for name, code in codes.items()}


@pytest.mark.parametrize("name", ENDED)
def test_the_hook_ends_the_process(exit_codes, name):
    code, said = exit_codes[name]
    assert code == 1, (code, said)
    assert re.match(ENDED[name][1], said), said


@pytest.mark.parametrize("name", LIMITED)
def test_the_system_sets_limits(exit_codes, name):
    code, said = exit_codes[name]
    assert code == 3, (code, said)
    assert re.search(LIMITED[name][1], said), said


def test_time_has_a_limit(exit_codes):
    assert exit_codes["time"][0] in (-24, -9)  # SIGXCPU, SIGKILL


@pytest.mark.parametrize("name", ALLOWED)
def test_what_it_has_to_do_it_may(exit_codes, name):
    assert exit_codes[name] == (0, "")


@pytest.mark.parametrize("name", FILES)
def test_files_that_hold_something_else(exit_codes, name):
    code, said = exit_codes[f"file {name}"]
    assert code == 1, (code, said)
    assert re.match(FILES[name][1], said), said
    assert said.isprintable()


# --- what the caller makes of it


@pytest.fixture
def harmless_folder(tmp_path, temporary):
    return write_pickles(tmp_path / "pickled", {"pytorch_model.bin": load_golden_tensors()})


def expect_refusal(folder: Path, said: str) -> None:
    with pytest.raises(Error, match=said) as caught:
        formers.load(folder, pickle=True)
    assert "pytorch_model.bin: " in str(caught.value) or "shard-0.safetensors: " in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700
    assert not list(Path(tempfile.gettempdir()).glob("formers-*"))


def test_a_process_that_hangs_is_ended(harmless_folder, monkeypatch):
    note = harmless_folder.parent / "pid"
    code = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    monkeypatch.setattr(sandbox, "CONVERTER_CODE", code)
    monkeypatch.setattr(sandbox, "TIMEOUT_SECONDS", 5)
    began = time.monotonic()
    expect_refusal(harmless_folder, "converting the pickle took more than 5 s. Do not use this file")
    assert time.monotonic() - began < 300
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.abort()", r"the pickle was refused \(exit -6\)"),
        ("pass", r"the pickle was refused \(exit 0\)"),
        ("import sys; sys.exit('first\\nlast words' + 10**6 * '!')", r"the pickle was refused \(last words!{190}\)"),
        ("import sys; sys.stderr.buffer.write(b'\\xff\\x1b[31m'); sys.exit(1)", r"refused \(\W+x1b\[31m\)"),
        ("open({target!r}, 'wb').write(b'x' * 100)", "not a safetensors file"),
        ("import os; raise SystemExit(repr(os.environ.get('TOKEN')))", r"the pickle was refused \(None\)"),
        ("import os; raise SystemExit(os.getcwd() in {target!r})", r"the pickle was refused \(exit 1\)"),
        ("import sys; raise SystemExit(repr(sys.stdin.read()))", r"the pickle was refused \(''\)"),
    ],
    ids=["abort", "nothing", "long", "bytes", "garbage", "environment", "folder", "input"],
)
def test_a_process_that_ends_otherwise(harmless_folder, monkeypatch, code, said):
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.setattr(sandbox, "CONVERTER_CODE", code)
    expect_refusal(harmless_folder, said)


def test_no_place_and_no_process(harmless_folder, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", full)
        expect_refusal(harmless_folder, r"the converter cannot run \(No space left on device\)")
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(Error, match=r"there is no place for temporary files \(No space left on device\). Set TMPDIR"):
        formers.load(harmless_folder, pickle=True)
