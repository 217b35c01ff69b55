"""Commands that look: models, devices, explain, decisions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from modelpool.cli.options import server_command
from modelpool.cli.output import Column, print_json, print_table, say
from modelpool.units import format_bytes, format_duration

if TYPE_CHECKING:
    from modelpool.client import Client
    from modelpool.controller.views import Decision, DeviceView, ModelView

_STATES = ("READY", "LOADING", "DRAINING", "UNLOADING", "UNAVAILABLE")


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also those that are not loaded.")
@server_command()
def models(client: Client, as_json: bool, everything: bool) -> None:
    """List the models that are loaded (--all: all)."""
    from modelpool.controller.views import ModelView

    known = as_views(client.models(), ModelView)
    shown = sorted((view for view in known if everything or view.copies or view.state != "UNAVAILABLE"), key=_by_state)
    if as_json:
        print_json(shown)
        return
    print_table(
        (
            *(Column("MODEL"), Column("STATE"), Column("DEVICE"), Column("SIZE", right=True), Column("QUEUE", right=True)),
            *(Column("RUNNING", right=True), Column("USED", right=True), Column("NOTE")),
        ),
        [_model_row(view) for view in shown],
    )
    resident = sum(bool(view.copies) for view in known)
    click.echo(f"{resident} of {len(known)} models loaded" + ("" if everything else "; --all lists the others too"), err=True)


def _by_state(view: ModelView) -> tuple[int, str]:
    return (_STATES.index(view.state) if view.state in _STATES else len(_STATES), view.name)


def _model_row(view: ModelView) -> tuple[str, ...]:
    size = ("~" if view.size_from == "estimate" else "") + format_bytes(view.size_bytes) if view.size_bytes else "-"
    devices = ", ".join(sorted({copy.device for copy in view.copies})) or "-"
    note = ", ".join(part for part in ("pinned" if view.pinned else "", "" if view.state == "READY" else view.reason) if part)
    return (view.name, view.state, devices, size, str(view.queue), str(view.in_flight), ago(view.last_use_s), note)


@click.command()
@server_command()
def devices(client: Client, as_json: bool) -> None:
    """List the devices and what fills them."""
    from modelpool.controller.views import DeviceView

    views = as_views(client.devices(), DeviceView)
    if as_json:
        print_json(views)
        return
    titles = ("BUDGET", "MODELS", "RESIDENT", "LOADING", "RUNS", "UNRETURNED", "FREE")
    print_table(
        (Column("DEVICE"), Column("INSTANCE"), Column("UP"), *(Column(title, right=True) for title in titles)),
        [_device_row(view) for view in sorted(views, key=lambda view: (view.device, view.instance))],
    )


def _device_row(view: DeviceView) -> tuple[str, ...]:
    sizes = (view.resident_bytes, view.loading_bytes, view.scratch_bytes, view.unreturned_bytes, view.free_bytes)
    state = "yes" if view.up else "no"
    return (view.device, view.instance, state, format_bytes(view.budget_bytes), str(len(view.models)), *map(format_bytes, sizes))


@click.command()
@click.argument("model")
@server_command()
def explain(client: Client, as_json: bool, model: str) -> None:
    """Say why MODEL is where it is.

    And what it would take to bring it in, and what was decided about it before.
    """
    from modelpool.controller.views import Explanation

    (view,) = as_views([client.explain(model)], Explanation)
    if as_json:
        print_json(view)
        return
    say(f"{view.model}: {view.state}")
    for title, sentences in (("Now", view.now), ("To load it", view.to_load)):
        if sentences:
            click.echo(f"\n{title}:")
            for sentence in sentences:
                say(f"  {sentence}")
    if view.history:
        click.echo("\nHistory:")
        for entry in view.history:
            say(f"  {clock(entry.at)}  {entry.kind}: {entry.text}")


@click.command()
@click.argument("model", required=False)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many.")
@server_command()
def decisions(client: Client, as_json: bool, model: str | None, limit: int) -> None:
    """List the latest decisions.

    The newest last; with MODEL only those about it.
    """
    from modelpool.controller.views import Decision

    views = sorted(as_views(client.decisions(model, limit=limit), Decision), key=_by_time)
    if as_json:
        print_json(views)
        return
    rows = [(clock(view.at), view.kind, view.model or "-", view.text) for view in views]
    print_table((Column("TIME"), Column("KIND"), Column("MODEL"), Column("DECISION")), rows)


def _by_time(view: Decision) -> float:
    return view.at


def as_views(entries: Sequence[Any], kind: Any) -> list[Any]:
    """The server's entries as structs of `controller.views`; raises ModelpoolError where they have another shape."""
    import msgspec

    from modelpool.errors import ModelpoolError

    try:
        return [msgspec.convert(entry, kind) for entry in entries]
    except msgspec.ValidationError as error:
        raise ModelpoolError(f"the server's answer has another shape ({error}); are client and server of one version?") from error


def ago(seconds: float | None) -> str:
    """`5m ago`, or `never`."""
    return "never" if seconds is None else f"{format_duration(round(seconds))} ago"


def clock(at: float) -> str:
    """A wall-clock time for people, in their own time zone."""
    return datetime.fromtimestamp(at, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
