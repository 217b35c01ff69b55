"""What is wrong with JSON that cannot be read, in words that name the fault."""

from __future__ import annotations

import re

_LONE = re.compile(
    rb"(?<!\\)(?:\\\\)*"  # an even number of backslashes: the next one begins an escape
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_LOOK_BYTES = 1 << 20
_SUSPECT = ("truncated", "surrogate", "hex escape")


def json_fault(error: Exception, text: bytes | bytearray | memoryview) -> str:
    """The decoder's words, but for half of a surrogate pair: that it takes for the end of the text."""
    words = str(error)
    if any(word in words for word in _SUSPECT):
        found = _LONE.search(text[:_LOOK_BYTES])
        if found is not None:
            escape = bytes(found[0])[-6:].decode()
            return f"{escape} is half of a surrogate pair, which is no text; send the whole pair, or the character itself"
    return words
