"""Calls from one model to another (BLS): how a runtime reaches the server through its worker, and for which request a run calls.

The worker connects itself with `connect`. A call belongs to the request that is being run (`parent`): what that one's model requires is
held for it by the server.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from modelpool.errors import Unsupported
from modelpool.protocol.inference import EncodedBody


class Reply(NamedTuple):
    """The answer's body; json_bytes as in a response (-1: all of it is JSON)."""

    json_bytes: int
    body: bytes


class Caller(Protocol):
    """What a worker offers to its runtimes. It may be called from any thread."""

    def __call__(self, parent: int, model: str, version: int, body: EncodedBody) -> Future[Reply]:
        """Send a request; the future gets the reply, or a ModelpoolError. version 0: the default."""


class _Run(threading.local):
    parent: int | None = None


_run = _Run()
_latest = 0
_caller: Caller | None = None


def connect(caller: Caller | None) -> None:
    """Say how calls leave this process."""
    global _caller
    _caller = caller


def begin_run(parent: int) -> None:
    """This thread runs a request from now on. Threads that a model started itself call for the latest one."""
    global _latest
    _run.parent = _latest = parent


def parent() -> int:
    """The request that this thread runs."""
    own = _run.parent
    return _latest if own is None else own


def send(model: str, version: int, body: EncodedBody) -> Future[Reply]:
    """Call another model. Raises Unsupported where nothing takes calls."""
    if _caller is None:
        raise Unsupported("calls from one model to another (BLS) need a server; this model runs without one")
    return _caller(parent(), model, version, body)
