"""A shell around the core for tests: it keeps time, asks as a data plane would, and remembers what the core wants done.

Nothing happens by itself: a test says when loads and unloads end (`loaded`, `unloaded`, `work`). Every request and command must be answered
exactly once, no load or unload may be asked for twice, and the invariants hold after each event.
"""

from __future__ import annotations

from typing import Any

from modelpool.core.actions import Action, Admit, CommandDone, Load, Reason, Recycle, Refuse, Unload
from modelpool.core.copies import Copy, CopyState, Lease
from modelpool.core.core import Core
from modelpool.core.events import (
    EjectWanted,
    Event,
    InstanceDown,
    InstanceUp,
    Loaded,
    LoadWanted,
    ModelAdded,
    RequestArrived,
    Settle,
    Tick,
    Unloaded,
)
from modelpool.core.invariants import check
from modelpool.core.model import ModelSpec, Residency
from modelpool.core.settings import CoreSettings
from modelpool.errors import BY_CODE

ANY_OVERRUN = 1 << 60


def spec(name: str, size_bytes: int = 0, *, revision: str = "1", **wishes: Any) -> ModelSpec:
    """A model whose size the user gave (0: not given). wishes: fields of ModelSpec, or of its Residency."""
    fields = {key: wishes.pop(key) for key in list(wishes) if key in ModelSpec.__dataclass_fields__}
    return ModelSpec(name, revision, "onnx", residency=Residency(size_bytes=size_bytes or None, **wishes), **fields)


class CoreShell:
    """Drives one core. overrun_bytes: how far a test's measurements may push a device over its budget."""

    def __init__(self, settings: CoreSettings | None = None, *, overrun_bytes: int = 0, **fields: Any) -> None:
        self.core = Core(settings or CoreSettings(**fields))
        self.world = self.core.world
        self.overrun_bytes = overrun_bytes
        self.now = 1000.0
        self.wake_at = float("inf")
        self.asked: dict[int, str] = {}
        self.leases: dict[int, Lease] = {}
        self.refused: dict[int, Refuse] = {}
        self.commanded: dict[int, str] = {}
        self.done: dict[int, CommandDone] = {}
        self.loads: dict[int, Load] = {}
        self.unloads: dict[int, Unload] = {}
        self.recycles: list[Recycle] = []
        self.reasons: list[Reason] = []
        self.actions: list[Action] = []
        self._numbers = 0

    # --- events and time -------------------------------------------------------------------------------------------------------
    def send(self, event: Event) -> list[Action]:
        """Tell the core; returns what it wants done."""
        match event:
            case RequestArrived():
                self.asked[event.request] = event.model
            case LoadWanted() | EjectWanted():
                self.commanded[event.command] = event.model
            case InstanceUp() | InstanceDown():
                self._forget_generation(event.instance)
            case _:
                pass
        actions, self.reasons, self.wake_at = self.core.handle(event, self.now)
        assert self.wake_at > self.now, "the core asks to be woken in the past"
        for action in actions:
            self._take(action)
        self.actions = actions
        check(self.core, overrun_bytes=self.overrun_bytes)
        return actions

    def wait(self, seconds: float) -> None:
        """Let time pass, with a Tick whenever the core asked for one."""
        until = self.now + seconds
        while self.wake_at <= until:
            self.now = max(self.now, self.wake_at)
            self.send(Tick())
        self.now = until

    def _forget_generation(self, instance: str) -> None:
        for going in (self.loads, self.unloads):
            for ident in [ident for ident, action in going.items() if action.instance == instance]:
                del going[ident]
        self.recycles = [one for one in self.recycles if one.instance != instance]

    def _take(self, action: Action) -> None:
        match action:
            case Admit():
                assert self.asked.pop(action.request) == action.lease.copy.model.name, "admitted to another model"
                assert action.lease.live, "admitted under a dead lease"
                self.leases[action.request] = action.lease
            case Refuse():
                self.asked.pop(action.request)
                assert action.code in BY_CODE, f"unknown code {action.code}"
                assert action.message, "refused without a reason"
                self.refused[action.request] = action
            case CommandDone():
                self.commanded.pop(action.command)
                assert action.code is None or (action.code in BY_CODE and action.message)
                self.done[action.command] = action
            case Load():
                assert action.model not in {load.model for load in self.loads.values()}, "loaded twice at once"
                self._check_target(action)
                self.loads[action.copy] = action
            case Unload():
                assert action.copy not in self.unloads, "unloaded twice"
                assert action.copy not in self.loads, "unloaded while it loads"
                self._check_target(action)
                self.unloads[action.copy] = action
            case Recycle():
                assert action not in self.recycles, "started anew twice"
                self.recycles.append(action)

    def _check_target(self, action: Load | Unload) -> None:
        instance = self.world.instances[action.instance]
        assert instance.up, "asked of an instance that is down"
        assert instance.generation == action.generation, "asked of a generation that is over"

    # --- what users do ---------------------------------------------------------------------------------------------------------
    def number(self) -> int:
        """A new number for a request or a command."""
        self._numbers += 1
        return self._numbers

    def add(self, *specs: ModelSpec) -> None:
        """Put models into the catalogue."""
        for one in specs:
            self.send(ModelAdded(one))

    def up(self, instance: str = "local", generation: int = 1, **budgets: int) -> None:
        """Bring an instance up (`cpu=100`; `_` in a device's name stands for `:`)."""
        devices = tuple((name.replace("_", ":"), budget) for name, budget in budgets.items())
        self.send(InstanceUp(instance, generation, devices))

    def request(self, model: str, timeout_s: float = float("inf")) -> int:
        """Ask for a model as the data plane does; returns the request's number."""
        request = self.number()
        lease = self.core.try_lease(model, self.now)
        if lease is not None:
            self.leases[request] = lease
            check(self.core, overrun_bytes=self.overrun_bytes)
        else:
            self.send(RequestArrived(request, model, self.now + timeout_s))
        return request

    def end(self, request: int) -> None:
        """A request's answer came."""
        if self.core.end_lease(self.leases.pop(request), self.now):
            self.send(Settle())
        else:
            check(self.core, overrun_bytes=self.overrun_bytes)

    def serve(self, model: str) -> None:
        """A whole request for a model, loads and all."""
        request = self.request(model)
        self.work()
        self.end(request)
        self.work()

    def load(self, model: str, device: str | None = None, **wishes: Any) -> int:
        """A user wants a model; returns the command's number."""
        command = self.number()
        self.send(LoadWanted(command, model, device, **wishes))
        return command

    def eject(self, model: str, device: str | None = None) -> int:
        """A user wants a model out; returns the command's number."""
        command = self.number()
        self.send(EjectWanted(command, model, device))
        return command

    # --- what instances do -----------------------------------------------------------------------------------------------------
    def loading(self, model: str) -> Load:
        """The load of a model that is going on."""
        return next(load for load in self.loads.values() if load.model == model)

    def loaded(self, model: str, private_bytes: int | None = None, peak_bytes: int | None = None, load_s: float = 0.1) -> None:
        """A model's load ends well, by default with what it was expected to take."""
        load = self.loading(model)
        del self.loads[load.copy]
        private = self.world.copies[load.copy].charge_bytes if private_bytes is None else private_bytes
        self.send(Loaded(load.instance, load.generation, load.copy, private, private if peak_bytes is None else peak_bytes, load_s))

    def unloaded(self, model: str, total_bytes: int | None = None) -> None:
        """A model's unload ends."""
        unload = next(unload for unload in self.unloads.values() if unload.model == model)
        del self.unloads[unload.copy]
        self.send(Unloaded(unload.instance, unload.generation, unload.copy, total_bytes))

    def work(self) -> None:
        """Let all loads and unloads end, and those that follow from that."""
        while self.loads or self.unloads:
            for unload in list(self.unloads.values()):
                self.unloaded(unload.model)
            for load in list(self.loads.values()):
                self.loaded(load.model)

    # --- what a test looks at --------------------------------------------------------------------------------------------------
    def copy(self, model: str) -> Copy:
        """The only copy of a model."""
        (copy,) = self.world.models[model].copies.values()
        return copy

    def resident(self) -> set[str]:
        """Models with a READY copy."""
        return {copy.model.name for copy in self.world.copies.values() if copy.state is CopyState.READY}

    def leaving(self) -> list[str]:
        """Models whose copies drain or unload, by name."""
        return sorted(copy.model.name for copy in self.world.copies.values() if copy.state in (CopyState.DRAINING, CopyState.UNLOADING))

    def noted(self, kind: str) -> list[Reason]:
        """Decisions of a kind that the last event brought."""
        return [reason for reason in self.reasons if reason.kind == kind]
