"""The worker process: its socket, its connection to the server, and its end.

One server is connected at a time; a newer one replaces it. Without a server the worker waits `orphan_grace_s`, then ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
from dataclasses import dataclass
from pathlib import Path

import msgspec

from modelpool.protocol import messages
from modelpool.protocol.frames import WIRE_VERSION, Kind
from modelpool.protocol.record import WorkerRecord, listen, read_records, remove_files, running_path, socket_path, start_ticks, write_record
from modelpool.protocol.running import RunningTable
from modelpool.protocol.stream import FrameConnection
from modelpool.runtimes import calls
from modelpool.worker.engine import Engine
from modelpool.worker.memory import bound_log, private_bytes

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 1.0
LOG_BYTES = 16 << 20
_LAST_WORDS_S = 2.0
LONELY_STOP_S = 10.0
"""How long a worker without a server waits, once it stops, for runs and loads that go on."""
_INFER_ALONE = int(Kind.INFER_ALONE)
_INFERS = (int(Kind.INFER), _INFER_ALONE)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What the command line gave.

    isolated: the process is for one copy; orphan_grace_s: how long to live without a server; verify_timeout_s: how long an unload waits
    for its memory.
    """

    run_dir: Path
    name: str
    orphan_grace_s: float
    isolated: bool
    verify_timeout_s: float


class ServerLink(FrameConnection):
    """A connection from a server."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._worker = worker
        self._engine = worker.engine
        self.greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._worker.connected(self)

    def frame_received(self, kind: int, copy: int, call: int, payload: memoryview) -> None:
        if kind in _INFERS:
            self._engine.infer(self, copy, call, payload, kind == _INFER_ALONE)
            return
        try:
            self._control(kind, copy, call, payload)
        except msgspec.MsgspecError as error:
            log.error("a frame of kind %d cannot be read (%s); the connection is closed", kind, error)
            self.close()

    def _control(self, kind: int, copy: int, call: int, payload: memoryview) -> None:
        if kind == Kind.HELLO:
            hello = messages.decode(payload, messages.Hello)
            self.greeted = hello.wire_version == WIRE_VERSION
            self._worker.welcome(self, call, hello)
        elif kind == Kind.STOP:
            self._worker.stop("the server said so")
        elif not self.greeted:
            log.error("a frame of kind %d came before a fitting HELLO; the connection is closed", kind)
            self.close()
        elif kind == Kind.LOAD:
            self._engine.load(self, call, messages.decode(payload, messages.LoadSpec))
        elif kind == Kind.UNLOAD:
            self._engine.unload(self, copy, call)
        elif kind == Kind.CANCEL:
            self._engine.cancel(self, copy, call)
        elif kind == Kind.PROBE:
            self._engine.observe(call, {})
        elif kind == Kind.CALLED:
            self._engine.outgoing.answered(call, payload)
        elif kind == Kind.CALL_FAILED:
            self._engine.outgoing.failed(call, messages.decode(payload, messages.Failure))

    def closed(self) -> None:
        self._worker.disconnected(self)


class Worker:
    """Ties socket, engine and life together; `run` ends when the worker is to end."""

    def __init__(self, settings: WorkerSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self._loop = loop
        self._generation = secrets.randbelow(2**31 - 1) + 1
        self._table = RunningTable(running_path(settings.run_dir, settings.name))
        self._baseline_bytes = private_bytes()
        self.engine = Engine(
            loop,
            self._table,
            baseline_bytes=self._baseline_bytes,
            isolated=settings.isolated,
            verify_timeout_s=settings.verify_timeout_s,
        )
        calls.connect(self.engine.outgoing.send)
        self.connections: set[ServerLink] = set()
        self._unconnected = asyncio.Event()
        self._current: ServerLink | None = None
        self._end = asyncio.Event()
        self._orphan_timer: asyncio.TimerHandle | None = None
        self._stopping = False

    async def run(self) -> None:
        """Serve until told to stop or orphaned."""
        settings, loop = self._settings, self._loop
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        server = await loop.create_unix_server(lambda: ServerLink(self, loop), sock=listen(socket_path(settings.run_dir, settings.name)))
        pid = os.getpid()
        record = WorkerRecord(
            name=settings.name, pid=pid, start_ticks=start_ticks(pid) or 0, generation=self._generation, wire_version=WIRE_VERSION
        )
        write_record(settings.run_dir, record)
        self._wait_for_server()
        self._housekeeping()
        log.info("worker is up: pid %d, %d bytes before any model", pid, self._baseline_bytes)
        await self._end.wait()
        server.close()
        for link in list(self.connections):
            link.close()
        if self.connections:
            # What was answered last is still on its way to the socket.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self._unconnected.wait()
        if any(found == record for found in read_records(settings.run_dir)):  # else they are another worker's by now
            remove_files(settings.run_dir, settings.name)

    # --- connections -------------------------------------------------------------------------------------------------------------
    def welcome(self, link: ServerLink, call: int, hello: messages.Hello) -> None:
        """Answer a HELLO. The newest server that speaks our language is the one we serve; one that is ending serves none."""
        if self._stopping:
            link.close()
            return
        if link.greeted and link is not self._current:
            before, self._current = self._current, link
            self.engine.connect(link)
            if before is not None:
                log.warning("server %s replaces the one before", hello.server)
                before.close()
            if self._orphan_timer is not None:
                self._orphan_timer.cancel()
                self._orphan_timer = None
        welcome = messages.Welcome(
            wire_version=WIRE_VERSION,
            worker=self._settings.name,
            generation=self._generation,
            pid=os.getpid(),
            baseline_bytes=self._baseline_bytes,
            copies=tuple(hosted.held() for hosted in self.engine.copies.values() if hosted.retiring < 0),
        )
        link.send(Kind.WELCOME, 0, call, messages.encode(welcome))

    def connected(self, link: ServerLink) -> None:
        """A connection began."""
        self.connections.add(link)
        self._unconnected.clear()

    def disconnected(self, link: ServerLink) -> None:
        """A connection ended; without a server the time of grace begins."""
        self.connections.discard(link)
        if not self.connections:
            self._unconnected.set()
        if link is self._current:
            self._current = None
            self.engine.connect(None)
            log.warning("the server is gone; waiting %g s for another", self._settings.orphan_grace_s)
            self._wait_for_server()
            if self._stopping:
                self._end_soon()

    def _wait_for_server(self) -> None:
        self._orphan_timer = self._loop.call_later(self._settings.orphan_grace_s, self.stop, "no server came")

    # --- the end -----------------------------------------------------------------------------------------------------------------
    def _terminate(self) -> None:
        # Whoever stops all processes of the service at once means the server; it tells its workers when it has finished.
        if self._current is None:
            self.stop("SIGTERM")

    def stop(self, reason: str) -> None:
        """Finish what was accepted, then end."""
        if not self._stopping:
            self._stopping = True
            log.info("worker stops: %s", reason)
            self.engine.stop(self._end.set)
            if self._current is None:
                self._end_soon()

    def _end_soon(self) -> None:
        """Nobody waits for what still runs: it gets a while, and then ends with the process."""
        self._loop.call_later(LONELY_STOP_S, self._end.set)

    def _housekeeping(self) -> None:
        self.engine.trim_if_worth_it()
        bound_log(LOG_BYTES)
        self._loop.call_later(HOUSEKEEPING_S, self._housekeeping)
