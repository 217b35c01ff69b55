"""Commands that change something: load, eject, forget, pin, unpin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from modelpool.cli.options import server_command
from modelpool.cli.output import print_json, say

if TYPE_CHECKING:
    from modelpool.client import Client

_device = click.option("--device", help="Only this device, like cpu or cuda:0.")


@click.command()
@click.argument("model")
@_device
@server_command(timeout="10m")
def load(client: Client, as_json: bool, model: str, device: str | None) -> None:
    """Load MODEL and wait until it is ready.

    One of a repository that was forgotten is known again.
    """
    from modelpool.cli.progress import load_and_show

    _say(load_and_show(client, model, device), as_json, f"{model} is loaded")


@click.command()
@click.argument("model")
@_device
@server_command(timeout="10m")
def eject(client: Client, as_json: bool, model: str, device: str | None) -> None:
    """Unload MODEL.

    It goes once its requests have ended; a later request loads it again.
    """
    _say(client.eject_model(model, device), as_json, f"{model} is unloaded")


@click.command()
@click.argument("model")
@server_command(timeout="10m")
def forget(client: Client, as_json: bool, model: str) -> None:
    """Take MODEL out of the catalogue.

    It is unloaded, and unknown until it is posted again, which `modelpool load` does for a model of a repository.
    """
    _say(client.forget_model(model), as_json, f"{model} is forgotten")


@click.command()
@click.argument("model")
@server_command()
def pin(client: Client, as_json: bool, model: str) -> None:
    """Load MODEL and keep it.

    It is not evicted until it is unpinned.
    """
    _say(client.pin(model), as_json, f"{model} is pinned")


@click.command()
@click.argument("model")
@server_command()
def unpin(client: Client, as_json: bool, model: str) -> None:
    """Let a pinned MODEL be evicted."""
    _say(client.unpin(model), as_json, f"{model} is no longer pinned")


def _say(answer: dict[str, Any], as_json: bool, otherwise: str) -> None:
    if as_json:
        print_json(answer)
    else:
        say(answer.get("message") or otherwise)
