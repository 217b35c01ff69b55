"""Closures: a model and all that it requires (`requires:` of its policy, the steps of an ensemble), leased all or nothing.

1. A request of a model that requires others holds a lease on a copy of each; it waits until all of them are READY and have room.
2. One closure at a time is gathered, that of the largest demand: its members are wanted, and what is there of it is kept, until a first
   request of it has its leases. Two that were gathered at once could each hold what the other needs.
3. Where its members can never be on their devices together, or one of them cannot be had, its requests are refused and told why.
"""

from __future__ import annotations

from modelpool.core.copies import Copy, Lease
from modelpool.core.lifecycle import refresh
from modelpool.core.planner import eligible
from modelpool.core.sizes import need_of
from modelpool.core.state import ModelState, World
from modelpool.units import format_bytes


def closure(world: World, model: ModelState) -> tuple[list[ModelState], str]:
    """The model and all that it requires, directly or not, itself first; and the name of one that is not in the catalogue ('': none)."""
    found = {model.name: model}
    ahead = list(model.requires)
    while ahead:
        name = ahead.pop()
        if name in found:
            continue
        member = world.models.get(name)
        if member is None or member.removed:
            return list(found.values()), name
        found[name] = member
        ahead += member.requires
    return list(found.values()), ""


def lease_closure(world: World, model: ModelState, now: float) -> Lease | None:
    """A lease on a copy of each member (1), that of the model itself with those of the others as its `members`; None where one lacks."""
    members, missing = closure(world, model)
    if missing:
        return None
    copies: list[Copy] = []
    for member in members:
        copy = min(member.ready, key=lambda copy: copy.leases, default=None)
        if copy is None or copy.leases >= world.settings.max_in_flight:
            return None
        copies.append(copy)
    lease, *others = [copy.lease(now) for copy in copies]
    for other in others:
        other.started = float("inf")  # how long it lasts is not this member's doing
    lease.members = tuple(others)
    return lease


def refusal(world: World, model: ModelState, now: float) -> tuple[str, str, float | None] | None:
    """Why no request of the model can have all that it requires (3): code, message, and when to try again."""
    members, missing = closure(world, model)
    if missing:
        return (
            "load_failed",
            f"model '{model.name}' requires '{missing}', which is not in the catalogue; add it, or correct `requires`",
            None,
        )
    for member in members[1:]:
        if (failure := member.failure) is not None and now < failure.until:
            pause = None if failure.until == float("inf") else max(0.1, failure.until - now)
            return failure.code, f"model '{model.name}' requires '{member.name}': {failure.message}", pause
    if (text := _too_large(world, members)) is not None:
        return "never_fits", text, None
    return None


def _too_large(world: World, members: list[ModelState]) -> str | None:
    """What to say where the members can never be resident together."""
    text = None
    for device in world.devices():
        bound = [member for member in members if eligible(world, member) == [device]]
        needs = [need_of(member, device) for member in bound]
        peaks = sorted((need.run_peak for need in needs), reverse=True)
        total = sum(need.charge for need in needs) + sum(peaks[: device.runs_at_once])
        total += max((need.hold - need.charge for need in needs), default=0)
        if total > device.budget_bytes:
            names = ", ".join(f"'{member.name}' {format_bytes(need.charge)}" for member, need in zip(bound, needs, strict=True))
            text = (
                f"model '{members[0].name}' can never run on {device.name} together with what it requires: {names} need "
                f"{format_bytes(total)} and the budget is {format_bytes(device.budget_bytes)}; give the device more "
                f"(--device {device.name}=SIZE)"
            )
    return text


# --- one at a time -------------------------------------------------------------------------------------------------------------
def gather(world: World, now: float) -> ModelState | None:
    """See that a closure is gathered where one is waited for (2). Returns a model whose waiters must be refused instead, if any."""
    if world.gathered and (not world.gathered[0].queue or world.stopping):
        end_gathering(world)
    if world.gathered or world.stopping:
        return None
    incomplete = [root for root in world.roots.values() if not all(member.ready for member in closure(world, root)[0])]
    if not incomplete:
        return None
    root = max(incomplete, key=lambda root: root.weight(now, world.settings.starvation_s))
    if refusal(world, root, now) is not None:
        return root
    world.gathered, _ = closure(world, root)
    for member in world.gathered:
        member.needed_by = root
        world.unstick(member.name)
        refresh(world, member)
    others = ", ".join(member.name for member in world.gathered[1:])
    world.note("gather", root.name, f"with what it requires: {others}", waiting=len(root.queue))
    return None


def end_gathering(world: World) -> None:
    """The closure that was gathered is not gathered any more: it has its leases, nobody waits for it, or the catalogue changed."""
    members, world.gathered = world.gathered, []
    for member in members:
        member.needed_by = None
        refresh(world, member)
    if members:
        world.changed()
