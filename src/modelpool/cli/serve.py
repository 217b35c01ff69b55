"""The serving entry point: a controller behind an HTTP server, from the first line to the last request."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import click
import uvloop

import modelpool
from modelpool.cli.logging import set_up
from modelpool.cli.output import json_text
from modelpool.controller.controller import Controller
from modelpool.controller.garbage import collect_seldom
from modelpool.gateway.server import HttpServer
from modelpool.units import format_bytes

if TYPE_CHECKING:
    from modelpool.settings import Settings

log = logging.getLogger("modelpool.serve")

_LOOK_S = 0.02
_SAY_EVERY_S = 1.0
_NAMED = 5


def run(settings: Settings, *, as_json: bool = False) -> None:
    """Serve until told to stop. Raises SetupError where the server cannot start, SystemExit(1) where it left requests unanswered."""
    set_up(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        left = runner.run(_serve(settings, as_json))
    if left:
        raise SystemExit(1)


async def _serve(settings: Settings, as_json: bool) -> Mapping[str, int]:
    """Start, serve, stop; returns the requests that were not answered, by model."""
    signals = Signals()
    signals.listen()
    controller = Controller(settings)
    if not await _started(controller, signals):
        return {}
    server = HttpServer(controller, settings.host, settings.http_port)
    try:
        await server.start()
        collect_seldom()
        click.echo(_ready_line(controller, server.url, as_json))
        await signals.stop.wait()
        controller.begin_stop()
        closing = asyncio.ensure_future(server.stop(settings.stop_limit_s))
        await drain(controller, closing, settings.stop_limit_s, signals.at_once)
        closing.cancel()
    finally:
        await server.stop(limit_s=0.0)
        left = await controller.stop(limit_s=0.0)
    if left:
        log.warning("stopped without answers to %s", in_words(left), extra={"kind": "stop"})
    return left


async def _started(controller: Controller, signals: Signals) -> bool:
    """Start the controller; False where it was told to stop before it was ready."""
    starting = asyncio.ensure_future(controller.start())
    stopping = asyncio.ensure_future(signals.stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    await asyncio.wait({starting})
    return False


class Signals:
    """SIGTERM and SIGINT: the first asks for a stop, the second for one at once."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.at_once = asyncio.Event()

    def listen(self) -> None:
        """Take the signals from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.take)

    def take(self) -> None:
        """One signal came."""
        (self.at_once if self.stop.is_set() else self.stop).set()


class Waiting(Protocol):
    """What `drain` waits for."""

    def waiting_for(self) -> dict[str, int]:
        """Requests that are not answered yet, by model."""


async def drain(controller: Waiting, closing: asyncio.Future[None], limit_s: float, at_once: asyncio.Event) -> None:
    """Wait until everything is answered and the connections are closed, the limit is reached or `at_once` is set.

    Says each second what is waited for.
    """
    now = asyncio.get_running_loop().time
    until, say_at = now() + limit_s, now()
    while ((left := controller.waiting_for()) or not closing.done()) and now() < until and not at_once.is_set():
        if left and now() >= say_at:
            log.info("waiting for %s; signal again to stop at once", in_words(left), extra={"kind": "stop"})
            say_at = now() + _SAY_EVERY_S
        await asyncio.sleep(_LOOK_S)


def in_words(left: Mapping[str, int]) -> str:
    """`3 requests: m1 (2), m2 (1)`."""
    count = sum(left.values())
    order = sorted(left, key=lambda name: (-left[name], name))
    named = ", ".join(f"{name} ({left[name]})" for name in order[:_NAMED])
    more = f" and {len(order) - _NAMED} more models" if len(order) > _NAMED else ""
    return f"{count} request{'' if count == 1 else 's'}: {named}{more}"


def _ready_line(controller: Controller, url: str, as_json: bool) -> str:
    entries = controller.entries()
    faulty = [entry for entry in entries if entry.problem is not None]
    for entry in faulty:
        log.warning("%s", entry.problem, extra={"kind": "malformed", "model": entry.name})
    for problem in controller.problems():
        log.warning("%s", problem)
    good = len(entries) - len(faulty)
    budgets = {view.device: view.budget_bytes for view in controller.devices()}
    if as_json:
        return json_text({"url": url, "version": modelpool.__version__, "models": good, "malformed": len(faulty), "devices": budgets})
    sizes = ", ".join(f"{name}: {format_bytes(size)}" for name, size in sorted(budgets.items()))
    not_good = f", {len(faulty)} malformed" if faulty else ""
    return f"modelpool {modelpool.__version__} serving {good} model{'' if good == 1 else 's'}{not_good} on {url} ({sizes})"
