"""The demo and the benchmarks, run as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> dict[str, float]:
    """The figures of the program's last line; fails where there is none. Figures that depend on the machine's pace are not judged here."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    assert last.startswith("RESULT "), done.stdout[-3000:] + done.stderr[-3000:]
    _, *figures = last.split()
    return {name: float(value) for name, value in (figure.split("=") for figure in figures)}


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_demo_serves_more_than_fits() -> None:
    figures = run("-m", "examples.demo")
    assert figures["errors"] == figures["wrong_answers"] == 0
    assert figures["hits"] >= 0.95 * figures["lru_hits"]
    assert figures["peak_mb"] <= 1.1 * figures["budget_mb"]
    assert figures["evictions"] > 0


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_memory_comes_back_after_loads_and_unloads() -> None:
    assert run("benchmarks/churn.py")["growth_over_allowed_mb"] == 0


@pytest.mark.heavy
@pytest.mark.timeout(200)
def test_the_core_plans_for_ten_thousand_models() -> None:
    figures = run("benchmarks/core.py", "--plans", "200")
    assert figures["plan_ms"] > 0
    assert figures["hot_us"] > 0


@pytest.mark.heavy
@pytest.mark.timeout(200)
def test_the_data_path_answers_rightly_under_load() -> None:
    assert run("benchmarks/data_path.py", "--rounds", "2")["embedded_vs_echo_c32"] > 0
