"""What the routes share: bounded bodies, JSON in and out, names from paths, errors in either form."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from modelpool.errors import BodyTooLarge, InvalidRequest, ModelpoolError
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.errors import as_modelpool_error, marqo_form, oip_body, retry_after, status_of

Handler = Callable[[Request], Awaitable[Response]]


def controller_of(request: Request) -> DataPlane:
    """The controller behind the application."""
    found: DataPlane = request.app.state.controller
    return found


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response of plain data or structs."""
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def _headers(error: ModelpoolError) -> dict[str, str]:
    seconds = retry_after(error)
    return {} if seconds is None else {"Retry-After": str(seconds)}


def oip_error(error: BaseException, status: int | None = None) -> Response:
    """An error in the Open Inference Protocol's form."""
    known = as_modelpool_error(error)
    return Response(oip_body(known), status or status_of(known), _headers(known), media_type="application/json")


def marqo_error(error: BaseException) -> Response:
    """An error in Marqo's form."""
    known = as_modelpool_error(error)
    status, content = marqo_form(known)
    return json_response(content, status, _headers(known))


def oip(handler: Handler) -> Handler:
    """A route whose errors have the Open Inference Protocol's form."""
    return _guarded(handler, oip_error)


def marqo(handler: Handler) -> Handler:
    """A route whose errors have Marqo's form."""
    return _guarded(handler, marqo_error)


def _guarded(handler: Handler, as_response: Callable[[BaseException], Response]) -> Handler:
    @functools.wraps(handler)
    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            return as_response(error)

    return guarded


async def read_body(request: Request) -> bytes:
    """The body, bounded by the setting; raises BodyTooLarge."""
    limit = controller_of(request).settings.body_limit_bytes
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"the body exceeds the limit of {limit} bytes (setting body_limit)")
        parts.append(part)
    return b"".join(parts)


async def read_json(request: Request) -> dict[str, Any]:
    """The body as a JSON object ({} where it is empty); raises InvalidRequest."""
    body = await read_body(request)
    if not body.strip():
        return {}
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"failed to parse the request JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequest("the request must be a JSON object")
    return found


def version_of(request: Request) -> int:
    """The version named in the path (0: none); raises InvalidRequest."""
    text = request.path_params.get("version")
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest(f"version '{text}' is not a number")
    return int(text)


def text_of(found: dict[str, Any], name: str, *, required: bool = False) -> str | None:
    """A text field of a JSON object; raises InvalidRequest where it is something else, or missing though required."""
    value = found.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"field '{name}' must be a text that is not empty")
    return value
