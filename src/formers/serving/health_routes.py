"""Health of the server: is the process alive, is it ready for requests, and its metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from .request_context import get_state
from .responses import JsonResponse, RequestError, describe_errors

router = APIRouter(responses=describe_errors("tei"))


@router.get("/health/live")
async def report_live() -> Response:
    """Answer as long as the process runs."""
    return JsonResponse({"status": "live"})


@router.get("/health/ready")
async def report_ready(request: Request) -> Response:
    """Answer 200 while the server takes requests, 503 once it is stopping."""
    if get_state(request).is_draining:
        raise RequestError("this server is stopping", status=503, kind="unhealthy", retry_after=1)
    return JsonResponse({"status": "ready"})


@router.get("/health")
async def report_health(request: Request) -> Response:
    """Answer as text-embeddings-inference does: 200 while the server takes requests."""
    return await report_ready(request)


@router.get("/metrics", response_class=PlainTextResponse)
async def show_metrics(request: Request) -> Response:
    """Show the metrics for Prometheus."""
    return Response(get_state(request).metrics.format_text(), media_type="text/plain; version=0.0.4; charset=utf-8")
