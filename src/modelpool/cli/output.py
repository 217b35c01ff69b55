"""What commands print: JSON for programs, tables for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from modelpool.protocol.visible import visible


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; right: figures, set to the right."""

    title: str
    right: bool = False


def json_text(content: Any) -> str:
    """`content` as one line of JSON; may hold the structs of `controller.views`."""
    import msgspec

    return msgspec.json.encode(content).decode()


def print_json(content: Any) -> None:
    """Print `content` as indented JSON."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(content), indent=2))


def say(text: str, *, err: bool = False) -> None:
    """Print one line that may hold names and reasons of others."""
    click.echo(visible(text), err=err)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: fitted to the terminal, or in plain columns that are never cut where the output goes elsewhere."""
    if sys.stdout.isatty():
        _print_rich(columns, rows)
    else:
        for line in plain_lines(columns, rows):
            click.echo(line)


def plain_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """The table as lines of aligned columns, two spaces apart, each row on one line."""
    cells = [[column.title for column in columns], *([_one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    return ["  ".join(map(_fitted, row, widths, columns)).rstrip() for row in cells]


def _one_line(cell: str) -> str:
    return visible(" ".join(cell.split()))


def _fitted(cell: str, width: int, column: Column) -> str:
    return cell.rjust(width) if column.right else cell.ljust(width)


def _print_rich(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=column.right)
    for row in rows:
        table.add_row(*(Text(_one_line(cell)) for cell in row))  # Text: names and reasons are no markup
    Console().print(table)
