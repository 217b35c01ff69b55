"""What must hold after each event. `check` raises AssertionError with the invariant's name; tests and the simulator call it after each step.

1  sums         the ledger's sums equal what its copies say
2  budget       neither `used` nor `committed` exceeds the budget by a decision (only where a measurement or a new budget said so)
3  leases       only READY and DRAINING copies have leases, and their count is that of the live lease objects
4  single       no two copies of a model LOADING or READY on one device; no model both reserved and loading
5  waiters      whoever waits has a copy on its way, a reservation, or is in `waiting`; nobody waits for a READY copy that has room
6  bound        no queue is longer than `queue_bound`
7  pinned       a pinned model's copy is never on its way out for space or idleness
8  dead         an instance that is down holds no copies and no reservations
9  order        `order` holds exactly the READY copies of its device
"""

from __future__ import annotations

from modelpool.core.copies import Copy, CopyState
from modelpool.core.core import Core
from modelpool.core.ledger import Device
from modelpool.core.state import ModelState, World

RESIDENT = (CopyState.READY, CopyState.DRAINING, CopyState.UNLOADING)


def check(core: Core, *, overrun_bytes: int = 0) -> None:
    """Check all invariants. overrun_bytes: how far measurements alone may have pushed a device over its budget."""
    world = core.world
    for instance in world.instances.values():
        for device in instance.devices.values():
            _check_sums(device)
            _check_budget(world, device, overrun_bytes)
            if not instance.up:
                assert not device.copies, f"dead: {instance.ident} is down and holds {len(device.copies)} copies"
                assert not device.reserved, f"dead: {instance.ident} is down and has reservations"
    for copy in world.copies.values():
        _check_copy(copy)
    for model in world.models.values():
        _check_model(world, model)


def _check_sums(device: Device) -> None:
    copies = list(device.copies.values())
    resident = sum(copy.charge_bytes for copy in copies if copy.state in RESIDENT)
    loading = sum(copy.charge_bytes for copy in copies if copy.state is CopyState.LOADING)
    leaving = sum(copy.charge_bytes for copy in copies if copy.state in (CopyState.DRAINING, CopyState.UNLOADING))
    assert device.resident_bytes == resident, f"sums: resident {device.resident_bytes} != {resident}"
    assert device.loading_bytes == loading, f"sums: loading {device.loading_bytes} != {loading}"
    assert device.leaving_bytes == leaving, f"sums: leaving {device.leaving_bytes} != {leaving}"
    assert device.peaks == sorted((copy.run_peak_bytes, copy.ident) for copy in copies), "sums: peaks"
    assert set(device.order) == {copy.ident for copy in copies if copy.state is CopyState.READY}, "order: not the READY copies"


def _check_budget(world: World, device: Device, overrun_bytes: int) -> None:
    limit = device.budget_bytes + overrun_bytes
    assert device.used_bytes() <= limit, f"budget: {device.name} uses {device.used_bytes()} of {limit}"
    assert device.committed_bytes() <= limit, f"budget: {device.name} has {device.committed_bytes()} of {limit} committed"


def _check_copy(copy: Copy) -> None:
    assert copy.leases == len(copy.live), f"leases: copy {copy.ident} counts {copy.leases}, {len(copy.live)} live"
    if copy.leases:
        assert copy.state in (CopyState.READY, CopyState.DRAINING), f"leases: copy {copy.ident} is {copy.state.value} with {copy.leases}"
    if copy.model.pinned and copy.state is CopyState.DRAINING:
        assert copy.unload_reason not in ("space", "idle"), f"pinned: {copy.model.name} drains for {copy.unload_reason}"


def _check_model(world: World, model: ModelState) -> None:
    held: set[tuple[str, str]] = set()
    for copy in model.copies.values():
        if copy.state in (CopyState.LOADING, CopyState.READY):
            place = (copy.instance, copy.device.name)
            assert place not in held, f"single: two copies of {model.name} on {place}"
            held.add(place)
    reserved = [d for i in world.instances.values() for d in i.devices.values() if model.name in d.reserved]
    assert len(reserved) <= 1, f"single: {model.name} is reserved {len(reserved)} times"
    assert not (reserved and model.covered()), f"single: {model.name} is reserved and has a copy"
    assert set(model.ready) == {c for c in model.copies.values() if c.state is CopyState.READY}, f"waiters: ready list of {model.name}"
    assert len(model.queue) <= world.settings.queue_bound, f"bound: {len(model.queue)} wait for {model.name}"
    if model.queue or model.commands:
        assert model.covered() or model.name in world.waiting, f"waiters: {model.name} has waiters and nothing on its way"
    if model.queue and model.ready:
        room = [copy for copy in model.ready if copy.leases < world.settings.max_in_flight]
        assert not room, f"waiters: {len(model.queue)} wait for {model.name}, which has room"
    expected = sum(waiter.arrived for waiter in model.queue.values())
    assert abs(model.queue_arrived - expected) < 1e-3 * (1 + abs(expected)), f"waiters: arrival sum of {model.name}"
