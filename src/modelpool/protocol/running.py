"""The calls that a worker is running now, in a memory-mapped file that outlives the worker.

Layout: SLOTS unsigned 64-bit integers in the machine's byte order, 0 = free. The worker writes the calls of a run into free slots before
it starts and clears them after their answers were handed to the socket; the call that asked for a load is there while the load goes on.
When it dies, the server reads which calls had started. A full table means that any call may have started.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Container, Iterable
from pathlib import Path

SLOTS = 4096
TABLE_BYTES = SLOTS * 8


class RunningTable:
    """The worker's side: marks calls. `mark` may be called in any thread."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, TABLE_BYTES)  # a hole that a full disk could not fill would end the process when it marks a call
            self._map = mmap.mmap(fd, TABLE_BYTES)
        finally:
            os.close(fd)
        self._cells = memoryview(self._map).cast("Q")
        self._free = list(range(SLOTS - 1, -1, -1))

    def mark(self, calls: Iterable[int]) -> list[int]:
        """Write the calls into free slots and return these; a call that finds none goes without (the table is full, and says so)."""
        cells, free = self._cells, self._free
        taken = []
        for call in calls:
            try:
                slot = free.pop()
            except IndexError:
                break
            cells[slot] = call
            taken.append(slot)
        return taken

    def release(self, slots: Iterable[int]) -> None:
        """Clear slots that `mark` returned."""
        cells, free = self._cells, self._free
        for slot in slots:
            cells[slot] = 0
            free.append(slot)

    def close(self) -> None:
        """Unmap; the file stays."""
        self._cells.release()
        self._map.close()


class Everything:
    """The set that holds every call: what is known of a worker whose table cannot tell."""

    def __contains__(self, call: object) -> bool:
        return True


def read_running(path: Path) -> Container[int]:
    """The calls that had started and were not yet answered when the table was last written; all of them where it is unreadable or full."""
    try:
        data = path.read_bytes()
    except OSError:
        return Everything()
    if len(data) != TABLE_BYTES:
        return Everything()
    calls = set(array("Q", data))
    if 0 not in calls:
        return Everything()
    calls.discard(0)
    return calls
