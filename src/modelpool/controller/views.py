"""What the controller tells front ends: plain structs, ready for JSON."""

from __future__ import annotations

from typing import Any

import msgspec


class CopyView(msgspec.Struct, frozen=True, kw_only=True):
    """One copy: where it is and what it holds. Times are seconds ago."""

    instance: str
    device: str
    state: str
    charge_bytes: int
    leases: int
    idle_s: float | None
    loaded_s: float | None


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the catalogue.

    state: READY (a copy can run), LOADING, DRAINING, UNLOADING, or UNAVAILABLE; reason: why it is not READY ('not resident' where it only
    has to be asked for); tier: DEVICE or DISK; size_bytes: what a copy is charged, size_from: `user`, `measured` or `estimate`;
    last_use_s: seconds since its last completion (None: never used).
    """

    name: str
    runtime: str
    source: str
    versions: tuple[int, ...]
    state: str
    reason: str
    tier: str
    pinned: bool
    size_bytes: int
    size_from: str
    load_s: float | None
    queue: int
    in_flight: int
    last_use_s: float | None
    copies: tuple[CopyView, ...] = ()
    properties: dict[str, Any] = {}


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one instance: its budget and how the ledger fills it (bytes)."""

    instance: str
    device: str
    up: bool
    budget_bytes: int
    resident_bytes: int
    loading_bytes: int
    unreturned_bytes: int
    scratch_bytes: int
    free_bytes: int
    models: tuple[str, ...] = ()
    pid: int | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the journal; at: wall-clock seconds."""

    at: float
    kind: str
    model: str
    text: str
    figures: dict[str, Any] = {}


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a model is where it is, and what it would take to bring it in.

    now: sentences on its present state; to_load: sentences on what a load would need and evict; history: its latest decisions.
    """

    model: str
    state: str
    now: tuple[str, ...]
    to_load: tuple[str, ...]
    history: tuple[Decision, ...] = ()


class IndexRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the repository index; version and state are empty for an entry that is malformed."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """Cumulative-free bucket counts: counts[i] observations <= bounds[i], counts[-1] above all; total: sum of observations."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class ModelCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one model since the server started; outcomes: code -> count (`ok` for answers)."""

    model: str
    outcomes: dict[str, int]
    hits: int
    misses: int
    loads: int
    load_failures: int
    unloads: dict[str, int]
    inferences: int
    executions: int
    success_s: float
    failure_s: float
    queue_s: float
    compute_s: float
    failures: int
    last_inference_ms: int


class MetricsSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that /metrics shows."""

    models: tuple[ModelCounters, ...]
    devices: tuple[DeviceView, ...]
    queue_s: Histogram
    load_s: Histogram
    waiting: int
    in_flight: int
    resident: int
    known: int
    late_events: int
    premature_unloads: int
