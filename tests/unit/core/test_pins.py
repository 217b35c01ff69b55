"""Which pins are refused because they could not be kept."""

from __future__ import annotations

import pytest

from modelpool.core.events import PinWanted
from modelpool.core.pins import pin_problem
from tests.core_shell import CoreShell, spec


def pool(budget: int, /, *sizes: int, up: bool = True, **settings: object) -> CoreShell:
    """One device, and models a, b, c, .. of these sizes, none of them resident."""
    shell = CoreShell(**settings)
    if up:
        shell.up(cpu=budget)
    for name, size in zip("abcdefgh", sizes, strict=False):
        shell.add(spec(name, size))
    return shell


def code(shell: CoreShell, name: str) -> str | None:
    found = pin_problem(shell.world, name)
    return None if found is None else found[0]


def test_what_can_never_fit_is_not_pinned() -> None:
    shell = pool(100, 101, 100)
    assert code(shell, "a") == "never_fits"
    assert code(shell, "b") is None


@pytest.mark.parametrize("resident", [True, False])
def test_what_does_not_fit_beside_other_pins_is_not_pinned(resident: bool) -> None:
    shell = pool(100, 60, 41, 40)
    shell.send(PinWanted("a", True))
    if resident:
        shell.work()
    found = pin_problem(shell.world, "b")
    assert found is not None
    assert found[0] == "no_space"
    assert "unpin a first" in found[1]
    assert code(shell, "c") is None
    shell.send(PinWanted("a", False))
    assert code(shell, "b") is None


def test_what_is_kept_by_min_copies_stays_too() -> None:
    shell = pool(100)
    shell.add(spec("k", 60, min_copies=1))
    shell.add(spec("m", 50))
    assert code(shell, "m") == "no_space"


def test_what_can_leave_is_no_obstacle() -> None:
    shell = pool(100, 60, 60)
    shell.serve("a")
    assert code(shell, "b") is None


def test_what_is_resident_can_be_pinned() -> None:
    shell = pool(100, 60, 40)
    shell.serve("a")
    shell.send(PinWanted("b", True))
    shell.work()
    assert code(shell, "a") is None
    assert code(shell, "b") is None


def test_before_a_device_is_up_nothing_is_known() -> None:
    assert code(pool(100, 500, up=False), "a") is None


def test_a_device_that_is_not_there() -> None:
    shell = pool(100)
    shell.add(spec("g", 10, device="cuda:0"))
    found = pin_problem(shell.world, "g")
    assert found is not None
    assert "needs device cuda:0" in found[1]


def test_a_model_that_is_not_there_has_no_problem() -> None:
    assert code(pool(100), "nobody") is None


def test_what_is_pinned_and_not_loaded_yet_counts_as_well() -> None:
    shell = pool(100, 60, 30, 20, 500)
    for name in "abd":  # one load at a time: b waits; d can never come, and takes nothing
        shell.send(PinWanted(name, True))
    assert [load.model for load in shell.loads.values()] == ["a"]
    found = pin_problem(shell.world, "c")
    assert found is not None
    assert (found[0], "unpin a, b first" in found[1]) == ("no_space", True)


def test_what_is_pinned_elsewhere_takes_nothing() -> None:
    shell = CoreShell()
    shell.up(cpu=100, cuda_0=100)
    shell.add(spec("g", 60, device="cuda:0"), spec("m", 60, device="cpu"), spec("n", 60, device="cpu"))
    shell.send(PinWanted("g", True))
    shell.work()
    assert code(shell, "m") is None
    shell.send(PinWanted("m", True))
    assert code(shell, "n") == "no_space"
