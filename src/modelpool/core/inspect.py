"""Short answers about one model, for whoever shows them. Nothing here changes anything."""

from __future__ import annotations

from modelpool.core.copies import CopyState
from modelpool.core.planner import eligible
from modelpool.core.sizes import need_of
from modelpool.core.state import ModelState, World

_ORDER = (CopyState.READY, CopyState.LOADING, CopyState.DRAINING, CopyState.UNLOADING)


def model_state(model: ModelState) -> tuple[str, str]:
    """The state of its best copy and why it is not READY; UNAVAILABLE without a copy ('not resident', or why it failed)."""
    for state in _ORDER:
        for copy in model.copies.values():
            if copy.state is state:
                return state.value, _reasons(copy.unload_reason)[state]
    if model.failure is not None:
        return "UNAVAILABLE", model.failure.message
    return "UNAVAILABLE", "not resident"


def _reasons(unload_reason: str) -> dict[CopyState, str]:
    return {
        CopyState.READY: "",
        CopyState.LOADING: "loading",
        CopyState.DRAINING: f"leaves when its requests end ({unload_reason})",
        CopyState.UNLOADING: f"unloading ({unload_reason})",
    }


def size_of(model: ModelState, world: World) -> tuple[int, str]:
    """Bytes that a copy is charged, and where the figure comes from: `user`, `measured` or `estimate`."""
    resident = next((copy for copy in model.copies.values() if copy.state is not CopyState.LOADING), None)
    if resident is not None:
        return resident.charge_bytes, need_of(model, resident.device).source
    for device in eligible(world, model):
        need = need_of(model, device)
        return need.charge, need.source
    user = model.spec.residency.size_bytes
    return (user, "user") if user is not None else (model.spec.estimate_bytes, "estimate")
