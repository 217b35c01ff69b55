"""Loading and unloading in the worker's load thread, with what it does to memory."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from modelpool.errors import LoadFailed, ModelpoolError
from modelpool.protocol.messages import LoadSpec
from modelpool.runtimes.base import LoadedModel, open_runtime
from modelpool.worker.memory import PeakSampler, private_bytes, settled_bytes, tight_allocation, trim
from modelpool.worker.runs import describe

log = logging.getLogger(__name__)

_RETURN_SLACK_BYTES = 4 << 20
_RETURN_POLL_S = 0.05


class LoadResult(NamedTuple):
    """A loaded model and its figures, as `messages.Loaded` explains them."""

    model: LoadedModel
    load_s: float
    private_bytes: int
    load_peak_bytes: int
    total_bytes: int


def load(spec: LoadSpec, whole_process: bool) -> LoadResult | ModelpoolError:
    """Load; never raises. whole_process: charge all that the process uses, not what the load added."""
    trim()
    before = private_bytes()
    started = time.monotonic()
    try:
        with tight_allocation(), PeakSampler() as sampler:
            model = open_runtime(spec.runtime).load(spec)
    except ModelpoolError as error:
        failed: ModelpoolError = error
    except BaseException as error:
        failed = LoadFailed(f"{spec.model} could not be loaded: {describe(error)}")
    else:
        load_s = time.monotonic() - started
        total = settled_bytes()
        floor = 0 if whole_process or model.whole_process else before
        private = max(0, total - floor)
        return LoadResult(model, load_s, private, max(private, sampler.peak_bytes - floor), total)
    failed.__traceback__ = None  # it holds the frames, and they what was loaded so far
    failed.__cause__ = failed.__context__ = None
    settled_bytes()
    return failed


def unload(model: LoadedModel, expected_bytes: int, timeout_s: float) -> int:
    """Close a model and wait until `expected_bytes` came back, or the time is over; returns the process's private bytes then."""
    before = private_bytes()
    try:
        model.close()
    except BaseException as error:
        # Nobody can do anything about it any more; the log says so, and the memory figures will show what it left.
        log.warning("closing a model failed: %s", describe(error))
    until = time.monotonic() + timeout_s
    while True:
        total = settled_bytes()
        if before - total >= expected_bytes - _RETURN_SLACK_BYTES or time.monotonic() >= until:
            return total
        time.sleep(_RETURN_POLL_S)
