"""Workers that outlived their server: finding them, greeting them, and sorting out which copies they hold."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from modelpool.errors import SetupError
from modelpool.instances.link import Route, SpreadRoute
from modelpool.instances.peer import Peer, stop_all
from modelpool.instances.resident import Resident
from modelpool.protocol.frames import WIRE_VERSION
from modelpool.protocol.messages import HeldCopy, Welcome
from modelpool.protocol.record import WorkerRecord, names_of_files, read_records, remove_files, start_ticks

log = logging.getLogger(__name__)

_MEMBER = re.compile(r"(?P<instance>.+)\+(?P<token>[0-9a-f]+)\.(?P<n>\d+)of(?P<count>\d+)")


def member_name(instance: str, token: str, n: int, count: int) -> str:
    """The name of the n-th process of an isolated copy; it tells a later server how many there should be."""
    return f"{instance}+{token}.{n + 1}of{count}"


@dataclass(slots=True)
class Adopted:
    """What was found: all peers, the shared one among them, and the copies that are whole."""

    peers: list[Peer] = field(default_factory=list)
    shared: Peer | None = None
    copies: dict[int, Resident] = field(default_factory=dict)

    def living_copies(self) -> dict[int, Resident]:
        """Those whose processes have not ended since."""
        return {copy: found for copy, found in self.copies.items() if all(peer.death is None for peer in found.peers)}


async def adopt_workers(run_dir: Path, instance: str, make_peer: Callable[[str], Peer]) -> Adopted:
    """Greet the living workers of an instance; stop those that are of no use; remove what dead ones left."""
    greeted = await asyncio.gather(
        *(_greet(run_dir, record, make_peer) for record in read_records(run_dir) if _is_of(record.name, instance))
    )
    adopted = Adopted()
    useless: list[Peer] = []
    members: dict[str, list[tuple[Peer, Welcome]]] = {}
    for found in greeted:
        if found is None:
            continue
        peer, welcome = found
        if welcome.wire_version != WIRE_VERSION:
            useless.append(peer)
        elif peer.shared:
            adopted.shared = peer
            adopted.peers.append(peer)
            for held in welcome.copies:
                adopted.copies[held.spec.copy] = _resident([(peer, held)], isolated=False)
        else:
            members.setdefault(peer.name.rpartition(".")[0], []).append(found)
    for group in members.values():
        whole = _whole_copy(group)
        if whole is None:
            for peer, welcome in group:
                if not welcome.copies:
                    peer.kill("its server died before it had loaded anything", from_outside=True)
            useless += [peer for peer, _ in group]
        else:
            adopted.copies[whole.spec.copy] = whole
            adopted.peers += whole.peers
    await stop_all(useless)
    for name in names_of_files(run_dir) - {peer.name for peer in adopted.peers}:
        if _is_of(name, instance):
            remove_files(run_dir, name)
    return adopted


def _is_of(name: str, instance: str) -> bool:
    return name == instance or name.startswith(f"{instance}+")


async def _greet(run_dir: Path, record: WorkerRecord, make_peer: Callable[[str], Peer]) -> tuple[Peer, Welcome] | None:
    if start_ticks(record.pid) != record.start_ticks:
        return None
    peer = make_peer(record.name)
    try:
        return peer, await peer.adopt(record)
    except SetupError as error:
        log.warning("not adopted: %s", error.message)
        return None


def _whole_copy(group: list[tuple[Peer, Welcome]]) -> Resident | None:
    """The copy that the processes hold together; None where one of them is missing or holds nothing."""
    match = _MEMBER.fullmatch(group[0][0].name)
    if match is None or int(match["count"]) != len(group) or not all(len(welcome.copies) == 1 for _, welcome in group):
        return None
    return _resident([(peer, welcome.copies[0]) for peer, welcome in group], isolated=True)


def _resident(parts: list[tuple[Peer, HeldCopy]], *, isolated: bool) -> Resident:
    spec = parts[0][1].spec
    links = [peer.link for peer, _ in parts]
    return Resident(
        spec=spec,
        peers=tuple(peer for peer, _ in parts),
        isolated=isolated,
        loaded=tuple(held for _, held in parts),
        route=Route(links[0], spec.copy) if len(links) == 1 else SpreadRoute(links, spec.copy),
        run_peak_bytes=max(held.run_peak_bytes for _, held in parts),
    )
