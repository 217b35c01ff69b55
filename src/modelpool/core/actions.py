"""What the core asks of the shell, and why. The shell carries actions out in order and reports back by events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from modelpool.core.copies import Lease


@dataclass(frozen=True, slots=True)
class Load:
    """Load a copy on a device of an instance; answered by `Loaded` or `LoadFailed`."""

    instance: str
    generation: int
    copy: int
    model: str
    revision: str
    device: str
    isolated: bool


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload a copy; answered by `Unloaded` once its memory is back."""

    instance: str
    generation: int
    copy: int
    model: str


@dataclass(frozen=True, slots=True)
class Admit:
    """A waiting request may run now, under this lease."""

    request: int
    lease: Lease


@dataclass(frozen=True, slots=True)
class Refuse:
    """A waiting request will not run; `code` is one of `errors.BY_CODE`."""

    request: int
    code: str
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class CommandDone:
    """A user's command ended: well where `code` is None. devices: where the model was loaded or ejected."""

    command: int
    devices: tuple[str, ...] = ()
    code: str | None = None
    message: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Recycle:
    """End an instance's processes and start them anew (`copy`: only the process of that isolated copy).

    The shell reports `InstanceDown` (or `CopyLost`) and later `InstanceUp`.
    """

    instance: str
    generation: int
    reason: str
    copy: int | None = None


Action: TypeAlias = Load | Unload | Admit | Refuse | CommandDone | Recycle


@dataclass(frozen=True, slots=True)
class Reason:
    """One decision for the journal: what was decided about which model, in a sentence, with the figures behind it."""

    kind: str
    model: str
    text: str
    figures: dict[str, Any] = field(default_factory=dict)
