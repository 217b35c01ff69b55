"""What a terminal shows while a model loads."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from modelpool.errors import ModelpoolError
from modelpool.units import format_duration

if TYPE_CHECKING:
    from modelpool.client import Client

_POLL_S = 0.25


def load_and_show(client: Client, model: str, device: str | None) -> dict[str, Any]:
    """Load a model; meanwhile, where stderr is a terminal, show its state, the time gone by and how long it took before."""
    if not sys.stderr.isatty():
        return client.load_model(model, device)
    from rich.console import Console

    load = _InBackground(lambda: client.load_model(model, device))
    began = time.monotonic()
    with Console(stderr=True).status(f"{model}: asking") as status:
        while not load.ended.wait(_POLL_S):
            view: dict[str, Any] = {}
            with contextlib.suppress(ModelpoolError):  # only the load's own error counts
                view = client.model(model, timeout_s=5.0)
            status.update(progress_text(model, view, time.monotonic() - began))
    return load.result()


def progress_text(model: str, view: dict[str, Any], elapsed_s: float) -> str:
    """One line on a load: `m: loading, 1.2s (took 3s before)`."""
    state = str(view.get("state") or "asking").lower()
    if state == "unavailable":
        state = "waiting for room"
    before_s = view.get("load_s")
    known = f" (took {format_duration(before_s)} before)" if isinstance(before_s, (int, float)) else ""
    return f"{model}: {state}, {format_duration(round(elapsed_s, 1))}{known}"


class _InBackground:
    """A call in a thread that an interrupted command need not wait for."""

    def __init__(self, call: Callable[[], dict[str, Any]]) -> None:
        self.ended = threading.Event()
        self._call = call
        self._answer: dict[str, Any] = {}
        self._error: Exception | None = None
        threading.Thread(target=self._run, daemon=True, name="modelpool-load").start()

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except Exception as error:
            self._error = error
        finally:
            self.ended.set()

    def result(self) -> dict[str, Any]:
        """What the call returned; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._answer
