"""Models that come, change and go."""

from __future__ import annotations

from modelpool.core.copies import CopyState
from modelpool.core.events import KeepAliveSet, ModelRemoved, PinWanted, RequestArrived
from tests.core_shell import CoreShell, spec


def pool(*sizes: int, **settings: object) -> CoreShell:
    """A device of 100 bytes, and models a, b, c, .. of these sizes."""
    shell = CoreShell(**settings)
    shell.up(cpu=100)
    for name, size in zip("abcdefgh", sizes, strict=False):
        shell.add(spec(name, size))
    return shell


def test_a_removed_model_finishes_what_it_accepted_and_refuses_who_waits() -> None:
    shell = pool(30, max_in_flight=1)
    running = shell.request("a")
    waiting = shell.request("a")
    shell.loaded("a")
    shell.send(ModelRemoved("a"))
    assert shell.refused[waiting].code == "model_not_found"
    assert shell.copy("a").state is CopyState.DRAINING
    assert shell.refused[shell.request("a")].code == "model_not_found"
    shell.send(ModelRemoved("a"))  # said twice: nothing happens
    shell.end(running)
    shell.work()
    assert "a" not in shell.world.models
    assert not shell.world.counters.unloads
    assert not shell.world.counters.loads


def test_a_model_removed_while_it_loads_goes_when_it_is_loaded() -> None:
    shell = pool(30)
    request = shell.request("a")
    shell.send(ModelRemoved("a", forgotten=True))
    assert shell.refused[request].code == "model_forgotten"
    shell.loaded("a")
    shell.work()
    assert "a" not in shell.world.models


def test_a_model_removed_while_it_unloads_goes_with_it() -> None:
    shell = pool(30)
    shell.serve("a")
    shell.eject("a")
    shell.send(ModelRemoved("a"))
    assert shell.copy("a").unload_reason == "eject"
    shell.work()
    assert "a" not in shell.world.models


def test_a_model_that_comes_back_while_its_old_copy_drains_waits_for_a_new_one() -> None:
    shell = pool(30)
    shell.serve("a")
    running = shell.request("a")
    shell.send(ModelRemoved("a"))
    shell.add(spec("a", 30))
    waiting = shell.request("a")
    assert len(shell.world.models["a"].copies) == 2
    shell.end(running)
    shell.work()
    assert waiting in shell.leases
    assert shell.copy("a").state is CopyState.READY


def test_a_model_that_comes_back_while_its_old_copy_loads_takes_it() -> None:
    shell = pool(30)
    shell.request("a")
    shell.send(ModelRemoved("a"))
    shell.add(spec("a", 30))
    request = shell.request("a")
    shell.loaded("a")
    assert request in shell.leases


def test_a_changed_model_retires_copies_that_drain_or_unload() -> None:
    shell = pool(30, 80)
    shell.serve("a")
    running = shell.request("a")
    shell.request("b")
    assert shell.copy("a").unload_reason == "space"
    shell.add(spec("a", 30, revision="2"))
    assert shell.copy("a").unload_reason == "changed"
    shell.end(running)
    shell.add(spec("a", 30, revision="3"))  # it unloads: nothing more to say
    shell.work()
    assert shell.resident() == {"b"}


def test_the_timer_of_a_model_that_is_gone_leaves_waiters_of_the_next_alone() -> None:
    shell = CoreShell()
    shell.add(spec("a", 30))
    shell.request("a", timeout_s=5.0)
    shell.send(ModelRemoved("a"))
    shell.add(spec("a", 30))
    request = shell.request("a")
    shell.wait(6)
    shell.up(cpu=100)
    shell.work()
    assert request in shell.leases


def test_deadlines_come_one_by_one() -> None:
    shell = CoreShell()
    shell.add(spec("a", 30))
    first, second, third = (shell.request("a", timeout_s=timeout_s) for timeout_s in (5.0, 3.0, 60.0))
    shell.wait(3)
    assert list(shell.refused) == [second]
    shell.wait(2)
    assert list(shell.refused) == [second, first]
    assert third in shell.asked
    assert shell.core.queued == 1


def test_a_request_whose_time_is_over_at_once_is_refused_at_once() -> None:
    shell = pool(30)
    assert shell.refused[shell.request("a", timeout_s=0.0)].code == "timeout"


def test_one_who_did_not_try_is_admitted_where_there_is_room() -> None:
    shell = pool(30)
    shell.serve("a")
    request = shell.number()
    shell.send(RequestArrived(request, "a"))
    assert request in shell.leases


def test_pins_are_of_known_models_and_say_so_once() -> None:
    shell = pool(30)
    shell.send(PinWanted("nobody", True))
    assert not shell.noted("pin")
    shell.send(PinWanted("a", True))
    assert shell.noted("pin")
    shell.work()
    shell.send(PinWanted("a", False))
    assert shell.noted("unpin")
    assert shell.resident() == {"a"}


def test_a_request_brings_its_keep_alive() -> None:
    shell = pool(30, keep_alive_s=300.0)
    shell.send(KeepAliveSet("nobody", 5.0))
    shell.serve("a")
    shell.send(KeepAliveSet("a", 5.0))
    shell.send(KeepAliveSet("a", 5.0))
    shell.wait(4.9)
    assert shell.resident() == {"a"}
    shell.wait(0.2)
    assert shell.leaving() == ["a"]


def test_keep_alives_that_change_with_each_request_pile_up_no_timers() -> None:
    shell = pool(30)
    shell.serve("a")
    timers = len(shell.world.timers)
    for number in range(200):
        shell.send(KeepAliveSet("a", 300.0 + 100 * (number % 2)))
        shell.serve("a")
    assert len(shell.world.timers) <= timers + 1
    shell.send(KeepAliveSet("a", float("inf")))
    shell.wait(10_000)
    assert shell.resident() == {"a"}


def test_an_idle_copy_is_looked_at_again_after_its_eviction_was_revoked() -> None:
    shell = pool(60, 60, keep_alive_s=10.0)
    shell.serve("a")
    running = shell.request("a")
    waiting = shell.request("b", timeout_s=12.0)
    shell.wait(11)  # its keep-alive passes while it drains
    assert shell.copy("a").state is CopyState.DRAINING
    shell.wait(2)
    assert waiting in shell.refused
    assert shell.copy("a").state is CopyState.READY
    shell.end(running)
    shell.wait(11)
    assert shell.leaving() == ["a"]


def test_a_command_waits_no_longer_when_its_copy_stays_after_all() -> None:
    shell = pool(60, 60)
    shell.serve("a")
    running = shell.request("a")
    shell.request("b", timeout_s=5.0)
    command = shell.load("a")
    assert command not in shell.done
    shell.wait(5)
    assert shell.done[command].devices == ("cpu",)
    shell.end(running)
