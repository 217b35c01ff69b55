"""Events about the catalogue: models come, change and go; users pin them and say how long they stay."""

from __future__ import annotations

from modelpool.core.admission import refuse_all
from modelpool.core.closures import end_gathering
from modelpool.core.copies import Copy, CopyState
from modelpool.core.events import KeepAliveSet, ModelAdded, ModelRemoved, PinWanted
from modelpool.core.lifecycle import leave, may_stay, refresh, release_reservation, set_keep_alive, stay
from modelpool.core.scheduling import relieve
from modelpool.core.state import ModelState, World


def model_added(world: World, event: ModelAdded, now: float) -> None:
    """A model is new, or its revision or policy changed: copies of an old revision go, and come back on demand."""
    spec = event.spec
    end_gathering(world)
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
            _take_revision(world, copy, spec.revision, now)
            if copy.state is CopyState.READY:
                set_keep_alive(world, copy, now)
        if model.pinned:
            _keep(world, model, now)
    world.demand.weigh(model.row, 2.0**model.priority)
    model.learned.update(event.learned)
    world.unstick(spec.name)
    refresh(world, model)


def _take_revision(world: World, copy: Copy, revision: str, now: float) -> None:
    if copy.revision == revision:
        if copy.state is CopyState.LOADING and copy.unload_reason in ("changed", "removed"):
            copy.unload_reason = ""  # it is what is wanted again
    elif copy.state is CopyState.READY:
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
    end_gathering(world)
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
    if model.removed and not model.copies:
        world.demand.close_row(model.row)
        world.counters.forget(model.name)
        del world.models[model.name]


def pin_wanted(world: World, event: PinWanted, now: float) -> None:
    """A user pins or unpins."""
    if (model := world.models.get(event.model)) is None or model.removed:
        return
    model.pinned = event.pinned
    if event.pinned:
        model.failure = None
        _keep(world, model, now)
    world.note("pin" if event.pinned else "unpin", model.name, "pinned by a user" if event.pinned else "unpinned by a user")
    world.changed()
    refresh(world, model)


def _keep(world: World, model: ModelState, now: float) -> None:
    """A copy of a pinned model that drains for others stays; what was reserved in its place is planned anew."""
    for copy in list(model.copies.values()):
        if may_stay(copy):
            stay(world, copy)
            relieve(world, copy.device, now)


def keep_alive_set(world: World, event: KeepAliveSet, now: float) -> None:
    """A request named a keep-alive for its model."""
    if (model := world.models.get(event.model)) is None or model.keep_alive_s == event.keep_alive_s:
        return
    model.keep_alive_s = event.keep_alive_s
    for copy in model.ready:
        set_keep_alive(world, copy, now)
