"""Answers of the server: JSON, server-sent events, and errors in the shape that each protocol's clients read."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from ..config import JSONObject, JSONValue
from ..errors import Error, NonFinite

DONE_EVENT = b"data: [DONE]\n\n"
OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class RequestBody(BaseModel):
    """A body: its types are not converted, unknown fields are refused, numbers are finite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class ErrorBody(BaseModel):
    """An error as text-embeddings-inference and Hugging Face write it."""

    error: str
    error_type: str


class OpenAIError(BaseModel):
    """What went wrong, as OpenAI writes it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAIErrorBody(BaseModel):
    """An error as OpenAI writes it."""

    error: OpenAIError


ERROR_STATUSES = {
    400: "The request cannot be answered as it is", 401: "The token is missing or wrong",
    403: "The host or origin is not allowed", 404: "There is no such model, task or route",
    413: "The body or a text is too long", 422: "The body is not valid", 424: "The model failed",
    429: "Too many requests: Retry-After says when to come back", 503: "No time left, or the server is stopping",
}  # fmt: skip


def describe_errors(protocol: str) -> dict[int | str, JSONObject]:
    """Describe the errors of a protocol's routes for OpenAPI."""
    body = OpenAIErrorBody if protocol == "openai" else ErrorBody
    return {status: {"model": body, "description": words} for status, words in ERROR_STATUSES.items()}


def describe_answers(*media_types: str) -> dict[int | str, JSONObject]:
    """Describe the media types of a route's answer for OpenAPI."""
    return {200: {"description": "The answer", "content": {name: {} for name in media_types}}}


class RequestError(Error):
    """A request that is refused, with an HTTP status and the kind that text-embeddings-inference names."""

    def __init__(
        self, what: str, *, status: int = 400, kind: str = "validation", fix: str | None = None,
        retry_after: int | None = None, code: str | None = None,
    ):  # fmt: skip
        super().__init__(what, fix=fix)
        self.status, self.kind, self.retry_after, self.code = status, kind, retry_after, code


class Overloaded(RequestError):
    """More requests than the limits allow: the client shall come back later."""

    def __init__(self, what: str, *, status: int = 429, retry_after: int = 1):
        fix = "try again later; Retry-After says when"
        super().__init__(what, status=status, kind="overloaded", fix=fix, retry_after=retry_after)


class JsonResponse(JSONResponse):
    """JSON by orjson, which also writes NumPy arrays; NaN becomes null."""

    def render(self, content: JSONValue) -> bytes:
        """Write the content as JSON."""
        return encode_json(content)


def encode_json(content: JSONValue) -> bytes:
    """Encode a value as JSON."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def encode_event(content: JSONValue) -> bytes:
    """Encode a value as one server-sent event."""
    return b"data: " + encode_json(content) + b"\n\n"


def find_status(error: Error, path: str) -> int:
    """Return the HTTP status of an error: what a model cannot take is the client's, what it computes is not."""
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, NonFinite):
        return 424
    return 422 if get_protocol(path) == "tei" else 400


def get_error_kind(error: Error) -> str:
    """Return the kind of an error as text-embeddings-inference names it."""
    if isinstance(error, RequestError):
        return error.kind
    return "backend" if isinstance(error, NonFinite) else "validation"


def make_error_body(error: Error, path: str) -> JSONObject:
    """Make the body of an error in the shape of the route's protocol."""
    status, message = find_status(error, path), str(error)
    kind = get_error_kind(error)
    if get_protocol(path) != "openai":
        return {"error": message, "error_type": kind}
    server_error = "server_error" if status >= 500 or status == 424 else "invalid_request_error"
    code = error.code if isinstance(error, RequestError) else None
    return {"error": {
        "message": message, "type": OPENAI_TYPES.get(status, server_error), "param": None, "code": code or kind,
    }}  # fmt: skip


def make_error_response(error: Error, path: str, headers: Mapping[str, str] | None = None) -> JsonResponse:
    """Make the answer to a request that is refused or failed."""
    more = dict(headers or {})
    if isinstance(error, RequestError) and error.retry_after is not None:
        more["Retry-After"] = str(error.retry_after)
    if find_status(error, path) == 401:
        more["WWW-Authenticate"] = "Bearer"
    return JsonResponse(make_error_body(error, path), find_status(error, path), more)


def get_protocol(path: str) -> str:
    """Return whose error shape a route has: OpenAI's below /v1 and /v2, text-embeddings-inference's elsewhere."""
    return "openai" if path.startswith(("/v1/", "/v2/")) else "tei"
