"""Plan, then commit: which device a model goes to, and the whole set of copies that must leave for it.

For one device:
  1. A need larger than the budget never fits.
  2. Nothing leaves where the need fits what is committed already.
  3. Candidates are READY copies that are not pinned, gathered or kept by `min_copies`, and whose model's queue is empty, in the
     policy's order. Those with leases drain: to wait for a run costs less than to load a model of more worth again. Whoever a copy was
     loaded for has a lease from the moment that it is READY, or waits in its queue, and so is served before it leaves.
  4. With `preference: throughput` those with leases may go only once the longest waiter has waited `starvation_s`. Then, whatever the
     preference, copies with a queue follow too: one that is never idle cannot starve the others.
  5. When there is enough room, victims that turn out not to be needed stay, those of most worth first.
Among devices: one that needs no victims, with the most room left; else the one whose victims are fewest bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from modelpool.core.copies import Copy
from modelpool.core.eviction import NO_EVICTION, POLICIES, EvictionContext
from modelpool.core.ledger import Device, Need
from modelpool.core.sizes import load_time_s, need_of
from modelpool.core.state import InstanceState, ModelState, World


class Verdict(Enum):
    """What a plan came to."""

    FITS = "fits"
    LATER = "later"  # nothing feasible now; a lease, a first completion or a timer will change that
    NO_SPACE = "no space"  # only the user can change that: pinned models, or policy `none`
    NEVER = "never"  # larger than the budget
    NO_DEVICE = "no device"


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan for one device. victims: copies that leave, least worth first; short_bytes: what lacks where it does not fit."""

    verdict: Verdict
    device: Device | None
    need: Need
    victims: tuple[Copy, ...] = ()
    short_bytes: int = 0


class Reach(Enum):
    """How far down the rules 3 and 4 a plan may go."""

    IDLE = 1
    LEASED = 2
    BACKLOGGED = 3


def kept(copy: Copy) -> bool:
    """Whether a copy stays whatever others need: its model is pinned, is gathered, or has no more copies than it must have."""
    model: ModelState = copy.model
    return model.pinned or model.needed_by is not None or len(model.ready) <= model.spec.residency.min_copies


def in_order(world: World, device: Device, load_s: float, now: float, reach: Reach = Reach.BACKLOGGED) -> Iterator[Copy]:
    """The copies of a device that may be chosen, in the order in which they would be: the policy's, then those with a queue.

    The policy orders all copies at once; which of them may go is looked at one by one, since few are needed.
    """
    policy = POLICIES[world.settings.eviction]
    backlogged: list[Copy] = []
    for copy in policy(device.ready, EvictionContext(now, world.demand, world.settings, load_s)):
        if kept(copy):
            continue
        if copy.model.queue:
            backlogged.append(copy)
        elif not copy.leases or reach is not Reach.IDLE:
            yield copy
    if reach is Reach.BACKLOGGED:
        yield from backlogged


def _reach(world: World, model: ModelState, now: float) -> Reach:
    if now >= model.waiting_since() + world.settings.starvation_s:
        return Reach.BACKLOGGED
    return Reach.LEASED if world.settings.preference == "latency" else Reach.IDLE


def choose_victims(
    world: World,
    device: Device,
    need: Need | None,
    load_s: float,
    now: float,
    *,
    model: str = "",
    reach: Reach = Reach.LEASED,
    spared: Copy | None = None,
) -> tuple[Copy, ...] | None:
    """The copies, but for `spared`, that must leave so that `need` (None: what is there now) fits; None where no set would do."""
    excess = device.committed_bytes(need, model=model) - device.budget_bytes
    chosen: dict[int, Copy] = {}
    scratch = device.scratch_bytes()
    freed = 0
    for copy in in_order(world, device, load_s, now, reach):
        if copy is spared:
            continue
        chosen[copy.ident] = copy
        freed += copy.charge_bytes
        if freed + scratch >= excess and device.fits(need, chosen, model):
            break
    else:
        return None
    needed = set(chosen)
    for ident in list(chosen)[-2::-1]:  # rule 5; the last one chosen was needed
        needed.remove(ident)
        if not device.fits(need, needed, model):
            needed.add(ident)
    return tuple(copy for ident, copy in chosen.items() if ident in needed)


def plan_on(world: World, model: ModelState, device: Device, now: float, *, may_evict: bool = True) -> Plan:
    """The plan for one device."""
    need = need_of(model, device)
    if need.alone > device.budget_bytes:  # 1
        return Plan(Verdict.NEVER, device, need, short_bytes=need.alone - device.budget_bytes)
    short = device.committed_bytes(need, model=model.name) - device.budget_bytes
    if short <= 0:  # 2
        return Plan(Verdict.FITS, device, need)
    if world.settings.eviction == NO_EVICTION or not may_evict:
        passing = device.loading or device.reserved  # a hold shrinks to a charge when its load is done
        return Plan(Verdict.LATER if passing else Verdict.NO_SPACE, device, need, short_bytes=short)
    victims = choose_victims(world, device, need, load_time_s(model, device.kind), now, model=model.name, reach=_reach(world, model, now))
    if victims is not None:
        return Plan(Verdict.FITS, device, need, victims)
    return Plan(Verdict.NO_SPACE if _only_kept_left(device, need, model) else Verdict.LATER, device, need, short_bytes=short)


def _only_kept_left(device: Device, need: Need, model: ModelState) -> bool:
    """Whether pinned and kept copies alone are in the way, so that waiting does not help."""
    if device.loading or device.reserved:
        return False
    return _least_bytes(device, need, model) - device.unreturned_bytes > device.budget_bytes


def unreturned_blocks(device: Device, need: Need, model: ModelState) -> bool:
    """Whether bytes that did not come back after unloads keep a model out, though everything that may leave left."""
    return device.unreturned_bytes > 0 and _least_bytes(device, need, model) > device.budget_bytes


def _least_bytes(device: Device, need: Need, model: ModelState) -> int:
    """What would be committed if everything that may ever leave for the model had left."""
    return device.committed_bytes(need, [copy.ident for copy in device.ready if not kept(copy)], model.name)


def _may_take(instance: InstanceState, model: ModelState) -> bool:
    return not instance.recycling and instance.runs(model.spec)


def eligible(world: World, model: ModelState, wanted: str | None = None) -> list[Device]:
    """Devices that the model may use: of its kinds (the preferred kind that exists), or the one its policy or the user names."""
    named = wanted or model.spec.residency.device
    devices = [device for device in world.devices() if _may_take(world.instances[device.instance], model)]
    if named is not None:
        return [device for device in devices if device.is_called(named)]
    for kind in model.spec.device_kinds:
        if found := [device for device in devices if device.kind == kind]:
            return found
    return []


def never_fits(world: World, model: ModelState) -> Plan | None:
    """The plan that says so where the model is larger than each device it may use; else None."""
    found: Plan | None = None
    for device in eligible(world, model):
        need = need_of(model, device)
        if need.alone <= device.budget_bytes:
            return None
        found = Plan(Verdict.NEVER, device, need, short_bytes=need.alone - device.budget_bytes)
    return found


def plan(
    world: World,
    model: ModelState,
    now: float,
    *,
    wanted: str | None = None,
    may_evict: bool = True,
    open_instances: Collection[str] | None = None,
) -> Plan:
    """The best plan over the model's devices; where it fits on several, on one of `open_instances` (None: all) if it can."""
    plans = [plan_on(world, model, device, now, may_evict=may_evict) for device in eligible(world, model, wanted)]
    if not plans:
        return Plan(Verdict.NO_DEVICE, None, Need(0, 0, 0, "estimate"))
    order = (Verdict.FITS, Verdict.LATER, Verdict.NO_SPACE, Verdict.NEVER)

    def rank(found: Plan) -> tuple[int, bool, int, int]:
        assert found.device is not None
        closed = open_instances is not None and found.device.instance not in open_instances
        lost = sum(copy.charge_bytes for copy in found.victims)
        return order.index(found.verdict), closed, lost, -found.device.free_bytes()

    return min(plans, key=rank)
