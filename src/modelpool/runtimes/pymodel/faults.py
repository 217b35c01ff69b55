"""What to tell people of an error that a model's code raised."""

from __future__ import annotations

import traceback

from modelpool.errors import shortened, text_of
from modelpool.runtimes.pymodel.files import ModelFolder

_LAST_LINES = 8


def named(error: BaseException) -> str:
    """The error's type and message on one line."""
    if isinstance(error, SystemExit):
        return f"SystemExit: it called sys.exit({text_of(error)}), which a model must not"
    text = text_of(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def located(error: BaseException, folder: ModelFolder) -> str:
    """`named`, and the innermost line of the model's own code: ` (1/model.py:12 in execute)`."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if folder.holds(frame.filename)]
    if not frames:
        return named(error)
    return f"{named(error)} ({folder.relative(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})"


def told_in_full(error: BaseException, folder: ModelFolder) -> str:
    """`named`, and the last lines of the traceback from the model's own code on."""
    trace = error.__traceback__
    while trace is not None and not folder.holds(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    try:
        lines = "".join(traceback.format_exception(type(error), error, trace, chain=False)).rstrip().splitlines()
    except BaseException:  # what the model's own exception class does when it is looked at
        lines = traceback.format_tb(trace)
    return shortened("\n".join([named(error), *lines[-_LAST_LINES:]]))
