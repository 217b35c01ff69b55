"""A copy's queue: which requests run together, and where."""

from __future__ import annotations

import numpy as np
import pytest

from modelpool.protocol.inference import encode_request
from modelpool.worker.codec import decode_item
from modelpool.worker.hosted import INLINE_ITEMS, INLINE_S, MEASURED_RUNS, Hosted
from modelpool.worker.runs import Item
from tests.unit.worker.fakes import Doubling, hosted


def item(copy: Hosted, call: int, *, rows: int = 1, version: int = 0, arrived: float = 0.0, timeout_us: int | None = None) -> Item:
    parameters = {} if timeout_us is None else {"timeout": timeout_us}
    body = encode_request({"X": np.ones((rows, 2), np.float32)}, parameters=parameters)
    made = decode_item(copy, object(), call, body.json_bytes, version, body.joined(), arrived)
    copy.add(made)
    return made


def taken(copy: Hosted, now: float = 0.0) -> tuple[list[int], list[int]]:
    late: list[Item] = []
    return [one.call for one in copy.take(now, late)], [one.call for one in late]


def test_a_run_takes_rows_up_to_the_batch_size_in_order() -> None:
    copy = hosted(Doubling(max_batch=8, batches=True))
    for call, rows in enumerate([3, 4, 2, 9, 1]):
        item(copy, call, rows=rows)
    assert copy.queued_rows == 19
    assert taken(copy) == ([0, 1], [])
    assert taken(copy) == ([2], [])
    assert taken(copy) == ([3], [])  # more than a batch: alone, and the model says what it thinks of it
    assert taken(copy) == ([4], [])
    assert taken(copy) == ([], [])
    assert copy.queued_rows == 0


@pytest.mark.parametrize("model", [Doubling(), Doubling(max_batch=8)])
def test_what_does_not_batch_runs_one_by_one(model: Doubling) -> None:
    copy = hosted(model)
    for call in range(3):
        item(copy, call)
    assert [taken(copy)[0] for _ in range(3)] == [[0], [1], [2]]


def test_versions_and_requests_that_must_be_alone_do_not_mix() -> None:
    copy = hosted(Doubling(max_batch=8, batches=True), versions=(1, 2))
    for call, version in enumerate([0, 2, 1, 1]):
        item(copy, call, version=version)
    item(copy, 4, version=1).alone = True
    item(copy, 5, version=1)
    assert [taken(copy)[0] for _ in range(4)] == [[0, 1], [2, 3], [4], [5]]


def test_requests_whose_time_ran_out_are_set_aside() -> None:
    copy = hosted(Doubling(max_batch=8, batches=True))
    item(copy, 0, timeout_us=1_000_000)
    item(copy, 1)
    item(copy, 2, timeout_us=3_000_000)
    item(copy, 3, timeout_us=0)
    assert taken(copy, now=2.0) == ([1, 2, 3], [0])


def test_a_run_may_wait_for_more_until_it_is_full() -> None:
    copy = hosted(Doubling(max_batch=4, batches=True, max_delay_s=0.5))
    item(copy, 0, arrived=10.0)
    item(copy, 1, arrived=10.25)
    assert copy.delay_s(10.25) == 0.25
    assert copy.delay_s(11.0) == 0.0
    item(copy, 2, rows=2, arrived=10.25)
    assert copy.delay_s(10.25) == 0.0
    never = hosted(Doubling(max_batch=4, max_delay_s=0.5))
    item(never, 0, arrived=10.0)
    assert never.delay_s(10.0) == 0.0


def test_a_request_can_be_taken_out_again() -> None:
    copy = hosted()
    for call in range(3):
        item(copy, call, rows=2)
    removed = copy.remove(1)
    assert removed is not None
    assert removed.call == 1
    assert copy.remove(1) is None
    assert [one.call for one in copy.clear()] == [0, 2]
    assert copy.queued_rows == 0


def measured(copy: Hosted, size_bytes: int = 100) -> Hosted:
    for _ in range(MEASURED_RUNS):
        assert copy.wants_measure(size_bytes)
        copy.measured(size_bytes, 0)
    return copy


def test_short_runs_stay_on_the_event_loop_once_they_were_measured() -> None:
    copy = hosted()
    copy.ran(INLINE_S / 10, inline=False)
    assert not copy.is_quick(100)
    measured(copy)
    assert copy.is_quick(100)
    assert not copy.is_quick(101)  # more input than was seen so far: it may take much longer, and more memory
    copy.measured(101, 0)
    assert copy.is_quick(101)


def test_the_shortest_run_in_a_thread_counts() -> None:
    copy = measured(hosted())
    copy.ran(1.0, inline=False)
    assert not copy.is_quick(1)
    copy.ran(INLINE_S / 2, inline=False)
    assert copy.is_quick(1)


def test_runs_that_become_long_leave_the_event_loop() -> None:
    copy = measured(hosted())
    copy.ran(INLINE_S / 10, inline=False)
    copy.ran(1.0, inline=True)  # once is chance
    assert copy.is_quick(1)
    for _ in range(20):
        copy.ran(1.0, inline=True)
    assert not copy.is_quick(1)
    copy.ran(INLINE_S / 10, inline=False)
    assert not copy.is_quick(1)  # not back at once
    for _ in range(100):
        copy.ran(INLINE_S / 10, inline=False)
    assert copy.is_quick(1)


def test_a_run_on_the_event_loop_takes_few_requests() -> None:
    copy = hosted(Doubling(max_batch=64, batches=True))
    copy.ran(INLINE_S / 10, inline=False)
    for call in range(INLINE_ITEMS + 4):
        item(copy, call)
    assert len(taken(copy)[0]) == INLINE_ITEMS
    assert len(taken(copy)[0]) == 4


def test_only_a_higher_peak_is_news() -> None:
    copy = hosted()
    assert [copy.measured(10, added) for added in (0, 5, 5, 6)] == [False, True, False, True]
    assert copy.held().run_peak_bytes == 6
