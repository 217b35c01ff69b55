"""Copies and leases: the life cycle is data, the objects are small and changed only by the core."""

from __future__ import annotations

from enum import Enum
from typing import Any

from modelpool.core.timers import Alarm


class CopyState(Enum):
    """Where a copy is in its life."""

    LOADING = "LOADING"
    READY = "READY"
    DRAINING = "DRAINING"
    UNLOADING = "UNLOADING"
    GONE = "GONE"


#   from        to          when
#   LOADING     READY       Loaded
#   LOADING     UNLOADING   Loaded, but nobody may have it any more (removed, changed, measured too large)
#   LOADING     GONE        LoadFailed, InstanceDown, CopyLost
#   READY       DRAINING    chosen as a victim, ejected, removed or idle while leases are out
#   READY       UNLOADING   the same with no lease out
#   READY       GONE        InstanceDown, CopyLost
#   DRAINING    READY       revoked: the reason for which it was to go is gone
#   DRAINING    UNLOADING   the last lease ended
#   DRAINING    GONE        InstanceDown, CopyLost
#   UNLOADING   GONE        Unloaded, InstanceDown, CopyLost
TRANSITIONS: dict[CopyState, frozenset[CopyState]] = {
    CopyState.LOADING: frozenset({CopyState.READY, CopyState.UNLOADING, CopyState.GONE}),
    CopyState.READY: frozenset({CopyState.DRAINING, CopyState.UNLOADING, CopyState.GONE}),
    CopyState.DRAINING: frozenset({CopyState.READY, CopyState.UNLOADING, CopyState.GONE}),
    CopyState.UNLOADING: frozenset({CopyState.GONE}),
    CopyState.GONE: frozenset(),
}


SLOW_LOAD_S = 10.0
"""A load in a process of its own that takes longer no longer keeps others from being loaded: its model may be blocking."""

UNLOAD_REASONS = ("space", "idle", "eject", "changed", "removed", "too large", "duplicate", "recycle", "grown")
"""Why copies leave: room for another; idle for the keep-alive; a user's wish; another revision; out of the catalogue; measured larger than
the budget; found twice on one device; its process is started anew; its own process holds much more than it was charged for."""


class Copy:
    """One model resident on one device of one instance.

    route: free for the shell; it keeps there what it needs to send a request to this copy (set before READY).
    """

    __slots__ = (
        "charge_bytes",
        "device",
        "generation",
        "ident",
        "idle_alarm",
        "idle_due_at",
        "idle_since",
        "instance",
        "isolated",
        "keep_alive_s",
        "killed",
        "leases",
        "live",
        "load_peak_bytes",
        "loaded_at",
        "model",
        "place",
        "revision",
        "route",
        "run_peak_bytes",
        "served",
        "slot",
        "state",
        "state_since",
        "unload_reason",
    )

    def __init__(self, ident: int, model: Any, instance: str, generation: int, device: Any, revision: str, isolated: bool) -> None:
        self.ident = ident
        self.model = model
        self.instance = instance
        self.generation = generation
        self.device = device
        self.revision = revision
        self.isolated = isolated
        self.state = CopyState.LOADING
        self.state_since = 0.0
        self.charge_bytes = 0
        self.load_peak_bytes = 0
        self.run_peak_bytes = 0
        self.leases = 0
        self.live: dict[Lease, None] = {}
        self.served = 0
        self.loaded_at = 0.0
        self.idle_since = 0.0
        self.idle_due_at = 0.0
        self.idle_alarm = Alarm()
        self.keep_alive_s = 0.0
        self.unload_reason = ""
        self.slot = -1
        self.place = 0
        self.killed = False
        self.route: Any = None

    def loads_slowly(self, now: float) -> bool:
        """Whether others need not wait for its load any more: it has gone on for long, in a process of its own."""
        return self.isolated and now >= self.state_since + SLOW_LOAD_S

    def lease(self, now: float) -> Lease:
        """One more hold on the copy."""
        lease = Lease(self, now)
        self.live[lease] = None
        self.leases += 1
        return lease

    def move(self, to: CopyState, now: float) -> None:
        """Change state; a step that the table does not have is a fault of the core."""
        if to not in TRANSITIONS[self.state]:
            raise AssertionError(f"copy {self.ident} of {self.model}: {self.state.value} -> {to.value} is not in the life cycle")
        self.state = to
        self.state_since = now


class Lease:
    """The hold of one request on a copy, from `try_lease` or `Admit` to `end_lease`.

    members: what the same request holds of the models that its own requires; they end with it.
    """

    __slots__ = ("copy", "live", "members", "started")

    def __init__(self, copy: Copy, started: float) -> None:
        self.copy = copy
        self.started = started
        self.live = True
        self.members: tuple[Lease, ...] = ()
