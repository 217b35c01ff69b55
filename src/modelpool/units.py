"""Sizes and durations as people write them: `200MiB`, `1.5GB`, `5m`, `1h30m`, `inf`."""

from __future__ import annotations

import math
import re

from modelpool.errors import InvalidRequest

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:ms|s|m|h|d)\s*)+", re.IGNORECASE | re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)

_SIZE_UNITS = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    **{"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40},
}
_DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 64
_LONGEST_S = 1e15
"""Longer durations are for ever."""


def parse_bytes(value: object) -> int:
    """Bytes from `200MiB`, `1.5 GB` or a bare number; MiB counts 1024s, MB counts 1000s. Raises InvalidRequest."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and len(value) <= _LONGEST and (match := _SIZE.fullmatch(value.strip())) is not None:
        unit = _SIZE_UNITS.get(match[2].lower())
        if unit is not None:
            return int(match[1]) * unit if "." not in match[1] else round(float(match[1]) * unit)
    raise InvalidRequest(f"{_short(value)} is not a size; write for example 200MiB, 1.5GiB, 500MB or a number of bytes")


def parse_duration(value: object) -> float:
    """Seconds from `5m`, `1h30m`, `250ms`, `inf` or a bare number of seconds. Raises InvalidRequest."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:  # not true of nan
        return float(value) if value < _LONGEST_S else math.inf
    if isinstance(value, str) and len(value) <= _LONGEST:
        text = value.strip()
        if text.lower() == "inf":
            return math.inf
        if _NUMBER.fullmatch(text):
            return float(text)
        if _DURATION.fullmatch(text):
            return sum(float(number) * _DURATION_UNITS_S[unit.lower()] for number, unit in _DURATION_PART.findall(text))
    raise InvalidRequest(f"{_short(value)} is not a duration; write for example 90s, 5m, 1h30m, inf or a number of seconds")


def format_bytes(count: float) -> str:
    """`200 MiB`, `1.5 GiB`, `12 B`: at most one decimal."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1023.95:
            return f"{size:.1f}".removesuffix(".0") + f" {unit}"
        size /= 1024
    return f"{size:.1f}".removesuffix(".0") + " TiB"


def format_duration(seconds: float) -> str:
    """`5m`, `1h30m`, `7.3s`, `250ms`, `inf`: no finer than anyone needs to read."""
    if math.isinf(seconds):
        return "inf"
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.3g}ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    rest = round(seconds)
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
