"""Where Triton servers are: addresses of those that run, and what the ones of our own are started with."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from modelpool.errors import InvalidRequest

_EXAMPLE = "127.0.0.1:8001,HTTP=8000,METRICS=8002"
_KEYS = ("HTTP", "METRICS", "BACKENDS")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", re.ASCII)


@dataclass(frozen=True, slots=True)
class TritonAddress:
    """A Triton server that runs already. backends: those that it has (None: any)."""

    host: str
    grpc_port: int
    http_port: int | None = None
    metrics_port: int | None = None
    backends: tuple[str, ...] | None = None

    @property
    def grpc(self) -> str:
        """Where its gRPC interface listens."""
        return f"{self.host}:{self.grpc_port}"

    def __str__(self) -> str:
        ports = (("HTTP", self.http_port), ("METRICS", self.metrics_port), ("BACKENDS", "+".join(self.backends or ()) or None))
        return ",".join([self.grpc, *(f"{key}={value}" for key, value in ports if value is not None)])


def parse_triton(text: str) -> TritonAddress:
    """An address from `HOST:GRPCPORT[,HTTP=PORT][,METRICS=PORT][,BACKENDS=NAME+NAME]`. Raises InvalidRequest."""
    first, *others = [part.strip() for part in text.split(",")]
    host, colon, port = first.rpartition(":")
    if not colon or not _HOST.fullmatch(host):
        raise InvalidRequest(f"{first!r:.80} is no HOST:GRPCPORT; write for example {_EXAMPLE}")
    found: dict[str, str] = {}
    for other in others:
        key, equals, value = other.partition("=")
        if key.upper() not in _KEYS or not equals or key.upper() in found:
            raise InvalidRequest(
                f"{other!r:.80} is none of HTTP=PORT, METRICS=PORT, BACKENDS=NAME+NAME, each once; write for example {_EXAMPLE}"
            )
        found[key.upper()] = value
    backends = tuple(name for name in found["BACKENDS"].split("+") if name) if "BACKENDS" in found else None
    http, metrics = (_port(found[key]) if key in found else None for key in ("HTTP", "METRICS"))
    return TritonAddress(host, _port(port), http, metrics, backends)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise InvalidRequest(f"{text!r:.80} is no port; write for example {_EXAMPLE}")
    return int(text)


def parse_command(text: str) -> str:
    """A command that starts a Triton server, as a shell would take it. Raises InvalidRequest."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidRequest(f"{text!r:.80} is no command ({error}); write for example tritonserver --log-verbose=1") from error
    if not words:
        raise InvalidRequest("the command that starts Triton is empty; write for example tritonserver")
    return text
