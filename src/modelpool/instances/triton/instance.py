"""A Triton server as an instance: one that runs already, or one of our own that is started and supervised.

A server knows a model by its name, so a copy has the name from its load until the index says that it is unloaded. What the server lost is
noticed by its refusals and by a look at its index from time to time. A server that does not answer is down: what ran on it is lost, and it
is taken in again, with all that it holds then, when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import quote

from modelpool.core.events import CopyLost, Held, InstanceDown, InstanceUp, Loaded, LoadFailed, Observed, Unloaded
from modelpool.core.model import RUN_NOT_MEASURED, Learned
from modelpool.errors import LoadFailed as LoadFailedError
from modelpool.errors import ModelpoolError, SetupError
from modelpool.instances.triton import memory
from modelpool.instances.triton.control import Control, IndexEntry, Unreachable
from modelpool.instances.triton.held import Claims, HeldModel
from modelpool.instances.triton.http import Pool, Route
from modelpool.instances.triton.place import Place, TritonSettings
from modelpool.instances.triton.requests import Requests, TritonRoute
from modelpool.instances.triton.server import OwnServer
from modelpool.instances.triton.sizing import Gauge, Look
from modelpool.ports import CallSink, Clock, EventSink
from modelpool.protocol.frames import ANSWER_PREFIX
from modelpool.protocol.messages import LoadSpec
from modelpool.repository.entry import Entry

log = logging.getLogger(__name__)

_PREFIX_BYTES = ANSWER_PREFIX.size
_FIRST_POLL_S, _LAST_POLL_S = 0.01, 0.2
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.1, 5.0
_YOUNG_S = 5.0
_ALIVE = ("READY", "LOADING", "UNLOADING")
_GROWN_BYTES = 1 << 20
"""A model's own processes that hold so much more than after its load have grown by running: that is what a run adds."""
_DEATHS_TO_BLAME = 2
"""A load during which the server went so many times in a row is why it did."""


class TritonInstance:
    """One Triton server as an instance (`ports.Instance`).

    devices: budget in bytes by device; entry_of: the catalogue's entry of a model; new_copy: a number for a copy that was found.
    """

    def __init__(
        self,
        ident: str,
        place: Place,
        devices: dict[str, int],
        run_dir: Path,
        events: EventSink,
        calls: CallSink,
        clock: Clock,
        entry_of: Callable[[str], Entry | None],
        new_copy: Callable[[], int],
        settings: TritonSettings | None = None,
    ) -> None:
        self._ident = ident
        self._place = place
        self._devices = devices
        self._run_dir = run_dir
        self._events = events
        self._calls = calls
        self._clock = clock
        self._entry_of = entry_of
        self._new_copy = new_copy
        self._settings = settings or TritonSettings()
        self._own: OwnServer | None = None
        self._address = place.address
        self._control: Control | None = None
        self._pool: Pool | None = None
        self._gauge: Gauge | None = None
        self._generation = 0
        self._down = True
        self._known = False
        self._stopping = False
        self._problem: str | None = None
        self._held: dict[int, HeldModel] = {}
        self._claims = Claims()
        self._loading: set[str] = set()
        self._fatal: dict[str, int] = {}
        self._up_since = 0.0
        self._young_deaths = 0
        self._reviving = False
        self._checking = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ident(self) -> str:
        """Its name, the same over restarts."""
        return self._ident

    @property
    def problem(self) -> str | None:
        """Why the server cannot be used now, for people."""
        return self._problem

    # --- up and down -------------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Start our own server, or take in one that runs; one that does not answer yet is waited for in the background.

        Raises SetupError where our own does not start.
        """
        self._run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._place.command is not None:
            self._own = OwnServer(
                self._ident, self._place.command, self._place.repositories, self._run_dir / f"{self._ident}.log", self._own_exited
            )
            await self._start_own()
            await self._take_in()
        elif await self._answers(self._settings.first_look_s):
            await self._take_in()
        else:
            self._problem = f"Triton {self._ident} at {self._address} does not answer; it is taken in when it does"
            log.warning("%s", self._problem)
            self._generation = _generation()
            # The core is to know that it is coming, so that nobody is refused for want of it.
            self._events(InstanceUp(self._ident, self._generation, (), (), self._place.runtimes, isolates=False))
            self._events(InstanceDown(self._ident, self._generation, "it does not answer yet", outside=True))
            self._revive_soon()
        self._spawn(self._watch())

    async def _start_own(self) -> None:
        assert self._own is not None
        self._address = self._own.start()
        limit_s = self._settings.start_timeout_s
        if not await self._answers(limit_s):
            how = "ended at its start" if self._own.pid is None else f"did not answer within {limit_s:g} s"
            self._own.kill()
            await self._own.ended()
            raise SetupError(f"Triton {self._ident} {how} ({self._own.last_words() or 'no last words'}); see {self._own.log}")

    async def _answers(self, limit_s: float) -> bool:
        """Connect; whether the server answers within the limit."""
        await self._disconnect()
        assert self._address is not None
        self._control = control = Control(self._address.grpc)
        until = self._clock() + limit_s
        while not await control.live():
            if self._clock() > until or self._stopping or (self._own is not None and self._own.pid is None):
                return False
            await asyncio.sleep(0.05)
        return True

    async def _disconnect(self) -> None:
        if self._control is not None:
            control, self._control = self._control, None
            await control.close()

    async def _take_in(self) -> None:
        """The server answers: report it with all that it holds. Raises Unreachable."""
        assert self._control is not None
        assert self._address is not None
        found = await self._control.index()
        if self._own is None and any(one.state in ("LOADING", "UNLOADING") for one in found):
            raise Unreachable(f"Triton {self._ident} still loads or unloads what it was asked for; restart it if that does not end")
        requests = Requests(self._ident, self._calls, self._lost, self._look_soon, self._go_down)
        self._pool = Pool(self._address.host, self._address.http_port or 0, requests, self._clock)
        pid = self._own.pid if self._own is not None else memory.pid_of_listener(self._address.host, self._address.grpc_port)
        self._gauge = Gauge(pid, self._address, self._control)
        self._claims.clear()
        self._held.clear()
        for name in dict.fromkeys(one.name for one in found if one.state == "READY"):
            await self._adopt(name)
        await self._gauge.settle(self._sizes())
        self._generation = _generation()
        self._down, self._problem = False, None
        self._up_since = self._clock()
        copies = tuple(Held(held.copy, held.model, held.revision, held.device, held.learned) for held in self._held.values())
        self._events(InstanceUp(self._ident, self._generation, tuple(self._devices.items()), copies, self._place.runtimes, isolates=False))

    async def _adopt(self, name: str) -> None:
        assert self._gauge is not None
        entry = self._entry_of(name)
        copy = self._new_copy()
        revision, model_dir, device, estimate = "", "", next(iter(self._devices)), 0
        if entry is not None and entry.spec is not None:
            revision, model_dir, estimate = entry.revision, entry.model_dir, entry.spec.estimate_bytes
            device = next((one for kind in entry.spec.device_kinds for one in self._devices if one.partition(":")[0] == kind), device)
        size = await self._gauge.size_of(name, model_dir, device) or estimate
        learned = Learned(size, size, RUN_NOT_MEASURED, 0.0)
        self._held[copy] = HeldModel(copy, name, revision, device, learned, self._route_of(copy, name), model_dir)
        self._claims.put(name, copy)

    def _route_of(self, copy: int, model: str) -> TritonRoute:
        assert self._pool is not None
        return TritonRoute(self._pool, copy, quote(model, safe=""), self._calls)

    def _own_exited(self, how: str) -> None:
        if not (self._down or self._stopping):
            log.warning("%s: process is gone: %s", self._ident, how)
        by_itself = not how.startswith("signal 9") and not how.startswith("signal 15")
        self._go_down(f"the Triton process ended ({how})", blame=by_itself)

    def _go_down(self, reason: str, *, blame: bool = False) -> None:
        """The server is gone, or of no use: nothing that it held counts any more."""
        if self._down:
            return
        self._down = True
        self._young_deaths = self._young_deaths + 1 if self._clock() - self._up_since < _YOUNG_S else 0
        self._problem = f"Triton {self._ident} is down: {reason}"
        for model in self._loading:
            self._fatal[model] = self._fatal.get(model, 0) + (_DEATHS_TO_BLAME if blame else 1)
        self._held.clear()
        self._claims.clear()
        self._events(InstanceDown(self._ident, self._generation, reason, outside=True))
        if self._pool is not None:
            self._pool.close()
        if self._own is not None:
            self._own.kill()
        self._spawn(self._claims.wake())
        self._revive_soon()

    def _revive_soon(self) -> None:
        if not (self._reviving or self._stopping):
            self._reviving = True
            self._spawn(self._revive())

    async def _revive(self) -> None:
        """Bring the server back, or wait until it is, more slowly the more often that fails."""
        backoff_s = _FIRST_BACKOFF_S * 2.0 ** min(self._young_deaths, 6)
        try:
            while self._down:
                await asyncio.sleep(min(_LAST_BACKOFF_S, backoff_s))
                backoff_s *= 2
                try:
                    if self._own is not None:
                        await self._own.ended()
                        await self._start_own()
                        await self._take_in()
                    elif await self._answers(0.0):
                        await self._take_in()
                except ModelpoolError as error:
                    self._problem = error.message
                    log.warning("%s: %s", self._ident, error.message)
            log.info("%s: up again with %d models", self._ident, len(self._held))
        finally:
            self._reviving = False

    def recycle(self, generation: int, copy: int | None, reason: str) -> None:
        """Start our own server anew; one that is not ours is left alone until it has done what it was asked for, or was restarted."""
        if generation == self._generation:
            self._go_down(reason)

    async def stop(self, *, keep: bool = False) -> None:
        """End our own server; one that is not ours keeps what it holds."""
        self._stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._pool is not None:
            self._pool.close()
        await self._disconnect()
        if self._own is not None:
            await self._own.stop()

    def kill(self) -> None:
        """End our own server at once, for good."""
        self._stopping = True
        if self._own is not None:
            self._own.kill()
        if self._pool is not None:
            self._pool.close()

    # --- loads and unloads -------------------------------------------------------------------------------------------------------
    def load(self, generation: int, copy: int, spec: LoadSpec, isolated: bool) -> None:
        """Begin a load; the event sink gets Loaded or LoadFailed."""
        self._spawn(self._load(generation, copy, spec))

    async def _load(self, generation: int, copy: int, spec: LoadSpec) -> None:
        model = spec.model
        await self._claims.take(model, copy)
        if not self._is_current(generation):
            await self._claims.release(model, copy)
            return
        self._loading.add(model)
        begun = time.monotonic()
        try:
            learned = await self._loaded(spec)
        except Unreachable as error:
            if self._is_current(generation):
                if time.monotonic() - begun >= self._settings.load_timeout_s:
                    self._failed(generation, copy, f"loading {model} took longer than load_timeout ({self._settings.load_timeout_s:g} s)")
                self._go_down(f"while it loaded '{model}': {error.message}")
            return
        except ModelpoolError as error:
            self._fatal.pop(model, None)
            await self._claims.release(model, copy)
            if self._is_current(generation):
                self._failed(generation, copy, error.message)
            return
        finally:
            self._loading.discard(model)
        if not self._is_current(generation):
            return
        self._fatal.pop(model, None)
        self._held[copy] = HeldModel(copy, model, spec.revision, spec.device, learned, self._route_of(copy, model), spec.model_dir)
        figures = learned.private_bytes, learned.load_peak_bytes, learned.load_s
        self._events(Loaded(self._ident, generation, copy, *figures))

    def _failed(self, generation: int, copy: int, message: str, *, died: bool = False) -> None:
        self._events(LoadFailed(self._ident, generation, copy, LoadFailedError.code, message, died))

    async def _loaded(self, spec: LoadSpec) -> Learned:
        """Have the server load a model, and measure it. Raises LoadFailed, Unreachable."""
        control, gauge = self._control, self._gauge
        assert control is not None
        assert gauge is not None
        if self._fatal.get(spec.model, 0) >= _DEATHS_TO_BLAME:
            del self._fatal[spec.model]
            raise LoadFailedError(f"load failed for model '{spec.model}': Triton ended while it loaded it; see Triton's log")
        if spec.model in self._claims.dirty:
            # Not waited for: what hangs because its process died may do so for minutes, and a load over it serves.
            await control.unload(spec.model, self._settings.load_timeout_s)
            self._claims.dirty.discard(spec.model)
        async with gauge.load(spec) as measured:
            await control.load(spec.model, spec.overrides, self._settings.load_timeout_s)
        entry = self._entry_of(spec.model)
        estimate = entry.spec.estimate_bytes if entry is not None and entry.spec is not None else 0
        size = measured.private_bytes or estimate
        return Learned(size, max(size, measured.load_peak_bytes), RUN_NOT_MEASURED, measured.load_s)

    def unload(self, generation: int, copy: int) -> None:
        """Begin an unload; the event sink gets Unloaded once the index says so."""
        self._spawn(self._unload(generation, copy))

    async def _unload(self, generation: int, copy: int) -> None:
        held = self._held.get(copy)
        if held is not None:
            held.leaving = True
            try:
                await self._unloaded(held.model)
            except ModelpoolError as error:
                if self._is_current(generation):
                    self._go_down(f"while it unloaded '{held.model}': {error.message}")
                return
            self._held.pop(copy, None)
            await self._claims.release(held.model, copy)
        unclaimed = look.unclaimed_bytes if (look := await self._look_at_memory()) is not None else None
        if self._is_current(generation):
            self._events(Unloaded(self._ident, generation, copy, unclaimed_bytes=unclaimed))

    async def _unloaded(self, model: str) -> None:
        """Have the server unload a model, and wait until its index says so. Raises Unreachable."""
        control = self._control
        assert control is not None
        await control.unload(model, self._settings.load_timeout_s)
        pause_s = _FIRST_POLL_S
        while any(one.name == model and one.state in _ALIVE for one in await control.index()):
            await asyncio.sleep(pause_s)
            pause_s = min(_LAST_POLL_S, pause_s * 1.5)

    def _is_current(self, generation: int) -> bool:
        return generation == self._generation and not self._down and not self._stopping

    # --- requests ----------------------------------------------------------------------------------------------------------------
    def route(self, copy: int) -> Route:
        """How requests reach a copy that is loaded."""
        return self._held[copy].route

    def _lost(self, copy: int, reason: str) -> None:
        """The server does not hold a copy any more, or nothing that works."""
        held = self._held.get(copy)
        if held is None or held.leaving or self._down:
            return
        del self._held[copy]
        self._claims.dirty.add(held.model)
        self._claims.drop(held.model, copy)
        self._spawn(self._claims.wake())
        self._events(CopyLost(self._ident, self._generation, copy, reason))

    # --- looks from time to time -------------------------------------------------------------------------------------------------
    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.probe_s)
            await self._look()

    def _look_soon(self) -> None:
        if not (self._checking or self._down or self._stopping):
            self._checking = True
            self._spawn(self._look())

    async def _look(self) -> None:
        """Compare what the server holds with what it should; see whether it is there at all."""
        try:
            if self._down or self._control is None:
                return
            generation, before = self._generation, set(self._held)
            try:
                found = await self._control.index()
            except Unreachable as error:
                if self._is_current(generation):
                    self._go_down(error.message)
                return
            if self._is_current(generation):
                self._compare(found, before)
            held = list(self._held.values())
            look = await self._look_at_memory()
            if look is not None and held == list(self._held.values()) and self._is_current(generation):
                grown = ((one, own - one.learned.private_bytes) for one, own in zip(held, look.own_bytes, strict=True))
                peaks = tuple((one.copy, size) for one, size in grown if size > _GROWN_BYTES)
                self._events(Observed(self._ident, generation, None, peaks, unclaimed_bytes=look.unclaimed_bytes))
        except Exception:
            log.exception("%s: a look at Triton failed; the next one comes", self._ident)
        finally:
            self._checking = False

    def _sizes(self) -> list[tuple[str, int]]:
        return [(held.model_dir, held.learned.private_bytes) for held in self._held.values()]

    async def _look_at_memory(self) -> Look | None:
        """Only while nothing runs or loads: what requests and loads take for a while is not what stays."""
        if self._gauge is None or self._loading or self._pool is None or self._pool.in_flight:
            return None
        return await self._gauge.look(self._sizes())

    def _compare(self, found: list[IndexEntry], before: set[int]) -> None:
        ready = {one.name for one in found if one.state == "READY"}
        for copy in before:
            held = self._held.get(copy)
            if held is not None and held.model not in ready:
                self._lost(copy, "Triton's index does not have it any more")
        strangers = ready - self._claims.names - self._claims.dirty
        if strangers:
            log.warning("%s: somebody else loaded %s; modelpool does not count it", self._ident, ", ".join(sorted(strangers)[:5]))

    # --- figures -----------------------------------------------------------------------------------------------------------------
    def describe(self) -> dict[str, Any]:
        """Figures for people: the server's processes with pid and private bytes, what it holds."""
        known = self._gauge.processes if self._gauge is not None and not self._down else {}
        processes = memory.describe_processes(self._ident, known)
        if processes:
            processes[0]["in_flight"] = self._pool.in_flight if self._pool is not None else 0
            processes[0]["models"] = sorted(held.model for held in self._held.values())
        return {
            "instance": self._ident,
            "generation": self._generation,
            "up": not self._down,
            "problem": self._problem,
            "address": str(self._address),
            "processes": processes,
        }

    # --- tasks -------------------------------------------------------------------------------------------------------------------
    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with contextlib.suppress(asyncio.CancelledError):
            error = task.exception()
            if error is not None:
                log.error("%s: a task failed", self._ident, exc_info=error)


def _generation() -> int:
    return secrets.randbelow(2**31 - 1) + 1
