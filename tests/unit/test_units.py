from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelpool.errors import InvalidRequest
from modelpool.units import format_bytes, format_duration, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0), ("12", 12), (12, 12), ("12B", 12), ("1KiB", 1024), ("200MiB", 200 << 20), ("200 mib", 200 << 20), ("1.5GiB", 3 << 29),
        ("2TiB", 2 << 40), ("5kB", 5000), ("3MB", 3_000_000), ("1.5GB", 1_500_000_000), (" 64MiB ", 64 << 20),
    ],
)  # fmt: skip
def test_sizes(text: object, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", -1, "1 apple", "200M", "1,5GiB", "1e9", "1MiB2", "inf", True, 1.5, None, [], "9" * 100, "٣MiB"]
)
def test_no_sizes(text: object) -> None:
    with pytest.raises(InvalidRequest, match="write for example 200MiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0), ("90", 90), (90, 90), (0.25, 0.25), ("90s", 90), ("5m", 300), ("5 m", 300), ("1.5h", 5400), ("1h30m", 5400),
        ("1h 30m", 5400), ("2d", 172_800), ("250ms", 0.25), ("inf", math.inf), ("INF", math.inf), (math.inf, math.inf),
    ],
)  # fmt: skip
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "-5m", -5, "5 minutes", "5M5", "nan", math.nan, True, None, {}, "1h30", "1" * 100])
def test_no_durations(text: object) -> None:
    with pytest.raises(InvalidRequest, match="write for example 90s, 5m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (200 << 20, "200 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 40, "1 TiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (0.25, "250ms"), (0.0123, "12.3ms"), (0.9996, "1s"), (7.32, "7.3s"), (10, "10s"), (59.96, "1m"), (90, "1m30s"),
        (300, "5m"), (3600, "1h"), (5400, "1h30m"), (100_000, "1d3h"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(0, 1 << 60))
def test_what_is_shown_can_be_typed(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.06)


@given(st.floats(0.001, 1e8))
def test_a_shown_duration_can_be_typed(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.05)
