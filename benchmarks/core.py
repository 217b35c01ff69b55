"""What a decision costs: plans that need victims, and the hot path, with 10,000 known and 1,000 resident models.

    .venv/bin/python benchmarks/core.py

plan_ms: 99th percentile of `Core.handle` for a request whose model must push others out, with the default policy. hot_us: mean of
`try_lease` and `end_lease` together, for requests of resident models. Both through the production code; what they decide is checked.
"""

from __future__ import annotations

import argparse
import random
import time

from modelpool.controller.garbage import collect_seldom
from modelpool.core.actions import Admit, Load, Unload
from modelpool.core.core import Core
from modelpool.core.events import InstanceUp, Loaded, ModelAdded, RequestArrived, Settle, Unloaded
from modelpool.core.model import ModelSpec, Residency
from modelpool.core.settings import CoreSettings
from modelpool.testing.benchmarking import print_machine, print_result

KNOWN, RESIDENT = 10_000, 1_000
SIZE_BYTES = 300 << 20
BUDGET_BYTES = RESIDENT * SIZE_BYTES
WARM_UP_S = 60.0


class Bench:
    """A core with its shell played by the benchmark: loads and unloads end when it says so."""

    def __init__(self) -> None:
        self.core = Core(CoreSettings(keep_alive_s=float("inf")))
        self.now = 1000.0
        self.random = random.Random(1)
        self.request = 0
        for number in range(KNOWN):
            size = int(SIZE_BYTES * self.random.uniform(0.3, 1.7))
            self.core.handle(ModelAdded(ModelSpec(f"m{number}", "1", "onnx", residency=Residency(size_bytes=size))), self.now)
        self.core.handle(InstanceUp("local", 1, (("cpu", BUDGET_BYTES),)), self.now)
        for number in range(RESIDENT):
            self.miss(f"m{number}")

    def miss(self, model: str) -> float:
        """A request of an absent model, served to its end; seconds that the decision took, and checks what it came to."""
        self.request += 1
        self.core.try_lease(model, self.now)
        started = time.perf_counter()
        actions, _, _ = self.core.handle(RequestArrived(self.request, model, float("inf")), self.now)
        took = time.perf_counter() - started
        pending = list(actions)
        admitted = False
        while pending:
            action = pending.pop(0)
            self.now += 0.01
            match action:
                case Unload():
                    more, _, _ = self.core.handle(Unloaded("local", 1, action.copy), self.now)
                    pending += more
                case Load():
                    size = self.core.world.copies[action.copy].charge_bytes
                    more, _, _ = self.core.handle(Loaded("local", 1, action.copy, size, size, 0.5), self.now)
                    pending += more
                case Admit():
                    admitted = True
                    if self.core.end_lease(action.lease, self.now):
                        self.core.handle(Settle(), self.now)
                case _:
                    raise RuntimeError(f"not expected: {action}")
        if not admitted:
            raise RuntimeError(f"{model} was not served")
        if (device := self.core.world.devices()[0]).used_bytes() > device.budget_bytes:
            raise RuntimeError("the ledger is over its budget")
        return took

    def resident(self) -> list[str]:
        """Models that can run."""
        return [copy.model.name for copy in self.core.world.devices()[0].ready]

    def traffic(self, requests: int) -> None:
        """Skewed requests of resident models over some time."""
        names = self.resident()
        for _ in range(requests):
            self.now += WARM_UP_S / requests
            name = names[min(len(names) - 1, int(self.random.paretovariate(0.7)) - 1)]
            if (lease := self.core.try_lease(name, self.now)) is not None:
                self.core.end_lease(lease, self.now)

    def hot_us(self, rounds: int = 5, requests: int = 20_000) -> float:
        """Mean cost of a request of a resident model: arrival, lease, end of lease, statistics; the best round."""
        names = [self.random.choice(self.resident()) for _ in range(requests)]
        try_lease, end_lease = self.core.try_lease, self.core.end_lease
        best = float("inf")
        for _ in range(rounds):
            now = self.now
            started = time.perf_counter()
            for name in names:
                now += 0.0001
                lease = try_lease(name, now)
                end_lease(lease, now)  # type: ignore[arg-type]
            best = min(best, (time.perf_counter() - started) / requests)
            self.now = now
        return best * 1e6


def main() -> None:
    """Print the figures and the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=2000)
    options = parser.parse_args()
    print_machine()
    bench = Bench()
    print(f"{KNOWN} known, {len(bench.resident())} resident")
    bench.traffic(20_000)
    collect_seldom()  # as the server does
    before = sum(bench.core.world.counters.unloads.values())
    took: list[float] = []
    while len(took) < options.plans:
        name = f"m{bench.random.randrange(KNOWN)}"
        if name not in bench.core.world.models or bench.core.world.models[name].ready:
            continue
        unloads = sum(bench.core.world.counters.unloads.values())
        cost = bench.miss(name)
        if sum(bench.core.world.counters.unloads.values()) > unloads:  # it needed victims
            took.append(cost)
    took.sort()
    victims = sum(bench.core.world.counters.unloads.values()) - before
    median_ms, plan_ms = (1000 * took[int(share * len(took))] for share in (0.5, 0.99))
    print(f"{len(took)} plans with {victims} victims: median {median_ms:.3f} ms, p99 {plan_ms:.3f} ms")
    print_result(plan_ms=plan_ms, hot_us=bench.hot_us())


if __name__ == "__main__":
    main()
