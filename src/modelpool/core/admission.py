"""Requests and commands: who may wait, who is admitted, who is refused and why.

A request that arrives while no READY copy can take it:
  1. unknown or forgotten model: refused.
  2. the server stops and the model is not resident: refused.
  3. the model failed or is quarantined: refused with the reason until its time to retry comes.
  4. its queue is full: refused.
  5. it can never fit: refused at once, nothing is evicted.
  6. else it waits, until it is admitted, its time runs out, or the load that it waits for fails.
"""

from __future__ import annotations

from modelpool.core.actions import Admit, CommandDone, Refuse
from modelpool.core.closures import end_gathering, gather, lease_closure, refusal
from modelpool.core.copies import Copy, CopyState, Lease
from modelpool.core.events import CommandGone, EjectWanted, LoadWanted, RequestArrived, RequestGone
from modelpool.core.eviction import NO_EVICTION
from modelpool.core.lifecycle import elsewhere_text, leave, refresh
from modelpool.core.planner import Plan, eligible, never_fits
from modelpool.core.sizes import load_time_s
from modelpool.core.state import EjectCommand, LoadCommand, ModelState, Waiter, World
from modelpool.units import format_bytes

STOPPING = ("shutting_down", "the server is stopping and loads nothing any more", 1.0)

REFUSAL_NOTE_S = 10.0
"""The journal takes the same refusal of the same model once in so many seconds."""


def arrived(world: World, event: RequestArrived, now: float) -> None:
    """A request that could not pass straight through."""
    model = world.models.get(event.model)
    if model is None or model.removed:  # 1
        _refuse_unknown(world, event.request, event.model)
        return
    world.counters.misses[model.name] += 1
    if not model.queue and (lease := _lease(world, model, now)) is not None:
        world.actions.append(Admit(event.request, lease))
        return
    if (refusal := _refusal(world, model, now)) is not None:
        code, message, retry_after_s = refusal
        world.actions.append(Refuse(event.request, code, message, retry_after_s))
        note_refusal(world, model, code, message, now)
        return
    model.queue[event.request] = Waiter(event.request, now, event.deadline)  # 6
    model.queue_arrived += now
    world.timers.set(event.deadline, "deadline", model, model.deadline_alarm)
    world.unstick(model.name)
    refresh(world, model)


def _lease(world: World, model: ModelState, now: float) -> Lease | None:
    """A lease on the copy with the fewest, with those on all that the model requires; None where there is no room."""
    if not model.ready:
        return None
    if model.requires:
        return lease_closure(world, model, now)
    copy = least_loaded(model.ready)
    return copy.lease(now) if copy.leases < world.settings.max_in_flight else None


def _refuse_unknown(world: World, request: int, name: str) -> None:
    if name in world.forgotten:
        message = f"model '{name}' was deleted from the catalogue; post it again to use it"
        world.actions.append(Refuse(request, "model_forgotten", message))
    else:
        world.actions.append(Refuse(request, "model_not_found", f"Request for unknown model: '{name}' is not found"))


def _refusal(world: World, model: ModelState, now: float) -> tuple[str, str, float | None] | None:
    if world.stopping and not model.covered():  # 2
        return STOPPING
    if (failure := model.failure) is not None and now < failure.until:  # 3
        forever = failure.until == float("inf")
        return failure.code, failure.message, None if forever else max(0.1, failure.until - now)
    if len(model.queue) >= world.settings.queue_bound:  # 4
        message = f"Exceeds maximum queue size: {len(model.queue)} requests wait for model '{model.name}' (setting queue_bound)"
        return "queue_full", message, max(1.0, load_time_s(model, "cpu"))
    if model.requires and (lacking := refusal(world, model, now)) is not None:
        return lacking
    if not model.ready and (found := never_fits(world, model)) is not None:  # 5
        return "never_fits", never_fits_text(found, model), None
    return None


def never_fits_text(found: Plan, model: ModelState) -> str:
    """Why a model can never be loaded, with the sizes."""
    need, device = found.need, found.device
    assert device is not None
    return (
        f"model '{model.name}' can never be loaded on {device.name}: it needs {format_bytes(need.alone)} ({need.source}: "
        f"{format_bytes(need.charge)} loaded, {format_bytes(need.load_peak)} while loading, "
        f"{format_bytes(need.run_peak)} more while running) "
        f"and the budget is {format_bytes(device.budget_bytes)}; give the device more (--device {device.name}=SIZE), "
        f"or state the model's size in its modelpool.yaml if this figure is wrong"
    )


def no_space_text(world: World, found: Plan, model: ModelState) -> str:
    """Why a model cannot be loaded unless the user makes room, naming what to eject or unpin."""
    need, device = found.need, found.device
    assert device is not None
    head = (
        f"model '{model.name}' needs {format_bytes(need.alone)} on {device.name}, where "
        f"{format_bytes(max(0, need.alone - found.short_bytes))} of {format_bytes(device.budget_bytes)} can be had"
    )
    chosen, freed_bytes = [], 0
    for copy in sorted(device.ready, key=lambda copy: (copy.model.kept, copy.idle_since)):
        if freed_bytes >= found.short_bytes:
            break
        chosen.append(copy)
        freed_bytes += copy.charge_bytes
    if freed_bytes < found.short_bytes and not device.fits(need, [copy.ident for copy in chosen], model.name):
        return f"{head}; give the device more (--device {device.name}=SIZE)"
    kept = [copy.model.name for copy in chosen if copy.model.kept]
    if kept and world.settings.eviction != NO_EVICTION:
        return f"{head}; unpin {', '.join(kept)} first"
    return f"{head}; eject {', '.join(copy.model.name for copy in chosen)} first"


def note_refusal(world: World, model: ModelState, code: str, message: str, now: float) -> None:
    """Journal a refusal, the same one not more often than every few seconds."""
    noted, at = model.noted
    if noted != code or now - at >= REFUSAL_NOTE_S:
        model.noted = (code, now)
        world.note("refuse", model.name, message, code=code, waiting=len(model.queue))


def least_loaded(copies: list[Copy]) -> Copy:
    """The copy with the fewest requests in flight."""
    return copies[0] if len(copies) == 1 else min(copies, key=lambda copy: copy.leases)


def admit(world: World, model: ModelState, now: float) -> None:
    """Let waiting requests run, oldest first, as far as the copies take them."""
    admitted = False
    while model.queue and (lease := _lease(world, model, now)) is not None:
        _, waiter = model.queue.popitem(last=False)
        model.queue_arrived -= waiter.arrived
        world.actions.append(Admit(waiter.request, lease))
        admitted = True
    if not model.queue:
        model.queue_arrived = 0.0
    if admitted and model.needed_by is model:
        end_gathering(world)
    refresh(world, model)


def refuse_all(world: World, model: ModelState, code: str, message: str, retry_after_s: float | None) -> None:
    """Refuse everybody who waits for a copy of the model."""
    for request in model.queue:
        world.actions.append(Refuse(request, code, message, retry_after_s))
    for command in model.commands:
        world.actions.append(CommandDone(command, (), code, message, retry_after_s))
    model.queue.clear()
    model.queue_arrived = 0.0
    model.commands.clear()
    refresh(world, model)
    root = model.needed_by
    if root is model:
        end_gathering(world)
    elif root is not None:
        _refuse_waiters(world, root, code, f"model '{root.name}' requires '{model.name}': {message}", retry_after_s)


def _refuse_waiters(world: World, model: ModelState, code: str, message: str, retry_after_s: float | None) -> None:
    """Refuse those who wait to run the model; users who want it loaded can still have it."""
    for request in model.queue:
        world.actions.append(Refuse(request, code, message, retry_after_s))
    model.queue.clear()
    model.queue_arrived = 0.0
    refresh(world, model)
    if model.needed_by is model:
        end_gathering(world)


def gather_closures(world: World, now: float) -> None:
    """Let a closure be gathered where one is waited for; refuse those that cannot be had."""
    while (root := gather(world, now)) is not None:
        found = refusal(world, root, now)
        assert found is not None
        _refuse_waiters(world, root, *found)
        note_refusal(world, root, found[0], found[1], now)


def refuse_commands(world: World, model: ModelState, device: str, code: str, message: str) -> None:
    """Refuse the users who want a copy on this device; others still wait."""
    for command in [command for command in model.commands.values() if command.device == device]:
        del model.commands[command.command]
        world.actions.append(CommandDone(command.command, (), code, message))
    refresh(world, model)


def request_gone(world: World, event: RequestGone) -> None:
    """A waiting request's client went away."""
    if (model := world.models.get(event.model)) is not None and event.request in model.queue:
        _drop(model, event.request)
        refresh(world, model)


def _drop(model: ModelState, request: int) -> None:
    model.queue_arrived -= model.queue.pop(request).arrived
    if not model.queue:
        model.queue_arrived = 0.0


def deadlines_passed(world: World, model: ModelState, now: float) -> None:
    """The time of some waiting requests ran out."""
    if not model.queue:
        return  # perhaps not in the catalogue any more
    late = [waiter for waiter in model.queue.values() if waiter.deadline <= now]
    state = "is being loaded" if model.covered() else "waits for space"
    for waiter in late:
        _drop(model, waiter.request)
        message = f"Request timeout expired: waited {now - waiter.arrived:.1f} s for model '{model.name}', which {state}"
        world.actions.append(Refuse(waiter.request, "timeout", message, max(1.0, load_time_s(model, "cpu"))))
        note_refusal(world, model, "timeout", message, now)
    if model.queue:
        world.timers.set(min(waiter.deadline for waiter in model.queue.values()), "deadline", model, model.deadline_alarm)
    refresh(world, model)


def load_wanted(world: World, event: LoadWanted, now: float) -> None:
    """A user wants a copy. What failed before is tried again."""
    model = world.models.get(event.model)
    if model is None or model.removed:
        code = "model_forgotten" if event.model in world.forgotten else "model_not_found"
        world.actions.append(CommandDone(event.command, (), code, f"Request for unknown model: '{event.model}' is not found"))
        return
    for copy in model.ready:
        if event.device is None or copy.device.is_called(event.device):
            world.actions.append(CommandDone(event.command, (copy.device.name,)))
            return
    if world.stopping:
        world.actions.append(CommandDone(event.command, (), *STOPPING))
        return
    if event.device is not None and (message := missing_device(world, model, event.device)) is not None:
        world.actions.append(CommandDone(event.command, (), "device_not_found", message))
        return
    if event.device is not None and model.ready:
        world.actions.append(CommandDone(event.command, (), "refused", elsewhere_text(model.ready[0], event.device)))
        return
    model.failure = None
    model.deaths = 0
    model.commands[event.command] = LoadCommand(event.command, now, event.device, event.may_evict, event.deadline)
    world.timers.set(event.deadline, "command", (model, event.command))
    world.unstick(model.name)
    refresh(world, model)


def missing_device(world: World, model: ModelState, wanted: str | None) -> str | None:
    """What to say where the model has no device that it may use, and none that is coming."""
    coming = not world.instances or any(not instance.up or instance.recycling for instance in world.instances.values())
    if coming or eligible(world, model, wanted):
        return None
    if not any(instance.runs(model.spec) for instance in world.instances.values()):
        return f"model '{model.name}' needs the backend {model.spec.runtime}, which no instance of this server has"
    have = ", ".join(sorted({device.name for device in world.devices()}))
    named = wanted or model.spec.residency.device or " or ".join(model.spec.device_kinds)
    return f"model '{model.name}' needs device {named}; this server has {have}"


def command_gone(world: World, event: CommandGone) -> None:
    """Nobody waits for this command any more."""
    if (model := world.models.get(event.model)) is None:
        return
    model.commands.pop(event.command, None)
    model.ejects = [eject for eject in model.ejects if eject.command != event.command]
    refresh(world, model)


def command_late(world: World, model: ModelState, command: int) -> None:
    """A user's load has waited as long as it may."""
    if model.commands.pop(command, None) is not None:
        message = f"model '{model.name}' was not loaded in time; what it waits for: modelpool explain {model.name}"
        world.actions.append(CommandDone(command, (), "timeout", message, max(1.0, load_time_s(model, "cpu"))))
        refresh(world, model)


def eject_wanted(world: World, event: EjectWanted, now: float) -> None:
    """A user wants a model out. Waiters stay and bring it back; that is what eject means."""
    model = world.models.get(event.model)
    copies = [] if model is None else [c for c in model.copies.values() if event.device is None or c.device.is_called(event.device)]
    if model is None or not copies:
        where = event.device or "any device"
        message = f"The model_name `{event.model}` device `{where}` is not cached or found"
        world.actions.append(CommandDone(event.command, (), "model_not_in_cache", message))
        return
    if model.pinned:
        message = f"model '{model.name}' is pinned; unpin it first (modelpool unpin {model.name})"
        world.actions.append(CommandDone(event.command, (), "bad_request", message))
        return
    devices = tuple(dict.fromkeys(copy.device.name for copy in copies))
    model.ejects.append(EjectCommand(event.command, {copy.ident for copy in copies}, devices))
    for copy in copies:
        if copy.state is CopyState.READY:
            leave(world, copy, "eject", now)
        elif copy.unload_reason in ("", "space"):
            copy.unload_reason = "eject"  # a load in progress serves those who wait for it, then goes; a draining copy stays on its way
    world.note("eject", model.name, f"ejected from {', '.join(devices)} by a user", copies=len(copies))
