"""The controller: owns the core, the catalogue, the instances and the journal, and is what front ends talk to."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterable
from typing import Any

import modelpool
from modelpool.controller import inspection
from modelpool.controller.aside import aside
from modelpool.controller.catalogue import Catalogue
from modelpool.controller.dataplane import DataPlane
from modelpool.controller.dispatch import Background, Dispatcher
from modelpool.controller.fleet import EMBEDDED, Budgets, budgets, make_instances, places
from modelpool.controller.journal import Journal
from modelpool.controller.keeping import Keeper
from modelpool.controller.recorder import Recorder
from modelpool.controller.state import StateStore
from modelpool.controller.views import Decision, DeviceView, Explanation, IndexRow, MetricsSnapshot, ModelView
from modelpool.core.core import Core
from modelpool.core.events import EjectWanted, Event, LoadWanted, PinWanted, Stopping
from modelpool.core.pins import pin_problem
from modelpool.core.settings import CoreSettings
from modelpool.errors import InvalidRequest, MalformedModel, ModelpoolError, NotCached, ShuttingDown, Unsupported, from_code
from modelpool.ports import Instance
from modelpool.repository.catalogue import Repository
from modelpool.repository.entry import Entry
from modelpool.repository.names import check_name
from modelpool.settings import Settings

log = logging.getLogger("modelpool.controller")

LOAD_GRACE_S = 90.0
"""An instance ends a late load itself, and only the process that it is in; the core would start all processes anew, and waits so much
longer (a process may have to be started first).
"""


def core_settings(settings: Settings) -> CoreSettings:
    """The part of the server's settings that the core decides by."""
    named = {field.name for field in dataclasses.fields(CoreSettings)} & set(type(settings).model_fields)
    found = CoreSettings(**{name: getattr(settings, name) for name in named}, runs_at_once=(os.cpu_count() or 1))
    return dataclasses.replace(found, load_timeout_s=settings.load_timeout_s + LOAD_GRACE_S)


class Controller:
    """One server's controller. `start` before anything else; everything on one event loop.

    Raises SetupError from the constructor and from `start` where the server cannot run as it is set up.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.version = modelpool.__version__
        self.started_at = time.time()
        self._clock = time.monotonic
        with_triton = bool(settings.triton or settings.triton_command)
        repository = Repository(settings.repositories, settings.allowed_roots, any_backend=with_triton)
        self._state = StateStore(settings.state_dir, settings.journal_entries)
        try:
            self._catalogue = Catalogue(repository, self._state, tuple(places(settings)))
            self._journal = Journal(self._state)
            # numbers of copies must not meet those of workers that outlived an earlier server
            self.core = Core(core_settings(settings), first_copy=(int(time.time()) & 0x3FFFF) << 12)
            self._dispatcher = Dispatcher(self.core, self._catalogue, self._journal, self._clock)
            self.feed = self._dispatcher.feed
            self._plane = DataPlane(self.core, self._catalogue, self.feed, self._clock, settings.request_timeout_s, settings.queue_bytes)
            self._dispatcher.plane = self._plane
            self.submit = self._plane.submit
            self.cancel = self._plane.cancel
            self._keeper = Keeper(self.core, self._catalogue, self._state)
            self._dispatcher.watchers.append(self._keeper.watch)
        except BaseException:
            self._state.close()
            raise
        self._background = Background()
        self._instances: dict[str, Instance] = self._dispatcher.instances
        self._recorder: Recorder | None = None
        self._stopping = False

    # --- life ------------------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Read the repositories, adopt or start the instances, keep what is pinned, begin to preload."""
        try:
            self._take(self._catalogue.take_scan(await aside(self._catalogue.repository.scan)))
            found = budgets(self.settings, self._catalogue.entries.values())
            self._begin_record(found)
            for name, pinned in self._state.pins().items():
                if name in self._catalogue.entries:
                    self.feed(PinWanted(name, pinned))
            made = make_instances(self.settings, found, self._catalogue, self.feed, self._plane, self._clock, self._dispatcher.new_copy)
            self._instances.update(made)
            async with asyncio.TaskGroup() as group:
                for instance in made.values():
                    group.create_task(instance.start())
        except BaseExceptionGroup as errors:
            await self._close(keep=False)
            raise errors.exceptions[0] from None
        except BaseException:
            await self._close(keep=False)
            raise
        self._background.start(self._poll(), "repository poll")
        self._background.start(self._preload(), "preload")

    def _begin_record(self, devices: Budgets) -> None:
        if self.settings.record is None:
            return
        self._recorder = Recorder(self.settings.record, self._clock(), dataclasses.asdict(self.core.world.settings), devices)
        self._keeper.record(self._recorder, self._clock())
        self._plane.ended = self._keeper.ended

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            self.feed(event)

    async def _poll(self) -> None:
        """Look for new, changed and removed models; write what was learned."""
        while True:
            await asyncio.sleep(self.settings.poll_interval_s)
            if self._recorder is not None:
                self._recorder.flush()
            try:
                found = await aside(self._catalogue.repository.scan)
                posted = await aside(self._catalogue.read_posted)
            except Exception:
                log.exception("the repositories could not be read; what was found before stays")
                continue
            self._take(self._catalogue.take_scan(found, posted))

    async def _preload(self) -> None:
        """Load what is to be there from the start, one by one, into free space only; one that fails stops nothing."""
        entries = self._catalogue.entries
        wished = [*self.settings.preload, *self._catalogue.repository.preload]
        wished += [name for name, entry in entries.items() if entry.spec is not None and entry.spec.residency.preload]
        for name in dict.fromkeys(wished):
            try:
                self._catalogue.check(name)
                await self._dispatcher.command(lambda number, name=name: LoadWanted(number, name, may_evict=False))  # type: ignore[misc]
            except ModelpoolError as error:
                log.warning("preload of %s failed: %s", name, error.message)

    def begin_stop(self) -> None:
        """No new loads; what was accepted is finished."""
        if not self._stopping:
            self._stopping = True
            self.feed(Stopping())

    def waiting_for(self) -> dict[str, int]:
        """Requests that are not answered yet, by model."""
        return self.core.waiting_for()

    async def stop(self, limit_s: float | None = None) -> dict[str, int]:
        """Finish what was accepted, within the limit; end the instances. Returns what was not finished."""
        self.begin_stop()
        until = self._clock() + (self.settings.stop_limit_s if limit_s is None else limit_s)
        while (left := self.waiting_for()) and self._clock() < until:  # noqa: ASYNC110 - calls end in callbacks, not in tasks
            await asyncio.sleep(0.02)
        await self._close(keep=False)
        return left

    def kill(self) -> None:
        """End the processes of all instances at once, whatever they do; also while `start` or `stop` goes on."""
        for instance in self._instances.values():
            instance.kill()

    def processes(self) -> int:
        """How many worker processes there are."""
        return sum(len(instance.describe()["processes"]) for instance in self._instances.values())

    async def _close(self, *, keep: bool) -> None:
        await self._background.stop()
        for instance in self._instances.values():
            await instance.stop(keep=keep)
        self._dispatcher.close()
        if self._recorder is not None:
            self._recorder.close()
        self._state.close()

    # --- what front ends ask ----------------------------------------------------------------------------------------------------
    def live(self) -> bool:
        """Whether the process answers at all."""
        return True

    def ready(self) -> bool:
        """Whether requests can be served: an instance is up, with all that it needs, and the server does not stop."""
        up = (instance.ident for instance in self.core.world.instances.values() if instance.up)
        return not self._stopping and any(self._instances[ident].problem is None for ident in up)

    def check_model(self, name: str, version: int = 0) -> None:
        """Raises where the model, or that version, cannot be served."""
        self._catalogue.check(name, version)

    def model_ready(self, name: str, version: int = 0) -> bool:
        """Whether a request would be served: it is resident or can be loaded."""
        try:
            self._catalogue.check(name, version)
        except ModelpoolError:
            return False
        if not self.ready():  # what is resident in a process that lives is served all the same
            return not self._stopping and inspection.is_ready(self.core, name)
        return inspection.loadable(self.core, name, self._clock())

    def entry(self, name: str) -> Entry:
        """The catalogue's entry; raises UnknownModel or ForgottenModel."""
        return self._catalogue.entry(name)

    def entries(self) -> list[Entry]:
        """All entries by name, malformed ones included."""
        return [self._catalogue.entries[name] for name in sorted(self._catalogue.entries)]

    def problems(self) -> list[str]:
        """What is wrong with the repositories, the instances or the state folder, for people."""
        found = list(self._catalogue.repository.problems())
        found += [instance.problem for instance in self._instances.values() if instance.problem is not None]
        return [*found, self._state.problem] if self._state.problem else found

    def index(self, ready_only: bool = False) -> list[IndexRow]:
        """The repository index."""
        return inspection.index(self.core, self.entries(), ready_only)

    def statistics(self, name: str | None = None, version: int = 0) -> list[dict[str, Any]]:
        """Triton's `model_stats` rows, of one model or of all that were used."""
        entries = self.entries() if name is None else [self._catalogue.check(name, version)]
        return inspection.statistics(self._plane.models, entries, version)

    def model(self, name: str) -> ModelView:
        """All that is known of one model; raises UnknownModel or ForgottenModel."""
        return inspection.model_view(self.core, self._catalogue.entry(name), self._clock())

    def models(self, *, resident_only: bool = False) -> list[ModelView]:
        """All models of the catalogue, malformed ones included, or those that have a copy in any state."""
        now = self._clock()
        entries = [entry for entry in self.entries() if not resident_only or inspection.has_copies(self.core, entry)]
        return [inspection.model_view(self.core, entry, now) for entry in entries]

    def devices(self) -> list[DeviceView]:
        """All devices with their ledgers."""
        return inspection.device_views(self.core, {name: instance.describe() for name, instance in self._instances.items()})

    def explain(self, name: str) -> Explanation:
        """Why a model is where it is, and what it would take to bring it in."""
        entry = self._catalogue.entry(name)
        return inspection.explanation(self.core, entry, self._journal.latest(20, name), self._clock())

    def decisions(self, limit: int = 100, model: str | None = None) -> list[Decision]:
        """The latest decisions, oldest first."""
        return self._journal.latest(limit, model)

    def metrics(self) -> MetricsSnapshot:
        """All counters."""
        return inspection.metrics(self.core, self._plane, self._keeper.load_s, self.devices(), len(self._catalogue.entries))

    # --- what users wish --------------------------------------------------------------------------------------------------------
    async def load(self, name: str, device: str | None = None, *, overrides: dict[str, Any] | None = None) -> tuple[str, ...]:
        """Load a model; the devices it is on then. Raises what stands in the way.

        overrides: a configuration and files in place of those in the repository, which its copies are loaded with from now on.
        """
        entry = self._catalogue.check(name)
        if overrides is not None:
            return await self._load_with(name, device, overrides)
        if entry.spec is not None and entry.spec.steps_first:
            for step in entry.spec.residency.requires:
                await self.load(step, device)
        deadline = self._clock() + self.settings.load_timeout_s + self.settings.request_timeout_s
        return await self._dispatcher.command(lambda number: LoadWanted(number, name, device, deadline))

    async def _load_with(self, name: str, device: str | None, overrides: dict[str, Any]) -> tuple[str, ...]:
        """Load a model anew with other overrides; where that fails those from before stay."""
        if EMBEDDED in self._instances:
            raise Unsupported(
                "configurations and files sent with a load go to Triton servers only, and to workers in a later version; use the repository"
            )
        before = self._dispatcher.overrides.get(name)
        self._dispatcher.overrides[name] = overrides
        try:
            if before != overrides:
                with contextlib.suppress(NotCached):
                    await self.eject(name)
            return await self.load(name, device)
        except BaseException:
            self._dispatcher.overrides.pop(name, None)
            if before is not None:
                self._dispatcher.overrides[name] = before
            raise

    def drop_overrides(self, name: str) -> None:
        """Load a model as its repository has it from now on."""
        self._dispatcher.overrides.pop(name, None)

    async def eject(self, name: str, device: str | None = None) -> tuple[str, ...]:
        """Unload a model (from one device); the devices it left. A request loads it again."""
        return await self._dispatcher.command(lambda number: EjectWanted(number, name, device))

    async def post_model(self, name: str, properties: dict[str, Any], device: str | None = None) -> tuple[str, ...]:
        """Register a model with its properties and load it; it stays in the catalogue over restarts."""
        if self._stopping:
            raise ShuttingDown("the server is stopping", retry_after_s=1.0)
        check_name(name)
        entry = await aside(lambda: self._catalogue.read_post(name, properties))
        if entry.problem is not None:
            raise MalformedModel(f"model '{name}' cannot be served: {entry.problem}")
        self._take(self._catalogue.post(name, entry, properties))
        return await self.load(name, device)

    def recall(self, name: str) -> None:
        """A model of a repository that was forgotten is known again; nothing happens to one that was not. Raises what stands in the way."""
        if self._stopping and name in self._catalogue.forgotten:
            raise ShuttingDown("the server is stopping", retry_after_s=1.0)
        self._take(self._catalogue.recall(name))

    async def forget(self, name: str) -> None:
        """Take a model out of the catalogue until it is posted again, and unload it."""
        self._take(self._catalogue.forget(name))

    def pin(self, name: str) -> None:
        """Keep a model resident, whatever else is asked for. Raises NeverFits or NoSpace where that is impossible, and pins nothing."""
        self._pin(name, True)

    def unpin(self, name: str) -> None:
        """Let a model be evicted again."""
        self._pin(name, False)

    def _pin(self, name: str, pinned: bool) -> None:
        entry = self._catalogue.check(name)
        if not pinned and entry.spec is not None and entry.spec.residency.pinned:
            raise InvalidRequest(f"model '{name}' is pinned by its modelpool.yaml; change it there")
        if pinned and (problem := pin_problem(self.core.world, name)) is not None:
            raise from_code(*problem)
        self.feed(PinWanted(name, pinned))
        self._state.save_pin(name, pinned)
