"""Writes what happened to a file that the simulator replays (`serve --record FILE`)."""

from __future__ import annotations

import logging
import time
from io import BufferedWriter
from pathlib import Path
from typing import Any

from modelpool.errors import SetupError
from modelpool.protocol import trace

log = logging.getLogger("modelpool.record")


class Recorder:
    """Appends lines to a buffered file; a disk that is full ends the recording, not the server."""

    def __init__(self, path: Path, now: float, settings: dict[str, Any], devices: dict[str, dict[str, int]]) -> None:
        self._begun = now
        try:
            self._file: BufferedWriter | None = path.open("wb")
        except OSError as error:
            raise SetupError(f"cannot record to {path}: {error.strerror}; name another file with --record") from error
        self.write(trace.Begin(trace_version=trace.TRACE_VERSION, at=time.time(), settings=settings, devices=devices))

    def since(self, now: float) -> float:
        """Seconds since the record began."""
        return now - self._begun

    def write(self, line: trace.Line) -> None:
        """Append one line."""
        if self._file is None:
            return
        try:
            self._file.write(trace.encode_line(line))
        except OSError as error:
            log.error("recording ended: %s", error)
            self._file = None

    def flush(self) -> None:
        """Hand what is buffered to the system."""
        try:
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            log.error("recording ended: %s", error)
            self._file = None

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        if self._file is not None:
            self._file.close()
