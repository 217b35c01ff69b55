"""Where a model's files are: Triton's layout, a folder with one ONNX file, or a single ONNX file.

<root>/<model>/config.pbtxt, <root>/<model>/<version>/model.onnx or model.py      (config.pbtxt may be left out)
<root>/<model>/model.onnx                                                        version 1
<root>/<model>.onnx                                                              version 1
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelpool.errors import MalformedModel
from modelpool.repository import foreign, residency, triton_config
from modelpool.repository.names import check_name
from modelpool.repository.watch import is_folder

MAX_VERSION = (1 << 32) - 1
_DEFAULT_FILES = {"onnx": "model.onnx", "python": "model.py"}


@dataclass(frozen=True, slots=True)
class Place:
    """Something in a repository that may be a model. name: as found, not checked yet; any_backend: a Triton server may serve it."""

    name: str
    path: Path
    is_folder: bool
    any_backend: bool = False

    @property
    def residency(self) -> Path:
        """The file that may hold its residency policy."""
        return self.path / residency.FILE_NAME if self.is_folder else self.path.with_name(f"{self.path.stem}.{residency.FILE_NAME}")


@dataclass(frozen=True, slots=True)
class Layout:
    """A model's files. config: as written, {} where there is none; versions: number to path, those selected, ascending."""

    runtime: str
    file_name: str
    config: dict[str, Any]
    versions: dict[int, Path]


def find_places(root: Path, *, any_backend: bool = False) -> list[Place]:
    """What may be a model in a repository's root, by name; hidden files and other files are left out. Raises OSError."""
    places = []
    with os.scandir(root) as items:
        for item in sorted(items, key=lambda item: item.name):
            if item.name.startswith("."):
                continue
            dangling = item.is_symlink() and not os.path.exists(item.path)
            if item.name.endswith(".onnx") and not is_folder(item):
                places.append(Place(item.name.removesuffix(".onnx"), Path(item.path), is_folder=False))
            elif is_folder(item) or dangling:
                places.append(Place(item.name, Path(item.path), is_folder=True, any_backend=any_backend))
    return places


def read_layout(place: Place) -> Layout:
    """Find out a model's runtime and versions. Raises MalformedModel or OSError."""
    if not place.is_folder:
        return Layout("onnx", place.path.name, {}, {1: place.path})
    names = {item.name for item in place.path.iterdir()}
    has_config = triton_config.FILE_NAME in names
    numbers = sorted(int(name) for name in names if is_version(name) and (place.path / name).is_dir())
    if not has_config and not numbers:
        return _plain_folder(place.path, names)
    config = triton_config.parse_config(place.path / triton_config.FILE_NAME) if has_config else {}
    _check_name(config.get("name", ""), place.name)
    triton_config.check_batch_size(config)
    if place.any_backend and (backend := foreign.backend_of(config)) is not None:
        return Layout(backend, "", config, foreign.versions_of(place.path, config, numbers))
    runtime = triton_config.runtime_of(config) or _runtime_from_files(place.path, numbers, config.get("default_model_filename", ""))
    file_name = _file_name(config.get("default_model_filename") or _DEFAULT_FILES[runtime])
    present = {number: path for number in numbers if (path := _model_file(place.path / str(number), file_name)) is not None}
    if not present:
        raise MalformedModel(
            f"no version folder holds {file_name}; put it at {place.name}/1/{file_name}"
            if numbers
            else f"there is no version folder; put the model at {place.name}/1/{file_name}"
        )
    if max(present) > MAX_VERSION:
        raise MalformedModel(f"version {max(present)} is too large; the largest is {MAX_VERSION}")
    chosen = triton_config.select_versions(config, list(present))
    return Layout(runtime, file_name, config, {number: present[number] for number in chosen})


def is_version(name: str) -> bool:
    """Whether a folder of that name holds a version: a number that does not begin with 0."""
    return name.isascii() and name.isdigit() and not name.startswith("0") and len(name) <= 18


def _plain_folder(folder: Path, names: set[str]) -> Layout:
    candidates = sorted(name for name in names if name.endswith(".onnx") and not name.startswith("."))
    if "model.onnx" in candidates:
        candidates = ["model.onnx"]
    if len(candidates) > 1:
        raise MalformedModel(f"the folder holds several .onnx files ({', '.join(candidates[:5])}); name the one to serve model.onnx")
    if not candidates:
        raise MalformedModel("the folder holds no model; expected config.pbtxt, a version folder such as 1/model.onnx, or model.onnx")
    check_name(candidates[0])  # a name that is not UTF-8 could not be told to a worker
    return Layout("onnx", candidates[0], {}, {1: folder / candidates[0]})


def _check_name(configured: str, folder: str) -> None:
    if configured and configured != folder:
        raise MalformedModel(
            f"config.pbtxt names the model {configured!r} and its folder is {folder!r}; make them the same or remove the line"
        )


def _file_name(name: str) -> str:
    if "/" in name or "\0" in name or name in {".", ".."}:
        raise MalformedModel(f"default_model_filename {name!r} is no plain file name; write for example model.onnx")
    return name


def _model_file(folder: Path, file_name: str) -> Path | None:
    """The model of a version folder; Triton also takes a folder of that name which holds the file and its weights."""
    path = folder / file_name
    inner = path / file_name
    if inner.exists():
        return inner
    return path if path.exists() and not path.is_dir() else None


def _runtime_from_files(folder: Path, numbers: list[int], file_name: str) -> str:
    """Without platform and backend the file's name decides."""
    for runtime, default in _DEFAULT_FILES.items():
        wanted = file_name or default
        if Path(wanted).suffix == Path(default).suffix and any((folder / str(number) / wanted).exists() for number in numbers):
            return runtime
    raise MalformedModel(
        f"there is no {file_name or 'model.onnx or model.py'} in a version folder; put it in there, or name the backend in config.pbtxt"
    )
