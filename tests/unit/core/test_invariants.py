"""The invariants can fail: each is broken once, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from modelpool.core.copies import CopyState, Lease
from modelpool.core.events import PinWanted
from modelpool.core.invariants import check
from modelpool.core.ledger import Need
from modelpool.core.lifecycle import begin_load, leave, refresh
from modelpool.core.state import LoadCommand, Waiter
from tests.core_shell import CoreShell, spec


def _shell() -> CoreShell:
    """a runs its first request, b is idle, c waits for space, d is not resident."""
    shell = CoreShell(queue_bound=2, max_in_flight=2, preference="throughput")
    shell.up(cpu=100)
    shell.add(spec("a", 50), spec("b", 30), spec("c", 60), spec("d", 10))
    shell.serve("b")
    shell.request("a")
    shell.loaded("a")
    shell.request("c")
    return shell


def _bytes_drift(shell: CoreShell) -> None:
    shell.world.devices()[0].resident_bytes += 1


def _ready_list_of_device_drifts(shell: CoreShell) -> None:
    device = shell.world.devices()[0]
    device.ready.discard(next(iter(device.ready)))


def _peaks_drift(shell: CoreShell) -> None:
    shell.world.devices()[0].peaks.append((99, 99))


def _peak_below_nothing(shell: CoreShell) -> None:
    device = shell.world.devices()[0]
    device.set_run_peak(next(iter(device.copies.values())), -1)


def _over_the_budget(shell: CoreShell) -> None:
    shell.world.devices()[0].unreturned_bytes = 80


def _committed_over_the_budget(shell: CoreShell) -> None:
    shell.world.devices()[0].reserved["d"] = Need(70, 70, 0, "user")


def _lease_count_drifts(shell: CoreShell) -> None:
    shell.copy("a").leases += 1


def _lease_of_another(shell: CoreShell) -> None:
    copy = shell.copy("a")
    copy.live.clear()
    copy.live[Lease(shell.copy("b"), 0.0)] = None


def _lease_on_what_unloads(shell: CoreShell) -> None:
    copy = shell.copy("a")
    shell.world.devices()[0].leaves(copy)
    copy.move(CopyState.UNLOADING, shell.now)


def _too_many_leases(shell: CoreShell) -> None:
    copy = shell.copy("a")
    for _ in range(3):
        copy.live[Lease(copy, 0.0)] = None
    copy.leases = len(copy.live)


def _two_copies(shell: CoreShell) -> None:
    begin_load(shell.world, shell.world.models["a"], shell.world.devices()[0], Need(1, 1, 0, "user"), shell.now)


def _reserved_twice(shell: CoreShell) -> None:
    shell.up("other", 1, cpu=100)
    for device in shell.world.devices():
        device.reserved["d"] = Need(1, 1, 0, "user")


def _reserved_and_resident(shell: CoreShell) -> None:
    shell.world.devices()[0].reserved["b"] = Need(1, 1, 0, "user")


def _ready_list_of_model_drifts(shell: CoreShell) -> None:
    shell.world.models["b"].ready = []


def _queue_over_its_bound(shell: CoreShell) -> None:
    for number in range(100, 103):
        shell.world.models["c"].queue[number] = Waiter(number, shell.now, float("inf"))


def _nobody_looks_after_a_waiter(shell: CoreShell) -> None:
    shell.world.waiting.clear()


def _somebody_waits_for_what_has_room(shell: CoreShell) -> None:
    shell.world.models["b"].queue[100] = Waiter(100, 0.0, float("inf"))


def _a_command_waits_for_what_is_ready(shell: CoreShell) -> None:
    shell.world.models["b"].commands[1] = LoadCommand(1, 0.0, None, True, float("inf"))


def _sum_of_arrivals_drifts(shell: CoreShell) -> None:
    shell.world.models["c"].queue_arrived += 100


def _waits_for_nothing(shell: CoreShell) -> None:
    shell.world.waiting["e"] = shell.world.models["c"]


def _hungry_for_nothing(shell: CoreShell) -> None:
    shell.world.hungry["b"] = {"local"}


def _another_of_the_same_name_waits(shell: CoreShell) -> None:
    shell.world.waiting["c"] = shell.world.models["d"]


def _pinned_and_on_its_way_out(shell: CoreShell) -> None:
    leave(shell.world, shell.copy("a"), "space", shell.now)
    shell.world.models["a"].pinned = True


def _down_with_reservations(shell: CoreShell) -> None:
    shell.world.instances["local"].up = False


def _recycled_with_ready_copies(shell: CoreShell) -> None:
    shell.send(PinWanted("a", True))
    shell.world.instances["local"].recycling = True


def _copy_outlives_its_generation(shell: CoreShell) -> None:
    shell.world.instances["local"].generation = 2


def _copy_on_no_device(shell: CoreShell) -> None:
    copy = shell.copy("b")
    shell.world.devices()[0].remove(copy)


def _copy_of_no_model(shell: CoreShell) -> None:
    model = shell.world.models["b"]
    model.copies.clear()
    refresh(shell.world, model)


def _lists_differ(shell: CoreShell) -> None:
    del shell.world.copies[shell.copy("b").ident]


def _removed_and_still_here(shell: CoreShell) -> None:
    shell.world.models["d"].removed = True


def _removed_with_waiters(shell: CoreShell) -> None:
    model = shell.world.models["a"]
    leave(shell.world, shell.copy("a"), "removed", shell.now)
    model.queue[100] = Waiter(100, 0.0, float("inf"))
    model.removed = True
    refresh(shell.world, model)


def _removed_and_ready(shell: CoreShell) -> None:
    shell.world.models["b"].removed = True


def _too_many_loads(shell: CoreShell) -> None:
    shell.up("other", 1, cpu=100)  # c is loaded there
    device = shell.world.instances["other"].devices["cpu"]
    begin_load(shell.world, shell.world.models["d"], device, Need(1, 1, 0, "user"), shell.now)


def _forgotten_in_the_queue(shell: CoreShell) -> None:
    request = next(iter(shell.leases))
    shell.end(request)
    shell.work()
    for waiting in list(shell.leases):
        shell.end(waiting)
    shell.work()
    model = shell.world.models["d"]
    model.queue[100] = Waiter(100, 0.0, float("inf"))
    refresh(shell.world, model)


@pytest.mark.parametrize(
    ("breaks", "name"),
    [
        (_bytes_drift, "sums"),
        (_ready_list_of_device_drifts, "sums"),
        (_peaks_drift, "sums"),
        (_peak_below_nothing, "sums"),
        (_copy_on_no_device, "sums"),
        (_copy_of_no_model, "sums"),
        (_lists_differ, "sums"),
        (_over_the_budget, "budget"),
        (_committed_over_the_budget, "budget"),
        (_lease_count_drifts, "leases"),
        (_lease_of_another, "leases"),
        (_lease_on_what_unloads, "leases"),
        (_two_copies, "single"),
        (_reserved_twice, "single"),
        (_reserved_and_resident, "single"),
        (_ready_list_of_model_drifts, "waiters"),
        (_nobody_looks_after_a_waiter, "waiters"),
        (_somebody_waits_for_what_has_room, "waiters"),
        (_a_command_waits_for_what_is_ready, "waiters"),
        (_sum_of_arrivals_drifts, "waiters"),
        (_waits_for_nothing, "waiters"),
        (_hungry_for_nothing, "waiters"),
        (_another_of_the_same_name_waits, "waiters"),
        (_forgotten_in_the_queue, "progress"),
        (_queue_over_its_bound, "bound"),
        (_too_many_leases, "bound"),
        (_pinned_and_on_its_way_out, "pinned"),
        (_down_with_reservations, "dead"),
        (_recycled_with_ready_copies, "dead"),
        (_copy_outlives_its_generation, "dead"),
        (_removed_and_still_here, "removed"),
        (_removed_with_waiters, "removed"),
        (_removed_and_ready, "removed"),
        (_too_many_loads, "loads"),
    ],
)
def test_a_broken_invariant_is_named(breaks: Callable[[CoreShell], None], name: str) -> None:
    shell = _shell()
    check(shell.core)
    breaks(shell)
    with pytest.raises(AssertionError, match=f"^{name}:"):
        check(shell.core)


def test_a_measurement_may_have_gone_over_the_budget_so_far() -> None:
    shell = _shell()
    shell.send(PinWanted("a", True))
    shell.world.devices()[0].unreturned_bytes = 80
    shell.world.devices()[0].reserved.clear()
    check(shell.core, overrun_bytes=80)
