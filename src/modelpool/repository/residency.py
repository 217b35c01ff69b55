"""`modelpool.yaml`: the residency policy beside a model, and the preload list in the root of a repository."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from modelpool.core.model import MOST_PRIORITY, Residency
from modelpool.errors import InvalidRequest, MalformedModel
from modelpool.protocol.regular import open_regular
from modelpool.repository.names import check_name
from modelpool.units import parse_bytes, parse_duration

FILE_NAME = "modelpool.yaml"
_MAX_BYTES = 64 * 1024
_DEVICE = re.compile(r"([a-z]+[0-9]*/)?[a-z]+(:\d{1,3})?", re.ASCII)


def read_residency(path: Path, model: str) -> Residency:
    """The policy in a model's `modelpool.yaml`. Raises MalformedModel that names the field and what it may hold."""
    values: dict[str, Any] = {}
    for key, value in _mapping(path, list(_READERS)).items():
        field, read = _READERS[key]
        try:
            values[field] = read(value)
        except InvalidRequest as error:
            raise MalformedModel(f"{path.name}: {key}: {error.message}") from error
    residency = Residency(**values)
    if residency.min_copies > residency.max_copies:
        raise MalformedModel(f"{path.name}: min_copies {residency.min_copies} is above max_copies {residency.max_copies}; raise max_copies")
    if model in residency.requires:
        raise MalformedModel(f"{path.name}: requires: the model names itself; remove {model!r} from the list")
    return residency


def read_preload(path: Path) -> tuple[str, ...]:
    """The names under `preload:` in a repository's own `modelpool.yaml`. Raises MalformedModel."""
    try:
        return _names(_mapping(path, ["preload"]).get("preload", []))
    except InvalidRequest as error:
        raise MalformedModel(f"{path.name}: preload: {error.message}") from error


def _mapping(path: Path, known: list[str]) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise MalformedModel(f"{path.name} is larger than {_MAX_BYTES} bytes; a residency policy has a few lines")
        loaded = yaml.safe_load(text)
    except OSError as error:
        raise MalformedModel(f"{path.name} cannot be read: {error.strerror}; check its permissions") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise MalformedModel(f"{path.name} is not YAML{_where(error)}; write lines such as `keep_alive: 5m`") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise MalformedModel(f"{path.name} must hold lines of `field: value`, such as `keep_alive: 5m`")
    for key in loaded:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)
            raise MalformedModel(f"{path.name}: unknown field {str(key)[:80]!r}; did you mean {near[0]!r}? Known: {', '.join(known)}")
    return loaded


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f" (line {mark.line + 1})" if mark is not None else ""


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{value!r:.80} is neither true nor false; write true or false")
    return value


def _int(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidRequest(f"{value!r:.80} is not a whole number from {least} to {most}")
        return value

    return read


def _device(value: object) -> str:
    if not isinstance(value, str) or not _DEVICE.fullmatch(value):
        raise InvalidRequest(f"{value!r:.80} is not a device; write for example cpu or cuda:0")
    return value


def _size(value: object) -> int:
    size = parse_bytes(value)
    if size == 0:
        raise InvalidRequest("a model's size cannot be 0; leave `size` out to have it measured")
    return size


def _isolation(value: object) -> str:
    if value not in {"shared", "process"}:
        raise InvalidRequest(f"{value!r:.80} is not an isolation; write shared or process")
    return str(value)


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidRequest(f"{value!r:.80} is not a list of model names; write for example [tokenizer, encoder]")
    return tuple(dict.fromkeys(check_name(name) for name in value))


_READERS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "pinned": ("pinned", _bool),
    "priority": ("priority", _int(-MOST_PRIORITY, MOST_PRIORITY)),
    "min_copies": ("min_copies", _int(0, 1000)),
    "max_copies": ("max_copies", _int(1, 1000)),
    "keep_alive": ("keep_alive_s", parse_duration),
    "device": ("device", _device),
    "size": ("size_bytes", _size),
    "requires": ("requires", _names),
    "isolation": ("isolation", _isolation),
    "preload": ("preload", _bool),
}
"""What users write: the field of Residency that it becomes, and how it is read."""
