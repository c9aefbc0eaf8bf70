"""Metrics for Prometheus, under the names of text-embeddings-inference (te_) and of vLLM (vllm:)."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..config import Settings

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
SIZES = tuple(2.0**power for power in range(15))
# Route → the name that text-embeddings-inference counts it under.
ROUTE_NAMES = {
    "/embed": "embed", "/embed_all": "embed", "/v1/embeddings": "embed", "/similarity": "embed", "/predict": "predict",
    "/rerank": "rerank", "/v1/rerank": "rerank", "/v2/rerank": "rerank", "/tokenize": "tokenize", "/decode": "decode",
}  # fmt: skip


class ServerMetrics:
    """All counters of one server. Labels hold names of models, routes and kinds, never anything of a text."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        make: Settings = {"registry": self.registry}
        self.requests = Counter("te_request_count", "Requests", ["method"], **make)
        self.successes = Counter("te_request_success", "Requests that were answered", ["method"], **make)
        self.failures = Counter("te_request_failure", "Requests that were refused or failed", ["err"], **make)
        self.durations = Histogram("te_request_duration", "Seconds per request", ["method"], buckets=SECONDS, **make)
        self.tokenization = Histogram(
            "te_request_tokenization_duration", "Seconds of tokenizing a request", buckets=SECONDS, **make
        )
        self.queueing = Histogram(
            "te_request_queue_duration", "Seconds that a request waits for its first batch", buckets=SECONDS, **make
        )
        self.inference = Histogram(
            "te_request_inference_duration", "Seconds that a request's batches are computed", buckets=SECONDS, **make
        )
        self.input_lengths = Histogram("te_request_input_length", "Tokens of a text", buckets=SIZES, **make)
        self.batch_sizes = Histogram("te_batch_next_size", "Texts of a batch", buckets=SIZES, **make)
        self.batch_tokens = Histogram("te_batch_next_tokens", "Tokens of a batch", buckets=SIZES, **make)
        self.queue_size = Gauge("te_queue_size", "Requests that wait for a batch", **make)
        name = ["model_name"]
        self.running = Gauge("vllm:num_requests_running", "Texts that are being generated", name, **make)
        self.waiting = Gauge("vllm:num_requests_waiting", "Texts that wait for a slot", name, **make)
        self.prompt_tokens = Counter("vllm:prompt_tokens", "Tokens of prompts", name, **make)
        self.generated_tokens = Counter("vllm:generation_tokens", "Tokens that were generated", name, **make)
        self.finished = Counter("vllm:request_success", "Finished texts", [*name, "finished_reason"], **make)
        self.first_token = Histogram(
            "vllm:time_to_first_token_seconds", "Seconds to the first token", name, buckets=SECONDS, **make
        )
        self.between_tokens = Histogram(
            "vllm:inter_token_latency_seconds", "Seconds between two tokens", name, buckets=SECONDS, **make
        )
        self.text_durations = Histogram(
            "vllm:e2e_request_latency_seconds", "Seconds per generated text", name, buckets=SECONDS, **make
        )

    def record_request(self, route: str, status: int, kind: str | None, seconds: float) -> None:
        """Count a finished request."""
        method = ROUTE_NAMES.get(route, "other")
        self.requests.labels(method).inc()
        self.durations.labels(method).observe(seconds)
        if status < 400:
            self.successes.labels(method).inc()
        else:
            self.failures.labels(kind or str(status)).inc()

    def record_batch(self, size: int, tokens: int) -> None:
        """Count a batch that was computed."""
        self.batch_sizes.observe(size)
        self.batch_tokens.observe(tokens)

    def record_answer(self, queue_seconds: float, inference_seconds: float) -> None:
        """Count how long a request waited for a batch, and how long it was computed."""
        self.queueing.observe(queue_seconds)
        self.inference.observe(inference_seconds)

    def watch_queues(self, count: Callable[[], int]) -> None:
        """Read the number of waiting requests whenever the metrics are read."""
        self.queue_size.set_function(count)

    def format_text(self) -> bytes:
        """Format all metrics as Prometheus reads them; text-embeddings-inference writes its counters without _total,
        and neither writes when a counter was made."""
        lines = generate_latest(self.registry).splitlines(keepends=True)
        kept = [line for line in lines if b"_created" not in line]
        return b"".join(line.replace(b"_total", b"") if b"te_request_" in line else line for line in kept)
