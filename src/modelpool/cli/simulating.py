"""The command `simulate`: replay a record of `serve --record`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelpool.cli.exits import explain_errors
from modelpool.cli.options import json_option
from modelpool.cli.output import print_json
from modelpool.cli.serving import pairs


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--device", "devices", multiple=True, metavar="NAME=SIZE", help="Another budget than was recorded, like cpu=200MiB.")
@click.option("--eviction", metavar="POLICY", help="Another eviction policy.")
@click.option("--keep-alive", metavar="DURATION", help="Another keep-alive.")
@click.option("--set", "others", multiple=True, metavar="NAME=VALUE", help="Any other setting of the core.")
@json_option()
@explain_errors
def simulate(*, file: Path, as_json: bool, others: tuple[str, ...], **given: Any) -> None:
    """Replay what a server recorded.

    FILE, written by `modelpool serve --record`, goes through the same decisions on a virtual clock.
    """
    from modelpool.simulator.replay import run

    report = run(file, given | pairs(others))
    if as_json:
        print_json(report)
    else:
        click.echo(str(report))
