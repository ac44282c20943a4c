# On a new machine, two commands are enough: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOGETHER := -n logical --maxprocesses 4 --dist worksteal
unexport PYTHONDONTWRITEBYTECODE # thousands of commands are started, and must not be compiled each time

INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check
COMPILE := $(BIN)/python -m uv pip compile -q --universal --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --no-emit-package memoriae --no-emit-package memoriae-e5 --python-version 3.11 \
	pyproject.toml tools/build.txt

# Seconds after which a test fails. If it does not end even then, the whole run ends.
BOUND = --longest $(1) -o faulthandler_timeout=$$(($(1) + 300))

SIZE ?= 1
ONLY ?= test
MINUTES ?= 60

.PHONY: help demo dev test test-stores test-integrations test-warm test-slow torture soak check lint types architecture bench bench-operations bench-operations-peers lock plugins docs pictures sbom clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

demo: $(VENV)/.installed  ## store a dozen memories, search for them, show where the file is
	@sh tools/demo.sh $(BIN)/memory

dev: $(VENV)/.dev  ## install the packages for the tests

test: $(VENV)/.dev  ## prove the core and the promises of the README (under three minutes on two cores)
	$(BIN)/pytest $(TOGETHER)

test-stores: $(VENV)/.dev  ## prove the other stores: files, PostgreSQL, Chroma, Qdrant, HTTP (five minutes)
	$(BIN)/pytest $(TOGETHER) --tier stores

test-integrations: $(VENV)/.dev  ## prove that SDKs, agents, a browser and chroma-mcp work (two minutes)
	$(BIN)/pytest $(TOGETHER) --tier integrations

test-warm: $(VENV)/.dev  ## run the tests of the command with a server that answers
	$(BIN)/pytest $(TOGETHER) --warm tests/cli

test-slow: $(VENV)/.dev  ## run the tests that take minutes
	$(BIN)/pytest $(call BOUND,3600) --tier all -m slow

torture: $(VENV)/.dev  ## try to lose a memory (an hour on two idle cores; SIZE=0.1 a tenth, ONLY=kill some)
	TORTURE=$(SIZE) $(BIN)/pytest $(call BOUND,7200) --tier all -m torture -k "$(ONLY)"

soak: $(VENV)/.dev  ## mixed work with a kill every minute, watched for leaks (MINUTES=60)
	TORTURE=1 SOAK_MINUTES=$(MINUTES) $(BIN)/pytest $(call BOUND,$$(($(MINUTES) * 60 + 1800))) -m soak

check: lint types  ## linter, types, and all tests except slow ones and full-size campaigns (about twenty minutes)
	$(BIN)/pytest $(TOGETHER) $(call BOUND,1800) --tier all -m "not slow and not soak"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

architecture: $(VENV)/.dev
	$(BIN)/pytest tests/test_architecture.py

bench: $(VENV)/.installed  ## measure speed, as ratios within one run (bench/README.md)
	$(BIN)/python -m bench

bench-operations: $(VENV)/.dev  ## measure Memories and plain baselines in operation; a few minutes (bench/RESULTS.md)
	$(BIN)/python -m bench.operations

bench-operations-peers: $(VENV)/.dev  ## the same with other memories, each installed in .bench; an hour
	$(BIN)/python -m bench.operations --peers

lock: $(VENV)/.dev  ## pin the newest versions of all packages, with the hashes of their files
	$(INSTALL) uv
	$(COMPILE) --upgrade --all-extras --output-file requirements.lock
	$(COMPILE) --constraints requirements.lock --output-file requirements-core.lock
	$(COMPILE) --constraints requirements.lock --extra fast --extra postgres --output-file requirements-server.lock
	$(MAKE) sbom

plugins:  ## update version, address and shared texts in plugins and manifests
	$(PYTHON) tools/plugins.py

docs: $(VENV)/.installed  ## generate parts of the docs from the program, and build the site in site/
	$(BIN)/python tools/tables.py
	$(INSTALL) zensical==0.0.73
	$(BIN)/python tools/docs_site.py

pictures: $(VENV)/.installed  ## draw the README's pictures from real runs
	$(BIN)/python tools/story.py docs/story.svg
	sh tools/pictures.sh $(BIN)/python

sbom: $(VENV)/.dev  ## list the program's components (CycloneDX)
	$(BIN)/python tools/sbom.py sbom.cdx.json

clean:  ## remove everything that was built
	rm -rf $(VENV) .demo site .torture .mypy_cache .pytest_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Memories needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml requirements-core.lock
	$(INSTALL) --require-hashes -r requirements-core.lock
	$(INSTALL) --no-deps --no-build-isolation -e .
	$(BIN)/python -m memories.embedders.minilm
	@touch $@

$(VENV)/.dev: $(VENV)/.installed requirements.lock
	$(INSTALL) --require-hashes -r requirements.lock
	$(INSTALL) --no-deps --no-build-isolation -e packages/memoriae-e5
	@touch $@
