"""The core under random events, times and failures: the invariants hold at each step, and once things go well everybody is answered."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from modelpool.core.actions import Action, Load
from modelpool.core.copies import CopyState, Lease
from modelpool.core.events import (
    BudgetChanged,
    CommandGone,
    CopyLost,
    Event,
    Held,
    InstanceDown,
    InstanceUp,
    KeepAliveSet,
    Loaded,
    LoadFailed,
    ModelAdded,
    ModelRemoved,
    Observed,
    PinWanted,
    RequestArrived,
    RequestGone,
    Stopping,
    Unloaded,
)
from modelpool.core.explain import explain
from modelpool.core.inspect import model_state, size_of
from modelpool.core.invariants import check
from modelpool.core.model import Learned, ModelSpec, Residency
from modelpool.core.settings import CoreSettings
from tests.core_shell import ANY_OVERRUN, CoreShell

NAMES = [f"m{number}" for number in range(6)]
DEVICES = ("cpu", "cuda:0")
PATIENCE_S = 400.0
MEASURING = (Loaded, Unloaded, Observed, BudgetChanged, InstanceUp, ModelAdded, PinWanted)
"""Events that may show a device to be over its budget without a decision of the core; a pin keeps what was to leave for that."""

names = st.sampled_from(NAMES)
sizes = st.integers(0, 130)
picks = st.integers(0, 1 << 16)
devices = st.sampled_from([None, None, None, "cpu", "cuda", "cuda:0"])

residencies = st.builds(
    Residency,
    pinned=st.sampled_from([False, False, False, True]),
    priority=st.integers(-2, 2),
    min_copies=st.sampled_from([0, 0, 0, 1]),
    keep_alive_s=st.sampled_from([None, 0.0, 5.0, float("inf")]),
    device=devices,
    size_bytes=st.one_of(st.none(), sizes),
    requires=st.one_of(st.just(()), st.just(()), st.lists(st.sampled_from([*NAMES, "nobody"]), max_size=3).map(tuple)),
)
specs = st.builds(
    ModelSpec,
    name=names,
    revision=st.sampled_from("ab"),
    runtime=st.just("onnx"),
    device_kinds=st.sampled_from([("cpu",), ("cuda", "cpu")]),
    estimate_bytes=sizes,
    run_peak_estimate_bytes=st.integers(0, 40),
    isolation=st.sampled_from(["shared", "shared", "process"]),
    residency=residencies,
)
core_settings = st.builds(
    CoreSettings,
    eviction=st.sampled_from(["demand", "demand", "lru", "fifo", "none"]),
    preference=st.sampled_from(["latency", "throughput"]),
    keep_alive_s=st.sampled_from([5.0, 300.0]),
    queue_bound=st.integers(1, 5),
    max_in_flight=st.integers(1, 3),
    loads_at_once=st.integers(1, 2),
    runs_at_once=st.integers(1, 2),
    drains_at_once=st.integers(1, 3),
    load_timeout_s=st.just(40.0),
    verify_timeout_s=st.just(10.0),
    verify_slack_bytes=st.just(4),
    unreturned_limit_bytes=st.just(25),
    run_limit_s=st.just(60.0),
)
learned = st.builds(Learned, private_bytes=sizes, load_peak_bytes=sizes, run_peak_bytes=st.integers(-1, 40), load_s=st.just(0.5))


class CheckedShell(CoreShell):
    """Checks of single steps that the invariants of a state cannot see."""

    def __init__(self, settings: CoreSettings) -> None:
        super().__init__(settings, overrun_bytes=ANY_OVERRUN)
        self._looks = 0

    def send(self, event: Event) -> list[Action]:
        before = self._sums()
        actions = super().send(event)
        if not isinstance(event, MEASURING):
            self._check_no_worse(before)
        self._check_evictions()
        self._check_loads(actions)
        self._check_look()
        return actions

    def _sums(self) -> dict[tuple[str, int, str], tuple[int, int]]:
        return {
            (instance.ident, instance.generation, device.name): (device.used_bytes(), device.committed_bytes())
            for instance in self.world.instances.values()
            for device in instance.devices.values()
        }

    def _check_no_worse(self, before: dict[tuple[str, int, str], tuple[int, int]]) -> None:
        for (instance, generation, name), sums in self._sums().items():
            budget = self.world.instances[instance].devices[name].budget_bytes
            for was, now in zip(before[instance, generation, name], sums, strict=True):
                assert now <= max(was, budget), f"a decision took {name} from {was} to {now} of {budget}"

    def _check_evictions(self) -> None:
        for reason in self.noted("evict"):
            if winner := reason.figures["winner"]:
                loads = any(load.model == winner for load in self.loads.values())
                reserved = any(winner in device.reserved for device in self.world.devices())
                assert loads or reserved, f"{reason.model} was evicted for {winner}, which got nothing"
                assert self.world.settings.eviction != "none", "policy none evicts nothing"
            assert not self.world.models[reason.model].pinned, f"{reason.model} is pinned and was evicted"

    def _check_loads(self, actions: list[Action]) -> None:
        for load in actions:
            if isinstance(load, Load):
                assert not self.world.stopping, "a load begins while the server stops"
                device = self.world.instances[load.instance].devices[load.device]
                assert device.used_bytes() <= device.budget_bytes, "a load begins on a device that is over its budget"

    def _check_look(self) -> None:
        """Explaining a model, another at each step, changes nothing."""
        self._looks += 1
        name = NAMES[self._looks % len(NAMES)]
        before = self._state()
        state, now, _ = explain(self.core, name, self.now)
        assert now, f"nothing to say about {name}"
        if (model := self.world.models.get(name)) is not None:
            assert model_state(model)[0] == state
            assert size_of(model, self.world)[0] >= 0
        assert self._state() == before

    def _state(self) -> Any:
        world = self.world
        copies = {ident: (copy.state, copy.charge_bytes, copy.leases, copy.idle_due_at) for ident, copy in world.copies.items()}
        return (
            copies,
            list(world.waiting),
            set(world.stuck),
            list(world.hungry),
            len(world.timers),
            world.actions,
            world.reasons,
            self._sums(),
        )


class CoreMachine(RuleBasedStateMachine):
    """Any events in any order, as far as a shell could send them."""

    @initialize(
        settings=core_settings,
        added=st.lists(specs, min_size=1, max_size=6),
        instances=st.integers(0, 2),
        budget=st.integers(60, 140),
        cuda=st.booleans(),
    )
    def begin(self, settings: CoreSettings, added: list[ModelSpec], instances: int, budget: int, cuda: bool) -> None:
        self.shell = CheckedShell(settings)
        self.old_leases: list[Lease] = []
        self.generations: dict[str, int] = {}
        for one in added:
            self.shell.send(ModelAdded(one))
        for number in range(instances):
            self.bring_up(f"i{number}", budget, cuda, ())

    def bring_up(self, instance: str, budget: int, cuda: bool, held: tuple[Held, ...]) -> None:
        generation = self.generations[instance] = self.generations.get(instance, 0) + 1
        found = tuple((name, budget) for name in (DEVICES if cuda else DEVICES[:1]))
        self.shell.send(InstanceUp(instance, generation, found, held))

    def pick(self, items: Any, pick: int) -> Any:
        listed = list(items)
        return listed[pick % len(listed)]

    # --- time ------------------------------------------------------------------------------------------------------------------
    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.shell.wait(seconds)

    # --- the catalogue -----------------------------------------------------------------------------------------------------------
    @rule(spec=specs, known=st.one_of(st.just(()), learned.map(lambda one: (("cpu", one),))))
    def model_added(self, spec: ModelSpec, known: tuple[tuple[str, Learned], ...]) -> None:
        self.shell.send(ModelAdded(spec, known))

    @rule(name=names, forgotten=st.booleans())
    def model_removed(self, name: str, forgotten: bool) -> None:
        self.shell.send(ModelRemoved(name, forgotten))

    @rule(name=names, pinned=st.booleans())
    def pinned(self, name: str, pinned: bool) -> None:
        self.shell.send(PinWanted(name, pinned))

    @rule(name=names, keep_alive_s=st.sampled_from([0.0, 3.0, 30.0, float("inf")]))
    def keep_alive(self, name: str, keep_alive_s: float) -> None:
        self.shell.send(KeepAliveSet(name, keep_alive_s))

    # --- requests and commands -----------------------------------------------------------------------------------------------------
    @rule(name=names, timeout_s=st.sampled_from([0.0, 2.0, float("inf"), float("inf")]))
    def request(self, name: str, timeout_s: float) -> None:
        self.shell.request(name, timeout_s)

    @rule(name=names, count=st.integers(2, 6))
    def burst(self, name: str, count: int) -> None:
        for _ in range(count):
            self.shell.request(name)

    @rule(name=names)
    def request_without_a_try(self, name: str) -> None:
        self.shell.send(RequestArrived(self.shell.number(), name))

    @precondition(lambda self: self.shell.asked)
    @rule(pick=picks)
    def request_gone(self, pick: int) -> None:
        request = self.pick(self.shell.asked, pick)
        self.shell.send(RequestGone(request, self.shell.asked.pop(request)))

    @rule(name=names, device=devices, may_evict=st.booleans(), timeout_s=st.sampled_from([3.0, float("inf")]))
    def load_wanted(self, name: str, device: str | None, may_evict: bool, timeout_s: float) -> None:
        self.shell.load(name, device, may_evict=may_evict, deadline=self.shell.now + timeout_s)

    @rule(name=names, device=devices)
    def eject_wanted(self, name: str, device: str | None) -> None:
        self.shell.eject(name, device)

    @precondition(lambda self: self.shell.commanded)
    @rule(pick=picks)
    def command_gone(self, pick: int) -> None:
        command = self.pick(self.shell.commanded, pick)
        self.shell.send(CommandGone(command, self.shell.commanded.pop(command)))

    @precondition(lambda self: self.shell.leases)
    @rule(pick=picks)
    def lease_ends(self, pick: int) -> None:
        request = self.pick(self.shell.leases, pick)
        self.old_leases.append(self.shell.leases[request])
        self.shell.end(request)

    @precondition(lambda self: self.shell.leases)
    @rule()
    def all_leases_end(self) -> None:
        for request in list(self.shell.leases):
            self.shell.end(request)

    @precondition(lambda self: self.old_leases)
    @rule(pick=picks)
    def lease_ends_again(self, pick: int) -> None:
        assert not self.shell.core.end_lease(self.pick(self.old_leases, pick), self.shell.now)

    # --- loads and unloads -----------------------------------------------------------------------------------------------------------
    @precondition(lambda self: self.shell.loads)
    @rule(pick=picks, private_bytes=st.one_of(st.none(), st.none(), sizes), more=st.integers(0, 60))
    def load_ends(self, pick: int, private_bytes: int | None, more: int) -> None:
        model = self.pick(self.shell.loads.values(), pick).model
        self.shell.loaded(model, private_bytes, None if private_bytes is None else private_bytes + more)

    @precondition(lambda self: self.shell.loads)
    @rule(pick=picks, died=st.booleans())
    def load_fails(self, pick: int, died: bool) -> None:
        load = self.shell.loads.pop(self.pick(self.shell.loads, pick))
        self.shell.send(LoadFailed(load.instance, load.generation, load.copy, "load_failed", "it is broken", died))

    @precondition(lambda self: self.shell.unloads)
    @rule(pick=picks, total_bytes=st.one_of(st.none(), st.integers(0, 200)))
    def unload_ends(self, pick: int, total_bytes: int | None) -> None:
        self.shell.unloaded(self.pick(self.shell.unloads.values(), pick).model, total_bytes)

    @rule(instance=st.sampled_from(["i0", "i1", "i7"]), generation=st.integers(0, 2), copy=st.integers(0, 30), what=st.integers(0, 3))
    def late_event(self, instance: str, generation: int, copy: int, what: int) -> None:
        found = self.shell.world.copies.get(copy)
        if found is not None and found.generation == generation and found.instance == instance:
            return
        late = self.shell.world.counters.late_events
        events: list[Event] = [
            Loaded(instance, generation, copy, 1, 1, 0.1),
            LoadFailed(instance, generation, copy, "load_failed", "late"),
            Unloaded(instance, generation, copy),
            CopyLost(instance, generation, copy, "late"),
        ]
        self.shell.send(events[what])
        assert self.shell.world.counters.late_events == late + 1

    # --- instances -------------------------------------------------------------------------------------------------------------------
    @precondition(lambda self: self.shell.world.copies)
    @rule(pick=picks, running=st.booleans(), stopped=st.booleans())
    def copy_lost(self, pick: int, running: bool, stopped: bool) -> None:
        copy = self.pick(self.shell.world.copies.values(), pick)
        self.shell.loads.pop(copy.ident, None)
        self.shell.unloads.pop(copy.ident, None)
        self.shell.recycles = [one for one in self.shell.recycles if one.copy != copy.ident]
        self.shell.send(CopyLost(copy.instance, copy.generation, copy.ident, "killed", running, stopped))

    @rule(instance=st.sampled_from(["i0", "i1"]), running=st.lists(names, max_size=3))
    def instance_down(self, instance: str, running: list[str]) -> None:
        self.shell.send(InstanceDown(instance, self.generations.get(instance, 0), "killed", tuple(running)))

    @rule(
        instance=st.sampled_from(["i0", "i1"]),
        budget=st.integers(60, 140),
        cuda=st.booleans(),
        held=st.lists(st.tuples(names, st.sampled_from("ab"), st.sampled_from(DEVICES), learned), max_size=3),
    )
    def instance_up(self, instance: str, budget: int, cuda: bool, held: list[tuple[str, str, str, Learned]]) -> None:
        first = self.shell.world.next_copy
        found = tuple(Held(first + number, *one) for number, one in enumerate(held))
        self.bring_up(instance, budget, cuda, found)

    @precondition(lambda self: self.shell.recycles)
    @rule(pick=picks)
    def recycled(self, pick: int) -> None:
        self.carry_out(pick)

    def carry_out(self, pick: int) -> None:
        asked = self.shell.recycles.pop(pick % len(self.shell.recycles))
        if asked.copy is None:
            self.shell.send(InstanceDown(asked.instance, asked.generation, asked.reason))
            self.bring_up(asked.instance, 100, False, ())
        elif asked.copy in self.shell.world.copies:
            self.shell.loads.pop(asked.copy, None)
            self.shell.unloads.pop(asked.copy, None)
            self.shell.send(CopyLost(asked.instance, asked.generation, asked.copy, asked.reason))

    @rule(instance=st.sampled_from(["i0", "i1"]), device=st.sampled_from(DEVICES), budget=st.integers(0, 150))
    def budget_changed(self, instance: str, device: str, budget: int) -> None:
        self.shell.send(BudgetChanged(instance, self.generations.get(instance, 0), device, budget))

    @rule(
        instance=st.sampled_from(["i0", "i1"]), total_bytes=st.one_of(st.none(), st.integers(0, 200)), pick=picks, peak=st.integers(0, 60)
    )
    def observed(self, instance: str, total_bytes: int | None, pick: int, peak: int) -> None:
        copies = list(self.shell.world.copies)
        peaks = ((copies[pick % len(copies)], peak),) if copies else ()
        own = ((copies[pick % len(copies)], 4 * peak),) if copies else ()
        self.shell.send(Observed(instance, self.generations.get(instance, 0), total_bytes, peaks, own))

    @precondition(lambda self: self.shell.now > 1200)
    @rule()
    def stopping(self) -> None:
        self.shell.send(Stopping())

    # --- nobody starves ----------------------------------------------------------------------------------------------------------------
    def teardown(self) -> None:
        """From now on everything goes well: whoever waits is answered within bounds, and nothing is left under way."""
        if not hasattr(self, "shell"):
            return
        shell = self.shell
        self.settle_down()
        until = shell.now + PATIENCE_S
        while shell.asked or shell.commanded or shell.leases:
            assert shell.now < until, f"not answered: {shell.asked} {shell.commanded}, in flight {list(shell.leases)}"
            self.settle_down()
            shell.wait(1.0)

    def settle_down(self) -> None:
        """One round of all that is under way."""
        shell = self.shell
        for instance in ("i0", "i1"):
            known = shell.world.instances.get(instance)
            if known is None or not known.up:
                self.bring_up(instance, 100, True, ())
        while shell.recycles:
            self.carry_out(0)
        for request in list(shell.leases):
            shell.end(request)
        for going in list(shell.loads):
            if going in shell.loads:
                shell.loaded(shell.loads[going].model)
        for going in list(shell.unloads):
            if going in shell.unloads:
                shell.unloaded(shell.unloads[going].model)
        for copy in list(shell.world.copies.values()):
            known_to_shell = copy.ident in shell.loads or copy.ident in shell.unloads
            assert known_to_shell or copy.state in (CopyState.READY, CopyState.DRAINING), f"{copy.ident} is {copy.state.value} for ever"
        check(shell.core, overrun_bytes=ANY_OVERRUN)


@pytest.mark.timeout(300)
def test_the_core_keeps_its_invariants_under_random_events() -> None:
    run_state_machine_as_test(CoreMachine, settings=settings(max_examples=100, stateful_step_count=40))


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_the_core_keeps_its_invariants_under_many_random_events() -> None:
    run_state_machine_as_test(CoreMachine, settings=settings(max_examples=500, stateful_step_count=80))
