"""How often Python looks for cycles of garbage: seldom, and not in what a server holds all its life."""

from __future__ import annotations

import gc

THRESHOLDS = (10_000, 20, 50)
"""Collections by generation. Python's own (700, 10, 10) would look hundreds of times a second, in the middle of decisions and answers."""


def collect_seldom() -> None:
    """What is there by now stays out of all collections; the next ones come when more new objects wait than a busy second leaves behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
