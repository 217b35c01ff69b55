"""The table of running calls, as the worker writes it and the server reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelpool.protocol.running import SLOTS, RunningTable, read_running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w.running"


def test_calls_are_there_from_mark_to_release(path: Path) -> None:
    table = RunningTable(path)
    first, second = table.mark([1 << 40, 7]), table.mark([9])
    assert [call in read_running(path) for call in (1 << 40, 7, 9, 8, 0)] == [True, True, True, False, False]
    table.release(first)
    assert [call in read_running(path) for call in (1 << 40, 7, 9)] == [False, False, True]
    table.release(second)
    assert 9 not in read_running(path)
    table.close()


def test_a_new_worker_begins_with_an_empty_table(path: Path) -> None:
    before = RunningTable(path)
    before.mark([5])
    before.close()
    table = RunningTable(path)
    assert 5 not in read_running(path)
    table.close()


def test_a_full_table_holds_every_call(path: Path) -> None:
    table = RunningTable(path)
    slots = table.mark(range(1, SLOTS + 10))
    assert len(slots) == SLOTS
    assert SLOTS + 5 in read_running(path)
    assert table.mark([1]) == []
    table.release(slots)
    assert SLOTS + 5 not in read_running(path)
    assert len(table.mark([1, 2])) == 2
    table.close()


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_an_unreadable_table_holds_every_call(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    assert 123 in read_running(path)
