"""What to load next.

After each event, while an instance may begin a load:
  1. Of the models that wait for a copy take the one with the largest demand.
  2. Plan it. Never fits, or no device: those who wait are refused. Only the user can make room: the same.
  3. It fits: the victims leave; the load begins at once where the space is free, else it is reserved and begins when they have left.
  4. It fits only later: others may go first, unless its longest waiter has waited `starvation_s`: then its devices take no other load.
"""

from __future__ import annotations

from modelpool.core.admission import never_fits_text, no_space_text, note_refusal, refuse_all
from modelpool.core.copies import Copy, CopyState
from modelpool.core.eviction import NO_EVICTION
from modelpool.core.ledger import Device
from modelpool.core.lifecycle import begin_load, leave, release_reservation
from modelpool.core.planner import Plan, Verdict, choose_victims, eligible, plan
from modelpool.core.sizes import need_of
from modelpool.core.state import Failure, InstanceState, ModelState, World
from modelpool.units import format_bytes


def settle(world: World, now: float) -> None:
    """Begin what can begin."""
    _start_reserved(world, now)
    if world.stopping:
        return
    closed: set[str] = set()
    while (instances := _open_instances(world, closed)) and (model := _next(world, now)) is not None:
        if not any(device.instance in instances for device in eligible(world, model)) and eligible(world, model):
            world.stuck.add(model.name)
            continue
        _place(world, model, now, closed)
    _start_reserved(world, now)


def _open_instances(world: World, closed: set[str]) -> set[str]:
    """Instances that may begin a load: fewer than `loads_at_once` going on, and not too many that wait for leases to end."""
    found = set()
    for instance in world.instances.values():
        if not instance.up or instance.recycling or instance.ident in closed:
            continue
        going = sum(1 for d in instance.devices.values() for c in d.copies.values() if c.state is CopyState.LOADING) if _any_loading(instance) else 0
        waiting = sum(len(device.reserved) for device in instance.devices.values())
        draining = waiting and any(_drains(device) for device in instance.devices.values())
        if going < world.settings.loads_at_once and (waiting == 0 or (draining and waiting < world.settings.drains_at_once)):
            found.add(instance.ident)
    return found


def _any_loading(instance: InstanceState) -> bool:
    return any(device.loading_bytes for device in instance.devices.values())


def _drains(device: Device) -> bool:
    return bool(device.reserved) and any(copy.state is CopyState.DRAINING for copy in device.copies.values())


def _next(world: World, now: float) -> ModelState | None:
    """The model with the largest demand of those that are not stuck, reserved or out of favour."""
    best: ModelState | None = None
    best_weight = 0.0
    for model in world.waiting.values():
        if model.name in world.stuck or _has_reservation(world, model.name):
            continue
        if model.failure is not None and now < model.failure.until:
            continue
        weight = model.weight(now, world.settings.starvation_s)
        if best is None or weight > best_weight:
            best, best_weight = model, weight
    return best


def _has_reservation(world: World, name: str) -> bool:
    return any(name in device.reserved for instance in world.instances.values() for device in instance.devices.values())


def _place(world: World, model: ModelState, now: float, closed: set[str]) -> None:
    command = next(iter(model.commands.values()), None)
    wanted = command.device if command is not None and not model.queue else None
    may_evict = bool(model.queue) or model.kept or command is None or any(c.may_evict for c in model.commands.values())
    found = plan(world, model, now, wanted=wanted, may_evict=may_evict)
    match found.verdict:
        case Verdict.FITS:
            _commit(world, model, found, now)
        case Verdict.NEVER:
            _give_up(world, model, "never_fits", never_fits_text(found, model), now)
        case Verdict.NO_SPACE:
            _give_up(world, model, "no_space", no_space_text(world, found, model), now)
        case Verdict.NO_DEVICE:
            _no_device(world, model, wanted, now)
        case Verdict.LATER:
            world.stuck.add(model.name)
            hungry_at = now - model.oldest(now) + world.settings.starvation_s
            if hungry_at > now:
                world.set_timer(hungry_at, "retry", model)
            else:
                closed.update(device.instance for device in eligible(world, model, wanted))


def _no_device(world: World, model: ModelState, wanted: str | None, now: float) -> None:
    coming = any(not instance.up or instance.recycling for instance in world.instances.values())
    if coming or not world.instances:
        world.stuck.add(model.name)
        return
    have = ", ".join(sorted({device.name for device in world.devices()}))
    named = wanted or model.spec.residency.device or " or ".join(model.spec.device_kinds)
    _give_up(world, model, "device_not_found", f"model '{model.name}' needs device {named}; this server has {have}", now)


def _give_up(world: World, model: ModelState, code: str, message: str, now: float) -> None:
    """Nobody can have it; a kept model is tried again when something changed."""
    note_refusal(world, model, code, message, now)
    refuse_all(world, model, code, message, None)
    if model.kept:
        world.stuck.add(model.name)


def _commit(world: World, model: ModelState, found: Plan, now: float) -> None:
    device, need = found.device, found.need
    assert device is not None
    for copy in found.victims:
        _evict(world, copy, f"to make room for '{model.name}'", model, now)
    if device.starts(need) and not found.victims:
        _begin(world, model, device, found, now)
        return
    device.reserved[model.name] = need
    world.note(
        "reserve",
        model.name,
        f"{format_bytes(need.alone)} reserved on {device.name}; loads when {len(found.victims) or 'the'} leaving copies have left",
        device=device.name,
        instance=device.instance,
        victims=[copy.model.name for copy in found.victims],
    )


def _evict(world: World, copy: Copy, why: str, winner: ModelState | None, now: float) -> None:
    model: ModelState = copy.model
    window_s = world.settings.demand_window_min_s
    rate = world.demand.rate(copy.slot, window_s, now)
    idle_s = now - copy.idle_since
    world.note(
        "evict",
        model.name,
        f"{why}: {format_bytes(copy.charge_bytes)}, {f'{copy.leases} leases out' if copy.leases else f'idle {idle_s:.1f} s'}, {rate:.2f} requests/s",
        policy=world.settings.eviction,
        device=copy.device.name,
        instance=copy.instance,
        bytes=copy.charge_bytes,
        idle_s=round(idle_s, 3),
        rate=round(rate, 4),
        winner=winner.name if winner is not None else "",
    )
    leave(world, copy, "space", now)


def _begin(world: World, model: ModelState, device: Device, found: Plan, now: float) -> None:
    need = found.need
    why = f"{len(model.queue)} wait" if model.queue else ("a user asked" if model.commands else "it is kept")
    world.note(
        "load",
        model.name,
        f"{why}; {format_bytes(need.alone)} ({need.source}) on {device.name}, {format_bytes(device.free_bytes())} free",
        device=device.name,
        instance=device.instance,
        need=need.alone,
        source=need.source,
        waiting=len(model.queue),
    )
    begin_load(world, model, device, need, now)


def _start_reserved(world: World, now: float) -> None:
    """Begin loads whose space has come free."""
    for instance in world.instances.values():
        if not instance.up or instance.recycling:
            continue
        for device in instance.devices.values():
            for name in list(device.reserved):
                _start_one(world, instance, device, world.models[name], now)


def _start_one(world: World, instance: InstanceState, device: Device, model: ModelState, now: float) -> None:
    if not model.wanted or world.stopping:
        release_reservation(world, model.name)
        return
    loading = sum(1 for d in instance.devices.values() for copy in d.copies.values() if copy.state is CopyState.LOADING) if _any_loading(instance) else 0
    need = need_of(model, device)
    device.reserved[model.name] = need
    if loading < world.settings.loads_at_once and device.starts(need):
        _begin(world, model, device, Plan(Verdict.FITS, device, need), now)
    elif not any(copy.state in (CopyState.LOADING, CopyState.DRAINING, CopyState.UNLOADING) for copy in device.copies.values()):
        release_reservation(world, model.name)  # nothing is on its way out any more: plan anew


def relieve(world: World, device: Device, now: float, newcomer: Copy | None = None) -> None:
    """The ledger was found over its budget (a measurement, a smaller budget): copies leave until it is not, the newcomer last."""
    for name in list(device.reserved):
        if device.committed_bytes() > device.budget_bytes:
            release_reservation(world, name)
    if device.committed_bytes() <= device.budget_bytes or world.settings.eviction == NO_EVICTION:
        return
    victims = choose_victims(world, device, None, 0.0, now)
    if victims is None:
        victims = tuple(c for c in device.order.values() if not c.model.kept and c is not newcomer and c.model.queue == {} and (c.served or not c.wanted))
    for copy in victims:
        _evict(world, copy, f"{device.name} holds more than its budget", None, now)


def fail(world: World, model: ModelState, code: str, message: str, now: float, *, forever: bool = False) -> None:
    """A load failed: everybody who waits is told, and it is tried again after a growing pause."""
    count = model.failure.count + 1 if model.failure is not None else 1
    pause = min(world.settings.retry_max_s, world.settings.retry_min_s * 2.0 ** (count - 1))
    until = float("inf") if forever else now + pause
    model.failure = Failure(code, message, until, count)
    if not forever:
        world.set_timer(until, "retry", model)
    refuse_all(world, model, code, message, None if forever else pause)
