"""One copy in the worker: its queue, and when how many requests of it run together.

1. What arrived in one turn of the event loop is looked at together, after all of it was read.
2. At most `slots` runs go on at once; what arrives meanwhile collects, and the next run takes up to `max_batch` rows of one version.
3. A model that batches may let the oldest request wait `max_delay_s` for more.
4. A copy whose runs are short (INLINE_S) runs on the event loop itself: a change of thread would cost more than the run. Its first runs,
   and any with more input than seen before, go to a thread, where they are timed and their memory is measured.
5. A run on the event loop takes at most INLINE_ITEMS requests, and its answers leave before the next begins: so the server works on
   them meanwhile, and the two do not wait for each other in turn.
"""

from __future__ import annotations

from collections import deque

from modelpool.protocol import messages
from modelpool.runtimes.base import LoadedModel
from modelpool.worker.runs import Item

INLINE_S = 0.001
MEASURED_RUNS = 3
INLINE_ITEMS = 32
_PENALTY_RUNS = 100
_PENALTY_AFTER = 3
_WEIGHT = 0.25


class Hosted:
    """A loaded model with its queue and its figures. Only the event loop's thread uses it."""

    __slots__ = (
        "_estimate_s",
        "_largest_bytes",
        "_measured",
        "_penalty",
        "_slow",
        "default_version",
        "due",
        "forms",
        "load_peak_bytes",
        "load_s",
        "model",
        "plain",
        "private_bytes",
        "queue",
        "queued_rows",
        "retiring",
        "run_peak_bytes",
        "running",
        "slots",
        "spec",
        "timer",
        "versions",
    )

    def __init__(self, spec: messages.LoadSpec, model: LoadedModel, private_bytes: int, load_peak_bytes: int, load_s: float) -> None:
        self.spec = spec
        self.model = model
        self.forms = model.forms
        self.private_bytes = private_bytes
        self.load_peak_bytes = load_peak_bytes
        self.load_s = load_s
        self.run_peak_bytes = 0
        self.default_version = spec.default_version
        self.versions = frozenset(version.version for version in spec.versions)
        self.slots = max(1, model.slots)
        self.queue: deque[Item] = deque()
        self.queued_rows = 0
        self.plain = True  # nothing in the queue has a deadline, another version than the default, or must be alone
        self.running = 0
        self.due = False
        self.timer = False
        self.retiring = -1
        self._estimate_s = float("inf")
        self._largest_bytes = -1
        self._measured = 0
        self._penalty = 0
        self._slow = 0

    # --- the queue ---------------------------------------------------------------------------------------------------------------
    def add(self, item: Item) -> None:
        """Put a request at the end of the queue."""
        self.queue.append(item)
        self.queued_rows += item.rows
        if item.deadline is not None or item.alone or item.version != self.default_version:
            self.plain = False

    def remove(self, call: int) -> Item | None:
        """Take a request out again; None where it is not queued (any more)."""
        for item in self.queue:
            if item.call == call:
                self.queue.remove(item)
                self.queued_rows -= item.rows
                return item
        return None

    def clear(self) -> list[Item]:
        """Take all requests out."""
        items = list(self.queue)
        self.queue.clear()
        self.queued_rows = 0
        return items

    def delay_s(self, now: float) -> float:
        """How long the next run should still wait for more requests."""
        model = self.model
        if not model.batches or model.max_delay_s <= 0.0 or self.queued_rows >= model.max_batch:
            return 0.0
        return max(0.0, self.queue[0].arrived + model.max_delay_s - now)

    def take(self, now: float, late: list[Item]) -> list[Item]:
        """The requests of the next run; those whose time ran out are moved to `late`."""
        queue = self.queue
        most = self.model.max_batch if self.model.batches else 0
        if self.model.quick and self._estimate_s < INLINE_S:
            most = min(most, INLINE_ITEMS)
        if self.plain and self.queued_rows <= most:
            items = list(queue)
            queue.clear()
            self.queued_rows = 0
            return items
        items = []
        rows = 0
        while queue:
            item = queue[0]
            if item.deadline is not None and now > item.deadline:
                late.append(item)
            elif items and (item.alone or items[0].alone or item.version != items[0].version or rows + item.rows > most):
                break
            else:
                items.append(item)
                rows += item.rows
            queue.popleft()
            self.queued_rows -= item.rows
        self.plain = self.plain or not queue
        return items

    # --- how it runs -------------------------------------------------------------------------------------------------------------
    def is_quick(self, size_bytes: int) -> bool:
        """Whether a run with so many bytes of input may go on the event loop."""
        return self.model.quick and self._estimate_s < INLINE_S and self._penalty == 0 and not self.wants_measure(size_bytes)

    def wants_measure(self, size_bytes: int) -> bool:
        """Whether the memory of a run with so many bytes of input is to be measured."""
        return self._measured < MEASURED_RUNS or size_bytes > self._largest_bytes

    def ran(self, run_s: float, inline: bool) -> None:
        """Learn from a run's length.

        A thread's figure includes its waits for the interpreter, so the shortest counts; the loop's own is true, but for the odd time
        when the process had to wait for a core. A copy that held the loop up several times in turn stays off it for a while.
        """
        if self._penalty:
            self._penalty -= 1
        if not inline and run_s < self._estimate_s:
            self._estimate_s = run_s
            return
        if self._estimate_s < float("inf"):
            self._estimate_s += _WEIGHT * (min(run_s, 2 * INLINE_S) - self._estimate_s)
        self._slow = self._slow + 1 if inline and run_s > 4 * INLINE_S else 0
        if self._slow == _PENALTY_AFTER:
            self._penalty, self._slow = _PENALTY_RUNS, 0

    def measured(self, size_bytes: int, added_bytes: int) -> bool:
        """Note what a run added to memory; True where that is news."""
        self._measured += 1
        self._largest_bytes = max(self._largest_bytes, size_bytes)
        if added_bytes <= self.run_peak_bytes:
            return False
        self.run_peak_bytes = added_bytes
        return True

    def held(self) -> messages.HeldCopy:
        """What a new server needs to adopt it."""
        return messages.HeldCopy(
            spec=self.spec,
            inputs=self.model.inputs,
            outputs=self.model.outputs,
            private_bytes=self.private_bytes,
            load_peak_bytes=self.load_peak_bytes,
            run_peak_bytes=self.run_peak_bytes,
            load_s=self.load_s,
        )
