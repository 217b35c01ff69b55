"""What a copy of a model takes: the user's figure wins, then what was measured, then an estimate from the files."""

from __future__ import annotations

from dataclasses import replace

from modelpool.core.ledger import Device, Need
from modelpool.core.model import RUN_NOT_MEASURED, Learned
from modelpool.core.state import ModelState

ESTIMATED_PEAK = 2.0
"""A load that was never measured is taken to need so many times its estimate, as far as the device has it."""

NEW_SHARE = 0.3
"""Weight of a new measurement beside those before it: one that was blurred by others at work does little harm."""


def need_of(model: ModelState, device: Device) -> Need:
    """What a copy of the model would take on this device (bytes)."""
    user = model.spec.residency.size_bytes
    if user is not None:
        return Need(user, user, 0, "user")
    run_peak = model.spec.run_peak_estimate_bytes
    budget = device.budget_bytes - device.unreturned_bytes
    if (learned := model.learned.get(device.kind)) is not None:
        guess = max(0, min(run_peak, budget - learned.load_peak_bytes))
        run_peak = learned.run_peak_bytes if learned.run_peak_bytes >= 0 else guess
        return Need(learned.private_bytes, learned.load_peak_bytes, run_peak, "measured")
    estimate = model.spec.estimate_bytes
    run_peak = min(run_peak, max(0, budget - estimate))
    load_peak = max(estimate, min(int(estimate * ESTIMATED_PEAK), budget))
    return Need(estimate, load_peak, run_peak, "estimate")


def load_time_s(model: ModelState, kind: str) -> float:
    """Measured load time (0: never measured)."""
    learned = model.learned.get(kind)
    return learned.load_s if learned is not None else 0.0


def learn_load(old: Learned | None, private_bytes: int, load_peak_bytes: int, load_s: float) -> Learned:
    """Fold one more load into what is known."""
    private_bytes = max(0, private_bytes)
    load_peak_bytes = max(private_bytes, load_peak_bytes)
    if old is None:
        return Learned(private_bytes, load_peak_bytes, RUN_NOT_MEASURED, load_s)

    def blend(before: float, new: float) -> float:
        return before + NEW_SHARE * (new - before)

    private = int(blend(old.private_bytes, private_bytes))
    return replace(
        old,
        private_bytes=private,
        load_peak_bytes=max(private, int(blend(old.load_peak_bytes, load_peak_bytes))),
        load_s=blend(old.load_s, load_s),
        samples=old.samples + 1,
    )
