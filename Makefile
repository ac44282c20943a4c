# Two commands do everything on a bare machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOGETHER := -n logical --maxprocesses 4 --dist worksteal

SIZE ?= 1
ONLY ?= test
MINUTES ?= 60

.PHONY: help demo test test-slow torture soak check lint types architecture bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.installed  ## store a dozen memories, find them again, show where the file lies
	@sh tools/demo.sh $(BIN)/memory

test: $(VENV)/.dev  ## run the tests, several at once (a few minutes on two idle cores)
	$(BIN)/pytest $(TOGETHER)

test-slow: $(VENV)/.dev  ## run the tests that take minutes
	$(BIN)/pytest -m slow

torture: $(VENV)/.dev  ## try to lose a memory (an hour on two idle cores; SIZE=0.1 a tenth, ONLY=kill some)
	TORTURE=$(SIZE) $(BIN)/pytest -m torture -k "$(ONLY)"

soak: $(VENV)/.dev  ## mixed work with a kill every minute, watched for leaks (MINUTES=60)
	TORTURE=1 SOAK_MINUTES=$(MINUTES) $(BIN)/pytest -m soak

check: lint types  ## all that CI runs: linter, types, and the tests, thorough ones too
	$(BIN)/pytest $(TOGETHER) -m "not slow and not soak"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

architecture: $(VENV)/.dev
	$(BIN)/pytest tests/test_architecture.py

bench: $(VENV)/.installed  ## measure speed, ratios in one run (bench/README.md)
	$(BIN)/python -m bench

clean:  ## remove everything that was built
	rm -rf $(VENV) .demo .torture .mypy_cache .pytest_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Memories needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml requirements.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check -c requirements.lock -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -c requirements.lock -e '.[dev]'
	@touch $@
