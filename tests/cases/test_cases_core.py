"""What users of such systems ran into, at the level of the core: each test is one case, by its number in tests/README.md."""

from __future__ import annotations

import pytest

from modelpool.core.copies import CopyState
from modelpool.core.events import (
    CopyLost,
    InstanceDown,
    InstanceUp,
    LoadFailed,
    Observed,
    PinWanted,
    RequestGone,
    Unloaded,
)
from modelpool.core.model import Learned
from tests.core_shell import ANY_OVERRUN, CoreShell, spec


def _pool(budget: int = 100, /, *sizes: int, **settings: object) -> CoreShell:
    """A core with one device, and models a, b, c, .. of these sizes."""
    shell = CoreShell(overrun_bytes=ANY_OVERRUN, **settings)
    shell.up(cpu=budget)
    for name, size in zip("abcdefgh", sizes, strict=False):
        shell.add(spec(name, size))
    return shell


def test_case_01_an_unload_never_comes_between_a_load_and_its_request() -> None:
    shell = _pool(100, 60, 60)
    shell.serve("a")
    first = shell.request("a")
    shell.request("b")  # wants a's place while a's request is still running
    assert shell.leases[first].live
    assert shell.copy("a").state is CopyState.DRAINING
    assert not shell.unloads
    shell.end(first)
    assert [unload.model for unload in shell.unloads.values()] == ["a"]


def test_case_02_two_first_requests_make_one_load() -> None:
    shell = _pool(100, 60)
    requests = [shell.request("a") for _ in range(2)]
    assert len(shell.loads) == 1
    shell.loaded("a")
    assert set(requests) == set(shell.leases)


def test_case_03_a_load_waits_until_the_bytes_of_the_unload_are_back() -> None:
    shell = _pool(100, 60, 60)
    shell.serve("a")
    shell.request("b")
    assert not shell.loads
    shell.unloaded("a")
    assert [load.model for load in shell.loads.values()] == ["b"]


def test_case_04_bytes_that_do_not_come_back_are_not_given_away() -> None:
    shell = _pool(1000, 600, 500, verify_slack_bytes=0, unreturned_limit_bytes=10_000)
    shell.serve("a")
    shell.eject("a")
    shell.unloaded("a", total_bytes=450)
    device = shell.world.devices()[0]
    assert device.unreturned_bytes == 450
    assert device.free_bytes() == 550
    shell.send(Observed("local", 1, total_bytes=0))
    assert device.unreturned_bytes == 0


def test_case_04_too_many_of_them_recycle_the_instance() -> None:
    shell = _pool(1000, 600, verify_slack_bytes=0, unreturned_limit_bytes=100)
    shell.serve("a")
    shell.eject("a")
    shell.unloaded("a", total_bytes=450)
    assert len(shell.recycles) == 1


def test_case_05_an_unload_that_never_ends_is_bounded() -> None:
    shell = _pool(100, 60, 60, verify_timeout_s=10)
    shell.serve("a")
    waiting = shell.request("b")
    shell.wait(10.5)
    assert len(shell.recycles) == 1
    shell.send(InstanceDown("local", 1, "killed"))
    shell.send(InstanceUp("local", 2, (("cpu", 100),)))
    shell.work()
    assert waiting in shell.leases


def test_case_06_a_failed_load_holds_no_memory() -> None:
    shell = _pool(100, 60)
    request = shell.request("a")
    load = shell.loading("a")
    del shell.loads[load.copy]
    shell.send(LoadFailed(load.instance, load.generation, load.copy, "load_failed", "load failed for model 'a': cut short"))
    assert shell.refused[request].message.endswith("cut short")
    assert shell.world.devices()[0].used_bytes() == 0


def test_case_07_what_can_never_fit_fails_at_once_and_evicts_nothing() -> None:
    shell = _pool(100, 60, 150)
    shell.serve("a")
    request = shell.request("b")
    assert shell.refused[request].code == "never_fits"
    assert "150" in shell.refused[request].message
    assert "100" in shell.refused[request].message
    assert shell.resident() == {"a"}
    assert not shell.unloads


def test_case_08_a_large_model_evicts_no_more_than_it_needs() -> None:
    shell = _pool(100, 10, 10, 10, 40, 50)
    for name in "abcd":
        shell.serve(name)
    shell.request("e")
    assert shell.leaving() == ["a", "b"] or shell.leaving() == ["d"]
    shell.work()
    assert "e" in shell.resident()


def test_case_09_idleness_counts_from_the_end_of_a_request() -> None:
    shell = _pool(100, 60, keep_alive_s=10)
    request = shell.request("a")
    shell.loaded("a")
    shell.wait(100)  # longer than the keep-alive
    assert shell.resident() == {"a"}
    shell.end(request)
    shell.wait(9)
    assert shell.resident() == {"a"}
    shell.wait(2)
    assert shell.leaving() == ["a"]


def test_case_09_a_request_during_an_unload_is_served_after_it() -> None:
    shell = _pool(100, 60, keep_alive_s=10)
    shell.serve("a")
    shell.wait(11)
    assert shell.leaving() == ["a"]
    request = shell.request("a")
    shell.work()
    assert request in shell.leases


def test_case_10_a_model_in_use_is_not_evicted_under_its_request() -> None:
    shell = _pool(100, 60, 60)
    running = shell.request("a")
    shell.loaded("a")
    shell.request("b")
    shell.wait(60)
    assert shell.leases[running].live
    assert not shell.unloads


@pytest.mark.parametrize("preference", ["latency", "throughput"])
def test_case_11_two_alternating_models_are_both_served(preference: str) -> None:
    shell = _pool(100, 60, 60, preference=preference)
    asked = 0
    for _ in range(50):
        for name in "ab":
            request = shell.request(name)
            asked += 1
            shell.wait(0.5)
            shell.work()
            if request in shell.leases:
                shell.end(request)
            shell.work()
    for _ in range(20):
        shell.wait(10)
        shell.work()
        for request in list(shell.leases):
            shell.end(request)
    assert not shell.asked, "somebody still waits"
    assert not shell.refused


def test_case_11_cyclic_access_ends_in_answers() -> None:
    shell = _pool(100, *[40] * 8)
    for _ in range(3):
        for name in "abcdefgh":
            shell.serve(name)
            shell.wait(1)
    assert not shell.refused


def test_case_12_a_pinned_model_stays() -> None:
    shell = _pool(100, 60, 60, keep_alive_s=5)
    shell.send(PinWanted("a", True))
    shell.work()
    request = shell.request("b")
    assert shell.refused[request].code == "no_space"
    assert "unpin a" in shell.refused[request].message
    shell.wait(100)
    assert shell.resident() == {"a"}
    assert shell.done[shell.eject("a")].code == "bad_request"


def test_case_13_a_victim_that_is_asked_for_again_is_served_again() -> None:
    shell = _pool(100, 60, 60)
    running = shell.request("a")
    shell.loaded("a")
    shell.request("b")  # a drains for b
    again = shell.request("a")
    shell.end(running)
    for _ in range(10):
        shell.wait(5)
        shell.work()
        for request in list(shell.leases):
            shell.end(request)
    assert not shell.asked
    assert again not in shell.refused


def test_case_14_draining_blocks_no_other_model() -> None:
    shell = _pool(100, 50, 60, 20, 20)
    shell.serve("a")
    slow = shell.request("a")
    shell.serve("c")
    shell.request("b")  # must wait for the slow request to a
    assert shell.copy("a").state is CopyState.DRAINING
    request = shell.request("c")
    assert request in shell.leases  # served beside it
    assert shell.leases[slow].live


def test_case_15_twenty_registered_models_load_nothing() -> None:
    shell = CoreShell()
    shell.up(cpu=1000)
    shell.add(*(spec(f"m{number}", 10) for number in range(20)))
    assert not shell.loads


def test_case_16_a_measured_size_replaces_the_guess() -> None:
    shell = CoreShell(overrun_bytes=ANY_OVERRUN)
    shell.up(cpu=10_000)
    shell.add(spec("a", estimate_bytes=12))
    request = shell.request("a")
    shell.loaded("a", private_bytes=5_000)
    assert request in shell.leases
    assert shell.copy("a").charge_bytes == 5_000


def test_case_17_an_underestimated_model_that_is_alone_stays() -> None:
    shell = CoreShell(overrun_bytes=ANY_OVERRUN)
    shell.up(cpu=100)
    shell.add(spec("a", estimate_bytes=10))
    request = shell.request("a")
    shell.loaded("a", private_bytes=90, peak_bytes=95)
    shell.end(request)
    shell.wait(1)
    assert shell.resident() == {"a"}
    assert not shell.unloads


def test_case_18_two_idle_days_unload_everything_but_what_is_pinned() -> None:
    shell = _pool(100, 30, 30, 30)
    for name in "abc":
        shell.serve(name)
    shell.send(PinWanted("c", True))
    shell.wait(301)
    shell.work()
    assert shell.resident() == {"c"}


def test_case_19_a_swap_kills_no_request() -> None:
    shell = _pool(100, 60, 60)
    running = [shell.request("a") for _ in range(5)]
    shell.loaded("a")
    queued = shell.request("b")
    for request in running:
        shell.end(request)
    shell.work()
    assert queued in shell.leases
    assert not shell.refused


def test_case_20_first_requests_wait_for_the_load() -> None:
    shell = _pool(100, 60)
    requests = [shell.request("a") for _ in range(30)]
    assert not shell.refused
    shell.loaded("a")
    assert set(requests) == set(shell.leases)


def test_case_22_parallel_requests_do_not_reload() -> None:
    shell = _pool(100, 60, max_in_flight=2)
    requests = [shell.request("a") for _ in range(6)]
    shell.loaded("a")
    served: set[int] = set()
    while shell.leases:
        request = next(iter(shell.leases))
        shell.end(request)
        served.add(request)
    assert served == set(requests)
    assert shell.world.counters.loads["a"] == 1


def test_case_23_a_restarted_instance_holds_what_it_says_and_no_more() -> None:
    shell = _pool(100, 30, 30)
    shell.serve("a")
    shell.serve("b")
    shell.send(InstanceDown("local", 1, "killed"))
    assert shell.resident() == set()
    request = shell.request("a")
    assert request in shell.asked
    shell.send(InstanceUp("local", 2, (("cpu", 100),)))
    shell.work()
    assert request in shell.leases
    assert shell.resident() == {"a"}


def test_late_news_of_a_dead_generation_is_counted_and_ignored() -> None:
    shell = _pool(100, 30)
    shell.serve("a")
    copy = shell.copy("a").ident
    shell.send(InstanceDown("local", 1, "killed"))
    shell.send(InstanceUp("local", 2, (("cpu", 100),)))
    before = shell.world.counters.late_events
    shell.send(Unloaded("local", 1, copy, None))
    shell.send(CopyLost("local", 1, copy, "late"))
    assert shell.world.counters.late_events == before + 2


def test_a_waiter_that_leaves_revokes_what_was_to_leave_for_it() -> None:
    shell = _pool(100, 60, 60)
    shell.serve("a")
    running = shell.request("a")
    waiting = shell.request("b")
    assert shell.copy("a").state is CopyState.DRAINING
    shell.send(RequestGone(waiting, "b"))
    del shell.asked[waiting]
    assert shell.copy("a").state is CopyState.READY
    shell.end(running)


def test_what_was_learned_counts_from_the_start() -> None:
    from modelpool.core.events import ModelAdded

    shell = CoreShell()
    shell.up(cpu=100)
    learned = Learned(private_bytes=70, load_peak_bytes=90, run_peak_bytes=5, load_s=0.2)
    shell.send(ModelAdded(spec("a", estimate_bytes=10), (("cpu", learned),)))
    shell.request("a")
    assert shell.copy("a").charge_bytes == 85  # the hold: its load peak less its run peak
