"""How large models are in a Triton server: the best figure that can be had.

1. On a GPU what its metrics say before and after the load. 2. What the server's statistics say of the model's memory. 3. The private memory
of the model's own processes (Python models), or what a load added to that of all the server's processes, where it runs on this machine.
None of these is asked for where the user gave a figure: the core prefers it anyway. Where nothing is known the estimate of the files stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from modelpool.errors import ModelpoolError
from modelpool.instances.triton import memory
from modelpool.instances.triton.control import Control
from modelpool.protocol.messages import LoadSpec
from modelpool.protocol.record import anonymous_bytes
from modelpool.settings.triton import TritonAddress

_SAMPLE_S = 0.05
_METRICS_PERIOD_S = 2.2
"""The server's metrics are renewed every two seconds."""


@dataclass(slots=True)
class Measured:
    """A load's figures; 0: not known."""

    private_bytes: int = 0
    load_peak_bytes: int = 0
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """A server's private memory. unclaimed_bytes: what neither it had at first nor one of its models has; own_bytes: of each model's own
    processes (0: it has none)."""

    unclaimed_bytes: int
    own_bytes: list[int]


def _below(folder: str) -> str:
    return folder.rstrip("/") + "/"


class Gauge:
    """Measures one run of a server. pid: its process (None: on another machine); processes: all of them as they were at the last look."""

    def __init__(self, pid: int | None, address: TritonAddress, control: Control) -> None:
        self.pid = pid
        self._address = address
        self._control = control
        self._baseline_bytes = 0
        self.processes: dict[int, str] = {} if pid is None else {pid: ""}

    async def settle(self, held: Sequence[tuple[str, int]]) -> None:
        """Take what it has now, less what the models take that it holds, for what it takes without any. held: as in `look`."""
        self._baseline_bytes = 0
        if (look := await self.look(held)) is not None:
            self._baseline_bytes = look.unclaimed_bytes

    async def look(self, held: Sequence[tuple[str, int]]) -> Look | None:
        """Its private memory now; None where that cannot be seen. held: folder and measured size of each model that it holds."""
        if self.pid is None:
            return None
        self.processes = found = await asyncio.to_thread(memory.processes_of, self.pid)
        sizes = {pid: anonymous_bytes(pid) or 0 for pid in found}
        own = [sum(sizes[pid] for pid, path in found.items() if model_dir and path.startswith(_below(model_dir))) for model_dir, _ in held]
        claimed = sum(size or measured for size, (_, measured) in zip(own, held, strict=True))
        return Look(max(0, sum(sizes.values()) - claimed - self._baseline_bytes), own)

    async def _private_bytes(self) -> int:
        return await asyncio.to_thread(memory.private_bytes, self.pid) if self.pid is not None else 0

    async def size_of(self, model: str, model_dir: str, device: str) -> int:
        """The size of a model that is loaded (0: not known)."""
        kind = "GPU" if device.startswith("cuda") else "CPU"
        with contextlib.suppress(ModelpoolError):
            if size := (await self._control.memory_usage(model)).get(kind, 0):
                return size
        return await self._processes_bytes(model_dir) if kind == "CPU" else 0

    async def _processes_bytes(self, model_dir: str) -> int:
        """Private memory of the processes that run a model."""
        if self.pid is None or not model_dir:
            return 0
        found = await asyncio.to_thread(memory.processes_of, self.pid)
        return sum(anonymous_bytes(pid) or 0 for pid, path in found.items() if path.startswith(_below(model_dir)))

    async def _gpu_bytes(self, device: str) -> int:
        """Used bytes of a device, by the order in which the metrics list them."""
        if self._address.metrics_port is None:
            return 0
        found = list((await memory.gpu_bytes(self._address.host, self._address.metrics_port)).values())
        number = int(device.partition(":")[2] or 0)
        return found[number][0] if number < len(found) else 0

    @contextlib.asynccontextmanager
    async def load(self, spec: LoadSpec) -> AsyncIterator[Measured]:
        """Measure the load that goes on within; the figures are there at the end."""
        measured = Measured()
        on_gpu = spec.device.startswith("cuda")
        gpu_before = await self._gpu_bytes(spec.device) if on_gpu else 0
        before = await self._private_bytes()
        peak = before

        async def sample() -> None:
            nonlocal peak
            while True:
                await asyncio.sleep(_SAMPLE_S)
                peak = max(peak, await self._private_bytes())

        sampling = asyncio.get_running_loop().create_task(sample())
        begun = time.monotonic()
        try:
            yield measured
            measured.load_s = time.monotonic() - begun
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
        if on_gpu and gpu_before:
            await asyncio.sleep(_METRICS_PERIOD_S)
            measured.private_bytes = max(0, await self._gpu_bytes(spec.device) - gpu_before)
            return
        if spec.runtime == "ensemble":
            return  # what its steps take is theirs
        after = await self._private_bytes()
        measured.private_bytes = await self.size_of(spec.model, spec.model_dir, spec.device) or max(0, after - before)
        measured.load_peak_bytes = max(0, peak - before)
