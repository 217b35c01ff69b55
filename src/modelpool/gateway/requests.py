"""What the routes share: bounded bodies, JSON in and out, the query, errors in either form."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from modelpool.errors import InvalidName, InvalidRequest, ModelpoolError, UnknownModel
from modelpool.gateway.bodies import too_large
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.errors import as_modelpool_error, marqo_form, oip_body, retry_after, status_of
from modelpool.gateway.paths import decode_name
from modelpool.protocol.jsonfaults import json_fault

Handler = Callable[[Request], Awaitable[Response]]


def controller_of(request: Request) -> DataPlane:
    """The controller behind the application."""
    found: DataPlane = request.app.state.controller
    return found


# --- answers ---------------------------------------------------------------------------------------------------------------------
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
        except HTTPException:
            raise
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Exception as error:
            return as_response(error)

    return guarded


# --- what comes in ---------------------------------------------------------------------------------------------------------------
async def read_body(request: Request) -> bytes:
    """The body, bounded by the setting. Raises BodyTooLarge."""
    limit = controller_of(request).settings.body_limit_bytes
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise too_large(limit)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise too_large(limit)
    return bytes(body)


async def read_json(request: Request) -> dict[str, Any]:
    """The body as a JSON object ({} where it is empty). Raises InvalidRequest."""
    body = await read_body(request)
    if not body.strip():
        return {}
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"failed to parse the request JSON: {json_fault(error, body)}") from error
    if not isinstance(found, dict):
        raise InvalidRequest("the body must be a JSON object, like {}")
    return found


def text_of(found: dict[str, Any], name: str) -> str | None:
    """A text field of a JSON object, None where it is not there. Raises InvalidRequest where it is something else."""
    value = found.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidRequest(f"field '{name}' must be a text that is not empty")
    return value


def raw_query(request: Request, name: str) -> bytes | None:
    """A query parameter as it was sent, still escaped."""
    query: bytes = request.scope["query_string"]
    for part in query.split(b"&"):
        key, _, value = part.partition(b"=")
        if unquote_to_bytes(key) == name.encode():
            return value
    return None


def query_text(request: Request, name: str) -> str | None:
    """A query parameter, `+` and all. Raises InvalidName where it is not UTF-8."""
    value = raw_query(request, name)
    return decode_name(value) if value is not None else None


def flag_of(request: Request, name: str) -> bool:
    """A query parameter that is true or false (the default). Raises InvalidRequest."""
    value = (query_text(request, name) or "false").lower()
    if value not in ("true", "false", "1", "0"):
        raise InvalidRequest(f"query parameter '{name}' must be true or false")
    return value in ("true", "1")


def queried_model(request: Request) -> str:
    """The query's `model_name`, which need not be known. Raises InvalidRequest where it is missing.

    The marqo client sends a plus as it is and a space as %20, others send a space as a plus: the first reading wins if it names a model.
    """
    raw = raw_query(request, "model_name")
    if not raw:
        raise InvalidRequest("query parameter 'model_name' is missing; write for example ?model_name=my-model")
    name = decode_name(raw)
    if b"+" in raw and not _known(request, name):
        spaced = decode_name(raw.replace(b"+", b" "))
        return spaced if _known(request, spaced) else name
    return name


def _known(request: Request, name: str) -> bool:
    try:
        controller_of(request).entry(name)
    except (UnknownModel, InvalidName):
        return False
    except ModelpoolError:
        pass  # forgotten, which is a kind of known
    return True
