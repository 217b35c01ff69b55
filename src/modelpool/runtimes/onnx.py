"""ONNX models through onnxruntime: one session for each version, memory that goes back, requests put together where the model batches."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from modelpool.errors import InvalidTensor, LoadFailed, ModelError, ModelpoolError
from modelpool.protocol.datatypes import BY_ONNX, BY_TRITON
from modelpool.protocol.messages import LoadSpec, TensorMeta
from modelpool.protocol.tensors import object_array
from modelpool.runtimes.base import InferenceRequest, Outcome, Tensor
from modelpool.runtimes.batching import Batch, join, shaped_alike, split
from modelpool.runtimes.warmup import samples

_pool_made = False


class OnnxRuntime:
    """Makes sessions that share one thread pool, so that a thousand of them do not mean thousands of threads."""

    def load(self, spec: LoadSpec) -> OnnxModel:
        """Open and warm up each version; raises LoadFailed with the reason."""
        _make_pool()
        sessions = {one.version: _open(spec.model, one.path) for one in spec.versions}
        model = OnnxModel(spec, sessions)
        model.warm_up(spec)
        return model


def _make_pool() -> None:
    global _pool_made
    if not _pool_made:
        ort.set_global_thread_pool_sizes(max(1, os.cpu_count() or 1), 1)
        _pool_made = True


def _open(model: str, path: str) -> ort.InferenceSession:
    file = Path(path)
    if file.is_dir():
        file = file / "model.onnx"
    if not file.is_file():
        raise LoadFailed(f"load failed for model '{model}': there is no file {file.name} in {file.parent.name}; put it there, or remove the version")
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    options.use_per_session_threads = False
    try:
        return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:
        raise LoadFailed(f"load failed for model '{model}': {_told(error)}") from error


def _told(error: Exception) -> str:
    """What onnxruntime says, without its prefixes and with what it usually means."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error)).strip()
    if "protobuf parsing failed" in text.lower():
        return f"the file is not an ONNX model, or was cut short ({text[:200]})"
    return text[:500]


class OnnxModel:
    """The sessions of one copy; `runtimes.base.LoadedModel`."""

    def __init__(self, spec: LoadSpec, sessions: dict[int, ort.InferenceSession]) -> None:
        config = spec.config
        self.name = spec.model
        self.max_batch = int(config.get("max_batch_size", 0))
        batching = config.get("dynamic_batching")
        self.batches = batching is not None and self.max_batch > 0
        self.max_delay_s = int((batching or {}).get("max_queue_delay_microseconds", 0)) / 1e6
        self.slots = max(1, sum(int(group.get("count", 1)) for group in config.get("instance_group", ())))
        self.whole_process = False
        self._versions = {number: _Version(spec.model, session, self.max_batch) for number, session in sessions.items()}
        for version in self._versions.values():
            version.check_config(config)
        default = self._versions[spec.default_version]
        self.inputs = default.inputs
        self.outputs = default.outputs

    def warm_up(self, spec: LoadSpec) -> None:
        """Run the samples of `model_warmup` through each version."""
        for number in self._versions:
            for sample in samples(spec.config, spec.model_dir, self.max_batch):
                for _ in range(sample.count):
                    (outcome,) = self.execute(number, [InferenceRequest(number, sample.inputs)])
                    if isinstance(outcome, ModelpoolError):
                        raise LoadFailed(f"load failed for model '{self.name}': warm-up sample '{sample.name}' failed: {outcome.message}")

    def execute(self, version: int, requests: Sequence[InferenceRequest]) -> list[Outcome]:
        """Run requests of one version, together where they fit together; one outcome each, in order."""
        target = self._versions[version]
        if len(requests) == 1:
            return [target.run_one(requests[0])]
        outcomes: list[Outcome | None] = [None] * len(requests)
        good: list[int] = []
        for index, request in enumerate(requests):
            try:
                target.check(request)
                good.append(index)
            except ModelpoolError as error:
                outcomes[index] = error
        for batch in shaped_alike(requests, good):
            for index, outcome in zip(batch.indices, target.run_batch(batch, requests), strict=True):
                outcomes[index] = outcome
        return [outcome if outcome is not None else ModelError("no outcome") for outcome in outcomes]

    def close(self) -> None:
        """Drop the sessions; their memory goes with them."""
        self._versions.clear()


class _Version:
    """One session with what requests are checked against."""

    def __init__(self, model: str, session: ort.InferenceSession, max_batch: int) -> None:
        self._model = model
        self._session = session
        self._max_batch = max_batch
        self.inputs = tuple(_meta(model, node) for node in session.get_inputs())
        self.outputs = tuple(_meta(model, node) for node in session.get_outputs())
        self._inputs = {one.name: one for one in self.inputs}
        self._outputs = {one.name: one for one in self.outputs}
        self._output_names = [one.name for one in self.outputs]
        self._optional = frozenset(node.name for node in session.get_overridable_initializers())
        self._bf16 = any(one.datatype == "BF16" for one in (*self.inputs, *self.outputs))
        self._text_inputs = [one.name for one in self.inputs if one.datatype == "BYTES"]
        self._text_outputs = frozenset(one.name for one in self.outputs if one.datatype == "BYTES")
        if max_batch > 0:
            for one in (*self.inputs, *self.outputs):
                if not one.shape or one.shape[0] not in (-1, max_batch):
                    raise LoadFailed(
                        f"load failed for model '{model}': max_batch_size is {max_batch}, but the first dimension of '{one.name}' is fixed "
                        f"(shape {list(one.shape)}); set max_batch_size to 0, or export the model with a dynamic batch dimension"
                    )

    # --- configuration ----------------------------------------------------------------------------------------------------------
    def check_config(self, config: dict[str, Any]) -> None:
        """Inputs and outputs that the configuration names must be those of the file; raises LoadFailed."""
        for kind, known in (("input", self._inputs), ("output", self._outputs)):
            for row in config.get(kind, ()):
                self._check_row(kind, row, known)
        if named := [row.get("name", "") for row in config.get("input", ())]:
            missing = [name for name in self._inputs if name not in named]
            if missing:
                raise LoadFailed(f"load failed for model '{self._model}': config.pbtxt lacks input '{missing[0]}', which the file has")

    def _check_row(self, kind: str, row: dict[str, Any], known: dict[str, TensorMeta]) -> None:
        name = str(row.get("name", ""))
        where = f"load failed for model '{self._model}': {kind} '{name}' of config.pbtxt"
        meta = known.get(name)
        if meta is None:
            raise LoadFailed(f"{where} is not in the file; it has {', '.join(known) or 'none'}")
        declared = BY_TRITON.get(str(row.get("data_type", "")))
        if declared is None or declared.name != meta.datatype:
            raise LoadFailed(f"{where} has data_type {row.get('data_type')}, the file has {meta.datatype}")
        dims = [int(dim) for dim in (row.get("reshape", {}).get("shape") or row.get("dims", ()))]
        expected = meta.shape[1:] if self._max_batch else meta.shape
        if len(dims) != len(expected) or any(a != b and -1 not in (a, b) for a, b in zip(dims, expected, strict=True)):
            batch = " after the batch dimension" if self._max_batch else ""
            raise LoadFailed(f"{where} has dims {dims}, the file has {list(expected)}{batch}")

    # --- requests ----------------------------------------------------------------------------------------------------------------
    def check(self, request: InferenceRequest) -> None:
        """Names, types and shapes; raises InvalidTensor."""
        given = request.inputs
        for name in given:
            if name not in self._inputs:
                raise InvalidTensor(f"unexpected inference input '{name}' for model '{self._model}'; its inputs are {', '.join(self._inputs)}")
        rows = -1
        for meta in self.inputs:
            tensor = given.get(meta.name)
            if tensor is None:
                raise InvalidTensor(
                    f"expected {len(self.inputs)} inputs but got {len(given)} inputs for model '{self._model}': '{meta.name}' is missing"
                )
            if tensor.datatype != meta.datatype:
                raise InvalidTensor(
                    f"inference input '{meta.name}' data-type is '{tensor.datatype}', but for model '{self._model}' it is expected to be '{meta.datatype}'"
                )
            shape = tensor.array.shape
            if len(shape) != len(meta.shape) or any(want not in (-1, have) for have, want in zip(shape, meta.shape, strict=True)):
                raise InvalidTensor(
                    f"unexpected shape for input '{meta.name}' for model '{self._model}'. Expected {list(meta.shape)}, got {list(shape)}"
                )
            if self._max_batch:
                rows = self._check_rows(meta.name, shape[0], rows)
        for name in request.wanted:
            if name not in self._outputs:
                raise InvalidTensor(
                    f"unexpected inference output '{name}' for model '{self._model}'; its outputs are {', '.join(self._outputs)}"
                )

    def _check_rows(self, name: str, own: int, rows: int) -> int:
        if not 1 <= own <= self._max_batch:
            raise InvalidTensor(f"inference request batch-size must be from 1 to {self._max_batch} for '{self._model}', got {own}")
        if rows not in (-1, own):
            raise InvalidTensor(f"input '{name}' has batch size {own}, other inputs of the request have {rows}; make them equal")
        return own

    # --- runs --------------------------------------------------------------------------------------------------------------------
    def run_one(self, request: InferenceRequest) -> Outcome:
        """One request by itself."""
        try:
            self.check(request)
            names = list(request.wanted) or self._output_names
            arrays = self._run(names, {name: tensor.array for name, tensor in request.inputs.items()})
            return {name: Tensor(self._outputs[name].datatype, array) for name, array in zip(names, arrays, strict=True)}
        except ModelpoolError as error:
            return error

    def run_batch(self, batch: Batch, requests: Sequence[InferenceRequest]) -> list[Outcome]:
        """Requests that fit together; where the joint run fails, each by itself, so that one does not fail the others."""
        members = [requests[index] for index in batch.indices]
        if not self._max_batch or len(members) == 1:
            return [self.run_one(request) for request in members]
        names = list(batch.wanted) or self._output_names
        try:
            arrays = self._run(names, join(members))
            parts = split(arrays, [next(iter(request.inputs.values())).array.shape[0] for request in members])
        except (ModelpoolError, ValueError):
            return [self.run_one(request) for request in members]
        types = [self._outputs[name].datatype for name in names]
        return [
            {name: Tensor(datatype, array) for name, datatype, array in zip(names, types, part, strict=True)} for part in parts
        ]

    def _run(self, names: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        try:
            if self._bf16:
                return self._run_bf16(names, feeds)
            for name in self._text_inputs:
                feeds[name] = _as_text(name, feeds[name])
            found: list[NDArray[Any]] = self._session.run(names, feeds)
        except ModelpoolError:
            raise
        except Exception as error:
            raise ModelError(f"model '{self._model}' failed: {_told(error)}") from error
        if self._text_outputs:
            found = [_as_bytes(array) if name in self._text_outputs else array for name, array in zip(names, found, strict=True)]
        for name, array in zip(names, found, strict=True):
            if not isinstance(array, np.ndarray):
                raise ModelError(f"output '{name}' of model '{self._model}' is not a tensor but a {type(array).__name__}; this cannot be sent")
        return found

    def _run_bf16(self, names: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """BF16 goes through onnxruntime's own values, since NumPy does not know it."""
        values = {}
        for name, array in feeds.items():
            array = np.ascontiguousarray(array)
            if self._inputs[name].datatype == "BF16":
                values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _ONNX_BF16)
            else:
                values[name] = ort.OrtValue.ortvalue_from_numpy(array)
        found = self._session.run_with_ort_values(names, values)
        return [
            _bf16_bits(value) if self._outputs[name].datatype == "BF16" else value.numpy() for name, value in zip(names, found, strict=True)
        ]


_ONNX_BF16 = 16


def _as_text(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Strings are text to onnxruntime."""
    try:
        return object_array([item.decode() for item in array.ravel()]).reshape(array.shape)
    except UnicodeDecodeError as error:
        raise InvalidTensor(f"input '{name}' is a string for this model, and its bytes are not UTF-8; encode it as UTF-8") from error


def _as_bytes(array: NDArray[Any]) -> NDArray[Any]:
    return object_array([item.encode() if isinstance(item, str) else bytes(item) for item in array.ravel()]).reshape(array.shape)


def _bf16_bits(value: ort.OrtValue) -> NDArray[Any]:
    """A copy of the raw bits: NumPy knows no BF16, so the memory is read as it is."""
    shape = tuple(value.shape())
    count = int(np.prod(shape))
    raw = (ctypes.c_uint16 * count).from_address(value.data_ptr()) if count else ()
    return np.array(raw, np.uint16).reshape(shape)


def _meta(model: str, node: Any) -> TensorMeta:
    known = BY_ONNX.get(node.type)
    if known is None:
        raise LoadFailed(f"load failed for model '{model}': '{node.name}' is a {node.type}, which the protocol cannot carry")
    return TensorMeta(node.name, known.name, tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape))
