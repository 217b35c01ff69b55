"""Which instances a server has, and what each may hold: embedded workers, Triton servers that run already, Triton servers of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil

from modelpool.controller.catalogue import Catalogue
from modelpool.errors import SetupError
from modelpool.instances.embedded import EmbeddedInstance
from modelpool.instances.peer import EmbeddedSettings
from modelpool.instances.triton.instance import TritonInstance
from modelpool.instances.triton.place import Place, TritonSettings
from modelpool.instances.triton.server import backends_of
from modelpool.ports import CallSink, Clock, EventSink, Instance
from modelpool.repository.entry import Entry
from modelpool.settings import Settings
from modelpool.units import format_bytes

EMBEDDED = "local"
"""The name of the embedded instance of this machine."""
AUTO_SHARE = 0.8
"""Without budgets the devices of all instances get this share of what is free at start."""

Budgets = dict[str, dict[str, int]]


def places(settings: Settings) -> dict[str, Place]:
    """The Triton servers by the name of their instance, those that run already first. Raises SetupError."""
    found: dict[str, Place] = {}
    for address in settings.triton:
        if address.http_port is None:
            raise SetupError(f"--triton {address} names no HTTP port, and requests are sent there; write {address.grpc},HTTP=8000")
        found[f"triton{len(found)}"] = Place(address=address, runtimes=_runtimes(address.backends))
    for command in settings.triton_command:
        found[f"triton{len(found)}"] = Place(command=command, repositories=settings.repositories, runtimes=_runtimes(backends_of(command)))
    return found


def _runtimes(backends: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Triton's names for backends as the catalogue's for runtimes; ensembles need none."""
    return None if backends is None else (*("onnx" if name == "onnxruntime" else name for name in backends), "ensemble")


def budgets(settings: Settings, entries: Iterable[Entry]) -> Budgets:
    """Bytes by instance and device. Raises SetupError for an instance or device that is not there, or one too small for any model.

    A budget without an instance is for each Triton server that has none of its own, and for the embedded workers where there is no Triton
    server. Beside Triton servers there are embedded workers only where they have a budget (`local/cpu=..`).
    """
    tritons = list(places(settings))
    names = tritons or [EMBEDDED]
    for name in settings.devices:
        instance = name.rpartition("/")[0]
        if instance and instance not in (*tritons, EMBEDDED):
            raise SetupError(f"--device {name}: there is no instance {instance!r}; there are {', '.join([EMBEDDED, *tritons])}")
        if instance == EMBEDDED and EMBEDDED not in names:
            names = [EMBEDDED, *names]
    wished = {name: _wished(settings, name) for name in names}
    autos = sum(size == "auto" for devices in wished.values() for size in devices.values())
    found: Budgets = {}
    for instance, devices in wished.items():
        found[instance] = {}
        for device, size in devices.items():
            if device != "cpu" and instance == EMBEDDED:
                raise SetupError(f"there is no device {device!r} on this machine that this version can use; it has: cpu")
            if device != "cpu" and isinstance(size, str):
                raise SetupError(f"how much of {device} {instance} may use is not known; write --device {instance}/{device}=SIZE")
            auto = int(psutil.virtual_memory().available * AUTO_SHARE / max(1, autos))
            found[instance][device] = auto if isinstance(size, str) else size
    _check_largest(found, entries)
    return found


def _wished(settings: Settings, instance: str) -> dict[str, int | str]:
    own = {name.rpartition("/")[2]: size for name, size in settings.devices.items() if name.startswith(f"{instance}/")}
    general = {name: size for name, size in settings.devices.items() if "/" not in name}
    return {**own} or {**general} or {"cpu": "auto"}


def _check_largest(found: Budgets, entries: Iterable[Entry]) -> None:
    largest = max(size for devices in found.values() for size in devices.values())
    needs = {
        entry.name: entry.spec.residency.size_bytes or entry.spec.estimate_bytes
        for entry in entries
        if entry.spec is not None and entry.spec.estimate_bytes > 0
    }
    if needs and largest < min(needs.values()):
        name = min(needs, key=lambda one: needs[one])
        raise SetupError(
            f"the largest budget is {format_bytes(largest)}, and the smallest model, '{name}', needs about "
            f"{format_bytes(needs[name])}; give more with --device cpu=SIZE"
        )


def make_instances(
    settings: Settings,
    found: Budgets,
    catalogue: Catalogue,
    events: EventSink,
    calls: CallSink,
    clock: Clock,
    new_copy: Callable[[], int],
) -> dict[str, Instance]:
    """The instances by name, none of them started."""
    run_dir = settings.state_dir / "run"
    instances: dict[str, Instance] = {}
    if EMBEDDED in found:
        embedded = EmbeddedSettings(orphan_grace_s=settings.orphan_grace_s, load_timeout_s=settings.load_timeout_s)
        instances[EMBEDDED] = EmbeddedInstance(EMBEDDED, found[EMBEDDED], run_dir, events, calls, clock, embedded)
    for name, place in places(settings).items():
        watched = TritonSettings(load_timeout_s=settings.load_timeout_s)
        instances[name] = TritonInstance(name, place, found[name], run_dir, events, calls, clock, catalogue.entries_get, new_copy, watched)
    return instances
