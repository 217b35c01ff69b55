"""What a path below /v2/models names. The raw path decides, so that a name may hold a slash, plain or as %2F."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import httptools

from modelpool.errors import InvalidName, InvalidRequest
from modelpool.repository.layouts import MAX_VERSION

_MODEL = re.compile(
    rb"/+v2/models/(?P<name>[^/].*?|(?=/))(?:/versions/(?P<version>[^/]*))?"
    rb"(?:/(?P<action>infer|ready|config|stats|generate|generate_stream|trace/setting))?",
    re.DOTALL,
)
_VERSION_DIGITS = 10
_INFER_END = b"/infer"
_CACHED_BYTES = 512
"""Longer URLs are read anew each time: clients must not be able to fill the memory of the server."""


class ModelPath(NamedTuple):
    """A model's name and version as they stand in a path, still escaped, and what is asked of it (`infer`, .., empty: metadata)."""

    raw_name: bytes
    raw_version: bytes | None
    action: str

    @property
    def model(self) -> str:
        """The name. Raises InvalidName where it is not UTF-8."""
        return decode_name(self.raw_name)

    @property
    def version(self) -> int:
        """The version, 0 where none is named. Raises InvalidRequest where it is no number."""
        text = self.raw_version
        if text is None:
            return 0
        shown = text[:40].decode("latin-1")
        if not text.isdigit():
            raise InvalidRequest(f"version '{shown}' is not a number; versions are 1, 2, ..")
        if len(text.lstrip(b"0")) > _VERSION_DIGITS or int(text) > MAX_VERSION:
            raise InvalidRequest(f"version {shown} is too large; the largest is {MAX_VERSION}")
        return int(text)


def decode_name(raw: bytes) -> str:
    """A name out of a URL. Raises InvalidName where it is not UTF-8."""
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidName(f"the name '{raw[:80].decode('latin-1')}' is not UTF-8; percent-encode the UTF-8 bytes of the name") from None


def model_path(raw_path: bytes) -> ModelPath | None:
    """What a path asks of a model; None where it is none of a model's. A name that ends like an action needs its slash as %2F."""
    found = _MODEL.fullmatch(raw_path)
    if found is None:
        return None
    return ModelPath(found["name"], found["version"], (found["action"] or b"").decode())


class Target(NamedTuple):
    """Whom an inference is for; problem: why it can be for nobody."""

    model: str = ""
    version: int = 0
    problem: InvalidRequest | None = None


def infer_target(url: bytes) -> Target | None:
    """Whom the inference with this URL is for; None where it is no inference's. Cached, as this is asked of every POST."""
    return _infer_target_cached(url) if len(url) <= _CACHED_BYTES else _infer_target(url)


def _infer_target(url: bytes) -> Target | None:
    if _INFER_END not in url:
        return None
    path = url.partition(b"?")[0] if url.startswith(b"/") else httptools.parse_url(url).path
    found = model_path(path or b"")
    if found is None or found.action != "infer":
        return None
    try:
        return Target(found.model, found.version)
    except InvalidRequest as error:
        return Target(problem=error)


_infer_target_cached = functools.lru_cache(maxsize=4096)(_infer_target)
