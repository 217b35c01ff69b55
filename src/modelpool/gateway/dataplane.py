"""What front ends need of the controller."""

from __future__ import annotations

from typing import Any, Protocol

from modelpool.controller.views import Decision, DeviceView, Explanation, IndexRow, MetricsSnapshot, ModelView
from modelpool.ports import Call
from modelpool.repository.entry import Entry
from modelpool.settings import Settings


class DataPlane(Protocol):
    """The controller as front ends see it; all on its event loop. Errors are `modelpool.errors`."""

    settings: Settings
    version: str

    def submit(self, call: Call) -> None:
        """Take an inference; the call ends in `answer` or `fail`, possibly before this returns."""

    def cancel(self, call: Call) -> None:
        """The call's client is gone."""

    def check_model(self, name: str, version: int = 0) -> None:
        """Raises where the model, or that version, cannot be served."""

    def model_ready(self, name: str, version: int = 0) -> bool:
        """Whether a request would be served."""

    def live(self) -> bool:
        """Whether the process answers."""

    def ready(self) -> bool:
        """Whether requests can be served."""

    def entry(self, name: str) -> Entry:
        """A model's entry."""

    def entries(self) -> list[Entry]:
        """All entries."""

    def problems(self) -> list[str]:
        """What is wrong with repositories or state."""

    def index(self, ready_only: bool = False) -> list[IndexRow]:
        """The repository index."""

    def statistics(self, name: str | None = None, version: int = 0) -> list[dict[str, Any]]:
        """Triton's `model_stats` rows."""

    async def load(self, name: str, device: str | None = None, *, overrides: dict[str, Any] | None = None) -> tuple[str, ...]:
        """Load a model, with what was sent inline for it."""

    def drop_overrides(self, name: str) -> None:
        """Forget what was sent inline for a model."""

    async def eject(self, name: str, device: str | None = None) -> tuple[str, ...]:
        """Unload a model."""

    async def post_model(self, name: str, properties: dict[str, Any], device: str | None = None) -> tuple[str, ...]:
        """Register and load a model."""

    def recall(self, name: str) -> None:
        """Take a forgotten model of a repository back into the catalogue."""

    async def forget(self, name: str) -> None:
        """Delete a model from the catalogue."""

    def pin(self, name: str) -> None:
        """Pin a model."""

    def unpin(self, name: str) -> None:
        """Unpin a model."""

    def model(self, name: str) -> ModelView:
        """One model."""

    def models(self, *, resident_only: bool = False) -> list[ModelView]:
        """All models, or those that have a copy in any state."""

    def devices(self) -> list[DeviceView]:
        """All devices."""

    def explain(self, name: str) -> Explanation:
        """Why a model is where it is."""

    def decisions(self, limit: int = 100, model: str | None = None) -> list[Decision]:
        """The latest decisions."""

    def metrics(self) -> MetricsSnapshot:
        """All counters."""
