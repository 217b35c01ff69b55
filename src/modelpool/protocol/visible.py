"""Text of others in lines for people: nothing in it may act on a terminal or turn the line around."""

from __future__ import annotations

import json


def visible(text: str) -> str:
    """`text` with all that cannot be seen as JSON's escapes: control and bidirectional characters, line ends, lone surrogates."""
    if text.isprintable():
        return text
    return "".join([character if character.isprintable() else json.dumps(character)[1:-1] for character in text])
