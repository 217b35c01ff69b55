"""A raw HTTP connection: what is sent is exactly what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class Wire:
    """One connection, from the client's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator[Self]:
        """A connection that is closed in the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def send(self, data: bytes) -> None:
        """Send, all of it."""
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self) -> Reply:
        """The next answer (not of a HEAD)."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        if "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        else:
            body = b""
        return Reply(int(head[0].split()[1]), headers, body)

    async def ask(self, data: bytes) -> Reply:
        """Send and wait for the answer."""
        await self.send(data)
        return await self.reply()

    async def closed(self) -> bool:
        """Wait for the server's end; whether nothing came before it."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return False


async def until(true: Callable[[], bool]) -> None:
    """Wait for the other side, whose progress nothing tells."""
    while True:
        if true():
            return
        await asyncio.sleep(0.001)


def post(model: str, body: bytes = b"{}", *headers: str, version: str = "HTTP/1.1", length: bool = True) -> bytes:
    """An inference request."""
    lines = [f"POST /v2/models/{model}/infer {version}", "Host: test", *headers]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def get(path: str, *headers: str) -> bytes:
    """A request of something else."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: test", *headers, "", ""]).encode()


def chunked(*parts: bytes) -> bytes:
    """A body in chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))
