"""Why a model is where it is, and what it would take to bring it in: sentences for people. Looks, and changes nothing."""

from __future__ import annotations

from modelpool.core.admission import missing_device, never_fits_text, no_space_text
from modelpool.core.copies import Copy, CopyState
from modelpool.core.core import Core
from modelpool.core.eviction import NO_EVICTION
from modelpool.core.inspect import model_state
from modelpool.core.ledger import Need
from modelpool.core.planner import Plan, Verdict, in_order, kept, plan
from modelpool.core.sizes import load_time_s, need_of
from modelpool.core.state import ModelState, World
from modelpool.units import format_bytes, format_duration

_FROM = {"user": "the user's figure", "measured": "measured at earlier loads", "estimate": "estimated from its files"}


def explain(core: Core, name: str, now: float) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """A model's state, sentences on how things stand, and sentences on what a load would need."""
    world = core.world
    model = world.models.get(name)
    if model is None:
        return "UNAVAILABLE", (f"model '{name}' is not in the catalogue",), ()
    sentences: list[str] = []
    for copy in model.copies.values():
        sentences += _copy(world, copy, now)
    if not model.copies:
        sentences.append(_absence(model, now))
    sentences += _waiting(world, model, now)
    sentences.append(_demand(world, model, now))
    sentences += _wishes(model)
    if model.failure is not None:
        sentences.append(_failure(model, now))
    to_load = () if model.covered() else tuple(_to_load(world, model, now))
    return model_state(model)[0], tuple(sentences), to_load


# --- copies ----------------------------------------------------------------------------------------------------------------------
def _copy(world: World, copy: Copy, now: float) -> list[str]:
    where = f"on {copy.device.name} of {copy.instance}"
    for_s = format_duration(now - copy.state_since)
    size = f"{format_bytes(copy.charge_bytes)} ({_FROM[need_of(copy.model, copy.device).source]})"
    match copy.state:
        case CopyState.LOADING:
            return [f"it has been loading {where} for {for_s}; {format_bytes(copy.charge_bytes)} are held for that"]
        case CopyState.DRAINING:
            why = f"it leaves when its {copy.leases} requests have ended ({copy.unload_reason})"
            return [f"it is {where}, charged {size}; {why}, for {for_s} now"]
        case CopyState.UNLOADING:
            return [f"it has been unloading {where} for {for_s} ({copy.unload_reason}), charged {size} until its memory is back"]
        case _:
            loaded_s = format_duration(now - copy.loaded_at)
            return [f"it has been ready {where} for {loaded_s}, charged {size}", _use(copy, now), _standing(world, copy, now)]


def _use(copy: Copy, now: float) -> str:
    if copy.leases:
        return f"{copy.leases} requests run on it; {copy.served} have ended"
    idle = f"it has been idle for {format_duration(now - copy.idle_since)}"
    if copy.keep_alive_s == float("inf"):
        return f"{idle}; it has no keep-alive that would end"
    left_s = copy.idle_since + copy.keep_alive_s - now
    if kept(copy):
        return f"{idle}; it is kept whatever its keep-alive of {format_duration(copy.keep_alive_s)}"
    return f"{idle}; its keep-alive of {format_duration(copy.keep_alive_s)} ends in {format_duration(max(0.0, left_s))}"


def _standing(world: World, copy: Copy, now: float) -> str:
    """Whether, and when, it would have to make room for another."""
    policy = world.settings.eviction
    if policy == NO_EVICTION:
        return "it is not unloaded for others (policy none)"
    if copy.model.pinned:
        return "it is pinned: never unloaded for others"
    if copy.model.needed_by is not None:
        return f"it is not unloaded for others: {_needed(copy.model)}"
    if kept(copy):
        return f"it is not unloaded for others: min_copies is {copy.model.spec.residency.min_copies}"
    order = [other.ident for other in in_order(world, copy.device, 0.0, now)]
    before = order.index(copy.ident)
    if before == 0:
        return f"it is the next to go when space is needed on {copy.device.name} (policy {policy})"
    return f"{before} of {len(order)} would go before it when space is needed on {copy.device.name} (policy {policy})"


# --- the model -------------------------------------------------------------------------------------------------------------------
def _absence(model: ModelState, now: float) -> str:
    if model.evicted_at is not None:
        return f"it is not resident: unloaded to make room {format_duration(now - model.evicted_at)} ago"
    return "it is not resident"


def _waiting(world: World, model: ModelState, now: float) -> list[str]:
    found = []
    if model.queue or model.commands:
        longest = format_duration(now - model.waiting_since())
        found.append(f"{len(model.queue)} requests and {len(model.commands)} commands wait for it, the longest for {longest}")
    for device in world.devices():
        if (need := device.reserved.get(model.name)) is not None:
            leaving = ", ".join(sorted(copy.model.name for copy in device.leaving.values()))
            found.append(f"{format_bytes(need.alone)} are reserved for it on {device.name}; it waits until these have left: {leaving}")
    return found


def _demand(world: World, model: ModelState, now: float) -> str:
    window_s = world.settings.demand_window_min_s
    rate = world.demand.rate(model.row, window_s, now)
    used = "never used" if model.last_completion is None else f"last used {format_duration(now - model.last_completion)} ago"
    return f"{rate:.2f} requests/s over the last {format_duration(window_s)}; {used}"


def _wishes(model: ModelState) -> list[str]:
    found = []
    if model.pinned:
        found.append("it is pinned")
    if model.priority:
        found.append(f"its priority is {model.priority}: its weight is {2.0**model.priority:g} times that of others")
    if model.requires:
        found.append(f"it requires {', '.join(model.requires)}: each of its requests holds a copy of these too")
    if model.needed_by is not None:
        found.append(_needed(model))
    if model.isolated or model.spec.isolation == "process":
        found.append("it runs in a process of its own")
    return found


def _needed(model: ModelState) -> str:
    root = model.needed_by
    assert root is not None
    return "it is brought together with what it requires" if root is model else f"'{root.name}' requires it, and waits"


def _failure(model: ModelState, now: float) -> str:
    failure = model.failure
    assert failure is not None
    if failure.until == float("inf"):
        return f"{failure.message}; it is not tried again before its files change or a user loads it"
    when = f"in {format_duration(failure.until - now)}" if failure.until > now else "at its next request"
    return f"its last load failed ({failure.count} in a row): {failure.message}; it is tried again {when}"


# --- what a load would need --------------------------------------------------------------------------------------------------------
def _to_load(world: World, model: ModelState, now: float) -> list[str]:
    if model.removed:
        return []
    found = plan(world, model, now)
    if found.device is None:
        return [missing_device(world, model, None) or "no instance with a device that it may use is up now"]
    if found.verdict is Verdict.NEVER:
        return [never_fits_text(found, model)]
    sentences = [_need(found.need, found.device.name, load_time_s(model, found.device.kind))]
    match found.verdict:
        case Verdict.FITS:
            sentences += _fits(found)
        case Verdict.NO_SPACE:
            sentences.append(no_space_text(world, found, model))
        case _:
            sentences.append(
                f"{format_bytes(found.short_bytes)} lack on {found.device.name}, and what is there may not be unloaded now: "
                f"copies are loading, leaving or pinned, or others wait for them"
            )
    return sentences


def _need(need: Need, device: str, load_s: float) -> str:
    took = f"; its loads take {load_s:.2f} s" if load_s else ""
    return (
        f"it needs {format_bytes(need.alone)} on {device} ({_FROM[need.source]}: {format_bytes(need.charge)} loaded, "
        f"{format_bytes(need.load_peak)} while loading, {format_bytes(need.run_peak)} more while running){took}"
    )


def _fits(found: Plan) -> list[str]:
    assert found.device is not None
    if not found.victims:
        return [f"it fits: {format_bytes(found.device.free_bytes())} of {found.device.name} are free, nothing has to leave"]
    names = ", ".join(f"{copy.model.name} ({format_bytes(copy.charge_bytes)})" for copy in found.victims)
    return [f"to make room {len(found.victims)} would leave {found.device.name}: {names}"]
