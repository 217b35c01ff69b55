"""Errors of the client itself, and how a refusal on the wire becomes one of the project's exceptions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from modelpool.errors import BY_CODE, InvalidRequest, ModelpoolError, NoSpace, NotFound, QueueFull, Refused, SetupError, UnknownDevice


class ConnectionFailed(ModelpoolError):
    """No server answered at the address, or it went away before it had answered."""

    code = "connection_failed"


# Codes that only the Marqo dialect has.
_DIALECT: dict[str, type[ModelpoolError]] = {
    "model_cache_management_error": NoSpace,
    "too_many_requests": QueueFull,
    "hardware_compatability_error": UnknownDevice,
    "invalid_argument": InvalidRequest,
    "unprocessable_entity": InvalidRequest,
    "server_configuration_error": SetupError,
}


def error_from_reply(status: int, headers: Mapping[str, str], body: bytes) -> ModelpoolError:
    """The exception for an answer with an error status: its class by the answer's code, else by the status."""
    retry_after_s = retry_after(headers)
    content = _json_object(body)
    code = str(content.get("modelpool_code") or content.get("code") or "")
    message = content.get("error") or content.get("message")
    if not isinstance(message, str):
        text = body[:200].decode("utf-8", "replace").strip()
        message = f"the server answered {status}" + (f": {text}" if text else " without saying why")
    cls = BY_CODE.get(code) or _DIALECT.get(code) or _by_status(status)
    return cls(message, retry_after_s=retry_after_s)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the answer asks to wait; None where it does not say, or says it in no known form.

    A date is read relative to the answer's own `Date`, so that the two machines' clocks need not agree.
    """
    text = headers.get("retry-after")
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(text)) if math.isfinite(float(text)) else None
    try:
        return max(0.0, (parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))).total_seconds())
    except (ValueError, TypeError):
        return None


def _by_status(status: int) -> type[ModelpoolError]:
    if status == 404:
        return NotFound
    if status in (429, 503):
        return Refused
    return InvalidRequest if 400 <= status < 500 else ModelpoolError


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return content if isinstance(content, dict) else {}
