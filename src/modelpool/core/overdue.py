"""What took too long: copies idle for their keep-alive, loads and unloads without an end, leases that outlast `run_limit`."""

from __future__ import annotations

from modelpool.core.copies import Copy, CopyState
from modelpool.core.lifecycle import arm_idle, leave
from modelpool.core.planner import kept
from modelpool.core.recycling import kill, recycle
from modelpool.core.state import World

IDLE_RECHECK_S = 1.0


def idle_due(world: World, copy: Copy, now: float) -> None:
    """A copy may have been idle for its keep-alive."""
    if copy.state not in (CopyState.READY, CopyState.DRAINING):
        return
    due = copy.idle_since + copy.keep_alive_s
    if now < copy.idle_due_at:
        arm_idle(world, copy, copy.idle_due_at)
    elif copy.state is CopyState.DRAINING or copy.leases or copy.model.queue or now < due:
        arm_idle(world, copy, max(due, now + IDLE_RECHECK_S))
    elif kept(copy):
        arm_idle(world, copy, now + max(IDLE_RECHECK_S, copy.keep_alive_s))
    else:
        text = f"idle for {now - copy.idle_since:.0f} s (keep-alive {copy.keep_alive_s:.0f} s)"
        world.note("unload", copy.model.name, text, copy=copy.ident)
        leave(world, copy, "idle", now)


def load_late(world: World, copy: Copy, now: float) -> None:
    """A load takes longer than it may: its process is started anew."""
    if copy.state is CopyState.LOADING:
        text = f"the load of '{copy.model.name}' took longer than load_timeout ({world.settings.load_timeout_s:.0f} s)"
        kill(world, copy, text, now)


def unload_late(world: World, copy: Copy, now: float) -> None:
    """An unload takes longer than it may: its process is started anew, where others use it once they have finished."""
    if copy.state is CopyState.UNLOADING:
        text = f"the unload of '{copy.model.name}' took longer than verify_timeout ({world.settings.verify_timeout_s:.0f} s)"
        if copy.isolated:
            kill(world, copy, text, now)
        else:
            recycle(world, world.instances[copy.instance], text, now)


def sweep_leases(world: World, now: float) -> None:
    """Look for leases that outlast `run_limit`: their process is started anew."""
    for copy in list(world.copies.values()):
        oldest = next(iter(copy.live), None)
        if oldest is not None and now - oldest.started > world.settings.run_limit_s:
            text = f"a request to '{copy.model.name}' ran longer than run_limit ({world.settings.run_limit_s:.0f} s)"
            kill(world, copy, text, now)
    world.timers.set(now + world.settings.run_limit_s / 4, "sweep", None)
