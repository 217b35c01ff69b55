"""A Triton server of our own: its command with ports filled in, the process, its log."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from modelpool.errors import SetupError
from modelpool.instances.process import Process, log_tail
from modelpool.settings.triton import TritonAddress

LOOPBACK = "127.0.0.1"
_DEFAULT_BACKENDS = "/opt/tritonserver/backends"
_STOP_S = 10.0
_PARENT_WATCH = (
    "import ctypes, os, signal, sys\n"
    "parent = int(sys.argv[1])\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != parent: sys.exit(0)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)
"""Becomes the command that it is given, which ends with the process that started it."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def completed(command: str, ports: Sequence[int], repositories: Sequence[Path]) -> list[str]:
    """The command with all that it must have and does not name itself: loopback, ports, the repositories, explicit control."""
    words = shlex.split(command)
    named = {word.partition("=")[0] for word in words}
    wanted = [
        *((f"--{kind}-address", LOOPBACK) for kind in ("http", "grpc", "metrics")),
        ("--http-port", str(ports[0])),
        ("--grpc-port", str(ports[1])),
        ("--metrics-port", str(ports[2])),
        ("--model-control-mode", "explicit"),
        ("--strict-readiness", "false"),
    ]
    for option in ("--http-port", "--grpc-port", "--metrics-port"):
        if option in named:
            raise SetupError(f"--triton-command names {option}; leave it out, as modelpool chooses the ports")
    added = [f"{name}={value}" for name, value in wanted if name not in named]
    if not named & {"--model-repository", "--model-store"}:
        added += [f"--model-repository={folder.absolute()}" for folder in repositories]
    return [*words, *added]


def backends_of(command: str) -> tuple[str, ...] | None:
    """The backends that the command's server has; None where that cannot be seen."""
    words = shlex.split(command)
    folder = _DEFAULT_BACKENDS
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--backend-directory":
            folder = value if equals else next(iter(words[at + 1 : at + 2]), folder)
    try:
        found = sorted(item.name for item in Path(folder).iterdir() if item.is_dir())
    except OSError:
        return None
    return tuple(found) or None


class OwnServer:
    """One run of a server after another. on_exit(how): the process ended by itself, or was told to."""

    def __init__(self, name: str, command: str, repositories: Sequence[Path], log: Path, on_exit: Callable[[str], None]) -> None:
        self.log = log
        self._name = name
        self._command = command
        self._repositories = repositories
        self._on_exit = on_exit
        self._process: Process | None = None
        self._ended = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Its process (None: not running)."""
        return self._process.pid if self._process is not None and self._process.alive else None

    def start(self) -> TritonAddress:
        """Start the process; it is not up yet then. Raises SetupError."""
        http, grpc, metrics = free_ports(3)
        words = completed(self._command, (http, grpc, metrics), self._repositories)
        program = shutil.which(words[0])
        if program is None:
            raise SetupError(f"--triton-command: there is no program {words[0]!r}; give its whole path")
        append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _PARENT_WATCH, str(os.getpid()), program, *words[1:]],
                dict(os.environ),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.fspath(self.log), append, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
            )
            self._ended.clear()
            self._process = Process(pid, self._exited, own=True)
        except OSError as error:
            raise SetupError(f"cannot start {words[0]} (log {self.log}): {error}") from error
        return TritonAddress(LOOPBACK, grpc, http, metrics, backends_of(self._command))

    def _exited(self, how: str) -> None:
        self._ended.set()
        self._on_exit(how)

    def kill(self) -> None:
        """End it now."""
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """Let it end by itself, within a limit."""
        if self.pid is None or self._process is None:
            return
        self._process.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                await self._ended.wait()
        except TimeoutError:
            self.kill()
            await self._ended.wait()

    async def ended(self) -> None:
        """Wait until it has ended."""
        if self._process is not None:
            await self._ended.wait()

    def last_words(self) -> str:
        """The last line of its log."""
        return log_tail(self.log)
