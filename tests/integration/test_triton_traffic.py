"""Two real Triton servers, twelve models, room for four: skewed traffic, and one server that is killed in the middle of it."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from modelpool.testing.triton import RunningTriton, running_triton
from tests.integration.running import RunningServer, running, until
from tests.integration.tritonpool import needs_triton, scale_model

pytestmark = needs_triton

MODELS = 12
CLIENTS = 8
TAIL = 0.01
"""Share of the requests that go to models that are seldom asked for."""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for number in range(1, MODELS + 1):
        scale_model(tmp_path / "models", f"m{number}", number)
    return tmp_path / "models"


@pytest.fixture
def tritons(models: Path, tmp_path: Path) -> Iterator[list[RunningTriton]]:
    with running_triton(models, tmp_path / "a") as one, running_triton(models, tmp_path / "b") as other:
        yield [one, other]


@pytest.fixture
def pool(models: Path, tritons: list[RunningTriton], tmp_path: Path) -> Iterator[RunningServer]:
    addresses = [word for triton in tritons for word in ("--triton", triton.address)]
    with running(models, tmp_path / "state", *addresses, "--device", "cpu=100MiB") as server:
        yield server


def ask(url: str, client: int, count: int, hot: int, outcomes: Counter[str], progress: Callable[[], None]) -> None:
    """One client's requests, one after the other; what became of them is counted."""
    choose = random.Random(client)
    with httpx.Client(base_url=url, timeout=50, trust_env=False) as http:
        for at in range(count):
            number = choose.randint(hot + 1, MODELS) if choose.random() < TAIL else choose.randint(1, hot)
            value = float(client * 1000 + at + 1)
            body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [value]}]}
            answer = http.post(f"/v2/models/m{number}/infer", json=body)
            if answer.status_code == 200:
                outcomes["right" if answer.json()["outputs"][0]["data"] == [value * number] else "wrong"] += 1
            else:
                outcomes[f"{answer.status_code} {answer.json()['code']}"] += 1
            progress()


def traffic(pool: RunningServer, count: int, hot: int, progress: Callable[[], None] = lambda: None) -> Counter[str]:
    """So many requests from each of eight clients, nearly all of them to so many models; what became of them."""
    counted = [Counter[str]() for _ in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as threads:
        futures = [threads.submit(ask, pool.about["url"], client, count, hot, counted[client], progress) for client in range(CLIENTS)]
        for future in futures:
            future.result()
    return sum(counted, Counter[str]())


def ledger(pool: RunningServer) -> list[set[str]]:
    """What each instance holds by the ledger, in the order of their names."""
    devices = sorted(pool.client.get("/devices").json()["devices"], key=lambda device: str(device["instance"]))
    assert all(device["resident_bytes"] == len(device["models"]) * 48 * 2**20 for device in devices)
    return [set(device["models"]) for device in devices]


@pytest.mark.heavy
def test_every_answer_is_right_and_the_ledger_matches_both_indexes(pool: RunningServer, tritons: list[RunningTriton]) -> None:
    assert traffic(pool, 250, 3) == {"right": 250 * CLIENTS}
    until(lambda: ledger(pool) == [triton.ready() for triton in tritons], "the ledger matches the indexes")
    assert all(len(held) == 2 for held in ledger(pool))


@pytest.mark.heavy
def test_one_that_is_killed_in_the_middle_costs_only_what_ran_on_it(pool: RunningServer, tritons: list[RunningTriton]) -> None:
    done = threading.Semaphore(0)
    killer = threading.Thread(target=lambda: ([done.acquire() for _ in range(200)], tritons[0].kill()))
    killer.start()
    outcomes = traffic(pool, 60, 2, done.release)
    killer.join()
    lost = outcomes.pop("503 instance_lost", 0)
    assert outcomes == {"right": 60 * CLIENTS - lost}
    assert lost <= CLIENTS
    assert ledger(pool) == [set(), tritons[1].ready()]
    tritons[0].start()
    until(lambda: sum(device["up"] for device in pool.client.get("/devices").json()["devices"]) == 2, "it is taken in again")
    assert traffic(pool, 10, 2) == {"right": 10 * CLIENTS}
