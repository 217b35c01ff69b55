# Everything runs in .venv, which the first target that needs it builds.
SHELL := bash
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: help venv triton demo test test-heavy check format clean

help:
	@echo "make venv | triton | demo | test | test-heavy | check | format | clean"

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, {sys.executable} is {sys.version.split()[0]}")'
	@bash tools/make-venv "$(PYTHON)" .venv
	$(PIP) install -c constraints.txt hatchling editables
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

# A real Triton server for tests and benchmarks; where this machine cannot run it, tests that need it are skipped and say why.
triton: venv
	@bash tools/make-triton $(BIN)/python .triton

demo: venv
	$(BIN)/python -m examples.demo

# Coverage is measured of the core alone (pyproject.toml) and must be complete, branches included.
test: venv triton
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest tests -m "not heavy"
	$(BIN)/coverage report

test-heavy: venv triton
	$(BIN)/pytest tests -m heavy

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .triton .demo .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
