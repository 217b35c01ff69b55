"""The worker's heart: copies, their runs on the loop or in threads, and loads and unloads one at a time beside them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from modelpool.errors import LoadFailed, ModelpoolError, NotCached, RequestTimeout, ShuttingDown, from_code
from modelpool.protocol import messages
from modelpool.protocol.frames import INFER_PREFIX, Kind
from modelpool.protocol.running import RunningTable
from modelpool.protocol.stream import LARGE_BYTES, FrameConnection
from modelpool.runtimes.base import LoadedModel
from modelpool.worker import loads
from modelpool.worker.calls import OutgoingCalls
from modelpool.worker.codec import decode_item
from modelpool.worker.hosted import Hosted
from modelpool.worker.memory import RunProbe, private_bytes, trim
from modelpool.worker.runs import Item, Ran, describe, error_frame, run

T = TypeVar("T")

TURN_S = 0.002
"""How long runs may hold the event loop before it reads again."""
RUN_THREADS = 256
PROBE_LIMIT_S = 1.0
"""How long a load or unload waits for a run that is being measured."""
TRIM_SLACK_BYTES = 16 << 20
_PREFIX_BYTES = INFER_PREFIX.size
_unpack_prefix = INFER_PREFIX.unpack_from
_monotonic = time.monotonic


class Engine:
    """Holds copies and runs requests. All methods are for the event loop's thread.

    baseline_bytes: the worker's private bytes before any load; isolated: the process is for one copy and charged as a whole;
    verify_timeout_s: how long an unload waits for its memory to come back.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, table: RunningTable, *, baseline_bytes: int, isolated: bool, verify_timeout_s: float
    ) -> None:
        self.baseline_bytes = baseline_bytes
        self.copies: dict[int, Hosted] = {}
        self.link: FrameConnection | None = None
        self.on_idle: Callable[[], None] | None = None
        self._loop = loop
        self._table = table
        self._isolated = isolated
        self._verify_timeout_s = verify_timeout_s
        self._runners = ThreadPoolExecutor(RUN_THREADS, thread_name_prefix="run")
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._probe = RunProbe()
        self._begun = 0  # runs in threads, loads and unloads, so that a run knows whether it was alone
        self._probed = 0
        self._memory = threading.Lock()  # held by what changes memory and is measured: a load, an unload, a probed run
        self._jobs = 0
        self._threaded = 0
        self._due: list[Hosted] = []
        self._turn_due = False
        self._answered: list[int] = []
        self._sent: list[int] = []
        self._stopping = False
        self._ran_since_trim = False
        self.outgoing = OutgoingCalls(loop)

    # --- requests ----------------------------------------------------------------------------------------------------------------
    def infer(self, link: FrameConnection, copy: int, call: int, payload: memoryview, alone: bool = False) -> None:
        """Queue a request; runs start when all that is readable was read."""
        hosted = self.copies.get(copy)
        try:
            if hosted is None or hosted.retiring >= 0:
                raise NotCached(f"copy {copy} is not loaded in this worker; the request has to be routed anew")
            if self._stopping:
                raise ShuttingDown("this worker was told to stop; the request has to be routed anew")
            json_bytes, version = _unpack_prefix(payload)
            body = payload[_PREFIX_BYTES:] if len(payload) > LARGE_BYTES else bytes(payload[_PREFIX_BYTES:])
            item = decode_item(hosted, link, call, json_bytes, version, body, _monotonic())
            if alone:
                item.alone = True
        except ModelpoolError as error:
            link.write(error_frame(copy, call, error))
            return
        except Exception as error:
            link.write(error_frame(copy, call, from_code("internal_error", f"the worker could not read the request: {describe(error)}")))
            return
        hosted.add(item)
        if not hosted.due:
            self._touch(hosted)

    def cancel(self, link: FrameConnection, copy: int, call: int) -> None:
        """Drop a request that has not started; one that runs is answered as usual."""
        hosted = self.copies.get(copy)
        if hosted is not None and hosted.remove(call) is not None:
            withdrawn = messages.Failure(code="cancelled", message="the request was withdrawn before it ran")
            link.send(Kind.ERROR, copy, call, messages.encode(withdrawn))
            self._retire_if_done(hosted)

    def _touch(self, hosted: Hosted) -> None:
        if not hosted.due:
            hosted.due = True
            self._due.append(hosted)
            if not self._turn_due:
                self._turn_due = True
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        # What was handed to the socket in an earlier turn has left; only now is it certain that these calls have their answers.
        if self._sent:
            self._table.release(self._sent)
            self._sent = []
        due, self._due = self._due, []
        until = time.monotonic() + TURN_S
        for hosted in due:
            hosted.due = False
            self._start_runs(hosted, until)
        if self.link is not None:
            self.link.flush()
        self._sent, self._answered = self._answered, []

    def _start_runs(self, hosted: Hosted, until: float) -> None:
        now = time.monotonic()
        while hosted.queue and hosted.running < hosted.slots:
            delay_s = hosted.delay_s(now)
            if delay_s > 0.0:
                self._wake_later(hosted, delay_s)
                return
            if now > until:
                self._touch(hosted)
                return
            late: list[Item] = []
            items = hosted.take(now, late)
            for item in late:
                self._refuse(hosted, item, RequestTimeout("the request's timeout ran out before it could run"))
            if items:
                self._start_run(hosted, items)
            now = time.monotonic()
        self._retire_if_done(hosted)

    def _wake_later(self, hosted: Hosted, delay_s: float) -> None:
        if not hosted.timer:
            hosted.timer = True
            self._loop.call_later(delay_s, self._woken, hosted)

    def _woken(self, hosted: Hosted) -> None:
        hosted.timer = False
        self._touch(hosted)

    def _start_run(self, hosted: Hosted, items: list[Item]) -> None:
        size_bytes = sum([item.size_bytes for item in items])
        self._ran_since_trim = True
        copy = hosted.spec.copy
        if hosted.is_quick(size_bytes):
            self._finish(hosted, items, run(copy, hosted.spec, hosted.model, items, self._table, None), True)
            if hosted.queue and self.link is not None:
                self.link.flush()
            return
        probe = None
        self._begun += 1
        if self._threaded == 0 and hosted.wants_measure(size_bytes) and self._memory.acquire(blocking=False):
            self._probed = self._begun
            probe = self._probe
        hosted.running += 1
        self._threaded += 1
        self._runners.submit(self._run_in_thread, hosted, items, probe)

    def _run_in_thread(self, hosted: Hosted, items: list[Item], probe: RunProbe | None) -> None:
        copy = hosted.spec.copy
        try:
            ran = run(copy, hosted.spec, hosted.model, items, self._table, probe)
        except BaseException as error:  # a fault of ours, yet the slot must be free again and each request answered
            failure = from_code("internal_error", f"the worker could not run the request: {describe(error)}")
            ran = Ran([[error_frame(copy, item.call, failure)] for item in items], [], 0.0, -1 if probe is None else 0)
        self._loop.call_soon_threadsafe(self._finish_threaded, hosted, items, ran)

    def _finish_threaded(self, hosted: Hosted, items: list[Item], ran: Ran) -> None:
        hosted.running -= 1
        self._threaded -= 1
        if ran.added_bytes >= 0:
            self._memory.release()
            # Another run beside it would be counted as this one's.
            if self._begun == self._probed and hosted.measured(sum([item.size_bytes for item in items]), ran.added_bytes):
                self.observe(0, {hosted.spec.copy: hosted.run_peak_bytes})
        self._finish(hosted, items, ran, False)
        self._touch(hosted)

    def _finish(self, hosted: Hosted, items: list[Item], ran: Ran, inline: bool) -> None:
        hosted.ran(ran.run_s, inline)
        link = self.link
        if link is not None:
            link.write(*[part for item, parts in zip(items, ran.frames, strict=True) if item.link is link for part in parts])
        self._answered += ran.slots

    def _refuse(self, hosted: Hosted, item: Item, error: ModelpoolError) -> None:
        if self.link is not None and item.link is self.link:
            self.link.write(error_frame(hosted.spec.copy, item.call, error))

    # --- loads and unloads -------------------------------------------------------------------------------------------------------
    def load(self, link: FrameConnection, call: int, spec: messages.LoadSpec) -> None:
        """Begin a load; answered by LOADED or ERROR."""
        if self._stopping or spec.copy in self.copies:
            problem = "the worker was told to stop" if self._stopping else f"it already holds a copy {spec.copy}"
            link.write(error_frame(spec.copy, call, LoadFailed(f"{spec.model} was not loaded: {problem}")))
            return
        self._jobs += 1
        self._begun += 1
        self._begin_job(
            lambda: self._marked_load(call, spec),
            lambda result: self._load_done(link, call, spec, result),
        )

    def _marked_load(self, call: int, spec: messages.LoadSpec) -> loads.LoadResult | ModelpoolError:
        """In the load thread. It is marked like a run: a death may be its doing, and is not that of a load which waits for its turn."""
        slots = self._table.mark([call])
        try:
            return loads.load(spec, self._isolated)
        finally:
            self._table.release(slots)

    def _begin_job(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Work in the load thread, after the runs that are due now have started, so that one of them can be measured."""

        def job() -> None:
            held = self._memory.acquire(timeout=PROBE_LIMIT_S)
            try:
                result = work()
            finally:
                if held:
                    self._memory.release()
            self._loop.call_soon_threadsafe(done, result)

        self._loop.call_soon(lambda: self._loader.submit(job))

    def _load_done(self, link: FrameConnection, call: int, spec: messages.LoadSpec, result: loads.LoadResult | ModelpoolError) -> None:
        self._jobs -= 1
        if isinstance(result, ModelpoolError):
            link.write(error_frame(spec.copy, call, result))
        elif link is not self.link or spec.copy in self.copies:
            # Whoever asked for it is gone, and its successor was not told of it.
            self._close(result.model, 0, lambda _: None)
        else:
            self.copies[spec.copy] = Hosted(spec, result.model, result.private_bytes, result.load_peak_bytes, result.load_s)
            loaded = messages.Loaded(
                copy=spec.copy,
                load_s=result.load_s,
                private_bytes=result.private_bytes,
                load_peak_bytes=result.load_peak_bytes,
                total_bytes=result.total_bytes,
                inputs=result.model.inputs,
                outputs=result.model.outputs,
            )
            link.send(Kind.LOADED, spec.copy, call, messages.encode(loaded))
        self._idle()

    def unload(self, link: FrameConnection, copy: int, call: int) -> None:
        """Begin an unload, after the runs that go on; answered by UNLOADED or ERROR."""
        hosted = self.copies.get(copy)
        if hosted is None or hosted.retiring >= 0:
            link.write(error_frame(copy, call, NotCached(f"copy {copy} is not loaded in this worker")))
            return
        hosted.retiring = call
        self._retire_if_done(hosted)

    def _retire_if_done(self, hosted: Hosted) -> None:
        if hosted.retiring >= 0 and not hosted.queue and not hosted.running and self.copies.get(hosted.spec.copy) is hosted:
            copy, call, link = hosted.spec.copy, hosted.retiring, self.link
            del self.copies[copy]

            def done(total_bytes: int) -> None:
                if link is not None:
                    link.send(Kind.UNLOADED, copy, call, messages.encode(messages.Unloaded(copy=copy, total_bytes=total_bytes)))

            ends = self._isolated or self._stopping  # then memory comes back with the process, and not before
            self._close(hosted.model, 0 if ends else hosted.private_bytes, done)
        self._idle()

    def _close(self, model: LoadedModel, expected_bytes: int, done: Callable[[int], None]) -> None:
        self._jobs += 1
        self._begun += 1

        def closed(total_bytes: int) -> None:
            self._jobs -= 1
            done(total_bytes)
            self._idle()

        self._begin_job(lambda: loads.unload(model, expected_bytes, self._verify_timeout_s), closed)

    # --- the process as a whole ----------------------------------------------------------------------------------------------------
    def connect(self, link: FrameConnection | None) -> None:
        """Answers go to this connection from now on; what waits for another one is dropped."""
        if link is not self.link:
            self.link = link
            self.outgoing.connect(link)
            for hosted in list(self.copies.values()):
                hosted.clear()
                self._retire_if_done(hosted)

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Take nothing new; `on_idle` is called once nothing is left to do and all copies are closed."""
        self._stopping = True
        self.on_idle = on_idle
        for hosted in list(self.copies.values()):
            if hosted.retiring < 0:
                hosted.retiring = 0
            self._retire_if_done(hosted)
        self._idle()

    def _idle(self) -> None:
        if self.on_idle is not None and self._jobs == 0 and self._threaded == 0 and not self.copies:
            on_idle, self.on_idle = self.on_idle, None
            on_idle()

    def observe(self, call: int, run_peaks: dict[int, int]) -> None:
        """Tell the server what the process uses (call 0: unasked)."""
        if self.link is not None:
            observed = messages.Observed(total_bytes=private_bytes(), baseline_bytes=self.baseline_bytes, run_peaks=run_peaks)
            self.link.send(Kind.OBSERVED, 0, call, messages.encode(observed))

    def trim_if_worth_it(self) -> None:
        """Give memory back that finished runs left in the heap; for a timer, only where nothing runs."""
        if not self._ran_since_trim or self._threaded or self._jobs:
            return
        self._ran_since_trim = False
        charged = 0 if self._isolated else self.baseline_bytes
        charged += sum(hosted.private_bytes for hosted in self.copies.values())
        if private_bytes() > charged + TRIM_SLACK_BYTES:
            self._loader.submit(trim)
