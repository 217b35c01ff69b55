"""What a client sends inline with a load: a configuration, and files of the model."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Any

import msgspec

from modelpool.errors import InvalidRequest

CONFIG = "config"
FILE = "file:"
_LONGEST_NAME = 255
"""Longer names of files end a Triton server."""


def is_override(name: str) -> bool:
    """Whether a parameter of a load is one of these."""
    return name == CONFIG or name.startswith(FILE)


def read_overrides(given: dict[str, Any]) -> dict[str, Any] | None:
    """The configuration as JSON text and the files as bytes, by parameter; None where there is neither. Raises InvalidRequest.

    Files come as base64 (HTTP) or as bytes (gRPC).
    """
    found = {name: value for name, value in given.items() if is_override(name)}
    if not found:
        return None
    if CONFIG not in found:
        raise InvalidRequest("files sent with a load need a configuration too; add the parameter 'config'")
    return {name: _config(value) if name == CONFIG else _file(name, value) for name, value in found.items()}


def _config(value: Any) -> str:
    try:
        if isinstance(value, str) and isinstance(msgspec.json.decode(value), dict):
            return value
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        pass
    raise InvalidRequest('parameter \'config\' must be a model configuration as JSON text, for example "{\\"max_batch_size\\": 8}"')


def _file(name: str, value: Any) -> bytes:
    version, slash, file = name.removeprefix(FILE).partition("/")
    parts = file.split("/")
    if not (slash and version.isascii() and version.isdigit()) or not all(part not in ("", ".", "..") for part in parts) or "\0" in file:
        raise InvalidRequest(f"parameter {name!r:.80} names no file of a version; write for example file:1/model.onnx")
    if any(len(part.encode("utf-8", "replace")) > _LONGEST_NAME for part in parts) or len(version) > 18:
        raise InvalidRequest(f"parameter {name!r:.40}.. is too long; a file's name has at most {_LONGEST_NAME} bytes")
    if isinstance(value, bytes):
        return value
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise InvalidRequest(f"parameter {name!r:.80} must be the file's content in base64") from error
