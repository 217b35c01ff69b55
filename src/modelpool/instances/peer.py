"""One worker process together with the connection to it, from its start or adoption to its death, which is reported once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from modelpool.errors import LoadFailed, ModelpoolError, SetupError
from modelpool.instances.link import Link, LinkLost
from modelpool.instances.process import Process, default_python, log_tail, spawn_worker
from modelpool.ports import Call, CallSink, Clock
from modelpool.protocol import messages
from modelpool.protocol.frames import WIRE_VERSION, Kind
from modelpool.protocol.record import WorkerRecord, anonymous_bytes, connect, is_stopped, listener, remove_files, running_path, socket_path
from modelpool.protocol.running import TABLE_BYTES, read_running

_BODIES = 4
"""So many times its body a request may take while it waits and runs: as it came, as tensors, and as the model makes copies of these."""
_LAST_ANSWERS_S = 1.0
"""How long a dead process's connection may still bring answers, and how long a process may outlive its connection."""
_CONNECT_POLL_S = 0.01
_PROBLEMS: dict[type[Exception], str] = {TimeoutError: "did not answer", LinkLost: "broke off"}


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """How embedded workers are started and watched; times in seconds.

    orphan_grace_s: how long they outlive a killed server; start_timeout_s: from spawn to first answer; adopt_timeout_s: until one that
    was found answers; load_timeout_s: a longer load has its process killed; verify_timeout_s: how long an unload waits for its memory;
    stop_timeout_s: from STOP to SIGKILL; probe_s: between measurements, and how long a worker may be stopped by a signal before it is
    killed; stuck_s: a worker with nothing to do that does not answer for so long is killed; preload: runtimes that the shared worker
    imports at its start, so that no model is charged for them.
    """

    orphan_grace_s: float = 60.0
    start_timeout_s: float = 60.0
    adopt_timeout_s: float = 10.0
    load_timeout_s: float = 600.0
    verify_timeout_s: float = 1.0
    stop_timeout_s: float = 5.0
    probe_s: float = 5.0
    stuck_s: float = 60.0
    python: str = field(default_factory=default_python)
    preload: tuple[str, ...] = ("onnx",)


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a worker: why, how long it was up, and the requests that it did not answer, each with whether it had started.

    from_outside: it was ended for something that none of its models did.
    """

    reason: str
    lived_s: float
    lost: tuple[tuple[Call, bool], ...]
    from_outside: bool = False

    @property
    def suspects(self) -> frozenset[str]:
        """Names of the models that may have brought it about: those that were running."""
        return frozenset() if self.from_outside else frozenset(call.model for call, started in self.lost if started)


class DeadlyLoad(LoadFailed):
    """The load ended its process."""


class InterruptedLoad(LoadFailed):
    """The process ended before it began the load, or for something that no model did; another one may load it."""


class Peer:
    """A worker process as the instance sees it.

    shared: it holds many copies, and its bytes before any load are not charged. on_gone: called once, when process and connection have both
    ended.
    """

    def __init__(
        self,
        name: str,
        run_dir: Path,
        settings: EmbeddedSettings,
        calls: CallSink,
        *,
        shared: bool,
        on_gone: Callable[[Peer, Death], None],
        on_observed: Callable[[messages.Observed], None],
        clock: Clock,
    ) -> None:
        self.name = name
        self.shared = shared
        self.generation = 0
        self.baseline_bytes = 0
        self._run_dir = run_dir
        self._clock = clock
        self._up_since: float | None = None
        self._settings = settings
        self._on_gone = on_gone
        self._on_observed = on_observed
        self._loop = asyncio.get_running_loop()
        self.link = Link(self._loop, calls, self._link_closed, self._observed)
        self._calls = calls
        self._process: Process | None = None
        self._exit: str | None = None
        self._killed_for: str | None = None
        self._from_outside = False
        self._was_stopped = False
        self._started: Container[int] = ()
        self._detached = False
        self._probed_at: float | None = None
        self.death: Death | None = None
        self._ended = asyncio.Event()

    # --- beginnings ----------------------------------------------------------------------------------------------------------------
    async def start(self) -> messages.Welcome:
        """Start the process and greet it; raises SetupError. Where that fails, the process has ended."""
        arguments = ["--run-dir", str(self._run_dir), "--name", self.name]
        arguments += ["--server", str(os.getpid())]
        arguments += ["--orphan-grace", str(self._settings.orphan_grace_s), "--verify-timeout", str(self._settings.verify_timeout_s)]
        if self.shared:
            for runtime in self._settings.preload:
                arguments += ["--preload", runtime]
        else:
            arguments.append("--isolated")
        try:
            remove_files(self._run_dir, self.name)
            self._process = Process(spawn_worker(self._settings.python, arguments, self.log), self._exited, own=True)
        except OSError as error:
            raise SetupError(f"worker process {self.name} cannot be started ({error}); {self._advice()}") from error
        return await self._greet()

    async def adopt(self, record: WorkerRecord) -> messages.Welcome:
        """Greet a process that an earlier server started; raises SetupError. Only one that listens is taken for what the record says."""
        try:
            sock = connect(socket_path(self._run_dir, self.name))
        except OSError as error:
            raise SetupError(f"worker {self.name} cannot be reached: {error.strerror}") from error
        try:
            if listener(sock) != record.pid:
                raise SetupError(f"worker {self.name} cannot be reached: process {listener(sock)} listens in its place")
            self._process = Process(record.pid, self._exited, own=False)
            if is_stopped(record.pid):
                self.kill("a signal had stopped it")
                await self.ended()
                raise SetupError(f"worker {self.name} was stopped by a signal; it was ended")
        except ProcessLookupError as error:
            sock.close()
            raise SetupError(f"worker {self.name} has ended") from error
        except OSError as error:
            sock.close()
            raise SetupError(f"worker {self.name} cannot be watched: {error.strerror}") from error
        except SetupError:
            sock.close()
            raise
        return await self._greet(sock)

    async def _greet(self, sock: socket.socket | None = None) -> messages.Welcome:
        timeout_s = self._settings.start_timeout_s if sock is None else self._settings.adopt_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                if sock is None:
                    sock = await self._connect()
                await self._loop.create_unix_connection(lambda: self.link, sock=sock)
                hello = messages.Hello(wire_version=WIRE_VERSION, server=self.name)
                payload = await self.link.ask(Kind.HELLO, 0, messages.encode(hello))
            welcome = messages.decode(payload, messages.Welcome)
        except msgspec.MsgspecError as error:
            self.kill("it speaks another language")
            await self.ended()
            raise SetupError(f"worker process {self.name} is of another version of modelpool and was ended ({error})") from error
        except Exception as error:
            problem = _PROBLEMS.get(type(error), f"cannot be reached ({error!r})")
            self.kill(f"it {problem} when it was greeted")
            death = await self.ended()
            if sock is not None:
                sock.close()
            raise SetupError(f"worker process {self.name} {problem} at its start ({death.reason}); {self._advice()}") from error
        self.generation = welcome.generation
        self.baseline_bytes = welcome.baseline_bytes if self.shared else 0
        self._up_since = self._clock()
        return welcome

    def _advice(self) -> str:
        """What to do about a process that does not start."""
        with contextlib.suppress(OSError):
            if shutil.disk_usage(self._run_dir).free < TABLE_BYTES:
                return f"the disk of {self._run_dir} is full: free some space, or name another folder with --state-dir"
        return f"see {self.log}"

    async def _connect(self) -> socket.socket:
        path = socket_path(self._run_dir, self.name)
        while True:
            if self._exit is not None:
                raise LinkLost
            try:
                return connect(path)
            except (FileNotFoundError, ConnectionRefusedError):  # it does not listen yet; anything else is no better for waiting
                await asyncio.sleep(_CONNECT_POLL_S)

    # --- what it is asked ------------------------------------------------------------------------------------------------------------
    async def load(self, spec: messages.LoadSpec) -> messages.Loaded:
        """Load a copy; raises a ModelpoolError (see DeadlyLoad, InterruptedLoad). One that takes too long costs the process its life."""
        timeout_s = self._settings.load_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                payload = await self.link.ask(Kind.LOAD, spec.copy, messages.encode(spec))
        except TimeoutError as error:
            self.kill(f"loading {spec.model} took longer than {timeout_s:g} s")
            await self.ended()
            message = f"loading {spec.model} took longer than load_timeout ({timeout_s:g} s), so its process was ended"
            raise DeadlyLoad(message) from error
        except LinkLost as error:
            raise self.died_loading(spec, await self.ended(), error.call in self._started) from error
        if self.death is not None:
            raise self.died_loading(spec, self.death, False)
        return messages.decode(payload, messages.Loaded)

    def died_loading(self, spec: messages.LoadSpec, death: Death, begun: bool) -> LoadFailed:
        """What a load ends in whose process died. begun: the load may be why."""
        if death.from_outside or not begun:
            return InterruptedLoad(f"the worker process ended before it had loaded {spec.model} ({death.reason})")
        last = log_tail(self.log)
        return DeadlyLoad(f"the worker process died while loading {spec.model} ({death.reason}); its last words: {last or 'none'}")

    async def unload(self, copy: int) -> bool:
        """Unload a copy; False where the process died first."""
        try:
            await self.link.ask(Kind.UNLOAD, copy)
        except LinkLost:
            await self.ended()
            return False
        except ModelpoolError:
            pass  # it does not have it
        return True

    def probe(self) -> None:
        """Ask for a sign of life; a worker with nothing to do that owes one for too long is killed, and one found stopped twice in turn."""
        now = self._clock()
        stopped_before, self._was_stopped = self._was_stopped, is_stopped(self.pid)
        if stopped_before and self._was_stopped:
            self.kill("a signal stopped it and it did not go on", from_outside=True)
            return
        if self._up_since is None:
            return  # what it is asked before it is connected is lost
        if self._probed_at is None:
            self._probed_at = now
            self.link.probe()
        elif now - self._probed_at > self._settings.stuck_s and not self.link.is_busy:
            self.kill(f"it did not answer for {now - self._probed_at:.0f} s")

    def private_bytes(self) -> int:
        """What it adds to the instance's private bytes now."""
        if self._process is None or self.death is not None:
            return 0
        return max(0, (anonymous_bytes(self._process.pid) or 0) - self.baseline_bytes)

    def idle_bytes(self) -> int:
        """The same without what the requests may take that it has (their bodies and what is made of them)."""
        under_way = sum(len(call.body) for call in self.link.pending.values())
        return max(0, self.private_bytes() - _BODIES * under_way)

    # --- its end ---------------------------------------------------------------------------------------------------------------------
    def kill(self, reason: str, *, from_outside: bool = False) -> None:
        """End the process at once. from_outside: for something that none of its models did."""
        if self._killed_for is None:
            self._killed_for = reason
            self._from_outside = from_outside
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """Let it finish what it accepted, within a limit; returns when it has ended."""
        if self._process is None:
            return
        if self._up_since is None:
            self.kill("it was not up yet when it was to stop")
        self.link.send(Kind.STOP, 0, 0)
        try:
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await self._ended.wait()
        except TimeoutError:
            self.kill(f"it did not stop within {self._settings.stop_timeout_s:g} s")
            await self._ended.wait()

    def detach(self) -> None:
        """Leave it to the next server."""
        self._detached = True
        self.link.close()
        if self._process is not None:
            self._process.forget()
        for call in self.link.take_pending():
            self._calls.lost(call, call.begun)

    async def ended(self) -> Death:
        """Wait for its end."""
        await self._ended.wait()
        assert self.death is not None
        return self.death

    def _exited(self, how: str) -> None:
        self._exit = how
        if self.link.is_open:
            # Answers that it sent before it died are still to be read; a process that it forked may hold the connection open, though.
            self._loop.call_later(_LAST_ANSWERS_S, self.link.close)
        else:
            self._gone()

    def _link_closed(self) -> None:
        if self._exit is not None:
            self._gone()
        elif not self._detached and self._process is not None:
            self._loop.call_later(_LAST_ANSWERS_S, self.kill, "its connection broke")

    def _gone(self) -> None:
        if self.death is not None:
            return
        self._started = started = read_running(running_path(self._run_dir, self.name))
        lost = tuple((call, call.begun and call.callid in started) for call in self.link.take_pending())
        reason = f"{self._killed_for}, {self._exit}" if self._killed_for else (self._exit or "ended")
        lived_s = self._clock() - self._up_since if self._up_since is not None else 0.0
        self.death = Death(reason, lived_s, lost, self._from_outside)
        with contextlib.suppress(OSError):  # whatever is wrong with the folder, the death is told
            remove_files(self._run_dir, self.name)
        self._ended.set()
        self._on_gone(self, self.death)

    def _observed(self, observed: messages.Observed) -> None:
        self._probed_at = None
        self._on_observed(observed)

    # --- figures ---------------------------------------------------------------------------------------------------------------------
    @property
    def log(self) -> Path:
        """Its log; all processes of an instance share one."""
        return self._run_dir / f"{self.name.partition('+')[0]}.log"

    @property
    def pid(self) -> int:
        """Its process id (0: not started)."""
        return self._process.pid if self._process is not None else 0


async def stop_all(peers: Iterable[Peer]) -> None:
    """Stop several at once."""
    await asyncio.gather(*(peer.stop() for peer in peers))
