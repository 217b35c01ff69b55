"""Opening files of models: only regular ones, and without waiting. A FIFO waits for a writer, a device may never end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from modelpool.errors import MalformedModel

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(path: Path | str, status: os.stat_result | None = None) -> None:
    """Raises MalformedModel where the path (links followed) is something else than a regular file, OSError where it is not there."""
    mode = (status or os.stat(path)).st_mode
    if not stat.S_ISREG(mode):
        kind = next((words for test, words in _KINDS if test(mode)), "something else")
        raise MalformedModel(f"{os.path.basename(path)} is {kind}, not a regular file; replace or remove it")


def open_regular(path: Path | str) -> BinaryIO:
    """The file, open for reading. Raises as `check_regular`."""
    check_regular(path)  # before: to open a device may do something
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        check_regular(path, os.fstat(fd))  # after: it may have been replaced
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise
