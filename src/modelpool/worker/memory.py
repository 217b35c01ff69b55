"""What this process's memory is doing: private bytes, peaks of loads and runs, and giving freed memory back.

Private bytes are anonymous pages, resident or swapped. Mapped files, which workers share, do not count.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from modelpool.protocol.record import anonymous_bytes, status_bytes

SAMPLE_S = 0.002
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def private_bytes() -> int:
    """Private bytes of this process now."""
    return anonymous_bytes(os.getpid()) or 0


def _find_trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None  # not glibc
    return trim


_malloc_trim = _find_trim()


def trim() -> None:
    """Give the heap's free pages back to the system. Call it off the event loop: it may take milliseconds."""
    if _malloc_trim is not None:
        _malloc_trim(0)


_M_MMAP_THRESHOLD = -3
_TIGHT_BYTES = 128 << 10
_LOOSE_BYTES = 32 << 20


@contextlib.contextmanager
def tight_allocation() -> Iterator[None]:
    """Give each larger block back the moment it is freed, while a load runs.

    glibc keeps freed blocks of up to 32 MiB for later; a load frees its file's copy of the weights block by block, and kept blocks nearly
    double its peak. Runs want the opposite: their blocks come again and again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_M_MMAP_THRESHOLD, _TIGHT_BYTES)
    try:
        yield
    finally:
        mallopt(_M_MMAP_THRESHOLD, _LOOSE_BYTES)


def settled_bytes() -> int:
    """Private bytes after everything that is garbage was given back."""
    gc.collect()
    trim()
    return private_bytes()


class PeakSampler:
    """Samples private bytes in a thread of its own while a load runs; `peak_bytes` is the most that was seen."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak", daemon=True)

    def __enter__(self) -> PeakSampler:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        # statm costs 2 us where status costs 30; it lacks swap, which a load does not use unless all is lost anyway.
        statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while True:
                fields = os.pread(statm, 256, 0).split()
                self.peak_bytes = max(self.peak_bytes, (int(fields[1]) - int(fields[2])) * _PAGE_BYTES)
                if self._end.wait(SAMPLE_S):
                    return
        finally:
            os.close(statm)


class RunProbe:
    """Measures what one run adds at most: the kernel's high-water mark of resident memory, reset before the run.

    Only one can be used at a time in a process. Pages of files that the run touched are taken off again. Where the kernel does not let
    the mark be reset, the memory that the run left behind is all that is seen.
    """

    def __init__(self) -> None:
        self._reset = True

    def start(self) -> tuple[int, int]:
        """Reset the mark; returns what `added_bytes` needs: resident and file-backed bytes."""
        if self._reset:
            try:
                Path("/proc/self/clear_refs").write_bytes(b"5")
            except OSError:
                self._reset = False
        return _resident(b"VmRSS:")

    def added_bytes(self, before: tuple[int, int]) -> int:
        """The most that was resident since `start`, over what was then, less file pages."""
        peak, files = _resident(b"VmHWM:" if self._reset else b"VmRSS:")
        return max(0, peak - before[0] - max(0, files - before[1]))


def _resident(field: bytes) -> tuple[int, int]:
    status = Path("/proc/self/status").read_bytes()
    return status_bytes(status, field), status_bytes(status, b"RssFile:") + status_bytes(status, b"RssShmem:")


def bound_log(limit_bytes: int) -> None:
    """Cut standard error back to nothing where it is a file that has outgrown its bound (it was opened for appending)."""
    with contextlib.suppress(OSError):
        if os.fstat(2).st_size > limit_bytes:
            os.ftruncate(2, 0)
