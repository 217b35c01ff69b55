"""The journal: every decision with its reason, in memory, in the log, and in the state file."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

from modelpool.controller.state import StateStore
from modelpool.controller.views import Decision
from modelpool.core.actions import Reason

log = logging.getLogger("modelpool.decisions")

RECENT = 10_000


class Journal:
    """The latest decisions; the state file keeps more."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._recent: deque[Decision] = deque(state.decisions(RECENT), maxlen=RECENT)

    def write(self, reasons: Sequence[Reason]) -> None:
        """Write decisions down, one log line each."""
        at = time.time()
        decisions = [Decision(at=at, kind=one.kind, model=one.model, text=one.text, figures=one.figures) for one in reasons]
        self._recent.extend(decisions)
        self._state.save_decisions(decisions)
        for one in decisions:
            log.info("%s", one.text, extra={"kind": one.kind, "model": one.model, "figures": one.figures})

    def latest(self, limit: int, model: str | None = None) -> list[Decision]:
        """The latest decisions (about one model), oldest first."""
        found: list[Decision] = []
        for one in reversed(self._recent):
            if len(found) >= limit:
                break
            if model is None or one.model == model or one.figures.get("winner") == model:
                found.append(one)
        return found[::-1]
