"""The command line."""

from __future__ import annotations


def main() -> None:
    """Run the command line and leave with its exit code."""
    from modelpool.cli.app import modelpool

    modelpool(prog_name="modelpool")
