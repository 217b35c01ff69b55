"""Starting an instance's processes anew: when memory did not come back, or when something in them does not end.

`recycle` drains: requests that run there finish, those that arrive wait. `kill` does not wait for anything. Either way the shell is asked
exactly once for each generation, and answers with `InstanceDown` (or `CopyLost`, for a copy with a process of its own).
"""

from __future__ import annotations

from modelpool.core.actions import Recycle
from modelpool.core.copies import Copy, CopyState
from modelpool.core.lifecycle import hold_back, release_reservation
from modelpool.core.state import InstanceState, World


def recycle(world: World, instance: InstanceState, reason: str, now: float) -> None:
    """Drain an instance, then start its processes anew."""
    if instance.recycling:
        return
    instance.recycling = True
    instance.recycle_reason = reason
    world.note("recycle", "", f"{instance.ident} is drained and started anew: {reason}", instance=instance.ident)
    for device in instance.devices.values():
        for name in list(device.reserved):
            release_reservation(world, name)
        for copy in list(device.copies.values()):
            if copy.state is CopyState.READY:
                hold_back(world, copy, now)
            elif copy.unload_reason == "space":
                copy.unload_reason = "recycle"  # it must not stay after all


def kill(world: World, copy: Copy, reason: str, now: float) -> None:
    """Start the process of a copy anew at once: that of an isolated one is its own, else all of the instance's go."""
    instance = world.instances[copy.instance]
    if not copy.isolated or instance.recycling:
        recycle(world, instance, reason, now)
        if not instance.recycle_sent:
            instance.culprit = copy.model.name
        _send(world, instance)
    elif not copy.killed:
        copy.killed = True
        world.note("recycle", copy.model.name, reason, instance=copy.instance)
        if copy.state is CopyState.READY:
            hold_back(world, copy, now)
        copy.unload_reason = "recycle"
        world.actions.append(Recycle(copy.instance, copy.generation, reason, copy.ident))


def carry_on(world: World) -> None:
    """Start those anew that are idle by now."""
    for instance in world.instances.values():
        if instance.recycling and not any(_busy(copy) for device in instance.devices.values() for copy in device.copies.values()):
            _send(world, instance)


def _busy(copy: Copy) -> bool:
    return bool(copy.leases) or copy.state is CopyState.LOADING


def _send(world: World, instance: InstanceState) -> None:
    if not instance.recycle_sent:
        instance.recycle_sent = True
        world.actions.append(Recycle(instance.ident, instance.generation, instance.recycle_reason))
