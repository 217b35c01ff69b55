"""Where a Triton server is, and how it is watched."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from modelpool.settings.triton import TritonAddress


@dataclass(frozen=True, slots=True)
class TritonSettings:
    """How Triton servers are watched; times in seconds.

    start_timeout_s: until one of our own answers; first_look_s: until one that should run already answers, before the server goes on
    without it; load_timeout_s: of a load; probe_s: between two looks at the index.
    """

    start_timeout_s: float = 60.0
    first_look_s: float = 5.0
    load_timeout_s: float = 600.0
    probe_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server is: the address of one that runs, or the command for one of our own. runtimes: those that it has (None: any)."""

    address: TritonAddress | None = None
    command: str | None = None
    repositories: tuple[Path, ...] = field(default=())
    runtimes: tuple[str, ...] | None = None
