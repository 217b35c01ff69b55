"""Orders that a test gives: `MODEL.STEP` in the folder that TEST_ORDERS names, with the word `die` or `wait` (until the file is gone)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path


def obey(model: str, step: str) -> None:
    """Do what is said there."""
    order = Path(os.environ["TEST_ORDERS"], f"{model}.{step}")
    with contextlib.suppress(FileNotFoundError):
        while True:
            if order.read_text() == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            Path(f"{order}.waiting.{os.getpid()}").touch()
            time.sleep(0.002)
