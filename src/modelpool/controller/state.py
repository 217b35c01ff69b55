"""What outlives the server: learned sizes, pins, posted and forgotten models, the journal. SQLite, written off the loop in batches."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from modelpool.controller.views import Decision
from modelpool.core.model import Learned
from modelpool.errors import StateError

SCHEMA_VERSION = 1
BATCH_S = 0.5
RETRY_S = 5.0
"""Time between two tries to write what could not be written."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS learned (
  model TEXT, revision TEXT, runtime TEXT, device_kind TEXT,
  private_bytes INTEGER, load_peak_bytes INTEGER, run_peak_bytes INTEGER, load_s REAL, run_s REAL, samples INTEGER,
  PRIMARY KEY (model, device_kind));
CREATE TABLE IF NOT EXISTS pins (model TEXT PRIMARY KEY, pinned INTEGER);
CREATE TABLE IF NOT EXISTS posted (model TEXT PRIMARY KEY, properties TEXT);
CREATE TABLE IF NOT EXISTS forgotten (model TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS journal (id INTEGER PRIMARY KEY, at REAL, kind TEXT, model TEXT, text TEXT, figures TEXT);
CREATE INDEX IF NOT EXISTS journal_model ON journal (model, id);
"""

log = logging.getLogger("modelpool.state")


class _Job(NamedTuple):
    """A write. key: what it is about, where a later one of the same statement makes it needless; None: a line of the journal."""

    statement: str
    values: tuple[Any, ...]
    key: tuple[str, ...] | None


class StateStore:
    """The state folder: one server at a time holds it.

    Reads happen at start; writes go to a thread of their own and never wait for the disk. A write that fails (a full disk) is logged and
    kept in `problem`, the server goes on with what it has in memory, and all but the journal is tried again until it is written.
    """

    def __init__(self, folder: Path, journal_entries: int) -> None:
        self.folder = folder
        self.problem: str | None = None
        self._journal_entries = journal_entries
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._unwritten: dict[tuple[str, tuple[str, ...]], _Job] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(f"the state folder {folder} cannot be used: {error.strerror}; name another with --state-dir") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StateError(f"another modelpool uses the state folder {folder}; stop it, or name another with --state-dir") from error
        try:
            self._db = self._open()
        except BaseException:
            os.close(self._lock)
            raise
        self._thread = threading.Thread(target=self._write_all, name="modelpool-state", daemon=True)
        self._thread.start()

    def _open(self) -> sqlite3.Connection:
        path = self.folder / "state.sqlite"
        try:
            db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                db.close()
                raise StateError(
                    f"the state folder {self.folder} was written by a newer modelpool (state version {version}, this knows "
                    f"{SCHEMA_VERSION}); use that version, or name another folder with --state-dir"
                )
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        except sqlite3.Error as error:
            hint = "free some space" if "full" in str(error) else "remove or repair it"
            raise StateError(f"the state file {path} cannot be used: {error}; {hint}, or name another folder with --state-dir") from error
        return db

    # --- reads (at start) ------------------------------------------------------------------------------------------------------
    def learned(self) -> dict[tuple[str, str], list[tuple[str, Learned]]]:
        """By model and revision: kind of device and what was learned there."""
        found: dict[tuple[str, str], list[tuple[str, Learned]]] = {}
        rows = self._db.execute(
            "SELECT model, revision, device_kind, private_bytes, load_peak_bytes, run_peak_bytes, load_s, run_s, samples FROM learned"
        )
        for model, revision, kind, *figures in rows:
            found.setdefault((model, revision), []).append((kind, Learned(*figures)))
        return found

    def pins(self) -> dict[str, bool]:
        """What users pinned or unpinned."""
        return {model: bool(pinned) for model, pinned in self._db.execute("SELECT model, pinned FROM pins")}

    def posted(self) -> dict[str, dict[str, Any]]:
        """Models registered over the API: name and properties."""
        return {model: json.loads(text) for model, text in self._db.execute("SELECT model, properties FROM posted")}

    def forgotten(self) -> set[str]:
        """Models deleted from the catalogue on purpose."""
        return {model for (model,) in self._db.execute("SELECT model FROM forgotten")}

    def decisions(self, limit: int) -> list[Decision]:
        """The latest decisions of earlier runs, oldest first."""
        rows = self._db.execute("SELECT at, kind, model, text, figures FROM journal ORDER BY id DESC LIMIT ?", (limit,)).fetchall()
        return [
            Decision(at=at, kind=kind, model=model, text=text, figures=json.loads(figures)) for at, kind, model, text, figures in rows[::-1]
        ]

    # --- writes ----------------------------------------------------------------------------------------------------------------
    def save_learned(self, model: str, revision: str, runtime: str, kind: str, learned: Learned) -> None:
        """Keep what was learned of one model on one kind of device."""
        self._put(
            "INSERT OR REPLACE INTO learned VALUES (?,?,?,?,?,?,?,?,?,?)",
            (
                *(model, revision, runtime, kind, learned.private_bytes, learned.load_peak_bytes),
                *(learned.run_peak_bytes, learned.load_s, learned.run_s, learned.samples),
            ),
            (model, kind),
        )

    def save_pin(self, model: str, pinned: bool) -> None:
        """Keep a user's pin."""
        self._put("INSERT OR REPLACE INTO pins VALUES (?,?)", (model, int(pinned)), (model,))

    def save_posted(self, model: str, properties: dict[str, Any]) -> None:
        """Keep a registered model; it is not forgotten any more."""
        self._put("INSERT OR REPLACE INTO posted VALUES (?,?)", (model, json.dumps(properties)), (model,))
        self.save_recalled(model)

    def save_recalled(self, model: str) -> None:
        """Keep that a deleted model is known again."""
        self._put("DELETE FROM forgotten WHERE model=?", (model,), (model,))

    def save_forgotten(self, model: str) -> None:
        """Keep that a model was deleted."""
        self._put("INSERT OR REPLACE INTO forgotten VALUES (?)", (model,), (model,))
        self._put("DELETE FROM posted WHERE model=?", (model,), (model,))
        self._put("DELETE FROM pins WHERE model=?", (model,), (model,))

    def save_decisions(self, decisions: Iterable[Decision]) -> None:
        """Append to the journal."""
        for one in decisions:
            self._put(
                "INSERT INTO journal (at, kind, model, text, figures) VALUES (?,?,?,?,?)",
                (one.at, one.kind, one.model, one.text, json.dumps(one.figures)),
                None,
            )

    def _put(self, statement: str, values: tuple[Any, ...], key: tuple[str, ...] | None) -> None:
        self._jobs.put(_Job(statement, values, key))

    def close(self) -> None:
        """Write what is left and give the folder back."""
        self._jobs.put(None)
        self._thread.join(10.0)
        self._db.close()
        os.close(self._lock)

    def _write_all(self) -> None:
        open_still = True
        while open_still:
            jobs: list[_Job | None] = []
            with contextlib.suppress(queue.Empty):
                jobs.append(self._jobs.get(timeout=RETRY_S if self._unwritten else None))
            while jobs and jobs[-1] is not None:
                try:
                    jobs.append(self._jobs.get(timeout=BATCH_S if len(jobs) == 1 else 0.0))
                except queue.Empty:
                    break
            open_still = not jobs or jobs[-1] is not None
            self._write([*self._unwritten.values(), *(job for job in jobs if job is not None)])

    def _write(self, jobs: list[_Job]) -> None:
        if not jobs:
            return
        try:
            self._db.execute("BEGIN")
            for job in jobs:
                self._db.execute(job.statement, job.values)
            if any(job.key is None for job in jobs):
                self._db.execute("DELETE FROM journal WHERE id <= (SELECT MAX(id) FROM journal) - ?", (self._journal_entries,))
            self._db.execute("COMMIT")
            if self.problem is not None:
                log.info("the state is written again")
            self.problem = None
            self._unwritten.clear()
        except sqlite3.Error as error:
            if self.problem is None:
                log.error("state not written: %s (%d changes kept in memory only; free some space in %s)", error, len(jobs), self.folder)
            self.problem = f"state not written since {time.strftime('%H:%M:%S')}: {error}"
            self._keep(jobs)
        except Exception:  # what cannot be written at all must not keep the rest from it
            log.exception("%d changes of the state could not be written", len(jobs))
            self._unwritten.clear()
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _keep(self, jobs: list[_Job]) -> None:
        """For the next try: the latest of each change to each model, in order. The journal's lines are given up, as they have no end."""
        self._unwritten.clear()
        for job in jobs:
            if job.key is not None:
                self._unwritten.pop((job.statement, job.key), None)
                self._unwritten[job.statement, job.key] = job
