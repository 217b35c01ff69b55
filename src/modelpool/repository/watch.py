"""What tells that files changed: path, times, size and inode of each, without reading any."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_MAX_FILES = 5000
_MAX_DEPTH = 8
_IGNORED_DIRS = {"__pycache__"}


class Stamp(NamedTuple):
    """A file's state; all numbers are 0 where it is not there.

    ctime_ns tells of new permissions and of old times put back; it is no part of a revision, as the content stays the same.
    """

    path: str
    mtime_ns: int = 0
    size_bytes: int = 0
    inode: int = 0
    ctime_ns: int = 0


def stamp(path: Path | str) -> Stamp:
    """The state of one file (a link is followed)."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return Stamp(str(path))
    return Stamp(str(path), status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)


def is_folder(item: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one; a loop of links is none."""
    try:
        return item.is_dir()
    except OSError:
        return False


def stamps_below(folder: Path) -> list[Stamp]:
    """The files of a folder and of the folders below it, sorted by path; hidden ones and Python's caches left out.

    Beyond 5,000 files or 8 folders of depth it stops looking. Raises OSError where the folder itself cannot be listed.
    """
    found: list[Stamp] = []
    todo = [(str(folder), 0)]
    while todo and len(found) < _MAX_FILES:
        path, depth = todo.pop()
        try:
            with os.scandir(path) as items:
                for item in items:
                    if item.name.startswith(".") or item.name in _IGNORED_DIRS:
                        continue
                    if is_folder(item):
                        found.append(Stamp(item.path, size_bytes=-1))  # a new version folder is a change even while it is empty
                        if depth < _MAX_DEPTH:
                            todo.append((item.path, depth + 1))
                    else:
                        found.append(stamp(item.path))
        except OSError:
            if depth == 0:
                raise
            found.append(Stamp(path, mtime_ns=-1))
    return sorted(found)


def digest(stamps: Iterable[Stamp], *more: str) -> str:
    """A short hash of files' states and of further text."""
    whole = hashlib.sha256()
    for item in stamps:
        whole.update(os.fsencode(f"{item.path}\0{item.mtime_ns}\0{item.size_bytes}\0{item.inode}\n"))
    for text in more:
        whole.update(f"{text}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()[:16]
