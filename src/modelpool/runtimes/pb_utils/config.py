"""What Python models ask of their configuration, and how they complete it."""

from __future__ import annotations

import copy
from typing import Any

from modelpool.runtimes.pb_utils.types import protocol_name

_SCHEDULERS = ("sequence_batching", "ensemble_scheduling")


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration of the input of that name, None where there is none."""
    return _named(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration of the output of that name, None where there is none."""
    return _named(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Whether the model may answer a request any number of times."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


class ModelConfig:
    """The configuration that `auto_complete_config` gets and returns.

    What the configuration file says stands: a model may add to it, and a contradiction raises ValueError.
    """

    def __init__(self, model_config: dict[str, Any]) -> None:
        self._config = copy.deepcopy(model_config)

    def as_dict(self) -> dict[str, Any]:
        """A copy of the configuration as it stands."""
        return copy.deepcopy(self._config)

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """The largest batch that the model can take; the file may say less, not more."""
        configured = self._config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"the configuration says max_batch_size {configured}, the model's auto_complete_config {max_batch_size}; lower the former"
            )
        if configured == 0:
            self._config["max_batch_size"] = int(max_batch_size)

    def set_dynamic_batching(self) -> None:
        """Put requests together, unless the file already says how."""
        for scheduler in _SCHEDULERS:
            if scheduler in self._config:
                raise ValueError(
                    f"the configuration has {scheduler}, the model's auto_complete_config asks for dynamic_batching; only one can be"
                )
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Whether the model is decoupled."""
        if unknown := set(transaction_policy_dict) - {"decoupled"}:
            raise ValueError(f"model_transaction_policy has no {', '.join(sorted(map(str, unknown)))}; it only has 'decoupled'")
        self._config["model_transaction_policy"] = dict(transaction_policy_dict)

    def add_input(self, input: dict[str, Any]) -> None:
        """An input: name, data_type, dims, and optional where it need not be given."""
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: dict[str, Any]) -> None:
        """An output: name, data_type, dims."""
        self._add("output", output, ("name", "data_type", "dims"))

    def _add(self, kind: str, given: dict[str, Any], fields: tuple[str, ...]) -> None:
        if missing := [field for field in ("name", "data_type", "dims") if not given.get(field) and given.get(field) != []]:
            raise ValueError(f"an {kind} of auto_complete_config lacks {', '.join(missing)}: {given}")
        if unknown := [str(field) for field in given if field not in fields]:
            raise ValueError(f"{kind} {given['name']!r} of auto_complete_config has unknown properties: {', '.join(unknown)}")
        protocol_name(given["data_type"])
        entries = self._config.setdefault(kind, [])
        known = _named(entries, given["name"])
        if known is None:
            entries.append({**given, "dims": [int(dim) for dim in given["dims"]]})
            return
        for field in ("data_type", "dims"):
            value = list(given[field]) if field == "dims" else given[field]
            if known.get(field) != value:
                raise ValueError(
                    f"the configuration says {field} {known.get(field)} for {kind} {given['name']!r}, "
                    f"the model's auto_complete_config {value}"
                )


def _named(entries: Any, name: str) -> dict[str, Any] | None:
    return next((entry for entry in entries if entry["name"] == name), None)
