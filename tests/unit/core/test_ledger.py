"""The sums over one device."""

from __future__ import annotations

from modelpool.core.copies import Copy, CopyState
from modelpool.core.ledger import Device, Need


class _Model:
    name = "m"


def _device(budget_bytes: int = 100, runs_at_once: int = 1) -> Device:
    return Device("local", "cuda:0", budget_bytes, runs_at_once)


def _copy(device: Device, ident: int) -> Copy:
    return Copy(ident, _Model(), "local", 1, device, "1", False)


def _ready(device: Device, ident: int, charge: int, run_peak: int = 0) -> Copy:
    copy = _copy(device, ident)
    device.add_loading(copy, Need(charge, charge, run_peak, "user"))
    device.loaded(copy, charge)
    copy.move(CopyState.READY, 0.0)
    device.ready.add(copy)
    return copy


def test_a_need_holds_its_load_peak_less_what_counts_as_scratch() -> None:
    need = Need(charge=40, load_peak=70, run_peak=20, source="measured")
    assert need.hold == 50
    assert need.alone == 70
    assert Need(charge=40, load_peak=50, run_peak=20, source="measured").hold == 40


def test_a_device_has_the_kind_that_its_name_begins_with() -> None:
    assert _device().kind == "cuda"


def test_a_load_holds_its_peak_and_then_its_charge() -> None:
    device = _device()
    copy = _copy(device, 1)
    device.add_loading(copy, Need(30, 50, 5, "estimate"))
    assert device.loading_bytes == 45
    assert device.used_bytes() == 50
    device.loaded(copy, 30)
    assert device.loading_bytes == 0
    assert device.resident_bytes == 30
    assert device.free_bytes() == 65


def test_scratch_is_the_largest_run_peaks_that_can_coincide() -> None:
    device = _device(runs_at_once=2)
    for ident, peak in enumerate((5, 30, 20)):
        _ready(device, ident, 10, peak)
    assert device.scratch_bytes() == 50
    device.set_run_peak(device.copies[1], 1)
    assert device.scratch_bytes() == 25


def test_what_leaves_is_used_but_not_committed() -> None:
    device = _device()
    leaving = _ready(device, 1, 60)
    device.leaves(leaving)
    assert device.used_bytes() == 60
    assert device.committed_bytes() == 0
    assert device.fits(Need(70, 70, 0, "user"))
    assert not device.starts(Need(70, 70, 0, "user"))
    assert leaving not in device.ready
    device.stays(leaving)
    assert device.committed_bytes() == 60
    assert leaving in device.ready


def test_run_peaks_of_what_leaves_are_not_committed() -> None:
    device = _device()
    leaving = _ready(device, 1, 10, run_peak=50)
    _ready(device, 2, 10, run_peak=5)
    assert device.committed_bytes() == 70
    assert device.committed_bytes(without=[1]) == 15
    device.leaves(leaving)
    assert device.committed_bytes() == 15


def test_a_reservation_counts_for_all_but_its_own_model() -> None:
    device = _device()
    device.reserved["a"] = Need(60, 60, 10, "user")
    assert device.committed_bytes() == 70
    assert device.committed_bytes(Need(60, 60, 10, "user"), model="a") == 70
    assert not device.fits(Need(40, 40, 0, "user"), model="b")


def test_bytes_that_did_not_come_back_are_used() -> None:
    device = _device()
    device.unreturned_bytes = 40
    assert device.free_bytes() == 60
    assert not device.starts(Need(61, 61, 0, "user"))


def test_free_bytes_are_never_below_nothing() -> None:
    device = _device(10)
    device.add_held(_copy(device, 1), 30, 5)
    assert device.used_bytes() == 35
    assert device.free_bytes() == 0


def test_a_copy_takes_its_bytes_along_from_whatever_state() -> None:
    device = _device()
    loading = _copy(device, 1)
    device.add_loading(loading, Need(10, 20, 5, "estimate"))
    device.remove(loading)
    leaving = _ready(device, 2, 30)
    device.leaves(leaving)
    device.remove(leaving)
    device.remove(_ready(device, 3, 30, 9))
    assert (device.resident_bytes, device.loading_bytes, device.leaving_bytes, device.used_bytes()) == (0, 0, 0, 0)
    assert not device.copies
    assert not device.peaks
