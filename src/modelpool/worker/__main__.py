"""`python -m modelpool.worker`: the embedded worker process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
from pathlib import Path

import uvloop

from modelpool.errors import Unsupported
from modelpool.runtimes.base import open_runtime
from modelpool.worker.memory import settled_bytes
from modelpool.worker.server import Worker, WorkerSettings


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m modelpool.worker", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="folder for socket, record and running table")
    parser.add_argument("--name", required=True, help="the worker's name; names its files")
    parser.add_argument("--server", type=int, default=0, metavar="PID", help="end at once where this is not the process that started it")
    parser.add_argument("--orphan-grace", type=float, default=60.0, help="seconds to live without a server")
    parser.add_argument("--verify-timeout", type=float, default=1.0, help="seconds an unload waits for its memory to come back")
    parser.add_argument("--isolated", action="store_true", help="the process is for one copy and charged as a whole")
    parser.add_argument("--preload", action="append", default=[], metavar="RUNTIME", help="import what this runtime needs at once")
    parser.add_argument("--log", type=Path, help="append standard output and error to this file")
    return parser.parse_args()


def _log_to(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


GC_THRESHOLDS = (10_000, 20, 50)
"""How seldom Python looks for cycles of garbage in a worker that holds many models; loads and unloads look for themselves."""


def main() -> int:
    """Run a worker; returns when it has ended."""
    arguments = _arguments()
    if arguments.log is not None:
        _log_to(arguments.log)
    with contextlib.suppress(PermissionError):  # already the leader of a group: the spawner gave us a session
        os.setsid()
    with contextlib.suppress(AttributeError, OSError):
        # Where cores are few, a worker that wakes must not interrupt the server that is still reading requests for it.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {arguments.name} %(levelname)s %(name)s %(message)s")
    for name in arguments.preload:
        try:
            open_runtime(name)
        except Unsupported as error:
            logging.getLogger(__name__).warning("%s", error.message)
    if arguments.server and os.getppid() != arguments.server:
        # Its server died before it listened: it holds nothing, and the next server starts one of the same name.
        logging.getLogger(__name__).warning("the server that started this worker is gone; it ends")
        return 0
    # What is imported by now stays for good: collections after loads and unloads need not look at it.
    settled_bytes()
    gc.freeze()
    if not arguments.isolated:
        # Requests leave no cycles behind. What a Python model leaves, Python looks for as often as its author could expect.
        gc.set_threshold(*GC_THRESHOLDS)
    settings = WorkerSettings(
        run_dir=arguments.run_dir,
        name=arguments.name,
        orphan_grace_s=arguments.orphan_grace,
        isolated=arguments.isolated,
        verify_timeout_s=arguments.verify_timeout,
    )
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

    async def serve() -> None:
        await Worker(settings, asyncio.get_running_loop()).run()

    asyncio.run(serve())
    logging.shutdown()
    sys.stdout.flush()
    if os.getpgrp() == os.getpid():
        # What models started is in our group, and goes with us; an adopted worker has no parent that would see to it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
    # Threads that a model left behind, or a run that never ends, must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
