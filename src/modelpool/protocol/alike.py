"""Answers to requests that ran together and are of one form, written together: each differs from the next in its numbers only."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec

from modelpool.protocol.tensors import Tensor

_MOST_BYTES = 1 << 16
"""Larger outputs are not copied so often."""
_UNLIKE = ("BYTES", "BF16")

_encode = msgspec.json.Encoder().encode


class _Head(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: msgspec.Raw


class _Answer(msgspec.Struct):
    model_name: str
    model_version: str
    outputs: list[_Head]


def encode_alike(model: str, version: int, idents: Sequence[str], outputs: Mapping[str, Tensor]) -> list[bytes] | None:
    """JSON answers to as many requests as there are idents, each of which has the same number of rows of every output.

    The bytes are those of `inference.encode_response`. None where that has to be used: for large outputs, numbers that are not finite,
    and types that are no plain numbers in JSON.
    """
    count = len(idents)
    heads = []
    columns = []
    for name, (datatype, array) in outputs.items():
        if datatype in _UNLIKE or not 0 < array.nbytes <= _MOST_BYTES:
            return None
        text = _encode(array.reshape(count, -1).tolist())  # [[..],[..]]
        if b"null" in text:  # what msgspec makes of NaN and infinities
            return None
        columns.append(text[2:-2].split(b"],["))
        shape = array.shape
        heads.append((name, datatype, shape if count == 1 else (shape[0] // count, *shape[1:])))
    columns.append([b',"id":%b' % _encode(ident) if ident else b"" for ident in idents])
    template = _template(model, version, tuple(heads))
    return [template % row for row in zip(*columns, strict=True)]


@functools.lru_cache(maxsize=256)
def _template(model: str, version: int, heads: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    """An answer with %b in place of the elements of each output and of the id."""
    outputs = [_Head(_escaped(name), datatype, shape, msgspec.Raw(b"[%b]")) for name, datatype, shape in heads]
    return _encode(_Answer(_escaped(model), str(version), outputs))[:-1] + b"%b}"


def _escaped(name: str) -> str:
    return name.replace("%", "%%")
