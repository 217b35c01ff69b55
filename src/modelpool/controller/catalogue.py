"""The models that can be asked for: found in repositories, posted by clients, less those that were deleted on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modelpool.controller.state import StateStore
from modelpool.core.events import Event, ModelAdded, ModelRemoved
from modelpool.core.model import Learned
from modelpool.errors import ForgottenModel, MalformedModel, ModelpoolError, UnknownModel, UnknownVersion
from modelpool.repository.catalogue import Repository, diff
from modelpool.repository.ensembles import housed
from modelpool.repository.entry import Entry


class Catalogue:
    """Entries by name. Each change gives the events that the core is to be told. homes: the Triton servers that ensembles live on."""

    def __init__(self, repository: Repository, state: StateStore, homes: Sequence[str] = ()) -> None:
        self._homes = homes
        self.repository = repository
        self.entries: dict[str, Entry] = {}
        self.forgotten = state.forgotten()
        self._state = state
        self._learned = state.learned()
        self._found: dict[str, Entry] = {}
        self._posted: dict[str, Entry] = {}
        for name, properties in state.posted().items():
            self._posted[name] = self._read_posted(name, properties)

    def _read_posted(self, name: str, properties: dict[str, Any]) -> Entry:
        try:
            return self.repository.entry_from_properties(name, properties)
        except ModelpoolError as error:
            return Entry(name=name, source="posted", properties=properties, problem=error.message)

    def take_scan(self, found: dict[str, Entry], posted: dict[str, Entry] | None = None) -> list[Event]:
        """A scan of the repositories ended, and the files of posted models were read again; what was posted meanwhile stays."""
        self._found = found
        for name, entry in (posted or {}).items():
            if name in self._posted and self._posted[name].properties == entry.properties:
                self._posted[name] = entry
        return self._merge()

    def read_posted(self) -> dict[str, Entry]:
        """The posted models, their files read again (blocking)."""
        return {name: self._read_posted(name, entry.properties) for name, entry in list(self._posted.items())}

    def read_post(self, name: str, properties: dict[str, Any]) -> Entry:
        """The entry that properties describe (blocking); raises where they describe none that can be served."""
        return self.repository.entry_from_properties(name, properties)

    def post(self, name: str, entry: Entry, properties: dict[str, Any]) -> list[Event]:
        """Register a model."""
        self._posted[name] = entry
        self.forgotten.discard(name)
        self._state.save_posted(name, properties)
        return self._merge()

    def recall(self, name: str) -> list[Event]:
        """A deleted model that a repository still holds is known again; raises where none does, or where it cannot be served."""
        if name not in self.forgotten:
            return []
        if (found := self._found.get(name)) is None:
            raise ForgottenModel(f"model '{name}' was deleted and is in no repository; post it again with its properties")
        _raise_problem(found)
        self.forgotten.discard(name)
        self._state.save_recalled(name)
        return self._merge()

    def forget(self, name: str) -> list[Event]:
        """Delete a model from the catalogue until it is posted again; raises UnknownModel or ForgottenModel."""
        if name not in self.entries:
            self.entry(name)
        self._posted.pop(name, None)
        self.forgotten.add(name)
        self._state.save_forgotten(name)
        return self._merge()

    def _merge(self) -> list[Event]:
        """Posted models win over found ones of the same name."""
        known = {name: entry for name, entry in {**self._found, **self._posted}.items() if name not in self.forgotten}
        merged = housed(known, self._homes)
        changed, removed = diff(self.entries, merged)
        self.entries = merged
        events: list[Event] = [ModelRemoved(name, name in self.forgotten) for name in removed]
        events += [ModelAdded(entry.spec, self._known(entry)) for entry in changed if entry.spec is not None]
        return events

    def keep_learned(self, name: str, revision: str, kind: str, learned: Learned) -> None:
        """Remember what was learned, for when the model comes back."""
        known = dict(self._learned.get((name, revision), ()))
        known[kind] = learned
        self._learned[name, revision] = list(known.items())

    def _known(self, entry: Entry) -> tuple[tuple[str, Learned], ...]:
        return tuple(self._learned.get((entry.name, entry.revision), ()))

    def entry(self, name: str) -> Entry:
        """The entry of that name, malformed or not; raises UnknownModel or ForgottenModel."""
        if (entry := self.entries.get(name)) is not None:
            return entry
        if name in self.forgotten:
            raise ForgottenModel(f"model '{name}' was deleted from the catalogue; post it again to use it")
        raise UnknownModel(f"Request for unknown model: '{name}' is not found")

    def entries_get(self, name: str) -> Entry | None:
        """The entry of that name, malformed or not; None where there is none."""
        return self.entries.get(name)

    def check(self, name: str, version: int = 0) -> Entry:
        """The entry, if it can be served in that version (0: the default)."""
        entry = self.entry(name)
        _raise_problem(entry)
        if version and all(version != one.version for one in entry.versions):
            have = ", ".join(str(one.version) for one in entry.versions)
            raise UnknownVersion(f"Request for unknown model: '{name}' version {version} is not found; it serves {have}")
        return entry


def _raise_problem(entry: Entry) -> None:
    if entry.problem is not None:
        raise MalformedModel(f"model '{entry.name}' cannot be served: {entry.problem}")
