"""What the core is told. Each event is a fact or a wish; `Core.handle` takes one at a time, with the time it is handled.

Events about an instance carry its generation; those about a copy also the copy's number. Late ones of a dead generation, or of a copy
that is gone, are counted and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from modelpool.core.model import Learned, ModelSpec


# --- the catalogue -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ModelAdded:
    """A model is in the catalogue, newly or with another revision or policy.

    learned: what earlier runs measured, by kind of device.
    """

    spec: ModelSpec
    learned: tuple[tuple[str, Learned], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRemoved:
    """A model left the catalogue: its copies go when their leases end, its waiters are refused.

    forgotten: it was deleted on purpose, which the refusals then say.
    """

    model: str
    forgotten: bool = False


# --- requests ------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request that `try_lease` could not serve at once.

    request: the shell's number for it, answered by `Admit` or `Refuse`; deadline: time after which it must not start (inf: none).
    """

    request: int
    model: str
    deadline: float = float("inf")


@dataclass(frozen=True, slots=True)
class RequestGone:
    """The client of a waiting request went away, or its time ran out: nobody waits for `Admit` or `Refuse` any more."""

    request: int
    model: str


@dataclass(frozen=True, slots=True)
class Settle:
    """A lease ended and `end_lease` said that something now waits for that."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that `handle` asked to be woken at has come."""


# --- wishes of users -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LoadWanted:
    """A user wants a copy (on `device`, or anywhere); answered by `CommandDone`.

    may_evict: others may be unloaded for it (a preload at start only takes what is free).
    """

    command: int
    model: str
    device: str | None = None
    deadline: float = float("inf")
    may_evict: bool = True


@dataclass(frozen=True, slots=True)
class EjectWanted:
    """A user wants a model out of `device` (or of all); answered by `CommandDone` when its bytes are back."""

    command: int
    model: str
    device: str | None = None


@dataclass(frozen=True, slots=True)
class CommandGone:
    """Nobody waits for a command's answer any more; a load that was only queued for it is dropped."""

    command: int
    model: str


@dataclass(frozen=True, slots=True)
class PinWanted:
    """A user pins or unpins a model. A pinned model is loaded and not evicted."""

    model: str
    pinned: bool


@dataclass(frozen=True, slots=True)
class KeepAliveSet:
    """A request carried a keep-alive for its model (seconds; inf: never unload for idleness)."""

    model: str
    keep_alive_s: float


# --- instances -----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Held:
    """A copy that an instance already holds when it comes up (a worker that outlived its server)."""

    copy: int
    model: str
    revision: str
    device: str
    learned: Learned


@dataclass(frozen=True, slots=True)
class InstanceUp:
    """An instance is ready: its devices with their budgets in bytes, and the copies it holds.

    runtimes: those that it has (None: any); isolates: it can give a copy a process of its own.
    """

    instance: str
    generation: int
    devices: tuple[tuple[str, int], ...]
    held: tuple[Held, ...] = ()
    runtimes: tuple[str, ...] | None = None
    isolates: bool = True


@dataclass(frozen=True, slots=True)
class InstanceDown:
    """An instance's shared process died; its copies are gone. `running`: models that were running when it did.

    outside: nothing says that one of its models brought it about, so that those who wait for a load there go on waiting.
    """

    instance: str
    generation: int
    reason: str
    running: tuple[str, ...] = ()
    outside: bool = False


@dataclass(frozen=True, slots=True)
class CopyLost:
    """One copy is gone without an unload, as its process ended.

    running: it was running a request then; stopped: the server had ended the process because it stops, which is no fault of anybody.
    """

    instance: str
    generation: int
    copy: int
    reason: str
    running: bool = False
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """A load ended well; figures in bytes and seconds."""

    instance: str
    generation: int
    copy: int
    private_bytes: int
    load_peak_bytes: int
    load_s: float


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """A load failed; `code` and `message` go to each waiter. died: the load ended its process."""

    instance: str
    generation: int
    copy: int
    code: str
    message: str
    died: bool = False


@dataclass(frozen=True, slots=True)
class Unloaded:
    """An unload ended; the bytes: as in `Observed`."""

    instance: str
    generation: int
    copy: int
    total_bytes: int | None = None
    own_bytes: tuple[tuple[int, int], ...] = ()
    unclaimed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """A measurement between loads, without what requests take that are under way.

    total_bytes: private bytes of the process that copies share, over its idle baseline (None: not measured); own_bytes: of those of
    copies with a process of their own, by copy; run_peaks: by copy. unclaimed_bytes: private bytes that none of its copies has, where the
    instance can tell that itself (then in place of total_bytes).
    """

    instance: str
    generation: int
    total_bytes: int | None = None
    run_peaks: tuple[tuple[int, int], ...] = ()
    own_bytes: tuple[tuple[int, int], ...] = ()
    unclaimed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BudgetChanged:
    """A device's budget is another now."""

    instance: str
    generation: int
    device: str
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """The server was told to stop: no new loads, waiters that need one are refused, leases run out."""


Event: TypeAlias = (
    ModelAdded
    | ModelRemoved
    | RequestArrived
    | RequestGone
    | Settle
    | Tick
    | LoadWanted
    | EjectWanted
    | CommandGone
    | PinWanted
    | KeepAliveSet
    | InstanceUp
    | InstanceDown
    | CopyLost
    | Loaded
    | LoadFailed
    | Unloaded
    | Observed
    | BudgetChanged
    | Stopping
)
