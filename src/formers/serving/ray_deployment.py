"""Any formers model on several replicas, by Ray Serve: the application of `formers serve`, once in each replica.

    serve run formers.serving.ray_deployment:build_application models=my-bert,my-gpt2 replicas=2
    curl http://127.0.0.1:8000/v1/embeddings -d '{"input": "a text"}' -H 'Content-Type: application/json'

Routes, bodies, limits and the token are those of `formers serve`. Ray spreads requests over the replicas, and starts a
new one where one dies. Needs the extra ray.
"""

from __future__ import annotations

import os

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import Error
from ..former import Former
from ..interop.model_directory import load
from .app import build_app, configure_logs
from .settings import ServerSettings

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
REPLICA_HEADER = b"x-formers-replica"
TOKEN_VARIABLE = "FORMERS_SERVE_TOKEN"  # read where the deployment is made, so that it stands in no configuration file


class DeploymentOptions(BaseModel):
    """Arguments of `build_application`, as `serve run` takes them (NAME=VALUE) or a Serve configuration file has them
    under `args`."""

    model_config = ConfigDict(extra="forbid")

    models: tuple[str, ...] = Field(min_length=1)  # paths, or NAME=PATH; on the command line separated by commas
    replicas: int = Field(1, ge=1)
    cpus: float = Field(1.0, ge=0)  # that Ray reserves for each replica
    gpus: float = Field(0.0, ge=0)  # of each replica; 0.5 lets two of them share one
    dtype: str | None = None  # fp32, bf16 or fp16; by default that of the files
    allow_host: tuple[str, ...] = ()  # names by which clients may call the server
    cors_origin: tuple[str, ...] = ()
    token_ids: bool = False
    pool: str = "mean"

    @field_validator("models", "allow_host", "cors_origin", mode="before")
    @classmethod
    def split_words(cls, value: object) -> object:
        """Split what the command line gives as one word."""
        return tuple(word for word in value.split(",") if word) if isinstance(value, str) else value

    @field_validator("dtype")
    @classmethod
    def check_dtype(cls, value: str | None) -> str | None:
        """Refuse a type that there is not."""
        if value is not None and value not in DTYPES:
            raise ValueError(f"there is no dtype {value!r}: choose {', '.join(DTYPES)}")
        return value


class ReplicaHeader:
    """An ASGI application around another that names the replica in each answer."""

    def __init__(self, app: ASGIApp, replica: str):
        self.app, self.replica = app, replica.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, and add the header to its answer."""

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (REPLICA_HEADER, self.replica)]
            await send(message)

        await self.app(scope, receive, send_named)


class Replica:
    """One process that holds the models; the routes are those of the application."""


def build_application(options: DeploymentOptions) -> serve.Application:
    """Build the Serve application; models are loaded in the replicas, not here."""
    settings = ServerSettings(
        token=os.environ.get(TOKEN_VARIABLE) or None, allowed_hosts=options.allow_host,
        cors_origins=options.cors_origin, takes_token_ids=options.token_ids, pool=options.pool,
    )  # fmt: skip
    device = "cuda" if options.gpus else "cpu"
    sources, dtype = options.models, options.dtype

    def load_source(source: str) -> Former:
        return load(source, device=device, dtype=None if dtype is None else DTYPES[dtype])

    def build_replica_app() -> ASGIApp:
        configure_logs()
        return ReplicaHeader(
            build_app(sources, load_source, settings), serve.get_replica_context().replica_id.unique_id
        )

    deployment = serve.deployment(serve.ingress(build_replica_app)(Replica)).options(
        name="formers", num_replicas=options.replicas,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        max_ongoing_requests=settings.limits.max_concurrent_requests,
        graceful_shutdown_timeout_s=settings.limits.drain_seconds,
    )  # fmt: skip
    return deployment.bind()


def serve_on_ray(*models: str, host: str = "127.0.0.1", port: int = 8000, **options: object) -> DeploymentHandle:
    """Start the deployment on the Ray that this process is connected to (or one of its own); returns Serve's handle.

    `options` are fields of DeploymentOptions. It answers until `ray.serve.shutdown()` or the end of the process.
    """
    if host not in ("127.0.0.1", "localhost", "::1") and not os.environ.get(TOKEN_VARIABLE):
        what = f"{host} can be reached from other machines, and there is no token"
        raise Error(what, fix=f"set {TOKEN_VARIABLE}, or keep to 127.0.0.1")
    application = build_application(DeploymentOptions.model_validate({"models": models, **options}))
    serve.start(http_options={"host": host, "port": port})
    return serve.run(application, name="formers", route_prefix="/")
