"""A worker process seen from outside: started or found, watched through a pidfd, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import modelpool
from modelpool.errors import SetupError

LOG_TAIL_BYTES = 2000


class Process:
    """A running process; `on_exit(description)` is called once, on the event loop, when it has ended.

    own: it is our child, so that we collect its exit status and may end what it started. Raises OSError where it cannot be watched (our own
    is ended then), ProcessLookupError where there is none.
    """

    def __init__(self, pid: int, on_exit: Callable[[str], None], *, own: bool) -> None:
        self.pid = pid
        self.alive = True
        self._own = own
        self._on_exit = on_exit
        self._leads = own or _leads_a_group(pid)
        self._loop = asyncio.get_running_loop()
        try:
            self._pidfd = os.pidfd_open(pid)
            try:
                self._loop.add_reader(self._pidfd, self._ended)
            except BaseException:
                os.close(self._pidfd)
                raise
        except BaseException:
            if own:
                os.kill(pid, signal.SIGKILL)
                self._collect()
            raise

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """End it now."""
        self.signal(signal.SIGKILL)

    def forget(self) -> None:
        """Stop watching; the process lives on."""
        if self.alive:
            self.alive = False
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)

    def _ended(self) -> None:
        self.forget()
        self._on_exit(self._collect())

    def _collect(self) -> str:
        if self._leads:
            # What it started lives in its group, and goes with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        if not self._own:
            return "ended"
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return "ended"
        code = os.waitstatus_to_exitcode(status)
        return f"signal {-code}" if code < 0 else f"exit status {code}"


def _leads_a_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid != os.getpgrp()
    except ProcessLookupError:
        return False


def spawn_worker(python: str, arguments: Sequence[str], log: Path) -> int:
    """Start `python -m modelpool.worker` in a session of its own with its output appended to `log`; returns the pid.

    Raises SetupError where the system refuses.
    """
    environment = dict(os.environ)
    environment.setdefault("MALLOC_ARENA_MAX", "2")
    # The same modelpool as ours, however ours was found.
    here = str(Path(modelpool.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (here, environment.get("PYTHONPATH"))))
    append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        return os.posix_spawn(
            python,
            # -P: nothing is imported from the folder that the server happens to run in.
            [python, "-P", "-m", "modelpool.worker", *arguments],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.fspath(log), append, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    except OSError as error:
        raise SetupError(f"cannot start a worker process with {python} (log {log}): {error}") from error


def default_python() -> str:
    """The interpreter for workers: ours."""
    return sys.executable


def log_tail(log: Path) -> str:
    """The last line of a worker's log, for messages ('' where there is none)."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
    return ""
