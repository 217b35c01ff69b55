"""A controller of fixed habits: each model's name says what becomes of its requests."""

from __future__ import annotations

import asyncio
from typing import Any

from modelpool.controller.views import (
    CopyView,
    Decision,
    DeviceView,
    Explanation,
    Histogram,
    IndexRow,
    MetricsSnapshot,
    ModelCounters,
    ModelView,
)
from modelpool.core.model import ModelSpec
from modelpool.errors import (
    ForgottenModel,
    LoadFailed,
    MalformedModel,
    NoSpace,
    NotCached,
    QueueFull,
    UnknownModel,
    UnknownVersion,
    Unsupported,
)
from modelpool.ports import Call
from modelpool.protocol.messages import TensorMeta, VersionSpec
from modelpool.repository.entry import Entry
from modelpool.settings import Settings

BODY_LIMIT_BYTES = 200_000


def entry(name: str, **fields: Any) -> Entry:
    """A model with one version, one input and one output."""
    given: dict[str, Any] = {
        "spec": ModelSpec(name, "1", "onnx"),
        "runtime": "onnx",
        "platform": "onnxruntime_onnx",
        "versions": (VersionSpec(3, "m"),),
        "default_version": 3,
        "config": {"name": name, "max_batch_size": 8},
        "inputs": (TensorMeta("x", "FP32", (-1, 4)),),
        "outputs": (TensorMeta("y", "FP32", (-1, 2)),),
    }
    return Entry(name, "repository", **{**given, **fields})


def view(name: str, *copies: CopyView, **properties: Any) -> ModelView:
    """A model, resident where it has copies."""
    return ModelView(
        name=name,
        runtime="onnx",
        source="repository",
        versions=(3,),
        state="READY" if copies else "UNAVAILABLE",
        reason="" if copies else "not resident",
        tier="DEVICE" if copies else "DISK",
        pinned=False,
        size_bytes=1000,
        size_from="measured",
        load_s=0.5,
        queue=0,
        in_flight=0,
        last_use_s=1.5,
        copies=copies,
        properties=properties,
    )


def copy(device: str = "cpu", state: str = "READY") -> CopyView:
    """A copy."""
    return CopyView(instance="local", device=device, state=state, charge_bytes=1000, leases=0, idle_s=1.0, loaded_s=2.0)


class FakeController:
    """`echo` answers at once with the body, `binary` the same as binary; `wait` and `run` answer when the test says, the one without a
    lease, the other with one; `full`, `broken`, `bad` and `boom` fail; what else there is, is in `known`."""

    def __init__(self) -> None:
        self.settings = Settings(body_limit_bytes=BODY_LIMIT_BYTES)
        self.version = "1.2.3"
        self.known = {
            name: entry(name)
            for name in ("echo", "binary", "wait", "run", "full", "broken", "boom", "hf/e5", "a+b", "c d", "tenth", "unready", "ünï")
        }
        self.known["bad"] = entry("bad", spec=None, problem="no such file")
        self.views = [view("echo", copy(), dimensions=384, note="n"), view("wait"), view("hf/e5", copy("cuda:0"), copy("cpu", "LOADING"))]
        self.calls: list[Call] = []
        self.cancelled: list[Call] = []
        self.asked: list[tuple[Any, ...]] = []
        self.arrived = asyncio.Event()
        self.gone = asyncio.Event()
        self.is_ready = True

    # --- inference ---------------------------------------------------------------------------------------------------------------
    def submit(self, call: Call) -> None:
        self.calls.append(call)
        self.arrived.set()
        try:
            self.check_model(call.model, call.version)
        except (UnknownModel, UnknownVersion, MalformedModel, ForgottenModel) as error:
            call.fail(error)
            return
        match call.model:
            case "wait":
                call.queued = True
            case "run":
                call.lease = object()
            case "full":
                call.fail(QueueFull("the queue is full", retry_after_s=2.3))
            case "broken":
                call.fail(LoadFailed("load failed for model 'broken'"))
            case "boom":
                raise ZeroDivisionError("a secret")
            case "binary":
                call.answer(call.json_bytes, memoryview(bytes(call.body)))
            case _:
                call.answer(-1, call.body)

    def cancel(self, call: Call) -> None:
        self.cancelled.append(call)
        self.gone.set()

    async def call(self, number: int = 0) -> Call:
        """The numbered call, once it is there."""
        while len(self.calls) <= number:
            self.arrived.clear()
            await self.arrived.wait()
        return self.calls[number]

    # --- what there is -----------------------------------------------------------------------------------------------------------
    def check_model(self, name: str, version: int = 0) -> None:
        found = self.entry(name)
        if found.problem is not None:
            raise MalformedModel(f"model '{name}' cannot be served: {found.problem}")
        if version not in (0, 3):
            raise UnknownVersion(f"no version {version}")

    def entry(self, name: str) -> Entry:
        if name == "forgotten" and name not in self.known:
            raise ForgottenModel("model 'forgotten' was deleted")
        if name not in self.known:
            raise UnknownModel(f"Request for unknown model: '{name}' is not found")
        return self.known[name]

    def entries(self) -> list[Entry]:
        return list(self.known.values())

    def problems(self) -> list[str]:
        return []

    def model_ready(self, name: str, version: int = 0) -> bool:
        self.check_model(name, version)
        return name != "unready"

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return self.is_ready

    def index(self, ready_only: bool = False) -> list[IndexRow]:
        rows = [IndexRow(name="echo", version="3", state="READY"), IndexRow(name="bad", reason="no such file")]
        return rows[:1] if ready_only else rows

    def statistics(self, name: str | None = None, version: int = 0) -> list[dict[str, Any]]:
        if name is not None:
            self.check_model(name, version)
        return [{"name": name or "echo", "version": "3", "inference_count": 7}]

    # --- what users wish -----------------------------------------------------------------------------------------------------------
    async def load(self, name: str, device: str | None = None, *, overrides: dict[str, Any] | None = None) -> tuple[str, ...]:
        self.asked.append(("load", name, device))
        self.check_model(name)
        if overrides is not None:
            raise Unsupported(f"{', '.join(overrides)} come with a later version")
        if name == "full":
            raise NoSpace("eject 'echo' first")
        if name == "broken":
            raise LoadFailed("load failed for model 'broken'")
        return (device or "cpu",)

    def drop_overrides(self, name: str) -> None:
        """Nothing was kept."""

    async def eject(self, name: str, device: str | None = None) -> tuple[str, ...]:
        self.asked.append(("eject", name, device))
        if name not in ("echo", "a+b", "c d", "hf/e5"):
            raise NotCached(f"The model_name `{name}` device `{device or 'any device'}` is not cached or found")
        return (device or "cpu",)

    async def post_model(self, name: str, properties: dict[str, Any], device: str | None = None) -> tuple[str, ...]:
        self.asked.append(("post", name, properties, device))
        return (device or "cpu",)

    def recall(self, name: str) -> None:
        if name == "forgotten":
            self.known[name] = entry(name)

    async def forget(self, name: str) -> None:
        self.asked.append(("forget", name))
        del self.known[name]

    def pin(self, name: str) -> None:
        self.check_model(name)
        self.asked.append(("pin", name))

    def unpin(self, name: str) -> None:
        self.check_model(name)
        self.asked.append(("unpin", name))

    # --- views ---------------------------------------------------------------------------------------------------------------------
    def model(self, name: str) -> ModelView:
        self.entry(name)
        self.asked.append(("view", name))
        return next(one for one in self.views if one.name == name)

    def models(self, *, resident_only: bool = False) -> list[ModelView]:
        self.asked.append(("views", resident_only))
        return [one for one in self.views if one.copies or not resident_only]

    def devices(self) -> list[DeviceView]:
        return [
            DeviceView(
                instance="local",
                device="cpu",
                up=True,
                budget_bytes=100,
                resident_bytes=40,
                loading_bytes=10,
                unreturned_bytes=5,
                scratch_bytes=15,
                free_bytes=30,
                models=("echo",),
            )
        ]

    def explain(self, name: str) -> Explanation:
        self.entry(name)
        return Explanation(model=name, state="READY", now=("it is there",), to_load=(), history=(self._decision(),))

    def _decision(self) -> Decision:
        return Decision(at=1.0, kind="load", model="echo", text="loaded", figures={"bytes": 5})

    def decisions(self, limit: int = 100, model: str | None = None) -> list[Decision]:
        self.asked.append(("decisions", limit, model))
        return [self._decision()]

    def metrics(self) -> MetricsSnapshot:
        counters = ModelCounters(
            model='a"b',
            outcomes={"ok": 5, "timeout": 1},
            hits=4,
            misses=2,
            loads=3,
            load_failures=1,
            unloads={"space": 2},
            inferences=5,
            executions=4,
            success_s=1.0,
            failure_s=0.5,
            queue_s=0.25,
            compute_s=0.75,
            failures=1,
            last_inference_ms=0,
        )
        waits = Histogram(bounds=(0.1, 1.0), counts=(1, 2, 3), total=9.5)
        return MetricsSnapshot(
            models=(counters,),
            devices=tuple(self.devices()),
            queue_s=waits,
            load_s=waits,
            waiting=1,
            in_flight=2,
            resident=3,
            known=4,
            late_events=5,
            premature_unloads=6,
        )
