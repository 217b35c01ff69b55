"""How copies begin, become ready, leave and are gone; the ledger, the queues and the commands follow each step here and nowhere else."""

from __future__ import annotations

from modelpool.core.actions import CommandDone, Load, Unload
from modelpool.core.copies import SLOW_LOAD_S, Copy, CopyState
from modelpool.core.ledger import Device, Need
from modelpool.core.state import ModelState, World


def refresh(world: World, model: ModelState) -> None:
    """Keep `ready` and the sets of models that wait for a copy, or for those of others, true."""
    model.ready = [copy for copy in model.copies.values() if copy.state is CopyState.READY]
    if model.requires and model.queue:
        world.roots[model.name] = model
    else:
        world.roots.pop(model.name, None)
    if model.wanted and not model.covered():
        world.waiting[model.name] = model
        return
    world.waiting.pop(model.name, None)
    if model.name in world.hungry:
        world.changed()  # others may load again where this one had kept them out
    release_reservation(world, model.name)


def release_reservation(world: World, name: str) -> None:
    """Give up a load that waited for others to leave; those that only drain for space stay after all."""
    for instance in world.instances.values():
        for device in instance.devices.values():
            if device.reserved.pop(name, None) is not None:
                world.changed()
                revoke_needless(world, device)


def revoke_needless(world: World, device: Device) -> None:
    """Copies that drain for space which nobody needs any more stay, the one used last first."""
    draining = [copy for copy in device.leaving.values() if may_stay(copy)]
    for copy in sorted(draining, key=lambda copy: copy.idle_since, reverse=True):
        if may_stay(copy) and device.committed_bytes() + copy.charge_bytes + copy.run_peak_bytes <= device.budget_bytes:
            stay(world, copy)


def may_stay(copy: Copy) -> bool:
    """Whether a DRAINING copy can be READY again: not where another copy of its model has taken its place."""
    return copy.state is CopyState.DRAINING and copy.unload_reason == "space" and not copy.model.covered()


def begin_load(world: World, model: ModelState, device: Device, need: Need, now: float) -> None:
    """A load begins in space that is free."""
    instance = world.instances[device.instance]
    isolated = instance.keeps_apart(model)
    copy = Copy(world.next_copy, model, instance.ident, instance.generation, device, model.spec.revision, isolated)
    world.next_copy += 1
    copy.state_since = now
    copy.slot = model.row
    world.copies[copy.ident] = model.copies[copy.ident] = copy
    device.reserved.pop(model.name, None)
    device.add_loading(copy, need)
    refresh(world, model)
    world.timers.set(now + world.settings.load_timeout_s, "load", copy)
    if isolated:
        world.timers.set(now + SLOW_LOAD_S, "slow", copy)
    world.actions.append(Load(instance.ident, instance.generation, copy.ident, model.name, copy.revision, device.name, isolated))


def become_ready(world: World, copy: Copy, now: float) -> None:
    """A copy can run."""
    model: ModelState = copy.model
    copy.move(CopyState.READY, now)
    copy.loaded_at = copy.idle_since = now
    copy.device.ready.add(copy)
    set_keep_alive(world, copy, now)
    _answer_commands(world, copy)
    refresh(world, model)


def _answer_commands(world: World, copy: Copy) -> None:
    """Users who wait for a copy of the model have one, or learn that it is elsewhere."""
    model: ModelState = copy.model
    for command in model.commands.values():
        if command.device is None or copy.device.is_called(command.device):
            world.actions.append(CommandDone(command.command, (copy.device.name,)))
        else:
            world.actions.append(CommandDone(command.command, (), "refused", elsewhere_text(copy, command.device)))
    model.commands.clear()


def elsewhere_text(copy: Copy, wanted: str | None) -> str:
    """Why a model is not loaded on the device that a user named."""
    name = copy.model.name
    return f"model '{name}' is on {copy.device.name} and has one copy only; eject it there before you load it on {wanted}"


def set_keep_alive(world: World, copy: Copy, now: float) -> None:
    """Take the model's present keep-alive and arm the timer for it."""
    model: ModelState = copy.model
    named = model.keep_alive_s if model.keep_alive_s is not None else model.spec.residency.keep_alive_s
    copy.keep_alive_s = world.settings.keep_alive_s if named is None else named
    arm_idle(world, copy, max(now, copy.idle_since + copy.keep_alive_s))


def arm_idle(world: World, copy: Copy, at: float) -> None:
    """Look at the copy again at `at`, and not before."""
    copy.idle_due_at = at
    world.timers.set(at, "idle", copy, copy.idle_alarm)


def leave(world: World, copy: Copy, reason: str, now: float) -> None:
    """A copy is to go: at once where it is idle, else when its last lease ends."""
    copy.device.leaves(copy)
    copy.unload_reason = reason
    if copy.leases:
        copy.move(CopyState.DRAINING, now)
    else:
        send_unload(world, copy, now)
    refresh(world, copy.model)


def hold_back(world: World, copy: Copy, now: float) -> None:
    """A READY copy takes no more leases and stays where it is: its process is going to be started anew."""
    copy.device.leaves(copy)
    copy.unload_reason = "recycle"
    copy.move(CopyState.DRAINING, now)
    refresh(world, copy.model)


def send_unload(world: World, copy: Copy, now: float) -> None:
    """Nothing holds a copy that is to go."""
    model: ModelState = copy.model
    copy.move(CopyState.UNLOADING, now)
    if copy.unload_reason == "space":
        model.evicted_at = now
        if now - copy.idle_since < copy.keep_alive_s:
            world.counters.premature_unloads += 1
    world.counters.unloads[model.name, copy.unload_reason] += 1
    world.timers.set(now + world.settings.verify_timeout_s, "unload", copy)
    world.actions.append(Unload(copy.instance, copy.generation, copy.ident, model.name))


def stay(world: World, copy: Copy) -> None:
    """Revoke: a DRAINING copy is READY again."""
    copy.move(CopyState.READY, copy.state_since)
    copy.device.stays(copy)
    copy.unload_reason = ""
    _answer_commands(world, copy)
    world.backlog.append(copy.model)
    refresh(world, copy.model)
    world.note("revoke", copy.model.name, "stays after all: the space is not needed any more", copy=copy.ident)


def gone(world: World, copy: Copy, now: float) -> None:
    """A copy is gone, however that came; its leases hold nothing any more."""
    model: ModelState = copy.model
    copy.device.remove(copy)
    copy.move(CopyState.GONE, now)
    for lease in copy.live:
        lease.live = False
    copy.live.clear()
    copy.leases = 0
    del world.copies[copy.ident]
    del model.copies[copy.ident]
    for eject in list(model.ejects):
        eject.pending.discard(copy.ident)
        if not eject.pending:
            model.ejects.remove(eject)
            world.actions.append(CommandDone(eject.command, eject.devices))
    refresh(world, model)
    world.changed()
