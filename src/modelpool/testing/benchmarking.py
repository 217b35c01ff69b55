"""What all benchmarks share: which machine this is, a server to measure, and the closing line."""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

from modelpool.testing.server import serving

_PACKAGES = ("modelpool", "onnxruntime", "numpy", "uvloop", "httptools", "uvicorn", "msgspec")


def print_machine() -> None:
    """Print the machine and the versions that a figure was measured with."""
    cores = len(os.sched_getaffinity(0))
    print(f"{_processor()}, {cores} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.system()} {platform.release()}")
    print(f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in _PACKAGES))


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def print_result(**figures: float) -> None:
    """Print the line that programs read, the last one."""
    print("RESULT " + " ".join(f"{name}={figure:.3f}" for name, figure in figures.items()), flush=True)


@contextlib.contextmanager
def server(build: Callable[[Path], object], arguments: Sequence[str] = ()) -> Iterator[tuple[str, psutil.Process]]:
    """A server of its own with a repository that `build` fills, in a temporary folder; gives its address and process."""
    with tempfile.TemporaryDirectory(prefix="modelpool-benchmark-") as name:
        folder = Path(name)
        repository = folder / "repository"
        repository.mkdir()
        build(repository)
        with serving([str(repository), *arguments], folder) as started:
            yield started
