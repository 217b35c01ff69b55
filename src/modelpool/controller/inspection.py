"""Puts what core and data plane hold into the views that front ends show; changes nothing."""

from __future__ import annotations

from typing import Any

from modelpool.controller.dataplane import DataPlane
from modelpool.controller.statistics import ModelStatistics, TimeHistogram
from modelpool.controller.views import (
    CopyView,
    Decision,
    DeviceView,
    Explanation,
    IndexRow,
    MetricsSnapshot,
    ModelCounters,
    ModelView,
)
from modelpool.core.admission import missing_device
from modelpool.core.copies import Copy, CopyState
from modelpool.core.core import Core
from modelpool.core.explain import explain
from modelpool.core.inspect import model_state, size_of
from modelpool.core.ledger import Device
from modelpool.core.planner import never_fits
from modelpool.core.state import ModelState
from modelpool.repository.entry import Entry


def is_ready(core: Core, name: str) -> bool:
    """Whether a copy of the model is READY."""
    model = core.world.models.get(name)
    return model is not None and bool(model.ready)


def loadable(core: Core, name: str, now: float) -> bool:
    """Whether a request for the model would be served, as far as is known now."""
    model = core.world.models.get(name)
    if model is None or model.removed:
        return False
    if model.ready:
        return True
    if model.failure is not None and now < model.failure.until:
        return False
    return never_fits(core.world, model) is None and missing_device(core.world, model, None) is None


def _state(core: Core, entry: Entry) -> tuple[str, str]:
    if entry.problem is not None:
        return "UNAVAILABLE", entry.problem
    model = core.world.models.get(entry.name)
    return model_state(model) if model is not None else ("UNAVAILABLE", "not resident")


def index(core: Core, entries: list[Entry], ready_only: bool) -> list[IndexRow]:
    """The repository index, one row a version."""
    rows = []
    for entry in entries:
        state, reason = _state(core, entry)
        if ready_only and state != "READY":
            continue
        versions = [str(one.version) for one in entry.versions] or [""]
        rows += [IndexRow(name=entry.name, version=version, state=state, reason=reason) for version in versions]
    return rows


def _copy_view(copy: Copy, now: float) -> CopyView:
    ready = copy.state is not CopyState.LOADING
    return CopyView(
        instance=copy.instance,
        device=copy.device.name,
        state=copy.state.value,
        charge_bytes=copy.charge_bytes,
        leases=copy.leases,
        idle_s=now - copy.idle_since if ready and not copy.leases else None,
        loaded_s=now - copy.loaded_at if ready else None,
    )


def has_copies(core: Core, entry: Entry) -> bool:
    """Whether any copy of the model is there, in whatever state."""
    model = core.world.models.get(entry.name)
    return model is not None and bool(model.copies)


def model_view(core: Core, entry: Entry, now: float) -> ModelView:
    """All that is known of one model."""
    state, reason = _state(core, entry)
    model = core.world.models.get(entry.name)
    size_bytes, size_from = size_of(model, core.world) if model is not None else (0, "estimate")
    copies = tuple(_copy_view(copy, now) for copy in model.copies.values()) if model is not None else ()
    used = model.last_completion if model is not None else None
    return ModelView(
        name=entry.name,
        runtime=entry.runtime,
        source=entry.source,
        versions=tuple(one.version for one in entry.versions),
        state=state,
        reason=reason,
        tier="DEVICE" if any(copy.state in ("READY", "DRAINING") for copy in copies) else "DISK",
        pinned=model is not None and model.pinned,
        size_bytes=size_bytes,
        size_from=size_from,
        load_s=_load_s(model),
        queue=len(model.queue) if model is not None else 0,
        in_flight=sum(copy.leases for copy in copies),
        last_use_s=None if used is None else now - used,
        copies=copies,
        properties=entry.properties,
    )


def _load_s(model: ModelState | None) -> float | None:
    return next((one.load_s for one in model.learned.values() if one.samples), None) if model is not None else None


def device_views(core: Core, described: dict[str, dict[str, Any]]) -> list[DeviceView]:
    """The ledgers of all devices."""
    return [
        _device_view(device, instance.up, _shared_pid(instance.ident, described))
        for instance in core.world.instances.values()
        for device in instance.devices.values()
    ]


def _shared_pid(instance: str, described: dict[str, dict[str, Any]]) -> int | None:
    processes = described.get(instance, {}).get("processes", ())
    return next((process["pid"] for process in processes if process["name"] == instance), None)


def _device_view(device: Device, up: bool, pid: int | None) -> DeviceView:
    return DeviceView(
        instance=device.instance,
        device=device.name,
        up=up,
        budget_bytes=device.budget_bytes,
        resident_bytes=device.resident_bytes,
        loading_bytes=device.loading_bytes,
        unreturned_bytes=device.unreturned_bytes,
        scratch_bytes=device.scratch_bytes(),
        free_bytes=device.free_bytes(),
        models=tuple(copy.model.name for copy in sorted(device.ready, key=lambda copy: copy.idle_since)),
        pid=pid,
    )


def explanation(core: Core, entry: Entry, history: list[Decision], now: float) -> Explanation:
    """Why a model is where it is."""
    if entry.spec is None:
        text = f"it cannot be served: {entry.problem}"
        return Explanation(model=entry.name, state="UNAVAILABLE", now=(text,), to_load=("mend its files first",), history=tuple(history))
    state, sentences, to_load = explain(core, entry.name, now)
    return Explanation(model=entry.name, state=state, now=sentences, to_load=to_load, history=tuple(history))


def statistics(counted: dict[str, ModelStatistics], entries: list[Entry], version: int) -> list[dict[str, Any]]:
    """Triton's rows; the counters are of the model, shown under its default version."""
    return [
        counted.get(entry.name, ModelStatistics()).row(entry.name, str(version or entry.default_version))
        for entry in entries
        if entry.problem is None
    ]


def metrics(core: Core, plane: DataPlane, load_s: TimeHistogram, devices: list[DeviceView], known: int) -> MetricsSnapshot:
    """All counters."""
    counters = core.world.counters
    names = sorted({*plane.models, *counters.hits, *counters.misses, *counters.loads, *(name for name, _ in counters.unloads)})
    models = []
    for name in names:
        one = plane.models.get(name, ModelStatistics())
        models.append(
            ModelCounters(
                model=name,
                outcomes=one.all_outcomes(),
                hits=counters.hits[name],
                misses=counters.misses[name],
                loads=counters.loads[name],
                load_failures=counters.load_failures[name],
                unloads={reason: count for (model, reason), count in counters.unloads.items() if model == name},
                inferences=one.inferences,
                executions=one.executions,
                success_s=one.success_s,
                failure_s=one.failure_s,
                queue_s=one.waited_s + one.queue_us / 1e6,
                compute_s=one.compute_us / 1e6,
                failures=one.failures,
                last_inference_ms=one.last_ms,
            )
        )
    return MetricsSnapshot(
        models=tuple(models),
        devices=tuple(devices),
        queue_s=plane.queue_s.view(),
        load_s=load_s.view(),
        waiting=plane.waiting,
        in_flight=core.in_flight,
        resident=sum(1 for model in core.world.models.values() if model.ready),
        known=known,
        late_events=counters.late_events,
        premature_unloads=counters.premature_unloads,
    )
