"""How errors become gRPC answers: status, message, and what stands beside them."""

from __future__ import annotations

from typing import NamedTuple

from grpc import StatusCode

from modelpool.errors import ModelpoolError
from modelpool.gateway.errors import as_modelpool_error, retry_after, status_of

_BY_HTTP = {
    400: StatusCode.INVALID_ARGUMENT,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    409: StatusCode.FAILED_PRECONDITION,
    413: StatusCode.RESOURCE_EXHAUSTED,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
    507: StatusCode.RESOURCE_EXHAUSTED,
}


class Status(NamedTuple):
    """An error as gRPC has it. trailing: `modelpool-code`, and `retry-after` in seconds where a retry makes sense."""

    code: StatusCode
    details: str
    trailing: tuple[tuple[str, str], ...]


def status(error: BaseException, *, serving: bool = True) -> Status:
    """The status of an error; the codes correspond to those of HTTP. serving: it is told to somebody who wants to use the model."""
    known = as_modelpool_error(error)
    trailing = [("modelpool-code", known.code)]
    if (seconds := retry_after(known)) is not None:
        trailing.append(("retry-after", str(seconds)))
    code = _BY_HTTP.get(status_of(known, serving=serving), StatusCode.INTERNAL)
    return Status(code, details_of(known), tuple(trailing))


def details_of(error: ModelpoolError) -> str:
    """The message as it may stand in a header: gRPC encodes anything but half a surrogate pair."""
    return error.message.encode("utf-8", "replace").decode()
