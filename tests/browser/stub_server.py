"""A server with the playground's routes and made-up answers, on loopback, for tests of the page without a model."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from . import samples

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
MODELS = [
    {
        "name": name, "family": family, "head": head, "verbs": verbs, "layers": 4, "heads": 4, "dim": 256,
        "vocab": 30522, "parameters": 5_388_544, "context": 512, "labels": [], "mask": mask, "pairs": mask is not None,
        "encoder_decoder": False, "task": None,
    }
    for name, family, head, mask, verbs in (
        ("bert-mini", "bert", "mlm", "[MASK]", ["inspect", "fill", "embed"]),
        ("gpt2-mini", "gpt2", "lm", None, ["inspect", "generate", "embed"]),
        ("bert-other", "bert", "mlm", "[MASK]", ["inspect", "fill", "embed"]),
        ("gpt2-other", "gpt2", "lm", None, ["inspect", "generate", "embed"]),
    )
]  # fmt: skip
CHOICES = [" river", " bank", " 강", " water", " grass", " boat"]


class StubHandler(BaseHTTPRequestHandler):
    """Answers of the playground's routes."""

    protocol_version = "HTTP/1.1"
    open_streams = 0  # streams that are being written now

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def send_body(self, body: bytes, kind: str, status: int = 200, policy: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if policy:
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, value: Any, status: int = 200) -> None:
        self.send_body(json.dumps(value).encode(), "application/json", status)

    def do_GET(self) -> None:
        """Send a static file, the models or the family."""
        path = self.path.split("?")[0]
        if path == "/playground/models":
            return self.send_json({"models": MODELS})
        if path == "/playground/family":
            from formers.serving.family_tree import describe_family

            return self.send_json(describe_family())
        name = path.removeprefix("/playground/") or "index.html"
        room, folder = ("formers.serving", "playground")
        if name.startswith("page/"):
            room, folder, name = "formers.inspection", "page", name.removeprefix("page/")
        file = resources.files(room).joinpath(folder, name)
        suffix = "." + name.rsplit(".", 1)[-1]
        if "/" in name or suffix not in TYPES or not file.is_file():
            return self.send_json({"error": f"there is no {name}", "fix": ""}, 404)
        return self.send_body(file.read_bytes(), TYPES[suffix], policy=POLICY if suffix == ".html" else None)

    def do_POST(self) -> None:
        """Answer one of the playground's questions."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        verb = self.path.rsplit("/", 1)[-1]
        seed = [model["name"] for model in MODELS].index(body["model"])
        text = body["text"]
        if verb == "inspect" and "refuse" in text:
            return self.send_json(
                {"error": "the text is longer than the model reads: take a shorter text", "error_type": "validation"},
                400,
            )
        if verb == "inspect":
            return self.send_json(self.make_document(text, body, seed))
        if verb == "fill":
            guesses = [
                {"token": word.strip(), "probability": 0.4 / (i + 1), "text": text.replace("___", word.strip(), 1)}
                for i, word in enumerate(CHOICES)
            ]
            return self.send_json({"blanks": [guesses] * text.count("___")})
        if verb == "objectives":
            return self.send_json({"objectives": samples.make_objectives(text.split())})
        return self.stream(body)

    def make_document(self, text: str, body: dict[str, Any], seed: int) -> dict[str, Any]:
        words = text.split()
        if len(words) >= 256:
            return samples.make_long(len(words))
        if body["model"].startswith("gpt2"):
            document = samples.make_decoder(text, memory=0, seed=seed)
        else:
            document = samples.make_encoder(text, 4, 4, seed=seed)
        document["model"]["name"] = body["model"]
        extra = {"objectives", "attribution", "heads", "neuron"} - set(body["views"])
        return {key: value for key, value in document.items() if key not in extra}

    def stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        StubHandler.open_streams += 1
        try:
            first = len(body.get("ids", []))
            for step in range(first, first + body["max_new_tokens"]):
                rows = [
                    {"id": (i + step) % 6, "text": CHOICES[(i + step) % 6], "probability": 0.5 / (i + 1)}
                    for i in range(5)
                ]
                event = {"index": step, "piece": rows[0]["text"], **rows[0], "alternatives": rows}
                self.wfile.write(f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode())
                self.wfile.flush()
                time.sleep(0.03)
            self.wfile.write(b'data: {"finish_reason": "length", "text": ""}\n\n')
        except (BrokenPipeError, ConnectionResetError):
            pass  # the page stopped the stream
        finally:
            StubHandler.open_streams -= 1
            self.close_connection = True


class QuietServer(ThreadingHTTPServer):
    """A server that takes a page's leaving as it comes: an answer that nobody waits for is no error."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what is not a closed connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def run_stub_server() -> Iterator[str]:
    """Run the server on a free port; gives its address."""
    server = QuietServer(("127.0.0.1", 0), StubHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
