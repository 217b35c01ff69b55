"""The core's mutable state: models with their queues, instances with their devices, timers, and what is to be told to the shell."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

from modelpool.core.actions import Action, Reason
from modelpool.core.copies import UNLOAD_REASONS, Copy, CopyState
from modelpool.core.demand import DemandTable
from modelpool.core.ledger import Device
from modelpool.core.model import Learned, ModelSpec
from modelpool.core.settings import CoreSettings
from modelpool.core.timers import Alarm, Timers


@dataclass(slots=True)
class Waiter:
    """A request that waits in its model's queue."""

    request: int
    arrived: float
    deadline: float


@dataclass(slots=True)
class LoadCommand:
    """A user's wish for a copy."""

    command: int
    arrived: float
    device: str | None
    may_evict: bool
    deadline: float


@dataclass(slots=True)
class EjectCommand:
    """A user's wish that copies go; done when none of `pending` is left."""

    command: int
    pending: set[int]
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a model cannot be had now, and until when it is not tried again (inf: until it changes or a user loads it)."""

    code: str
    message: str
    until: float
    count: int


class ModelState:
    """One model: its spec, queue, copies and history. needed_by: the model whose closure, with this one in it, is being gathered."""

    __slots__ = (
        "commands",
        "copies",
        "deadline_alarm",
        "deaths",
        "ejects",
        "evicted_at",
        "failure",
        "hungry_alarm",
        "isolated",
        "keep_alive_s",
        "last_completion",
        "learned",
        "name",
        "needed_by",
        "noted",
        "pinned",
        "priority",
        "queue",
        "queue_arrived",
        "ready",
        "removed",
        "requires",
        "row",
        "spec",
    )

    def __init__(self, spec: ModelSpec, row: int) -> None:
        self.name = spec.name
        self.row = row
        self.learned: dict[str, Learned] = {}
        self.queue: OrderedDict[int, Waiter] = OrderedDict()
        self.queue_arrived = 0.0
        self.copies: dict[int, Copy] = {}
        self.ready: list[Copy] = []
        self.commands: dict[int, LoadCommand] = {}
        self.ejects: list[EjectCommand] = []
        self.failure: Failure | None = None
        self.deaths = 0
        self.isolated = False
        self.pinned = False
        self.removed = False
        self.last_completion: float | None = None
        self.evicted_at: float | None = None
        self.noted: tuple[str, float] = ("", 0.0)
        self.needed_by: ModelState | None = None
        self.keep_alive_s: float | None = None
        self.deadline_alarm = Alarm()
        self.hungry_alarm = Alarm()
        self.take(spec)

    def take(self, spec: ModelSpec) -> None:
        """Take a new spec; what a user pinned stays pinned."""
        self.spec = spec
        self.priority = spec.residency.priority
        self.requires = spec.residency.requires
        self.pinned = self.pinned or spec.residency.pinned

    @property
    def kept(self) -> bool:
        """Whether a copy is to be kept without any demand."""
        return not self.removed and (self.pinned or self.spec.residency.min_copies > 0)

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a copy, or one is to be kept."""
        return bool(self.queue or self.commands) or self.kept or self.needed_by is not None

    def covered(self) -> bool:
        """Whether a copy runs or is on its way."""
        return any(copy.state in (CopyState.LOADING, CopyState.READY) for copy in self.copies.values())

    def weight(self, now: float, starvation_s: float) -> float:
        """Demand of those who wait: the sum over them of (1 + waited / starvation), doubled by each step of priority."""
        count = len(self.queue) + len(self.commands)
        waited = len(self.queue) * now - self.queue_arrived + sum(now - command.arrived for command in self.commands.values())
        own = max(0.5, count + waited / starvation_s) * 2.0**self.priority
        root = self.needed_by
        return own if root is None or root is self else max(own, root.weight(now, starvation_s))

    def waiting_since(self) -> float:
        """When the longest waiter came (inf: nobody waits)."""
        since = min((command.arrived for command in self.commands.values()), default=float("inf"))
        if self.needed_by is not None and self.needed_by is not self:
            since = min(since, self.needed_by.waiting_since())
        return min(since, next(iter(self.queue.values())).arrived) if self.queue else since


class InstanceState:
    """One instance: alive or not, and its devices. culprit: the model for which it is started anew ('': none).

    runtimes: those that it has (None: any); isolates: it can give a copy a process of its own.
    """

    __slots__ = (
        "culprit",
        "devices",
        "generation",
        "ident",
        "isolates",
        "recycle_reason",
        "recycle_sent",
        "recycling",
        "runtimes",
        "up",
    )

    def __init__(self, ident: str) -> None:
        self.ident = ident
        self.generation = 0
        self.up = False
        self.devices: dict[str, Device] = {}
        self.runtimes: tuple[str, ...] | None = None
        self.isolates = True
        self.recycle_reason = ""
        self.culprit = ""
        self.recycling = False
        self.recycle_sent = False

    def runs(self, spec: ModelSpec) -> bool:
        """Whether it has what the model needs to run."""
        return self.runtimes is None or spec.runtime in self.runtimes

    def keeps_apart(self, model: ModelState) -> bool:
        """Whether a copy of the model gets a process of its own here."""
        return self.isolates and (model.isolated or model.spec.isolation == "process")


@dataclass(slots=True)
class Counters:
    """What the core counted since it began; by model where that matters."""

    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    loads: Counter[str] = field(default_factory=Counter)
    load_failures: Counter[str] = field(default_factory=Counter)
    unloads: Counter[tuple[str, str]] = field(default_factory=Counter)
    late_events: int = 0
    premature_unloads: int = 0

    def forget(self, name: str) -> None:
        """Drop the counts of a model that is no more, so that they do not pile up."""
        for counter in (self.hits, self.misses, self.loads, self.load_failures):
            counter.pop(name, None)
        for reason in UNLOAD_REASONS:
            self.unloads.pop((name, reason), None)


class World:
    """All state of the core.

    waiting: models that need a copy; stuck: those of them that cannot have one until something changes; hungry: those of the stuck that
    have waited so long that the instances named take no other load; roots: models that require others and have a queue; gathered: one of
    them and all that it requires, which are being brought together; backlog: models whose queue may move; drained: copies whose last
    lease ended. `actions` and `reasons` collect what one `handle` decided.
    """

    def __init__(self, settings: CoreSettings, first_copy: int = 1) -> None:
        self.settings = settings
        self.demand = DemandTable()
        self.models: dict[str, ModelState] = {}
        self.forgotten: set[str] = set()
        self.instances: dict[str, InstanceState] = {}
        self.copies: dict[int, Copy] = {}
        self.waiting: dict[str, ModelState] = {}
        self.stuck: set[str] = set()
        self.hungry: dict[str, set[str]] = {}
        self.roots: dict[str, ModelState] = {}
        self.gathered: list[ModelState] = []
        self.drained: list[Copy] = []
        self.backlog: list[ModelState] = []
        self.stopping = False
        self.next_copy = first_copy
        self.counters = Counters()
        self.actions: list[Action] = []
        self.reasons: list[Reason] = []
        self.learned_changes: dict[tuple[str, str], Learned] = {}
        self.timers = Timers()

    def devices(self) -> list[Device]:
        """Devices of all instances that are up."""
        return [device for instance in self.instances.values() if instance.up for device in instance.devices.values()]

    def current(self, instance: str, generation: int) -> InstanceState | None:
        """The instance that an event is about; None, and counted, where the event is late."""
        found = self.instances.get(instance)
        if found is None or not found.up or found.generation != generation:
            self.counters.late_events += 1
            return None
        return found

    def note(self, kind: str, model: str, text: str, **figures: Any) -> None:
        """Write a decision down."""
        self.reasons.append(Reason(kind, model, text, figures))

    def changed(self) -> None:
        """Something that plans depend on changed: what was infeasible may be feasible now."""
        self.stuck.clear()
        self.hungry.clear()

    def unstick(self, name: str) -> None:
        """One model may be feasible now."""
        self.stuck.discard(name)
        self.hungry.pop(name, None)
