"""A slot: one object of the model's class, on a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from modelpool.errors import text_of
from modelpool.runtimes import calls, pb_utils

T = TypeVar("T")


class Raised(Exception):
    """The model's code raised; `error` is what, sys.exit included."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(text_of(error))
        self.error = error


class Slot:
    """Runs all code of one model object on one thread.

    Libraries that models use tie things to the thread that made them (SQLite connections, event loops, PyTorch's modes), and the worker
    may call from any thread. A thread that never comes back does not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._model: Any = None
        self._runner: asyncio.Runner | None = None
        self._tasks: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=f"slot {name}", daemon=True).start()

    def call(self, function: Callable[[], T]) -> T:
        """Run something on the slot's thread and wait for it; raises Raised where it raises anything at all."""
        return self.begin(function).result()

    def begin(self, function: Callable[[], T]) -> Future[T]:
        """The same without waiting."""
        future: Future[T] = Future()
        self._tasks.put((function, future))
        return future

    def open(self, kind: type[Any], arguments: dict[str, str]) -> None:
        """Make the model object and initialise it; raises Raised."""
        self.call(lambda: self._open(kind, arguments))

    def execute(self, requests: Sequence[pb_utils.InferenceRequest], parent: int) -> Any:
        """Whatever the model's execute returns; raises Raised. parent: for which call it runs."""
        return self.call(lambda: self._execute(list(requests), parent))

    def begin_close(self) -> Future[None]:
        """Begin to finalise; the future holds Raised where that failed. The slot is of no use afterwards."""
        future = self.begin(self._close)
        self._tasks.put(None)
        return future

    def _open(self, kind: type[Any], arguments: dict[str, str]) -> None:
        model = kind()
        if hasattr(model, "initialize"):
            model.initialize(arguments)
        self._model = model

    def _execute(self, requests: list[pb_utils.InferenceRequest], parent: int) -> Any:
        calls.begin_run(parent)
        answer = self._model.execute(requests)
        if not inspect.iscoroutine(answer):
            return answer
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(answer)

    def _close(self) -> None:
        model, self._model = self._model, None
        try:
            if hasattr(model, "finalize"):
                model.finalize()
        finally:
            if self._runner is not None:
                self._runner.close()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            function, future = task
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(Raised(error))
            del task, function, future  # an idle thread must not keep the last answer's tensors
