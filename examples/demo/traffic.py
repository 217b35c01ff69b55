"""The traffic: a skewed sequence of model names, worked off by a few clients that send one request after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from examples.demo.check import Judge
from examples.demo.inputs import Inputs
from examples.demo.repository import DemoModel
from modelpool.client import Client
from modelpool.errors import ModelpoolError

SKEW = 1.25
CLIENTS = 2
_FIRST_OF_MADE = 3  # after each real model come two or three made ones in the order of popularity


def popularity(models: Sequence[DemoModel]) -> list[str]:
    """Names, the most popular first: real ones spread over the made ones."""
    made = [model.name for model in models if model.width]
    names: list[str] = []
    for model in models:
        if not model.width:
            names += [model.name, *made[:_FIRST_OF_MADE]]
            del made[:_FIRST_OF_MADE]
    return names + made


def sequence(names: Sequence[str], count: int, seed: int) -> list[str]:
    """A sequence of names by Zipf's law: the n-th has a share of 1 / n ** SKEW."""
    shares = 1 / np.arange(1, len(names) + 1) ** SKEW
    picks = np.random.default_rng(seed).choice(len(names), count, p=shares / shares.sum())
    return [names[int(pick)] for pick in picks]


@dataclass(frozen=True, slots=True)
class Served:
    """A request that was answered; times on the wall clock, as in the server's journal."""

    model: str
    sent_at: float
    received_at: float


@dataclass(slots=True)
class Outcome:
    """What came of the traffic so far. sent: model names in the order in which their requests were sent."""

    sent: list[str] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Traffic:
    """Clients in threads; `outcome` grows while they run.

    The first `alone` requests are sent by one client, so that the server can measure the models one at a time.
    """

    def __init__(
        self, url: str, names: Sequence[str], alone: int, judge: Judge, make_inputs: Callable[[int], Inputs], limit_s: float
    ) -> None:
        self.outcome = Outcome()
        self._url = url
        self._names = names
        self._alone = alone
        self._may_all_send = threading.Event()
        self._judge = judge
        self._until = time.monotonic() + limit_s
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._send_all, args=(number, make_inputs(number)), daemon=True) for number in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> bool:
        """Whether any client still has something to do."""
        return any(thread.is_alive() for thread in self._threads)

    def _take(self) -> str | None:
        with self._lock:
            if len(self.outcome.sent) == len(self._names) or time.monotonic() > self._until:
                return None
            name = self._names[len(self.outcome.sent)]
            self.outcome.sent.append(name)
            if len(self.outcome.sent) > self._alone:
                self._may_all_send.set()
            return name

    def _send_all(self, number: int, inputs: Inputs) -> None:
        if number > 0:
            self._may_all_send.wait()
        with Client(self._url) as client:
            while (name := self._take()) is not None:
                given = inputs.next(name)
                sent_at = time.time()
                try:
                    outputs = client.infer(name, given.tensors)
                except ModelpoolError as error:
                    self.outcome.errors.append(f"{name}: {error.code}: {error}")
                    continue
                self.outcome.served.append(Served(name, sent_at, time.time()))
                inputs.answered(name, outputs)
                self._judge.submit(name, given, outputs)
        self._may_all_send.set()
