"""The loop around the core: one event at a time in, actions carried out, the next wake-up armed."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from modelpool.controller.catalogue import Catalogue
from modelpool.controller.dataplane import DataPlane
from modelpool.controller.journal import Journal
from modelpool.core.actions import Action, Admit, CommandDone, Load, Recycle, Refuse, Unload
from modelpool.core.copies import CopyState
from modelpool.core.core import Core
from modelpool.core.events import CommandGone, EjectWanted, Event, InstanceUp, Loaded, LoadFailed, LoadWanted, Tick
from modelpool.errors import ModelpoolError, from_code
from modelpool.ports import Clock, Instance

log = logging.getLogger("modelpool.controller")

Watcher = Callable[[Event | Action, float], None]


class Dispatcher:
    """Feeds the core and carries out what it asks. All on the event loop; never re-entered."""

    def __init__(self, core: Core, catalogue: Catalogue, journal: Journal, clock: Clock) -> None:
        self.core = core
        self.instances: dict[str, Instance] = {}
        self.plane: DataPlane | None = None
        self.watchers: list[Watcher] = []
        self.overrides: dict[str, dict[str, Any]] = {}
        self._catalogue = catalogue
        self._journal = journal
        self._clock = clock
        self._events: deque[Event] = deque()
        self._busy = False
        self._commands: dict[int, asyncio.Future[tuple[str, ...]]] = {}
        self._next_command = 1
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = float("inf")

    def new_copy(self) -> int:
        """A number for a copy that an instance has found."""
        number = self.core.world.next_copy
        self.core.world.next_copy += 1
        return number

    def feed(self, event: Event) -> None:
        """Tell the core; while it is being told something, events wait their turn."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        wake_at = self._wake_at
        try:
            while self._events:
                wake_at = self._step(self._events.popleft())
        finally:
            self._busy = False
        self._arm(wake_at)

    def _step(self, event: Event) -> float:
        now = self._clock()
        actions, reasons, wake_at = self.core.handle(event, now)
        if isinstance(event, Loaded | InstanceUp):
            self._set_routes(event.instance)
        for watch in self.watchers:
            watch(event, now)
        if reasons:
            self._journal.write(reasons)
        for action in actions:
            for watch in self.watchers:
                watch(action, now)
            try:
                self._act(action)
            except Exception:
                log.exception("could not carry out %s", action)
                self._failed(action)
        return wake_at

    def _set_routes(self, instance: str) -> None:
        for copy in self.core.world.copies.values():
            if copy.instance == instance and copy.route is None and copy.state is not CopyState.LOADING:
                copy.route = self.instances[instance].route(copy.ident)

    def _act(self, action: Action) -> None:
        assert self.plane is not None
        match action:
            case Admit():
                self.plane.admit(action)
            case Refuse():
                self.plane.refuse(action)
            case Load():
                self._load(action)
            case Unload():
                self.instances[action.instance].unload(action.generation, action.copy)
            case Recycle():
                self.instances[action.instance].recycle(action.generation, action.copy, action.reason)
            case CommandDone():
                self._command_done(action)

    def _load(self, action: Load) -> None:
        try:
            spec = self._catalogue.entry(action.model).load_spec(action.copy, action.device)
            if (overrides := self.overrides.get(action.model)) is not None:
                spec = msgspec.structs.replace(spec, overrides=overrides)
        except ModelpoolError as error:
            self.feed(LoadFailed(action.instance, action.generation, action.copy, error.code, error.message))
            return
        self.instances[action.instance].load(action.generation, action.copy, spec, action.isolated)

    def _failed(self, action: Action) -> None:
        """An action that raised is a fault of ours; whoever waits for it is told."""
        if isinstance(action, Load):
            message = f"load failed for model '{action.model}': internal error, see the server's log"
            self.feed(LoadFailed(action.instance, action.generation, action.copy, "load_failed", message))

    # --- the next wake-up ------------------------------------------------------------------------------------------------------
    def _arm(self, wake_at: float) -> None:
        if wake_at == self._wake_at and self._timer is not None:
            return
        self._wake_at = wake_at
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at != float("inf"):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, wake_at - self._clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.feed(Tick())

    def close(self) -> None:
        """No more wake-ups."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- commands --------------------------------------------------------------------------------------------------------------
    async def command(self, make: Callable[[int], LoadWanted | EjectWanted]) -> tuple[str, ...]:
        """Give the core a user's command and wait for its end: the devices it was about. Raises what the core says."""
        number = self._next_command
        self._next_command += 1
        future: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        self._commands[number] = future
        event = make(number)
        self.feed(event)
        try:
            return await future
        finally:
            if self._commands.pop(number, None) is not None:
                self.feed(CommandGone(number, event.model))

    def _command_done(self, action: CommandDone) -> None:
        future = self._commands.pop(action.command, None)
        if future is None or future.done():
            return
        if action.code is None:
            future.set_result(action.devices)
        else:
            future.set_exception(from_code(action.code, action.message, retry_after_s=action.retry_after_s))


class Background:
    """Tasks that belong to the controller: kept, logged when they fail, cancelled at its end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run in the background."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task %s failed", task.get_name(), exc_info=error)

    async def stop(self) -> None:
        """Cancel what still runs."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
