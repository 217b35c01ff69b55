"""Writes docs/settings.md from the settings themselves: `.venv/bin/python docs/make_settings.py`."""

from __future__ import annotations

from pathlib import Path

from modelpool.settings import describe_settings

HEAD = """# Settings

Every setting can stand in a YAML file (`modelpool serve --config FILE`), in a variable, or on the command line (`--set NAME=VALUE`; the
common ones have options of their own). Options go before variables, variables before the file. Durations are written `90s`, `5m`, `1h30m`,
`inf`; sizes `200MiB`, `1.5GB`. A setting that does not exist is an error that names the nearest one.

| setting | default | variable | meaning |
|---|---|---|---|
"""


def settings_page() -> str:
    """The page as it should be."""
    rows = [f"| `{one.name}` | {one.default} | `{one.env}` | {one.description} |" for one in describe_settings()]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("settings.md").write_text(settings_page())
