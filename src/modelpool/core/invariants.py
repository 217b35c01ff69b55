"""What must hold after each event. `check` raises AssertionError with the invariant's name; tests and the simulator call it at each step.

1  sums         the ledger's sums and sets equal what its copies say; models, devices and the world list the same copies
2  budget       neither `used` nor `committed` exceeds the budget by a decision (only where a measurement or a new budget said so), and
                nothing is reserved on a device that is over
3  leases       only READY and DRAINING copies have leases, and their count is that of the live lease objects
4  single       no two copies of a model LOADING or READY on one device; no model reserved twice, or both reserved and covered
5  waiters      whoever waits has a copy on its way, a reservation, or is in `waiting`; nobody waits for a READY copy that has room
6  progress     while nothing is in motion nobody waits, but for one whose time to be hungry is still to come
7  bound        no queue is longer than `queue_bound`
8  pinned       a pinned model's copy never drains for space or idleness, unless another has taken its place
9  dead         an instance that is down, or about to be started anew, has no READY copies and no reservations; one that is down no copies
10 removed      a model that left the catalogue has no waiters and no READY copy, and goes with its last copy
11 loads        no instance has more than `loads_at_once` loads in progress that share a process
12 closures     who requires others and waits is listed; at most one closure is gathered, and somebody waits for it
"""

from __future__ import annotations

from modelpool.core.closures import closure
from modelpool.core.copies import Copy, CopyState
from modelpool.core.core import Core
from modelpool.core.ledger import Device
from modelpool.core.state import InstanceState, ModelState, World

RESIDENT = (CopyState.READY, CopyState.DRAINING, CopyState.UNLOADING)
COVERING = (CopyState.LOADING, CopyState.READY)
LEAVING = (CopyState.DRAINING, CopyState.UNLOADING)


def check(core: Core, *, overrun_bytes: int = 0) -> None:
    """Check all invariants. overrun_bytes: how far measurements alone may have pushed a device over its budget."""
    world = core.world
    for instance in world.instances.values():
        _check_instance(world, instance)
        for device in instance.devices.values():
            _check_sums(device)
            _check_budget(device, overrun_bytes)
    for copy in world.copies.values():
        _check_copy(world, copy)
    for model in world.models.values():
        _check_model(world, model)
    _check_lists(world)
    _check_progress(world)


def _check_instance(world: World, instance: InstanceState) -> None:
    devices = instance.devices.values()
    if not instance.up or instance.recycling:
        assert not any(len(device.ready) for device in devices), f"dead: {instance.ident} has READY copies"
        assert not any(device.reserved for device in devices), f"dead: {instance.ident} has reservations"
    if not instance.up:
        assert not any(device.copies for device in devices), f"dead: {instance.ident} is down and holds copies"
        assert not instance.recycling, f"dead: {instance.ident} is down and about to be started anew"
    loading = sum(not copy.isolated for device in devices for copy in device.loading.values())
    assert loading <= world.settings.loads_at_once, f"loads: {instance.ident} loads {loading} copies at once"


def _check_sums(device: Device) -> None:
    copies = list(device.copies.values())
    for states, listed, listed_bytes in (
        ((CopyState.LOADING,), device.loading, device.loading_bytes),
        (LEAVING, device.leaving, device.leaving_bytes),
        (RESIDENT, None, device.resident_bytes),
        ((CopyState.READY,), {copy.ident: copy for copy in device.ready}, None),
    ):
        found = {copy.ident: copy for copy in copies if copy.state in states}
        assert listed is None or dict(listed) == found, f"sums: {device.name} lists {sorted(listed)}, not {sorted(found)}"
        total = sum(copy.charge_bytes for copy in found.values())
        assert listed_bytes is None or listed_bytes == total, f"sums: {device.name} counts {listed_bytes}, not {total}"
    assert all(peak >= 0 for peak, _ in device.peaks), f"sums: a run peak of {device.name} is below 0"
    assert device.peaks == sorted((copy.run_peak_bytes, copy.ident) for copy in copies), f"sums: run peaks of {device.name}"


def _check_budget(device: Device, overrun_bytes: int) -> None:
    limit = device.budget_bytes + overrun_bytes
    assert device.used_bytes() <= limit, f"budget: {device.name} uses {device.used_bytes()} of {limit}"
    assert device.committed_bytes() <= limit, f"budget: {device.name} has {device.committed_bytes()} of {limit} committed"
    if device.reserved:
        assert device.fits(None), f"budget: {device.name} is over and has reservations for {sorted(device.reserved)}"


def _check_copy(world: World, copy: Copy) -> None:
    instance = world.instances[copy.instance]
    assert instance.generation == copy.generation, f"dead: copy {copy.ident} outlived its generation"
    assert instance.devices[copy.device.name].copies.get(copy.ident) is copy, f"sums: copy {copy.ident} is not on its device"
    assert world.models[copy.model.name].copies.get(copy.ident) is copy, f"sums: copy {copy.ident} is not its model's"
    assert copy.leases == len(copy.live), f"leases: copy {copy.ident} counts {copy.leases}, {len(copy.live)} live"
    assert all(lease.live and lease.copy is copy for lease in copy.live), f"leases: copy {copy.ident} has a lease that is over"
    if copy.leases:
        assert copy.state in (CopyState.READY, CopyState.DRAINING), f"leases: copy {copy.ident} is {copy.state.value} with {copy.leases}"
    assert copy.leases <= world.settings.max_in_flight, f"bound: copy {copy.ident} has {copy.leases} leases"
    if copy.model.pinned and copy.state is CopyState.DRAINING and not copy.model.covered():
        assert copy.unload_reason not in ("space", "idle"), f"pinned: {copy.model.name} drains for {copy.unload_reason}"


def _check_model(world: World, model: ModelState) -> None:
    name = model.name
    places = [(copy.instance, copy.device.name) for copy in model.copies.values() if copy.state in COVERING]
    assert len(places) == len(set(places)), f"single: {name} is twice on one of {places}"
    reserved = [device for device in world.devices() if name in device.reserved]
    assert len(reserved) <= 1, f"single: {name} is reserved {len(reserved)} times"
    assert not (reserved and places), f"single: {name} is reserved and has a copy"
    ready = [copy for copy in model.copies.values() if copy.state is CopyState.READY]
    assert model.ready == ready, f"waiters: ready list of {name}"
    assert len(model.queue) <= world.settings.queue_bound, f"bound: {len(model.queue)} wait for {name}"
    waits = bool(model.queue or model.commands or model.kept or model.needed_by is not None)
    assert (name in world.waiting) == (waits and not places), f"waiters: {name} waits: {waits}, has copies on {places}"
    assert name not in world.waiting or world.waiting[name] is model, f"waiters: {name} is another"
    assert not model.commands or not ready, f"waiters: commands wait for {name}, which is ready"
    assert not model.queue or not _has_room(world, model), f"waiters: {len(model.queue)} wait for {name}, which has room"
    assert (name in world.roots) == bool(model.requires and model.queue), f"closures: {name} among those that wait for others"
    assert (model.needed_by is not None) == (model in world.gathered), f"closures: {name} among those that are gathered"
    expected = sum(waiter.arrived for waiter in model.queue.values())
    assert abs(model.queue_arrived - expected) < 1e-3 * (1 + abs(expected)), f"waiters: arrival sum of {name}"
    if model.removed:
        assert model.copies, f"removed: {name} is still known"
        assert not waits, f"removed: {name} has waiters"
        assert not ready, f"removed: {name} has a READY copy"


def _has_room(world: World, model: ModelState) -> bool:
    """Whether a request of the model could run: all that it requires is READY too."""
    members, missing = closure(world, model)
    most = world.settings.max_in_flight
    return not missing and all(any(copy.leases < most for copy in member.ready) for member in members)


def _check_lists(world: World) -> None:
    assert set(world.waiting) <= set(world.models), "waiters: somebody waits for a model that is no more"
    assert set(world.hungry) <= set(world.waiting), "waiters: a model is hungry that waits for nothing"
    assert not world.gathered or world.gathered[0].queue, "closures: nobody waits for what is gathered"
    on_devices = {ident for instance in world.instances.values() for device in instance.devices.values() for ident in device.copies}
    of_models = {ident for model in world.models.values() for ident in model.copies}
    assert on_devices == of_models == set(world.copies), "sums: the lists of copies differ"


def _check_progress(world: World) -> None:
    """Whatever is in motion ends, and whoever waits is looked at again then; where nothing is, nobody may wait."""
    if not world.instances or any(not instance.up or instance.recycling for instance in world.instances.values()):
        return
    if any(copy.leases or copy.state is not CopyState.READY for copy in world.copies.values()):
        return
    pending = any(model.hungry_alarm.at < float("inf") for model in world.waiting.values())
    for model in [*world.waiting.values(), *world.roots.values()]:
        alarmed = model.hungry_alarm.at < float("inf") or (pending and bool(world.roots))
        assert alarmed or not (model.queue or model.commands), f"progress: somebody waits for {model.name} and nothing is in motion"
