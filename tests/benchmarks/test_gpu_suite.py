"""The driver of GPU measurements in limited time: it ends in time, loses nothing, and continues where it stopped."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks import equal_learning, gpu_suite, kernels
from benchmarks.gpu_suite import STAGES, Stage, list_missing_works, read_results, run_stages
from benchmarks.harness import list_descendants, run_in_turns, run_one_ahead
from formers.nn.attention.kernels import biased_flash, relative_flash


def build_stage(name, words, works=("a",), seconds=30, key="work"):
    return Stage(
        name, works, seconds, lambda left, limit: ["timeit", "-n1", "-r1", words.replace("WORKS", str(left))], key
    )


def test_a_session_continues_and_tries_failures_last(tmp_path, capfd):
    results = tmp_path / "results.jsonl"
    one = build_stage("one", "import json; [print(json.dumps({'work': w})) for w in WORKS if w != 'b']", ("a", "b"))
    two = build_stage("two", 'print(\'{"work": "c", "error": "x"}\'); raise OSError', ("c",))
    run_stages([one, two], 60, results)
    rows = read_results(results)
    assert [(row["stage"], row["works"], row["ended"]) for row in rows if "ended" in row] == [
        ("one", ["a", "b"], 0), ("two", ["c"], 1), ("two", ["c"], 1),
    ]  # fmt: skip
    assert list_missing_works(one, rows) == (["b"], [])
    assert list_missing_works(two, rows) == ([], ["c"])
    with results.open("a") as stream:
        stream.write('{"stage": "one", "work": "b"')  # the machine was taken back in the middle of a line
    assert list_missing_works(one, read_results(results)) == (["b"], [])


def test_a_work_that_hangs_is_ended(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu_suite, "SHORTEST", 0.0)
    monkeypatch.setattr(gpu_suite, "RESERVE", 0.4)
    words = (
        'import signal, time; signal.signal(2, signal.SIG_IGN); print(\'{"work": "a"}\', flush=True); time.sleep(60)'
    )
    began = time.monotonic()
    run_stages([build_stage("slow", words, ("a", "b"), seconds=2)], 4, tmp_path / "results.jsonl")
    assert time.monotonic() - began < 20  # not 60
    rows = read_results(tmp_path / "results.jsonl")
    assert rows[0]["work"] == "a"
    assert rows[-1]["ended"] == -9


def test_the_background_waits_while_something_is_timed(tmp_path, monkeypatch, capfd):
    ticks = tmp_path / "ticks"
    code = f"import time\nwhile True: open({str(ticks)!r}, 'a').write(f'{{time.time()}}\\n'); time.sleep(0.02)"
    background = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        while not ticks.exists():
            time.sleep(0.05)
        monkeypatch.setenv("FORMERS_BACKGROUND", str(background.pid))
        words = "import json, time as t; b = t.time(); t.sleep(1); "
        words += "print(json.dumps(dict(work='a', span=[b, t.time()])))"
        stages = [build_stage("whole", words), dataclasses.replace(build_stage("none", words), timing="none")]
        run_stages(stages, 60, tmp_path / "results.jsonl")
        spans = {row["stage"]: row["span"] for row in read_results(tmp_path / "results.jsonl") if "span" in row}
        times = [float(line) for line in ticks.read_text().split()]
        counts = {name: sum(low < one < high for one in times) for name, (low, high) in spans.items()}
        assert counts["whole"] == 0
        assert counts["none"] > 5
    finally:
        background.kill()
        background.wait()


def test_stages_that_time_nothing_run_at_the_same_time(tmp_path, capfd):
    """Each waits for a file of the other."""
    words = (
        "import pathlib, time; f = pathlib.Path({0!r}); (f / '{1}').touch(); "
        "end = time.time() + 20\nwhile not (f / '{2}').exists(): assert time.time() < end; time.sleep(0.05)"
    )
    stages = [
        dataclasses.replace(build_stage(one, words.format(str(tmp_path), one, other), key="stage"), timing="none")
        for one, other in (("left", "right"), ("right", "left"))
    ]
    run_stages(stages, 60, tmp_path / "results.jsonl")
    assert [row["ended"] for row in read_results(tmp_path / "results.jsonl")] == [0, 0]


def test_processes_take_turns_and_end_in_time():
    wait = "from benchmarks.harness import wait_for_turn as w; import time; w(); print('timed'); time.sleep({})"
    commands = [[sys.executable, "-c", wait.format(0)], [sys.executable, "-c", "print('failed')"]]
    assert sorted(run_in_turns(commands, 2)) == ["failed\n", "timed\n"]
    began = time.monotonic()
    assert list(run_in_turns([[sys.executable, "-c", "import time; time.sleep(60)"]], 1, seconds=0.5)) == []
    assert time.monotonic() - began < 30


def test_a_process_reads_ahead_and_waits_for_its_turn(tmp_path):
    log = tmp_path / "log"
    words = (
        "import os, time\n"  # as wait_for_turn does, without an import that takes long on a busy machine
        "go = os.path.join(os.environ['FORMERS_TURNS'], str(os.getpid()) + '.go')\n"
        "def w():\n    while not os.path.exists(go): time.sleep(0.05)\n"
        f"def note(x): open({str(log)!r}, 'a').write(x + chr(10))\n"
        "note('{0} reads'); w(); note('{0} begins'); time.sleep({1}); note('{0} ends'); raise SystemExit({2})"
    )
    commands = [[sys.executable, "-c", words.format(*values)] for values in (("a", 1, 3), ("b", 600, 0), ("c", 0, 0))]
    assert list(run_one_ahead(commands, 8)) == [3, None, 0], "one that fails or hangs does not take the others along"
    lines = log.read_text().splitlines()
    assert lines.index("a ends") < lines.index("b begins") < lines.index("c begins")
    assert lines.index("c reads") < lines.index("c begins")
    assert "b ends" not in lines


def test_a_stage_without_its_packages_costs_nothing(tmp_path, capsys):
    stage = dataclasses.replace(build_stage("peers", "raise SystemExit(1)"), needs=("json", "no_such_package"))
    run_stages([stage], 60, tmp_path / "results.jsonl")
    assert "no_such_package is not installed" in capsys.readouterr().out
    assert read_results(tmp_path / "results.jsonl") == []
    peers = next(stage for stage in STAGES if stage.name == "peers")
    assert "accelerate" in peers.needs


def test_a_family_is_told_as_soon_as_its_runs_have_ended(tmp_path, monkeypatch, capsys):
    """Runs that are still going on when the time is over cost no other family its line."""

    children = {}

    def start(job, name, folder, steps=0):
        (folder / f"{job}-{name}.log").write_text("it broke")
        if name != "bert.fast.0":
            (folder / f"{name}.json").write_text('{"losses": [1.0, 2.0]}')
        code = f"import time; time.sleep({600 * name.startswith('t5')})"
        children[name] = subprocess.Popen([sys.executable, "-c", code])
        return children[name]

    monkeypatch.setattr(equal_learning, "start_child", start)
    told = equal_learning.train_all(["t5.fast.0", "gpt2.fast.0", "bert.fast.0", "gpt2.plain.0"], tmp_path, 2, 4)
    found = dict([next(told), next(told)])
    assert children["t5.fast.0"].poll() is None, "it is still running"
    children["t5.fast.0"].kill()
    assert set(found) == {"gpt2", "bert"}
    assert set(found["gpt2"]) == {"gpt2.fast.0", "gpt2.plain.0"}
    assert found["bert"] == {}
    assert "it broke" in capsys.readouterr().out


def test_kernels_of_the_stage_are_those_that_are_timed():
    assert set(gpu_suite.TILED_KERNELS) < set(kernels.GROUPS)
    for module, tiles in ((relative_flash, kernels.RELATIVE_TILES), (biased_flash, kernels.BIASED_TILES)):
        for name, sizes in tiles.items():
            assert sizes[0] == getattr(module, kernels.TILE_NAMES[name]), "the present ones come first"


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_every_stage_is_a_command_that_its_script_takes(stage):
    """The scripts parse their arguments before anything else: a name that they do not know would end them."""
    module = stage.build_command(stage.works, 100.0)[0]
    assert module.startswith("benchmarks.")
    known = {
        "benchmarks.loop": ("LOOP_CASES", "benchmarks.loop"), "benchmarks.large": ("WORKS", "benchmarks.large"),
        "benchmarks.equal_learning": ("FAMILIES", "benchmarks.equal_learning"),
    }  # fmt: skip
    if module in known:
        table = getattr(__import__(known[module][1], fromlist=["x"]), known[module][0])
        assert set(stage.works) <= set(table)


def test_a_rehearsal_of_one_work(tmp_path):
    """A stage runs the code of the GPU on a CPU, with a tiny model."""
    results = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "benchmarks.large", "generate-32k", "--here"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["work"] == "generate-32k"
    assert row["tokens_per_second"] > 0
    assert not results.exists()


def test_every_gpu_test_has_the_mark_that_selects_it():
    """A folder named gpu is enough for other machines to skip a file, but `-m gpu` would leave it out as well."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", "tests/gpu"]
    told = subprocess.run(command, cwd=gpu_suite.ROOT, capture_output=True, text=True, check=False).stdout
    assert "deselected" not in told, told[-300:]
    for name in gpu_suite.TEST_FILES:
        assert f"{name}.py" in told, name


def test_what_waits_are_all_processes_of_the_background():
    """Also one that leads a session of its own."""
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    start = f"import subprocess; print(subprocess.Popen({sleep}, start_new_session=True).pid, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as background:
        child = int(background.stdout.readline())
        try:
            assert list_descendants(background.pid) == [background.pid, child]
        finally:
            os.kill(child, signal.SIGKILL)
            background.communicate(b"\n")
