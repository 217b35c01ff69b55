"""The error tree. It knows no transport: front ends map `code` to their own status.

ModelpoolError
 +-- InvalidRequest            bad_request             the client's input is wrong; says what to send instead
 |    +-- InvalidTensor        invalid_tensor          name, shape, type or byte count of a tensor
 |    +-- InvalidName          invalid_name            a model name that can name no model
 |    +-- BodyTooLarge         body_too_large
 |    +-- Forbidden            forbidden               outside the roots that the user allowed
 +-- NotFound
 |    +-- UnknownModel         model_not_found
 |    +-- UnknownVersion       version_not_found
 |    +-- ForgottenModel       model_forgotten         it was deleted from the catalogue on purpose
 |    +-- NotCached            model_not_in_cache      eject of something that is not resident
 |    +-- UnknownDevice        device_not_found
 +-- Refused                                           a retry may succeed: `retry_after_s`
 |    +-- QueueFull            queue_full
 |    +-- RequestTimeout       timeout
 |    +-- NoSpace              no_space                policy `none`: eject something first
 |    +-- NeverFits            never_fits              larger than what any device may hold
 |    +-- Quarantined          quarantined             it broke its process too often
 |    +-- InstanceLost         instance_lost           the instance died while it ran the request
 |    +-- Unavailable          unavailable             a process that it needs cannot be started now (full disk, no descriptors)
 |    +-- ShuttingDown         shutting_down
 |    +-- Unsupported          unsupported             needs a part that is not installed or not built yet
 +-- ModelFault                                        the model is at fault
 |    +-- MalformedModel       malformed_model         its files or configuration cannot be used
 |    +-- LoadFailed           load_failed
 |    +-- ModelError           model_error             it raised while it ran a request
 +-- SetupError                setup_error             the server cannot start or go on like this
      +-- StateError           state_error             state folder: newer version, locked, unreadable, full
      +-- UnknownSetting       unknown_setting
"""

from __future__ import annotations

from typing import ClassVar

MOST_CHARS = 4000
"""Longer texts of errors are cut: they go into answers, logs and the journal."""


def shortened(text: str, most: int = MOST_CHARS) -> str:
    """The text, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]}.. ({len(text)} characters in all)"


def text_of(error: BaseException) -> str:
    """An exception's own words, whatever its class does; never raises."""
    try:
        return shortened(str(error), MOST_CHARS * 3 // 4)  # others put words of their own around it
    except BaseException:
        return "(its message cannot be read)"


class ModelpoolError(Exception):
    """Base of all errors: a sentence for the user and a `code` for programs.

    retry_after_s: seconds after which a retry makes sense, None where it makes none.
    """

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        # A model's own words may be no text that can be sent, and of any length.
        message = shortened(message).encode("utf-8", "backslashreplace").decode()
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class InvalidRequest(ModelpoolError):
    """The request itself is wrong."""

    code = "bad_request"


class InvalidTensor(InvalidRequest):
    """A tensor's name, shape, type or byte count does not fit the model."""

    code = "invalid_tensor"


class InvalidName(InvalidRequest):
    """No model can have this name."""

    code = "invalid_name"


class BodyTooLarge(InvalidRequest):
    """The body exceeds the configured bound."""

    code = "body_too_large"


class Forbidden(InvalidRequest):
    """A path or address outside what the user allowed."""

    code = "forbidden"


class NotFound(ModelpoolError):
    """Something that was named does not exist."""

    code = "not_found"


class UnknownModel(NotFound):
    """The catalogue has no such model."""

    code = "model_not_found"


class UnknownVersion(NotFound):
    """The model has no such version, or its version policy leaves it out."""

    code = "version_not_found"


class ForgottenModel(NotFound):
    """The model was deleted from the catalogue and stays out until it is posted again."""

    code = "model_forgotten"


class NotCached(NotFound):
    """The model is not resident where it was to be ejected."""

    code = "model_not_in_cache"


class UnknownDevice(NotFound):
    """No instance has such a device."""

    code = "device_not_found"


class Refused(ModelpoolError):
    """The request was sound, the server cannot serve it now."""

    code = "refused"


class QueueFull(Refused):
    """The queue of the model, or the bodies of all requests together, have reached their bound."""

    code = "queue_full"


class RequestTimeout(Refused):
    """The request's time ran out before it ran."""

    code = "timeout"


class NoSpace(Refused):
    """Nothing may be evicted for it (policy `none`, or only pinned models are in the way)."""

    code = "no_space"


class NeverFits(Refused):
    """The model is larger than any device's budget."""

    code = "never_fits"


class Quarantined(Refused):
    """The model broke its process too often and is kept out until it changes or a user loads it."""

    code = "quarantined"


class InstanceLost(Refused):
    """The instance died while it ran the request; whether it took effect is not known."""

    code = "instance_lost"


class Unavailable(Refused):
    """A worker process cannot be started now, for a reason that is not the model's; it is tried again."""

    code = "unavailable"


class ShuttingDown(Refused):
    """The server was told to stop."""

    code = "shutting_down"


class Unsupported(Refused):
    """A part that is not installed, or that this version does not have."""

    code = "unsupported"


class ModelFault(ModelpoolError):
    """The model is at fault."""

    code = "model_fault"


class MalformedModel(ModelFault):
    """The model's files or configuration cannot be used."""

    code = "malformed_model"


class LoadFailed(ModelFault):
    """The model could not be loaded."""

    code = "load_failed"


class ModelError(ModelFault):
    """The model raised an error while it ran a request."""

    code = "model_error"


class SetupError(ModelpoolError):
    """The server cannot start, or cannot go on, as it is set up."""

    code = "setup_error"


class StateError(SetupError):
    """The state folder is of a newer version, in use, unreadable or full."""

    code = "state_error"


class UnknownSetting(SetupError):
    """A setting that does not exist; the message names the nearest known one."""

    code = "unknown_setting"


def _tree(cls: type[ModelpoolError]) -> dict[str, type[ModelpoolError]]:
    found = {cls.code: cls}
    for child in cls.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: dict[str, type[ModelpoolError]] = _tree(ModelpoolError)


def from_code(code: str, message: str, *, retry_after_s: float | None = None) -> ModelpoolError:
    """Rebuild an error that crossed a process border; an unknown code gives the base class."""
    return BY_CODE.get(code, ModelpoolError)(message, retry_after_s=retry_after_s)
