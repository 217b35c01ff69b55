"""The documentation names all that there is, its examples run, and the tree holds nothing that this machine alone has."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import httpx
import pytest

from modelpool.cli.app import modelpool as program
from modelpool.core.copies import UNLOAD_REASONS
from modelpool.core.model import Residency
from modelpool.errors import BY_CODE, ModelpoolError
from modelpool.gateway import errors as gateway_errors
from modelpool.gateway.errors import MARQO_CODES, RETRIED, STATUS
from modelpool.repository.residency import _READERS as RESIDENCY_FIELDS
from modelpool.runtimes import pb_utils
from modelpool.settings import describe_settings
from modelpool.testing.server import serving

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md")),
    *sorted(DOCS.glob("*.md")),
]
DEFAULT_ADDRESS = "127.0.0.1:8000"
GATEWAY_CODES = {one.code: one for _, one in inspect.getmembers(gateway_errors, inspect.isclass) if issubclass(one, ModelpoolError)}
CODES = GATEWAY_CODES | BY_CODE


def page(name: str) -> str:
    return (DOCS / name).read_text()


# --- what is there is named ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["settings", "cli"])
def test_pages_that_are_made_are_up_to_date(name: str) -> None:
    spec = importlib.util.spec_from_file_location(f"make_{name}", DOCS / f"make_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert page(f"{name}.md") == getattr(module, f"{name}_page")(), f"run docs/make_{name}.py"


def test_each_command_and_option_is_documented() -> None:
    sections = dict(re.findall(r"^## modelpool (\w+)\n(.*?)(?=^## |\Z)", page("cli.md"), re.MULTILINE | re.DOTALL))
    assert sections.keys() == program.commands.keys()
    for name, command in program.commands.items():
        for option in (one for one in command.params if isinstance(one, click.Option)):
            assert all(spelt in sections[name] for spelt in option.opts), (name, option.opts)
            assert option.help, (name, option.opts)


def test_each_setting_is_documented_with_its_default() -> None:
    text = page("settings.md")
    for one in describe_settings():
        assert re.search(rf"^\| `{one.name}` \| {re.escape(one.default)} \| .*`{one.env}`", text, re.MULTILINE), one.name


@pytest.mark.parametrize("code", sorted(CODES))
def test_each_error_code_stands_with_status_meaning_and_retry(code: str) -> None:
    row = re.search(rf"^\| `{code}` \| (\d+) \| (.+) \| (.+) \|$", page("http-api.md"), re.MULTILINE)
    assert row is not None
    assert int(row[1]) == STATUS.get(code, 500)
    if CODES[code] is not ModelpoolError:
        assert row[2] == (inspect.getdoc(CODES[code]) or "").splitlines()[0]
    assert (row[3] == "yes") == (code in RETRIED)


def test_each_of_marqos_error_codes_is_documented() -> None:
    for ours, (status, code) in MARQO_CODES.items():
        assert f"| model API, `{ours}` | `{code}` | {status} |" in page("http-api.md")


def test_each_residency_field_is_documented() -> None:
    named = re.findall(
        r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", page("residency.md").partition("## modelpool.yaml")[2], re.MULTILINE))
    )
    assert {field for field, _ in RESIDENCY_FIELDS.values()} == {field.name for field in dataclasses.fields(Residency)}
    assert RESIDENCY_FIELDS.keys() <= set(named)


def test_each_kind_of_decision_is_documented() -> None:
    source = "".join(path.read_text() for path in sorted((ROOT / "src/modelpool/core").glob("*.py")))
    kinds = set(re.findall(r'\bnote\(\s*"([a-z ]+)"', source))
    assert kinds >= {"load", "evict", "quarantine"}
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in page("residency.md")] == []


def test_each_reason_of_an_unload_is_documented() -> None:
    assert [reason for reason in UNLOAD_REASONS if f"| `{reason}` |" not in page("operations.md")] == []


def test_each_part_of_the_python_backend_is_documented() -> None:
    text = page("python-models.md")
    names = [name for name in pb_utils.__all__ if name != "register" and not name.startswith("TRITONSERVER_")]
    methods = [
        name for kind in (pb_utils.Tensor, pb_utils.InferenceRequest, pb_utils.InferenceResponse) for name in vars(kind) if name[0] != "_"
    ]
    slots = {"array", "datatype", "of"}  # of our own making, not for models
    assert [name for name in (*names, *methods) if name not in slots and not re.search(rf"\b{name}\b", text)] == []


# --- examples run ----------------------------------------------------------------------------------------------------------------
class Block(NamedTuple):
    """A fenced block that is marked `<!-- runnable -->`; expected: the JSON block that follows it, if one does."""

    language: str
    code: str
    expected: str | None


_RUNNABLE = re.compile(r"<!-- runnable -->\n```(\w+)\n(.*?)```\n(?:\n```json\n(.*?)```)?", re.DOTALL)
_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


def blocks(text: str) -> list[Block]:
    return [Block(language, code, expected or None) for language, code, expected in _RUNNABLE.findall(text)]


def run(block: Block, folder: Path, address: str) -> str:
    """Run a block in a folder against a server; what it printed. Fails where it fails."""
    code = block.code.replace(DEFAULT_ADDRESS, address)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MODELPOOL_URL": f"http://{address}", "NO_PROXY": "127.0.0.1"}
    if block.language == "python":
        command = [sys.executable, "-"]
    else:
        if "curl" in code and shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        environment["PYTHON"] = sys.executable
        code = 'set -eu\nmodelpool() { "$PYTHON" -m modelpool "$@"; }\ncurl() { command curl --silent --show-error "$@"; }\n' + code
        command = ["bash", "-s"]
    done = subprocess.run(command, input=code, cwd=folder, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, f"{block.code}\n{done.stdout}{done.stderr}"
    return done.stdout


def check(block: Block, printed: str) -> None:
    """Compare what a block printed with what the page says: the JSON after it, or the comments on its `print` lines."""
    if block.expected is not None:
        assert_like(json.loads(block.expected), json.loads(printed), block.code)
    if block.language == "python" and (said := re.findall(r"print\(.*\)  # (.+)", block.code)):
        assert list(dict.fromkeys(printed.splitlines())) == said


def assert_like(expected: Any, found: Any, where: str) -> None:
    """The same shape and the same texts; numbers may differ, and those in texts; what was not measured yet may be null."""
    if expected is None or found is None:
        assert expected is found or isinstance(expected if found is None else found, int | float), where
    elif isinstance(expected, dict):
        assert expected.keys() == found.keys(), where
        for key, value in expected.items():
            assert_like(value, found[key], f"{where}: {key}")
    elif isinstance(expected, list):
        assert len(expected) == len(found), f"{where}: {found}"
        for one, other in zip(expected, found, strict=True):
            assert_like(one, other, where)
    elif isinstance(expected, str):
        assert re.sub(r"[\d.]+", "0", expected) == re.sub(r"[\d.]+", "0", str(found)), where
    elif isinstance(expected, bool) or isinstance(found, bool):
        assert expected is found, where
    else:
        assert isinstance(found, int | float), where


@pytest.fixture
def guide(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A server with the models that the guide of the README makes; the folder of its examples, and its address."""
    folder = tmp_path / "guide"
    folder.mkdir()
    first = blocks(README.read_text())[0]
    assert "modelpool.testing.models" in first.code
    run(first, folder, DEFAULT_ADDRESS)
    yield from _served(folder, tmp_path)


def _served(folder: Path, state: Path) -> Iterator[tuple[Path, str]]:
    with serving([str(folder / "models"), "--device", "cpu=60MiB"], state / "server") as (url, _):
        yield folder, url.removeprefix("http://")


def test_the_guide_of_the_readme_runs(guide: tuple[Path, str]) -> None:
    found = blocks(README.read_text())[1:]
    assert len(found) >= 5
    for block in found:
        check(block, run(block, *guide))


def test_a_model_had_to_leave_in_the_guide(guide: tuple[Path, str]) -> None:
    """The text says that the seven models do not all fit, and that dense_0 was unloaded to make room."""
    asking = next(block for block in blocks(README.read_text()) if "client.infer" in block.code)
    run(asking, *guide)
    now = httpx.get(f"http://{guide[1]}/models/explain", params={"model_name": "dense_0"}, trust_env=False).json()["now"]
    assert any("unloaded to make room" in sentence for sentence in now), now


def test_the_examples_of_the_http_interface_run(guide: tuple[Path, str]) -> None:
    found = blocks(page("http-api.md"))
    assert len(found) >= 15
    for block in found:
        check(block, run(block, *guide))


def test_the_python_model_of_the_page_runs(tmp_path: Path) -> None:
    text = page("python-models.md")
    for name, content in _FILE.findall(text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    with serving([str(tmp_path / "models"), "--device", "cpu=200MiB"], tmp_path / "server") as (url, _):
        for block in blocks(text):
            check(block, run(block, tmp_path, url.removeprefix("http://")))


def test_each_metric_is_documented(guide: tuple[Path, str]) -> None:
    text = page("operations.md")
    metrics = httpx.get(f"http://{guide[1]}/metrics", trust_env=False).text
    helps = dict(re.findall(r"^# HELP (\w+) (.+)$", metrics, re.MULTILINE))
    rows = dict(re.findall(r"^\| `(modelpool_\w+)` \|.*\| (.+) \|$", text, re.MULTILINE))
    assert rows == helps


def test_the_closing_line_of_the_demo_is_one_that_it_prints() -> None:
    """The README quotes a run; its RESULT line has the fields of the present demo, in order, and agrees with the sentences above it."""
    line = re.search(r"^RESULT (.+)$", README.read_text(), re.MULTILINE)
    assert line is not None
    quoted = dict(item.split("=") for item in line[1].split())
    source = (ROOT / "examples" / "demo" / "report.py").read_text().partition("def result(")[2]
    assert list(quoted) == re.findall(r'^\s+"(\w+)": ', source, re.MULTILINE)
    assert f"at most {quoted['peak_mb']} MB of {quoted['budget_mb']} MB in use" in README.read_text()
    assert f"{quoted['hits']} found their model in memory" in README.read_text()
    assert f"plain LRU would have had {quoted['lru_hits']} hits" in README.read_text()


# --- links and the tree ----------------------------------------------------------------------------------------------------------
def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def local_links(source: Path) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", source.read_text()) if not link.startswith("http")]


@pytest.mark.parametrize("source", PAGES, ids=lambda source: source.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(source: Path) -> None:
    for target, _, anchor in (link.partition("#") for link in local_links(source)):
        found = (source.parent / target).resolve() if target else source
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found.read_text()), f"{target}#{anchor}"


def test_each_page_of_the_documentation_is_linked_from_the_readme() -> None:
    assert [path.name for path in DOCS.glob("*.md") if f"(docs/{path.name}" not in README.read_text()] == []


def test_the_source_distribution_holds_what_its_pages_lead_to(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        held = {name.partition("/")[2] for name in packed.getnames()}
    links = {(source.parent / link.partition("#")[0]).resolve() for source in PAGES for link in local_links(source)}
    needed = {path.relative_to(ROOT).as_posix() for path in [*PAGES, *links] if path.is_file()}
    assert {"docs/demo.svg", "docs/cli.md", "tests/README.md"} <= needed
    assert needed | {"Makefile", "constraints.txt", "tools/make-venv", "docs/make_cli.py"} <= held


def tracked() -> list[Path]:
    """The files of the repository, those not committed yet included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for name in listed if (path := ROOT / name).is_file()]


def test_the_tree_names_no_machine_and_no_package_registry() -> None:
    machine = r"(?<![\w.$}~/])/(?:" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + r"me/\w", "Us" + "ers", "opt/py" + "pi"]) + r")(?:/|\b)"
    hosts = [
        *("py" + "pi.org", "python" + "hosted.org", "hugging" + "face.co", "npm" + "js", "crates" + ".io", "ana" + "conda.org"),
        *("proxy.go" + "lang.org", "cdn" + "js", "index" + "-url"),
    ]
    forbidden = re.compile(machine + "|" + "|".join(map(re.escape, hosts)))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in tracked()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        for match in [forbidden.search(line)]
        if match is not None
    ]
    assert found == []
