"""Models that require others: leased together or not at all, gathered one closure at a time."""

from __future__ import annotations

import pytest

from modelpool.core.copies import CopyState
from modelpool.core.events import CopyLost, LoadFailed, ModelAdded, ModelRemoved, PinWanted, RequestGone, Stopping
from modelpool.core.explain import explain
from tests.core_shell import CoreShell, spec


def pool(budget: int = 100, /, **settings: object) -> CoreShell:
    """Models a, b, c, d of 30 bytes, and `ab` and `cd` of 10 that require two of them each."""
    shell = CoreShell(**settings)
    shell.up(cpu=budget)
    shell.add(*(spec(name, 30) for name in "abcd"), spec("ab", 10, requires=("a", "b")), spec("cd", 10, requires=("c", "d")))
    return shell


def leases(shell: CoreShell) -> dict[str, int]:
    """How many leases the copies of each model have."""
    return {copy.model.name: copy.leases for copy in shell.world.copies.values() if copy.leases}


def refusal(shell: CoreShell, request: int) -> tuple[str, str]:
    return shell.refused[request].code, shell.refused[request].message


def test_a_request_holds_all_that_its_model_requires() -> None:
    shell = pool()
    request = shell.request("ab")
    shell.work()
    assert leases(shell) == {"ab": 1, "a": 1, "b": 1}
    again = shell.request("ab")  # straight through
    assert leases(shell) == {"ab": 2, "a": 2, "b": 2}
    assert shell.world.counters.hits["ab"] == 1
    shell.end(request)
    shell.end(again)
    assert leases(shell) == {}


def test_nothing_is_leased_before_all_is_there() -> None:
    shell = pool()
    shell.serve("ab")
    shell.eject("b")
    shell.work()
    request = shell.request("ab")
    assert leases(shell) == {}
    assert shell.world.devices()[0].copies
    shell.loaded("b")
    assert request in shell.leases


def test_what_is_gathered_is_kept_until_it_runs() -> None:
    shell = pool(100)
    shell.request("ab")
    shell.loaded(next(iter(shell.loads.values())).model)
    first = shell.resident()
    other = shell.request("c")
    while not shell.leases:
        shell.loaded(next(iter(shell.loads.values())).model)
        assert first <= shell.resident()
    assert leases(shell) == {"ab": 1, "a": 1, "b": 1}
    for request in list(shell.leases):
        shell.end(request)
    shell.work()
    assert other in shell.leases


def test_closures_that_do_not_fit_together_are_gathered_one_after_the_other() -> None:
    shell = pool(100)
    requests = [shell.request(name) for name in ("ab", "cd", "ab", "cd")]
    for _ in range(4):
        shell.work()
        for request in list(shell.leases):
            shell.end(request)
    assert not shell.asked
    assert not shell.refused
    assert len(requests) == 4


def test_members_that_drain_for_another_serve_whom_they_are_leased_to() -> None:
    shell = pool(100)
    request = shell.request("ab")
    shell.work()
    shell.request("cd")
    shell.work()
    assert {copy.state for copy in shell.world.copies.values()} >= {CopyState.DRAINING}
    assert not shell.unloads
    shell.end(request)
    shell.work()
    assert leases(shell) == {"cd": 1, "c": 1, "d": 1}


def test_what_can_never_be_there_together_is_refused_at_once() -> None:
    shell = pool(60)
    request = shell.request("ab")
    code, message = refusal(shell, request)
    assert code == "never_fits"
    assert "'ab' 10 B, 'a' 30 B, 'b' 30 B need 70 B and the budget is 60 B" in message or "need 70 B" in message
    assert not shell.loads


def test_requirements_of_requirements_and_circles() -> None:
    shell = pool(100)
    shell.add(spec("x", 10, requires=("y",)), spec("y", 10, requires=("x", "a")))
    shell.request("x")
    shell.request("y")
    shell.work()
    assert leases(shell) == {"x": 2, "y": 2, "a": 2}


def test_a_requirement_that_is_not_in_the_catalogue() -> None:
    shell = pool()
    shell.add(spec("lost", 10, requires=("a", "nobody")))
    request = shell.request("lost")
    code, message = refusal(shell, request)
    assert code == "load_failed"
    assert "requires 'nobody', which is not in the catalogue" in message


def test_a_requirement_that_leaves_the_catalogue() -> None:
    shell = pool()
    request = shell.request("ab")
    shell.send(ModelRemoved("b"))
    assert "'b'" in refusal(shell, request)[1]
    shell.add(spec("b", 30))
    shell.serve("ab")


def test_a_requirement_that_cannot_be_loaded_fails_those_who_wait_and_later_ones_at_once() -> None:
    shell = pool()
    request = shell.request("ab")
    while not any(load.model == "b" for load in shell.loads.values()):
        shell.loaded(next(iter(shell.loads.values())).model)
    load = shell.loading("b")
    del shell.loads[load.copy]
    shell.send(LoadFailed(load.instance, load.generation, load.copy, "load_failed", "it is broken"))
    assert refusal(shell, request) == ("load_failed", "model 'ab' requires 'b': it is broken")
    assert refusal(shell, shell.request("ab")) == ("load_failed", "model 'ab' requires 'b': it is broken")
    shell.wait(60)
    shell.serve("ab")


def test_a_failure_of_the_model_itself() -> None:
    shell = pool()
    shell.serve("a")
    request = shell.request("ab")
    load = next(load for load in shell.loads.values())
    del shell.loads[load.copy]
    shell.send(LoadFailed(load.instance, load.generation, load.copy, "load_failed", f"{load.model} is broken"))
    assert load.model in refusal(shell, request)[1]


def test_no_room_beside_what_is_pinned() -> None:
    shell = pool(100)
    shell.add(spec("big", 50))
    shell.send(PinWanted("big", True))
    shell.work()
    request = shell.request("ab")
    shell.work()
    code, message = refusal(shell, request)
    assert code == "no_space"
    assert message.startswith("model 'ab'")


def test_a_member_without_room_keeps_the_request_waiting() -> None:
    shell = pool(100, max_in_flight=1)
    shell.serve("ab")
    busy = shell.request("a")
    request = shell.request("ab")
    assert request not in shell.leases
    shell.end(busy)
    assert request in shell.leases


def test_a_request_that_gives_up_lets_the_others_go() -> None:
    shell = pool(100)
    request = shell.request("ab")
    shell.send(RequestGone(request, shell.asked.pop(request)))
    assert not shell.world.gathered
    shell.work()
    assert not shell.leases


def test_a_copy_that_dies_ends_what_was_held_with_it() -> None:
    shell = pool()
    request = shell.request("ab")
    shell.work()
    copy = shell.copy("ab")
    shell.send(CopyLost(copy.instance, copy.generation, copy.ident, "killed"))
    assert leases(shell) == {"a": 1, "b": 1}
    shell.end(request)
    assert leases(shell) == {}


def test_how_long_a_request_takes_is_not_its_members_doing() -> None:
    shell = pool(run_limit_s=100.0)
    shell.request("ab")
    shell.work()
    shell.wait(200)
    assert {shell.world.copies[recycle.copy].model.name if recycle.copy else "" for recycle in shell.recycles} <= {"ab", ""}
    assert any("'ab'" in recycle.reason for recycle in shell.recycles)
    assert not any("'a'" in recycle.reason or "'b'" in recycle.reason for recycle in shell.recycles)


@pytest.mark.parametrize("gathered", [True, False])
def test_a_stop_refuses_those_whose_models_are_not_all_there(gathered: bool) -> None:
    shell = pool()
    shell.serve("ab")
    shell.eject("b")
    shell.work()
    if gathered:
        shell.eject("a")
        shell.work()
    request = shell.request("ab")
    shell.send(Stopping())
    shell.work()
    assert request in shell.refused or request in shell.leases
    assert not shell.asked


def test_a_change_of_requirements_is_taken_up() -> None:
    shell = pool()
    request = shell.request("ab")
    shell.send(ModelAdded(spec("ab", 10, requires=("c",))))
    shell.work()
    assert request in shell.leases
    assert leases(shell) == {"ab": 1, "c": 1}


def test_a_user_may_load_a_model_without_what_it_requires() -> None:
    shell = pool()
    command = shell.load("ab")
    assert [load.model for load in shell.loads.values()] == ["ab"]
    shell.work()
    assert shell.done[command].code is None


def test_explanations() -> None:
    shell = pool()
    shell.request("ab")
    said = "\n".join(explain(shell.core, "ab", shell.now)[1])
    assert "it requires a, b" in said
    said = "\n".join(explain(shell.core, "a", shell.now)[1])
    assert "'ab' requires it" in said
    while not (there := shell.resident() & {"a", "b"}):
        shell.loaded(next(iter(shell.loads.values())).model)
    said = "\n".join(explain(shell.core, there.pop(), shell.now)[1])
    assert "not unloaded for others: 'ab' requires it" in said


def test_a_model_that_is_there_does_not_run_without_what_it_requires() -> None:
    shell = pool()
    shell.add(spec("lost", 10, requires=("nobody",)))
    shell.load("lost")
    shell.work()
    assert "requires 'nobody'" in refusal(shell, shell.request("lost"))[1]
