"""The serving entry point: a controller behind an HTTP server, from the first line to the last request."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import click
import uvloop

import modelpool
from modelpool.cli.logging import set_up
from modelpool.cli.output import json_text
from modelpool.cli.servers import Servers
from modelpool.controller.aside import aside
from modelpool.controller.controller import Controller
from modelpool.controller.garbage import collect_seldom
from modelpool.units import format_bytes

if TYPE_CHECKING:
    from modelpool.settings import Settings

log = logging.getLogger("modelpool.serve")

_LOOK_S = 0.02
_SAY_EVERY_S = 1.0
_NAMED = 5
_LAST_ANSWERS_S = 1.0
"""How long those who are left without an answer are told so."""


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
    making = aside(lambda: Controller(settings))  # it looks at the repositories
    if not await _ended_first(making, signals):
        return {}
    controller = making.result()
    if not await _started(controller, signals):
        return {}
    servers = Servers(controller, settings)
    left: Mapping[str, int] = {}
    try:
        await servers.start()
        collect_seldom()
        click.echo(_ready_line(controller, servers, as_json))
        await signals.stop.wait()
        controller.begin_stop()
        closing = asyncio.ensure_future(servers.stop(settings.stop_limit_s))
        await drain(controller, closing, settings.stop_limit_s, signals.at_once, servers.connections)
        closing.cancel()
        left = controller.waiting_for()
        if signals.at_once.is_set():
            await _give_up(controller)
    finally:
        await servers.stop(limit_s=0.0)
        await _ended(asyncio.ensure_future(controller.stop(limit_s=0.0)), controller, signals)
    if left:
        log.warning("stopped without answers to %s", in_words(left), extra={"kind": "stop"})
    return left


async def _started(controller: Controller, signals: Signals) -> bool:
    """Start the controller; False where it was told to stop before it was ready."""
    starting = asyncio.ensure_future(controller.start())
    if await _ended_first(starting, signals):
        starting.result()
        return True
    starting.cancel()
    await _ended(starting, controller, signals)
    return False


async def _ended_first(going: asyncio.Future[Any], signals: Signals) -> bool:
    """Wait until something has ended; False where a signal to stop came before."""
    stopping = asyncio.ensure_future(signals.stop.wait())
    await asyncio.wait({going, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    return going.done()


async def _give_up(controller: Controller) -> None:
    """End all processes; whoever waits is told, as far as that goes quickly."""
    log.warning("told again to stop: stops at once", extra={"kind": "stop"})
    controller.kill()
    now = asyncio.get_running_loop().time
    until = now() + _LAST_ANSWERS_S
    while controller.waiting_for() and now() < until:  # noqa: ASYNC110 - calls end in callbacks, not in tasks
        await asyncio.sleep(_LOOK_S)


async def _ended(ending: asyncio.Future[Any], controller: Controller, signals: Signals) -> None:
    """Wait until the controller has ended; a second signal meanwhile ends its processes at once. Says each second what is waited for."""
    at_once = asyncio.ensure_future(signals.at_once.wait())
    while not (ending.done() or at_once.done()):
        await asyncio.wait({ending, at_once}, timeout=_SAY_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
        if not (ending.done() or at_once.done()):
            count = controller.processes()
            log.info("waiting for %s to end; signal again to stop at once", counted(count, "worker process", "es"), extra={"kind": "stop"})
    at_once.cancel()
    if not ending.done():
        await _give_up(controller)
        await asyncio.wait({ending})
    if not ending.cancelled():
        ending.result()


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


async def drain(
    controller: Waiting, closing: asyncio.Future[None], limit_s: float, at_once: asyncio.Event, connections: Callable[[], int] = int
) -> None:
    """Wait until everything is answered and the connections are closed, the limit is reached or `at_once` is set.

    Says each second what is waited for.
    """
    now = asyncio.get_running_loop().time
    until, say_at, patient_until = now() + limit_s, now(), now() + _SAY_EVERY_S
    while ((left := controller.waiting_for()) or not closing.done()) and now() < until and not at_once.is_set():
        if now() >= (say_at if left else max(say_at, patient_until)):
            what = in_words(left) if left else f"{counted(connections(), 'connection', 's')} to end"
            log.info("waiting for %s; signal again to stop at once", what, extra={"kind": "stop"})
            say_at = now() + _SAY_EVERY_S
        await asyncio.sleep(_LOOK_S)


def in_words(left: Mapping[str, int]) -> str:
    """`3 requests: m1 (2), m2 (1)`."""
    count = sum(left.values())
    order = sorted(left, key=lambda name: (-left[name], name))
    named = ", ".join(f"{name} ({left[name]})" for name in order[:_NAMED])
    more = f" and {len(order) - _NAMED} more models" if len(order) > _NAMED else ""
    return f"{counted(count, 'request', 's')}: {named}{more}"


def counted(count: int, what: str, ending: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{count} {what}{'' if count == 1 else ending}"


def _ready_line(controller: Controller, servers: Servers, as_json: bool) -> str:
    entries = controller.entries()
    faulty = [entry for entry in entries if entry.problem is not None]
    for entry in faulty:
        log.warning("%s", entry.problem, extra={"kind": "malformed", "model": entry.name})
    for problem in controller.problems():
        log.warning("%s", problem)
    good = len(entries) - len(faulty)
    budgets = device_budgets(controller)
    url, grpc = servers.url, servers.grpc_address
    if as_json:
        about = {"url": url, "grpc": grpc, "version": modelpool.__version__, "models": good, "malformed": len(faulty), "devices": budgets}
        return json_text(about)
    sizes = ", ".join(f"{name}: {format_bytes(size)}" for name, size in sorted(budgets.items()))
    also = f" and gRPC {grpc}" if grpc is not None else ""
    not_good = f", {len(faulty)} malformed" if faulty else ""
    return f"modelpool {modelpool.__version__} serving {good} model{'' if good == 1 else 's'}{not_good} on {url}{also} ({sizes})"


def device_budgets(controller: Controller) -> dict[str, int]:
    """Budgets by device; the instance is named where there are several."""
    views = controller.devices()
    several = len({view.instance for view in views}) > 1
    return {f"{view.instance}/{view.device}" if several else view.device: view.budget_bytes for view in views}
