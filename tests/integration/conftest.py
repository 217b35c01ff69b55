"""What several modules of integration tests share: a server of the whole zoo, one for each module that asks for it, and its clients."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tritonclient.http as triton

from tests.integration import zoo
from tests.integration.serving import RunningServer, serving


@pytest.fixture(scope="module")
def zoo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """All models of the zoo, with room for all of them; bodies up to 8 MiB."""
    folder = tmp_path_factory.mktemp("zoo")
    zoo.build(folder / "models")
    with serving(folder, "--device", "cpu=2GiB", "--set", "body_limit=8MiB", "--allow-root", str(folder)) as server:
        yield server


@pytest.fixture
def triton_client(zoo_server: RunningServer) -> Iterator[triton.InferenceServerClient]:
    """Triton's own client of that server."""
    address = zoo_server.about["url"].removeprefix("http://")
    client = triton.InferenceServerClient(address, concurrency=64, connection_timeout=30, network_timeout=30)
    yield client
    client.close()


@pytest.fixture
def disk_of(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Gives file systems of a size, like `1m`; skips where they cannot be mounted."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        if os.geteuid() != 0:
            pytest.skip("only root can mount the small file system that this needs")
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)
