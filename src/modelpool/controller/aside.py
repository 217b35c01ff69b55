"""Calls that may block for ever, such as reading a network file system that is gone: in threads that no stop waits for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def aside(function: Callable[[], T]) -> asyncio.Future[T]:
    """The result of a blocking function. Cancelled, it goes on in its thread, which ends with the process at the latest.

    Unlike `asyncio.to_thread`, whose threads the event loop and the interpreter wait for when they end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, raised = None, None
        try:
            result = function()
        except BaseException as error:
            raised = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(deliver, result, raised)

    threading.Thread(target=run, name="modelpool-aside", daemon=True).start()
    return future
