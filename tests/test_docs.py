"""The documentation names all that there is, and nothing that this machine alone has."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from modelpool.cli.app import modelpool as program
from modelpool.core.model import Residency
from modelpool.errors import BY_CODE
from modelpool.gateway.errors import STATUS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md", *sorted(DOCS.glob("*.md"))]


def test_the_page_of_settings_is_what_the_settings_say() -> None:
    spec = importlib.util.spec_from_file_location("make_settings", DOCS / "make_settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "settings.md").read_text() == module.settings_page(), "run docs/make_settings.py"


def test_each_error_code_stands_with_its_status() -> None:
    text = (DOCS / "http-api.md").read_text()
    for code in BY_CODE:
        assert f"| `{code}` | {STATUS.get(code, 500)} |" in text, code


def test_each_command_is_named() -> None:
    text = (DOCS / "operations.md").read_text()
    for name in program.commands:
        assert f"`{name}`" in text or f"`modelpool {name}`" in text, name


def test_each_field_of_a_policy_is_named() -> None:
    text = (DOCS / "residency.md").read_text()
    for field in dataclasses.fields(Residency):
        assert f"`{field.name.removesuffix('_s').removesuffix('_bytes')}`" in text, field.name


def test_each_metric_is_named() -> None:
    source = (ROOT / "src" / "modelpool" / "gateway" / "metrics.py").read_text()
    text = (DOCS / "operations.md").read_text()
    for name in set(re.findall(r'"(modelpool_\w+)"', source)):
        assert name in text, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_no_path_of_a_machine_stands_in_the_tree() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    machine = re.compile(r"(^|[\"'= (])/(" + "|".join(("work", "root")) + r")/", re.MULTILINE)
    for name in tracked:
        path = ROOT / name
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".txt", ".yaml", ""}:
            assert not machine.search(path.read_text(errors="replace")), name
