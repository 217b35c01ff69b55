"""Which names a model may have."""

from __future__ import annotations

import unicodedata

from modelpool.errors import InvalidName

MAX_NAME_BYTES = 255
_BANNED_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
"""Control characters, halves of surrogate pairs (bytes that are not UTF-8), line and paragraph separators."""


def check_name(name: str) -> str:
    """The name itself where a model may have it; `/` may separate parts, as in `hf/e5-base-v2`. Raises InvalidName."""
    if not name:
        raise InvalidName("a model's name is empty; give it a name such as `my-model`")
    if any(unicodedata.category(character) in _BANNED_CATEGORIES for character in name):
        raise InvalidName(f"model name '{printable(name)}' holds NUL, control characters or bytes that are not UTF-8; leave them out")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidName(f"model name '{name[:40]}...' is longer than {MAX_NAME_BYTES} bytes; shorten it")
    for part in name.split("/"):
        if not part:
            raise InvalidName(f"model name '{name}' begins or ends with '/' or has '//' in it; write for example hf/e5-base-v2")
        if part in {".", ".."}:
            raise InvalidName(f"model name '{name}' has the part '{part}'; names are not paths, leave it out")
    return name


def printable(name: str) -> str:
    """The name in characters that can be shown and sent: what cannot is escaped, and a very long name is cut."""
    safe = "".join(
        character.encode("unicode_escape", "surrogatepass").decode() if unicodedata.category(character) in _BANNED_CATEGORIES else character
        for character in name[: MAX_NAME_BYTES + 1]
    )
    return safe if len(safe) <= MAX_NAME_BYTES else safe[: MAX_NAME_BYTES - 3] + "..."


def sendable(text: str) -> str:
    """Text that can be sent as UTF-8, whatever file names went into it."""
    return text.encode("utf-8", "backslashreplace").decode()
