"""Writes docs/cli.md from the commands themselves: `.venv/bin/python docs/make_cli.py`."""

from __future__ import annotations

import inspect
from pathlib import Path

import click

from modelpool.cli.app import modelpool
from modelpool.cli.exits import EXIT_CODES

HEAD = """# The command line

Made by `docs/make_cli.py`; a test keeps it up to date.

Tables are for people: on a terminal they fit its width, elsewhere they are plain columns. `--json` is for programs; then errors are JSON on
stderr too. `modelpool COMMAND --help` says what stands here.

"""


def cli_page() -> str:
    """The page as it should be."""
    codes = "\n".join(line.strip() for line in EXIT_CODES.splitlines() if line.strip()[:1].isdigit())
    commands = [_section(name, modelpool.commands[name]) for name in sorted(modelpool.commands)]
    return HEAD + "\n".join([f"## Exit codes\n\n```text\n{codes}\n```\n", *commands])


def _section(name: str, command: click.Command) -> str:
    usage = " ".join(["modelpool", name, "[OPTIONS]", *_arguments(command)])
    lines = [f"## modelpool {name}", "", f"`{usage}`", "", inspect.cleandoc(command.help or ""), ""]
    lines += ["| option | default | meaning |", "|---|---|---|"]
    lines += [_row(option) for option in command.params if isinstance(option, click.Option)]
    return "\n".join(lines) + "\n"


def _arguments(command: click.Command) -> list[str]:
    context = click.Context(command)
    return [parameter.make_metavar(context) for parameter in command.params if isinstance(parameter, click.Argument)]


def _row(option: click.Option) -> str:
    spelt = ", ".join(option.opts)
    if not option.is_flag:
        kinds = option.type.choices if isinstance(option.type, click.Choice) else None
        spelt += " " + ("\\|".join(map(str, kinds)) if kinds else option.metavar or option.type.name.upper())
    meaning, _, default = (option.help or "").partition("  [default: ")
    default = default.rstrip("]") or (str(option.default) if option.show_default else "")
    several = " May be given several times." if option.multiple else ""
    variable = f" Variable: `{option.envvar}`." if option.envvar else ""
    return f"| `{spelt}` | {default} | {meaning}{several}{variable} |"


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(cli_page())
