"""The way of a request: lease, send, answer. No task and no future; a request of a resident model passes straight through.

A call ends exactly once, in `answer` or `fail`. One whose process died before it had started is sent again; one that was running then is
sent again once, alone in its batch, and fails with InstanceLost if that kills the process too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from modelpool.controller.catalogue import Catalogue
from modelpool.controller.statistics import ModelStatistics, TimeHistogram
from modelpool.core.actions import Admit, Refuse
from modelpool.core.copies import Lease
from modelpool.core.core import Core
from modelpool.core.events import Event, KeepAliveSet, RequestArrived, RequestGone, Settle
from modelpool.errors import InstanceLost, ModelpoolError, NotCached, QueueFull, RequestTimeout, from_code
from modelpool.ports import Call, Clock
from modelpool.protocol.frames import ANSWER_PREFIX
from modelpool.protocol.inference import peek_keep_alive, peek_timeout_s

log = logging.getLogger("modelpool.dataplane")

MOST_TRIES = 5
"""How often a call is sent again after processes died that had not started it."""

LARGE_BODY_BYTES = 64 * 1024
"""Bodies above this count from when they come until they are answered; smaller ones, of which there are many, only while they wait."""

_PREFIX_BYTES = ANSWER_PREFIX.size
_unpack_prefix = ANSWER_PREFIX.unpack_from

Ended = Callable[[Call, str, float], None]


class DataPlane:
    """Owns the calls that wait; those that were sent belong to their instance until it reports them.

    The body of one that was sent is kept until the answer, as it may have to be sent again. `queue_bytes` bounds both together.
    """

    def __init__(
        self, core: Core, catalogue: Catalogue, feed: Callable[[Event], None], clock: Clock, request_timeout_s: float, queue_bytes: int
    ) -> None:
        self._core = core
        self._catalogue = catalogue
        self._feed = feed
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._queue_bytes = queue_bytes
        self._waiting: dict[int, Call] = {}
        self.held_bytes = 0
        self._next_request = 1
        self.models: dict[str, ModelStatistics] = {}
        self.queue_s = TimeHistogram()
        self.ended: Ended | None = None

    @property
    def waiting(self) -> int:
        """Calls that wait for a copy."""
        return len(self._waiting)

    # --- in --------------------------------------------------------------------------------------------------------------------
    def submit(self, call: Call) -> None:
        """Take a call; it may have ended before this returns."""
        now = self._clock()
        call.arrived = now
        size = len(call.body)
        head = size if call.json_bytes < 0 else call.json_bytes
        try:
            if size > LARGE_BODY_BYTES:
                self._hold(call, size)
            if call.version:
                self._catalogue.check(call.model, call.version)
            if call.body.find(b'"keep_alive"', 0, head) >= 0:
                keep_alive_s = peek_keep_alive(call.body, call.json_bytes)
                if keep_alive_s is not None:
                    self._feed(KeepAliveSet(call.model, keep_alive_s))
        except QueueFull as error:
            self._fail(call, error)
            return
        except ModelpoolError as error:
            self._release(call)
            call.fail(error)
            return
        lease = self._core.try_lease(call.model, now)
        if lease is not None:
            call.lease = lease
            lease.copy.route.infer(call)
        else:
            self._wait(call, now)

    def _hold(self, call: Call, size: int) -> None:
        """Count a body. Raises QueueFull where there are too many bytes already."""
        if self.held_bytes + size > self._queue_bytes:
            raise QueueFull(
                f"requests of {self.held_bytes} bytes wait or run already, and queue_bytes allows {self._queue_bytes}; try again later",
                retry_after_s=1.0,
            )
        call.held = size
        self.held_bytes += size

    def _release(self, call: Call) -> None:
        """A call has ended, or is small and waits no more. What an idle connection still refers to has no large body."""
        self.held_bytes -= call.held
        if call.held > LARGE_BODY_BYTES:
            call.body = b""
        call.held = 0

    def nested(self, call: Call, parent: Call | None) -> None:
        """Take a call that a running model makes to another (BLS). It never waits for a load, as its parent keeps what it holds meanwhile.

        What the parent's model requires is held for it, and runs the call even where the copy takes no others any more.
        """
        now = call.arrived = self._clock()
        call.members = _held(parent)
        if (size := len(call.body)) > LARGE_BODY_BYTES:
            call.held = size  # counted, but never refused: its parent holds what others wait for
            self.held_bytes += size
        try:
            self._catalogue.check(call.model, call.version)
        except ModelpoolError as error:
            self._fail(call, error)
            return
        for member in call.members:
            if member.live and member.copy.model.name == call.model:
                member.copy.route.infer(call)
                return
        lease = self._core.try_lease(call.model, now)
        if lease is not None:
            call.lease = lease
            lease.copy.route.infer(call)
            return
        caller = "a model" if parent is None else f"model '{parent.model}'"
        self._fail(
            call,
            NotCached(
                f"model '{call.model}' is not resident, and {caller} calls it without having it in its `requires`; add it there "
                f"(modelpool.yaml), so that both are loaded together"
            ),
        )

    def _wait(self, call: Call, now: float) -> None:
        try:
            self._catalogue.check(call.model, call.version)
            timeout_s = peek_timeout_s(call.body, call.json_bytes)
            if not call.held:
                self._hold(call, len(call.body))
        except ModelpoolError as error:
            self._fail(call, error)
            return
        call.request = self._next_request
        self._next_request += 1
        call.queued = True
        self._waiting[call.request] = call
        deadline = call.arrived + min(self._request_timeout_s, timeout_s if timeout_s is not None else float("inf"))
        if deadline <= now:
            self._forget(call.request)
            self._fail(call, RequestTimeout("Request timeout expired", retry_after_s=1.0))
            return
        self._feed(RequestArrived(call.request, call.model, deadline))

    def cancel(self, call: Call) -> None:
        """The client went away: a call that waits is dropped, here or by its instance; one that runs keeps its lease until it has ended."""
        call.cancelled = True
        if self._forget(call.request) is not None:
            self._feed(RequestGone(call.request, call.model))
            self._count(call, "cancelled")
        elif call.lease is not None and call.lease.live:
            call.lease.copy.route.cancel(call)

    def _forget(self, request: int) -> Call | None:
        call = self._waiting.pop(request, None)
        if call is not None and call.held <= LARGE_BODY_BYTES:
            self._release(call)
        return call

    # --- what the core decided --------------------------------------------------------------------------------------------------
    def admit(self, action: Admit) -> None:
        """A waiting call may run."""
        call = self._forget(action.request)
        if call is None:
            self._end_lease(action.lease)
            return
        call.lease = action.lease
        self.queue_s.add(self._clock() - call.arrived)
        self._statistics(call.model).waited_s += self._clock() - call.arrived
        action.lease.copy.route.infer(call)

    def refuse(self, action: Refuse) -> None:
        """A waiting call will not run."""
        call = self._forget(action.request)
        if call is not None:
            self._fail(call, from_code(action.code, action.message, retry_after_s=action.retry_after_s))

    # --- what instances report (CallSink) ---------------------------------------------------------------------------------------
    def answered(self, call: Call, payload: memoryview) -> None:
        """An answer came: the lease ends, the client gets it."""
        json_bytes, queue_us, compute_us, _, executions = _unpack_prefix(payload)
        now = self._clock()
        settle = call.lease is not None and self._core.end_lease(call.lease, now)
        if call.held:
            self._release(call)
        if not call.cancelled:
            call.answer(json_bytes, payload[_PREFIX_BYTES:])
        counted = self.models.get(call.model) or self._statistics(call.model)
        counted.inferences += 1
        counted.executions += executions
        counted.queue_us += queue_us
        counted.compute_us += compute_us
        counted.success_s += now - call.arrived
        counted.last_at = now
        if self.ended is not None:
            self.ended(call, "ok", now)
        if settle:
            self._feed(Settle())

    def failed(self, call: Call, code: str, message: str, retry_after_s: float | None) -> None:
        """The worker or the model refused this call."""
        self._end_lease(call.lease)
        if code == "model_not_in_cache" and call.members is None:
            self._again(call, "the instance no longer held the model")
            return
        if code == "cancelled":
            self._count(call, code)
            return
        self._fail(call, from_code(code, message, retry_after_s=retry_after_s))

    def lost(self, call: Call, started: bool) -> None:
        """The process died before an answer."""
        self._end_lease(call.lease)
        if call.members is not None:
            self._fail(call, InstanceLost(f"the process that ran a call to model '{call.model}' died", retry_after_s=1.0))
            return
        if started and call.alone:
            self._fail(
                call,
                InstanceLost(
                    f"the process that ran this request for model '{call.model}' died, twice; whether it took effect is not known",
                    retry_after_s=1.0,
                ),
            )
            return
        call.alone = call.alone or started
        self._again(call, "its process died")

    def _again(self, call: Call, why: str) -> None:
        call.tries += 1
        call.begun = False
        if call.cancelled:
            self._count(call, "cancelled")
            return
        if call.tries > MOST_TRIES:
            self._fail(call, InstanceLost(f"given up after {call.tries} tries for model '{call.model}': {why}", retry_after_s=1.0))
            return
        # the core is told of the death in this turn of the loop; the next one must not pick the dead copy again
        asyncio.get_running_loop().call_soon(self._resubmit, call)

    def _resubmit(self, call: Call) -> None:
        if call.cancelled:
            self._count(call, "cancelled")
            return
        now = self._clock()
        lease = self._core.try_lease(call.model, now)
        if lease is not None:
            call.lease = lease
            lease.copy.route.infer(call)
        else:
            self._wait(call, now)

    # --- ends ------------------------------------------------------------------------------------------------------------------
    def _end_lease(self, lease: Lease | None) -> None:
        if lease is not None and self._core.end_lease(lease, self._clock()):
            self._feed(Settle())

    def _fail(self, call: Call, error: ModelpoolError) -> None:
        self._count(call, error.code)
        if not call.cancelled:
            call.fail(error)

    def _count(self, call: Call, outcome: str) -> None:
        """A call has ended without an answer."""
        self._release(call)
        now = self._clock()
        if call.model in self._catalogue.entries:  # names that clients made up are not kept
            counted = self._statistics(call.model)
            counted.failures += 1
            counted.failure_s += now - call.arrived
            counted.outcomes[outcome] += 1
        if self.ended is not None:
            self.ended(call, outcome, now)

    def _statistics(self, name: str) -> ModelStatistics:
        found = self.models.get(name)
        if found is None:
            found = self.models[name] = ModelStatistics()
        return found


def _held(parent: Call | None) -> tuple[Lease, ...]:
    """The leases that a call's root holds on what its model requires."""
    if parent is None:
        return ()
    if parent.members is not None:
        return parent.members
    return () if parent.lease is None else parent.lease.members
