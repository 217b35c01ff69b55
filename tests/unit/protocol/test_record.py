"""What a worker leaves in the run directory, and what /proc says of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modelpool.protocol.record import (
    WorkerRecord,
    anonymous_bytes,
    connect,
    listen,
    read_records,
    remove_files,
    running_path,
    socket_path,
    start_ticks,
    status_bytes,
    write_record,
)


def record(name: str) -> WorkerRecord:
    return WorkerRecord(name=name, pid=1, start_ticks=2, generation=3, wire_version=1)


def test_records_are_found_by_name_and_rubbish_is_not(tmp_path: Path) -> None:
    for name in ("w", "w+ab.1of2"):
        write_record(tmp_path, record(name))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text('{"name": "x"}')
    (tmp_path / "renamed.json").write_bytes((tmp_path / "w.json").read_bytes())
    assert read_records(tmp_path) == [record("w+ab.1of2"), record("w")]
    socket_path(tmp_path, "w").touch()
    running_path(tmp_path, "w").touch()
    remove_files(tmp_path, "w")
    remove_files(tmp_path, "w")
    assert read_records(tmp_path) == [record("w+ab.1of2")]
    assert not list(tmp_path.glob("w.*"))


def test_a_folder_may_be_deeper_than_a_socket_address_is_long(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 200)
    folder.mkdir()
    path = socket_path(folder, "w")
    with pytest.raises(FileNotFoundError):
        connect(path)
    for _ in range(2):  # the second one takes the place of what the first left
        with listen(path) as server, connect(path) as client:
            server.setblocking(True)
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(b"hi")
                client.setblocking(True)
                assert client.recv(2) == b"hi"
        with pytest.raises(ConnectionRefusedError):
            connect(path)


def test_a_process_is_known_by_its_start() -> None:
    mine = start_ticks(os.getpid())
    assert mine is not None
    assert mine > 0
    assert start_ticks(os.getpid()) == mine
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks(ended.pid) is None  # a zombie
    ended.wait()
    assert start_ticks(ended.pid) is None
    assert anonymous_bytes(ended.pid) is None


def test_private_bytes_come_from_the_status_text() -> None:
    status = b"Name:\tx\nVmSwap:\t       8 kB\nRssAnon:\t     1024 kB\nRssFile:\t 5 kB\n"
    assert status_bytes(status, b"RssAnon:") == 1 << 20
    assert status_bytes(status, b"VmSwap:") == 8192
    assert status_bytes(status, b"VmHWM:") == 0
    mine = anonymous_bytes(os.getpid())
    assert mine is not None
    assert mine > 1 << 20
