"""Requests that differ from an earlier one in their numbers only.

A client repeats its own layout: names, shapes and order. A `Form` is such a layout as bytes: what stands around the lists of numbers. A
body that fits one is cut at the lists, and those of a whole run are read together, in one call for each input; nothing else of it is
parsed again. A body that fits none, or holds anything but the right numbers, is read by the general way, which also says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from modelpool.protocol.inference import decode_flat, decode_request
from modelpool.protocol.tensors import FLAT_DTYPES, FlatTensor, Float32, Tensor

MOST_FORMS = 4
"""Layouts that are kept for one model."""
MOST_LEARNT = 256
"""Layouts that are learnt for one model in all: clients whose every body is laid out anew must not cost more than they gain."""
_MOST_BYTES = 4096
"""Longer bodies teach none, so that those that are kept stay small."""

_LIST = re.compile(rb'"data"\s*:\s*\[([^\[\]]*)\]')
_numbers = msgspec.json.Decoder(list[Float32]).decode


class Column:
    """One input of a form. shape: of one request; size: its elements."""

    __slots__ = ("datatype", "dtype", "name", "shape", "size")

    def __init__(self, tensor: FlatTensor) -> None:
        self.name = tensor.name
        self.datatype = tensor.datatype
        self.dtype = FLAT_DTYPES[tensor.datatype]
        self.shape = tensor.shape
        self.size = len(tensor.data)

    def read(self, texts: Sequence[bytes]) -> NDArray[Any] | None:
        """The numbers of several requests, one after the other; None where they are not as many numbers in each as there must be."""
        commas = self.size - 1
        if [1 for text in texts if text.count(b",") != commas]:
            return None
        try:
            return np.array(_numbers(b"[" + b",".join(texts) + b"]"), self.dtype)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None


class Form:
    """One layout. rows: the first size of the first input (1 where that has none)."""

    __slots__ = ("_end", "_literals", "_start", "columns", "prefix", "rows", "suffix")

    def __init__(self, prefix: bytes, literals: Sequence[bytes], suffix: bytes, columns: Sequence[Column]) -> None:
        """prefix: up to the first list; literals: from the end of a list to the next; suffix: from the end of the last."""
        self.prefix = prefix
        self.suffix = suffix
        self._start = len(prefix)
        self._end = -len(suffix)
        self._literals = tuple(literals)
        self.columns = tuple(columns)
        self.rows = columns[0].shape[0] if columns[0].shape else 1

    def cut(self, body: bytes) -> list[bytes] | None:
        """What the lists of a body hold, if they hold numbers and nothing else; None where it is laid out otherwise."""
        if not body.startswith(self.prefix) or not body.endswith(self.suffix, self._start):
            return None
        rest = body[self._start : self._end]
        texts = []
        for literal in self._literals:
            text, found, rest = rest.partition(literal)
            if not found:
                return None
            texts.append(text)
        texts.append(rest)
        return texts


class FormedRequest(msgspec.Struct, gc=False):
    """A request that fits a form; its numbers are not read yet. texts: what the list of each column holds.

    It asks for all outputs, and has neither parameters nor an id.
    """

    wanted: ClassVar[tuple[str, ...]] = ()
    parameters: ClassVar[dict[str, Any]] = {}
    ident: ClassVar[str] = ""

    version: int
    form: Form
    texts: list[bytes]
    body: bytes

    @property
    def inputs(self) -> Mapping[str, Tensor | FlatTensor]:
        """Read by the general way; raises InvalidRequest or InvalidTensor."""
        return decode_request(self.body, -1, self.version)[0].inputs


class Forms:
    """The layouts that came for one model, the latest first."""

    def __init__(self) -> None:
        self._forms: list[Form] = []
        self._left = MOST_LEARNT

    def read(self, body: bytes, version: int) -> FormedRequest | None:
        """A body that fits a form; one that fits none teaches a new one, if it can."""
        for form in self._forms:
            texts = form.cut(body)
            if texts is not None:
                return FormedRequest(version, form, texts, body)
        if self._left and len(body) <= _MOST_BYTES:
            self._left -= 1
            learnt = form_of(body)
            if learnt is not None:
                self._forms = [learnt, *self._forms[: MOST_FORMS - 1]]
        return None


def form_of(body: bytes) -> Form | None:
    """The layout of a simple request without an id; None where it is not simple."""
    found = decode_flat(body)
    if found is None or found.id or not found.inputs or len({one.name for one in found.inputs}) < len(found.inputs):
        return None
    spans = [match.span(1) for match in _LIST.finditer(body)]
    columns = [Column(tensor) for tensor in found.inputs]
    if len(spans) != len(columns):
        return None
    edges = [0, *(edge for span in spans for edge in span), len(body)]
    literals = [body[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]
    # A string may look like a list of numbers: what stands for the numbers must come back as the numbers of the right input.
    probe = literals[0] + b"".join(b"%d%b" % (place, literal) for place, literal in enumerate(literals[1:]))
    again = decode_flat(probe, whole=False)
    if again is None or [(one.name, one.datatype, one.shape, one.data) for one in again.inputs] != [
        (column.name, column.datatype, column.shape, [float(place)]) for place, column in enumerate(columns)
    ]:
        return None
    return Form(literals[0], literals[1:-1], literals[-1], columns)
