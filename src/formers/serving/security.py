"""The gate before every route: Host, Origin and token, the size of bodies, the number of requests, one log line each;
and the deadline by which a request must have arrived."""

from __future__ import annotations

import hmac
import json
import logging
import time
from asyncio import TimerHandle, Transport
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..config import JSONObject
from .metrics import ServerMetrics
from .responses import Overloaded, RequestError, make_error_response
from .settings import ServerSettings

PROBES = ("/health/live", "/health/ready")
SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
     b"object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
]  # fmt: skip
logger = logging.getLogger("formers.serving")


class Gate:
    """An ASGI application around another: who is not allowed in gets an answer before any route is looked up."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: ServerMetrics):
        self.app, self.settings, self.metrics = app, settings, metrics
        self.num_requests = 0  # at work now
        self.cookie_name = f"formers_token_{settings.port}"  # cookies do not tell ports apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        watch = ResponseWatch(send, self.make_cors_headers(read_headers(scope).get(b"origin", b"").decode("latin-1")))
        began, is_probe = time.perf_counter(), scope["path"] in PROBES
        scope["deadline"] = time.monotonic() + self.settings.limits.request_seconds
        try:
            if not is_probe:
                if (answer := self.check_request(scope)) is not None:
                    return await answer(scope, receive, watch.send)
                if self.num_requests >= self.settings.limits.max_concurrent_requests:
                    raise Overloaded(f"{self.num_requests} requests are at work")
                receive = LimitedBody(receive, scope, self.settings.limits.max_body_bytes).receive
            self.num_requests += not is_probe
            try:
                await self.app(scope, receive, watch.send)
            finally:
                self.num_requests -= not is_probe
        except RequestError as error:
            scope["error_kind"] = error.kind
            await make_error_response(error, scope["path"])(scope, receive, watch.send)
        finally:
            self.record_request(scope, watch.status, time.perf_counter() - began)

    def check_request(self, scope: Scope) -> ASGIApp | None:
        """Refuse a request by its headers; a browser that brings the token in the address gets it as a cookie."""
        headers = read_headers(scope)
        host = headers.get(b"host", b"").decode("latin-1")
        own_address = (scope.get("server") or ("",))[0]
        if strip_port(host) not in self.settings.host_names | {own_address}:
            fix = "a name of this server's own is given with --allow-host"
            raise RequestError("this server does not answer to that host", status=403, kind="host", fix=fix)
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin not in self.settings.cors_origins and not is_same_origin(origin, host, scope["scheme"]):
            fix = "name the page's origin with --cors-origin"
            raise RequestError("pages of that origin may not call this server", status=403, kind="origin", fix=fix)
        if scope["method"] == "OPTIONS" and origin and b"access-control-request-method" in headers:
            return answer_preflight
        if self.settings.token is None or self.has_token(headers):
            return None
        words = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        token = words.pop("token", [""])[0]
        if scope["method"] == "GET" and scope["path"].startswith("/playground") and self.is_token(token):
            return self.make_cookie_redirect(scope["path"], words, token)
        fix = "send it as: Authorization: Bearer TOKEN"
        raise RequestError("the token is missing or wrong", status=401, kind="token", fix=fix)

    def has_token(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether the token is there, as a header or as the playground's cookie."""
        kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if kind.lower() == "bearer":
            return self.is_token(token.strip())
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return False
        return self.cookie_name in cookies and self.is_token(cookies[self.cookie_name].value)

    def is_token(self, given: str) -> bool:
        """Compare a token in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), (self.settings.token or "").encode())

    def make_cookie_redirect(self, path: str, words: Mapping[str, list[str]], token: str) -> ASGIApp:
        """Answer with the token as a cookie that scripts and other sites cannot use, and the address without it."""
        target = path + ("?" + urlencode(words, doseq=True) if words else "")
        cookie = f"{self.cookie_name}={token}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"location", target.encode("ascii", "replace")), (b"set-cookie", cookie.encode("ascii"))]
        return make_empty_answer(303, headers)

    def make_cors_headers(self, origin: str) -> list[tuple[bytes, bytes]]:
        """Make the headers that let a page of a named origin read answers."""
        if origin not in self.settings.cors_origins:
            return []
        allow = b"access-control-allow-"
        return [
            (allow + b"origin", origin.encode("latin-1")), (b"vary", b"origin"), (allow + b"methods", b"GET, POST"),
            (allow + b"headers", b"authorization, content-type"), (b"access-control-max-age", b"600"),
        ]  # fmt: skip

    def record_request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request and write its log line, which holds nothing that the client wrote."""
        route = getattr(scope.get("route"), "path", "")  # dynamic: a class of starlette's, if one matched
        route = route or scope.get("root_path") or "none"  # of a mounted folder of files, its place
        kind = scope.get("error_kind")
        self.metrics.record_request(route, status, kind, seconds)
        facts: JSONObject = {"method": scope["method"], "route": route, "status": status}
        facts["ms"] = round(1000 * seconds, 2)
        facts |= {"error": kind} if kind else {}
        facts |= scope.get("log_facts", {})
        if scope["path"] not in PROBES:  # they come every few seconds
            logger.info("request", extra={"facts": facts})


class ResponseWatch:
    """What an application sends: its status, with the headers that every answer gets."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]):
        self.send_message, self.headers, self.status = send, [*SAFE_HEADERS, *headers], 499  # the client is gone

    async def send(self, message: Message) -> None:
        """Send a message on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), *self.headers]
        await self.send_message(message)


class LimitedBody:
    """A request's body that may not grow beyond a limit, declared or sent."""

    def __init__(self, receive: Receive, scope: Scope, limit: int):
        declared = read_headers(scope).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared[:20]) > limit:
            raise self.make_error(limit)
        self.receive_message, self.limit, self.size = receive, limit, 0

    async def receive(self) -> Message:
        """Receive a message; raises once the body is too long."""
        message = await self.receive_message()
        self.size += len(message.get("body", b""))
        if self.size > self.limit:
            raise HTTPException(413, str(self.make_error(self.limit)))
        return message

    @staticmethod
    def make_error(limit: int) -> RequestError:
        """Make the error of a body that is too long."""
        what = f"the body has more than {limit:,} bytes"
        return RequestError(what, status=413, fix="send it in several requests, or start with --max-body-bytes")


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a deadline: a request that has not arrived by then is not waited for.

    The time runs from the connection's first moment, and from the first byte of each later request.
    """

    read_seconds = 10.0
    read_deadline: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Start the time of a new connection."""
        super().connection_made(transport)
        self.start_deadline()

    def on_message_begin(self) -> None:
        """Start the time of a later request."""
        super().on_message_begin()
        if self.read_deadline is None:
            self.start_deadline()

    def on_message_complete(self) -> None:
        """Stop the time: the request is here."""
        self.stop_deadline()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time: the client is gone."""
        self.stop_deadline()
        super().connection_lost(exc)

    def start_deadline(self) -> None:
        """Close the connection unless the request arrives in time."""
        self.read_deadline = self.loop.call_later(self.read_seconds, self.transport.abort)

    def stop_deadline(self) -> None:
        """Keep the connection open."""
        if self.read_deadline is not None:
            self.read_deadline.cancel()
            self.read_deadline = None


class JsonLogFormatter(logging.Formatter):
    """Log lines as JSON: time, level, event, and its facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one line; of an exception its type and place, never its message, which may quote a text."""
        line: JSONObject = {"time": self.formatTime(record), "level": record.levelname.lower()}
        line["event"] = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            trace = record.exc_info[2]
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            place = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            line["exception"] = f"{type(record.exc_info[1]).__name__} at {place}"
        return json.dumps(line | getattr(record, "facts", {}))  # dynamic: `extra` of a log call becomes attributes


def read_headers(scope: Scope) -> dict[bytes, bytes]:
    """Read the headers of a request; of several of one name, all, so that no check sees another than the route."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers[name] = value if name not in headers else headers[name] + b"," + value
    return headers


def strip_port(host: str) -> str:
    """Return the name of a Host header, in lower case, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.rpartition(":")[2].isdigit() and ":" in host else host.lower()


def is_same_origin(origin: str, host: str, scheme: str) -> bool:
    """Return whether a page's origin is the server itself; a reverse proxy may have ended TLS before it."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in (scheme, "https") and parts.netloc.lower() == host.lower() != ""


def make_empty_answer(status: int, headers: list[tuple[bytes, bytes]]) -> ASGIApp:
    """Make an answer without a body."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"0")]}
        await send(start)
        await send({"type": "http.response.body", "body": b""})

    return answer


answer_preflight = make_empty_answer(200, [])
