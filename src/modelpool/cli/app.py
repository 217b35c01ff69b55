"""The command `modelpool` and its subcommands.

Modules of this folder import at their top only what is quick to import: `modelpool version` should be there at once.
"""

from __future__ import annotations

import click

from modelpool.cli import look, serving, simulating, wishes
from modelpool.cli.exits import EXIT_CODES
from modelpool.cli.options import json_option
from modelpool.cli.output import print_json


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=EXIT_CODES)
def modelpool() -> None:
    """Serve more machine-learning models than fit in memory."""


@modelpool.command()
@json_option()
def version(as_json: bool) -> None:
    """Print the version."""
    from modelpool import __version__

    if as_json:
        print_json({"version": __version__})
    else:
        click.echo(f"modelpool {__version__}")


for _command in (
    serving.serve,
    look.models,
    look.devices,
    wishes.load,
    wishes.eject,
    wishes.forget,
    wishes.pin,
    wishes.unpin,
    look.explain,
    look.decisions,
    simulating.simulate,
):
    modelpool.add_command(_command)
