"""A copy as a Triton instance holds it, and the claims that copies have on names: a server knows a model by its name alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from modelpool.core.model import Learned
from modelpool.instances.triton.http import Route


@dataclass(slots=True)
class HeldModel:
    """A copy that is loaded; model_dir: its folder here ('': not known)."""

    copy: int
    model: str
    revision: str
    device: str
    learned: Learned
    route: Route
    model_dir: str = ""
    leaving: bool = False


class Claims:
    """Which copy has a name: the next one waits until the one before has left.

    dirty: names of which the server may still hold something that serves nobody; it is unloaded before the next load.
    """

    def __init__(self) -> None:
        self.dirty: set[str] = set()
        self._owners: dict[str, int] = {}
        self._changed = asyncio.Condition()

    async def take(self, model: str, copy: int) -> None:
        """Wait for the name and have it."""
        async with self._changed:
            await self._changed.wait_for(lambda: model not in self._owners)
            self._owners[model] = copy

    def put(self, model: str, copy: int) -> None:
        """A copy that is there has its name."""
        self._owners[model] = copy

    async def release(self, model: str, copy: int) -> None:
        """A copy has left."""
        async with self._changed:
            self.drop(model, copy)
            self._changed.notify_all()

    def drop(self, model: str, copy: int) -> None:
        """The same without waking who waits: `wake` does."""
        if self._owners.get(model) == copy:
            del self._owners[model]

    async def wake(self) -> None:
        """Let those who wait look again."""
        async with self._changed:
            self._changed.notify_all()

    def clear(self) -> None:
        """The server is gone, and all that it held."""
        self._owners.clear()
        self.dirty.clear()

    @property
    def names(self) -> set[str]:
        """Names that copies have, also those that load or leave."""
        return set(self._owners)
