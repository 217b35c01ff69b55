"""What to load next.

After each event, while an instance may begin a load:
  1. Of the models that wait for a copy take the one with the largest demand; before all others one whose longest waiter has waited
     `STARVED` times `starvation_s`.
  2. Plan it. Never fits, or no device: those who wait are refused. Only the user can make room: the same.
  3. It fits: the victims leave; the load begins at once where the space is free, else it is reserved and begins when they have left.
  4. It fits only later: others may go first, unless its longest waiter has waited `starvation_s`: then its devices take no other load.
"""

from __future__ import annotations

from collections.abc import Collection

from modelpool.core.admission import (
    STOPPING,
    gather_closures,
    missing_device,
    never_fits_text,
    no_space_text,
    note_refusal,
    refuse_all,
    refuse_commands,
)
from modelpool.core.closures import closure
from modelpool.core.copies import Copy, CopyState
from modelpool.core.eviction import NO_EVICTION
from modelpool.core.ledger import Device, Need
from modelpool.core.lifecycle import begin_load, leave, release_reservation
from modelpool.core.planner import Plan, Reach, Verdict, choose_victims, eligible, kept, plan, unreturned_blocks
from modelpool.core.recycling import recycle
from modelpool.core.sizes import need_of
from modelpool.core.state import Failure, InstanceState, ModelState, World
from modelpool.units import format_bytes

STARVED = 3.0
"""A model whose longest waiter has waited so many times `starvation_s` is loaded before all that have not."""


def settle(world: World, now: float) -> None:
    """Begin what can begin."""
    _start_reserved(world, now)
    if world.stopping:
        for waits in [model for model in world.waiting.values() if model.queue or model.commands]:
            refuse_all(world, waits, *STOPPING)
        for root in [root for root in world.roots.values() if not all(member.covered() for member in closure(world, root)[0])]:
            refuse_all(world, root, *STOPPING)
        return
    gather_closures(world, now)
    while (open_instances := _open_instances(world, now)) and (model := _next(world, now)) is not None:
        devices = eligible(world, model)
        if devices and not any(device.instance in open_instances for device in devices):
            world.stuck.add(model.name)
        else:
            _place(world, model, open_instances, now)
            gather_closures(world, now)  # one that was given up makes way for the next
    _start_reserved(world, now)


def _open_instances(world: World, now: float) -> set[str]:
    """Instances that may begin a load: fewer than `loads_at_once` going on, not too many that wait for leases to end, nobody starving."""
    closed = set().union(*world.hungry.values())
    return {instance.ident for instance in world.instances.values() if instance.ident not in closed and _is_open(world, instance, now)}


def _is_open(world: World, instance: InstanceState, now: float) -> bool:
    if not instance.up or instance.recycling or _loading(instance, now) >= world.settings.loads_at_once:
        return False
    waiting = sum(len(device.reserved) for device in instance.devices.values())
    return waiting == 0 or (waiting < world.settings.drains_at_once and any(_drains(device) for device in instance.devices.values()))


def _loading(instance: InstanceState, now: float) -> int:
    return sum(not copy.loads_slowly(now) for device in instance.devices.values() for copy in device.loading.values())


def _drains(device: Device) -> bool:
    return bool(device.reserved) and any(copy.state is CopyState.DRAINING for copy in device.leaving.values())


def _next(world: World, now: float) -> ModelState | None:
    """The model with the largest demand of those that are not stuck, reserved or out of favour; those that starve before all others."""
    best: ModelState | None = None
    best_rank = (0.0, 0.0)
    for model in world.waiting.values():
        if model.name in world.stuck or _has_reservation(world, model.name):
            continue
        if model.failure is not None and now < model.failure.until:
            continue
        if model.requires and model.needed_by is None and not (model.commands or model.kept):
            continue  # its time to be gathered will come
        if model.spec.steps_first and model.needed_by is not None and not all(member.ready for member in closure(world, model)[0][1:]):
            continue
        waited_s = now - model.waiting_since()
        overdue_s = waited_s if waited_s >= STARVED * world.settings.starvation_s else 0.0
        rank = overdue_s, model.weight(now, world.settings.starvation_s)
        if best is None or rank > best_rank:
            best, best_rank = model, rank
    return best


def _has_reservation(world: World, name: str) -> bool:
    return any(name in device.reserved for instance in world.instances.values() for device in instance.devices.values())


def _place(world: World, model: ModelState, open_instances: set[str], now: float) -> None:
    wanted = next((command.device for command in model.commands.values() if command.device is not None), None)
    by_itself = bool(model.queue) or model.kept or model.needed_by is not None
    may_evict = by_itself or any(command.may_evict for command in model.commands.values())
    found = plan(world, model, now, wanted=wanted, may_evict=may_evict, open_instances=open_instances)
    match found.verdict:
        case Verdict.FITS:
            assert found.device is not None
            if found.device.instance in open_instances:
                _commit(world, model, found.device, found, now)
            else:
                world.stuck.add(model.name)
        case Verdict.NEVER:
            _give_up(world, model, wanted, "never_fits", never_fits_text(found, model), now)
        case Verdict.NO_SPACE:
            _give_up(world, model, wanted, "no_space", no_space_text(world, found, model), now)
        case Verdict.NO_DEVICE:
            if (message := missing_device(world, model, wanted)) is not None:
                _give_up(world, model, wanted, "device_not_found", message, now)
            else:
                world.stuck.add(model.name)
        case _:  # LATER
            world.stuck.add(model.name)
            if may_evict:
                _wait_on(world, model, found, now)


def _wait_on(world: World, model: ModelState, found: Plan, now: float) -> None:
    """Nothing can be done for it now (rule 4). One that starves gets its devices for itself, and the bytes that did not come back."""
    hungry_at = model.waiting_since() + world.settings.starvation_s
    if now < hungry_at:
        world.timers.set(hungry_at, "hungry", model, model.hungry_alarm)
        return
    world.hungry[model.name] = {device.instance for device in eligible(world, model)}
    if found.device is not None and unreturned_blocks(found.device, found.need, model):
        text = f"'{model.name}' waits for {format_bytes(found.device.unreturned_bytes)} that did not come back after unloads"
        recycle(world, world.instances[found.device.instance], text, now)


def _give_up(world: World, model: ModelState, wanted: str | None, code: str, message: str, now: float) -> None:
    """Nobody can have it there; a kept model is tried again when something changed."""
    note_refusal(world, model, code, message, now)
    if wanted is not None:
        refuse_commands(world, model, wanted, code, message)
        return
    refuse_all(world, model, code, message, None)
    if model.kept:
        world.stuck.add(model.name)


def _commit(world: World, model: ModelState, device: Device, found: Plan, now: float) -> None:
    if not found.victims and device.starts(found.need):
        _begin(world, model, device, found.need, now)
        return
    for copy in found.victims:
        _evict(world, copy, f"to make room for '{model.name}'", model, now)
    device.reserved[model.name] = found.need
    world.note(
        "reserve",
        model.name,
        f"{format_bytes(found.need.alone)} reserved on {device.name}; loads when {len(found.victims) or 'the'} leaving copies have left",
        device=device.name,
        instance=device.instance,
        victims=[copy.model.name for copy in found.victims],
    )


def _evict(world: World, copy: Copy, why: str, winner: ModelState | None, now: float) -> None:
    model: ModelState = copy.model
    window_s = world.settings.demand_window_min_s
    rate = world.demand.rate(copy.slot, window_s, now)
    idle_s = now - copy.idle_since
    use = f"{copy.leases} leases out" if copy.leases else f"idle {idle_s:.1f} s"
    world.note(
        "evict",
        model.name,
        f"{why}: {format_bytes(copy.charge_bytes)}, {use}, {rate:.2f} requests/s",
        policy=world.settings.eviction,
        device=copy.device.name,
        instance=copy.instance,
        bytes=copy.charge_bytes,
        idle_s=round(idle_s, 3),
        rate=round(rate, 4),
        winner=winner.name if winner is not None else "",
    )
    leave(world, copy, "space", now)


def _begin(world: World, model: ModelState, device: Device, need: Need, now: float) -> None:
    root = model.needed_by
    gathered = f"'{root.name}' requires it" if root is not None and root is not model else ""
    why = f"{len(model.queue)} wait" if model.queue else ("a user asked" if model.commands else gathered or "it is kept")
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
        for device in instance.devices.values():
            for name in list(device.reserved):
                _start_one(world, instance, device, world.models[name], now)


def _start_one(world: World, instance: InstanceState, device: Device, model: ModelState, now: float) -> None:
    need = device.reserved[model.name]
    starts = device.starts(need)
    if world.stopping or need != need_of(model, device) or not (starts or device.loading or device.leaving):
        release_reservation(world, model.name)  # what it was planned for is no more: plan anew
    elif starts and _loading(instance, now) < world.settings.loads_at_once:
        _begin(world, model, device, need, now)


def relieve(world: World, device: Device, now: float, newcomer: Copy | None = None) -> None:
    """The ledger was found over its budget (a measurement, a smaller budget): copies leave until it is not, the newcomer last."""
    for name in list(device.reserved):
        if not device.fits(None):
            release_reservation(world, name)
    if device.fits(None) or world.settings.eviction == NO_EVICTION:
        return
    for copy in _relief(world, device, newcomer, now):
        _evict(world, copy, f"{device.name} holds more than its budget", None, now)


def _relief(world: World, device: Device, newcomer: Copy | None, now: float) -> Collection[Copy]:
    victims = choose_victims(world, device, None, 0.0, now, reach=Reach.BACKLOGGED, spared=newcomer)
    if victims is not None:
        return victims
    last = [newcomer] if newcomer is not None and newcomer.state is CopyState.READY and not kept(newcomer) else []
    if last and device.fits(None, [copy.ident for copy in last]):
        return last
    return [copy for copy in device.ready if not kept(copy)]


def fail(world: World, model: ModelState, code: str, message: str, now: float, *, forever: bool = False) -> None:
    """A load failed: everybody who waits is told, and it is tried again after a growing pause."""
    count = model.failure.count + 1 if model.failure is not None else 1
    pause = min(world.settings.retry_max_s, world.settings.retry_min_s * 2.0 ** min(count - 1, 32))
    until = float("inf") if forever else now + pause
    model.failure = Failure(code, message, until, count)
    if not forever:
        world.timers.set(until, "retry", model)
    refuse_all(world, model, code, message, None if forever else pause)
