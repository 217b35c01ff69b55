"""What a model takes and gives: its configuration checked against its file, and requests checked against both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from modelpool.errors import InvalidTensor, LoadFailed, ModelError
from modelpool.protocol.forms import Form, FormedRequest
from modelpool.protocol.messages import TensorMeta
from modelpool.protocol.tensors import FLAT_DTYPES, FlatTensor, Tensor
from modelpool.runtimes.base import AnyRequest
from modelpool.runtimes.batching import Admitted
from modelpool.runtimes.onnx_session import as_texts
from modelpool.runtimes.pymodel.config import Port, ports

_FITTED_MOST = 1024
"""Shapes of inputs that a signature remembers to have found right."""


class Side(NamedTuple):
    """One input or output.

    shape: as clients see it, the batch dimension included; None where the file declares no sizes, so that any may do. reshape: what the
    model sees after the batch dimension, None where it sees the same.
    """

    datatype: str
    shape: tuple[int, ...] | None
    reshape: tuple[int, ...] | None


class Signature:
    """Names, types and shapes of one version. max_batch: 0 where it has no batch dimension."""

    def __init__(
        self, model: str, config: dict[str, Any], inputs: Sequence[TensorMeta], outputs: Sequence[TensorMeta], max_batch: int
    ) -> None:
        """inputs, outputs: as the file has them. Raises LoadFailed where configuration and file disagree."""
        self._model = model
        self._max_batch = max_batch
        self._inputs = self._sides("input", config, inputs)
        self._outputs = self._sides("output", config, outputs)
        if undeclared := [meta.name for meta in inputs if meta.name not in self._inputs]:
            raise LoadFailed(
                f"the configuration of model {model!r} has the inputs {_list(self._inputs)}, but its file also needs {_list(undeclared)}"
            )
        self.all_names = tuple(self._outputs)
        self._fitted: set[tuple[str, tuple[int, ...]]] = set()
        self.inputs = _metas(self._inputs)
        self.outputs = _metas(self._outputs)

    # --- the configuration -------------------------------------------------------------------------------------------------------
    def _sides(self, kind: str, config: dict[str, Any], real: Sequence[TensorMeta]) -> dict[str, Side]:
        declared = ports({"name": self._model, kind: config.get(kind, ())}, kind)
        in_file = {meta.name: meta for meta in real}
        if unknown := [port.name for port in declared if port.name not in in_file]:
            raise LoadFailed(f"the configuration of model {self._model!r} has the {kind} {unknown[0]!r}, but its file has {_list(in_file)}")
        batch = self._batch_dims(kind, real, bool(declared))
        if not declared:
            return {meta.name: Side(meta.datatype, meta.shape or None, None) for meta in real}
        return {port.name: self._agreed(kind, port, in_file[port.name], batch) for port in declared}

    def _batch_dims(self, kind: str, real: Sequence[TensorMeta], declared: bool) -> tuple[int, ...]:
        if not self._max_batch:
            return ()
        for meta in real:
            if meta.shape[:1] != (-1,) and (meta.shape or not declared):
                raise LoadFailed(
                    f"model {self._model!r} has max_batch_size {self._max_batch} in its configuration, but {kind} {meta.name!r} has in its "
                    f"file the shape {list(meta.shape)}, whose first size is fixed; set max_batch_size to 0, or export it otherwise"
                )
        return (-1,)

    def _agreed(self, kind: str, port: Port, meta: TensorMeta, batch: tuple[int, ...]) -> Side:
        place = f"{kind} {port.name!r} of model {self._model!r}"
        if port.datatype != meta.datatype:
            raise LoadFailed(f"{place} is {port.data_type} in its configuration, but {meta.datatype} in its file; correct one of them")
        seen = (*batch, *(port.dims if port.reshape is None else port.reshape))
        if port.reshape is not None and port.reshape.count(-1) > 1:
            raise LoadFailed(f"{place} has a reshape with more than one size that is free; give all but one")
        if not meta.shape:  # the file does not tell
            return Side(port.datatype, (*batch, *port.dims), port.reshape)
        if len(seen) != len(meta.shape) or any(-1 not in (one, two) and one != two for one, two in zip(seen, meta.shape, strict=True)):
            raise LoadFailed(
                f"{place} has {'dims' if port.reshape is None else 'reshape'} {list(seen[len(batch) :])} in its configuration"
                f"{' after the batch dimension' if batch else ''}, but shape {list(meta.shape)} in its file; correct the configuration"
            )
        if port.reshape is not None:
            return Side(port.datatype, (*batch, *port.dims), port.reshape)
        return Side(port.datatype, tuple(two if one == -1 else one for one, two in zip(seen, meta.shape, strict=True)), None)

    # --- requests ----------------------------------------------------------------------------------------------------------------
    def admit(self, place: int, request: AnyRequest) -> Admitted:
        """The request as the model wants it; place: its index among those it came with. Raises InvalidTensor."""
        given = request.inputs
        if given.keys() != self._inputs.keys():
            self._names_differ(given)
        rows = -1
        arrays: dict[str, NDArray[Any]] = {}
        for name, side in self._inputs.items():
            datatype, array = given[name].datatype, given[name].array
            if datatype != side.datatype:
                raise InvalidTensor(f"inference input {name!r} data-type is {datatype}, but model {self._model!r} expects {side.datatype}")
            shape = array.shape
            if (name, shape) not in self._fitted:
                if side.shape is not None and not _fits(side.shape, shape):
                    self._wrong_shape(name, side.shape, shape)
                if len(self._fitted) < _FITTED_MOST:
                    self._fitted.add((name, shape))
            if self._max_batch and shape[0] != rows:
                rows = self._rows(name, shape[0], rows)
            if side.reshape is not None:
                array = self._reshaped(f"input {name!r}", array, side.reshape)
            arrays[name] = as_texts(f"input {name!r}", array) if datatype == "BYTES" else array
        return Admitted(place, arrays, max(rows, 1), self._wanted(request.wanted) if request.wanted else self.all_names)

    def joined(self, requests: Sequence[AnyRequest]) -> dict[str, NDArray[Any]] | None:
        """The inputs of all requests, one after the other, where they are flat, of one form, and one that `admit` has taken before."""
        count = len(requests)
        formed = requests[0]
        if type(formed) is FormedRequest:
            return self._joined_texts(formed.form, requests)
        first = formed.inputs
        width = len(self._inputs)
        # One that is not read yet may hold anything: it is read where an error is its own.
        if [1 for request in requests if type(request) is FormedRequest or len(request.inputs) != width or request.wanted]:
            return None
        rows = 0
        arrays: dict[str, NDArray[Any]] = {}
        for name, side in self._inputs.items():
            one = first.get(name)
            if type(one) is not FlatTensor or side.reshape is not None or (name, one.shape) not in self._fitted:
                return None
            shape, datatype = one.shape, side.datatype
            if self._max_batch:
                rows = rows or shape[0]
                if shape[0] != rows or count * rows > self._max_batch:
                    return None
                shape = (count * rows, *shape[1:])
            values: list[float] = []
            own = one.shape
            for request in requests:
                other = request.inputs.get(name)
                if type(other) is not FlatTensor or other.shape != own or other.datatype != datatype:
                    return None
                values += other.data
            arrays[name] = np.array(values, FLAT_DTYPES[datatype]).reshape(shape)
        return arrays

    def _joined_texts(self, form: Form, requests: Sequence[AnyRequest]) -> dict[str, NDArray[Any]] | None:
        """The same for requests of one `Form`."""
        texts = [request.texts for request in requests if type(request) is FormedRequest and request.form is form]
        count, columns = len(requests), form.columns
        if len(texts) < count or len(columns) != len(self._inputs):
            return None
        arrays: dict[str, NDArray[Any]] = {}
        for place, column in enumerate(columns):
            name, shape = column.name, column.shape
            side = self._inputs.get(name)
            if side is None or side.datatype != column.datatype or side.reshape is not None or (name, shape) not in self._fitted:
                return None
            if self._max_batch:
                if shape[0] != form.rows or count * form.rows > self._max_batch:
                    return None
                shape = (count * shape[0], *shape[1:])
            array = column.read([text[place] for text in texts])
            if array is None:
                return None
            arrays[name] = array.reshape(shape)
        return arrays

    def _names_differ(self, given: Iterable[str]) -> NoReturn:
        for name in given:
            if name not in self._inputs:
                raise InvalidTensor(f"unexpected inference input {name!r} for model {self._model!r}; it has {_list(self._inputs)}")
        missing = [name for name in self._inputs if name not in given]
        raise InvalidTensor(
            f"expected {len(self._inputs)} inputs but got {len(self._inputs) - len(missing)} inputs for model {self._model!r}; "
            f"missing are {_list(missing)}"
        )

    def _wrong_shape(self, name: str, expected: tuple[int, ...], got: tuple[int, ...]) -> NoReturn:
        hint = "; the first dimension is the batch" if self._max_batch else ""
        raise InvalidTensor(
            f"unexpected shape for input {name!r} for model {self._model!r}. Expected {_dims(expected)}, got {_dims(got)}{hint}"
        )

    def _rows(self, name: str, own: int, rows: int) -> int:
        if rows >= 0:
            raise InvalidTensor(
                f"input {name!r} batch size does not match other inputs for {self._model!r}: it is {own}, that of others {rows}"
            )
        if not 1 <= own <= self._max_batch:
            raise InvalidTensor(f"inference request batch-size must be 1 to {self._max_batch} for {self._model!r}, got {own}; split it")
        return own

    def _wanted(self, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in self._outputs:
                raise InvalidTensor(f"unexpected inference output {name!r} for model {self._model!r}; it has {_list(self._outputs)}")
        return tuple([name for name in self.all_names if name in names])

    def _reshaped(self, where: str, array: NDArray[Any], target: tuple[int, ...]) -> NDArray[Any]:
        try:
            return array.reshape((*array.shape[: bool(self._max_batch)], *target))
        except ValueError as error:
            message = f"{where} of model {self._model!r} has shape {_dims(array.shape)}, which does not fit the configured {_dims(target)}"
            raise InvalidTensor(message) from error

    def answer(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
        """What the model gave, as clients see it."""
        outputs = self._outputs
        return {
            name: Tensor(outputs[name].datatype, array if outputs[name].reshape is None else self._seen(name, array))
            for name, array in arrays.items()
        }

    def _seen(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """An output with the dims that the configuration shows, in place of those that the model gave."""
        dims = (self._outputs[name].shape or ())[bool(self._max_batch) :]
        try:
            return array.reshape((*array.shape[: bool(self._max_batch)], *dims))
        except ValueError as error:
            message = f"output {name!r} of model {self._model!r} has shape {_dims(array.shape)}, which its configured dims do not fit"
            raise ModelError(message) from error


def _fits(expected: tuple[int, ...], got: tuple[int, ...]) -> bool:
    return len(expected) == len(got) and not [1 for want, have in zip(expected, got, strict=True) if want not in (have, -1)]


def _metas(sides: dict[str, Side]) -> tuple[TensorMeta, ...]:
    return tuple(TensorMeta(name, side.datatype, side.shape or ()) for name, side in sides.items())


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _dims(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
