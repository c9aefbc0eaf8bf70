"""formers serve: models over HTTP."""

from __future__ import annotations

import os
import webbrowser
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ..errors import Error
from ..serving.settings import ServerLimits, ServerSettings
from .common import ModelArgument, Placement, load_model
from .terminal import SafeConsole

if TYPE_CHECKING:
    from ..former import Former

TOKEN_VARIABLE = "FORMERS_SERVE_TOKEN"


@Parameter(name="*")
@dataclass(frozen=True)
class LimitOptions:
    """Limits of the server; what is beyond them is refused, never cut."""

    max_concurrent_requests: Annotated[int, Parameter(help="Requests at work at once; more get 429.")] = (
        ServerLimits.max_concurrent_requests
    )
    max_queue: Annotated[int, Parameter(help="Requests that wait for one model; more get 429.")] = (
        ServerLimits.max_queue
    )
    max_body_bytes: Annotated[int, Parameter(help="Bytes of a request; more get 413.")] = ServerLimits.max_body_bytes
    max_batch_tokens: Annotated[int, Parameter(help="Tokens of a batch, and of one text; more get 413.")] = (
        ServerLimits.max_batch_tokens
    )
    max_texts: Annotated[int, Parameter(help="Texts of one request; more get 413.")] = ServerLimits.max_texts
    max_sequences: Annotated[int, Parameter(help="Texts that a model generates at once.")] = ServerLimits.max_sequences
    max_tokens: Annotated[int, Parameter(help="Tokens of a text, for models without a limit of their own.")] = (
        ServerLimits.max_tokens
    )
    request_seconds: Annotated[float, Parameter(help="Time for a request; beyond it 503.")] = (
        ServerLimits.request_seconds
    )
    read_seconds: Annotated[float, Parameter(help="Time for a request to arrive; then its connection is closed.")] = (
        ServerLimits.read_seconds
    )
    drain_seconds: Annotated[float, Parameter(help="Time for requests at work after SIGTERM.")] = (
        ServerLimits.drain_seconds
    )


def serve(
    *models: ModelArgument, host: str = "127.0.0.1", port: int = 8000, token: str | None = None,
    open_page: Annotated[bool, Parameter(name="--open")] = False, allow_host: tuple[str, ...] = (),
    cors_origin: tuple[str, ...] = (), token_ids: bool = False,
    pool: Literal["mean", "first", "last", "max", "sum", "weighted"] = "mean", limits: LimitOptions | None = None,
    placement: Placement | None = None,
) -> None:  # fmt: skip
    """Serve models over HTTP: as OpenAI, text-embeddings-inference and Hugging Face's endpoints do, and as a page.

    formers serve my-gpt2 --open
    formers serve my-bert my-gpt2 --port 9000
    formers serve small=runs/1/model hub:sentence-transformers/all-MiniLM-L6-v2 --dtype bf16
    FORMERS_SERVE_TOKEN=… formers serve my-bert --host 0.0.0.0 --allow-host models.example.org

    SIGTERM ends the server after the requests at work, SIGHUP loads the models again. Needs the extra serve.

    Args:
        models: Models to serve, named by the last part of their path, or as NAME=PATH.
        host: The address to listen on. Any but this machine's own needs a token.
        port: The port to listen on; 0 takes one that is free.
        token: What every request must bring (Authorization: Bearer …); better given as FORMERS_SERVE_TOKEN.
        open_page: Open the playground in a browser.
        allow_host: A name by which clients may call this server; may be given several times.
        cors_origin: An origin whose pages may call this server, as https://example.org; may be given several times.
        token_ids: Accept prompts as token ids of the model's own vocabulary.
        pool: How the vectors of a text's tokens become one.
    """
    if not models:
        raise Error("there is no model to serve", fix="formers serve MODEL")
    try:
        from ..serving.app import run_server
    except ModuleNotFoundError as error:
        raise Error(f"the server needs {error.name}", fix="pip install 'formers[serve]'") from None

    given = token or os.environ.get(TOKEN_VARIABLE) or None
    bounds = ServerLimits(**asdict(limits or LimitOptions()))
    settings = ServerSettings(host, port, given, allow_host, cors_origin, token_ids, pool, bounds)

    def load(source: str) -> Former:
        return load_model(source, placement)

    def announce(port: int) -> None:
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{port}"
        SafeConsole(stderr=True).print(f"formers: serving on {address} (Ctrl-C ends it)")
        if open_page:
            webbrowser.open(f"{address}/playground/" + ("" if given is None else f"?token={given}"))

    run_server(models, load, settings, announce)
