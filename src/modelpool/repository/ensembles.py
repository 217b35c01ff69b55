"""Ensembles: what their steps are, and on which Triton server each lives with all of its steps.

A Triton server runs an ensemble out of models that it holds itself. So an ensemble, its steps, and all ensembles that share one of them
have one home.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from modelpool.errors import MalformedModel
from modelpool.repository.entry import Entry

RUNTIME = "ensemble"


def is_ensemble(config: Mapping[str, Any]) -> bool:
    """Whether a configuration describes one."""
    return config.get("platform") == RUNTIME or "ensemble_scheduling" in config


def steps_of(config: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The models that an ensemble consists of. Raises MalformedModel."""
    steps = config.get("ensemble_scheduling", {}).get("step", [])
    names = tuple(dict.fromkeys(step.get("model_name", "") for step in steps))
    if not names or not all(names) or name in names:
        raise MalformedModel("ensemble_scheduling must name the model of each step, and not the ensemble itself; correct config.pbtxt")
    return names


def housed(entries: Mapping[str, Entry], homes: Sequence[str]) -> dict[str, Entry]:
    """The entries, those of ensembles and their steps with the instance that they belong to. homes: the Triton servers to choose from.

    Where a user named a device for one of them, that is the home of all.
    """
    group_of: dict[str, set[str]] = {}
    for entry in entries.values():
        if entry.runtime == RUNTIME and entry.spec is not None:
            group = {entry.name, *entry.spec.residency.requires}
            for member in list(group):
                group |= group_of.get(member, set())
            group_of.update(dict.fromkeys(group, group))
    if not homes or not group_of:
        return dict(entries)
    found = dict(entries)
    for name, group in group_of.items():
        if name not in entries or (own := entries[name].spec) is None or own.residency.device is not None:
            continue
        specs = [other.spec for member in sorted(group) if (other := entries.get(member)) is not None and other.spec is not None]
        named = next((spec.residency.device for spec in specs if spec.residency.device is not None), None)
        home = named or homes[zlib.crc32(min(group).encode()) % len(homes)]
        residency = dataclasses.replace(own.residency, device=home)
        found[name] = dataclasses.replace(entries[name], spec=dataclasses.replace(own, residency=residency))
    return found
