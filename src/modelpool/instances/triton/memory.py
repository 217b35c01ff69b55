"""What a Triton server takes, seen from outside: its processes where it runs on this machine, its metrics for GPUs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import psutil

from modelpool.protocol.record import anonymous_bytes

_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
_GPU_BYTES = re.compile(rb'^nv_gpu_memory_(used|total)_bytes\{gpu_uuid="([^"]+)"\} (\S+)', re.MULTILINE)
_METRICS_S = 3.0
_MOST_METRICS_BYTES = 16 << 20


def pid_of_listener(host: str, port: int) -> int | None:
    """The process of this machine that listens there; None where it is another machine, or not ours to see."""
    if host not in _LOOPBACK:
        return None
    try:
        found = [one.pid for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and tuple(one.laddr)[1:2] == (port,)]
    except (psutil.Error, OSError):
        return None
    return next((pid for pid in found if pid), None)


def processes_of(pid: int) -> dict[int, str]:
    """A server's processes with the path of the model that each of them runs ('': the server itself)."""
    try:
        server = psutil.Process(pid)
        found = {pid: ""}
        for child in server.children(recursive=True):
            words = _command(child)
            found[child.pid] = words[1] if len(words) > 1 and words[0].endswith("triton_python_backend_stub") else ""
    except psutil.Error:
        return {}
    return found


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def private_bytes(pid: int) -> int:
    """Anonymous memory of a server and all processes that it started (0: it has ended)."""
    return sum(anonymous_bytes(one) or 0 for one in processes_of(pid))


async def gpu_bytes(host: str, port: int) -> dict[str, tuple[int, int]]:
    """Used and total bytes by GPU as the server's metrics say, which are some seconds old; empty where it has none, or does not answer."""
    try:
        async with asyncio.timeout(_METRICS_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), port)
            try:
                writer.write(f"GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
                text = await reader.read(_MOST_METRICS_BYTES)
                while more := await reader.read(_MOST_METRICS_BYTES):
                    text += more
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return {}
    return read_gpu_bytes(text)


def read_gpu_bytes(text: bytes) -> dict[str, tuple[int, int]]:
    """Used and total bytes by GPU from the text of metrics."""
    figures: dict[str, dict[bytes, int]] = {}
    for kind, uuid, value in _GPU_BYTES.findall(text):
        figures.setdefault(uuid.decode(), {})[kind] = int(float(value))
    return {uuid: (found[b"used"], found[b"total"]) for uuid, found in figures.items() if len(found) == 2}


def describe_processes(name: str, found: Mapping[int, str]) -> list[dict[str, Any]]:
    """A server's processes for people, the server itself first."""
    return [
        {
            "name": f"{name}: {path}" if path else name if at == 0 else f"{name}: helper",
            "pid": pid,
            "private_bytes": anonymous_bytes(pid) or 0,
            "in_flight": 0,
            "models": [],
        }
        for at, (pid, path) in enumerate(found.items())
    ]
