"""Options that commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from modelpool.cli.exits import explain_errors
from modelpool.errors import InvalidRequest
from modelpool.units import parse_duration

if TYPE_CHECKING:
    from modelpool.client import Client

P = ParamSpec("P")

DEFAULT_URL = "http://127.0.0.1:8000"


def seconds(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """A duration as people write it (`90s`, `5m`), in seconds."""
    try:
        return parse_duration(value)
    except InvalidRequest as error:
        raise click.BadParameter(error.message) from error


def json_option(help_text: str = "Print JSON.") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`--json`, which every command has."""
    return click.option("--json", "as_json", is_flag=True, envvar="MODELPOOL_JSON", show_envvar=True, help=help_text)


def server_command(timeout: str = "60s") -> Callable[[Callable[Concatenate[Client, bool, P], None]], Callable[..., None]]:
    """Make a function a command that asks a server: it is given a client and whether to print JSON."""

    def decorate(function: Callable[Concatenate[Client, bool, P], None]) -> Callable[..., None]:
        @click.option("--url", envvar="MODELPOOL_URL", default=DEFAULT_URL, show_default=True, show_envvar=True, help="Server's address.")
        @click.option(
            "--timeout", "timeout_s", metavar="DURATION", default=timeout, show_default=True, callback=seconds, help="Give up then."
        )
        @json_option()
        @functools.wraps(function)
        @explain_errors
        def run(url: str, timeout_s: float, as_json: bool, *args: P.args, **kwargs: P.kwargs) -> None:
            from modelpool.client import Client

            with Client(url, timeout_s=timeout_s) as client:
                function(client, as_json, *args, **kwargs)

        return run

    return decorate
