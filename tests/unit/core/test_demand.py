"""Rates of arrivals over windows."""

from __future__ import annotations

import numpy as np
import pytest

from modelpool.core.demand import DemandTable


def test_a_rate_is_of_the_last_seconds_only() -> None:
    table = DemandTable()
    row = table.open_row()
    for second in range(100, 110):
        table.arrive(row, second + 0.5)
    assert table.rate(row, 10.0, 109.9) == 1.0
    assert table.rate(row, 5.0, 109.9) == 1.0
    assert table.rate(row, 10.0, 114.0) == 0.5
    assert table.rate(row, 10.0, 130.0) == 0.0


def test_arrivals_of_the_present_second_count_at_once_and_once() -> None:
    table = DemandTable()
    row = table.open_row()
    for _ in range(3):
        table.arrive(row, 50.2)
        table.rate(row, 1.0, 50.3)
    assert table.rate(row, 1.0, 50.4) == 3.0


def test_long_windows_reach_back_half_an_hour() -> None:
    table = DemandTable()
    row = table.open_row()
    for minute in range(30):
        table.arrive(row, 10_000.0 + 60 * minute)
    rate = table.rate(row, 1800.0, 10_000.0 + 29 * 60)
    assert rate == pytest.approx(30 / 1808, rel=0.01)
    assert table.rate(row, 1800.0, 20_000.0) == 0.0


def test_rates_of_many_rows_in_the_order_asked_for() -> None:
    table = DemandTable()
    rows = [table.open_row() for _ in range(130)]
    for count, row in enumerate(rows):
        for _ in range(count):
            table.arrive(row, 7.0)
    asked = np.array([rows[129], rows[0], rows[64]])
    assert table.rates(asked, 1.0, 7.5).tolist() == [129.0, 0.0, 64.0]


def test_a_row_is_empty_when_it_is_used_again() -> None:
    table = DemandTable()
    row = table.open_row()
    table.arrive(row, 5.0)
    table.rate(row, 1.0, 5.0)
    table.arrive(row, 5.0)
    table.close_row(row)
    assert table.open_row() == row
    assert table.rate(row, 60.0, 5.0) == 0.0
