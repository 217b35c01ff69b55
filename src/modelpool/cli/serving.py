"""The command `serve`: from options to settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from modelpool.cli.exits import explain_errors
from modelpool.cli.options import json_option

_folder = click.Path(path_type=Path)


@click.command()
@click.argument("repositories", nargs=-1, metavar="[REPOSITORY]...", type=_folder)
@click.option("--config", type=_folder, help="Settings from this YAML file; options and MODELPOOL_* variables go before it.")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--http-port", type=click.IntRange(0, 65535), help="Port to listen on; 0: any that is free.  [default: 8000]")
@click.option("--grpc-port", metavar="PORT", help="Port to listen on for gRPC; 0: any that is free, off: none.  [default: 8001]")
@click.option("--device", "devices", multiple=True, metavar="NAME=SIZE", help="A device and what models may add to it, like cpu=200MiB.")
@click.option(
    "--triton", multiple=True, metavar="ADDRESS", help="A Triton server that runs already: HOST:GRPCPORT,HTTP=PORT[,METRICS=PORT]."
)
@click.option("--triton-command", multiple=True, metavar="COMMAND", help="Start a Triton server with this command, and supervise it.")
@click.option("--eviction", metavar="POLICY", help="What to evict first: demand, lru, fifo, or none (refuse).  [default: demand]")
@click.option("--keep-alive", metavar="DURATION", help="Unload a model that was idle for this long, or inf.  [default: 5m]")
@click.option("--state-dir", type=_folder, help="Where to keep what outlasts the server.")
@click.option("--record", type=_folder, help="Write what happens to this file, for `modelpool simulate`.")
@click.option("--allow-root", "allowed_roots", multiple=True, type=_folder, help="Clients may register models beneath this folder.")
@click.option("--preload", multiple=True, metavar="MODEL", help="Load this model at the start.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How logs look on stderr.  [default: text]")
@click.option("--set", "others", multiple=True, metavar="NAME=VALUE", help="Any other setting.")
@json_option("Print the address as JSON once the server is ready.")
@explain_errors
def serve(*, as_json: bool, config: Path | None, others: tuple[str, ...], **given: Any) -> None:
    """Serve the models of repositories.

    SIGTERM or Ctrl-C finishes the requests that were accepted; a second one stops at once.
    """
    from modelpool.settings import load_settings

    settings = load_settings(config, given | pairs(others))
    from modelpool.cli.serve import run

    run(settings, as_json=as_json)


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """Settings from `NAME=VALUE`, whose values are read as those of variables are."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE; write for example --set queue_bound=100", param_hint="--set")
        found[name.strip()] = value.strip()
    return found
