"""What a Triton server's refusals mean: whose fault it is, and whether the model is still there."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec


class Loss(Enum):
    """What a refusal says of the copy."""

    NONE = "it is there"
    GONE = "the server does not have it any more, and the request did not run"
    BROKEN = "its process has died, and the server does not bring it back by itself"


class Verdict(NamedTuple):
    """An error's code and message for the client, and what became of the copy."""

    loss: Loss
    code: str
    message: str


class _Error(msgspec.Struct):
    error: str = ""


def judge(status: int, body: bytes | memoryview) -> Verdict:
    """The meaning of an answer that is not 200."""
    message = _message(status, body)
    if "is not healthy" in message and "tub process" in message:
        return Verdict(Loss.BROKEN, "instance_lost", f"the process of the model in Triton has died: {message}")
    if status == 404 and ("no available versions" in message or ("unknown model" in message and " version " not in message)):
        return Verdict(Loss.GONE, "model_not_in_cache", message)
    if status == 503 and "ready state" in message:
        return Verdict(Loss.GONE, "model_not_in_cache", message)
    return Verdict(Loss.NONE, _code(status, message), message)


def _message(status: int, body: bytes | memoryview) -> str:
    try:
        found = msgspec.json.decode(body, type=_Error).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = bytes(body[:500]).decode("utf-8", "replace")
    return found.strip() or f"Triton answered {status} and no reason"


def _code(status: int, message: str) -> str:
    if "maximum queue size" in message:
        return "queue_full"
    if "timeout expired" in message.lower():
        return "timeout"
    if status == 501:
        return "unsupported"
    if status == 404:
        return "version_not_found"
    if 400 <= status < 500:
        return "bad_request"
    return "unavailable" if status == 503 else "model_error"
