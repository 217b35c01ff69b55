"""Models that clients post: from their properties to a file beneath the roots that the user allowed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from modelpool.errors import Forbidden, InvalidRequest, MalformedModel, Unsupported
from modelpool.repository.builder import Built, build
from modelpool.repository.layouts import Place
from modelpool.repository.names import check_name

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")


def posted_place(name: str, properties: Mapping[str, Any], allowed_roots: Sequence[Path]) -> Place:
    """Where a posted model lies. Raises InvalidName, InvalidRequest, Forbidden (outside `allowed_roots`) and Unsupported."""
    check_name(name)
    url = _checked_url(properties)
    path = _allowed(_local_path(url), url, allowed_roots)
    if not os.path.exists(path):  # unlike Path.exists also for names that are too long
        raise InvalidRequest(f"model {name!r}: there is no file or folder {url!r}; check the url")
    if path.is_file() and path.suffix != ".onnx":
        raise InvalidRequest(f"model {name!r}: {url!r} is neither an .onnx file nor a folder; give one of these")
    return Place(path.name if path.is_dir() else path.stem, path, is_folder=path.is_dir())


def build_posted(place: Place, name: str, properties: Mapping[str, Any], allowed_roots: Sequence[Path]) -> Built:
    """The entry of a posted model. Raises MalformedModel where its files cannot be used, Forbidden where a link leads out."""
    built = build(place, name=name, source="posted", properties=dict(properties))
    if built.entry.problem is not None:
        raise MalformedModel(f"model {name!r} cannot be used: {built.entry.problem}")
    for file in (*built.files, *(Path(version.path) for version in built.entry.versions)):
        _allowed(file, str(file), allowed_roots)
    if built.entry.runtime != "onnx":
        raise Unsupported(f"model {name!r} is a Python model, and these are not taken from clients; put its folder into a repository")
    return built


def _checked_url(properties: Mapping[str, Any]) -> str:
    """The url, once all that we know of the properties is right."""
    example = '{"url": "file or address", "type": "onnx", "dimensions": 384}'
    for key in ("url", "type"):
        if not isinstance(properties.get(key), str) or not properties[key]:
            raise InvalidRequest(f"model_properties need {key!r}, a text; send for example {example}")
    dimensions = properties.get("dimensions")
    if dimensions is not None and (isinstance(dimensions, bool) or not isinstance(dimensions, int) or dimensions < 1):
        raise InvalidRequest(f"model_properties: dimensions {dimensions!r:.80} is not a whole number above 0; send for example {example}")
    if properties["type"] != "onnx":
        raise Unsupported(f"models of type {properties['type']!r:.80} are not supported yet by this version; it has 'onnx'")
    return str(properties["url"])


def _local_path(url: str) -> Path:
    try:
        usable = "\0" not in url and bool(url.encode())
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise InvalidRequest(f"the url {url[:200]!r} holds NUL or characters that are not UTF-8; remove them")
    scheme = _SCHEME.match(url)
    if scheme is None:
        return Path(url)
    if scheme[1].lower() != "file":
        raise Unsupported(
            f"sources other than local files come with a later version; {url[:200]!r} is not one, give a path or a file:// url"
        )
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"} or not path.startswith("/") or "\0" in path:
        raise InvalidRequest(f"{url[:200]!r} is not the url of a local file; write for example file:///models/m.onnx")
    return Path(path)


def _allowed(path: Path, url: str, allowed_roots: Sequence[Path]) -> Path:
    """The real path, links followed, if it lies beneath an allowed root; a relative one is taken beneath each root in turn."""
    candidates = [path] if path.is_absolute() else [root / path for root in allowed_roots]
    inside = [
        real
        for candidate in candidates
        for real in [_resolved(candidate)]
        if any(real.is_relative_to(_resolved(root)) for root in allowed_roots)
    ]
    if not inside:
        raise Forbidden(
            f"{url[:200]!r} lies outside the folders that models may be posted from; the setting `allowed_roots` names them: add its folder"
        )
    return next((real for real in inside if os.path.exists(real)), inside[0])


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise InvalidRequest(f"{str(path)[:200]!r} cannot be followed: {error}") from error
