"""A worker process of a comparison: it reads the names of jobs from its standard input, one a line, carries each out,
and writes a line of JSON to its standard output when it is done: python -m formers.comparison.worker FOLDER [DEVICE]

What libraries print goes to the standard error, which the scheduler writes into a log."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

from ..config import JSONObject
from ..text.worker_processes import exit_with_parent

TELL_SECONDS = 1.0  # between two messages about the progress of a job


def main() -> int:
    """Carry out jobs until the input ends."""
    exit_with_parent(os.getppid())
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: JSONObject) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    folder, device = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    from .api import read_config
    from .jobs import JobRunner, list_jobs

    jobs = {job.name: job for job in list_jobs(read_config(folder))}
    runner = JobRunner(folder, read_config(folder), device)
    send({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        last = [0.0]

        def tell(what: str, done: int, of: int, detail: str, last: list[float] = last) -> None:
            if time.monotonic() - last[0] >= TELL_SECONDS:
                last[0] = time.monotonic()
                send({"tell": [what, done, of, detail]})

        print(f"== {request['job']}", file=sys.stderr, flush=True)
        try:
            record = runner.run(jobs[request["job"]], tell, request["together"])
        except (
            Exception
        ) as error:  # a device in a bad state would fail every job that follows: a new process begins anew
            traceback.print_exc()
            send({"status": "failed", "error": f"{type(error).__name__}: {error}"})
            return 1
        if record is None:
            send({"status": "stopped"})
            return 0
        send({"status": record.status, "error": record.error, "seconds": record.seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
