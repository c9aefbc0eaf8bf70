"""Settings of a server: where it listens, who may call it, and its limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from ..errors import Error

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ServerLimits:
    """What a server takes at most; beyond it, requests are refused with a status that says so."""

    max_concurrent_requests: int = 512  # beyond: 429
    max_queue: int = 512  # requests that wait for one model; beyond: 429
    max_body_bytes: int = 2_000_000  # beyond: 413
    max_batch_tokens: int = 16_384  # of one batch of an encoder, and of one text; a longer text: 413
    max_texts: int = 2_048  # of one request; they are split into batches. Beyond: 413
    max_sequences: int = 16  # texts that one model generates at once
    max_tokens: int = 4_096  # that one text may have, prompt and answer, of a model without a limit of its own
    request_seconds: float = 120.0  # from a request's headers to the end of its answer; beyond: 503
    read_seconds: float = 10.0  # for a request to arrive as a whole; beyond, its connection is closed
    drain_seconds: float = 60.0  # for requests at work when the server is told to stop
    batch_delay_seconds: float = 0.002  # the longest wait of the oldest text for others to share its batch

    def __post_init__(self) -> None:
        for name, value in vars(self).items():  # dynamic: every setting is a number
            least = 0 if name == "batch_delay_seconds" else 1 if isinstance(value, int) else 0.01
            if not least <= value < float("inf"):
                raise Error(f"{name} must be at least {least}, got {value}", fix="leave it out for the usual")


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens and whom it answers.

    A request must name an allowed host (`Host`), which stops DNS rebinding, and come from the same origin or from one
    of `cors_origins`. With a `token`, every route but the live and ready probes asks for it.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    takes_token_ids: bool = False  # accept prompts and inputs as ids of the model's own vocabulary
    pool: str = "mean"
    limits: ServerLimits = ServerLimits()

    def __post_init__(self) -> None:
        if self.token is not None and (not self.token.isascii() or not self.token.isprintable() or len(self.token) < 8):
            raise Error("a token needs 8 or more printable ASCII characters", fix="openssl rand -hex 16 makes one")
        if self.token is None and not is_loopback(self.host):
            what = f"{self.host} can be reached from other machines, and there is no token"
            raise Error(what, fix="give --token, or keep to 127.0.0.1")
        if not 0 <= self.port < 65536:
            raise Error(f"there is no port {self.port}", fix="take 8000, or 0 for any that is free")
        for origin in self.cors_origins:
            if not origin.startswith(("http://", "https://")) or origin.count("/") != 2:
                raise Error(f"{origin!r} is no origin", fix="write it as https://example.org, or http://localhost:3000")

    @property
    def host_names(self) -> frozenset[str]:
        """The hosts that a request may name, in lower case and without port."""
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, self.host, *self.allowed_hosts))


def is_loopback(host: str) -> bool:
    """Return whether an address is this machine's own."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
