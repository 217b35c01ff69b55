"""Timers and alarms."""

from __future__ import annotations

from modelpool.core.timers import Alarm, Timers


def drain(timers: Timers, now: float) -> list[object]:
    """What has come by now."""
    found = []
    while (due := timers.due(now)) is not None:
        found.append(due[1])
    return found


def test_timers_come_in_order_and_not_before_their_time() -> None:
    timers = Timers()
    for at in (3.0, 1.0, 2.0):
        timers.set(at, "test", at)
    assert timers.next() == 1.0
    assert drain(timers, 0.9) == []
    assert drain(timers, 2.0) == [1.0, 2.0]
    assert timers.next() == 3.0


def test_never_is_no_timer() -> None:
    timers = Timers()
    timers.set(float("inf"), "test", None)
    assert len(timers) == 0
    assert timers.next() == float("inf")


def test_an_alarm_goes_off_at_its_earliest_time_only() -> None:
    timers, alarm = Timers(), Alarm()
    timers.set(5.0, "test", "late", alarm)
    timers.set(7.0, "test", "later", alarm)
    timers.set(2.0, "test", "early", alarm)
    assert drain(timers, 10.0) == ["early"]


def test_an_alarm_that_went_off_can_be_set_again() -> None:
    timers, alarm = Timers(), Alarm()
    timers.set(2.0, "test", "first", alarm)
    assert drain(timers, 3.0) == ["first"]
    timers.set(9.0, "test", "second", alarm)
    assert alarm.at == 9.0
    assert drain(timers, 9.0) == ["second"]
