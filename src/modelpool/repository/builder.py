"""From a model's files to its catalogue entry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modelpool.core.model import Isolation, ModelSpec, Residency
from modelpool.errors import MalformedModel, ModelpoolError
from modelpool.protocol.messages import TensorMeta, VersionSpec
from modelpool.protocol.regular import check_regular, open_regular
from modelpool.repository import ensembles, triton_config
from modelpool.repository.entry import Entry, Source
from modelpool.repository.layouts import Layout, Place, is_version, read_layout
from modelpool.repository.names import check_name, printable, sendable
from modelpool.repository.onnx_header import OnnxHeader, read_header
from modelpool.repository.residency import read_residency
from modelpool.repository.watch import Stamp, digest, stamp, stamps_below

PYTHON_BASE_BYTES = 64 * 1024 * 1024
"""What a Python model's own process takes before its files, guessed."""

_RUN_PEAK_SHARE = 4
"""A run is guessed to add a quarter of what the model takes."""

_PLATFORMS = {"onnx": "onnxruntime_onnx", "python": "python"}


@dataclass(frozen=True, slots=True)
class Built:
    """An entry, and the files that it was made of (also those that are missing yet)."""

    entry: Entry
    files: tuple[Path, ...]


def build(place: Place, *, name: str | None = None, source: Source = "repository", properties: dict[str, Any] | None = None) -> Built:
    """The entry of a model; whatever is wrong with it becomes its `problem`, so that one model never harms another."""
    name = place.name if name is None else name
    work = _Work(place, name)
    try:
        check_name(name)
        entry = work.entry(source, properties or {})
    except ModelpoolError as error:
        problem = error.message
    except OSError as error:
        problem = f"its files cannot be read: {error.strerror or error}; check that they exist and their permissions"
    except Exception as error:  # hostile files must not end the scan
        problem = f"its files cannot be understood ({type(error).__name__}: {error})"[:500]
    else:
        return Built(entry, tuple(work.files))
    shown = Entry(printable(name), source, model_dir=sendable(str(place.path)), properties=properties or {}, problem=sendable(problem))
    return Built(shown, tuple(work.files))


class _Work:
    """Builds one entry; `files` grows as files are looked at."""

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self._name = name
        self.files: list[Path] = []

    def entry(self, source: Source, properties: dict[str, Any]) -> Entry:
        """Raises MalformedModel or OSError."""
        place = self._place
        self.files.append(place.residency)
        residency = read_residency(place.residency, self._name) if place.residency.exists() else Residency()
        if place.is_folder:
            self.files.append(place.path / triton_config.FILE_NAME)
        layout = read_layout(place)
        self._check_warmup(layout)
        if layout.runtime == ensembles.RUNTIME:
            steps = ensembles.steps_of(layout.config, self._name)
            residency = replace(residency, requires=tuple(dict.fromkeys((*residency.requires, *steps))))
        stamps = self._model_stamps(layout)
        inputs, outputs, estimate_bytes = self._read(layout)
        spec = ModelSpec(
            name=self._name,
            revision=digest((*(stamp(file) for file in self.files if file != place.residency), *stamps), repr(residency), self._name),
            runtime=layout.runtime,
            device_kinds=(residency.device.rpartition("/")[2].partition(":")[0],)
            if residency.device
            else triton_config.device_kinds(layout.config),
            estimate_bytes=estimate_bytes,
            run_peak_estimate_bytes=estimate_bytes // _RUN_PEAK_SHARE if layout.runtime == "onnx" else 0,
            isolation=_isolation(layout.runtime, residency),
            residency=residency,
            steps_first=layout.runtime == ensembles.RUNTIME,
        )
        return Entry(
            name=self._name,
            source=source,
            spec=spec,
            runtime=layout.runtime,
            platform=_PLATFORMS.get(layout.runtime) or layout.config.get("platform", ""),
            model_dir=str(place.path if place.is_folder else place.path.parent),
            versions=tuple(VersionSpec(number, str(path)) for number, path in layout.versions.items()),
            default_version=max(layout.versions),
            config=triton_config.complete_config(
                layout.config, name=self._name, runtime=layout.runtime, file_name=layout.file_name, inputs=inputs, outputs=outputs
            ),
            inputs=inputs,
            outputs=outputs,
            properties=properties,
        )

    def _check_warmup(self, layout: Layout) -> None:
        """What a load would read for its warm-up must be files; what is not there yet may come before the load."""
        for sample in layout.config.get("model_warmup", ()):
            for value in sample.get("inputs", {}).values():
                file = self._place.path / "warmup" / value.get("input_data_file", "")
                if value.get("input_data_file") and file.exists():
                    check_regular(file)

    def _model_stamps(self, layout: Layout) -> list[Stamp]:
        """The files of the selected versions: in Triton's layout all below the version folder, as helpers and weights lie there."""
        if layout.file_name and (not self._place.is_folder or self._place.path in {path.parent for path in layout.versions.values()}):
            self.files.extend(layout.versions.values())
            return []
        return [item for number in layout.versions for item in stamps_below(self._place.path / str(number))]

    def _read_onnx(self, layout: Layout) -> tuple[tuple[TensorMeta, ...], tuple[TensorMeta, ...], int]:
        """Inputs and outputs as metadata shows them, and the bytes of all versions together."""
        estimate_bytes = 0
        for number, path in layout.versions.items():
            try:
                header = read_header(path)
                estimate_bytes += header.estimate_bytes + self._external_bytes(header, path)
            except MalformedModel as error:
                raise MalformedModel(f"version {number}: {error.message}" if len(layout.versions) > 1 else error.message) from error
        inputs, outputs = triton_config.tensors(layout.config, "input"), triton_config.tensors(layout.config, "output")
        triton_config.check_against(inputs, header.inputs, "input")
        triton_config.check_against(outputs, header.outputs, "output")
        return inputs or header.inputs, outputs or header.outputs, estimate_bytes

    def _external_bytes(self, header: OnnxHeader, path: Path) -> int:
        """Check the files that hold weights; bytes of those whose size the header does not say. Raises MalformedModel."""
        unsaid = 0
        for name, needed_bytes in header.external:
            file = path.parent / name
            self.files.append(file)
            if not file.is_file():
                raise MalformedModel(f"{path.name} keeps weights in {name!r}, which is not there; copy it beside the model")
            size = file.stat().st_size
            if size < needed_bytes:
                raise MalformedModel(f"{name} holds {size} bytes of weights and {path.name} needs {needed_bytes}; copy it again")
            unsaid += 0 if needed_bytes else size
        return unsaid

    def _read(self, layout: Layout) -> tuple[tuple[TensorMeta, ...] | None, tuple[TensorMeta, ...] | None, int]:
        """Inputs, outputs, and an estimate of the bytes of all versions together."""
        if layout.runtime == "onnx":
            return self._read_onnx(layout)
        if layout.runtime == "python":
            return self._read_python(layout)
        inputs, outputs = triton_config.tensors(layout.config, "input"), triton_config.tensors(layout.config, "output")
        own_bytes = 0 if layout.runtime == ensembles.RUNTIME else self._folder_bytes(layout)
        return inputs or None, outputs or None, own_bytes

    def _read_python(self, layout: Layout) -> tuple[tuple[TensorMeta, ...] | None, tuple[TensorMeta, ...] | None, int]:
        for path in layout.versions.values():
            open_regular(path).close()  # one that cannot be read is a problem now, not at its first request
        inputs, outputs = triton_config.tensors(layout.config, "input"), triton_config.tensors(layout.config, "output")
        return inputs or None, outputs or None, PYTHON_BASE_BYTES + self._folder_bytes(layout)

    def _folder_bytes(self, layout: Layout) -> int:
        """All files of the model but those of versions that are left out."""
        total = 0
        for item in stamps_below(self._place.path):
            part = Path(item.path).relative_to(self._place.path).parts[0]
            if not is_version(part) or int(part) in layout.versions:
                total += max(0, item.size_bytes)
        return total


def _isolation(runtime: str, residency: Residency) -> Isolation:
    if runtime == "python":
        if residency.isolation == "shared":
            raise MalformedModel("modelpool.yaml: isolation: a Python model always has a process of its own; remove the line")
        return "process"
    return residency.isolation or "shared"
