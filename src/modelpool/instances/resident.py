"""A copy as an embedded instance holds it: its processes, its figures, its route."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from modelpool.core.model import Learned
from modelpool.instances.link import Route, SpreadRoute
from modelpool.instances.peer import Peer
from modelpool.protocol.messages import HeldCopy, Loaded, LoadSpec


@dataclass(slots=True)
class Resident:
    """loaded: what each of its processes said of the load; leaving: its processes are being stopped."""

    spec: LoadSpec
    peers: tuple[Peer, ...]
    isolated: bool
    loaded: tuple[Loaded | HeldCopy, ...]
    route: Route | SpreadRoute
    run_peak_bytes: int = 0
    leaving: bool = False

    @property
    def learned(self) -> Learned:
        """Its figures; those of several processes add up."""
        return Learned(
            private_bytes=sum(loaded.private_bytes for loaded in self.loaded),
            load_peak_bytes=sum(loaded.load_peak_bytes for loaded in self.loaded),
            run_peak_bytes=self.run_peak_bytes,
            load_s=max(loaded.load_s for loaded in self.loaded),
        )


def process_count(spec: LoadSpec) -> int:
    """How many processes an isolated copy gets: a Python model one for each of its `instance_group` members, others one."""
    if spec.runtime != "python":
        return 1
    groups = spec.config.get("instance_group") or ()
    return max(1, sum(int(group.get("count") or 1) for group in groups))


def per_process_spec(spec: LoadSpec) -> LoadSpec:
    """The load of one of several processes: each has one member."""
    if process_count(spec) == 1:
        return spec
    group = {**spec.config["instance_group"][0], "count": 1}
    return msgspec.structs.replace(spec, config={**spec.config, "instance_group": [group]})
