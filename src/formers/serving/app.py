"""The server as one ASGI application, and its life: loading, answering, reloading, draining."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from .. import __version__
from ..config import JSONValue
from ..errors import Error
from . import huggingface_routes, openai_routes, playground_routes, tei_routes
from .metrics import ServerMetrics
from .request_context import ServerState
from .responses import JsonResponse, RequestError, get_error_kind, get_protocol, make_error_response
from .security import Gate, JsonLogFormatter, TimedProtocol
from .served_models import ModelLoader, ModelTable
from .settings import ServerSettings

TYPE_NAMES = ("str", "int", "float", "bool", "dict")
MIN_OPEN_FILES = 4096  # connections are files, and slow ones stay until their deadline
logger = logging.getLogger("formers.serving")


def build_app(sources: Sequence[str], load: ModelLoader, settings: ServerSettings) -> FastAPI:
    """Build the application: models are loaded when it starts, and closed when it ends."""
    metrics = ServerMetrics()
    models = ModelTable(sources, load, settings, metrics)
    state = ServerState(settings, models, metrics)

    @asynccontextmanager
    async def run_lifespan(app: FastAPI) -> AsyncIterator[None]:
        if not models.models:
            await asyncio.to_thread(models.load_all)
        yield
        state.is_draining = True
        await asyncio.to_thread(models.close)

    app = FastAPI(
        title="formers", version=__version__, lifespan=run_lifespan, docs_url=None, redoc_url=None,
        default_response_class=JsonResponse,
        description="Models of formers over HTTP, in the protocols of OpenAI, text-embeddings-inference and "
        "Hugging Face.",
    )  # fmt: skip
    app.state.server = state
    for module in (openai_routes, tei_routes, playground_routes):
        app.include_router(module.router)
    playground_routes.mount_pages(app)
    app.include_router(huggingface_routes.router)  # last: its paths begin with any model's name
    app.add_exception_handler(Error, answer_error)
    app.add_exception_handler(RequestValidationError, answer_invalid_body)
    app.add_exception_handler(HTTPException, answer_http_error)
    app.add_exception_handler(Exception, answer_failure)
    app.add_middleware(Gate, settings=settings, metrics=metrics)
    return app


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer with an error of formers."""
    assert isinstance(error, Error)
    request.scope["error_kind"] = get_error_kind(error)
    return make_error_response(error, request.url.path)


async def answer_invalid_body(request: Request, error: Exception) -> Response:
    """Say what is wrong with a body, without repeating it."""
    assert isinstance(error, RequestValidationError)
    words = []
    if "json" not in request.headers.get("content-type", ""):
        words.append("the body is not announced as JSON (Content-Type: application/json)")
    words += [describe_problem(one) for one in error.errors()[:3]]
    status = 400 if get_protocol(request.url.path) == "openai" else 422
    return await answer_error(request, RequestError("; ".join(words) or "the body is not valid", status=status))


def describe_problem(problem: Mapping[str, JSONValue]) -> str:
    """Describe what pydantic found, by the names that the client wrote: of a body that may have several forms, pydantic
    also names the class or type of each."""
    if problem["type"] == "json_invalid":
        return f"the body is not valid JSON (at character {problem['loc'][-1]})"
    parts = [str(part) for part in problem["loc"] if part != "body" and part not in TYPE_NAMES]
    place = ".".join(part for part in parts if part.isdigit() or (part.islower() and not part.endswith("]")))
    return f"{place}: {problem['msg']}" if place else str(problem["msg"])


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Answer for routes and methods that do not exist, and bodies that are too long or no JSON."""
    assert isinstance(error, HTTPException)
    names = {
        400: "the body cannot be read: it is not UTF-8, or too deeply nested", 404: "there is no such route",
        405: "this route does not take that method",
    }  # fmt: skip
    refusal = RequestError(names.get(error.status_code, str(error.detail)), status=error.status_code)
    request.scope["error_kind"] = refusal.kind
    return make_error_response(refusal, request.url.path, error.headers)


async def answer_failure(request: Request, error: Exception) -> Response:
    """Answer for what should not happen; the log has its place, the answer nothing of it."""
    logger.error("failure", exc_info=error)
    return make_error_response(RequestError("the server failed", status=500, kind="backend"), request.url.path)


class Server(uvicorn.Server):
    """uvicorn's server: SIGTERM ends it after the requests at work, SIGHUP loads the models again."""

    def __init__(self, config: uvicorn.Config, state: ServerState, on_start: Callable[[int], None] | None):
        super().__init__(config)
        self.state, self.on_start = state, on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and say where."""
        await super().startup(sockets)
        with suppress(AttributeError, ValueError, NotImplementedError, RuntimeError):  # Windows; not the main thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload_models)
        if self.started and self.on_start is not None:
            self.on_start(self.servers[0].sockets[0].getsockname()[1])

    def reload_models(self) -> None:
        """Load all models again on a thread; requests continue meanwhile."""
        threading.Thread(target=self.state.models.load_all, daemon=True).start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the requests at work, and end."""
        self.state.is_draining = True
        logger.info("draining")
        await super().shutdown(sockets)
        self._captured_signals.clear()  # uvicorn would raise them again, and a drained server has not failed


def run_server(
    sources: Sequence[str], load: ModelLoader, settings: ServerSettings, on_start: Callable[[int], None] | None = None
) -> None:
    """Serve models until a signal ends it; `on_start` is called with the port once requests are answered."""
    raise_file_limit()
    configure_logs()
    app = build_app(sources, load, settings)
    state: ServerState = app.state.server
    state.models.load_all()  # an error of a model is one line, before anything listens
    protocol = type("Protocol", (TimedProtocol,), {"read_seconds": settings.limits.read_seconds})
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, http=protocol, ws="none", log_config=None, access_log=False,
        server_header=False, timeout_graceful_shutdown=int(settings.limits.drain_seconds) or 1, backlog=2048,
    )  # fmt: skip
    try:
        Server(config, state, on_start).run()
    except SystemExit:
        fix = "is another server there? Take another --port"
        raise Error(f"cannot listen on {settings.host} port {settings.port}", fix=fix) from None


def configure_logs() -> None:
    """Write the server's log to standard error, a line of JSON for each event."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    for name in ("formers.serving", "uvicorn.error"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO if name == "formers.serving" else logging.WARNING)


def raise_file_limit() -> None:
    """Allow as many open files as the system lets this process have."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MIN_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MIN_OPEN_FILES)
        if soft < limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
