"""One model of the catalogue, with all that is known of it without loading it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from modelpool.core.model import ModelSpec
from modelpool.errors import MalformedModel
from modelpool.protocol.messages import LoadSpec, TensorMeta, VersionSpec

Source = Literal["repository", "posted"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A model that was found in a repository or posted by a client.

    spec: what the core knows of it, None where the entry is malformed; problem: then says why, for people.
    platform: Triton's word (`onnxruntime_onnx`, `python`). versions: those that the version policy selects, in ascending order.
    config: field names of Triton's model_config.proto, complete enough to answer `GET /v2/models/m/config`.
    inputs, outputs: as metadata shows them, batch dimension included; None where only a load can tell.
    properties: what a client posted with it.
    """

    name: str
    source: Source
    spec: ModelSpec | None = None
    runtime: str = ""
    platform: str = ""
    model_dir: str = ""
    versions: tuple[VersionSpec, ...] = ()
    default_version: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[TensorMeta, ...] | None = None
    outputs: tuple[TensorMeta, ...] | None = None
    properties: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def revision(self) -> str:
        """Changes whenever files, configuration or residency do; empty for a malformed entry."""
        return self.spec.revision if self.spec is not None else ""

    def load_spec(self, copy: int, device: str) -> LoadSpec:
        """What a worker needs to load it as that copy on that device. Raises MalformedModel where it cannot be loaded."""
        if self.spec is None:
            raise MalformedModel(f"model {self.name!r} cannot be loaded: {self.problem}")
        return LoadSpec(
            copy=copy,
            model=self.name,
            revision=self.spec.revision,
            runtime=self.runtime,
            device=device,
            model_dir=self.model_dir,
            versions=self.versions,
            default_version=self.default_version,
            config=self.config,
        )
