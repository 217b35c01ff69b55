"""Heads of inference requests that were read before: a client repeats its own, and what is the same to the byte means the same.

Only plain requests are kept: the connection stays, and the body comes as it is and with its length. So neither the parser nor the
protocol changes its state over such a request, and both can be passed by.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from modelpool.errors import InvalidRequest, ModelpoolError, Unsupported
from modelpool.gateway.exchange import Exchange

END = b"\r\n\r\n"
_MOST = 1024
_MOST_BYTES = 1024
"""More or longer heads are not kept: clients must not be able to fill the memory of the server."""


def head_problem(url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> ModelpoolError | None:
    """Why no request with this head is taken, whatever it is for; the parser lets these through. None where nothing is wrong."""
    if b"#" in url:
        return InvalidRequest("the request's target has a '#', which is never sent to a server; write %23 where it is part of a name")
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and (len(codings) > 1 or codings[0].strip(b" \t").lower() != b"chunked"):
        shown = b", ".join(codings)[:80].decode("latin-1")
        return Unsupported(f"Transfer-Encoding '{shown}' is not supported; send chunked alone, and compress with Content-Encoding")
    return None


class Head(NamedTuple):
    """What a head says."""

    model: str
    version: int
    json_bytes: int
    body_bytes: int


class KnownHeads(dict[bytes, Head]):
    """Heads by their bytes, END included."""

    def learn(self, data: bytes, headers: Iterable[tuple[bytes, bytes]], exchange: Exchange) -> None:
        """Keep the head of an exchange that was read from the beginning of `data`, if it is plain and `data` is all of it."""
        head = data[: data.find(END) + len(END)]
        # With line ends of any other form, the first empty line would not be the end.
        regular = head.startswith(b"POST ") and head.count(b"\n") == head.count(b"\r\n") and len(head) <= _MOST_BYTES
        plain = exchange.keep_alive and exchange.problem is None and not exchange.encoding and not exchange.expects_continue
        lengths = [int(value) for name, value in headers if name == b"content-length"]
        if regular and plain and lengths == [len(data) - len(head)]:
            if len(self) >= _MOST:
                self.clear()
            self[head] = Head(exchange.model, exchange.version, exchange.json_bytes, lengths[0])
