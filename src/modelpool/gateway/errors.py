"""How errors become HTTP answers: the status of each code, and the two forms of body that clients know."""

from __future__ import annotations

import logging
import math
from typing import Any

import msgspec

from modelpool.errors import InvalidRequest, MalformedModel, ModelpoolError

log = logging.getLogger("modelpool.gateway")


class UnknownEncoding(InvalidRequest):
    """A Content-Encoding that this server cannot read."""

    code = "unknown_encoding"


class HeadTooLarge(InvalidRequest):
    """Too many bytes of headers."""

    code = "head_too_large"


class PathNotFound(InvalidRequest):
    """No such path."""

    code = "path_not_found"


class MethodNotAllowed(InvalidRequest):
    """The path exists, the method does not."""

    code = "method_not_allowed"


STATUS: dict[str, int] = {
    "bad_request": 400,
    "invalid_tensor": 400,
    "invalid_name": 400,
    "body_too_large": 413,
    "unknown_encoding": 415,
    "head_too_large": 431,
    "path_not_found": 404,
    "method_not_allowed": 405,
    "forbidden": 403,
    "not_found": 404,
    "model_not_found": 404,
    "version_not_found": 404,
    "model_forgotten": 404,
    "model_not_in_cache": 404,
    "device_not_found": 404,
    "refused": 503,
    "queue_full": 503,
    "timeout": 504,
    "no_space": 409,
    "never_fits": 507,
    "quarantined": 503,
    "instance_lost": 503,
    "unavailable": 503,
    "shutting_down": 503,
    "unsupported": 501,
    "model_fault": 500,
    "malformed_model": 500,
    "load_failed": 400,
    "model_error": 500,
}
"""HTTP status by code; all others are 500."""

RETRIED = frozenset({"queue_full", "timeout", "instance_lost", "unavailable", "shutting_down"})
"""Codes that always carry Retry-After."""

MARQO_CODES: dict[str, tuple[int, str]] = {
    "no_space": (409, "model_cache_management_error"),
    "load_failed": (400, "bad_request"),
    "malformed_model": (400, "bad_request"),
    "queue_full": (429, "too_many_requests"),
    "unsupported": (400, "invalid_argument"),
}
"""Where the model API speaks Marqo's words instead of ours."""


def as_modelpool_error(error: BaseException) -> ModelpoolError:
    """The error itself, or a plain internal one for something that should not have happened (logged with its trace)."""
    if isinstance(error, ModelpoolError):
        return error
    log.error("internal error", exc_info=error)
    return ModelpoolError(f"internal error ({type(error).__name__}); see the server's log")


def status_of(error: ModelpoolError, *, serving: bool = False) -> int:
    """HTTP status of an error. A malformed model is 404 to those that want to use it, as with Triton, which never takes it up."""
    if serving and isinstance(error, MalformedModel):
        return 404
    return STATUS.get(error.code, 500)


def retry_after(error: ModelpoolError) -> int | None:
    """Whole seconds for Retry-After, at least 1; None where a retry makes no sense."""
    seconds = error.retry_after_s
    if seconds is None and error.code in RETRIED:
        seconds = 1.0
    return None if seconds is None or not math.isfinite(seconds) else max(1, math.ceil(seconds))


def oip_body(error: ModelpoolError) -> bytes:
    """Body of an error in the Open Inference Protocol's form, with our code beside it."""
    return msgspec.json.encode({"error": error.message, "code": error.code})


def marqo_form(error: ModelpoolError) -> tuple[int, dict[str, Any]]:
    """Status and body of an error in Marqo's form; `modelpool_code` tells our own client the code that Marqo has no word for."""
    status, code = MARQO_CODES.get(error.code, (status_of(error), error.code))
    kind = "invalid_request" if status < 500 else "internal_error"
    return status, {"message": error.message, "code": code, "type": kind, "link": None, "modelpool_code": error.code}
