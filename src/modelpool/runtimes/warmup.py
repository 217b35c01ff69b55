"""The samples of `model_warmup`: inputs made of zeros, of chance, or of files beside the model."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelpool.errors import LoadFailed
from modelpool.protocol.regular import open_regular
from modelpool.runtimes.base import Tensor
from modelpool.runtimes.pb_utils.types import NUMPY, deserialize_bytes_tensor, protocol_name

_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Sample:
    """One warm-up request: its name, how often it runs, and its inputs with the batch dimension where the model has one."""

    name: str
    count: int
    inputs: dict[str, Tensor]


def samples(config: dict[str, Any], model_dir: str, max_batch: int) -> Iterator[Sample]:
    """The samples that a configuration asks for; raises LoadFailed for one that cannot be made."""
    for number, entry in enumerate(config.get("model_warmup", ())):
        name = str(entry.get("name") or number)
        batch = (max(int(entry.get("batch_size", 0)), 1),) if max_batch else ()
        try:
            inputs = {key: _tensor(value, batch, model_dir) for key, value in entry.get("inputs", {}).items()}
        except LoadFailed:
            raise
        except Exception as error:
            raise LoadFailed(f"warm-up sample {name!r} cannot be made: {error}; correct model_warmup in config.pbtxt") from error
        yield Sample(name, max(int(entry.get("count", 0)), 1), inputs)


def _tensor(entry: dict[str, Any], batch: tuple[int, ...], model_dir: str) -> Tensor:
    datatype = protocol_name(entry["data_type"])
    shape = (*batch, *(int(dim) for dim in entry.get("dims", ())))
    dtype = np.dtype(NUMPY[datatype])
    if min(shape, default=0) < 0:
        raise LoadFailed(f"a warm-up input has dims {list(shape)}; every size must be given")
    if math.prod(shape) * dtype.itemsize > _MOST_BYTES:
        raise LoadFailed(f"a warm-up input has dims {list(shape)}, which is more than {_MOST_BYTES} bytes")
    if file := entry.get("input_data_file"):
        return Tensor(datatype, _from_file(os.path.join(model_dir, "warmup", file), datatype, dtype).reshape(shape))
    return Tensor(datatype, _random(datatype, dtype, shape) if entry.get("random_data") else _zeros(dtype, shape))


def _from_file(path: str, datatype: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    with open_regular(path) as file:
        raw = file.read()
    return deserialize_bytes_tensor(raw) if datatype == "BYTES" else np.frombuffer(raw, dtype=dtype)


def _zeros(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.full(shape, b"", dtype=object) if dtype.kind == "O" else np.zeros(shape, dtype)


def _random(datatype: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    chance = np.random.default_rng(0)
    size = math.prod(shape)
    if datatype == "BYTES":
        return np.fromiter((chance.bytes(16).hex().encode() for _ in range(size)), dtype=object, count=size).reshape(shape)
    if datatype == "BOOL":
        return chance.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        high = 0x3F80 if datatype == "BF16" else int(limits.max)  # bits of the BF16 numbers from 0 to 1
        return chance.integers(0 if datatype == "BF16" else int(limits.min), high, shape, dtype=dtype, endpoint=True)
    return chance.random(shape).astype(dtype)
