"""What a killed server and killed workers leave in the state folder, and rubbish there: the next start is none the worse for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modelpool.protocol.frames import WIRE_VERSION
from modelpool.protocol.record import WorkerRecord, listen, read_records, record_path, running_path, socket_path, start_ticks, write_record
from modelpool.testing.models import scale
from tests.integration.running import alive, running, until
from tests.integration.scripted import Orders, add_python

SOON_S = 20.0
"""A start that waits for something that does not come takes longer."""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    scale(folder / "times2.onnx", 2.0)
    add_python(folder, "fine")
    return folder


@pytest.fixture
def stranger() -> Iterator[int]:
    """Process id of a program that has nothing to do with us."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process.pid
        process.kill()


def record(name: str, pid: int, ticks: int | None = None) -> WorkerRecord:
    return WorkerRecord(
        name=name, pid=pid, start_ticks=start_ticks(pid) or 0 if ticks is None else ticks, generation=7, wire_version=WIRE_VERSION
    )


def files(run_dir: Path) -> set[str]:
    """What is there but the logs."""
    return {path.name for path in run_dir.iterdir() if path.suffix != ".log"}


def of(*names: str) -> set[str]:
    """The files of these workers."""
    return {f"{name}.{kind}" for name in names for kind in ("json", "sock", "running")}


def test_rubbish_in_the_folder_of_workers_is_removed_and_strangers_are_left_alone(repository: Path, tmp_path: Path, stranger: int) -> None:
    run_dir = tmp_path / "state" / "run"
    run_dir.mkdir(parents=True)
    for name, content in (
        ("local", b"\0{"),
        ("local+a1.1of1", b"[]"),
        ("local+a2.1of1", b'{"name": "local+a2.1of1"}'),
        ("local+a3.1of1", b""),
    ):
        record_path(run_dir, name).write_bytes(content)
        socket_path(run_dir, name).write_bytes(b"no socket")
        running_path(run_dir, name).write_bytes(b"\xff" * 100)
    listen(socket_path(run_dir, "local+b1.1of1")).close()  # a socket without a record
    (run_dir / "local+b2.1of1.tmp").write_bytes(b"{")  # a record that was being written
    running_path(run_dir, "local+b3.1of1").touch()
    write_record(run_dir, record("local+c1.1of1", 2**22 - 7, 1))  # ended long ago
    write_record(run_dir, record("local+c2.1of1", -1, 1))
    write_record(run_dir, record("local+c3.1of1", stranger, 1))  # ended, and its number is another's now
    write_record(run_dir, record("local+d1.1of1", stranger))  # looks like one that lives, and does not listen
    write_record(run_dir, record("local+d2.1of1", stranger))
    (run_dir / "note.txt").write_text("mine")
    with listen(socket_path(run_dir, "local+d2.1of1")):  # looks like one that lives, and somebody else listens
        started = time.monotonic()
        with running(repository, tmp_path / "state") as server:
            assert time.monotonic() - started < SOON_S
            assert files(run_dir) == {"note.txt", *of("local")}
            assert server.value("times2", 2) == 4
            assert server.value("fine", 2) == 4
            assert len(server.workers()) == 2
            assert alive(stranger)
            assert server.stop() == 0
    assert files(run_dir) == {"note.txt"}
    assert alive(stranger)


def test_what_killed_workers_left_is_removed_and_their_models_come_back_on_demand(repository: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "state" / "run"
    with running(repository, tmp_path / "state") as server:
        assert server.value("times2", 2) == 4
        assert server.value("fine", 2) == 4
        before = server.workers()
        server.kill()
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in before.values()), "the end of the workers")
        assert files(run_dir) == of(*before)
        server.start()
        assert files(run_dir) == of("local")
        assert server.view("times2")["state"] == server.view("fine")["state"] == "UNAVAILABLE"
        assert server.value("times2", 3) == 6
        assert server.value("fine", 3) == 6


@pytest.mark.parametrize("lost", ["record", "socket"])
def test_a_worker_that_lives_and_cannot_be_found_is_replaced_and_ends(repository: Path, tmp_path: Path, lost: str) -> None:
    run_dir = tmp_path / "state" / "run"
    with running(repository, tmp_path / "state", "--set", "orphan_grace=2s") as server:
        assert server.value("times2", 2) == 4
        assert server.value("fine", 2) == 4
        before = server.workers()
        server.kill()
        for name in before:
            path = record_path(run_dir, name) if lost == "record" else socket_path(run_dir, name)
            path.unlink()
            path.write_bytes(b"rubbish")
        started = time.monotonic()
        server.start()
        assert time.monotonic() - started < SOON_S
        after = server.workers()
        assert not before.items() & after.items()
        assert server.value("times2", 3) == 6
        assert server.value("fine", 3) == 6
        until(lambda: not any(alive(pid) for pid in before.values()), "the end of the workers that nobody found")
        assert files(run_dir) == of(*server.workers())
        assert server.value("times2", 4) == 8


def test_a_worker_that_was_starting_when_its_server_died_takes_nothing_from_the_next(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(tmp_path / "orders", monkeypatch)
    with running(repository, tmp_path / "state") as server:
        orders.wait("worker", "start")
        os.kill(server.shared_worker(), signal.SIGKILL)
        orders.reached("worker", "start")
        server.kill()
        assert not server.workers()
        before = orders.waiting("worker", "start")
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(server.start)
            until(lambda: len(orders.waiting("worker", "start")) == 2, "the next server's worker")
            orders.relent("worker", "start")
            starting.result()
        assert server.value("times2", 2) == 4
        until(lambda: not any(alive(pid) for pid in before), "the end of the worker of the dead server")
        assert server.value("times2", 3) == 6
        (found,) = read_records(tmp_path / "state" / "run")
        assert found.pid not in before
