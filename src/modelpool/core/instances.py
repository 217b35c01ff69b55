"""Events about instances and the copies on them: what came up, what died, what was loaded and unloaded."""

from __future__ import annotations

from modelpool.core.actions import Unload
from modelpool.core.admission import admit, never_fits_text, note_refusal, refuse_all
from modelpool.core.catalogue import drop_if_over
from modelpool.core.copies import Copy, CopyState
from modelpool.core.events import CopyLost, Held, InstanceDown, InstanceUp, Loaded, LoadFailed, Unloaded
from modelpool.core.ledger import Device, Need
from modelpool.core.lifecycle import become_ready, gone, hold_back, leave
from modelpool.core.measures import verify
from modelpool.core.model import Learned, ModelSpec
from modelpool.core.planner import Plan, Verdict
from modelpool.core.scheduling import fail, relieve
from modelpool.core.sizes import learn_load, need_of
from modelpool.core.state import InstanceState, ModelState, World
from modelpool.units import format_bytes

DEATHS_TO_ISOLATE = 2
DEATHS_TO_QUARANTINE = 3


def _copy(world: World, event: Loaded | LoadFailed | Unloaded | CopyLost, *states: CopyState) -> Copy | None:
    """The copy that an event is about, where instance, generation and state fit; else it is late."""
    if world.current(event.instance, event.generation) is None:
        return None
    copy = world.copies.get(event.copy)
    if copy is None or copy.instance != event.instance or (states and copy.state not in states):
        world.counters.late_events += 1
        return None
    return copy


# --- up and down ---------------------------------------------------------------------------------------------------------------
def instance_up(world: World, event: InstanceUp, now: float) -> None:
    """An instance is ready, with or without copies from before."""
    instance = world.instances.setdefault(event.instance, InstanceState(event.instance))
    for device in instance.devices.values():
        for copy in list(device.copies.values()):
            gone(world, copy, now)
            drop_if_over(world, copy.model)
    instance.generation = event.generation
    instance.up = True
    instance.runtimes, instance.isolates = event.runtimes, event.isolates
    instance.recycling = instance.recycle_sent = False
    instance.culprit = ""
    instance.devices = {name: Device(instance.ident, name, budget, world.settings.runs_at_once) for name, budget in event.devices}
    for held in event.held:
        world.next_copy = max(world.next_copy, held.copy + 1)
        if (home := instance.devices.get(held.device)) is not None:
            _adopt(world, instance, home, held, now)
        else:
            world.note("unload", held.model, f"found on {instance.ident} {held.device}, which has no budget any more", copy=held.copy)
            world.actions.append(Unload(instance.ident, instance.generation, held.copy, held.model))
    world.changed()
    for device in instance.devices.values():
        relieve(world, device, now)


def _adopt(world: World, instance: InstanceState, device: Device, held: Held, now: float) -> None:
    model = world.models.get(held.model)
    if model is None:
        model = world.models[held.model] = _stranger(world, held.model)
    copy = Copy(
        held.copy,
        model,
        instance.ident,
        instance.generation,
        device,
        held.revision,
        instance.isolates and model.spec.isolation == "process",
    )
    copy.slot = model.row
    twice = any(other.device is device for other in model.copies.values())
    fresh = held.revision == model.spec.revision
    if fresh:
        model.learned.setdefault(device.kind, held.learned)
    need = need_of(model, device) if fresh else _measured(held.learned)
    device.add_held(copy, need.charge, need.run_peak)
    world.copies[copy.ident] = model.copies[copy.ident] = copy
    world.note("adopt", model.name, f"found on {instance.ident} {device.name}", copy=copy.ident)
    if model.removed or not fresh or twice:
        leave(world, copy, "removed" if model.removed else "duplicate" if fresh else "changed", now)
    else:
        become_ready(world, copy, now)
        world.backlog.append(model)


def _stranger(world: World, name: str) -> ModelState:
    """A model that an instance holds and the catalogue does not know: it is unloaded like one that was removed."""
    model = ModelState(ModelSpec(name, "", ""), world.demand.open_row())
    model.removed = True
    return model


def _measured(learned: Learned) -> Need:
    return Need(learned.private_bytes, learned.load_peak_bytes, max(0, learned.run_peak_bytes), "measured")


def instance_down(world: World, event: InstanceDown, now: float) -> None:
    """An instance died: its copies are gone, its capacity is not used until it is up again."""
    if (instance := world.current(event.instance, event.generation)) is None:
        return
    instance.up = False
    meant, instance.recycle_sent = instance.recycle_sent, False
    culprit, instance.culprit = instance.culprit, ""
    instance.recycling = False
    world.note("instance down", "", f"{instance.ident}: {event.reason}", instance=instance.ident)
    for device in instance.devices.values():
        device.reserved.clear()
        for copy in list(device.copies.values()):
            blame = not (meant or event.outside) or copy.model.name == culprit
            _lose(world, copy, event.reason, copy.model.name in event.running, now, blame=blame)
    world.changed()


def copy_lost(world: World, event: CopyLost, now: float) -> None:
    """One copy is gone without an unload."""
    copy = _copy(world, event)
    if copy is None:
        return
    if event.stopped:
        _note_unloaded(world, copy, "stop", worker=event.reason)
        gone(world, copy, now)
        drop_if_over(world, copy.model)
    else:
        _lose(world, copy, event.reason, event.running, now)


def _lose(world: World, copy: Copy, reason: str, running: bool, now: float, *, blame: bool = True) -> None:
    """A copy is gone. blame: its model may have brought that about; else those who wait for its load go on waiting."""
    model: ModelState = copy.model
    was_loading = copy.state is CopyState.LOADING
    gone(world, copy, now)
    world.note("lost", model.name, f"its copy on {copy.instance} is gone: {reason}", copy=copy.ident, running=running)
    if blame and copy.revision == model.spec.revision and not model.removed:
        if was_loading:
            fail(world, model, "load_failed", f"load failed for model '{model.name}': {reason}", now)
        if running:
            _count_death(world, copy, reason, now)
    drop_if_over(world, model)


def _count_death(world: World, copy: Copy, reason: str, now: float, *, loading: bool = False) -> None:
    """A model was running or loading when its process died: it gets one of its own, where the third death is its fault alone.

    After the second death, for many may have been running; after the first that came of its load. Where it cannot have one, only the
    deaths that came of its loads are its fault.
    """
    model: ModelState = copy.model
    isolates = world.instances[copy.instance].isolates
    if not (isolates or loading):
        return
    model.deaths += 1
    if copy.isolated or not isolates:
        if model.deaths >= DEATHS_TO_QUARANTINE:
            text = (
                f"model '{model.name}' is quarantined: its process died {model.deaths} times while it {'loaded' if loading else 'ran'} "
                f"({reason}); mend it, or load it by hand to try again"
            )
            world.note("quarantine", model.name, text, deaths=model.deaths)
            fail(world, model, "quarantined", text, now, forever=True)
    elif (loading or model.deaths >= DEATHS_TO_ISOLATE) and not model.isolated:
        model.isolated = True
        why = "its load ended the process" if loading else f"was running at {model.deaths} deaths of its process"
        world.note("isolate", model.name, f"{why}: it gets one of its own", deaths=model.deaths)


# --- loads and unloads -----------------------------------------------------------------------------------------------------------
def loaded(world: World, event: Loaded, now: float) -> None:
    """A load ended well: the copy serves, unless nobody may have it any more."""
    copy = _copy(world, event, CopyState.LOADING)
    if copy is None:
        return
    model: ModelState = copy.model
    device: Device = copy.device
    need = _learn(world, copy, event)
    device.loaded(copy, need.charge)
    device.set_run_peak(copy, need.run_peak)
    world.counters.loads[model.name] += 1
    model.failure = None
    world.note(
        "loaded",
        model.name,
        f"in {event.load_s:.3f} s on {device.name}, {format_bytes(need.charge)}",
        device=device.name,
        instance=copy.instance,
        bytes=need.charge,
        load_s=round(event.load_s, 4),
    )
    if need.alone > device.budget_bytes and not copy.unload_reason:
        copy.unload_reason = "too large"
        text = never_fits_text(Plan(Verdict.NEVER, device, need), model)
        note_refusal(world, model, "never_fits", text, now)
        refuse_all(world, model, "never_fits", text, None)
    _serve(world, copy, now)
    world.changed()
    relieve(world, device, now, copy)


def _learn(world: World, copy: Copy, event: Loaded) -> Need:
    """Keep what the load measured, if the model is still what was loaded; returns what the copy is charged."""
    model: ModelState = copy.model
    kind = copy.device.kind
    if copy.revision != model.spec.revision:
        return _measured(learn_load(None, event.private_bytes, event.load_peak_bytes, event.load_s))
    learned = learn_load(model.learned.get(kind), event.private_bytes, event.load_peak_bytes, event.load_s)
    model.learned[kind] = world.learned_changes[model.name, kind] = learned
    return need_of(model, copy.device)


def _serve(world: World, copy: Copy, now: float) -> None:
    """Let those who wait have the copy, even where it leaves then; one that changed, or that nobody may have, leaves at once."""
    reason = copy.unload_reason
    if reason in ("changed", "removed", "too large"):
        leave(world, copy, reason, now)
        return
    become_ready(world, copy, now)
    admit(world, copy.model, now)
    if copy.killed or world.instances[copy.instance].recycling:
        hold_back(world, copy, now)
    elif reason:
        leave(world, copy, reason, now)


def load_failed(world: World, event: LoadFailed, now: float) -> None:
    """A load failed: those who wait get its reason."""
    copy = _copy(world, event, CopyState.LOADING)
    if copy is None:
        return
    model: ModelState = copy.model
    gone(world, copy, now)
    world.counters.load_failures[model.name] += 1
    world.note("load failed", model.name, event.message, code=event.code)
    if copy.revision == model.spec.revision and not model.removed:
        fail(world, model, event.code, event.message, now)
        if event.died:
            _count_death(world, copy, event.message, now, loading=True)
    drop_if_over(world, model)


def _note_unloaded(world: World, copy: Copy, reason: str, **figures: object) -> None:
    text = f"from {copy.device.name} ({reason})"
    world.note("unloaded", copy.model.name, text, reason=reason, bytes=copy.charge_bytes, **figures)


def unloaded(world: World, event: Unloaded, now: float) -> None:
    """An unload ended; what did not come back is written to the device as unreturned."""
    copy = _copy(world, event, CopyState.UNLOADING)
    if copy is None:
        return
    model: ModelState = copy.model
    if copy.unload_reason != "space":  # that was noted when it was decided
        _note_unloaded(world, copy, copy.unload_reason)
    gone(world, copy, now)
    verify(world, world.instances[copy.instance], event, now)
    drop_if_over(world, model)
