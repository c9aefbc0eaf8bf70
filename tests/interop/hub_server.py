"""A small hub on 127.0.0.1 that speaks the Hugging Face hub's protocol as far as its client asks, and a child process
that talks to it and to nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent
from urllib.parse import unquote, urlsplit

import formers

SOURCE = Path(formers.__file__).parents[1]


def compute_digest(*parts: object) -> str:
    """Forty hexadecimal digits, as git has them."""
    found = hashlib.sha1()
    for part in parts:
        found.update(part if isinstance(part, bytes) else f"{part}\n".encode())
    return found.hexdigest()


@dataclass
class Repo:
    """A repository: commits with their files, and the names of commits."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    closed: tuple[int, str] | None = None  # a status and what the hub says with it

    def commit(self, files: dict[str, bytes], *names: str) -> str:
        """Add a commit under some names (main, if none is given)."""
        sha = compute_digest(len(self.commits), *(part for entry in sorted(files.items()) for part in entry))
        self.commits[sha] = files
        self.refs |= dict.fromkeys(names or ("main",), sha)
        return sha


def read_files(folder: Path) -> dict[str, bytes]:
    """All files below a folder, as a commit holds them."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Hub:
    """The server, in threads of this process. `log` holds what was asked: (method, path, Range)."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.moved: dict[str, str] = {}
        self.cut: dict[str, int] = {}  # a file's next download ends too early, after so many bytes
        self.reset: set[str] = set()  # a file's next download is torn off in the middle
        self.broken = False  # every question is answered by 500: from the mark "broken" to the next
        self.log: list[tuple[str, str, str | None]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Hub:
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)

    def add(self, name: str, content: dict[str, bytes], *names: str) -> str:
        """A commit to a repository, which is made if it is not there."""
        return self.repos.setdefault(name, Repo()).commit(content, *names)

    def list_requests(self, start: str = "", end: str = "") -> list[tuple[str, str, str | None]]:
        """What was asked between two marks that the child set, without the marks and the client's own curiosity."""
        paths = [path for _, path, _ in self.log]
        low = paths.index(f"/mark/{start}") if start else 0
        high = paths.index(f"/mark/{end}") if end else len(paths)
        return [entry for entry in self.log[low:high] if not entry[1].startswith(("/mark/", "/api/agent-harnesses"))]

    def downloads(self, start: str = "", end: str = "") -> list[str]:
        """The files that were downloaded between two marks."""
        asked = (path.split("/resolve/") for method, path, _ in self.list_requests(start, end) if method == "GET")
        return sorted(rest[0].partition("/")[2] for _, *rest in asked if rest)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    hub: Hub
    protocol_version = "HTTP/1.1"
    timeout = 30

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.log.append((self.command, path, self.headers.get("Range")))
        if path.startswith("/mark/"):
            self.hub.broken = path == "/mark/broken"
            return self.answer(200, b"{}")
        if self.hub.broken:
            return self.answer(500, b"{}")
        api = re.fullmatch(r"/api/models/([^/]+(?:/[^/]+)?)(?:/(revision|tree)/(.+))?", path)
        # a revision with a slash comes as one part (%2F), so what is raw tells where it ends
        raw = re.fullmatch(r"/(.+)/resolve/([^/]+)/(.+)", urlsplit(self.path).path)
        if not api and not raw:
            return self.answer(404, b"{}")
        name = api[1] if api else unquote(raw[1])
        if name in self.hub.moved:
            return self.answer(307, b"", Location=self.path.replace(name, self.hub.moved[name], 1))
        repo = self.hub.repos.get(name)
        if repo is None:
            return self.failure(404, "RepoNotFound")
        if repo.closed:
            return self.answer(repo.closed[0], b"{}", **{"X-Error-Message": repo.closed[1]})
        revision = (api[3] or "main") if api else unquote(raw[2])
        sha = revision if revision in repo.commits else repo.refs.get(revision)
        if sha is None:
            return self.failure(404, "RevisionNotFound")
        content = repo.commits[sha]
        if raw:
            return self.file(repo, sha, unquote(raw[3]))
        if api[2] == "tree":
            return self.answer(200, json.dumps(list_tree(content)).encode())
        about = {"id": name, "modelId": name, "sha": sha, "private": False, "gated": repo.gated, "tags": []}
        return self.answer(200, json.dumps(about | {"siblings": [{"rfilename": f} for f in content]}).encode())

    def file(self, repo: Repo, sha: str, name: str) -> None:
        """A file, or the part of it that is asked for."""
        if repo.gated:
            return self.failure(403, "GatedRepo")
        data = repo.commits[sha].get(name)
        if data is None:
            return self.failure(404, "EntryNotFound", **{"X-Repo-Commit": sha})
        headers = {"ETag": f'"{compute_digest(data)}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not asked or self.command == "HEAD":
            return self.answer(200, data, name, **headers)
        low = int(asked[1])
        headers["Content-Range"] = f"bytes {low}-{len(data) - 1}/{len(data)}"
        return self.answer(206, data[low:], name, **headers)

    def failure(self, status: int, code: str, **headers: str) -> None:
        """An error as the hub words it."""
        self.answer(status, json.dumps({"error": code}).encode(), **{"X-Error-Code": code}, **headers)

    def answer(self, status: int, body: bytes, name: str = "", /, **headers: str) -> None:
        """Send all of it, or break off where the test wants it."""
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        torn = name in self.hub.reset
        cut = len(body) // 2 if torn else self.hub.cut.pop(name, None)
        self.wfile.write(body[:cut])
        self.close_connection = self.close_connection or cut is not None
        if torn:
            self.hub.reset.remove(name)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()


def list_tree(content: dict[str, bytes]) -> list[dict[str, object]]:
    """The listing of a commit."""
    folders = {str(parent) for name in content for parent in Path(name).parents} - {"."}
    return [{"type": "directory", "path": f, "size": 0, "oid": compute_digest(f)} for f in sorted(folders)] + [
        {"type": "file", "path": name, "size": len(data), "oid": compute_digest(data)} for name, data in content.items()
    ]


PROGRAM = """
import json, os, signal, sys, traceback, urllib.request

def local(event, arguments):  # nothing but 127.0.0.1
    host = arguments[0] if event == "socket.getaddrinfo" else arguments[1][0] if event == "socket.connect" else None
    if host not in (None, "127.0.0.1", b"127.0.0.1"):
        os.write(2, f"{event} {host}".encode())
        os._exit(99)

sys.addaudithook(local)
import torch, formers
from formers.interop.hub import fetch_model

def mark(name):
    urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/mark/" + name).read()

def same(where, folder, **how):
    one, other = formers.load(where, **how), formers.load(folder)
    theirs = other.model.state_dict()
    assert list(one.model.state_dict()) == list(theirs), where
    for name, value in one.model.state_dict().items():
        assert value.dtype == theirs[name].dtype and torch.equal(value, theirs[name]), (where, name)
    assert (one.family, one.head, one.config, one.labels) == (other.family, other.head, other.config, other.labels)
    assert one.source_files == other.source_files, (where, [*one.source_files], [*other.source_files])
    assert one.tokenizer is other.tokenizer is None or one.tokenizer.fingerprint == other.tokenizer.fingerprint, where
    return one

def refused(where, *words, **how):
    try:
        formers.load(where, **how)
    except formers.Error as error:
        text = str(error)
        assert all(word in text for word in words), f"{text!r} does not say {words}"
        assert "\\n" not in text and len(text) < 400, text
        assert error.fix, text
    else:
        raise AssertionError(f"{where} was loaded")

formers.load(sys.argv[1])  # what is imported on first use is imported here, once
for line in sys.stdin:
    job = json.loads(line)
    assert "huggingface_hub" not in sys.modules  # it reads the environment when it is imported: in each fork anew
    pid = os.fork()
    if pid == 0:
        signal.alarm(100)
        for number in (1, 2):
            os.dup2(os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.environ.clear()
        os.environ.update(job["environment"])
        try:
            exec(job["code"])
            code = 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def make_environment(home: Path, endpoint: str, **more: str) -> dict[str, str]:
    """What a child sees: its own cache, this hub, no proxy, no token."""
    return {
        "PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(SOURCE), "HOME": str(home), "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
        **more,
    }  # fmt: skip


class Child:
    """A process that has torch and formers ready and forks for every piece of code, so that each has an environment
    of its own. In it: `same`, `refused`, `mark`."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.output = folder / "output"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM, str(model)],
            env=make_environment(folder, "http://127.0.0.1:9"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    def __call__(self, home: Path, endpoint: str, code: str, **more: str) -> str:
        """Run a piece of code; what it wrote to the terminal."""
        self.output.write_text("")
        where = make_environment(home, endpoint, **more)
        self.process.stdin.write(
            json.dumps({"code": dedent(code), "output": str(self.output), "environment": where}) + "\n"
        )
        self.process.stdin.flush()
        ended = self.process.stdout.readline().strip()
        output = self.output.read_text(encoding="utf-8")
        assert ended == "0", f"{ended}: {output[-3000:]}"
        return output
