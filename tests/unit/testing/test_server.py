"""What a test or the demo is told of a server that does not come up."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelpool.testing import server
from modelpool.testing.server import serving


def test_a_server_that_cannot_start_is_quoted(tmp_path: Path) -> None:
    told = "ended at its start with exit status 2; .*says:\nmodelpool: repository .*nowhere cannot be read: No such file"
    with pytest.raises(RuntimeError, match=told):
        serving([str(tmp_path / "nowhere")], tmp_path / "server").__enter__()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("kill -9 $$", "ended at its start with signal 9; its log, .*/server.log, is empty"),
        ("printf '\\377 oops'; exit 3", "with exit status 3; .*says:\n\ufffd oops"),
        ("echo loading; exec sleep 60", "was not ready within 1 s; .*says:\nloading"),
    ],
)
def test_how_it_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o700)
    monkeypatch.setattr(server.sys, "executable", str(python))
    monkeypatch.setattr(server, "START_LIMIT_S", 1.0)
    with pytest.raises(RuntimeError, match=told):
        serving([], tmp_path / "server").__enter__()
