"""The errors that Python models know: one to raise, one to put into a response."""

from __future__ import annotations

from typing import ClassVar, NoReturn


class TritonModelException(Exception):
    """Raised by a model, or by this module where a model asks for something impossible."""


class TritonError:
    """The error of one response: a message and one of the codes below. It is handed over, not raised."""

    UNKNOWN: ClassVar[int] = 0
    INTERNAL: ClassVar[int] = 1
    NOT_FOUND: ClassVar[int] = 2
    INVALID_ARG: ClassVar[int] = 3
    UNAVAILABLE: ClassVar[int] = 4
    UNSUPPORTED: ClassVar[int] = 5
    ALREADY_EXISTS: ClassVar[int] = 6
    CANCELLED: ClassVar[int] = 7

    __slots__ = ("_code", "_message")

    def __init__(self, message: str = "", code: int = INTERNAL) -> None:
        self._message = str(message)
        self._code = int(code)

    def message(self) -> str:
        """What went wrong."""
        return self._message

    def code(self) -> int:
        """One of the codes of this class."""
        return self._code

    def __str__(self) -> str:
        return self._message


def later(what: str) -> NoReturn:
    """Refuse what this version does not have; raises TritonModelException."""
    raise TritonModelException(f"{what} not in this version of modelpool; they come with a later one")
