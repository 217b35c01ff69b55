"""What the core knows of a model: plain frozen data, made by the repository, never changed in place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Isolation = Literal["shared", "process"]

MOST_PRIORITY = 16
"""Priorities are from minus this to this."""


@dataclass(frozen=True, slots=True)
class Residency:
    """A model's residency policy (`modelpool.yaml` beside it; rule 6 of the design).

    pinned: loaded at start, neither evicted nor unloaded for idleness; priority: each step doubles the model's weight in loading and
    eviction, from -MOST_PRIORITY to MOST_PRIORITY; min_copies: above 0 a copy is loaded without demand and kept like that of a pinned
    model, though a user may eject it, which loads it anew; keep_alive_s: idle time before it is unloaded (None: the server's setting,
    inf: never); device: the only device it may use (None: any that its runtime supports); size_bytes: the user's figure for its private
    bytes (above all estimates and measurements); isolation: `process` gives it a process of its own (None: what its runtime asks for);
    preload: loaded at start where there is room.

    requires: models of which each request of this one holds a copy too, all or nothing (`closures`).

    Without effect so far, as a model has at most one copy: min_copies beyond 1 (counts as 1) and max_copies.
    """

    pinned: bool = False
    priority: int = 0
    min_copies: int = 0
    max_copies: int = 1
    keep_alive_s: float | None = None
    device: str | None = None
    size_bytes: int | None = None
    requires: tuple[str, ...] = ()
    isolation: Isolation | None = None
    preload: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model of the catalogue, as the core sees it.

    revision: changes whenever the files or the configuration do; device_kinds: `cpu`, `cuda` in order of preference;
    estimate_bytes: private bytes after a load, guessed from the files; run_peak_estimate_bytes: the same for one run;
    isolation: where it runs, the residency policy and the runtime's own wish already weighed; steps_first: what it requires is loaded
    before it.
    """

    name: str
    revision: str
    runtime: str
    device_kinds: tuple[str, ...] = ("cpu",)
    estimate_bytes: int = 0
    run_peak_estimate_bytes: int = 0
    isolation: Isolation = "shared"
    residency: Residency = field(default_factory=Residency)
    steps_first: bool = False


RUN_NOT_MEASURED = -1
"""For `Learned.run_peak_bytes`: no run was measured yet, the estimate still counts."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What was measured of a model on a kind of device: bytes and seconds; `samples` says how often it was loaded.

    private_bytes: after a load; load_peak_bytes: the most while loading; run_peak_bytes: what a run adds at most;
    run_s: mean time of a run (for the simulator).
    """

    private_bytes: int
    load_peak_bytes: int
    run_peak_bytes: int
    load_s: float
    run_s: float = 0.0
    samples: int = 1
