from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from modelpool.gateway.server import HttpServer


async def test_all_counters_are_prometheus_text(server: HttpServer) -> None:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
        reply = await http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }
    model = ("model", 'a"b')
    assert samples["modelpool_requests_total", model, ("outcome", "ok")] == 5
    assert samples["modelpool_requests_total", model, ("outcome", "timeout")] == 1
    assert samples["modelpool_unloads_total", model, ("reason", "space")] == 2
    for name, value in {"hits": 4, "misses": 2, "loads": 3, "load_failures": 1, "executions": 4, "compute_seconds": 0.75}.items():
        assert samples[f"modelpool_{name}_total", model] == value
    place = (("device", "cpu"), ("instance", "local"))
    for kind, value in {"budget": 100, "resident": 40, "loading": 10, "unreturned": 5, "scratch": 15, "free": 30}.items():
        assert samples["modelpool_device_bytes", place[0], place[1], ("kind", kind)] == value
    assert samples["modelpool_instance_up", *place] == 1
    for name in ("queue", "load"):
        buckets = [samples[f"modelpool_{name}_seconds_bucket", ("le", bound)] for bound in ("0.1", "1.0", "+Inf")]
        assert buckets == [1, 3, 6]
        assert samples[f"modelpool_{name}_seconds_sum",] == 9.5
        assert samples[f"modelpool_{name}_seconds_count",] == 6
    gauges = {"waiting_requests": 1, "in_flight_requests": 2, "models_resident": 3, "models_known": 4}
    gauges |= {"late_events_total": 5, "premature_unloads_total": 6}
    for name, value in gauges.items():
        assert samples[f"modelpool_{name}",] == value
