"""What a worker leaves in the run directory, so that a server finds it, and what /proc says of a process.

For a worker named W: W.json (its `WorkerRecord`), W.sock (its socket), W.running (the calls it is running, see `running`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

_KINDS = (".json", ".tmp", ".sock", ".running")


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a worker process. start_ticks: its start as in /proc/PID/stat, which tells it from a later process of the same pid."""

    name: str
    pid: int
    start_ticks: int
    generation: int
    wire_version: int


def record_path(run_dir: Path, name: str) -> Path:
    """Where the worker's record is."""
    return run_dir / f"{name}.json"


def socket_path(run_dir: Path, name: str) -> Path:
    """Where the worker listens."""
    return run_dir / f"{name}.sock"


def running_path(run_dir: Path, name: str) -> Path:
    """Where the worker's table of running calls is."""
    return run_dir / f"{name}.running"


def write_record(run_dir: Path, record: WorkerRecord) -> None:
    """Write the record whole or not at all."""
    path = record_path(run_dir, record.name)
    draft = path.with_suffix(".tmp")
    draft.write_bytes(msgspec.json.encode(record))
    draft.replace(path)


def read_records(run_dir: Path) -> list[WorkerRecord]:
    """The records in a run directory, by name; unreadable ones are left out."""
    found = []
    for path in sorted(run_dir.glob("*.json")):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=WorkerRecord)
        except (OSError, msgspec.DecodeError):
            continue
        if record.name == path.stem:
            found.append(record)
    return found


def remove_files(run_dir: Path, name: str) -> None:
    """Remove all that a worker left."""
    for kind in _KINDS:
        # A folder that has taken the place of one of them is none of ours; the next worker says that it is in its way.
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            (run_dir / f"{name}{kind}").unlink()


def names_of_files(run_dir: Path) -> set[str]:
    """Names of workers of which there is any file, readable or not."""
    return {path.name.removesuffix(path.suffix) for path in run_dir.iterdir() if path.suffix in _KINDS}


def listener(sock: socket.socket) -> int:
    """Process id of who listens at the other end of a connected Unix socket (0: of another container)."""
    pid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]
    return pid


def _at_directory(path: Path, use: Callable[[str], object]) -> None:
    # A Unix socket's address holds 108 bytes and run directories can be longer, so the directory is reached by a descriptor.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


def listen(path: Path) -> socket.socket:
    """A non-blocking Unix socket that listens at `path`, which may be of any length; only this user may connect."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        _at_directory(path, sock.bind)
        path.chmod(0o600)
        sock.listen(8)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def connect(path: Path) -> socket.socket:
    """A non-blocking Unix socket connected to `path`; raises OSError where nobody listens there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        _at_directory(path, sock.connect)
    except BaseException:
        sock.close()
        raise
    return sock


# --- /proc -----------------------------------------------------------------------------------------------------------------------
def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since the machine did; None where it is gone."""
    with contextlib.suppress(ValueError, IndexError):
        fields = _stat(pid)
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    return None


def is_stopped(pid: int) -> bool:
    """Whether a signal stopped the process (SIGSTOP and the like; a debugger is something else)."""
    return _stat(pid)[:1] == [b"T"]


def _stat(pid: int) -> list[bytes]:
    """/proc/PID/stat from the state on; empty where the process is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return []


def anonymous_bytes(pid: int) -> int | None:
    """The process's private memory: anonymous pages, resident or swapped; None where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    return status_bytes(status, b"RssAnon:") + status_bytes(status, b"VmSwap:")


def status_bytes(status: bytes, field: bytes) -> int:
    """A size from the text of /proc/PID/status (0 where the field is missing, as in a process that is ending)."""
    at = status.find(b"\n" + field)
    if at < 0:
        return 0
    start = at + 1 + len(field)
    return int(status[start : status.index(b"kB", start)]) * 1024
