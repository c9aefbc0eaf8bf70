"""What runs out or was never meant: one clear line, with what to do. Memory, YAML that grows, panics, a folder gone."""

from __future__ import annotations

import errno
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import formers
from formers.cli import main as command
from formers.cli.main import main
from formers.config import parse_yaml
from formers.errors import advise_on_write
from formers.registry import train_tokenizer
from tests.command_line import run_command
from tests.faults import small_runs

GOLDEN = Path(__file__).parent.parent / "parity" / "golden"
NAMES = "abcdefghij"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in itertools.pairwise(NAMES)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 9)}]}}\n" for old, new in itertools.pairwise(NAMES)
)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("beyond", [64, 1 << 11 | 64], ids=["its header", "its pages"])
def test_a_file_that_cannot_be_mapped(tmp_path, beyond, capsys):
    """Weights of 2 GiB, of which nothing is on the disk, in less address space."""
    shutil.copytree(GOLDEN / "GPT2LMHeadModel-0", tmp_path / "m")
    size = 2 << 30
    header = json.dumps({"x": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    with open(tmp_path / "m" / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (beyond << 20), before[1]))
    try:
        code, _, err = run_command(capsys, "export", str(tmp_path / "m"), str(tmp_path / "out"))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert code == 2
    assert err.count("\n") == 1
    assert "model.safetensors: there is no memory to map its 2,147,4" in err


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
              RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")],
)  # fmt: skip
def test_out_of_memory_is_one_line(error, capsys, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(command, "app", fail)
    code, _, err = run_command(capsys, "tree")
    assert code == 2
    assert err.startswith("formers: out of memory (")
    assert err.count("\n") == 1


def test_another_error_is_not_taken_for_one(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(command, "app", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["tree"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "aliases stand for more than"), (MERGES, "aliases stand for more than"), ("a: &a [*a]", "holds itself"),
        ("[" * 1500, "nested too deeply"), ("train: {lr: 2024-99-99}", "month must be"), ("a: \x07", "unacceptable"),
        (f"a: {'9' * 5000}", "4300 digits"), ("? {a: 1}\n: 2", "unhashable"),
    ],
    ids=["laughs", "merges", "itself", "deep", "date", "control", "digits", "key"],
)  # fmt: skip
def test_yaml_of_a_config(text, said, tmp_path, capsys):
    """A billion laughs used to take all memory and a date that is none a traceback."""
    (tmp_path / "c.yaml").write_text(text)
    code, _, err = run_command(capsys, "pretrain", "bert", "--config", str(tmp_path / "c.yaml"), "--print-config")
    assert code == 2
    assert err.count("\n") == 1
    assert said in err


def test_yaml_that_people_write():
    assert parse_yaml("a: &d {x: 1}\nb: {<<: *d, y: 2}") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}
    assert parse_yaml("") is None
    assert len(parse_yaml("data: [" + "file.txt, " * 3_000 + "]")["data"]) == 3_000


@pytest.mark.parametrize("words", [["pretrain", "bert", "--train.lr"], ["show", "mlm", "--option"]])
@pytest.mark.parametrize("value", [BOMB, "2024-99-99", "[" * 1500])
def test_yaml_of_the_command_line(words, value, capsys):
    words = [*words, f"mask_rate={value}" if words[-1] == "--option" else value]
    code, _, err = run_command(capsys, *words)
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_a_config_without_end(capsys):
    code, _, err = run_command(capsys, "pretrain", "gpt2", "--config", "/dev/zero", "--print-config")
    assert code == 2
    assert "has more than 1,048,576 bytes" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pretrain", "gpt2", "--objective.name", "-", "--print-config"], "the objective [None] is not available"),
        (["show", "mlm", "--text", "bytes that are no text \udcff"], "half a character"),
        (["tokenizer", "show", "\udcff\x1b[31m[/]\n", "x"], "no such directory"),
        (["runs", "\udcff\x1b[31m[/]\n"], "there is no such folder"),
        (["report", "x[/]" * 2000], "File name too long"),
        (["tree", "--x[/]\x1b[31m"], "unknown option"),
        (["import", "golden", "no\x00name"], "cannot write here"),
    ],
    ids=["a list for a name", "bytes for text", "bytes for a path", "a folder", "a long name", "an option", "a zero"],
)  # fmt: skip
def test_hostile_words(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink(GOLDEN / "GPT2LMHeadModel-0", "golden")
    code, out, err = run_command(capsys, *words)
    assert code == 2
    assert said in err
    assert "\x1b" not in out + err
    assert err.splitlines()[-1].startswith("formers: ")


def test_plain_text_without_a_task(tmp_path, capsys):
    """It used to be taken for a task with answers, and to end in a traceback."""
    (tmp_path / "plain.txt").write_text("some words on a line\n" * 30)
    words = ["--train", str(tmp_path / "plain.txt"), "--out", str(tmp_path / "out")]
    code, _, err = run_command(capsys, "finetune", "gpt2", *words)
    assert code == 2
    assert "--task lm" in err
    assert err.count("\n") == 1


def test_only_one_place_reads_yaml():
    source = Path(formers.__file__).parent
    users = {p.name for p in source.rglob("*.py") if "yaml.safe_load" in p.read_text() or "yaml.load" in p.read_text()}
    assert not users, "use config.parse_yaml"


def test_a_panic_of_the_rust_library_is_one_line(tmp_path):
    """It prints fifty lines of its own where RUST_BACKTRACE is set."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    about = {"version": "1.0", "added_tokens": [], "model": model}
    about["pre_tokenizer"] = {"type": "FixedLength", "length": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(about))
    done = subprocess.run(
        [sys.executable, "-m", "formers", "tokenizer", "show", str(tmp_path), "ab"],
        capture_output=True, text=True, env={**os.environ, "RUST_BACKTRACE": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("formers: the tokenizer failed: ")
    assert done.stderr.count("\n") == 1


def test_the_file_that_hides_panics_is_closed_at_the_end(tmp_path):
    """Python complained of it after the answer, with torch loaded even where nobody had asked for such warnings."""
    train_tokenizer("wordpiece", ["the whale and the sea"] * 4, 60).save(tmp_path / "tokenizer.json")
    command = [sys.executable, "-W", "always::ResourceWarning", "-m", "formers", "tokenizer", "show", tmp_path, "whale"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_whose_folder_is_deleted(tmp_path):
    """It used to be told to make room."""
    out, log = tmp_path / "run", tmp_path / "log"
    run_settings = small_runs.make_settings("gpt2", steps=100_000, save_every=5, eval_every=100_000, samples=0)

    def work():
        formers.pretrain("gpt2", small_runs.make_texts(), out=out, config=run_settings, device="cpu")

    def told():
        try:
            work()
        except formers.Error as error:
            print(error, flush=True)
            sys.exit(error.exit_code)

    number = small_runs.fork_process(told, log)
    end = time.monotonic() + 120
    while not list(out.glob("steps/step-*/manifest.json")) and time.monotonic() < end:
        time.sleep(0.05)
    os.rename(out, tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)
    assert small_runs.wait_for_exit(number) == 2, log.read_text()
    said = log.read_text()
    assert "No such file or directory" in said
    assert "he folder was moved or deleted" in said
    assert "make room" not in said
    assert "earlier checkpoints" not in said
    assert said.count("\n") == 1


def test_advice_fits_the_fault():
    words = {code: advise_on_write(OSError(code, "")) for code in (errno.ENOSPC, errno.ENOENT, errno.EACCES, errno.EIO)}
    assert "room" in words[errno.ENOSPC]
    assert "deleted" in words[errno.ENOENT]
    assert "permissions" in words[errno.EACCES]
    assert "disk" in words[errno.EIO]
