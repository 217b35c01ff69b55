"""Figures of this process's memory. Sizes are large against what else goes on in it, and times play no part."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np

from modelpool.worker.memory import PeakSampler, RunProbe, bound_log, private_bytes, settled_bytes, tight_allocation

SIZE = 200 << 20
SLACK = 40 << 20


def test_private_bytes_come_and_go_with_what_is_allocated() -> None:
    before = settled_bytes()
    block = np.ones(SIZE, np.uint8)
    assert abs(private_bytes() - before - SIZE) < SLACK
    del block
    assert abs(settled_bytes() - before) < SLACK


def test_pages_of_files_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(SIZE))
    before = private_bytes()
    mapped = np.memmap(path, np.uint8, "r")
    assert int(mapped[:: 1 << 12].sum()) == 0
    assert private_bytes() - before < SLACK


def test_a_peak_is_seen_though_it_is_over() -> None:
    before = private_bytes()
    with PeakSampler() as sampler:
        block = np.ones(SIZE, np.uint8)
        while sampler.peak_bytes < before + SIZE - SLACK:  # bounded by the test's time limit
            threading.Event().wait(0.001)
        del block
    assert sampler.peak_bytes < before + SIZE + SLACK


def test_what_a_run_added_at_most() -> None:
    probe = RunProbe()
    for _ in range(2):
        before = probe.start()
        np.ones(SIZE, np.uint8)
        assert abs(probe.added_bytes(before) - SIZE) < SLACK
    assert probe.added_bytes(probe.start()) < SLACK


def test_a_run_is_not_charged_for_pages_of_files(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(SIZE))
    probe = RunProbe()
    before = probe.start()
    mapped = np.memmap(path, np.uint8, "r")
    assert int(mapped[:: 1 << 12].sum()) == 0
    assert probe.added_bytes(before) < SLACK


def test_without_leave_to_reset_the_mark_what_stays_is_seen() -> None:
    probe = RunProbe()
    probe._reset = False
    before = probe.start()
    block = np.ones(SIZE, np.uint8)
    assert abs(probe.added_bytes(before) - SIZE) < SLACK
    del block


def test_blocks_can_be_allocated_while_allocation_is_tight() -> None:
    with tight_allocation():
        assert np.ones(1 << 20, np.uint8).sum() == 1 << 20


def test_a_log_that_outgrew_its_bound_begins_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    saved = os.dup(2)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.dup2(fd, 2)
        os.write(2, b"x" * 100)
        bound_log(100)
        assert log.stat().st_size == 100
        os.write(2, b"y")
        bound_log(100)
        assert log.stat().st_size == 0
        os.write(2, b"z")
        assert log.read_bytes() == b"z"
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(fd)
