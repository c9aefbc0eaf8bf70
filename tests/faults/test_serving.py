"""The server under overload, slow and vanishing clients, bad neighbours, signals, and for long (rows 17 to 19, 21 to
24 of the list of faults)."""

from __future__ import annotations

import collections
import concurrent.futures
import http.client
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import formers
from formers.generation.engine import Engine, Request
from formers.serving.settings import ServerSettings
from tests.serving.server_process import start_server
from tests.serving.server_thread import run_in_thread
from tests.serving.small_models import build_small

HEADERS = {"Content-Type": "application/json"}


def post(port: int, path: str, body: dict, timeout: float = 60) -> tuple[int, dict, dict]:
    """Send one request on a connection of its own; returns status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), HEADERS)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), json.loads(answer.read())
    finally:
        connection.close()


def run_clients(count: int, call) -> list:
    """Call a function of a client's number on threads, all at once."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


def find_p99(seconds: list[float]) -> float:
    return float(np.percentile(seconds, 99))


def read_served_times(server) -> list[float]:
    """Seconds of every request that was served, by the server's own clock: the clients' threads wait for each other."""
    lines = [line for line in server.read_log() if line.get("route") == "/v1/completions"]
    return [line["ms"] / 1000 for line in lines if line["status"] == 200]


@pytest.fixture(scope="module")
def writer() -> formers.Former:
    """A model that continues for thousands of tokens."""
    return build_small("gpt2", "lm", context=4096, eos=None)


def test_row_17_an_overload_is_refused_and_the_admitted_are_served(models, tmp_path, full):
    """Twelve requests at work and two waiting: the stated bounds, against 64 clients at once. The server is a process
    of its own, so that the clients' threads do not slow it."""
    formers.save(models["gpt2"], tmp_path / "gpt2")
    bounds = ("--max-concurrent-requests", "12", "--max-queue", "2", "--max-sequences", "12")
    body = {"model": "gpt2", "prompt": "the cat", "max_tokens": 40, "temperature": 0}
    want = models["gpt2"].generate("the cat", 40, temperature=0)
    rounds = 20 if full else 2
    with start_server(tmp_path, str(tmp_path / "gpt2"), *bounds) as server:

        def ask(_: int) -> list[tuple[int, float, dict, dict]]:
            found = []
            for _ in range(rounds):
                began = time.monotonic()
                status, headers, answer = post(server.port, "/v1/completions", body)
                found.append((status, time.monotonic() - began, headers, answer))
                if status != 200:
                    time.sleep(0.25)  # a quarter of what Retry-After asks for
            return found

        unloaded = [one for row in run_clients(12, ask) for one in row]
        split = len(read_served_times(server))
        loaded = [one for row in run_clients(64, ask) for one in row]
        times = read_served_times(server)
    counts = collections.Counter(status for status, *_ in loaded)
    assert set(counts) <= {200, 429, 503}
    assert counts[200]
    assert counts[429]
    for status, _, headers, answer in loaded:
        if status == 200:
            assert answer["choices"][0]["text"] == want
        else:
            assert int(headers["retry-after"]) >= 1
            assert answer["error"]["type"] in ("rate_limit_error", "server_error")
    before, after = find_p99(times[:split]), find_p99(times[split:])
    seen = [find_p99([one[1] for one in some if one[0] == 200]) for some in (unloaded, loaded)]
    print(
        f"row 17: {dict(counts)} of 64 clients; admitted p99 {after:.3f} s, {after / before:.2f} × the unloaded one; "
        f"by the clients' clock, whose threads share a core, {seen[1]:.3f} s, {seen[1] / seen[0]:.2f} ×"
    )
    if full:
        assert after <= 2 * before


def test_row_18_slow_connections_are_closed_at_the_deadline_and_others_served(models, tmp_path, full):
    count, asked = (1000, 500) if full else (60, 20)
    formers.save(models["bert"], tmp_path / "bert")
    seconds = "8" if full else "2"
    with start_server(tmp_path, str(tmp_path / "bert"), "--read-seconds", seconds) as server:

        def ask() -> float:
            began = time.monotonic()
            assert post(server.port, "/v1/embeddings", {"input": "the cat"})[0] == 200
            return time.monotonic() - began

        healthy = [ask() for _ in range(asked)]
        slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
        for number, one in enumerate(slow):  # nothing, half a line, a body that never comes
            starts = (
                b"",
                b"POST /v1/emb",
                b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 90\r\n\r\n{",
            )
            one.sendall(starts[number % 3])
        beside = [ask() for _ in range(asked)]
        deadline, closed = time.monotonic() + 20, 0
        for one in slow:
            one.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                while one.recv(4096):
                    pass
                closed += 1
            except ConnectionError:
                closed += 1
            except TimeoutError:
                pass
            one.close()
        assert ask() < 60
    ratio = find_p99(beside) / find_p99(healthy)
    print(f"row 18: {closed} of {count} slow connections closed at the deadline; healthy p99 × {ratio:.2f}")
    assert closed == count
    if full:
        assert ratio <= 1.2


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
def test_row_19_a_client_that_is_gone_frees_its_slot_within_a_step(writer, full, streams, monkeypatch):
    count = 500 if full else 12
    steps, cancelled, delays = collections.Counter(), dict[Request, int](), list[int]()
    step, cancel, release = Engine.step, Request.cancel, Engine.release_slot

    def count_step(self):
        steps["all"] += 1
        return step(self)

    def note_cancel(self):
        cancelled.setdefault(self, steps["all"])
        cancel(self)

    def note_release(self, slot):
        request = self.active_requests[slot]
        if request in cancelled:
            delays.append(steps["all"] - cancelled.pop(request))
        release(self, slot)

    monkeypatch.setattr(Engine, "step", count_step)
    monkeypatch.setattr(Request, "cancel", note_cancel)
    monkeypatch.setattr(Engine, "release_slot", note_release)
    body = json.dumps({"prompt": "the cat", "max_tokens": 4000, "stream": streams}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}"
    with run_in_thread({"writer": writer}, max_sequences=4) as server:
        engine = server.find("writer").engine
        for _ in range(count):
            with socket.create_connection(("127.0.0.1", server.port)) as one:
                one.sendall(head.encode() + b"\r\n\r\n" + body)
                if streams:
                    one.recv(512)
                else:
                    wait_for(lambda: engine.active_requests)
        quiet_since = time.monotonic()

        def is_quiet() -> bool:
            """The server may still be reading requests of clients that are gone: it must stay quiet for a second."""
            nonlocal quiet_since
            if engine.active_requests or engine.waiting_requests or server.find("writer").num_requests:
                quiet_since = time.monotonic()
            return time.monotonic() - quiet_since > 1

        wait_for(is_quiet)
        leaked = len(engine.active_requests)
        assert post(server.port, "/v1/completions", {"prompt": "the cat", "max_tokens": 3})[0] == 200
    print(f"row 19: {leaked} leaked of {count}; steps from the cancellation to the free slot: at most {max(delays)}")
    assert leaked == 0
    assert max(delays) <= 1


def wait_for(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_row_21_only_the_bad_request_of_a_batch_fails(models, full):
    count = 1000 if full else 60
    texts = [f"the cat sat {number}" for number in range(count)]
    want = [one.probabilities["good"] for one in models["classifier"].classify(texts)]
    with run_in_thread(models, ["classifier"]) as server:

        def ask(number: int) -> bool:
            if number % 3 == 2:  # a text that the model refuses, inside of the batch
                return post(server.port, "/predict", {"inputs": " "})[0] == 422
            status, _, found = post(server.port, "/predict", {"inputs": texts[number]})
            scores = {one["label"]: one["score"] for one in found}
            return status == 200 and abs(scores["good"] - want[number]) <= 1e-5

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            right = sum(pool.map(ask, range(count)))
    print(f"row 21: {right} of {count} requests got their own answer")
    assert right == count


def test_row_22_sigterm_lets_requests_finish(writer, tmp_path, full):
    rounds, dropped, finished = 5 if full else 1, 0, 0
    formers.save(writer, tmp_path / "writer")
    for _ in range(rounds):
        with start_server(tmp_path, str(tmp_path / "writer"), "--max-sequences", "8") as server:
            results: list[object] = []

            def ask(number: int, server=server, results=results) -> None:
                try:
                    body = {"prompt": "the cat", "max_tokens": 150 + number, "temperature": 0}
                    status, _, answer = post(server.port, "/v1/completions", body)
                    results.append((status, answer["usage"]["completion_tokens"] == 150 + number))
                except ConnectionRefusedError:
                    results.append("refused")  # it had not been accepted
                except (OSError, http.client.HTTPException) as error:
                    results.append(error)

            threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
            for one in threads:
                one.start()
            time.sleep(0.5)
            server.send_signal(signal.SIGTERM)
            for one in threads:
                one.join(60)
            assert server.process.wait(60) == 0
            finished += sum(one == (200, True) for one in results)
            dropped += sum(one not in ((200, True), "refused") for one in results)
            with pytest.raises(OSError, match="refused"):
                post(server.port, "/v1/completions", {"prompt": "x"})
    print(f"row 22: {finished} requests at work finished after SIGTERM, {dropped} dropped")
    assert dropped == 0
    assert finished


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
def test_row_22_each_reply_comes_from_one_version_of_a_reloaded_model(tmp_path, full):
    versions = {name: build_small("gpt2", "lm", init=init) for name, init in (("a", 0.3), ("b", 0.6))}
    for name, former in versions.items():
        formers.save(former, tmp_path / name)
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "a")
    body = {"prompt": "the cat", "max_tokens": 30, "temperature": 0}
    want = {former.fingerprint[:12]: former.generate("the cat", 30, temperature=0) for former in versions.values()}
    assert len(set(want.values())) == 2
    seen, wrong, is_over = collections.Counter(), [], threading.Event()
    with start_server(tmp_path, str(link)) as server:

        def ask(_: int) -> None:
            while not is_over.is_set():
                status, _, answer = post(server.port, "/v1/completions", body)
                version = answer.get("system_fingerprint", "").partition(".")[0]
                seen[version] += 1
                if status != 200 or answer["choices"][0]["text"] != want.get(version):
                    wrong.append(answer)

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(ask, number) for number in range(6)]
            for name in ("b", "a", "b") * (5 if full else 1):
                new = tmp_path / "new"
                new.symlink_to(tmp_path / name)
                os.replace(new, link)
                loaded = sum(line["event"] == "model" for line in server.read_log())
                server.send_signal(signal.SIGHUP)
                wait_for(lambda loaded=loaded: sum(x["event"] == "model" for x in server.read_log()) > loaded)
                time.sleep(0.2)
            is_over.set()
            for one in asked:
                one.result(60)
    print(
        f"row 22: {sum(seen.values())} replies over {len(seen)} versions while models were reloaded, {len(wrong)} mixed"
    )
    assert not wrong
    assert set(seen) == set(want)


def test_row_23_every_route_is_locked_but_the_probes(models):
    """Over a real connection; tests/serving/test_security.py has the many ways to be wrong."""
    settings = ServerSettings(port=0, token="a-long-enough-token")
    allowed = {"Authorization": "Bearer a-long-enough-token"}
    with run_in_thread(models, ["bert", "gpt2"], settings=settings) as server:
        assert server.server.servers[0].sockets[0].getsockname()[0] == "127.0.0.1"

        def ask(method: str, path: str, **headers: str) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            connection.request(method, path, headers=headers)
            status = connection.getresponse().status
            connection.close()
            return status

        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", "/openapi.json", headers=allowed)
        paths = json.loads(connection.getresponse().read())["paths"]
        locked = 0
        for path, methods in paths.items():
            for method in methods:
                place = path.replace("{model}", "bert").replace("{task}", "fill-mask")
                found = ask(method.upper(), place), ask(method.upper(), place, Host="evil.test", **allowed)
                found += (ask(method.upper(), place, Origin="https://evil.test", **allowed),)
                assert found == ((200, 200, 200) if path.startswith("/health/") else (401, 403, 403)), path
                locked += not path.startswith("/health/")
    print(f"row 23: {locked} of {locked} routes refuse a missing token, a foreign host and a foreign origin")


def read_memory(pid: int) -> float:
    """The resident memory of a process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_row_24_nothing_grows(models, tmp_path, full):
    """Files and threads of a server stay the same over many requests, right and wrong ones; over ten minutes of them
    after ten to warm up, memory too (full form). The server is a process of its own: what the clients and the capture
    of logs keep is not its memory."""
    warm, seconds = (600, 600) if full else (0, 2)
    bodies = [
        ("/v1/embeddings", {"model": "bert", "input": ["the cat", "a bird"]}, 200),
        ("/v1/completions", {"model": "gpt2", "prompt": "the cat", "max_tokens": 4, "logprobs": 2, "echo": True}, 200),
        ("/predict", {"model": "classifier", "inputs": "the cat"}, 200),
        ("/bert/fill-mask", {"inputs": "the [MASK] sat"}, 200),
        ("/v1/completions", {"model": "gpt2", "prompt": 5}, 400),
        ("/nowhere/at/all", {}, 404),
    ]
    for name in ("bert", "gpt2", "classifier"):
        formers.save(models[name], tmp_path / name)
    paths = [str(tmp_path / name) for name in ("bert", "gpt2", "classifier")]
    with start_server(tmp_path, *paths) as server:
        pid = server.process.pid

        def ask(number: int) -> None:
            path, body, status = bodies[number % len(bodies)]
            assert post(server.port, path, body)[0] == status, path

        def count_open() -> tuple[int, int]:
            return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))

        run_clients(4, lambda first: [ask(number) for number in range(first, 60)])  # all threads are there now
        threads, files = count_open()
        began, count, points = time.monotonic(), 0, list[tuple[float, float]]()
        while (passed := time.monotonic() - began) < warm + seconds:
            for number in range(30):
                ask(number)
            count += 30
            points.append((passed / 3600, read_memory(pid)))
        wait_for(lambda: count_open()[1] <= files)
        assert count_open()[0] <= threads
    late = [point for point in points if point[0] >= warm / 3600]
    slope = float(np.polyfit(*zip(*late, strict=True), 1)[0]) if full else 0.0
    marks = " ".join(f"{points[at * (len(points) - 1) // 10][1]:.1f}" for at in range(11))
    print(
        f"row 24: {count} requests in {warm + seconds} s; memory in MB at every tenth: {marks}; in the last "
        f"{seconds} s {slope:.2f} MB/h"
    )
    if full:
        assert slope < 1
