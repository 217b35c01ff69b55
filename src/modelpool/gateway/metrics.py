"""`GET /metrics`: the controller's counters as Prometheus text, collected when asked for, so that requests pay nothing."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from modelpool.controller.views import Histogram, MetricsSnapshot, ModelCounters
from modelpool.gateway.dataplane import DataPlane
from modelpool.gateway.requests import controller_of, oip

_DEVICE_KINDS = ("budget", "resident", "loading", "unreturned", "scratch", "free")


class PoolCollector(Collector):
    """Turns a snapshot into metric families."""

    def __init__(self, controller: DataPlane) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        """All families, from one snapshot."""
        snapshot = self._controller.metrics()
        yield from _by_model(snapshot.models)
        yield from _by_device(snapshot)
        yield _histogram("modelpool_queue_seconds", "Time that requests waited for a copy.", snapshot.queue_s)
        yield _histogram("modelpool_load_seconds", "Time that loads took.", snapshot.load_s)
        for name, text, value in (
            ("modelpool_waiting_requests", "Requests that wait for a copy.", snapshot.waiting),
            ("modelpool_in_flight_requests", "Requests sent to an instance and not answered.", snapshot.in_flight),
            ("modelpool_models_resident", "Models that can run now.", snapshot.resident),
            ("modelpool_models_known", "Models of the catalogue.", snapshot.known),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        yield CounterMetricFamily("modelpool_late_events", "Events of dead generations that were ignored.", value=snapshot.late_events)
        yield CounterMetricFamily(
            "modelpool_premature_unloads", "Copies evicted for space before their keep-alive ran out.", value=snapshot.premature_unloads
        )


def _by_model(models: tuple[ModelCounters, ...]) -> Iterator[Metric]:
    requests = CounterMetricFamily("modelpool_requests", "Requests by outcome.", labels=("model", "outcome"))
    unloads = CounterMetricFamily("modelpool_unloads", "Unloads by reason.", labels=("model", "reason"))
    hits = CounterMetricFamily("modelpool_hits", "Requests that found their model resident.", labels=("model",))
    misses = CounterMetricFamily("modelpool_misses", "Requests that had to wait.", labels=("model",))
    loads = CounterMetricFamily("modelpool_loads", "Loads that ended well.", labels=("model",))
    failures = CounterMetricFamily("modelpool_load_failures", "Loads that failed.", labels=("model",))
    runs = CounterMetricFamily("modelpool_executions", "Runs, each of one request or of several together.", labels=("model",))
    compute = CounterMetricFamily("modelpool_compute_seconds", "Time spent in runs.", labels=("model",))
    for one in models:
        for outcome, count in one.outcomes.items():
            requests.add_metric((one.model, outcome), count)
        for reason, count in one.unloads.items():
            unloads.add_metric((one.model, reason), count)
        hits.add_metric((one.model,), one.hits)
        misses.add_metric((one.model,), one.misses)
        loads.add_metric((one.model,), one.loads)
        failures.add_metric((one.model,), one.load_failures)
        runs.add_metric((one.model,), one.executions)
        compute.add_metric((one.model,), one.compute_s)
    yield from (requests, unloads, hits, misses, loads, failures, runs, compute)


def _by_device(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    size = GaugeMetricFamily("modelpool_device_bytes", "The ledger of a device.", labels=("instance", "device", "kind"))
    up = GaugeMetricFamily("modelpool_instance_up", "Whether an instance is up.", labels=("instance", "device"))
    for view in snapshot.devices:
        for kind in _DEVICE_KINDS:
            size.add_metric((view.instance, view.device, kind), getattr(view, f"{kind}_bytes"))
        up.add_metric((view.instance, view.device), float(view.up))
    yield from (size, up)


def _histogram(name: str, text: str, view: Histogram) -> Metric:
    family = HistogramMetricFamily(name, text)
    buckets: list[tuple[str, float]] = []
    count = 0
    for bound, own in zip((*view.bounds, float("inf")), view.counts, strict=True):
        count += own
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), count))
    family.add_metric((), buckets, view.total)
    return family


@oip
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PoolCollector(controller_of(request)))
    return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def routes() -> list[BaseRoute]:
    """The route of the metrics."""
    return [Route("/metrics", metrics, methods=["GET"])]
