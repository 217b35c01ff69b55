"""Writes docs/settings.md from the settings themselves: `.venv/bin/python docs/make_settings.py`."""

from __future__ import annotations

from pathlib import Path

from modelpool.cli.serving import serve
from modelpool.controller import dataplane, fleet, journal
from modelpool.core import admission, instances, measures, scheduling, sizes
from modelpool.core.settings import CoreSettings
from modelpool.gateway import http_protocol
from modelpool.repository import builder
from modelpool.runtimes import python
from modelpool.settings import describe_settings
from modelpool.units import format_bytes, format_duration

HEAD = """# Settings

Made by `docs/make_settings.py`; a test keeps it up to date.

A setting can stand in three places. The first that has it wins:

1. **An option** of `modelpool serve`. Common settings have one of their own; `--set NAME=VALUE` takes any other.
2. **A variable** of the environment, `MODELPOOL_` and the name in capitals. Lists are written with commas,
   those of Triton servers with semicolons.
3. **A YAML file**, given by `--config FILE` or `MODELPOOL_CONFIG`. The key is the name. Relative paths start at the file's folder.

```yaml
repositories: [models]
devices: {cpu: 200MiB}
keep_alive: 10m
queue_bound: 200
```

Durations: `250ms`, `90s`, `5m`, `1h30m`, `inf`, or a number of seconds. Sizes: `200MiB` (1024s), `1.5GB` (1000s), or a number of bytes.
A setting that does not exist is an error that names the nearest one. A wrong value is an error that names where it came from.

## All settings

| setting (YAML key) | default | option | variable | meaning |
|---|---|---|---|---|
"""

OTHERS = """
Clients and the command line read `MODELPOOL_URL`, the server's address, and the command line `MODELPOOL_JSON`: `1` is as `--json`. They are
no settings of the server.

## Fixed in this version

These bounds are no settings. They are named here so that nothing has to be guessed.

| figure | value |
|---|---|
"""


def fixed() -> list[tuple[str, str]]:
    """Bounds that users cannot change, and their values."""
    core = CoreSettings()
    return [
        ("share of free memory that the devices without a budget get together", f"{fleet.AUTO_SHARE:.0%}"),
        ("pause after a failed load, doubled each time", f"{format_duration(core.retry_min_s)} to {format_duration(core.retry_max_s)}"),
        ("runs on one instance whose peaks are kept free together", str(core.runs_at_once)),
        ("loads that wait for copies to leave, on one instance", str(core.drains_at_once)),
        ("waiting time, in units of `starvation`, after which a model is loaded before all others", f"{scheduling.STARVED:g}"),
        ("a load that was never measured is taken to peak at", f"{sizes.ESTIMATED_PEAK:g} times its estimate"),
        ("weight of a new measurement beside those before", f"{sizes.NEW_SHARE:g}"),
        ("estimate of a Python model's process, its files aside", format_bytes(builder.PYTHON_BASE_BYTES)),
        ("largest part of a budget that `verify_slack` may be", f"1/{measures.SLACK_SHARE}"),
        ("deaths while a model runs until it gets a process of its own", str(instances.DEATHS_TO_ISOLATE)),
        ("deaths until it is quarantined", str(instances.DEATHS_TO_QUARANTINE)),
        ("times that a request is sent again which no process had started", str(dataplane.MOST_TRIES)),
        ("time for a Python model's `finalize`", format_duration(python.FINALIZE_LIMIT_S)),
        ("the same refusal of a model is journalled once in", format_duration(admission.REFUSAL_NOTE_S)),
        ("decisions kept in memory, for `explain` and `decisions`", str(journal.RECENT)),
        ("head of an HTTP request", format_bytes(http_protocol.HEAD_LIMIT_BYTES)),
        ("requests read ahead on one connection", str(http_protocol.AHEAD_LIMIT)),
        ("time for a refused client to read its answer", format_duration(http_protocol.LINGER_S)),
    ]


def settings_page() -> str:
    """The page as it should be."""
    options = {parameter.name: parameter.opts[0] for parameter in serve.params if parameter.param_type_name == "option"}
    rows = []
    for one in describe_settings():
        option = "`REPOSITORY...`" if one.name == "repositories" else f"`{options.get(one.name, f'--set {one.name}=')}`"
        rows.append(f"| `{one.name}` | {one.default} | {option} | `{one.env}` | {one.description} Example: `{one.example}`. |")
    figures = [f"| {what} | {value} |" for what, value in fixed()]
    return HEAD + "\n".join(rows) + "\n" + OTHERS + "\n".join(figures) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("settings.md").write_text(settings_page())
