"""The command line as a whole: help, words that make no sense, a full disk, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import formers
from tests.command_line import run_command


def test_help_and_version(capsys):
    code, out, _ = run_command(capsys, "--help")
    assert code == 0
    for verb in ("demo", "tree", "import", "export", "doctor"):
        assert verb in out
    assert run_command(capsys, "--version")[1].strip() == f"formers {formers.__version__}"
    for verb in ("demo", "tree", "import", "export", "doctor"):
        out = run_command(capsys, verb, "--help")[1]
        assert f"formers {verb}" in out.split("Usage", 1)[1].split("\n", 1)[1], "an example in the help"


def test_words_that_make_no_sense(capsys):
    for words in (["imprt"], ["import"], ["export", "a", "b", "--dtype", "int3"], ["tree", "--colour"]):
        code, _, err = run_command(capsys, *words)
        assert code == 2, words
        assert err.startswith("formers:")
        assert err.count("\n") == 1
    code, _, err = run_command(capsys, "export", "a", "b", "--shard", "big")
    assert code == 2


def test_a_full_disk_under_the_output():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "formers.cli.main", "doctor"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "formers: No space left on device\n"


def test_ctrl_c(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "formers", "demo", "--train", "--out", str(tmp_path / "d")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )  # fmt: skip
    try:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("chosen for this machine"):  # everything is imported by then
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == f"formers: interrupted. Continue with formers demo --train --out {tmp_path / 'd'}\n"
    assert not list((tmp_path / "d").glob("*/formers.json"))


def test_ctrl_c_within_an_import(tmp_path):
    """What is imported may turn it into an error of its own."""
    (tmp_path / "cyclopts.py").write_text(
        "import os, signal, time\ntry: os.kill(os.getpid(), signal.SIGINT); time.sleep(9)\n"
        "except KeyboardInterrupt: raise AttributeError('a module in pieces')\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "formers", "tree"], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": path}, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "formers: interrupted\n")
