"""The core: events in, actions out, leases on the hot path. It is pure and synchronous; time comes in and the next wake-up goes out."""

from __future__ import annotations

from typing import assert_never

from modelpool.core import admission, catalogue, closures, instances, lifecycle, measures, overdue, recycling, scheduling
from modelpool.core.actions import Action, Reason
from modelpool.core.copies import Copy, CopyState, Lease
from modelpool.core.events import (
    BudgetChanged,
    CommandGone,
    CopyLost,
    EjectWanted,
    Event,
    InstanceDown,
    InstanceUp,
    KeepAliveSet,
    Loaded,
    LoadFailed,
    LoadWanted,
    ModelAdded,
    ModelRemoved,
    Observed,
    PinWanted,
    RequestArrived,
    RequestGone,
    Settle,
    Stopping,
    Tick,
    Unloaded,
)
from modelpool.core.eviction import NO_EVICTION, POLICIES
from modelpool.core.settings import CoreSettings
from modelpool.core.state import ModelState, World


class Core:
    """Decides what is loaded where, who may run, and who waits.

    One owner calls it, never two at once. `now` is monotonic seconds and never goes back. After `handle` the owner carries the actions out
    in order, and calls again with `Tick` no later than `wake_at`. first_copy: the number of the first copy, larger than those of copies
    that instances may still hold.
    """

    def __init__(self, settings: CoreSettings, first_copy: int = 1) -> None:
        if settings.eviction != NO_EVICTION and settings.eviction not in POLICIES:
            raise ValueError(f"unknown eviction policy {settings.eviction!r}; known are {', '.join([*POLICIES, NO_EVICTION])}")
        self.world = World(settings, first_copy)
        self._models = self.world.models
        self._hits = self.world.counters.hits
        self._arrive = self.world.demand.arrive
        self._max_in_flight = settings.max_in_flight
        self.world.timers.set(settings.run_limit_s / 4, "sweep", None)

    # --- the hot path ----------------------------------------------------------------------------------------------------------
    def try_lease(self, name: str, now: float) -> Lease | None:
        """Count an arrival, and lease a READY copy where one can take it; else None, and the owner sends `RequestArrived`."""
        model = self._models.get(name)
        if model is None:
            return None
        self._arrive(model.row, now)
        ready = model.ready
        if not ready or model.queue:
            return None
        if model.requires:
            return self._try_closure(model, now)
        copy = ready[0] if len(ready) == 1 else admission.least_loaded(ready)
        if copy.leases >= self._max_in_flight:
            return None
        self._hits[name] += 1
        return copy.lease(now)

    def end_lease(self, lease: Lease, now: float) -> bool:
        """A request ended, well or not. True: something waits for that, send `Settle`. A lease whose copy died is over already."""
        settle = False
        if lease.members:
            members, lease.members = lease.members, ()
            for member in members:
                settle = self.end_lease(member, now) or settle
        if not lease.live:
            return settle
        lease.live = False
        copy = lease.copy
        del copy.live[lease]
        copy.leases -= 1
        copy.served += 1
        copy.idle_since = now
        model: ModelState = copy.model
        model.last_completion = now
        if copy.state is CopyState.READY:
            copy.device.ready.completed(copy, now)
            if model.queue:
                self.world.backlog.append(model)
                return True
            return settle or bool(self.world.roots) or (bool(self.world.stuck) and copy.leases == 0)
        if copy.leases == 0:
            self.world.drained.append(copy)
            return True
        return settle

    def _try_closure(self, model: ModelState, now: float) -> Lease | None:
        """Lease a model with all that it requires."""
        lease = closures.lease_closure(self.world, model, now)
        if lease is not None:
            self._hits[model.name] += 1
            for member in lease.members:
                self._arrive(member.copy.slot, now)
        return lease

    # --- events ----------------------------------------------------------------------------------------------------------------
    def handle(self, event: Event, now: float) -> tuple[list[Action], list[Reason], float]:
        """Take one event; returns the actions, the reasons for the journal, and when to be called with `Tick` (inf: no need)."""
        world = self.world
        self._ring(now)
        self._take(event, now)
        self._ring(now)
        self._follow_up(now)
        scheduling.settle(world, now)
        self._follow_up(now)
        recycling.carry_on(world)
        actions, reasons = world.actions, world.reasons
        world.actions, world.reasons = [], []
        return actions, reasons, world.timers.next()

    def _take(self, event: Event, now: float) -> None:
        world = self.world
        match event:
            case RequestArrived():
                admission.arrived(world, event, now)
            case Settle():
                world.changed()
            case Tick():
                pass
            case RequestGone():
                admission.request_gone(world, event)
            case ModelAdded():
                catalogue.model_added(world, event, now)
            case ModelRemoved():
                catalogue.model_removed(world, event, now)
            case LoadWanted():
                admission.load_wanted(world, event, now)
            case EjectWanted():
                admission.eject_wanted(world, event, now)
            case CommandGone():
                admission.command_gone(world, event)
            case PinWanted():
                catalogue.pin_wanted(world, event, now)
            case KeepAliveSet():
                catalogue.keep_alive_set(world, event, now)
            case InstanceUp():
                instances.instance_up(world, event, now)
            case InstanceDown():
                instances.instance_down(world, event, now)
            case CopyLost():
                instances.copy_lost(world, event, now)
            case Loaded():
                instances.loaded(world, event, now)
            case LoadFailed():
                instances.load_failed(world, event, now)
            case Unloaded():
                instances.unloaded(world, event, now)
            case Observed():
                measures.observed(world, event, now)
            case BudgetChanged():
                measures.budget_changed(world, event, now)
            case Stopping():
                world.stopping = True
                world.note("stop", "", "told to stop: no new loads, what was accepted is finished")
            case _:
                assert_never(event)

    def _follow_up(self, now: float) -> None:
        """Admit those whose copy has room again, and send away copies whose last lease ended."""
        world = self.world
        while world.backlog:
            admission.admit(world, world.backlog.pop(), now)
        for root in list(world.roots.values()):
            admission.admit(world, root, now)
        while world.drained:
            copy = world.drained.pop()
            if copy.state is CopyState.DRAINING and not copy.leases and not world.instances[copy.instance].recycling:
                lifecycle.send_unload(world, copy, now)

    def _ring(self, now: float) -> None:
        """Take the timers that have come."""
        world = self.world
        while (due := world.timers.due(now)) is not None:
            match due:
                case "deadline", ModelState() as model:
                    admission.deadlines_passed(world, model, now)
                case "command", (ModelState() as model, int() as command):
                    admission.command_late(world, model, command)
                case "retry" | "hungry", ModelState() as model:
                    world.unstick(model.name)
                case "idle", Copy() as copy:
                    overdue.idle_due(world, copy, now)
                case "load", Copy() as copy:
                    overdue.load_late(world, copy, now)
                case "slow", Copy():
                    world.changed()
                case "unload", Copy() as copy:
                    overdue.unload_late(world, copy, now)
                case _:
                    overdue.sweep_leases(world, now)

    # --- for the owner ---------------------------------------------------------------------------------------------------------
    @property
    def in_flight(self) -> int:
        """Requests under a lease."""
        return sum(copy.leases for copy in self.world.copies.values())

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return sum(len(model.queue) for model in self._models.values())

    def waiting_for(self) -> dict[str, int]:
        """Requests in flight or waiting, by model."""
        found: dict[str, int] = {}
        for model in self._models.values():
            if count := len(model.queue) + sum(copy.leases for copy in model.copies.values()):
                found[model.name] = count
        return found
