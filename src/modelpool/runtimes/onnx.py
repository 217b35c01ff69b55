"""The runtime of ONNX models: onnxruntime on the processor, one session for each version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modelpool.errors import LoadFailed, ModelpoolError, UnknownVersion, Unsupported
from modelpool.protocol.forms import Forms
from modelpool.protocol.messages import LoadSpec
from modelpool.protocol.tensors import InferenceRequest
from modelpool.runtimes.base import Alike, AnyRequest, LoadedModel, Outcome
from modelpool.runtimes.batching import Admitted, check_rows, join, split, together
from modelpool.runtimes.onnx_session import Session
from modelpool.runtimes.onnx_signature import Signature
from modelpool.runtimes.warmup import samples


class OnnxRuntime:
    """Loads ONNX models."""

    def load(self, spec: LoadSpec) -> LoadedModel:
        """Open, check and warm up every version; raises LoadFailed, or Unsupported for a device that this version cannot use."""
        if spec.device != "cpu":
            raise Unsupported(f"ONNX models run on the device cpu only so far, not on {spec.device}; leave the device out")
        return OnnxModel(spec)


class OnnxModel:
    """A loaded ONNX model.

    From its configuration: `max_batch_size` and `dynamic_batching` (its delay; preferred sizes are not needed, since a run takes what
    waits), `instance_group` (runs at once, of the same session), `model_warmup`, and the parameter `intra_op_thread_count`.
    """

    whole_process = False
    quick = True

    def __init__(self, spec: LoadSpec) -> None:
        config = spec.config
        self._model = spec.model
        self.max_batch = int(config.get("max_batch_size", 0))
        self.batches = self.max_batch > 0 and "dynamic_batching" in config
        self.max_delay_s = int(config.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0)) / 1e6
        self.slots = max(1, sum(int(group.get("count", 1)) for group in config.get("instance_group", ())))
        self.forms = Forms()
        self._versions: dict[int, _Version] = {}
        try:
            self._load(spec)
        except BaseException:
            self.close()
            raise

    def _load(self, spec: LoadSpec) -> None:
        for one in spec.versions:
            path = Path(one.path)
            if path.is_dir():
                path /= spec.config.get("default_model_filename") or "model.onnx"
            session = Session(spec.model, path, _threads(spec.config))
            self._versions[one.version] = _Version(spec.model, spec.config, session, self.max_batch)
        default = self._versions.get(spec.default_version)
        if default is None:
            raise LoadFailed(f"model {spec.model!r} has no version {spec.default_version} to load; add a folder {spec.default_version}/")
        self.inputs = default.signature.inputs
        self.outputs = default.signature.outputs
        for sample in samples(spec.config, spec.model_dir, self.max_batch):
            for version in self._versions:
                self._warm_up(sample.name, sample.count, InferenceRequest(version, sample.inputs))

    def _warm_up(self, sample: str, count: int, request: InferenceRequest) -> None:
        for _ in range(count):
            (outcome,) = self.execute(request.version, [request])
            if isinstance(outcome, ModelpoolError):
                raise LoadFailed(f"warm-up sample {sample!r} of model {self._model!r} failed: {outcome.message}") from outcome

    def execute(self, version: int, requests: Sequence[AnyRequest]) -> Sequence[Outcome]:
        """Run requests of one version, together where they fit together; one outcome each, in order. Raises UnknownVersion."""
        target = self._versions.get(version)
        if target is None:
            raise UnknownVersion(f"version {version} of model {self._model!r} is not loaded; loaded are {sorted(self._versions)}")
        if (self.batches or len(requests) == 1) and (alike := target.run_alike(requests)) is not None:
            return alike
        outcomes: list[Any] = [None] * len(requests)
        admitted: list[Admitted] = []
        for place, request in enumerate(requests):
            try:
                admitted.append(target.signature.admit(place, request))
            except ModelpoolError as error:
                outcomes[place] = error
        groups = together(admitted, self.max_batch) if self.batches and len(admitted) > 1 else [[one] for one in admitted]
        for group in groups:
            for one, outcome in zip(group, target.run(group), strict=True):
                outcomes[one.place] = outcome
        return outcomes

    def close(self) -> None:
        """Free the sessions of all versions."""
        for version in self._versions.values():
            version.session.close()
        self._versions.clear()


class _Version:
    """One version: its session and what goes in and out of it."""

    def __init__(self, model: str, config: dict[str, Any], session: Session, max_batch: int) -> None:
        self.session = session
        try:
            self.signature = Signature(model, config, session.inputs, session.outputs, max_batch)
        except BaseException:
            session.close()
            raise

    def run_alike(self, requests: Sequence[AnyRequest]) -> Alike | None:
        """One run for flat requests of one form; None where they are not, or where it fails, so that each gets its own error."""
        count = len(requests)
        inputs = self.signature.joined(requests)
        if inputs is None:
            return None
        try:
            outputs = self.session.run(self.signature.all_names, inputs)
            if count > 1:
                check_rows(outputs, next(iter(inputs.values())).shape[0])
            return Alike(self.signature.answer(outputs), count)
        except (ModelpoolError, ValueError):
            return None

    def run(self, group: Sequence[Admitted]) -> list[Outcome]:
        """One run for all of them; where that fails, one for each, so that a request fails for no fault but its own."""
        if len(group) == 1:
            return [self._run_alone(group[0])]
        wanted = dict.fromkeys(name for one in group for name in one.names)
        try:
            outputs = self.session.run(list(wanted), join(group))
            return [self.signature.answer(arrays) for arrays in split(group, outputs)]
        except (ModelpoolError, ValueError):
            return [self._run_alone(one) for one in group]

    def _run_alone(self, one: Admitted) -> Outcome:
        try:
            return self.signature.answer(self.session.run(one.names, one.inputs))
        except ModelpoolError as error:
            return error


def _threads(config: dict[str, Any]) -> int:
    given = config.get("parameters", {}).get("intra_op_thread_count", {}).get("string_value", "0")
    try:
        return max(0, int(given))
    except ValueError as error:
        raise LoadFailed(f"parameter intra_op_thread_count is {given!r}; give a number, or 0 to leave it to the server") from error
