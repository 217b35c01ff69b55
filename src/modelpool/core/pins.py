"""Whether a pin can be kept: a model that can never be resident beside all that must stay is not worth the promise."""

from __future__ import annotations

from modelpool.core.admission import missing_device, never_fits_text
from modelpool.core.copies import CopyState
from modelpool.core.ledger import Device
from modelpool.core.planner import eligible, never_fits
from modelpool.core.sizes import need_of
from modelpool.core.state import ModelState, World
from modelpool.units import format_bytes


def pin_problem(world: World, name: str) -> tuple[str, str] | None:
    """Code and words of why this model could not be kept resident; None where it could, or where that is not known yet."""
    model = world.models.get(name)
    if model is None:
        return None
    if any(copy.state in (CopyState.LOADING, CopyState.READY) for copy in model.copies.values()):
        return None
    if (missing := missing_device(world, model, None)) is not None:
        return "never_fits", missing
    if (never := never_fits(world, model)) is not None:
        return "never_fits", never_fits_text(never, model)
    problem = None
    for device in eligible(world, model):
        problem = _crowded(world, model, device)
        if problem is None:
            return None
    return problem


def _crowded(world: World, model: ModelState, device: Device) -> tuple[str, str] | None:
    """Why there is no room on a device beside what is pinned or kept there, resident or still to come."""
    need = need_of(model, device)
    room = device.budget_bytes - need.hold
    peaks = [need.run_peak]
    others: list[str] = []
    for other in world.models.values():
        if other is model or not other.kept or (found := _share(world, other, device)) is None:
            continue
        room -= found[0]
        peaks.append(found[1])
        others.append(other.name)
    room -= sum(sorted(peaks, reverse=True)[: device.runs_at_once])
    if room >= 0 or not others:
        return None
    return "no_space", (
        f"model '{model.name}' needs {format_bytes(need.alone)} on {device.name}, {format_bytes(-room)} more than what is pinned or kept "
        f"there leaves of {format_bytes(device.budget_bytes)}; unpin {', '.join(sorted(others))} first, "
        f"or give the device more (--device {device.name}=SIZE)"
    )


def _share(world: World, model: ModelState, device: Device) -> tuple[int, int] | None:
    """What a model that stays takes of a device, and its run peak; None where it is on another one, or can be on none."""
    on = [copy for copy in model.copies.values() if copy.device is device]
    if on:
        return sum(copy.charge_bytes for copy in on), max(copy.run_peak_bytes for copy in on)
    need = need_of(model, device)
    if model.copies or eligible(world, model) != [device] or need.alone > device.budget_bytes:
        return None
    return need.charge, need.run_peak
