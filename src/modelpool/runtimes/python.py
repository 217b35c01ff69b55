"""The runtime of Python models written for Triton: a class TritonPythonModel in the version folder's `model.py`.

A process holds one such model: its code may change anything in the process, and an unload ends the process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

from modelpool.errors import LoadFailed, ModelError, ModelpoolError, UnknownVersion
from modelpool.protocol.messages import LoadSpec, VersionSpec
from modelpool.runtimes import calls, pb_utils
from modelpool.runtimes.base import AnyRequest, InferenceRequest, LoadedModel, Outcome
from modelpool.runtimes.pymodel.checks import Checks
from modelpool.runtimes.pymodel.config import completed, max_delay_s, ports, refuse_unknown_ways, slot_names
from modelpool.runtimes.pymodel.faults import located, told_in_full
from modelpool.runtimes.pymodel.files import ModelFolder
from modelpool.runtimes.pymodel.slot import Raised, Slot
from modelpool.runtimes.warmup import samples

FINALIZE_LIMIT_S = 10.0
"""How long `close` waits for the model's finalize; the process may be ended after that."""

_Admitted = tuple[int, int, pb_utils.InferenceRequest]  # index in the run, rows, the model's view


class PythonRuntime:
    """Loads Python models."""

    def load(self, spec: LoadSpec) -> LoadedModel:
        """Import, initialise and warm up every version; raises LoadFailed with the last lines of what the model's code raised."""
        return PythonModel(spec)


class PythonModel:
    """A loaded Python model: for each version, as many slots as `instance_group` asks for."""

    whole_process = True
    quick = False
    forms = None

    def __init__(self, spec: LoadSpec) -> None:
        pb_utils.register(spec.model)
        self._spec = spec
        self._folder = ModelFolder(spec.model, spec.model_dir)
        self._slots: dict[int, list[Slot]] = {}
        self._free: dict[int, SimpleQueue[Slot]] = {}
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        spec = self._spec
        if not spec.versions:
            raise LoadFailed(f"model {spec.model!r} has no version to load; add a folder such as 1/ with a model.py")
        config = completed(spec.config, spec.model, spec.device)
        filename = config["default_model_filename"]
        # The default version comes first: its auto_complete_config speaks for all.
        for index, version in enumerate(sorted(spec.versions, key=lambda one: one.version != spec.default_version)):
            first = self._add_slot(version, next(slot_names(config)))
            with self._loading(version, "the code"):
                kind = first.call(partial(self._folder.import_model, version, filename))
            if index == 0:
                config = self._agree_on_config(first, version, kind, config)
            for name in list(slot_names(config))[1:]:
                self._add_slot(version, name)
            for slot in self._slots[version.version]:
                with self._loading(version, "initialize"):
                    slot.open(kind, self._arguments(version, slot, config))
            self._warm_up(version, config)
            if len(spec.versions) > 1:
                self._folder.set_apart(version, filename)

    def _add_slot(self, version: VersionSpec, name: str) -> Slot:
        slot = Slot(name)
        self._slots.setdefault(version.version, []).append(slot)
        self._free.setdefault(version.version, SimpleQueue()).put(slot)
        return slot

    def _agree_on_config(self, slot: Slot, version: VersionSpec, kind: type[Any], config: dict[str, Any]) -> dict[str, Any]:
        """Let the model complete its configuration, and take from it what the worker needs to know."""
        if hasattr(kind, "auto_complete_config"):
            with self._loading(version, "auto_complete_config"):
                config = completed(slot.call(lambda: _completed_by_model(kind, config)), self._spec.model, self._spec.device)
        refuse_unknown_ways(config)
        self.max_batch = int(config["max_batch_size"])
        self.batches = self.max_batch > 0 and "dynamic_batching" in config
        self.max_delay_s = max_delay_s(config)
        self.slots = len(list(slot_names(config)))
        inputs, outputs = ports(config, "input"), ports(config, "output")
        self.inputs = tuple(port.meta(self.max_batch > 0) for port in inputs)
        self.outputs = tuple(port.meta(self.max_batch > 0) for port in outputs)
        self._checks = Checks(self._spec.model, inputs, outputs, self.max_batch)
        return config

    def _arguments(self, version: VersionSpec, slot: Slot, config: dict[str, Any]) -> dict[str, str]:
        kind, _, number = self._spec.device.partition(":")
        return {
            "model_config": json.dumps(config),
            "model_instance_kind": "GPU" if kind == "cuda" else "CPU",
            "model_instance_name": slot.name,
            "model_instance_device_id": number or "0",
            "model_repository": self._spec.model_dir,
            "model_version": str(version.version),
            "model_name": self._spec.model,
        }

    def _warm_up(self, version: VersionSpec, config: dict[str, Any]) -> None:
        for sample in samples(config, self._spec.model_dir, self.max_batch):
            request = InferenceRequest(version.version, sample.inputs)
            for _ in range(sample.count * self.slots):  # slots are taken in turn
                outcome = self.execute(version.version, [request])[0]
                if isinstance(outcome, ModelpoolError):
                    raise LoadFailed(f"warm-up sample {sample.name!r} of model {self._spec.model!r} failed: {outcome}") from outcome

    @contextmanager
    def _loading(self, version: VersionSpec, what: str) -> Iterator[None]:
        try:
            yield
        except Raised as raised:
            if isinstance(raised.error, LoadFailed):
                raise raised.error from None
            place = f"{what} of model {self._spec.model!r} version {version.version}"
            raise LoadFailed(
                f"{place} raised {told_in_full(raised.error, self._folder)}{_hint(raised.error, self._spec)}"
            ) from raised.error

    def execute(self, version: int, requests: Sequence[AnyRequest]) -> list[Outcome]:
        """Run requests of one version, together as far as the model batches; one outcome each, in order. Raises UnknownVersion."""
        if version not in self._slots:
            raise UnknownVersion(f"version {version} of model {self._spec.model!r} is not loaded; loaded are {sorted(self._slots)}")
        outcomes: dict[int, Outcome] = {}
        admitted: list[_Admitted] = []
        for index, request in enumerate(requests):
            try:
                admitted.append((index, *self._checks.admit(request)))
            except ModelpoolError as error:
                outcomes[index] = error
        for group in self._groups(admitted):
            results = self._run(version, [view for _, _, view in group], [requests[index].wanted for index, _, _ in group])
            outcomes.update(zip((index for index, _, _ in group), results, strict=True))
        return [outcomes[index] for index in range(len(requests))]

    def _groups(self, admitted: list[_Admitted]) -> Iterator[list[_Admitted]]:
        group: list[_Admitted] = []
        rows = 0
        for one in admitted:
            if group and (not self.batches or rows + one[1] > self.max_batch):
                yield group
                group, rows = [], 0
            group.append(one)
            rows += one[1]
        if group:
            yield group

    def _run(self, version: int, views: list[pb_utils.InferenceRequest], wanted: list[tuple[str, ...]]) -> list[Outcome]:
        slot = self._free[version].get()
        try:
            return self._checks.outcomes(slot.execute(views, calls.parent()), views, wanted)
        except Raised as raised:
            told = f"execute of model {self._spec.model!r} raised {located(raised.error, self._folder)}"
            return [ModelError(told) for _ in views]
        finally:
            self._free[version].put(slot)

    def close(self) -> None:
        """Finalise every slot, for at most FINALIZE_LIMIT_S in all, and forget the model's code. Errors go to the log."""
        ends = {slot.begin_close(): slot for slots in self._slots.values() for slot in slots}
        self._slots.clear()
        done, late = wait(ends, FINALIZE_LIMIT_S)
        for end in done:
            error = end.exception()
            if isinstance(error, Raised):
                pb_utils.Logger.log_error(f"finalize of {ends[end].name} raised {located(error.error, self._folder)}")
        for end in late:
            pb_utils.Logger.log_error(f"finalize of {ends[end].name} did not return within {FINALIZE_LIMIT_S:.0f} s and is left behind")
        self._folder.close()


def _completed_by_model(kind: type[Any], config: dict[str, Any]) -> dict[str, Any]:
    answer = kind.auto_complete_config(pb_utils.ModelConfig(config))
    if not isinstance(answer, pb_utils.ModelConfig):
        raise TypeError(f"it returned {type(answer).__name__}; return the ModelConfig that it was given")
    return answer.as_dict()


def _hint(error: BaseException, spec: LoadSpec) -> str:
    if isinstance(error, ImportError) and "EXECUTION_ENV_PATH" in spec.config.get("parameters", {}):
        return "\nIts parameter EXECUTION_ENV_PATH names a packed environment, which is not unpacked: install its packages beside modelpool"
    return ""
