"""The demo from end to end."""

from __future__ import annotations

import argparse
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from examples.demo import report, repository, wheels
from examples.demo.check import Judge
from examples.demo.inputs import Inputs, prepare
from examples.demo.show import Scene, Show
from examples.demo.traffic import Traffic, popularity, sequence
from modelpool.client import Client
from modelpool.testing.server import MemoryWatch, serving

FOLDER = Path(".demo")
REQUESTS = 4000
SETTLE_S = 1.0
LOOK_EVERY_S = 0.5
SEED = 7


def main() -> int:
    """Run it; the exit code says whether all that it is to show was seen."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=75.0, help="how long traffic is sent at most")
    parser.add_argument("--picture", help="write the last picture of the live view to this SVG file")
    options = parser.parse_args()

    real = wheels.fetch(FOLDER / "wheels")
    models = repository.build(FOLDER / "repository", {name: real[name] for name in wheels.MODELS})
    budget_bytes = sum(model.file_bytes for model in models) // 10
    print(f"{len(models)} models of {sum(model.file_bytes for model in models) / 1e6:.0f} MB, a budget of {budget_bytes / 1e6:.0f} MB")
    prepare()
    state = FOLDER / "server"
    shutil.rmtree(state, ignore_errors=True)  # a run starts with nothing learned
    with serving([str(FOLDER / "repository"), "--device", f"cpu={budget_bytes}"], state) as (url, process):
        found = _run(url, process, models, real["magika_config"], budget_bytes, options)
    print(found.result())
    return 1 if found.faults() else 0


def _run(
    url: str,
    process: psutil.Process,
    models: Sequence[repository.DemoModel],
    magika_config: Path,
    budget_bytes: int,
    options: argparse.Namespace,
) -> report.Report:
    judge = Judge(models, magika_config)
    names = popularity(models)
    introductions = [name for name in reversed(names) for _ in range(2)]  # each model twice, the popular ones last
    time.sleep(SETTLE_S)
    with Client(url) as client, MemoryWatch(process) as memory, Show() as show:
        traffic = Traffic(
            url,
            [*introductions, *sequence(names, REQUESTS, SEED)],
            len(introductions),
            judge,
            lambda client_number: Inputs(models, magika_config, client_number),
            options.seconds,
        )
        journal = Journal(client)
        started = time.monotonic()
        while traffic.running:
            title = f"{time.monotonic() - started:3.0f} s: {len(traffic.outcome.served)} answered, {len(traffic.outcome.errors)} errors"
            counts = Counter(one.model for one in traffic.outcome.served)
            show.update(_scene(client, title, counts, journal.follow(), memory.now_bytes))
            time.sleep(LOOK_EVERY_S)
        journal.follow()
        if options.picture:
            show.save(options.picture)
        rows = client.models()
        counts_now = report.read_counts(httpx.get(f"{url}/metrics", trust_env=False).text)
        peak_bytes = memory.peak_bytes
    print("waiting for the last checks", flush=True)
    hit_ms, miss_ms = report.latencies_ms(traffic.outcome.served, journal.loads)
    sizes = {row["name"]: int(row["size_bytes"]) for row in rows}
    found = report.Report(
        outcome=traffic.outcome,
        counts=counts_now,
        verdict=judge.verdict(),
        lru_hits=report.lru_hits(traffic.outcome.sent, sizes, budget_bytes),
        hit_ms=hit_ms,
        miss_ms=miss_ms,
        peak_bytes=peak_bytes,
        budget_bytes=budget_bytes,
    )
    for line in [*found.summary(rows), *(f"FAULT {fault}" for fault in found.faults())]:
        print(line)
    return found


def _scene(client: Client, title: str, counts: Mapping[str, int], decisions: Sequence[Mapping[str, Any]], measured: int) -> Scene:
    sizes = {row["name"]: int(row["size_bytes"]) for row in client.models()}
    return Scene(title, client.devices()[0], sizes, counts, decisions, measured)


class Journal:
    """Follows the server's decisions. loads: by model, when its loads ended (seconds on the wall clock)."""

    LIMIT = 500

    def __init__(self, client: Client) -> None:
        self._client = client
        self._seen = time.time()
        self.loads: dict[str, list[float]] = {}

    def follow(self) -> list[dict[str, Any]]:
        """Note what is new; returns the latest decisions, oldest first."""
        latest = self._client.decisions(limit=self.LIMIT)
        for one in latest:
            if one["at"] > self._seen and one["kind"] == "loaded":
                self.loads.setdefault(one["model"], []).append(one["at"])
        self._seen = max([self._seen, *(one["at"] for one in latest)])
        return latest
