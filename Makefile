# One task runner. `make` alone lists the targets; each sets up the virtual environment it needs.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast lint types layers format docs bench lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Inferometer needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

setup: $(READY)  ## the virtual environment, from the hash-pinned lock

demo: $(READY)  ## the main job on an embedded study; at a real engine too where one is installed
	@$(BIN)/python scripts/demo.py

test: lint types layers docs  ## linters, types, layers, the site, then every test, real engines too
	@$(BIN)/python -m pytest -rs

test-fast: lint types layers docs  ## the same without the real engines
	@$(BIN)/python -m pytest -m 'not engine'

lint: $(READY)  ## ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)  ## mypy --strict on src
	@$(BIN)/mypy

layers: $(READY)  ## import-linter: who may import whom
	@$(BIN)/lint-imports --no-logo

format: $(READY)  ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(READY)  ## the documentation, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)  ## every script in benchmarks/, one after another
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

lock: $(READY)  ## rewrite requirements.lock from the ranges of pyproject.toml
	$(BIN)/python -m pip install --quiet 'uv>=0.9,<1'
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev --generate-hashes --no-annotate \
		--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' pyproject.toml -o requirements.lock

clean:  ## remove what was built; the virtual environments too
	rm -rf $(VENV) .engines site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
