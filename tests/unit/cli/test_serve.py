from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from modelpool.cli import serve as serving
from modelpool.cli.app import modelpool as command
from modelpool.cli.serve import Signals, drain, in_words
from modelpool.settings import Settings

MIB = 1 << 20


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """Settings that `modelpool serve` would serve by."""
    for name in [name for name in os.environ if name.startswith("MODELPOOL_")]:
        monkeypatch.delenv(name)

    def served(*args: str) -> Settings:
        taken: list[Settings] = []
        monkeypatch.setattr(serving, "run", lambda settings, as_json: taken.append(settings))
        result = CliRunner().invoke(command, ["serve", *args], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return taken[0]

    return served


def test_nothing_given_is_the_defaults(served: Callable[..., Settings]) -> None:
    assert served() == Settings()


def test_options_become_settings(served: Callable[..., Settings], tmp_path: Path) -> None:
    options = "--host 0.0.0.0 --http-port 0 --device cpu=200MiB --eviction lru --keep-alive 90s --log-format json --set queue_bound=7"
    paths = ("--state-dir", str(tmp_path / "s"), "--record", str(tmp_path / "r"), "--allow-root", str(tmp_path), "--allow-root", "/x")
    settings = served("a", "b", *options.split(), *paths, "--preload", "m,1", "--preload", "n")
    assert settings == Settings(
        repositories=(Path("a"), Path("b")),
        host="0.0.0.0",
        http_port=0,
        devices={"cpu": 200 * MIB},
        eviction="lru",
        keep_alive_s=90.0,
        log_format="json",
        queue_bound=7,
        state_dir=tmp_path / "s",
        record=tmp_path / "r",
        allowed_roots=(tmp_path, Path("/x")),
        preload=("m,1", "n"),
    )


def test_the_command_line_goes_before_the_file(served: Callable[..., Settings], tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("keep_alive: 1m\neviction: fifo\n")
    settings = served("--config", str(config), "--eviction", "lru")
    assert (settings.keep_alive_s, settings.eviction) == (60.0, "lru")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--device", "cpu"), "cpu=200MiB"),
        (("--device", "cpu=lots"), "200MiB"),
        (("--eviction", "random"), "eviction"),
        (("--keep-alive", "soon"), "5m"),
        (("--set", "keepalive=5m"), "keep_alive"),
        (("--set", "queue_bound"), "NAME=VALUE"),
        (("--set", "queue_bound=many"), "queue_bound"),
        (("--config", "/does/not/exist.yaml"), "/does/not/exist.yaml"),
    ],
)
def test_bad_settings_end_with_code_2_and_a_hint(args: tuple[str, ...], says: str) -> None:
    result = CliRunner().invoke(command, ["serve", *args])
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""


# --- stopping --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("left", "words"),
    [
        ({"m1": 1}, "1 request: m1 (1)"),
        ({"m2": 1, "m1": 2}, "3 requests: m1 (2), m2 (1)"),
        ({f"m{n}": 1 for n in range(7)}, "7 requests: m0 (1), m1 (1), m2 (1), m3 (1), m4 (1) and 2 more models"),
    ],
)
def test_what_is_waited_for_in_words(left: dict[str, int], words: str) -> None:
    assert in_words(left) == words


class Busy:
    """Waits for one request fewer at each look."""

    def __init__(self, requests: int) -> None:
        self.requests = requests

    def waiting_for(self) -> dict[str, int]:
        self.requests -= 1
        return {"m": self.requests} if self.requests > 0 else {}


def closed() -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


async def test_drain_ends_when_all_is_answered_and_says_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    busy = Busy(4)
    with caplog.at_level(logging.INFO, "modelpool.serve"):
        await drain(busy, closed(), 60.0, asyncio.Event())
    assert busy.requests == 0
    assert caplog.messages == ["waiting for 3 requests: m (3); signal again to stop at once"]


@pytest.mark.parametrize("limit_s", [0.0, 60.0])
async def test_drain_ends_at_the_limit_or_at_once(limit_s: float) -> None:
    at_once = asyncio.Event()
    if limit_s:
        at_once.set()
    busy = Busy(1000)
    await drain(busy, closed(), limit_s, at_once)
    assert busy.requests == 999


async def test_drain_waits_for_the_connections_too() -> None:
    closing = asyncio.ensure_future(asyncio.sleep(0))
    await drain(Busy(1), closing, 60.0, asyncio.Event())
    assert closing.done()


async def test_the_first_signal_asks_to_stop_the_second_to_stop_at_once() -> None:
    signals = Signals()
    signals.listen()
    os.kill(os.getpid(), signal.SIGTERM)
    await signals.stop.wait()
    assert not signals.at_once.is_set()
    os.kill(os.getpid(), signal.SIGINT)
    await signals.at_once.wait()
