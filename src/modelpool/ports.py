"""What the shell implements for the controller: protocols only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from modelpool.core.events import Event


class Call:
    """One inference on its way: made by a front end, sent by an instance, answered exactly once by `answer` or `fail`.

    A front end subclasses it and overrides `answer` and `fail`, which must not raise and must not block. `body` is the HTTP body as it
    came; json_bytes is the size of its JSON head (-1: all of it is JSON). The controller sets `lease`, `begun` (a byte of its frame was
    written to an instance), `tries`, and `alone`: it was running when a process died, so it must share no batch (Kind.INFER_ALONE).
    members: of a call that a running model made (None: of a client's), the leases that its root holds on what its model requires.
    held: bytes of its body that count as waiting or running.
    """

    # What few calls change has its first value here: to set it for each would cost more than the rest of a call's making.
    lease: Any = None
    arrived: float = 0.0
    begun: bool = False
    queued: bool = False
    cancelled: bool = False
    tries: int = 0
    alone: bool = False
    callid: int = 0
    request: int = 0
    held: int = 0
    members: tuple[Any, ...] | None = None

    def __init__(self, model: str, version: int, body: bytes | bytearray, json_bytes: int) -> None:
        self.model = model
        self.version = version
        self.body = body
        self.json_bytes = json_bytes

    def answer(self, json_bytes: int, body: bytes | bytearray | memoryview) -> None:
        """The answer's body (json_bytes as in the request). `body` is only valid during the call: write it or copy it."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """The call ended in an error (a ModelpoolError unless something is broken in the server)."""
        raise NotImplementedError


class CallSink(Protocol):
    """What an instance calls when calls end; implemented by the controller's data plane.

    Every call given to `Instance.infer` ends in exactly one of these.
    """

    def answered(self, call: Call, payload: memoryview) -> None:
        """An ANSWER frame's payload (prefix and body), valid only during the call."""

    def failed(self, call: Call, code: str, message: str, retry_after_s: float | None) -> None:
        """The model or the worker refused this call."""

    def nested(self, call: Call, parent: Call | None) -> None:
        """A running model calls another; parent: the call that it runs (None: that has ended)."""

    def lost(self, call: Call, started: bool) -> None:
        """The process died before an answer; started: it was running this call (or that is not known)."""


class Instance(Protocol):
    """A server that holds models and runs them, as the controller sees it. All methods are called on the event loop."""

    @property
    def ident(self) -> str:
        """Its name, the same over restarts."""

    @property
    def problem(self) -> str | None:
        """Why it can take no loads now, for people; None where it can."""

    def load(self, generation: int, copy: int, spec: Any, isolated: bool) -> None:
        """Begin a load (`spec`: a protocol.messages.LoadSpec); the event sink gets Loaded or LoadFailed."""

    def unload(self, generation: int, copy: int) -> None:
        """Begin an unload; the event sink gets Unloaded."""

    def route(self, copy: int) -> Any:
        """What `Copy.route` is to hold: an object with a method `infer(call: Call) -> None`, cheap to call."""

    def recycle(self, generation: int, copy: int | None, reason: str) -> None:
        """Kill the process (of one isolated copy, or the shared one with all isolated ones) and start anew."""

    async def start(self) -> None:
        """Adopt or start the processes; the event sink gets InstanceUp. Raises SetupError where that is impossible."""

    async def stop(self, *, keep: bool = False) -> None:
        """End the processes (keep: leave them for the next server)."""

    def kill(self) -> None:
        """End the processes at once, whatever they do, for good; also while `start` or `stop` goes on."""

    def describe(self) -> dict[str, Any]:
        """Figures for people: processes with pid, private bytes, state."""


EventSink = Callable[[Event], None]
Background = Callable[[Awaitable[Any]], None]


class Clock(Protocol):
    """Monotonic seconds."""

    def __call__(self) -> float:
        """Now."""
