"""What is loaded next, and what happens to those who have to wait."""

from __future__ import annotations

from modelpool.core.copies import CopyState
from modelpool.core.events import (
    BudgetChanged,
    CopyLost,
    InstanceDown,
    InstanceUp,
    Loaded,
    LoadFailed,
    ModelAdded,
    Observed,
    PinWanted,
    RequestGone,
    Stopping,
)
from modelpool.core.model import Learned
from tests.core_shell import ANY_OVERRUN, CoreShell, spec


def pool(budget: int, /, *sizes: int, **settings: object) -> CoreShell:
    """One device, and models a, b, c, .. of these sizes."""
    shell = CoreShell(overrun_bytes=ANY_OVERRUN, **settings)
    shell.up(cpu=budget)
    for name, size in zip("abcdefgh", sizes, strict=False):
        shell.add(spec(name, size))
    return shell


def gone(shell: CoreShell, request: int) -> None:
    """A waiting request's client goes away."""
    shell.send(RequestGone(request, shell.asked.pop(request)))


# --- the order -------------------------------------------------------------------------------------------------------------------
def test_the_largest_demand_is_loaded_first() -> None:
    shell = pool(100, 10, 10, 10)
    shell.request("a")
    shell.request("b")
    for _ in range(2):
        shell.request("c")
    shell.loaded("a")
    assert [load.model for load in shell.loads.values()] == ["c"]


def test_priority_doubles_a_demand() -> None:
    shell = pool(100, 10, 10)
    shell.add(spec("dear", 10, priority=2))
    shell.request("a")
    for _ in range(3):
        shell.request("b")
    shell.request("dear")
    shell.loaded("a")
    assert [load.model for load in shell.loads.values()] == ["dear"]


def test_who_has_waited_for_very_long_comes_before_any_demand() -> None:
    shell = pool(100, 10, 10, 10, starvation_s=10.0)
    shell.request("a")
    shell.request("b")
    shell.wait(29)
    for _ in range(50):
        shell.request("c")
    shell.wait(1)
    shell.loaded("a")
    assert [load.model for load in shell.loads.values()] == ["b"]


def test_so_many_loads_at_once_as_the_setting_says() -> None:
    shell = pool(100, 10, 10, 10, loads_at_once=2)
    for name in "abc":
        shell.request(name)
    assert sorted(load.model for load in shell.loads.values()) == ["a", "b"]
    shell.loaded("b")
    assert sorted(load.model for load in shell.loads.values()) == ["a", "c"]


def test_loads_wait_for_so_many_drains_at_once_as_the_setting_says() -> None:
    shell = pool(100, 20, 20, 20, 20, 20, 20, 30, 30, drains_at_once=2, eviction="lru")
    for name in "abcd":
        shell.serve(name)
    running = [shell.request(name) for name in "abcd"]
    shell.request("g")
    shell.request("h")
    shell.add(spec("i", 30))
    shell.request("i")
    (device,) = shell.world.devices()
    assert sorted(device.reserved) == ["g", "h"]
    for request in running:
        shell.end(request)
    shell.work()
    assert {"g", "h", "i"} <= shell.resident()


def test_a_busy_instance_keeps_its_load_even_where_it_would_lose_less() -> None:
    shell = CoreShell(loads_at_once=1)
    shell.up("one", 1, cpu=100)
    shell.up("two", 1, cpu=60)
    shell.add(spec("a", 20), spec("b", 50), spec("c", 70))
    shell.request("a")
    assert shell.loading("a").instance == "one"
    shell.request("c")  # fits beside a, but one is busy; two is too small
    assert len(shell.loads) == 1
    shell.loaded("a")
    assert shell.loading("c").instance == "one"


# --- waiting for space -------------------------------------------------------------------------------------------------------------
def test_one_that_starves_keeps_others_from_taking_its_device() -> None:
    shell = pool(100, 30, 60, 80, 10, starvation_s=10.0, loads_at_once=2)
    shell.request("b")
    hungry = shell.request("c")
    shell.wait(11)
    assert shell.world.hungry == {"c": {"local"}}
    shell.request("d")
    assert [load.model for load in shell.loads.values()] == ["b"]  # d would fit beside b, but c comes first
    gone(shell, hungry)
    assert [load.model for load in shell.loads.values()] == ["b", "d"]


def test_bytes_that_did_not_come_back_are_fetched_for_one_that_starves() -> None:
    shell = pool(100, 90, verify_slack_bytes=0, unreturned_limit_bytes=50, starvation_s=10.0)
    shell.send(Observed("local", 1, total_bytes=30))
    request = shell.request("a")
    assert not shell.loads
    shell.wait(10)
    (action,) = shell.recycles
    assert "did not come back" in action.reason
    shell.send(InstanceDown("local", 1, action.reason))
    shell.send(InstanceUp("local", 2, (("cpu", 100),)))
    shell.work()
    assert request in shell.leases


def test_run_peaks_of_what_is_pinned_count_among_what_keeps_it_out() -> None:
    shell = pool(100, 70, verify_slack_bytes=0, unreturned_limit_bytes=50, starvation_s=10.0)
    shell.send(ModelAdded(spec("kept", pinned=True), (("cpu", Learned(0, 0, 20, 0.1)),)))
    shell.work()
    shell.send(Observed("local", 1, total_bytes=40))
    assert shell.world.devices()[0].unreturned_bytes == 20
    shell.request("a")
    shell.wait(10)
    assert len(shell.recycles) == 1


def test_what_is_pinned_keeps_it_out_even_without_bytes_that_did_not_come_back() -> None:
    shell = pool(100, 70, 40, verify_slack_bytes=0, unreturned_limit_bytes=50)
    shell.send(PinWanted("b", True))
    shell.work()
    shell.send(Observed("local", 1, total_bytes=60))
    assert "unpin b" in shell.refused[shell.request("a")].message


def test_a_reservation_that_nobody_needs_is_given_up_and_the_last_used_stays() -> None:
    shell = pool(100, 40, 40, 80)
    for name in "ab":
        shell.serve(name)
    running = {name: shell.request(name) for name in "ab"}
    waiting = shell.request("c")
    assert shell.leaving() == ["a", "b"]
    shell.end(running["a"])
    assert shell.copy("a").state is CopyState.UNLOADING
    gone(shell, waiting)
    assert shell.copy("b").state is CopyState.READY  # a had left already
    shell.end(running["b"])


def test_only_as_many_stay_as_there_is_room_for() -> None:
    shell = pool(100, 30, 30, 30, 90, 60, drains_at_once=3)
    for name in "abc":
        shell.serve(name)
    running = {name: shell.request(name) for name in "abc"}
    waiting = shell.request("d")
    assert shell.leaving() == ["a", "b", "c"]
    shell.send(BudgetChanged("local", 1, "cpu", 70))
    shell.asked.pop(waiting, None)
    assert len(shell.leaving()) == 1
    for request in running.values():
        shell.end(request)
    shell.work()


def test_a_reservation_whose_need_changed_is_planned_anew() -> None:
    shell = pool(100, 60, 60)
    shell.serve("a")
    running = shell.request("a")
    waiting = shell.request("b")
    shell.add(spec("b", 30))
    assert shell.loading("b")  # it fits beside a now
    assert shell.copy("a").state is CopyState.READY
    shell.work()
    assert waiting in shell.leases
    shell.end(running)


def test_those_who_came_while_it_drained_are_admitted_when_it_stays() -> None:
    shell = pool(100, 60, 60)
    shell.serve("a")
    running = shell.request("a")
    waiting = shell.request("b")
    again = shell.request("a")
    assert again in shell.asked
    gone(shell, waiting)
    assert again in shell.leases
    shell.end(running)


def test_a_pin_gives_up_what_was_reserved_in_its_place_though_others_still_leave() -> None:
    shell = pool(100, 40, 30, 80)
    for name in "ab":
        shell.serve(name)
    running = [shell.request(name) for name in "ab"]
    shell.request("c")
    assert shell.leaving() == ["a", "b"]
    shell.send(PinWanted("a", True))
    assert shell.resident() == {"a", "b"}
    assert not shell.world.devices()[0].reserved
    for request in running:
        shell.end(request)


def test_who_is_stuck_is_looked_at_again_when_a_copy_is_gone() -> None:
    shell = pool(100, 60, 60)
    shell.request("a")
    waiting = shell.request("b")
    lost = shell.loading("a")
    del shell.loads[lost.copy]
    shell.send(CopyLost("local", 1, lost.copy, "killed"))
    assert shell.loading("b")
    shell.work()
    assert waiting in shell.leases


def test_one_more_request_is_reason_to_look_again() -> None:
    shell = pool(100, 60, 60, starvation_s=10.0, max_in_flight=1)
    shell.serve("a")
    running = [shell.request("a") for _ in range(2)]  # with a queue, a goes only for one that starves
    shell.request("b")
    assert shell.world.stuck == {"b"}
    shell.send(RequestGone(running[1], "a"))
    del shell.asked[running[1]]
    shell.request("b")
    assert shell.leaving() == ["a"]
    shell.end(running[0])


# --- refusals ----------------------------------------------------------------------------------------------------------------------
def test_a_queue_that_can_never_be_served_any_more_is_refused() -> None:
    shell = pool(100, 60, 60)
    shell.request("a")
    request = shell.request("b")
    shell.send(BudgetChanged("local", 1, "cpu", 50))
    shell.loaded("a")
    assert shell.refused[request].code == "never_fits"


def test_a_user_who_names_a_device_is_refused_alone() -> None:
    shell = CoreShell()
    shell.up("local", 1, cpu=100, cuda_0=20)
    shell.add(spec("a", 60), spec("b", 10))
    shell.request("b")  # the instance is busy
    request = shell.request("a")
    command = shell.load("a", "cuda:0")
    shell.work()
    assert shell.done[command].code == "never_fits"
    assert request in shell.leases


def test_a_user_who_names_another_device_than_the_copy_got_is_told_where_it_is() -> None:
    shell = CoreShell()
    shell.up("local", 1, cpu=100, cuda_0=100)
    shell.add(spec("a", 60))
    shell.request("a")
    command = shell.load("a", "cuda:0")
    shell.loaded("a")
    assert shell.done[command].code == "refused"
    assert "cpu" in shell.done[command].message


def test_a_pinned_model_that_cannot_be_had_is_tried_again_when_something_changed() -> None:
    shell = pool(100, 60, 80)
    shell.send(PinWanted("a", True))
    shell.work()
    shell.send(PinWanted("b", True))
    command = shell.load("b")
    assert shell.done[command].code == "no_space"
    assert not shell.loads
    shell.send(PinWanted("a", False))
    shell.work()
    assert shell.resident() == {"b"}


def test_a_kept_model_waits_for_its_time_to_be_tried_again() -> None:
    shell = CoreShell(retry_min_s=5.0)
    shell.up(cpu=100)
    shell.add(spec("a", 60, min_copies=1))
    load = shell.loading("a")
    del shell.loads[load.copy]
    shell.send(LoadFailed("local", 1, load.copy, "load_failed", "no"))
    shell.wait(4.9)
    assert not shell.loads
    shell.wait(0.2)
    assert shell.loading("a")


def test_a_stopping_server_gives_up_what_was_reserved() -> None:
    shell = pool(100, 60, 60)
    shell.serve("a")
    running = shell.request("a")
    waiting = shell.request("b")
    shell.send(Stopping())
    assert shell.refused[waiting].code == "shutting_down"
    assert shell.copy("a").state is CopyState.READY
    shell.end(running)


# --- measured larger than thought ------------------------------------------------------------------------------------------------
def test_others_leave_for_a_newcomer_that_is_larger_than_thought() -> None:
    shell = pool(100, 40)
    shell.add(spec("b", estimate_bytes=20))
    shell.serve("a")
    request = shell.request("b")
    shell.loaded("b", private_bytes=70)
    assert shell.leaving() == ["a"]
    assert request in shell.leases


def test_others_leave_even_before_a_newcomer_that_nobody_waits_for() -> None:
    shell = pool(100, 40)
    shell.add(spec("b", estimate_bytes=20))
    for _ in range(5):
        shell.serve("a")
    shell.load("b")
    shell.loaded("b", private_bytes=70)
    assert shell.leaving() == ["a"]


def test_a_newcomer_that_does_not_fit_beside_what_is_pinned_serves_and_goes() -> None:
    shell = pool(100, 60, 20)
    shell.send(PinWanted("a", True))
    shell.work()
    shell.serve("b")
    shell.add(spec("c", estimate_bytes=10))
    request = shell.request("c")
    shell.loaded("c", private_bytes=50)
    assert request in shell.leases
    assert shell.leaving() == ["c"]
    shell.end(request)
    shell.work()
    assert shell.resident() == {"a", "b"}


def test_where_nothing_is_enough_all_that_may_go_goes() -> None:
    shell = pool(100, 60, 20)
    shell.send(PinWanted("a", True))
    shell.work()
    shell.serve("b")
    shell.send(BudgetChanged("local", 1, "cpu", 50))
    assert shell.leaving() == ["b"]
    assert "a" in shell.resident()


def test_policy_none_unloads_nothing_even_where_it_is_over_its_budget() -> None:
    shell = pool(100, 60, 60, eviction="none")
    shell.serve("a")
    shell.send(BudgetChanged("local", 1, "cpu", 50))
    assert shell.resident() == {"a"}


def test_a_load_that_was_larger_than_thought_lets_others_be_planned_anew() -> None:
    shell = CoreShell(overrun_bytes=ANY_OVERRUN, loads_at_once=2)
    shell.up(cpu=100)
    shell.add(spec("a", 50), spec("b", estimate_bytes=20), spec("c", 60))
    shell.send(ModelAdded(spec("b", estimate_bytes=20), (("cpu", Learned(20, 20, 0, 0.1)),)))
    shell.serve("a")
    running = shell.request("a")
    shell.request("b")
    load = shell.loading("b")
    waiting = shell.request("c")
    (device,) = shell.world.devices()
    assert "c" in device.reserved
    del shell.loads[load.copy]
    shell.send(Loaded("local", 1, load.copy, 90, 90, 0.1))
    assert sorted(shell.leaving()) == ["a", "b"]
    shell.end(running)
    for request in list(shell.leases):
        shell.end(request)
    shell.work()
    assert waiting in shell.leases
