"""formers serve: models over HTTP."""

from __future__ import annotations

import os
import webbrowser
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ..errors import Error
from ..serving.settings import ServerLimits, ServerSettings
from .common import Placement, load_model
from .terminal import SafeConsole

if TYPE_CHECKING:
    from ..former import Former

TOKEN_VARIABLE = "FORMERS_SERVE_TOKEN"
SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SPIN_COUNT = "20000"  # about half a millisecond: longer than the gaps between the operations of a model


@Parameter(name="*")
@dataclass(frozen=True)
class LimitOptions:
    """Limits of the server; what is beyond them is refused, never cut."""

    max_concurrent_requests: Annotated[int, Parameter(help="Requests processed at once; more get 429.")] = (
        ServerLimits.max_concurrent_requests
    )
    max_queue: Annotated[int, Parameter(help="Requests waiting for one model; more get 429.")] = ServerLimits.max_queue
    max_body_bytes: Annotated[int, Parameter(help="Bytes in a request; more get 413.")] = ServerLimits.max_body_bytes
    max_batch_tokens: Annotated[int, Parameter(help="Tokens in a batch, and in one text; more get 413.")] = (
        ServerLimits.max_batch_tokens
    )
    max_texts: Annotated[int, Parameter(help="Texts in one request; more get 413.")] = ServerLimits.max_texts
    max_sequences: Annotated[int, Parameter(help="Texts that a model generates at once.")] = ServerLimits.max_sequences
    max_tokens: Annotated[int, Parameter(help="Tokens in a text, for models without a limit of their own.")] = (
        ServerLimits.max_tokens
    )
    request_seconds: Annotated[float, Parameter(help="Seconds that a request may take; then it gets 503.")] = (
        ServerLimits.request_seconds
    )
    read_seconds: Annotated[
        float, Parameter(help="Seconds for a request to arrive; then its connection is closed.")
    ] = ServerLimits.read_seconds
    drain_seconds: Annotated[float, Parameter(help="Seconds to finish requests in progress after SIGTERM.")] = (
        ServerLimits.drain_seconds
    )


def serve(
    *models: str, host: str = "127.0.0.1", port: int = 8000, token: str | None = None,
    open_page: Annotated[bool, Parameter(name="--open")] = False, allow_host: tuple[str, ...] = (),
    cors_origin: tuple[str, ...] = (), token_ids: bool = False,
    pool: Literal["mean", "first", "last", "max", "sum", "weighted"] = "mean", limits: LimitOptions | None = None,
    placement: Placement | None = None,
) -> None:  # fmt: skip
    """Serve models over HTTP with the APIs of OpenAI, text-embeddings-inference and Hugging Face, and a web page.

    formers serve my-gpt2 --open
    formers serve my-bert my-gpt2 --port 9000
    formers serve small=runs/1/model hub:sentence-transformers/all-MiniLM-L6-v2 --dtype bf16
    FORMERS_SERVE_TOKEN=… formers serve my-bert --host 0.0.0.0 --allow-host models.example.org

    SIGTERM finishes the requests in progress and stops the server; SIGHUP reloads the models. Needs formers[serve].

    Args:
        models: Models to serve (directories, runs, formers/NAME or hub:owner/name), each called by the last part of its
            path, or by NAME with NAME=PATH.
        host: The address to listen on. Any other than this machine's own needs a token.
        port: The port to listen on; 0 takes one that is free.
        token: A secret that every request must send (Authorization: Bearer …); better set as FORMERS_SERVE_TOKEN.
        open_page: Open the playground in a browser.
        allow_host: A name by which clients may call this server; may be given several times.
        cors_origin: An origin whose pages may call this server, as https://example.org; may be given several times.
        token_ids: Accept prompts as token ids of the model's own vocabulary.
        pool: How the vectors of a text's tokens are pooled.
    """
    if not models:
        raise Error("there is no model to serve", fix="formers serve MODEL")
    limit_spinning()
    try:
        from ..serving.app import run_server
    except ModuleNotFoundError as error:
        raise Error(f"the server needs {error.name}", fix="pip install 'formers[serve]'") from None

    secret = token or os.environ.get(TOKEN_VARIABLE) or None
    bounds = ServerLimits(**asdict(limits or LimitOptions()))
    settings = ServerSettings(host, port, secret, allow_host, cors_origin, token_ids, pool, bounds)

    def load(source: str) -> Former:
        return load_model(source, placement)

    def announce(port: int) -> None:
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{port}"
        SafeConsole(stderr=True).print(f"formers: serving on {address} (Ctrl-C ends it)")
        if open_page:
            webbrowser.open(f"{address}/playground/" + ("" if secret is None else f"?token={secret}"))

    run_server(models, load, settings, announce)


def limit_spinning() -> None:
    """Let torch's idle threads give up their core soon; must come before torch is imported.

    By default they spin for some 7 ms after a product, on a core that the event loop needs for the next request."""
    if not any(name in os.environ for name in SPIN_VARIABLES):
        os.environ[SPIN_VARIABLES[0]] = SPIN_COUNT
