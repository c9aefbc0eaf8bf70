"""One of several processes dies or is told to stop: no other one hangs, and a resumed run ends as if never stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from formers.cli.main import main
from formers.training.checkpoint.local import Checkpoints
from formers.training.run_folder import RunFolder
from tests.training import ranks

SETTINGS = {
    "model.dim": 16, "model.layers": 1, "model.heads": 2, "model.context": 24, "train.seq_length": 24,
    "train.batch_tokens": 120, "train.accumulate": 2, "train.save_every": 20, "train.eval_every": 500,
    "train.keep_best": 0, "data.vocab_size": 300, "train.schedule": "constant", "train.warmup_steps": 0,
}  # fmt: skip


def make_command(folder, out, steps, **settings):
    """formers pretrain as one types it."""
    text = folder / "text.txt"
    text.write_text("\n".join(ranks.TEXT), encoding="utf-8")
    given = {**SETTINGS, "train.steps": steps, **settings}
    words = ["pretrain", "gpt2", "--data", text, "--out", folder / out, "--resume", "--device", "cpu"]
    return ["-m", "formers.cli.main", *map(str, words), *(str(w) for k, v in given.items() for w in (f"--{k}", v))]


def count_steps(folder):
    """How many steps a run has told of."""
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for_steps(folder, steps, processes, seconds=120):
    """Wait until a run is under way."""
    end = time.monotonic() + seconds
    while count_steps(folder) < steps and all(p.poll() is None for p in processes) and time.monotonic() < end:
        time.sleep(0.01)


def read_losses(folder):
    """By step."""
    return {row["step"]: row["loss"] for row in RunFolder(folder).read_history() if "losses" in row}


def compare_losses(a, b):
    """Two runs went the same way."""
    one, two = read_losses(a), read_losses(b)
    assert list(one) == list(two)
    assert list(two.values()) == pytest.approx(list(one.values()), abs=1e-5)


def test_told_to_stop_then_killed_then_alone(tmp_path):
    """SIGTERM to one process: all save the same step and end with 143. SIGKILL: the other ends with one line. One
    process then continues to the end, which is that of a run that was never stopped."""
    words = [sys.executable, *make_command(tmp_path, "run", 10**6)]
    both = ranks.start_processes(words)
    wait_for_steps(tmp_path / "run", 5, both)
    both[1].send_signal(signal.SIGTERM)
    codes, said = ranks.wait_for_all(both)
    assert codes == [143, 143], said
    assert all("stopped by SIGTERM after step" in words.splitlines()[-1] for words in said), said
    (saved,) = Checkpoints(tmp_path / "run" / "steps", remove_stale=False).list_steps()[-1:]
    assert saved == max(read_losses(tmp_path / "run"))
    both = ranks.start_processes([*words, "--train.parallel", "fsdp"])
    wait_for_steps(tmp_path / "run", saved + 25, both)
    both[1].kill()
    codes, said = ranks.wait_for_all(both)
    assert codes == [2, -9], said
    assert "process 0 has lost the connection to another one" in said[0].splitlines()[-1]
    assert "Traceback" not in said[0]
    steps = Checkpoints(tmp_path / "run" / "steps", remove_stale=False).list_steps()[-1] + 10
    for out in ("run", "whole"):
        with contextlib.suppress(SystemExit):
            main(make_command(tmp_path, out, steps)[2:])
    compare_losses(tmp_path / "whole", tmp_path / "run")


def start_torchrun(folder, out, steps, restarts=1, **settings):
    """The same under torchrun, which starts all anew when one dies."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    return subprocess.Popen([sys.executable, *words, *make_command(folder, out, steps, **settings)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip


def list_children(process):
    """The processes that it started, by rank."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    return sorted(map(int, found.split()))


@pytest.mark.full
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_torchrun_starts_again_and_ends_the_same(tmp_path, mode):
    process = start_torchrun(tmp_path, "run", 80, **{"train.parallel": mode})
    wait_for_steps(tmp_path / "run", 30, [process])
    os.kill(list_children(process)[1], signal.SIGKILL)
    said = process.communicate(timeout=200)[0]
    assert process.returncode == 0, said
    subprocess.run([sys.executable, *make_command(tmp_path, "whole", 80)], check=True, timeout=120, capture_output=True)
    compare_losses(tmp_path / "whole", tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["result"]["parameters"]


@pytest.mark.full
def test_killed_twenty_times(tmp_path):
    """Row 9: one of two, at random moments from the first meeting on; nobody hangs, and the run gets to its end."""
    rng, hangs, words = np.random.default_rng(0), 0, [sys.executable, *make_command(tmp_path, "run", 4000)]
    for number in range(20):
        both = ranks.start_processes([*words, "--train.parallel", ("ddp", "fsdp")[number % 2]])
        begun = time.time()
        if number % 4:
            wait_for_steps(tmp_path / "run", count_steps(tmp_path / "run") + int(rng.integers(1, 30)), both)
        else:  # they have just found each other, and have not begun
            file = tmp_path / "run" / "run.json"
            while not (file.exists() and file.stat().st_mtime > begun) and all(p.poll() is None for p in both):
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 1))
        one = int(rng.integers(2))
        both[one].kill()
        try:
            codes, said = ranks.wait_for_all(both, 60)
            assert codes[one] == -9
            assert codes[1 - one] == 2, said
            assert "Traceback" not in said[1 - one], said[1 - one]
        except subprocess.TimeoutExpired:
            hangs += 1
    print(f"one of two processes killed 20 times: {hangs} hangs")
    assert hangs == 0
    steps = max(read_losses(tmp_path / "run"), default=0) + 10
    for out in ("run", "whole"):
        subprocess.run(
            [sys.executable, *make_command(tmp_path, out, steps)], check=True, timeout=300, capture_output=True
        )
    compare_losses(tmp_path / "whole", tmp_path / "run")


@pytest.mark.full
def test_torchrun_told_to_stop(tmp_path):
    """SIGTERM to torchrun reaches everyone; the last step is saved."""
    process = start_torchrun(tmp_path, "run", 10**6)
    wait_for_steps(tmp_path / "run", 25, [process])
    process.terminate()
    said = process.communicate(timeout=100)[0]
    assert process.returncode != 0
    assert "stopped by SIGTERM after step" in said, said
    assert Checkpoints(tmp_path / "run" / "steps", remove_stale=False).list_steps()[-1] == max(
        read_losses(tmp_path / "run")
    )
