"""An embedded instance with real worker processes, and what tests need to talk to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from modelpool.core.events import CopyLost, Event, InstanceUp, Loaded, Unloaded
from modelpool.errors import ModelpoolError, from_code
from modelpool.instances.embedded import EmbeddedInstance
from modelpool.instances.peer import EmbeddedSettings
from modelpool.ports import Call
from modelpool.protocol.frames import ANSWER_PREFIX
from modelpool.protocol.inference import decode_response, encode_request
from modelpool.protocol.messages import LoadSpec, VersionSpec
from modelpool.protocol.record import read_records

FAULTY = str(Path(__file__).parent / "faulty")
BUDGET = {"cpu": 1 << 30}
E = TypeVar("E", bound=Event)


class Lost(Exception):
    """The call's process died; `started` as the instance told."""

    def __init__(self, started: bool) -> None:
        super().__init__(started)
        self.started = started


class Asked(Call):
    """A call whose outcome can be awaited: the outputs, or an exception."""

    __slots__ = ("batch", "executions", "outcome")

    def __init__(self, model: str, inputs: dict[str, Any], parameters: dict[str, Any] | None = None) -> None:
        body = encode_request(inputs, parameters=parameters)
        super().__init__(model, 0, body.joined(), body.json_bytes)
        self.outcome: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.batch = 0
        self.executions = 0


class Calls:
    """The sink of all calls. It fails a test in which a call ends twice."""

    def answered(self, call: Asked, payload: memoryview) -> None:
        json_bytes, _, _, call.batch, call.executions = ANSWER_PREFIX.unpack_from(payload)
        answer = decode_response(bytes(payload[ANSWER_PREFIX.size :]), json_bytes)
        call.outcome.set_result({name: tensor.array for name, tensor in answer.outputs.items()})

    def failed(self, call: Asked, code: str, message: str, retry_after_s: float | None) -> None:
        call.outcome.set_exception(from_code(code, message, retry_after_s=retry_after_s) if code != "cancelled" else Cancelled(message))

    def lost(self, call: Asked, started: bool) -> None:
        call.outcome.set_exception(Lost(started))


class Cancelled(ModelpoolError):
    """A call that was withdrawn."""

    code = "cancelled"


class Events:
    """All events in order; `next` waits for one."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self._at = 0
        self._more = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.all.append(event)
        self._more.set()

    async def next(self, kind: type[E], matches: Callable[[E], bool] = lambda _: True) -> E:
        """The next event of this kind after the last one that was returned."""
        while True:
            while self._at < len(self.all):
                event = self.all[self._at]
                self._at += 1
                if isinstance(event, kind) and matches(event):
                    return event
            self._more.clear()
            await self._more.wait()

    def of(self, kind: type[E]) -> list[E]:
        """All of this kind so far."""
        return [event for event in self.all if isinstance(event, kind)]


class Rig:
    """An instance with its events and calls."""

    def __init__(self, run_dir: Path, ident: str = "w", **settings: Any) -> None:
        self.run_dir = run_dir
        self.events = Events()
        self.calls = Calls()
        settings.setdefault("preload", ())
        self.instance = EmbeddedInstance(ident, BUDGET, run_dir, self.events, self.calls, time.monotonic, EmbeddedSettings(**settings))
        self.generation = 0
        self.up: InstanceUp | None = None

    async def start(self) -> InstanceUp:
        await self.instance.start()
        self.up = await self.events.next(InstanceUp)
        self.generation = self.up.generation
        return self.up

    def begin_load(self, copy: int, *, isolated: bool = False, spec: LoadSpec | None = None, **config: Any) -> None:
        self.instance.load(self.generation, copy, spec or faulty(copy, **config), isolated)

    async def load(self, copy: int, *, isolated: bool = False, spec: LoadSpec | None = None, **config: Any) -> Loaded:
        self.begin_load(copy, isolated=isolated, spec=spec, **config)
        return await self.events.next(Loaded, lambda event: event.copy == copy)

    async def unload(self, copy: int) -> Unloaded:
        self.instance.unload(self.generation, copy)
        return await self.events.next(Unloaded, lambda event: event.copy == copy)

    def ask(self, copy: int, value: float, parameters: dict[str, Any] | None = None) -> Asked:
        """Send one row of two elements to a faulty model; the outcome is to be awaited."""
        return self.send(copy, {"X": np.full((1, 2), value, np.float32)}, parameters)

    def send(self, copy: int, inputs: dict[str, Any], parameters: dict[str, Any] | None = None) -> Asked:
        call = Asked(f"m{copy}", inputs, parameters)
        self.instance.route(copy).infer(call)
        return call

    async def value(self, copy: int, value: float) -> float:
        """The doubled value."""
        outputs = await self.ask(copy, value).outcome
        return float(outputs["Y"][0, 0])

    def pids(self) -> dict[str, int]:
        return {record.name: record.pid for record in read_records(self.run_dir)}

    async def lost(self, copy: int) -> CopyLost:
        return await self.events.next(CopyLost, lambda event: event.copy == copy)


@contextlib.asynccontextmanager
async def rig(run_dir: Path, **settings: Any) -> AsyncIterator[Rig]:
    """A running instance whose processes are ended, whatever happens."""
    made = Rig(run_dir, **settings)
    try:
        await made.start()
        yield made
    finally:
        await made.instance.stop()
        await gone(made.pids().values())


async def gone(pids: Iterable[int]) -> None:
    """End what is left of these processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something that no event tells of; pytest's time limit is the bound."""
    while not condition():  # noqa: ASYNC110 - processes and files set no events
        await asyncio.sleep(0.01)


def faulty(copy: int, **config: Any) -> LoadSpec:
    """A load of the runtime for tests."""
    return LoadSpec(
        copy=copy,
        model=f"m{copy}",
        revision="r",
        runtime="faulty",
        device="cpu",
        model_dir="/",
        versions=(VersionSpec(1, "/"),),
        default_version=1,
        config=config,
    )


async def outcome_of(call: Asked) -> Any:
    """The outputs, or the exception as a value."""
    return (await asyncio.gather(call.outcome, return_exceptions=True))[0]
