"""The core's settings: the named rules of residency and their bounds. Times in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """See the documentation of the server's settings of the same names for what each means."""

    eviction: str = "demand"
    preference: Literal["latency", "throughput"] = "latency"
    keep_alive_s: float = 300.0
    queue_bound: int = 1000
    max_in_flight: int = 512
    idle_window_s: float = 60.0
    demand_window_factor: float = 5.0
    demand_window_min_s: float = 10.0
    starvation_s: float = 10.0
    loads_at_once: int = 1
    runs_at_once: int = 2
    load_timeout_s: float = 600.0
    verify_timeout_s: float = 10.0
    verify_slack_bytes: int = 16 * MIB
    unreturned_limit_bytes: int = 64 * MIB
    run_limit_s: float = 300.0
    retry_min_s: float = 1.0
    retry_max_s: float = 60.0
    drains_at_once: int = 4
