"""A server as a process of its own, as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import formers

SOURCE = str(Path(formers.__file__).parents[1])


class ServerProcess:
    """A running `formers serve`: its address, its process, what it logs."""

    def __init__(self, port: int, process: subprocess.Popen, log: Path):
        self.port, self.process, self.log = port, process, log
        self.address = f"http://127.0.0.1:{port}"

    def read_log(self) -> list[dict]:
        """The lines of the log that are JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health/ready", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False


def find_free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def start_server(folder: Path, *words: str, environment: dict[str, str] | None = None):
    """Start a server with these arguments, wait until it is ready, and end it afterwards."""
    port, log = find_free_port(), folder / f"server-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "formers", "serve", *words, "--port", str(port)]
    more = {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", **(environment or {})}
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **more})
    server = ServerProcess(port, process, log)
    try:
        deadline = time.monotonic() + 120
        while not server.is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
