"""Measurements: what an instance really holds against what it was charged for."""

from __future__ import annotations

from dataclasses import replace

from modelpool.core.copies import Copy, CopyState
from modelpool.core.events import BudgetChanged, Observed, Unloaded
from modelpool.core.ledger import Device
from modelpool.core.lifecycle import leave
from modelpool.core.recycling import recycle
from modelpool.core.scheduling import relieve
from modelpool.core.sizes import need_of
from modelpool.core.state import InstanceState, ModelState, World
from modelpool.units import format_bytes


def observed(world: World, event: Observed, now: float) -> None:
    """A measurement: run peaks that were larger than known, and whether bytes came back meanwhile."""
    instance = world.current(event.instance, event.generation)
    if instance is None:
        return
    for ident, peak_bytes in event.run_peaks:
        if (copy := world.copies.get(ident)) is not None and copy.instance == instance.ident:
            _learn_run_peak(world, copy, peak_bytes, now)
    verify(world, instance, event, now)


def _learn_run_peak(world: World, copy: Copy, peak_bytes: int, now: float) -> None:
    model: ModelState = copy.model
    kind = copy.device.kind
    old = model.learned.get(kind)
    if old is None or peak_bytes <= old.run_peak_bytes or copy.revision != model.spec.revision:
        return
    model.learned[kind] = world.learned_changes[model.name, kind] = replace(old, run_peak_bytes=peak_bytes)
    copy.device.set_run_peak(copy, need_of(model, copy.device).run_peak)
    world.changed()
    relieve(world, copy.device, now)


SLACK_SHARE = 25
"""Of a small budget, only so large a part is let pass: 4 %."""


def verify(world: World, instance: InstanceState, event: Observed | Unloaded, now: float) -> None:
    """Compare the private bytes of an instance's processes with what its `cpu` device was charged for each of them.

    What they hold beyond that, and a slack, is not given away. Beyond `unreturned_limit_bytes` the process is started anew, and no other
    one: that of a single copy by unloading it. Only while nothing loads there: a load in progress is not yet what it will be.
    """
    device = instance.devices.get("cpu")
    if device is None or instance.recycling or (event.total_bytes is None and event.unclaimed_bytes is None):
        return
    if any(not copy.isolated for other in instance.devices.values() for copy in other.loading.values()):
        return
    slack = min(world.settings.verify_slack_bytes, device.budget_bytes // SLACK_SHARE)
    limit = world.settings.unreturned_limit_bytes
    isolated = [copy for copy in device.copies.values() if copy.isolated]
    shared_excess = max(0, _unclaimed(device, event) - slack)
    found = dict(event.own_bytes)
    # One that is loading is not held by the instance so far, and so has no figure.
    grown = {copy: max(0, found.get(copy.ident, 0) - copy.charge_bytes - copy.run_peak_bytes - slack) for copy in isolated}
    excess = shared_excess + sum(grown.values())
    if excess > device.unreturned_bytes + slack:
        world.note("unreturned", "", f"{instance.ident} cpu holds {format_bytes(excess)} more than it was charged for", bytes=excess)
    if excess != device.unreturned_bytes:
        device.unreturned_bytes = excess
        world.changed()
    if shared_excess > limit:
        recycle(world, instance, f"{format_bytes(shared_excess)} did not come back after unloads", now)
        return
    leaks = [copy for copy, bytes_over in grown.items() if bytes_over > limit and copy.state is not CopyState.LOADING]
    for copy in leaks:
        if copy.state is CopyState.READY:
            text = f"its process holds {format_bytes(grown[copy])} more than it was charged for"
            world.note("unload", copy.model.name, text, copy=copy.ident)
            leave(world, copy, "grown", now)
    if not leaks:  # what they hold comes back with their processes; nobody else has to leave for it
        relieve(world, device, now)


def _unclaimed(device: Device, event: Observed | Unloaded) -> int:
    """Private bytes of the shared process that no copy was charged for."""
    if event.unclaimed_bytes is not None:
        return event.unclaimed_bytes
    assert event.total_bytes is not None
    shared_bytes = device.resident_bytes - sum(copy.charge_bytes for copy in device.copies.values() if copy.isolated)
    return event.total_bytes - shared_bytes - device.scratch_bytes()


def budget_changed(world: World, event: BudgetChanged, now: float) -> None:
    """A device may hold more or less than before."""
    instance = world.current(event.instance, event.generation)
    if instance is None or (device := instance.devices.get(event.device)) is None:
        return
    device.budget_bytes = event.budget_bytes
    world.note("budget", "", f"{instance.ident} {device.name}: {format_bytes(event.budget_bytes)}", bytes=event.budget_bytes)
    world.changed()
    relieve(world, device, now)
