"""A client that is a bare connection: requests are sent ahead of answers, and it hangs up when the test says so."""

from __future__ import annotations

import json
import socket
import struct
from types import TracebackType
from typing import Any

from tests.integration.running import LIMIT_S, RunningServer


class RawClient:
    """One connection to a server."""

    def __init__(self, server: RunningServer) -> None:
        host, _, port = server.about["url"].removeprefix("http://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=LIMIT_S)
        self._read = self._socket.makefile("rb")

    def send(self, model: str, value: float, *, end: int | None = None) -> None:
        """Ask a model that takes one FP32 input `x` of one row; end: only so many bytes of the request are sent."""
        body = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [value]}]}).encode()
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall((head.encode() + body)[:end])

    def reply(self) -> tuple[int, Any]:
        """Status and JSON of the next answer."""
        status = int(self._read.readline().split()[1])
        size = 0
        while line := self._read.readline().strip():
            name, _, text = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(text)
        return status, json.loads(self._read.read(size))

    def answer(self) -> float:
        """The first value of the next answer, which must be a good one."""
        status, found = self.reply()
        assert status == 200, found
        return float(found["outputs"][0]["data"][0])

    def rest(self) -> bytes:
        """All that still comes when this side has said that it sends no more."""
        self._socket.shutdown(socket.SHUT_WR)
        return self._read.read()

    def hang_up(self, *, reset: bool = False) -> None:
        """Be gone. reset: like a machine that was switched off and on, not like a program that ended."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._read.close()
        self._socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.hang_up()
