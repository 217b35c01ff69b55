"""The table of cases names tests that exist, and every case of one server."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = (TESTS / "README.md").read_text()


def test_each_row_names_a_test_that_exists() -> None:
    rows = re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", TABLE)
    assert len(rows) > 25
    for file, name in rows:
        assert f"def {name}(" in (TESTS / file).read_text(), f"{file} has no {name}"


def test_no_case_is_left_out() -> None:
    named = {int(number) for cells in re.findall(r"^\| ([\d, ]+) \|", TABLE, re.MULTILINE) for number in cells.split(",")}
    assert {*range(1, 24), 30} <= named
