"""Watches what the core is told and decides, and keeps what outlasts it: learned sizes, load times, the record for the simulator."""

from __future__ import annotations

import dataclasses

from modelpool.controller.catalogue import Catalogue
from modelpool.controller.recorder import Recorder
from modelpool.controller.state import StateStore
from modelpool.controller.statistics import TimeHistogram
from modelpool.core import events
from modelpool.core.actions import Action, Load, Unload
from modelpool.core.core import Core
from modelpool.core.events import Event
from modelpool.core.model import ModelSpec
from modelpool.ports import Call
from modelpool.protocol import trace


class Keeper:
    """A watcher of the dispatcher."""

    def __init__(self, core: Core, catalogue: Catalogue, state: StateStore) -> None:
        self.load_s = TimeHistogram()
        self._core = core
        self._catalogue = catalogue
        self._state = state
        self._recorder: Recorder | None = None
        self._loading: dict[int, Load] = {}

    def record(self, recorder: Recorder, now: float) -> None:
        """Write to this record from now on, beginning with the models that are known."""
        self._recorder = recorder
        for model in self._core.world.models.values():
            self._record_model(model.spec, now)

    def watch(self, what: Event | Action, now: float) -> None:
        """Take note of one event or action."""
        match what:
            case Load():
                self._loading[what.copy] = what
            case events.Loaded():
                self.load_s.add(what.load_s)
                self._keep_learned()
                self._load_ended(what.copy, now, what.load_s, what.private_bytes, what.load_peak_bytes, ok=True)
            case events.LoadFailed():
                self._load_ended(what.copy, now, 0.0, 0, 0, ok=False)
            case events.Observed():
                self._keep_learned()
            case events.ModelAdded():
                self._record_model(what.spec, now)
            case events.ModelRemoved():
                self._line(trace.Removed(self._since(now), what.model))
            case events.PinWanted():
                self._line(trace.Pin(self._since(now), what.model, what.pinned))
            case Unload():
                copy = self._core.world.copies.get(what.copy)
                self._line(trace.Unload(self._since(now), what.model, copy.unload_reason if copy is not None else ""))
            case _:
                pass

    def ended(self, call: Call, outcome: str, now: float) -> None:
        """A request ended."""
        if self._recorder is None:
            return
        started = call.lease.started if call.lease is not None else now
        arrived = self._since(call.arrived)
        hit = outcome == "ok" and not call.queued  # one that was refused before it was queued did not wait either
        self._line(trace.Request(arrived, call.model, hit, max(0.0, started - call.arrived), max(0.0, now - started), outcome))

    def _keep_learned(self) -> None:
        changes = self._core.world.learned_changes
        for (name, kind), learned in changes.items():
            if (entry := self._catalogue.entries.get(name)) is not None:
                self._state.save_learned(name, entry.revision, entry.runtime, kind, learned)
                self._catalogue.keep_learned(name, entry.revision, kind, learned)
        changes.clear()

    # --- the record ------------------------------------------------------------------------------------------------------------
    def _since(self, now: float) -> float:
        return self._recorder.since(now) if self._recorder is not None else 0.0

    def _line(self, line: trace.Line) -> None:
        if self._recorder is not None:
            self._recorder.write(line)

    def _load_ended(self, copy: int, now: float, load_s: float, private_bytes: int, load_peak_bytes: int, *, ok: bool) -> None:
        action = self._loading.pop(copy, None)
        if action is not None:
            self._line(trace.Load(self._since(now), action.model, action.device, load_s, private_bytes, load_peak_bytes, ok))

    def _record_model(self, spec: ModelSpec, now: float) -> None:
        if self._recorder is None:
            return
        model = self._core.world.models.get(spec.name)
        learned = {kind: dataclasses.asdict(one) for kind, one in model.learned.items()} if model is not None else {}
        residency = {name: value for name, value in dataclasses.asdict(spec.residency).items() if value not in (None, float("inf"))}
        self._line(trace.Model(self._since(now), spec.name, spec.runtime, spec.isolation, spec.estimate_bytes, residency, learned))
