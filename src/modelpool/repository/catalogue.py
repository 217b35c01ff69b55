"""The catalogue: what all repositories hold, kept up to date by scans that cost little while nothing changes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelpool.errors import MalformedModel, SetupError
from modelpool.repository import triton_config
from modelpool.repository.builder import build
from modelpool.repository.entry import Entry
from modelpool.repository.layouts import Place, find_places
from modelpool.repository.names import sendable
from modelpool.repository.posted import build_posted, posted_place
from modelpool.repository.residency import FILE_NAME, read_preload
from modelpool.repository.watch import Stamp, stamp, stamps_below


@dataclass(frozen=True, slots=True)
class _Known:
    """A place as it was at the last scan.

    settled: `entry` is what the files gave; otherwise they gave a malformed one and `entry` is the good one from before.
    """

    watch: tuple[Stamp, ...]
    entry: Entry
    files: tuple[Path, ...]
    settled: bool


class Repository:
    """The models of several folders; the first one that has a name wins.

    `scan` blocks and belongs into a thread, one at a time; the rest may be called from any. allowed_roots: where posted models may lie (by
    default the repositories). any_backend: models of all of Triton's backends are taken. preload: the names that the repositories' own
    `modelpool.yaml` lists, as of the last scan.
    """

    def __init__(self, roots: Sequence[Path], allowed_roots: Sequence[Path] = (), *, any_backend: bool = False) -> None:
        """Raises SetupError for a root that is not there, not readable, or not a repository."""
        self._roots = tuple(dict.fromkeys(_checked_root(root) for root in roots))
        self.allowed_roots = tuple(Path(os.path.abspath(root.expanduser())) for root in allowed_roots) or self._roots
        self.preload: tuple[str, ...] = ()
        self._any_backend = any_backend
        self._places: dict[Path, list[Place]] = {root: [] for root in self._roots}
        self._known: dict[Path, _Known] = {}
        self._posted: dict[str, _Known] = {}
        self._preloads: dict[Path, tuple[str, ...]] = {}
        self._problems: tuple[str, ...] = ()

    def scan(self) -> dict[str, Entry]:
        """All entries by name, malformed ones included. Never raises for what is in the repositories."""
        entries: dict[str, Entry] = {}
        problems: list[str] = []
        preload: list[str] = []
        for root in self._roots:
            reachable = self._list(root, problems)
            preload += self._preload(root, problems) if reachable else self._preloads.get(root, ())
            for place in self._places[root]:
                entry = self._entry(place) if reachable else self._known[place.path].entry
                first = entries.setdefault(entry.name, entry)
                if first is not entry:
                    problems.append(
                        f"model {entry.name!r} is in the repositories twice; {first.model_dir} is served, {place.path} is not: rename one"
                    )
        known_paths = {place.path for places in self._places.values() for place in places}
        self._known = {path: known for path, known in self._known.items() if path in known_paths}
        problems += [
            f"the preload list names {name!r}, which is in no repository; correct or remove it" for name in preload if name not in entries
        ]
        self.preload = tuple(dict.fromkeys(preload))
        self._problems = tuple(map(sendable, problems))
        return entries

    def problems(self) -> list[str]:
        """What the last scan found wrong with the repositories themselves; what is wrong with a model is in its entry."""
        return list(self._problems)

    def entry_from_properties(self, name: str, properties: Mapping[str, Any]) -> Entry:
        """The entry of a model that a client posted (blocks: it reads the file's head).

        properties: `url` (a path or file:// url beneath the allowed roots: an .onnx file, or a folder in any layout), `type` (`onnx`), and
        whatever else the client wants to find again. Raises InvalidName, InvalidRequest, Forbidden, Unsupported, MalformedModel.
        """
        place = posted_place(name, properties, self.allowed_roots)
        known = self._posted.get(name)
        watch = _watch(place, known.files if known is not None else ())
        if known is not None and known.watch == watch and known.entry.properties == properties:
            return known.entry
        built = build_posted(place, name, properties, self.allowed_roots)
        self._posted[name] = _Known(watch, built.entry, built.files, settled=True)
        return built.entry

    def _list(self, root: Path, problems: list[str]) -> bool:
        """A root that cannot be listed keeps its models: they may be loaded, and an outage of a disk is no wish to remove them."""
        try:
            self._places[root] = find_places(root, any_backend=self._any_backend)
        except OSError as error:
            problems.append(f"repository {root} cannot be read: {error.strerror}; its models stay as they were, bring the folder back")
            return False
        return True

    def _preload(self, root: Path, problems: list[str]) -> tuple[str, ...]:
        path = root / FILE_NAME
        try:
            self._preloads[root] = read_preload(path) if path.exists() else ()
        except (OSError, MalformedModel) as error:
            problems.append(f"repository {root}: {error}")
        return self._preloads.get(root, ())

    def _entry(self, place: Place) -> Entry:
        """The entry as it was while its files are the same; `watch` is taken before the files are read, so that no change is missed."""
        known = self._known.get(place.path)
        watch = _watch(place, known.files if known is not None else ())
        if known is not None and known.settled and known.watch == watch:
            return known.entry
        built = build(place)
        entry, settled = built.entry, True
        if entry.spec is None and known is not None and known.entry.spec is not None and known.watch != watch:
            entry, settled = known.entry, False  # perhaps still being written: judge it when it holds still
        self._known[place.path] = _Known(watch, entry, built.files, settled)
        return entry


def entry_from_properties(name: str, properties: Mapping[str, Any], allowed_roots: Sequence[Path]) -> Entry:
    """What `Repository.entry_from_properties` gives, without remembering it."""
    return build_posted(posted_place(name, properties, allowed_roots), name, properties, allowed_roots).entry


def diff(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> tuple[list[Entry], list[str]]:
    """What to tell the core: entries that can be served and are new or changed, and names that can be served no longer.

    An entry that turned malformed counts as removed, though the catalogue still lists it.
    """
    changed = [entry for name, entry in new.items() if entry.spec is not None and old.get(name) != entry]
    removed = [name for name, entry in old.items() if entry.spec is not None and (name not in new or new[name].spec is None)]
    return changed, removed


def _checked_root(root: Path) -> Path:
    path = Path(os.path.abspath(root.expanduser()))
    try:
        str(path).encode()
        names = set(os.listdir(path))
    except OSError as error:
        raise SetupError(
            f"repository {root} cannot be read: {error.strerror}; create the folder, or correct the path or its permissions"
        ) from error
    except ValueError as error:
        raise SetupError(f"repository {str(root)!r} is not a path that can be used; give the path of a folder in UTF-8") from error
    if triton_config.FILE_NAME in names:
        raise SetupError(
            f"repository {root} is itself a model (it holds {triton_config.FILE_NAME}); give the folder above it: {path.parent}"
        )
    return path


def _watch(place: Place, files: Sequence[Path]) -> tuple[Stamp, ...]:
    """The state of everything that the entry depends on."""
    if not place.is_folder:
        return tuple(stamp(path) for path in dict.fromkeys((place.path, place.residency, *files)))
    try:
        return tuple(stamps_below(place.path))
    except OSError as error:
        return (Stamp(str(place.path), mtime_ns=-1, size_bytes=error.errno or 0),)
