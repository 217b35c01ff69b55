"""Exit codes, and how an error ends a command."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import click

from modelpool.cli.output import json_text, say
from modelpool.errors import ModelpoolError, NotFound, SetupError

EXIT_CODES = """\b
Exit codes:
  0  done
  1  the server refused, or the model is at fault
  2  wrong usage, or the server cannot start as it is set up
  3  no server answers at the address
  4  there is no such model or device, or it is not loaded
"""

P = ParamSpec("P")


def exit_code(error: ModelpoolError) -> int:
    """The exit code for an error, as `EXIT_CODES` lists them."""
    if error.code == "connection_failed":
        return 3
    if isinstance(error, NotFound):
        return 4
    return 2 if isinstance(error, SetupError) else 1


def explain_errors(function: Callable[P, None]) -> Callable[P, None]:
    """Let a ModelpoolError end the command with one line on stderr (JSON where the command's `as_json` is set) and its exit code."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except ModelpoolError as error:
            said = json_text({"error": error.message, "code": error.code}) if kwargs.get("as_json") else f"modelpool: {error.message}"
            say(said, err=True)
            raise click.exceptions.Exit(exit_code(error)) from error

    return run
