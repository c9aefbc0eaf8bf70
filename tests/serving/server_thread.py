"""A server on a thread of the test's own process, so that its engine and queues can be looked at."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import uvicorn

from formers.serving.app import build_app
from formers.serving.request_context import ServerState
from formers.serving.security import TimedProtocol
from formers.serving.settings import ServerLimits, ServerSettings


class ServerThread:
    """A running server: its address, its application and its state."""

    def __init__(self, server: uvicorn.Server, port: int, state: ServerState):
        self.server, self.port, self.state, self.address = server, port, state, f"http://127.0.0.1:{port}"

    def find(self, name: str):
        return self.state.models.find(name)


@contextmanager
def run_in_thread(models, names=None, *, settings: ServerSettings | None = None, **limits):
    """Serve models on a thread, on a free port."""
    settings = settings or ServerSettings(port=0, limits=ServerLimits(**limits))
    app = build_app([f"{name}={name}" for name in names or models], models.__getitem__, settings)
    protocol = type("Protocol", (TimedProtocol,), {"read_seconds": settings.limits.read_seconds})
    config = uvicorn.Config(app, host="127.0.0.1", port=0, http=protocol, ws="none", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield ServerThread(server, port, app.state.server)
    finally:
        server.should_exit = True
        thread.join(60)
