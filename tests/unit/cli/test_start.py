from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = "numpy httpx rich pydantic uvicorn uvloop onnxruntime msgspec starlette yaml"


@pytest.mark.parametrize("code", ["import modelpool", "import modelpool.cli.app"])
def test_what_is_imported_at_once_is_light(code: str) -> None:
    check = f"{code}\nimport sys\nprint(*sorted(set('{HEAVY}'.split()) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("module", ["modelpool", "modelpool.cli"])
def test_python_m_works(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("modelpool ")
