"""One onnxruntime session: how it is opened, its threads, and its values in and out.

Memory that a session frees goes back to the system: it has no arena. Small models run in the thread that calls them; larger ones have
threads of their own, which sleep between runs, and there is a bound on those of all sessions together.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from modelpool.errors import InvalidTensor, LoadFailed, ModelError
from modelpool.protocol.datatypes import BY_ONNX
from modelpool.protocol.messages import TensorMeta
from modelpool.protocol.regular import open_regular
from modelpool.protocol.tensors import object_array

SMALL_BYTES = 16_000_000
"""Models with smaller files run in one thread."""
MOST_THREADS = 8
"""What a session gets at most, unless its configuration asks for more."""
MOST_THREADS_IN_ALL = 256
_FATAL = 4  # what goes wrong is raised, and need not be printed as well
_ONNX_BFLOAT16 = 16
_TOLD_CHARS = 500


class _Allowance:
    """Threads that sessions may still have."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """Up to `wanted` of them."""
        with self._lock:
            given = min(wanted, self._left)
            self._left -= given
            return given

    def give_back(self, count: int) -> None:
        with self._lock:
            self._left += count


_extra_threads = _Allowance(MOST_THREADS_IN_ALL)


class Session:
    """An open model file. inputs, outputs: as the file declares them (-1: any size; no sizes at all: perhaps any shape)."""

    def __init__(self, model: str, path: Path, threads: int) -> None:
        """threads: that a run may use, 0 to choose by the model's size. Raises LoadFailed."""
        self._model = model
        self._taken = _extra_threads.take((threads or _suited_threads(path)) - 1)
        try:
            self._session = _open(model, path, 1 + self._taken)
            self.inputs = tuple(_input(model, node) for node in self._session.get_inputs())
            # What is no tensor (maps, sequences) cannot be sent, and is never computed.
            self.outputs = tuple(_meta(node) for node in self._session.get_outputs() if node.type in BY_ONNX)
            self._datatypes = {meta.name: meta.datatype for meta in (*self.inputs, *self.outputs)}
            self._has_bf16 = "BF16" in self._datatypes.values()
            if not self.outputs:
                raise LoadFailed(f"model {model!r} has no output that is a tensor of a type that the protocol knows; export it with one")
            self._has_text = "BYTES" in self._datatypes.values()
            if self._has_bf16 and self._has_text:
                raise LoadFailed(f"model {model!r} has both BF16 and text among its inputs and outputs, which cannot be run together")
        except BaseException:
            self.close()
            raise

    def run(self, names: Sequence[str], inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The named outputs. Raises InvalidTensor for inputs that onnxruntime refuses, ModelError where the run fails."""
        try:
            arrays = self._run_values(names, inputs) if self._has_bf16 else self._session.run(names, inputs)
        except InvalidArgument as error:
            raise InvalidTensor(f"model {self._model!r} cannot run on these inputs: {_told(error)}") from error
        except Exception as error:
            raise ModelError(f"model {self._model!r} failed while it ran: {_told(error)}") from error
        if self._has_text:
            arrays = [_as_bytes(array) if array.dtype == object else array for array in arrays]
        return dict(zip(names, arrays, strict=True))

    def _run_values(self, names: Sequence[str], inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """NumPy has no BF16, so that all values are onnxruntime's own."""
        values = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array), _ONNX_BFLOAT16)
            if self._datatypes[name] == "BF16"
            else ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
            for name, array in inputs.items()
        }
        found = self._session.run_with_ort_values(names, values)
        return [_raw_bits(value) if self._datatypes[name] == "BF16" else value.numpy() for name, value in zip(names, found, strict=True)]

    def close(self) -> None:
        """Free the session, its weights and its threads."""
        self.__dict__.pop("_session", None)
        _extra_threads.give_back(self._taken)
        self._taken = 0


def as_texts(where: str, array: NDArray[Any]) -> NDArray[Any]:
    """BYTES as onnxruntime wants its strings; raises InvalidTensor for what is no text."""
    try:
        return object_array([item.decode() for item in array.ravel().tolist()]).reshape(array.shape)
    except UnicodeDecodeError as error:
        raise InvalidTensor(f"{where} holds bytes that are not UTF-8; this model takes text") from error


def _as_bytes(array: NDArray[Any]) -> NDArray[Any]:
    return object_array([text.encode() for text in array.ravel().tolist()]).reshape(array.shape)


def _raw_bits(value: ort.OrtValue) -> NDArray[Any]:
    """A copy, since the memory goes with the value."""
    shape = tuple(value.shape())
    raw = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape)) if math.prod(shape) else b""
    return np.frombuffer(raw, np.uint16).reshape(shape)


def _suited_threads(path: Path) -> int:
    try:
        # External weights lie beside the model, and by custom begin with its name.
        total = sum(one.stat().st_size for one in path.parent.glob(f"{path.stem}*") if one.is_file())
    except OSError:
        return 1
    return 1 if total < SMALL_BYTES else min(len(os.sched_getaffinity(0)), MOST_THREADS)


def _open(model: str, path: Path, threads: int) -> ort.InferenceSession:
    if not path.is_file():
        raise LoadFailed(f"model {model!r} has no file {path.name} in its folder {path.parent.name}; put the ONNX file there")
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False  # it keeps a plan for each shape that it ever saw
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = _FATAL
    try:
        return ort.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:
        raise LoadFailed(f"model {model!r} cannot be loaded: {_reason(path, error)}") from error


def _reason(path: Path, error: Exception) -> str:
    told = _told(error)
    if "Protobuf parsing failed" in told or "No graph was found" in told:
        head, size_bytes = _head(path), path.stat().st_size
        if head[:1] == b"\x08":  # a ModelProto begins with its ir_version
            return f"{path.name} was cut off or is damaged ({size_bytes} bytes are there); copy it again"
        return f"{path.name} is not an ONNX file ({size_bytes} bytes that begin with {head!r}); export the model to ONNX"
    if "xternal data path" in told or "External initializer" in told:
        return f"the file beside {path.name} that holds its weights is missing or incomplete; copy it again ({told})"
    return told


def _head(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(8)


def _told(error: Exception) -> str:
    """What onnxruntime says, on one line and without its own preamble."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
    text = re.sub(r"\S*/onnxruntime/\S+ ", "", text)  # paths of the machine that built it
    return " ".join(text.split())[:_TOLD_CHARS] or type(error).__name__


def _input(model: str, node: Any) -> TensorMeta:
    if node.type not in BY_ONNX:
        raise LoadFailed(f"input {node.name!r} of model {model!r} is of type {node.type}, which the protocol cannot carry")
    return _meta(node)


def _meta(node: Any) -> TensorMeta:
    return TensorMeta(node.name, BY_ONNX[node.type].name, tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape))
