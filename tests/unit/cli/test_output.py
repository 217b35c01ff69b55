from __future__ import annotations

import io

import pytest

from modelpool.cli.output import Column, plain_lines, print_table

COLUMNS = (Column("NAME"), Column("SIZE", right=True), Column("NOTE"))
ROWS = [("a", "1 MiB", ""), ("longer", "20 MiB", "two\nlines")]


def test_plain_columns_are_aligned_and_one_row_is_one_line() -> None:
    assert plain_lines(COLUMNS, ROWS) == [
        "NAME      SIZE  NOTE",
        "a        1 MiB",
        "longer  20 MiB  two lines",
    ]


def test_what_would_act_on_a_terminal_is_escaped() -> None:
    assert plain_lines((Column("NAME"),), [("a\u202eb\x1b[2J",)]) == ["NAME", "a\\u202eb\\u001b[2J"]


def test_an_empty_table_is_its_head() -> None:
    assert plain_lines(COLUMNS, []) == ["NAME  SIZE  NOTE"]


def test_a_terminal_gets_a_table_and_no_markup_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    print_table(COLUMNS, [("[red]a[/red]", "1 MiB", "x\u202e")])
    assert "[red]a[/red]" in terminal.getvalue()
    assert "x\\u202e" in terminal.getvalue()
