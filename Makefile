# make test: everything that is checked. make demo: a training run across four worker processes.
# Each makes its own environment in .venv; needed beforehand: Python 3.11 or later with pip, make.
#
#   PYTHON=python3.12                                       the interpreter to use
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu        torch without CUDA (PyPI's Linux wheels bring several GB of it)

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
TORCH_INDEX ?=
TORCH_VERSION := 2.13.0
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help test lint format demo bench env clean distclean

help:
	@echo "make test       lint, types, layers and tests"
	@echo "make demo       train a small language model on four worker processes, one of which dies (3 minutes)"
	@echo "make bench NAME=overhead   run one benchmark (NAME=list names them)"
	@echo "make lint       ruff, mypy and the import linter only"
	@echo "make format     rewrite the sources in the project's format"
	@echo "make clean      remove caches; make distclean also removes .venv"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later found; install one or say make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install pip; }

# torch goes first and alone, so that its index serves nothing else.
$(VENV)/.torch: | $(BIN)/python
	$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$(TORCH_VERSION)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) install -q -c constraints.txt -e '.[hf]'
	@touch $@

env: $(VENV)/.dev

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --hypothesis-profile=gate

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: env
	$(BIN)/python -m benchmarks $(NAME)

demo: $(VENV)/.demo
	$(BIN)/farflung demo

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
