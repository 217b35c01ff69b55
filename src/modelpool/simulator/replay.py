"""Replays a record of `serve --record` through the core, as it was or with another budget, policy or setting."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from modelpool.core.core import Core
from modelpool.core.events import ModelAdded, ModelRemoved, PinWanted
from modelpool.core.model import Learned, ModelSpec, Residency
from modelpool.core.settings import CoreSettings
from modelpool.errors import InvalidRequest
from modelpool.protocol import trace
from modelpool.protocol.trace import read_trace
from modelpool.simulator.costs import Costs
from modelpool.simulator.engine import Engine, Outcome
from modelpool.units import format_bytes, parse_bytes, parse_duration

DEFAULT_TIMEOUT_S = 120.0
_ORDER = (trace.Model, trace.Pin, trace.Request, trace.Removed)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay did; `recorded_*`: what the server itself did, for comparison. Times in seconds, sizes in bytes."""

    requests: int
    hits: int
    misses: int
    hit_rate: float
    loads: int
    load_s: float
    evictions: int
    unloads: dict[str, int]
    premature_unloads: int
    refused: dict[str, int]
    wait_p50_s: float
    wait_p99_s: float
    peak_bytes: int
    budget_bytes: int
    duration_s: float
    elapsed_s: float
    recorded_hits: int
    recorded_loads: int

    def __str__(self) -> str:
        """A table for people."""
        refused = ", ".join(f"{count} {code}" for code, count in sorted(self.refused.items())) or "none"
        unloads = ", ".join(f"{count} {reason}" for reason, count in sorted(self.unloads.items())) or "none"
        rows = [
            ("requests", f"{self.requests} in {self.duration_s:.1f} s"),
            ("hits", f"{self.hits} ({100 * self.hit_rate:.1f} %), recorded {self.recorded_hits}"),
            ("loads", f"{self.loads} in {self.load_s:.1f} s, recorded {self.recorded_loads}"),
            ("evictions", f"{self.evictions}, {self.premature_unloads} of them before the keep-alive ran out"),
            ("unloads", unloads),
            ("refused", refused),
            ("waiting", f"p50 {1000 * self.wait_p50_s:.1f} ms, p99 {1000 * self.wait_p99_s:.1f} ms"),
            ("memory", f"at most {format_bytes(self.peak_bytes)} of {format_bytes(self.budget_bytes)}"),
            ("simulated", f"in {self.elapsed_s:.2f} s"),
        ]
        return "\n".join(f"{name:<10}  {text}" for name, text in rows)


def run(path: Path, overrides: dict[str, Any], *, check_each: bool = False) -> Report:
    """Replay a record. overrides: `devices` (NAME=SIZE texts), `eviction`, and other settings of the core by the names that users write.

    Raises InvalidRequest for a file that is no record, or a setting that the core does not have.
    """
    try:
        lines = list(read_trace(path))
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}; name a file written by modelpool serve --record") from error
    if not lines or not isinstance(lines[0], trace.Begin):
        raise InvalidRequest(f"{path} is empty; record something with modelpool serve --record FILE")
    begin = lines[0]
    given = {name: value for name, value in overrides.items() if value not in (None, ())}
    instance, devices = next(iter(begin.devices.items()))
    devices = {**devices, **_devices(given.pop("devices", ()))}
    settings = core_settings(begin.settings, given)
    started = time.perf_counter()
    engine = Engine(Core(settings), Costs(lines), instance, devices, check_each=check_each)
    timeout_s = DEFAULT_TIMEOUT_S
    for line in _in_time(lines):
        engine.advance(line.t)
        _take(engine, line, timeout_s)
    engine.finish()
    return _report(engine, lines, sum(devices.values()), time.perf_counter() - started)


def _devices(texts: Iterable[str] | dict[str, int]) -> dict[str, int]:
    if isinstance(texts, dict):
        return texts
    found = {}
    for text in texts:
        name, equals, size = text.partition("=")
        if not equals:
            raise InvalidRequest(f"{text!r} names no budget; write for example cpu=200MiB")
        found[name] = parse_bytes(size)
    return found


def core_settings(recorded: dict[str, Any], given: dict[str, Any]) -> CoreSettings:
    """The recorded settings with those given over them, by the names and in the units that users write."""
    fields = {field.name: field for field in dataclasses.fields(CoreSettings)}
    values = {name: value for name, value in recorded.items() if name in fields}
    for name, value in given.items():
        target = next((known for known in (name, f"{name}_s", f"{name}_bytes") if known in fields), None)
        if target is None:
            raise InvalidRequest(f"the core has no setting {name!r}; it has {', '.join(fields)}")
        values[target] = _value(target, value, fields[target].default)
    try:
        settings = CoreSettings(**values)
        Core(settings)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(str(error)) from error
    return settings


def _value(name: str, value: Any, default: Any) -> Any:
    if name.endswith("_s"):
        return parse_duration(value)
    if name.endswith("_bytes"):
        return parse_bytes(value)
    try:
        return type(default)(value)
    except ValueError as error:
        raise InvalidRequest(f"setting {name}: {value!r} is not a {type(default).__name__}") from error


def _in_time(lines: list[trace.Line]) -> Iterator[trace.Model | trace.Removed | trace.Request | trace.Pin]:
    """The lines that tell what came from outside, in the order of their times (requests are written when they end)."""
    outside = [line for line in lines if isinstance(line, trace.Model | trace.Removed | trace.Request | trace.Pin)]
    return iter(sorted(outside, key=lambda line: (line.t, _ORDER.index(type(line)))))


def _take(engine: Engine, line: trace.Model | trace.Removed | trace.Request | trace.Pin, timeout_s: float) -> None:
    match line:
        case trace.Request():
            engine.request(line.model, line.run_s, timeout_s)
        case trace.Model():
            engine.feed(_model_added(line))
        case trace.Removed():
            engine.feed(ModelRemoved(line.model))
        case trace.Pin():
            engine.feed(PinWanted(line.model, line.pinned))


def _model_added(line: trace.Model) -> ModelAdded:
    residency = {name: value for name, value in line.residency.items() if name in Residency.__dataclass_fields__}
    residency["requires"] = tuple(residency.get("requires", ()))
    spec = ModelSpec(
        line.model,
        "recorded",
        line.runtime,
        estimate_bytes=line.estimate_bytes,
        isolation="process" if line.isolation == "process" else "shared",
        residency=Residency(**residency),
    )
    learned = tuple((kind, _learned(figures)) for kind, figures in line.learned.items())
    return ModelAdded(spec, learned)


def _learned(figures: dict[str, float]) -> Learned:
    sizes = {name: int(figures[name]) for name in ("private_bytes", "load_peak_bytes", "run_peak_bytes", "samples")}
    return Learned(**sizes, load_s=figures["load_s"], run_s=figures["run_s"])


def _percentile(waits: list[float], share: float) -> float:
    return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else 0.0


def _report(engine: Engine, lines: list[trace.Line], budget_bytes: int, elapsed_s: float) -> Report:
    tally = engine.tally
    outcomes: list[Outcome] = tally.outcomes
    waits = sorted(outcome.wait_s for outcome in outcomes if outcome.wait_s is not None)
    refused: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.code is not None:
            refused[outcome.code] = refused.get(outcome.code, 0) + 1
    recorded = [line for line in lines if isinstance(line, trace.Request)]
    return Report(
        requests=len(outcomes),
        hits=tally.hits,
        misses=len(outcomes) - tally.hits,
        hit_rate=tally.hits / len(outcomes) if outcomes else 0.0,
        loads=tally.loads,
        load_s=tally.load_s,
        evictions=tally.evictions,
        unloads=tally.unloads,
        premature_unloads=engine.core.world.counters.premature_unloads,
        refused=refused,
        wait_p50_s=_percentile(waits, 0.5),
        wait_p99_s=_percentile(waits, 0.99),
        peak_bytes=tally.peak_bytes,
        budget_bytes=budget_bytes,
        duration_s=engine.now,
        elapsed_s=elapsed_s,
        recorded_hits=sum(line.hit for line in recorded),
        recorded_loads=sum(1 for line in lines if isinstance(line, trace.Load) and line.ok),
    )
