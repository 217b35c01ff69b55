"""Which copies leave for a model, and when none may."""

from __future__ import annotations

from modelpool.core.events import LoadWanted, ModelAdded, Observed, PinWanted, RequestGone
from modelpool.core.model import Learned
from modelpool.core.planner import Verdict, plan
from tests.core_shell import ANY_OVERRUN, CoreShell, spec


def pool(budget: int, /, *sizes: int, **settings: object) -> CoreShell:
    """One device, and models a, b, c, .. of these sizes, all served once in turn as far as they fit."""
    shell = CoreShell(**settings)
    shell.up(cpu=budget)
    for name, size in zip("abcdefgh", sizes, strict=False):
        shell.add(spec(name, size))
    return shell


def victims(shell: CoreShell, model: str) -> list[str]:
    """Who would leave for a model."""
    found = plan(shell.world, shell.world.models[model], shell.now)
    assert found.verdict is Verdict.FITS
    return [copy.model.name for copy in found.victims]


def test_nothing_leaves_where_it_fits() -> None:
    shell = pool(100, 40, 60)
    shell.serve("a")
    assert victims(shell, "b") == []


def test_victims_that_turn_out_not_to_be_needed_stay() -> None:
    shell = pool(100, 10, 20, 60, 55, eviction="lru")
    for name in "abc":
        shell.serve(name)
    assert victims(shell, "d") == ["c"]  # a and b came first, but c alone is enough


def test_of_victims_that_are_needed_those_of_least_worth_go() -> None:
    shell = pool(100, 30, 30, 30, 35, eviction="lru")
    for name in "abc":
        shell.serve(name)
    assert victims(shell, "d") == ["a"]


def test_run_peaks_that_go_with_a_victim_are_freed_too() -> None:
    shell = CoreShell(runs_at_once=1)
    shell.up(cpu=100)
    for name, run_peak in (("a", 50), ("b", 0)):
        shell.send(ModelAdded(spec(name), (("cpu", Learned(20, 20, run_peak, 0.1)),)))
    shell.add(spec("c", 60))
    shell.serve("a")
    shell.serve("b")
    assert victims(shell, "c") == ["a"]  # 20 of its own, and the 50 that its runs took


def test_only_bytes_that_come_free_count() -> None:
    shell = CoreShell(runs_at_once=1)
    shell.up(cpu=100)
    for name in "ab":
        shell.send(ModelAdded(spec(name), (("cpu", Learned(20, 20, 50, 0.1)),)))
    shell.add(spec("c", 60))
    shell.serve("a")
    shell.serve("b")
    assert victims(shell, "c") == ["a", "b"]  # without a the peak of b would remain


def test_what_is_pinned_or_kept_is_no_victim() -> None:
    shell = CoreShell()
    shell.up(cpu=100)
    shell.add(spec("a", 30), spec("b", 30, min_copies=1), spec("c", 30), spec("d", 40))
    shell.serve("a")
    shell.work()
    shell.serve("c")
    shell.send(PinWanted("a", True))
    assert victims(shell, "d") == ["c"]
    shell.add(spec("e", 60))
    found = plan(shell.world, shell.world.models["e"], shell.now)
    assert found.verdict is Verdict.NO_SPACE


def test_a_victim_serves_those_it_was_loaded_for_before_it_leaves() -> None:
    shell = pool(100, 60, 60)
    waiting = [shell.request("a") for _ in range(2)]
    shell.request("b")
    shell.loaded("a")
    assert shell.leaving() == ["a"]
    assert all(request in shell.leases for request in waiting)
    shell.end(waiting[0])
    assert not shell.unloads
    shell.end(waiting[1])
    assert [unload.model for unload in shell.unloads.values()] == ["a"]


def test_a_copy_whose_waiters_left_before_it_was_ready_may_leave_at_once() -> None:
    shell = pool(100, 60, 60)
    request = shell.request("a")
    shell.request("b")
    shell.send(RequestGone(request, "a"))
    shell.loaded("a")
    assert [unload.model for unload in shell.unloads.values()] == ["a"]


def test_a_copy_in_use_is_the_most_recently_used() -> None:
    shell = pool(100, 45, 45, 50, eviction="lru")
    shell.serve("a")
    shell.serve("b")
    running = shell.request("a")
    assert victims(shell, "c") == ["b"]
    shell.end(running)


def test_by_demand_a_copy_in_use_may_go_before_one_that_is_asked_for_more_often() -> None:
    shell = pool(100, 45, 45, 50)
    shell.serve("a")
    for _ in range(3):
        shell.serve("b")
    running = shell.request("a")
    assert victims(shell, "c") == ["a"]
    shell.wait(shell.world.settings.idle_window_s + 1)
    assert victims(shell, "c") == ["b"]  # long idle, which a is not
    shell.end(running)


def test_with_throughput_a_leased_copy_goes_only_for_one_that_starves() -> None:
    shell = pool(100, 60, 60, preference="throughput", starvation_s=10.0)
    shell.serve("a")
    running = shell.request("a")
    shell.request("b")
    assert shell.leaving() == []
    shell.wait(10)
    assert shell.leaving() == ["a"]
    shell.end(running)


def test_a_copy_with_a_queue_goes_only_for_one_that_starves() -> None:
    shell = pool(100, 60, 60, max_in_flight=1, starvation_s=10.0)
    shell.serve("a")
    running = [shell.request("a") for _ in range(2)]
    shell.request("b")
    assert shell.leaving() == []
    shell.wait(10)
    assert shell.leaving() == ["a"]
    shell.end(running[0])
    shell.work()


def test_what_is_larger_than_the_budget_never_fits() -> None:
    shell = pool(100, 101)
    found = plan(shell.world, shell.world.models["a"], shell.now)
    assert found.verdict is Verdict.NEVER
    assert found.short_bytes == 1


def test_policy_none_names_what_to_eject_pinned_or_not() -> None:
    shell = pool(100, 30, 30, 30, 60, eviction="none")
    for name in "abc":
        shell.serve(name)
    shell.send(PinWanted("a", True))
    refusal = shell.refused[shell.request("d")]
    assert refusal.code == "no_space"
    assert refusal.message.endswith("eject b, c first")
    shell.send(PinWanted("b", True))
    assert "eject c, a first" in shell.refused[shell.request("d")].message
    assert shell.resident() == {"a", "b", "c"}


def test_a_preload_takes_only_what_is_free() -> None:
    shell = pool(100, 60, 30, 50, loads_at_once=2)
    shell.serve("a")
    first = shell.load("b", may_evict=False)
    waiting = shell.load("c", may_evict=False)  # while b loads nothing is certain
    assert waiting not in shell.done
    shell.wait(60)
    shell.work()
    assert shell.done[first].code is None
    assert shell.done[waiting].code == "no_space"
    assert shell.resident() == {"a", "b"}


def test_where_nothing_can_be_had_the_device_is_too_small() -> None:
    shell = CoreShell(overrun_bytes=ANY_OVERRUN, eviction="none", verify_slack_bytes=0)
    shell.up(cpu=100)
    shell.add(spec("a", 80))
    shell.send(Observed("local", 1, total_bytes=50))
    assert "give the device more" in shell.refused[shell.request("a")].message


def test_an_estimate_waits_for_the_load_that_is_going_on() -> None:
    shell = pool(100, 60, 60)
    shell.request("a")
    command = shell.number()
    shell.commanded[command] = "b"
    shell.send(LoadWanted(command, "b"))
    assert plan(shell.world, shell.world.models["b"], shell.now).verdict is Verdict.LATER


def test_the_preferred_kind_of_device_is_taken_where_there_is_one() -> None:
    shell = CoreShell()
    shell.up(cpu=100, cuda_0=100)
    shell.add(spec("a", 40, device_kinds=("cuda", "cpu")), spec("b", 40, device_kinds=("cuda", "cpu"), device="cpu"))
    shell.request("a")
    assert shell.loading("a").device == "cuda:0"
    shell.work()
    shell.request("b")
    assert shell.loading("b").device == "cpu"


def test_of_two_devices_the_one_that_loses_less_is_taken() -> None:
    shell = CoreShell()
    shell.up("one", 1, cpu=100)
    shell.up("two", 1, cpu=100)
    shell.add(spec("a", 80), spec("b", 50), spec("c", 60))
    shell.serve("a")
    shell.serve("b")
    shell.request("c")
    assert shell.leaving() == ["b"]
