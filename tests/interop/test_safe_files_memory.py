"""A model larger than half of memory loads: there is never a second copy of it, only the file's own mapped pages.

One process writes a checkpoint of some hundred megabytes in shards, tensor by tensor, and loads it in forks of itself.
Mapped pages of a file are the system's to take back, so what counts is anonymous memory (RssAnon).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest

WIDTHS = {"gpt2": 1536, "bert": 1024}  # 400 and 190 MB
CASES = {  # family, type, the most that may be in memory and the address space beyond the mapped file; 1 is the file
    "float32": ("gpt2", "float32", 1.25, None),
    "bfloat16": ("gpt2", "bfloat16", 0.75, None),
    "joined": ("bert", "float32", 1.25, None),  # query, key and value are three tensors there and one here
    "limited": ("gpt2", "float32", 1.25, 1.3),
    "short": ("gpt2", "float32", 1.25, 0.7),
}

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists() or "RssAnon" not in Path("/proc/self/status").read_text(),
    reason="needs Linux's /proc",
)


def read_status(field: str) -> int:
    """One line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def write_checkpoint(where: Path, family: str, dim: int) -> None:
    """A checkpoint in Hugging Face's form, shard by shard."""
    import torch

    import formers
    from formers.interop import huggingface, safe_files
    from formers.interop.safe_files import write_weights
    from formers.registry import find_family

    with torch.device("meta"):
        former = formers.build(family, vocab=10_000, context=64, dim=dim, layers=3, heads=8, ff=4 * dim)
    shapes = dict(former.model.named_parameters())
    moves = find_family(family).definition.hf_format.build_key_map(former.config, former.head).map_tensors(shapes)

    def tensors():
        for number, move in enumerate(moves):
            yield move.save(torch.full(shapes[move.ours].shape, (number + 1) / 64))

    where.mkdir()
    sizes = [shapes[move.ours].numel() * 4 for move in moves]
    write_weights(where, tensors(), sizes, 50 * 10**6)
    safe_files.write_json(where / "config.json", huggingface.build_hf_config(former, torch.float32))


def measure_load(where: Path, kind: str, size: int, room: float | None) -> dict:
    """Load, and watch the memory meanwhile."""
    import resource

    import torch

    import formers

    base, peak, done = read_status("RssAnon"), 0, threading.Event()

    def watch():
        nonlocal peak
        while not done.is_set():
            peak = max(peak, read_status("RssAnon"))
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    mapped = read_status("VmSize")
    if room is not None:
        limit = mapped + int((1 + room) * size)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    began, said = time.monotonic(), None
    try:
        former = formers.load(where, dtype=getattr(torch, kind))
        values = [p.flatten()[[0, -1]].tolist() for p in former.model.parameters()]
        assert all(first == last and first > 0 for first, last in values)
        assert len({first for first, _ in values}) == len(values)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    done.set()
    watcher.join()
    return {"peak": peak - base, "seconds": time.monotonic() - began, "said": said, "size": size}


def run_in_fork(call, *arguments) -> None:
    """In a process of its own, so that one's memory is not another's; what it returns is printed."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            print(json.dumps(call(*arguments)), flush=True)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, arguments


def main(root: Path) -> None:
    import torch

    import formers

    torch.set_num_threads(1)
    for family, dim in WIDTHS.items():
        formers.build(family, vocab=8, context=8, dim=8, layers=1, heads=1)  # what is imported once
        run_in_fork(write_checkpoint, root / family, family, dim)
    for family, kind, _, room in CASES.values():
        size = sum(p.stat().st_size for p in (root / family).glob("*.safetensors"))
        run_in_fork(measure_load, root / family, kind, size, room)


@pytest.fixture(scope="module")
def measurements(tmp_path_factory):
    root = tmp_path_factory.mktemp("large")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, str(root)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for path in root.rglob("*.safetensors"):
        path.unlink()  # some hundred megabytes that nobody needs any more
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(CASES, filter(None, answers), strict=True))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "joined", "limited"])
def test_no_second_copy_in_memory(measurements, name):
    answer, most = measurements[name], CASES[name][2]
    print(
        f"\n{name}: {answer['peak'] / answer['size']:.3f} of {answer['size'] / 1e6:.0f} MB, {answer['seconds']:.1f} s"
    )
    assert answer["said"] is None
    assert answer["size"] > (390e6 if CASES[name][0] == "gpt2" else 180e6)
    assert (0.45 if name == "bfloat16" else 0.9) < answer["peak"] / answer["size"] < most


def test_where_memory_ends_there_is_an_error(measurements):
    assert re.match(r"Error: .*gpt2: there is no memory for [\d,]+ more bytes on cpu\. ", measurements["short"]["said"])
    assert measurements["short"]["peak"] < measurements["short"]["size"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
