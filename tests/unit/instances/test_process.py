"""Processes as they are started, watched and ended."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path

import pytest

from modelpool.errors import SetupError
from modelpool.instances.process import Process, log_tail, spawn_worker

PAUSE = "import signal; signal.pause()"


def child(code: str) -> int:
    return os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ, setsid=True)


@pytest.mark.parametrize(
    ("code", "how"),
    [("raise SystemExit(3)", "exit status 3"), ("import os; os.kill(os.getpid(), 11)", "signal 11"), (PAUSE, "signal 9")],
)
async def test_the_end_of_a_child_is_told_once_with_its_status(code: str, how: str) -> None:
    ends: asyncio.Queue[str] = asyncio.Queue()
    process = Process(child(code), ends.put_nowait, own=True)
    if how == "signal 9":
        process.kill()
    assert await ends.get() == how
    process.kill()
    assert not process.alive
    assert ends.empty()


async def test_what_a_child_started_ends_with_it() -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    ends: asyncio.Queue[str] = asyncio.Queue()
    code = (
        "import os, signal\n"
        "ready, begun = os.pipe()\n"
        "if os.fork():\n"
        "    os.read(ready, 1)\n"
        "    os._exit(0)\n"
        f"os.write({write}, b'x')\n"
        "os.write(begun, b'x')\n"
        "signal.pause()\n"
    )
    process = Process(child(code), ends.put_nowait, own=True)
    os.close(write)
    assert await asyncio.to_thread(os.read, read, 1) == b"x"
    await ends.get()
    assert await asyncio.to_thread(os.read, read, 1) == b""  # nobody holds the other end any more
    assert not process.alive
    os.close(read)


async def test_a_process_that_is_not_ours_is_watched_all_the_same_until_it_is_let_go() -> None:
    pid = child(PAUSE)
    ends: asyncio.Queue[str] = asyncio.Queue()
    watched, left = Process(pid, ends.put_nowait, own=False), Process(pid, ends.put_nowait, own=False)
    left.forget()
    left.forget()
    left.kill()  # it is not ours any more
    watched.kill()
    assert await ends.get() == "ended"
    await asyncio.to_thread(os.waitpid, pid, 0)
    assert ends.empty()
    with pytest.raises(ProcessLookupError):
        Process(pid, ends.put_nowait, own=False)


def test_a_program_that_is_not_there_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no-python"):
        spawn_worker(str(tmp_path / "no-python"), [], tmp_path / "log")


def test_the_last_words_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert log_tail(log) == ""
    log.write_bytes(b"")
    assert log_tail(log) == ""
    log.write_bytes(b"long ago\n" * 1000 + b"\xff the end \n\n")
    assert log_tail(log) == "\N{REPLACEMENT CHARACTER} the end"


async def test_a_child_that_cannot_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more_descriptors(pid: int, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    pid = child(PAUSE)
    monkeypatch.setattr(os, "pidfd_open", no_more_descriptors)
    with pytest.raises(OSError, match="Too many open files"):
        Process(pid, lambda how: None, own=True)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
