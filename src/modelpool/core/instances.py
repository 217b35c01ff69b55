"""Events about the catalogue and the instances: what they change, and what follows."""

from __future__ import annotations

from dataclasses import replace

from modelpool.core.actions import Recycle
from modelpool.core.admission import admit, never_fits_text, note_refusal, refuse_all
from modelpool.core.copies import Copy, CopyState
from modelpool.core.events import (
    BudgetChanged,
    CopyLost,
    InstanceDown,
    InstanceUp,
    KeepAliveSet,
    Loaded,
    LoadFailed,
    ModelAdded,
    ModelRemoved,
    Observed,
    PinWanted,
    Unloaded,
)
from modelpool.core.ledger import Device
from modelpool.core.lifecycle import arm_idle, become_ready, gone, leave, may_stay, refresh, release_reservation, set_keep_alive, stay
from modelpool.core.model import ModelSpec
from modelpool.core.planner import Plan, Verdict
from modelpool.core.scheduling import fail, relieve
from modelpool.core.sizes import learn_load, need_of
from modelpool.core.state import InstanceState, ModelState, World
from modelpool.units import format_bytes

DEATHS_TO_ISOLATE = 2
DEATHS_TO_QUARANTINE = 3
IDLE_RECHECK_S = 1.0


# --- the catalogue -------------------------------------------------------------------------------------------------------------
def model_added(world: World, event: ModelAdded, now: float) -> None:
    """A model is new, or its revision or policy changed: copies of an old revision go, and come back on demand."""
    spec = event.spec
    world.forgotten.discard(spec.name)
    model = world.models.get(spec.name)
    if model is None:
        model = world.models[spec.name] = ModelState(spec, world.demand.open_row())
    else:
        model.removed = False
        if spec.revision != model.spec.revision:
            model.failure = None
            model.deaths = 0
            model.isolated = False
            model.learned.clear()
        if model.spec.residency.pinned and not spec.residency.pinned:
            model.pinned = False
        model.take(spec)
        for copy in list(model.copies.values()):
            _retire_old(world, copy, spec.revision, now)
            if copy.state is CopyState.READY:
                set_keep_alive(world, copy, now)
    model.learned.update(event.learned)
    world.stuck.discard(spec.name)
    refresh(world, model)


def _retire_old(world: World, copy: Copy, revision: str, now: float) -> None:
    if copy.revision == revision:
        return
    if copy.state is CopyState.READY:
        world.note("unload", copy.model.name, "its files or configuration changed", copy=copy.ident)
        leave(world, copy, "changed", now)
    elif copy.state is not CopyState.UNLOADING:
        copy.unload_reason = "changed"


def model_removed(world: World, event: ModelRemoved, now: float) -> None:
    """A model left the catalogue."""
    if event.forgotten:
        world.forgotten.add(event.model)
    model = world.models.get(event.model)
    if model is None or model.removed:
        return
    model.removed = True
    model.pinned = False
    why = "was deleted from the catalogue" if event.forgotten else "left the repository"
    refuse_all(world, model, "model_forgotten" if event.forgotten else "model_not_found", f"model '{model.name}' {why}", None)
    release_reservation(world, model.name)
    for copy in list(model.copies.values()):
        if copy.state is CopyState.READY:
            leave(world, copy, "removed", now)
        elif copy.state is not CopyState.UNLOADING:
            copy.unload_reason = "removed"
    world.note("remove", model.name, why)
    drop_if_over(world, model)


def drop_if_over(world: World, model: ModelState) -> None:
    """A removed model is forgotten when its last copy is gone."""
    if model.removed and not model.copies and world.models.get(model.name) is model:
        world.waiting.pop(model.name, None)
        world.stuck.discard(model.name)
        world.demand.close_row(model.row)
        del world.models[model.name]


def pin_wanted(world: World, event: PinWanted) -> None:
    """A user pins or unpins."""
    if (model := world.models.get(event.model)) is None or model.removed:
        return
    model.pinned = event.pinned
    if event.pinned:
        model.failure = None
        for copy in model.copies.values():
            if may_stay(copy):
                stay(world, copy)
    world.note("pin" if event.pinned else "unpin", model.name, "pinned by a user" if event.pinned else "unpinned by a user")
    world.changed()
    refresh(world, model)


def keep_alive_set(world: World, event: KeepAliveSet, now: float) -> None:
    """A request named a keep-alive for its model."""
    if (model := world.models.get(event.model)) is None or model.keep_alive_s == event.keep_alive_s:
        return
    model.keep_alive_s = event.keep_alive_s
    for copy in model.ready:
        set_keep_alive(world, copy, now)


# --- instances -----------------------------------------------------------------------------------------------------------------
def _current(world: World, instance: str, generation: int) -> InstanceState | None:
    found = world.instances.get(instance)
    if found is None or not found.up or found.generation != generation:
        world.counters.late_events += 1
        return None
    return found


def _copy(world: World, event: Loaded | LoadFailed | Unloaded | CopyLost, *states: CopyState) -> Copy | None:
    """The copy that an event is about, where instance, generation and state fit; else it is late."""
    if _current(world, event.instance, event.generation) is None:
        return None
    copy = world.copies.get(event.copy)
    if copy is None or copy.instance != event.instance or (states and copy.state not in states):
        world.counters.late_events += 1
        return None
    return copy


def instance_up(world: World, event: InstanceUp, now: float) -> None:
    """An instance is ready, with or without copies from before."""
    instance = world.instances.setdefault(event.instance, InstanceState(event.instance))
    for device in instance.devices.values():
        for copy in list(device.copies.values()):
            gone(world, copy, now)
    instance.generation = event.generation
    instance.up, instance.recycling, instance.recycle_reason = True, False, ""
    instance.devices = {name: Device(instance.ident, name, budget, world.settings.runs_at_once) for name, budget in event.devices}
    for held in event.held:
        model = world.models.get(held.model)
        device = instance.devices.get(held.device)
        if model is None:
            model = world.models[held.model] = _stranger(world, held.model)
        assert device is not None, f"{event.instance} holds a copy on {held.device}, which it does not have"
        copy = Copy(held.copy, model, instance.ident, instance.generation, device, held.revision, model.spec.isolation == "process")
        world.next_copy = max(world.next_copy, held.copy + 1)
        copy.slot = model.row
        model.learned.setdefault(device.kind, held.learned)
        need = need_of(model, device)
        device.add_held(copy, need.charge, need.run_peak)
        world.copies[copy.ident] = model.copies[copy.ident] = copy
        become_ready(world, copy, now)
        world.note("adopt", model.name, f"found on {instance.ident} {device.name}", copy=copy.ident)
        if model.removed or held.revision != model.spec.revision:
            leave(world, copy, "changed", now)
    world.changed()
    for device in instance.devices.values():
        relieve(world, device, now)


def _stranger(world: World, name: str) -> ModelState:
    """A model that an instance holds and the catalogue does not know: it is unloaded like one that was removed."""
    model = ModelState(ModelSpec(name, "", ""), world.demand.open_row())
    model.removed = True
    return model


def instance_down(world: World, event: InstanceDown, now: float) -> None:
    """An instance died: its copies are gone, its capacity is not used until it is up again."""
    if (instance := _current(world, event.instance, event.generation)) is None:
        return
    instance.up = False
    instance.recycling = False
    world.note("instance down", "", f"{instance.ident}: {event.reason}", instance=instance.ident)
    for device in instance.devices.values():
        device.reserved.clear()
        for copy in list(device.copies.values()):
            _lose(world, copy, event.reason, copy.model.name in event.running, now)


def copy_lost(world: World, event: CopyLost, now: float) -> None:
    """One copy is gone without an unload."""
    if (copy := _copy(world, event)) is not None:
        _lose(world, copy, event.reason, event.running, now)


def _lose(world: World, copy: Copy, reason: str, running: bool, now: float) -> None:
    model: ModelState = copy.model
    was_loading = copy.state is CopyState.LOADING
    isolated = copy.isolated
    gone(world, copy, now)
    world.note("lost", model.name, f"its copy on {copy.instance} is gone: {reason}", copy=copy.ident, running=running)
    if was_loading:
        fail(world, model, "load_failed", f"load failed for model '{model.name}': {reason}", now)
    if running:
        model.deaths += 1
        if model.deaths >= DEATHS_TO_QUARANTINE and isolated:
            text = f"model '{model.name}' is quarantined: its process died {model.deaths} times while it ran ({reason}); mend it, or load it by hand to try again"
            world.note("quarantine", model.name, text, deaths=model.deaths)
            fail(world, model, "quarantined", text, now, forever=True)
        elif model.deaths >= DEATHS_TO_ISOLATE and not model.isolated:
            model.isolated = True
            world.note("isolate", model.name, f"was running at {model.deaths} deaths of its process: it gets one of its own", deaths=model.deaths)
    drop_if_over(world, model)


def loaded(world: World, event: Loaded, now: float) -> None:
    """A load ended well: the copy serves, unless nobody may have it any more."""
    copy = _copy(world, event, CopyState.LOADING)
    if copy is None:
        return
    model: ModelState = copy.model
    device: Device = copy.device
    learned = learn_load(model.learned.get(device.kind), event.private_bytes, event.load_peak_bytes, event.load_s)
    if copy.revision == model.spec.revision:
        model.learned[device.kind] = learned
        world.learned_changes[model.name, device.kind] = learned
    need = need_of(model, device)
    device.loaded(copy, need.charge)
    device.set_run_peak(copy, need.run_peak)
    world.counters.loads[model.name] += 1
    model.failure = None
    leaving = copy.unload_reason
    copy.unload_reason = ""
    become_ready(world, copy, now)
    world.changed()
    world.note(
        "loaded",
        model.name,
        f"in {event.load_s:.3f} s on {device.name}, {format_bytes(need.charge)}",
        device=device.name,
        instance=copy.instance,
        bytes=need.charge,
        load_s=round(event.load_s, 4),
    )
    if need.alone > device.budget_bytes and need.source == "measured":
        text = never_fits_text(Plan(Verdict.NEVER, device, need), model)
        note_refusal(world, model, "never_fits", text, now)
        refuse_all(world, model, "never_fits", text, None)
        leaving = leaving or "too large"
    admit(world, model, now)
    if leaving:
        leave(world, copy, leaving, now)
    relieve(world, device, now, copy)


def load_failed(world: World, event: LoadFailed, now: float) -> None:
    """A load failed: those who wait get its reason."""
    copy = _copy(world, event, CopyState.LOADING)
    if copy is None:
        return
    model: ModelState = copy.model
    changed = copy.revision != model.spec.revision
    gone(world, copy, now)
    world.counters.load_failures[model.name] += 1
    world.note("load failed", model.name, event.message, code=event.code)
    if event.died and not model.isolated:
        model.isolated = True
        world.note("isolate", model.name, "its load ended the process: it gets one of its own")
    if not changed and not model.removed:
        fail(world, model, event.code, event.message, now)
    drop_if_over(world, model)


def unloaded(world: World, event: Unloaded, now: float) -> None:
    """An unload ended; what did not come back is written to the device as unreturned."""
    copy = _copy(world, event, CopyState.UNLOADING)
    if copy is None:
        return
    model: ModelState = copy.model
    device: Device = copy.device
    if copy.unload_reason != "space":
        world.note("unloaded", model.name, f"from {device.name} ({copy.unload_reason})", reason=copy.unload_reason, bytes=copy.charge_bytes)
    gone(world, copy, now)
    if event.total_bytes is not None:
        _verify(world, world.instances[copy.instance], device, event.total_bytes, now)
    drop_if_over(world, model)


def observed(world: World, event: Observed, now: float) -> None:
    """A measurement: run peaks that were larger than known, and whether bytes came back meanwhile."""
    instance = _current(world, event.instance, event.generation)
    if instance is None:
        return
    for ident, peak in event.run_peaks:
        if (copy := world.copies.get(ident)) is not None and copy.instance == instance.ident:
            _learn_run_peak(world, copy, peak, now)
    cpu = instance.devices.get("cpu")
    if event.total_bytes is not None and cpu is not None:
        _verify(world, instance, cpu, event.total_bytes, now)


def _learn_run_peak(world: World, copy: Copy, peak_bytes: int, now: float) -> None:
    model: ModelState = copy.model
    kind = copy.device.kind
    old = model.learned.get(kind)
    if old is None or peak_bytes <= old.run_peak_bytes or copy.revision != model.spec.revision:
        return
    model.learned[kind] = world.learned_changes[model.name, kind] = replace(old, run_peak_bytes=peak_bytes)
    copy.device.set_run_peak(copy, need_of(model, copy.device).run_peak)
    world.changed()
    relieve(world, copy.device, now)


def _verify(world: World, instance: InstanceState, device: Device, total_bytes: int, now: float) -> None:
    """Compare what the instance holds with what it was charged for.

    Only while nothing loads: a load in progress is not yet what it will be.
    """
    if device.loading_bytes or instance.recycling:
        return
    expected = device.resident_bytes + device.scratch_bytes() + world.settings.verify_slack_bytes
    excess = max(0, total_bytes - expected)
    if excess != device.unreturned_bytes:
        if excess > device.unreturned_bytes:
            world.note("unreturned", "", f"{instance.ident} {device.name} holds {format_bytes(excess)} more than it was charged for", bytes=excess)
        device.unreturned_bytes = excess
        world.changed()
    if excess > world.settings.unreturned_limit_bytes:
        recycle(world, instance, f"{format_bytes(excess)} did not come back after unloads", now)
    else:
        relieve(world, device, now)


def recycle(world: World, instance: InstanceState, reason: str, now: float) -> None:
    """Drain an instance, then start its processes anew: requests that run there finish, those that arrive wait."""
    instance.recycling = True
    instance.recycle_reason = reason
    world.note("recycle", "", f"{instance.ident} is drained and started anew: {reason}", instance=instance.ident)
    for device in instance.devices.values():
        for name in list(device.reserved):
            release_reservation(world, name)
        for copy in list(device.copies.values()):
            if copy.state is CopyState.READY:
                device.order.pop(copy.ident, None)
                device.leaves(copy)
                copy.unload_reason = "recycle"
                copy.move(CopyState.DRAINING, now)
                refresh(world, copy.model)
    recycle_when_idle(world, instance, now)


def recycle_when_idle(world: World, instance: InstanceState, now: float) -> None:
    """The last lease ended: now it can be started anew."""
    copies = [copy for device in instance.devices.values() for copy in device.copies.values()]
    if not any(copy.leases or copy.state is CopyState.LOADING for copy in copies):
        world.actions.append(Recycle(instance.ident, instance.generation, instance.recycle_reason))


def budget_changed(world: World, event: BudgetChanged, now: float) -> None:
    """A device may hold more or less than before."""
    instance = _current(world, event.instance, event.generation)
    if instance is None or (device := instance.devices.get(event.device)) is None:
        return
    device.budget_bytes = event.budget_bytes
    world.note("budget", "", f"{instance.ident} {device.name}: {format_bytes(event.budget_bytes)}", bytes=event.budget_bytes)
    world.changed()
    relieve(world, device, now)


# --- timers --------------------------------------------------------------------------------------------------------------------
def idle_due(world: World, copy: Copy, now: float) -> None:
    """A copy may have been idle for its keep-alive."""
    if copy.state is not CopyState.READY or now < copy.idle_due_at or copy.keep_alive_s == float("inf"):
        return
    model: ModelState = copy.model
    due = copy.idle_since + copy.keep_alive_s
    if copy.leases or model.queue or due > now:
        arm_idle(world, copy, max(due, now + IDLE_RECHECK_S))
        return
    if model.pinned or len(model.ready) <= model.spec.residency.min_copies:
        arm_idle(world, copy, now + max(IDLE_RECHECK_S, copy.keep_alive_s))
        return
    world.note("unload", model.name, f"idle for {now - copy.idle_since:.0f} s (keep-alive {copy.keep_alive_s:.0f} s)", copy=copy.ident)
    leave(world, copy, "idle", now)


def load_late(world: World, copy: Copy, now: float) -> None:
    """A load takes longer than it may: its process is started anew."""
    if copy.state is CopyState.LOADING and now - copy.state_since >= world.settings.load_timeout_s:
        reason = f"the load of '{copy.model.name}' took longer than load_timeout ({world.settings.load_timeout_s:.0f} s)"
        _kill(world, copy, reason)


def unload_late(world: World, copy: Copy, now: float) -> None:
    """An unload takes longer than it may: its process is started anew."""
    if copy.state is CopyState.UNLOADING and now - copy.state_since >= world.settings.verify_timeout_s:
        reason = f"the unload of '{copy.model.name}' took longer than verify_timeout ({world.settings.verify_timeout_s:.0f} s)"
        _kill(world, copy, reason)


def sweep_leases(world: World, now: float) -> None:
    """Look for leases that outlast `run_limit`: their process is started anew."""
    for copy in list(world.copies.values()):
        oldest = next(iter(copy.live), None)
        if oldest is not None and now - oldest.started > world.settings.run_limit_s:
            _kill(world, copy, f"a request to '{copy.model.name}' ran longer than run_limit ({world.settings.run_limit_s:.0f} s)")


def _kill(world: World, copy: Copy, reason: str) -> None:
    instance = world.instances[copy.instance]
    action = Recycle(copy.instance, copy.generation, reason, copy.ident if copy.isolated else None)
    if instance.up and action not in world.actions:
        world.note("recycle", copy.model.name, reason, instance=copy.instance)
        world.actions.append(action)
