"""An embedded instance: one shared worker process, and one process for each isolated copy (several where its configuration says so).

The processes are independent: the death of one costs the copies that it held and no others. The shared worker is restarted at once. While
that cannot be done, loads in it fail with the reason (`Unavailable`), and what lives in processes of its own is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import msgspec

from modelpool.core.events import CopyLost, Event, Held, InstanceDown, InstanceUp, Loaded, LoadFailed, Observed, Unloaded
from modelpool.errors import LoadFailed as LoadFailedError
from modelpool.errors import ModelpoolError, SetupError, ShuttingDown, Unavailable
from modelpool.instances.adoption import adopt_workers, member_name
from modelpool.instances.link import Route, SpreadRoute
from modelpool.instances.peer import DeadlyLoad, Death, EmbeddedSettings, InterruptedLoad, Peer, stop_all
from modelpool.instances.resident import Resident, per_process_spec, process_count
from modelpool.ports import Call, CallSink, Clock, EventSink
from modelpool.protocol import messages

log = logging.getLogger(__name__)

RUNTIMES = ("onnx", "python")
"""What workers can run."""
YOUNG_S = 5.0
"""A shared worker that dies sooner after its start makes the next start wait."""
FIRST_BACKOFF_S = 0.1
LAST_BACKOFF_S = 5.0
DEATHS_BEFORE_PROBLEM = 5
"""After so many deaths in a row soon after its start, nobody waits for the next start of the shared worker any more."""


class EmbeddedInstance:
    """Worker processes of this machine as one instance (`ports.Instance`).

    devices: budget in bytes by device; run_dir: folder for sockets, logs and records, which a later server finds again.
    """

    def __init__(
        self,
        ident: str,
        devices: dict[str, int],
        run_dir: Path,
        events: EventSink,
        calls: CallSink,
        clock: Clock,
        settings: EmbeddedSettings | None = None,
    ) -> None:
        self._ident = ident
        self._devices = devices
        self._run_dir = run_dir
        self._events = events
        self._calls = calls
        self._clock = clock
        self._settings = settings or EmbeddedSettings()
        self._generation = 0
        self._shared: Peer | None = None
        self._problem: str | None = None
        self._shared_settled = asyncio.Event()  # it is up, or there is a problem
        self._peers: set[Peer] = set()
        self._copies: dict[int, Resident] = {}
        self._young_deaths = 0
        self._down = False
        self._stopping = False
        self._lost: list[tuple[Call, bool]] = []
        self._reviving = False
        self._life = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ident(self) -> str:
        """Its name, the same over restarts."""
        return self._ident

    @property
    def problem(self) -> str | None:
        """Why the shared worker cannot be started, for people; None where it is up, or nothing is known yet."""
        return self._problem

    # --- up and down -------------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Adopt what an earlier server left, else start the shared worker; raises SetupError where that is impossible."""
        self._run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        adopted = await adopt_workers(self._run_dir, self._ident, self._peer)
        self._peers.update(adopted.peers)
        if adopted.shared is not None:
            self._take_shared(adopted.shared)
        if self._shared is None:
            await self._start_shared()
        if self._shared is None:
            raise SetupError(f"the worker process of {self._ident} ended at its start; see {self._run_dir / self._ident}.log")
        self._generation = self._shared.generation
        self._copies.update(adopted.living_copies())
        self._report_up()
        self._spawn(self._watch())

    def _report_up(self) -> None:
        held = tuple(
            Held(copy, resident.spec.model, resident.spec.revision, resident.spec.device, resident.learned)
            for copy, resident in self._copies.items()
        )
        self._events(InstanceUp(self._ident, self._generation, tuple(self._devices.items()), held, RUNTIMES))

    async def stop(self, *, keep: bool = False) -> None:
        """End the processes (keep: leave them for the next server)."""
        self._stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if keep:
            for peer in self._peers:
                peer.detach()
            self._peers.clear()
        else:
            await stop_all(list(self._peers))

    def kill(self) -> None:
        """End the processes at once, whatever they do, for good; also while `start` or `stop` goes on."""
        self._stopping = True
        for peer in self._peers:
            peer.kill("the server was told to stop at once", from_outside=True)

    def _peer(self, name: str) -> Peer:
        return Peer(
            name,
            self._run_dir,
            self._settings,
            self._calls,
            shared=name == self._ident,
            on_gone=self._peer_gone,
            on_observed=self._observed,
            clock=self._clock,
        )

    async def _start_peer(self, name: str) -> Peer:
        peer = self._peer(name)
        self._peers.add(peer)
        try:
            await peer.start()
        finally:
            if not peer.pid:
                self._peers.discard(peer)
        return peer

    async def _start_shared(self) -> None:
        self._take_shared(await self._start_peer(self._ident))

    def _take_shared(self, peer: Peer) -> None:
        if peer.death is None:
            self._shared = peer
            self._problem = None
            self._shared_settled.set()

    def _has_problem(self, problem: str) -> None:
        self._problem = problem
        self._shared_settled.set()

    def _revive_soon(self) -> None:
        if not self._reviving and not self._stopping:
            self._reviving = True
            self._spawn(self._revive())

    async def _revive(self) -> None:
        """Bring the shared worker back, more slowly the more often it dies young."""
        try:
            while self._shared is None:
                await asyncio.sleep(self._backoff_s())
                async with self._life:
                    await self._try_shared()
        finally:
            self._reviving = False

    async def _try_shared(self) -> None:
        """Start the shared worker. An instance that was down is up then in any case: if not it, the reason is there for those that wait."""
        problem = f"the worker process {self._ident} ended at its start; see {self._run_dir / self._ident}.log"
        try:
            await self._start_shared()
        except SetupError as error:
            problem = error.message
            log.error("%s: %s", self._ident, problem)
        except Exception as error:
            problem = f"the worker process {self._ident} cannot be started ({error!r}); see the server's log"
            log.exception("%s: the shared worker could not be started", self._ident)
        if self._shared is None:
            self._young_deaths += 1
            self._has_problem(problem)
        if self._down:
            self._down = False
            self._generation = secrets.randbelow(2**31 - 1) + 1 if self._shared is None else self._shared.generation
            self._report_up()

    def _backoff_s(self) -> float:
        if self._young_deaths == 0:
            return 0.0
        return min(LAST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (self._young_deaths - 1))

    async def _all_down(self, reason: str) -> None:
        """End all processes and report the instance down."""
        self._down = True
        peers = list(self._peers)
        for peer in peers:
            peer.kill(reason)
        await asyncio.gather(*(peer.ended() for peer in peers))
        self._copies.clear()
        lost, self._lost = self._lost, []
        running = {call.model for call, started in lost if started}
        self._events(InstanceDown(self._ident, self._generation, reason, tuple(sorted(running))))
        self._give_up_calls(lost)

    def recycle(self, generation: int, copy: int | None, reason: str) -> None:
        """Kill the process (of one copy, or all of the instance) and start anew."""
        if copy is None:
            self._spawn(self._recycle_all(generation, reason))
        elif generation == self._generation and copy in self._copies:
            for peer in self._copies[copy].peers:
                peer.kill(reason)

    async def _recycle_all(self, generation: int, reason: str) -> None:
        async with self._life:
            if generation != self._generation or self._down:
                return
            await self._all_down(reason)
        self._revive_soon()

    def _peer_gone(self, peer: Peer, death: Death) -> None:
        self._peers.discard(peer)
        was_shared = peer is self._shared
        leaving = any(resident.leaving and peer in resident.peers for resident in self._copies.values())
        if not (self._stopping or leaving):
            log.warning("%s: process %d is gone: %s", peer.name, peer.pid, death.reason)
        if self._down:
            self._lost.extend(death.lost)
        else:
            # First the event, so that who repeats a lost request does not try the copy that is gone.
            self._report_lost_copies(peer, death)
            self._give_up_calls(death.lost)
        if was_shared:
            self._shared = None
            self._shared_settled.clear()
            if not self._down:
                self._young_deaths = self._young_deaths + 1 if death.lived_s < YOUNG_S else 0
                if self._young_deaths >= DEATHS_BEFORE_PROBLEM:
                    times = f"{self._young_deaths} times in a row soon after its start"
                    self._has_problem(f"the worker process {self._ident} died {times} ({death.reason}); see {peer.log}")
                self._revive_soon()

    def _report_lost_copies(self, peer: Peer, death: Death) -> None:
        for copy, resident in list(self._copies.items()):
            if peer not in resident.peers:
                continue
            del self._copies[copy]
            for other in resident.peers:
                if other is not peer and not peer.shared:
                    other.kill(f"process {peer.pid} of the same copy is gone")
            if not resident.leaving:
                running = resident.spec.model in death.suspects
                self._events(CopyLost(self._ident, self._generation, copy, death.reason, running, stopped=self._stopping))

    def _give_up_calls(self, lost: Iterable[tuple[Call, bool]]) -> None:
        for call, started in lost:
            self._calls.lost(call, started)

    # --- loads and unloads -------------------------------------------------------------------------------------------------------
    def load(self, generation: int, copy: int, spec: messages.LoadSpec, isolated: bool) -> None:
        """Begin a load; the event sink gets Loaded or LoadFailed."""
        if spec.copy != copy:
            spec = msgspec.structs.replace(spec, copy=copy)
        self._spawn(self._load(generation, spec, isolated))

    async def _load(self, generation: int, spec: messages.LoadSpec, isolated: bool) -> None:
        resident: Resident | None = None
        while resident is None and self._is_current(generation):
            try:
                resident = await (self._load_isolated(spec) if isolated else self._load_shared(generation, spec))
            except InterruptedLoad as error:
                if self._stopping:
                    return self._load_failed(generation, spec, error)
                log.warning("%s; it is loaded anew", error.message)
            except Exception as error:
                return self._load_failed(generation, spec, error)
        if resident is None:
            return None
        if not self._is_current(generation):  # nobody wants to hear; what began too late to go with that generation goes now
            if isolated:
                for peer in resident.peers:
                    peer.kill("the instance was restarted meanwhile", from_outside=True)
            return None
        self._copies[spec.copy] = resident
        learned = resident.learned
        return self._events(Loaded(self._ident, generation, spec.copy, learned.private_bytes, learned.load_peak_bytes, learned.load_s))

    def _load_failed(self, generation: int, spec: messages.LoadSpec, error: Exception) -> None:
        """Tell of the end of a load, whatever it was."""
        code, message = "load_failed", f"loading {spec.model} failed: {error!r}; see the server's log"
        if self._stopping:
            code, message = ShuttingDown.code, "the server is stopping"
        elif isinstance(error, ModelpoolError):
            code, message = Unavailable.code if isinstance(error, SetupError) else error.code, error.message
        else:
            log.error("%s: loading %s failed", self._ident, spec.model, exc_info=error)
        self._tell(generation, LoadFailed(self._ident, generation, spec.copy, code, message, isinstance(error, DeadlyLoad)))

    async def _load_shared(self, generation: int, spec: messages.LoadSpec) -> Resident:
        while self._shared is None:
            if self._problem is not None:
                raise Unavailable(f"model '{spec.model}' cannot be loaded now: {self._problem}")
            await self._shared_settled.wait()
        if generation != self._generation:
            raise LoadFailedError(f"{spec.model} was not loaded: the instance was restarted meanwhile")
        peer = self._shared
        loaded = await peer.load(spec)
        return Resident(spec, (peer,), False, (loaded,), Route(peer.link, spec.copy))

    async def _load_isolated(self, spec: messages.LoadSpec) -> Resident:
        count = process_count(spec)
        token = secrets.token_hex(3)
        peers: list[Peer] = []
        try:
            async with asyncio.TaskGroup() as group:
                starts = [group.create_task(self._start_peer(member_name(self._ident, token, n, count))) for n in range(count)]
            peers = [start.result() for start in starts]
            part = per_process_spec(spec)
            async with asyncio.TaskGroup() as group:
                loads = [group.create_task(peer.load(part)) for peer in peers]
            for peer in peers:
                if peer.death is not None:  # after its part was loaded
                    raise peer.died_loading(spec, peer.death, True)
        except BaseException as error:
            members = [peer for peer in self._peers if f"+{token}." in peer.name]
            for peer in members:
                peer.kill("the load failed")
            await asyncio.gather(*(peer.ended() for peer in members))
            if isinstance(error, BaseExceptionGroup):
                raise _first_error(error) from error
            raise
        route = Route(peers[0].link, spec.copy) if count == 1 else SpreadRoute([peer.link for peer in peers], spec.copy)
        return Resident(spec, tuple(peers), True, tuple(load.result() for load in loads), route)

    def unload(self, generation: int, copy: int) -> None:
        """Begin an unload; the event sink gets Unloaded."""
        self._spawn(self._unload(generation, copy))

    async def _unload(self, generation: int, copy: int) -> None:
        resident = self._copies.get(copy)
        if resident is not None:
            try:
                if resident.isolated:
                    resident.leaving = True
                    await stop_all(resident.peers)
                elif not await resident.peers[0].unload(copy):
                    return  # it died first: CopyLost says so
            except Exception:
                log.exception("%s: unloading %s failed", self._ident, resident.spec.model)
                for peer in resident.peers if resident.isolated else ():
                    peer.kill("it could not be stopped")
            self._copies.pop(copy, None)
        self._tell(generation, Unloaded(self._ident, generation, copy, self._shared_bytes(), self._own_bytes()))

    def _tell(self, generation: int, event: Event) -> None:
        # Of a generation that is over nobody wants to hear.
        if self._is_current(generation):
            self._events(event)

    def _is_current(self, generation: int) -> bool:
        return generation == self._generation and not self._down

    # --- requests ----------------------------------------------------------------------------------------------------------------
    def route(self, copy: int) -> Route | SpreadRoute:
        """How requests reach a copy that is loaded."""
        return self._copies[copy].route

    def tensors(self, copy: int) -> tuple[tuple[messages.TensorMeta, ...], tuple[messages.TensorMeta, ...]]:
        """Inputs and outputs of a copy that was loaded here (empty for an adopted one whose worker did not say)."""
        resident = self._copies[copy]
        return resident.loaded[0].inputs, resident.loaded[0].outputs

    # --- figures -----------------------------------------------------------------------------------------------------------------
    def _shared_bytes(self) -> int:
        return self._shared.idle_bytes() if self._shared is not None else 0

    def _own_bytes(self) -> tuple[tuple[int, int], ...]:
        """What each copy with processes of its own takes."""
        isolated = [(copy, resident) for copy, resident in self._copies.items() if resident.isolated]
        return tuple([(copy, sum(peer.idle_bytes() for peer in resident.peers)) for copy, resident in isolated])

    def _observed(self, observed: messages.Observed) -> None:
        peaks = tuple(observed.run_peaks.items())
        if peaks and not self._down:
            for copy, peak_bytes in peaks:
                if copy in self._copies:
                    self._copies[copy].run_peak_bytes = max(peak_bytes, self._copies[copy].run_peak_bytes)
            self._events(Observed(self._ident, self._generation, None, peaks))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.probe_s)
            if not self._down:
                try:
                    for peer in list(self._peers):
                        peer.probe()
                    self._events(Observed(self._ident, self._generation, self._shared_bytes(), own_bytes=self._own_bytes()))
                except Exception:
                    log.exception("%s: a look at the processes failed; the next one comes", self._ident)

    def describe(self) -> dict[str, Any]:
        """Figures for people: processes with pid, private bytes, state."""
        return {
            "instance": self._ident,
            "generation": self._generation,
            "up": self._shared is not None and not self._down,
            "problem": self._problem,
            "processes": [
                {
                    "name": peer.name,
                    "pid": peer.pid,
                    "private_bytes": peer.private_bytes(),
                    "in_flight": len(peer.link.pending),
                    "models": sorted(resident.spec.model for resident in self._copies.values() if peer in resident.peers),
                }
                for peer in sorted(self._peers, key=lambda peer: peer.name)
            ],
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


def _first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    for error in errors.exceptions:
        if isinstance(error, ModelpoolError):
            return error
    return errors.exceptions[0]
