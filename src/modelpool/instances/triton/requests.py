"""Requests on their way to a Triton server and back: what must not reach it, what its answers mean, what it never answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from modelpool.errors import ModelpoolError
from modelpool.instances.triton.answers import Loss, judge
from modelpool.instances.triton.guard import check_request
from modelpool.instances.triton.http import Pool, Route
from modelpool.ports import Call, CallSink
from modelpool.protocol.frames import ANSWER_PREFIX

_PREFIX_BYTES = ANSWER_PREFIX.size


class Requests:
    """The owner of an instance's connections (`http.Owner`).

    on_lost(copy, reason): the server does not hold a copy any more; on_broken(): a connection broke; on_down(reason): nobody listens.
    """

    def __init__(
        self,
        ident: str,
        calls: CallSink,
        on_lost: Callable[[int, str], None],
        on_broken: Callable[[], None],
        on_down: Callable[[str], None],
    ) -> None:
        self._ident = ident
        self._calls = calls
        self._on_lost = on_lost
        self._on_broken = on_broken
        self._on_down = on_down

    def answered(self, copy: int, call: Call, status: int, payload: bytes | bytearray) -> None:
        """An answer came."""
        if status == 200:
            self._calls.answered(call, memoryview(payload))
            return
        verdict = judge(status, memoryview(payload)[_PREFIX_BYTES:])
        if verdict.loss is not Loss.NONE:
            self._on_lost(copy, verdict.message)  # first, so that who sends it again does not try the copy that is gone
        self._calls.failed(call, verdict.code, verdict.message, 1.0 if verdict.loss is Loss.BROKEN else None)

    def broken(self, copy: int, call: Call) -> None:
        """The connection ended before the answer."""
        self._on_broken()
        message = f"the connection to Triton {self._ident} broke while it ran this request for model '{call.model}'"
        self._calls.failed(call, "instance_lost", f"{message}; whether it took effect is not known", 1.0)

    def unreachable(self, reason: str) -> None:
        """Nobody listens at its HTTP port."""
        self._on_down(reason)

    def unsent(self, call: Call) -> None:
        """A request was not sent."""
        self._calls.lost(call, False)


class TritonRoute(Route):
    """A route that keeps from the server what would end it."""

    __slots__ = ("_calls",)

    def __init__(self, pool: Pool, copy: int, path: str, calls: CallSink) -> None:
        super().__init__(pool, copy, path)
        self._calls = calls

    def infer(self, call: Call) -> None:
        """Send a request, unless it is one that no server should get."""
        try:
            check_request(call.body, call.json_bytes)
        except ModelpoolError as error:
            # Not from within: who sends a request does not expect its end at once.
            asyncio.get_running_loop().call_soon(self._calls.failed, call, error.code, error.message, None)
            return
        super().infer(call)
