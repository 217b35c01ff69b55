"""The contract between the worker and what runs models: one runtime per kind of file.

A runtime turns a `LoadSpec` into a `LoadedModel`. The worker decodes requests, groups them, calls `execute` in one of the model's slots,
and encodes the outcomes. Nothing here knows sockets or HTTP.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, overload

from numpy.typing import NDArray

from modelpool.errors import ModelpoolError, Unsupported
from modelpool.protocol.forms import FormedRequest, Forms
from modelpool.protocol.messages import LoadSpec, TensorMeta
from modelpool.protocol.tensors import InferenceRequest, Tensor

__all__ = ["Alike", "Answer", "AnyRequest", "InferenceRequest", "LoadedModel", "Outcome", "Runtime", "Tensor", "open_runtime"]


AnyRequest: TypeAlias = InferenceRequest | FormedRequest

Outcome: TypeAlias = dict[str, Tensor] | ModelpoolError
"""Outputs by name in the model's order (an `Answer` where there are parameters too), or the error of this one request."""


class Answer(dict[str, Tensor]):
    """Outputs with parameters beside them, which the client gets too: bool, int (of 64 bits) or str by name."""

    __slots__ = ("parameters",)

    def __init__(self, outputs: Mapping[str, Tensor], parameters: dict[str, bool | int | str]) -> None:
        super().__init__(outputs)
        self.parameters = parameters


class Alike(Sequence[Outcome]):
    """Outcomes of requests of one form that ran together. outputs: the rows of all, as many for one as for the next."""

    __slots__ = ("_count", "outputs")

    def __init__(self, outputs: dict[str, Tensor], count: int) -> None:
        self.outputs = outputs
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Outcome: ...
    @overload
    def __getitem__(self, index: slice) -> list[Outcome]: ...
    def __getitem__(self, index: int | slice) -> Outcome | list[Outcome]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        if self._count == 1:
            return self.outputs
        return {name: Tensor(datatype, self._part(array, index)) for name, (datatype, array) in self.outputs.items()}

    def _part(self, array: NDArray[Any], index: int) -> NDArray[Any]:
        rows = len(array) // self._count
        return array[index * rows : (index + 1) * rows]


class LoadedModel(Protocol):
    """A model that can run.

    inputs, outputs: as metadata shows them, batch dimension included; max_batch: rows that may run together (0: requests run one by one
    and have no batch dimension); batches: whether requests may be put together (`dynamic_batching`); max_delay_s: how long a run may wait
    for more requests; slots: runs that may go on at once; whole_process: its process holds nothing else, so all of it is charged;
    quick: a run that is short may go on the worker's event loop (it waits for nothing); forms: of requests that `execute` takes unread
    (None: it wants all of them read).
    """

    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    max_batch: int
    batches: bool
    max_delay_s: float
    slots: int
    whole_process: bool
    quick: bool

    @property
    def forms(self) -> Forms | None:
        """See above."""

    def execute(self, version: int, requests: Sequence[AnyRequest]) -> Sequence[Outcome]:
        """Run requests of one version together; one outcome each, in order. Raises only where the whole run failed."""

    def close(self) -> None:
        """Free everything."""


class Runtime(Protocol):
    """How one kind of files becomes something that runs."""

    def load(self, spec: LoadSpec) -> LoadedModel:
        """Load and warm up (`model_warmup`); raises LoadFailed with the reason."""


_RUNTIMES = {"onnx": ("modelpool.runtimes.onnx", "OnnxRuntime"), "python": ("modelpool.runtimes.python", "PythonRuntime")}


def open_runtime(name: str) -> Runtime:
    """The runtime of that name; raises Unsupported where its library is not installed."""
    if name not in _RUNTIMES:
        raise Unsupported(f"there is no runtime {name!r}; known are {', '.join(sorted(_RUNTIMES))}")
    module, cls = _RUNTIMES[name]
    try:
        runtime: Runtime = getattr(importlib.import_module(module), cls)()
    except ImportError as error:
        raise Unsupported(f"runtime {name!r} needs a library that is not installed ({error}); install modelpool[{name}]") from error
    return runtime
