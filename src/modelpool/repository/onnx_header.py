"""What an .onnx file says of itself, read without the onnx package and without its weights.

The file is walked as protobuf's wire format: names, types and lengths are read, everything else is stepped over. It is read through a
small window with `pread` rather than mapped: a mapped file that someone cuts short kills the process that looks at it. Depth and number
of fields are bounded, and no length is believed before it was checked against the part it lies in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from modelpool.errors import MalformedModel
from modelpool.protocol.messages import TensorMeta
from modelpool.protocol.regular import open_regular

_WINDOW_BYTES = 64 * 1024
_MAX_FIELDS = 300_000
_MAX_TEXT_BYTES = 64 * 1024
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_DATATYPES = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "BYTES", 9: "BOOL",
    10: "FP16", 11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip
"""TensorProto.DataType to the Open Inference Protocol's spelling."""

_MODEL_FIELDS = {
    1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _BYTES, 5: _VARINT, 6: _BYTES, 7: _BYTES, 8: _BYTES, 14: _BYTES, 20: _BYTES, 25: _BYTES,
}  # fmt: skip
"""ModelProto's fields and their wire types: anything else under these numbers is not ONNX."""

_LOOKS_LIKE = (
    (b"version https://git-lfs", "it is a Git LFS pointer: fetch the real file with `git lfs pull`"),
    (b"PK\x03\x04", "it is a zip archive, perhaps a PyTorch file: export the model to ONNX"),
    (b"<", "it looks like a web page: the download went wrong"),
    (b"\x89HDF", "it is an HDF5 file: export the model to ONNX"),
    (b"\x80", "it looks like a pickle: export the model to ONNX"),
)


class ExternalData(NamedTuple):
    """A file beside the model that holds weights: its relative name, and the bytes that it must have at least (0: all of it is meant)."""

    name: str
    needed_bytes: int


@dataclass(frozen=True, slots=True)
class OnnxHeader:
    """The head of an ONNX model.

    opset: of the default operator set. inputs leave out those that have an initialiser; dimensions without a fixed size are -1; outputs
    that are not tensors (sequences, maps) are left out. initialiser_bytes: weights, those in external files included. graph_bytes: the
    rest of the file.
    """

    ir_version: int
    opset: int
    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    initialiser_bytes: int
    graph_bytes: int
    external: tuple[ExternalData, ...] = ()

    @property
    def estimate_bytes(self) -> int:
        """Private bytes that a loaded copy will take, guessed: weights with a tenth for repacking, and the graph."""
        return self.initialiser_bytes * 11 // 10 + self.graph_bytes


def read_header(path: Path) -> OnnxHeader:
    """Read the head of a model file. Raises MalformedModel with a sentence for people."""
    try:
        file = open_regular(path)
    except (OSError, ValueError) as error:
        raise MalformedModel(f"{path.name} cannot be read: {_reason(error)}; check that it exists and its permissions") from error
    with file:
        try:
            fd = file.fileno()
            return _Walk(fd, os.fstat(fd).st_size, path.name).model()
        except OSError as error:
            raise MalformedModel(f"{path.name} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


class _Field(NamedTuple):
    """number; kind: wire type; value: of a varint; start, stop: where the bytes of a length-delimited field lie."""

    number: int
    kind: int
    value: int
    start: int
    stop: int


class _Walk:
    """One pass over one file."""

    def __init__(self, fd: int, size: int, name: str) -> None:
        self._fd = fd
        self._size = size
        self._name = name
        self._buffer = b""
        self._base = 0
        self._fields_left = _MAX_FIELDS
        self._known = False  # an ir_version was seen: what goes wrong from here on is damage, not another format
        self._external: dict[str, int] = {}
        self._external_bytes = 0

    def model(self) -> OnnxHeader:
        """ModelProto: ir_version 1, graph 7, opset_import 8."""
        if self._size == 0:
            raise MalformedModel(f"{self._name} is empty; copy the model again")
        ir_version, graph, opsets = 0, None, dict[str, int]()
        for part in self._fields(0, self._size):
            expected = _MODEL_FIELDS.get(part.number)
            if expected is not None and expected != part.kind:
                self._damaged()
            if part.number == 1:
                ir_version, self._known = part.value, True
            elif part.number == 7:
                if graph is not None:
                    self._damaged()
                graph = part
            elif part.number == 8:
                domain, version = self._opset(part)
                opsets[domain] = version
        if not self._known:
            self._damaged()
        if graph is None or not opsets:
            self._cut()
        return self._graph(graph, ir_version, opsets.get("", opsets.get("ai.onnx", 0)))

    def _opset(self, whole: _Field) -> tuple[str, int]:
        domain, version = "", 0
        for part in self._inside(whole):
            if part.number == 1 and part.kind == _BYTES:
                domain = self._text(part)
            elif part.number == 2 and part.kind == _VARINT:
                version = part.value
        return domain, version

    def _graph(self, whole: _Field, ir_version: int, opset: int) -> OnnxHeader:
        """GraphProto: initializer 5, input 11, output 12, sparse_initializer 15. Nodes are stepped over."""
        inputs, outputs = [], []
        initialised: set[str] = set()
        inline_bytes = 0
        for part in self._inside(whole):
            if part.number in {5, 11, 12, 15} and part.kind != _BYTES:
                self._damaged()
            if part.number == 5:
                initialised.add(self._initialiser(part))
                inline_bytes += part.stop - part.start
            elif part.number == 15:
                inline_bytes += part.stop - part.start
            elif part.number == 11:
                inputs.append(self._value(part))
            elif part.number == 12:
                outputs.append(self._value(part))
        real_inputs = [(name, meta) for name, meta in inputs if name not in initialised]
        for name, meta in real_inputs:
            if meta is None:
                raise MalformedModel(f"input {name!r} of {self._name} is not a tensor of a known type; such models cannot be served")
        if not outputs:
            raise MalformedModel(f"{self._name} has no outputs; export the model again")
        return OnnxHeader(
            ir_version=ir_version,
            opset=opset,
            inputs=tuple(meta for _, meta in real_inputs if meta is not None),
            outputs=tuple(meta for _, meta in outputs if meta is not None),
            initialiser_bytes=inline_bytes + self._external_bytes,
            graph_bytes=self._size - inline_bytes,
            external=tuple(ExternalData(name, needed) for name, needed in sorted(self._external.items())),
        )

    def _initialiser(self, whole: _Field) -> str:
        """TensorProto: dims 1, data_type 2, name 8, external_data 13, data_location 14. Gives the name."""
        name, external = "", list[_Field]()
        is_external = False
        for part in self._inside(whole):
            if part.number == 8 and part.kind == _BYTES:
                name = self._text(part)
            elif part.number == 13 and part.kind == _BYTES:
                external.append(part)
            elif part.number == 14 and part.kind == _VARINT:
                is_external = part.value == 1
        if is_external:
            self._note_external(dict(self._pair(part) for part in external))
        return name

    def _note_external(self, where: dict[str, str]) -> None:
        location = where.get("location", "")
        parts = location.replace("\\", "/").split("/")
        if not location or location.startswith("/") or ".." in parts:
            raise MalformedModel(
                f"{self._name} keeps weights in {location!r}; external data must lie beside the model or in a folder below it"
            )
        try:
            offset, length = int(where.get("offset", "0")), int(where.get("length", "0"))
        except ValueError:
            self._damaged()
        if offset < 0 or length < 0:
            self._damaged()
        self._external[location] = max(self._external.get(location, 0), offset + length)
        self._external_bytes += length

    def _pair(self, whole: _Field) -> tuple[str, str]:
        """StringStringEntryProto: key 1, value 2."""
        texts = {part.number: self._text(part) for part in self._inside(whole) if part.kind == _BYTES and part.number in {1, 2}}
        return texts.get(1, ""), texts.get(2, "")

    def _value(self, whole: _Field) -> tuple[str, TensorMeta | None]:
        """ValueInfoProto: name 1, type 2 (TypeProto: tensor_type 1 {elem_type 1, shape 2 {dim 1}}). None: not a tensor we know."""
        name, datatype, shape = "", None, list[int]()
        for part in self._inside(whole):
            if part.number == 1 and part.kind == _BYTES:
                name = self._text(part)
            elif part.number == 2 and part.kind == _BYTES:
                for tensor in self._submessages(part, 1):
                    for field in self._inside(tensor):
                        if field.number == 1 and field.kind == _VARINT:
                            datatype = _DATATYPES.get(field.value)
                        elif field.number == 2 and field.kind == _BYTES:
                            shape = [self._dimension(dim) for dim in self._submessages(field, 1)]
        return name, TensorMeta(name, datatype, tuple(shape)) if datatype is not None else None

    def _dimension(self, whole: _Field) -> int:
        """Dimension: dim_value 1, dim_param 2 (a name: any size)."""
        size = -1
        for part in self._inside(whole):
            if part.number == 1 and part.kind == _VARINT:
                size = part.value if part.value < 1 << 63 else -1
            elif part.number == 2:
                size = -1
        return size

    def _submessages(self, whole: _Field, number: int) -> Iterator[_Field]:
        return (part for part in self._inside(whole) if part.number == number and part.kind == _BYTES)

    def _inside(self, whole: _Field) -> Iterator[_Field]:
        return self._fields(whole.start, whole.stop)

    def _text(self, part: _Field) -> str:
        length = part.stop - part.start
        if length > _MAX_TEXT_BYTES:
            self._damaged()
        at = self._at(part.start, length)
        try:
            text = self._buffer[at : at + length].decode()
        except UnicodeDecodeError:
            self._damaged()
        if "\0" in text:
            self._damaged()
        return text

    def _fields(self, position: int, end: int) -> Iterator[_Field]:
        """The fields between two positions of the file; their lengths are checked against `end`."""
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise MalformedModel(f"{self._name} has more than {_MAX_FIELDS} parts; it is damaged, export the model again")
            tag, position = self._varint(position, end)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                self._damaged()
            value = start = stop = 0
            if kind == _VARINT:
                value, position = self._varint(position, end)
            elif kind == _BYTES:
                length, start = self._varint(position, end)
                position = stop = start + length
            elif kind == _FIXED64:
                position += 8
            elif kind == _FIXED32:
                position += 4
            else:
                self._damaged()
            if position > end:
                self._past_end(end)
            yield _Field(number, kind, value, start, stop)

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        at = self._at(position, min(10, end - position))
        value = 0
        for index, byte in enumerate(self._buffer[at : at + min(10, end - position)]):
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value, position + index + 1
        if end - position >= 10:
            self._damaged()
        self._past_end(end)

    def _at(self, position: int, need: int) -> int:
        """Where `position` lies in the buffer, once that holds `need` bytes from there on."""
        at = position - self._base
        if at < 0 or at + need > len(self._buffer):
            self._buffer = os.pread(self._fd, max(_WINDOW_BYTES, need), position)
            self._base, at = position, 0
            if len(self._buffer) < need:
                self._cut()  # the file became shorter meanwhile
        return at

    def _past_end(self, end: int) -> NoReturn:
        if end == self._size:
            self._cut()
        self._damaged()

    def _cut(self) -> NoReturn:
        if not self._known:
            self._damaged()
        raise MalformedModel(
            f"{self._name} ends in the middle ({self._size} bytes are there): it was cut off, or is still being copied; "
            "if this stays, copy it again"
        )

    def _damaged(self) -> NoReturn:
        if self._known:
            raise MalformedModel(f"{self._name} is damaged inside; copy or export the model again")
        head = os.pread(self._fd, 32, 0)
        hint = next((hint for magic, hint in _LOOKS_LIKE if head.startswith(magic)), "export the model to ONNX, or remove the file")
        raise MalformedModel(f"{self._name} is not an ONNX file; {hint}")
