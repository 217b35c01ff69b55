"""Drives the real core on a virtual clock: what the shell would do takes the time that the costs say."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from modelpool.core.actions import Action, Admit, Load, Recycle, Refuse, Unload
from modelpool.core.copies import Lease
from modelpool.core.core import Core
from modelpool.core.events import Event, InstanceDown, InstanceUp, Loaded, RequestArrived, Settle, Tick, Unloaded
from modelpool.core.invariants import check
from modelpool.simulator.costs import UNLOAD_S, Costs

ANY_OVERRUN = 1 << 60
GENERATION = 1


@dataclass(slots=True)
class Outcome:
    """What came of one request. wait_s: until it was sent (None: it never was); code: of its refusal."""

    model: str
    arrived: float
    run_s: float
    wait_s: float | None = None
    code: str | None = None


@dataclass(slots=True)
class Tally:
    """What the run did so far."""

    outcomes: list[Outcome] = field(default_factory=list)
    hits: int = 0
    loads: int = 0
    load_s: float = 0.0
    evictions: int = 0
    unloads: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0


class Engine:
    """One simulated server with one instance. check_each: look at all invariants after each event (slow)."""

    def __init__(self, core: Core, costs: Costs, instance: str, devices: dict[str, int], *, check_each: bool = False) -> None:
        self.core = core
        self.now = 0.0
        self.tally = Tally()
        self._costs = costs
        self._instance = instance
        self._devices = devices
        self._check_each = check_each
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._waiting: dict[int, Outcome] = {}
        self._wake_at = float("inf")
        self.feed(InstanceUp(instance, GENERATION, tuple(devices.items())))

    # --- what happens ----------------------------------------------------------------------------------------------------------
    def request(self, model: str, run_s: float, timeout_s: float) -> None:
        """A request arrives now."""
        outcome = Outcome(model, self.now, run_s)
        self.tally.outcomes.append(outcome)
        lease = self.core.try_lease(model, self.now)
        if lease is not None:
            self.tally.hits += 1
            self._run(outcome, lease)
            return
        number = len(self.tally.outcomes)
        self._waiting[number] = outcome
        self.feed(RequestArrived(number, model, self.now + timeout_s))

    def advance(self, to: float) -> None:
        """Let everything happen that is due until then."""
        while True:
            at = min(self._due[0][0] if self._due else float("inf"), self._wake_at)
            if at > to:
                break
            self.now = max(self.now, at)
            if self._due and self._due[0][0] <= at:
                heapq.heappop(self._due)[2]()
            else:
                self._wake_at = float("inf")
                self.feed(Tick())
        self.now = max(self.now, to)

    def finish(self) -> None:
        """Let all requests end: those that still wait are admitted, or refused by their deadlines."""
        while self._waiting or self.core.in_flight:
            at = min(self._due[0][0] if self._due else float("inf"), self._wake_at)
            if at == float("inf"):
                raise AssertionError(f"{len(self._waiting)} requests wait for nothing")
            self.advance(at)

    # --- the shell -------------------------------------------------------------------------------------------------------------
    def feed(self, event: Event) -> None:
        """Tell the core and do what it asks."""
        actions, reasons, self._wake_at = self.core.handle(event, self.now)
        for reason in reasons:
            self.tally.evictions += reason.kind == "evict"
        for action in actions:
            self._act(action)
        if self._check_each:
            check(self.core, overrun_bytes=ANY_OVERRUN)

    def _later(self, delay_s: float, then: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._due, (self.now + delay_s, self._sequence, then))

    def _act(self, action: Action) -> None:
        match action:
            case Admit():
                outcome = self._waiting.pop(action.request)
                outcome.wait_s = self.now - outcome.arrived
                self._run(outcome, action.lease)
            case Refuse():
                self._waiting.pop(action.request).code = action.code
            case Load():
                self._load(action)
            case Unload():
                copy = self.core.world.copies[action.copy]
                self.tally.unloads[copy.unload_reason] = self.tally.unloads.get(copy.unload_reason, 0) + 1
                done = Unloaded(action.instance, action.generation, action.copy)
                self._later(UNLOAD_S, lambda: self.feed(done))
            case Recycle():
                self._later(0.0, self._restart)
            case _:
                pass  # commands have nobody who waits

    def _run(self, outcome: Outcome, lease: Lease) -> None:
        if outcome.wait_s is None:
            outcome.wait_s = 0.0

        def ended() -> None:
            if self.core.end_lease(lease, self.now):
                self.feed(Settle())

        self._later(outcome.run_s, ended)

    def _load(self, action: Load) -> None:
        cost = self._costs.of_load(action.model)
        self.tally.loads += 1
        self.tally.load_s += cost.load_s
        used = sum(device.used_bytes() for device in self.core.world.devices())
        self.tally.peak_bytes = max(self.tally.peak_bytes, used)
        done = Loaded(action.instance, action.generation, action.copy, cost.private_bytes, cost.load_peak_bytes, cost.load_s)
        self._later(cost.load_s, lambda: self.feed(done))

    def _restart(self) -> None:
        self.feed(InstanceDown(self._instance, GENERATION, "recycled"))
        self.feed(InstanceUp(self._instance, GENERATION, tuple(self._devices.items())))
