# make test: everything that is checked. make demo: a training run across four worker processes. make install: farflung alone.
# Each creates its own environment in .venv. You need Python 3.11 or later with pip, and make.
#
#   PYTHON=python3.12       the interpreter to use
#   VENV=/path/to/venv      the environment to create or to use
#   TORCH_INDEX=https://... the index that serves PyTorch. Without it, a machine without an NVIDIA GPU takes the CPU build if
#                           its index answers. TORCH_INDEX= (empty) takes the default build, which brings CUDA (about 5 GB).

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
NVIDIA := $(wildcard /dev/nvidia*) $(shell command -v nvidia-smi 2>/dev/null)
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 3
TESTS ?= tests/frontends tests/engines tests/api
OTHER_TORCH ?= 2.15.0

.DEFAULT_GOAL := help
.PHONY: help test suite lint format demo docs bench env install smoke check-python check-torch engine-environments check-engines lock sbom audit clean distclean

help:
	@echo "make test       lint, types, layers and tests"
	@echo "make demo       train a small language model on four worker processes, one of which dies (3 minutes)"
	@echo "make bench NAME=overhead   run one benchmark (NAME=list names them)"
	@echo "make docs       build the documentation site in site/"
	@echo "make install    farflung and what it needs, in .venv"
	@echo "make lint       ruff, mypy and the import linter only"
	@echo "make format     rewrite the sources in the project's format"
	@echo "make check-python PYTHON=python3.14   install, import and train with another interpreter, in a temporary folder"
	@echo "make check-torch TORCH_VERSION=2.15.0      the tests of capture, engine and API with another PyTorch, on the CPU"
	@echo "make check-engines OTHER_TORCH=2.15.0      workers with two releases of PyTorch and with JAX in one run"
	@echo "make lock       pin all dependencies with hashes in locks/ (needs the network)"
	@echo "make sbom       list all dependencies in dist/*.cdx.json (CycloneDX)"
	@echo "make audit      look for known vulnerabilities of the dependencies (needs the network)"
	@echo "make clean      remove caches; make distclean also removes .venv"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later found; install one or say make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install pip; }

# torch goes first and alone, so that its index serves nothing else.
ifneq ($(origin TORCH_INDEX),undefined)
install_torch = $(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$(TORCH_VERSION)
else ifneq ($(strip $(NVIDIA))$(filter-out Linux,$(shell uname -s)),)
install_torch = $(PIP) install torch==$(TORCH_VERSION)
else
install_torch = from=$$($(BIN)/python scripts/torch_index.py $(TORCH_CPU_INDEX) $(TORCH_VERSION)); \
  { test -n "$$from" && $(PIP) install $$from torch==$(TORCH_VERSION); } || $(PIP) install torch==$(TORCH_VERSION)
endif

$(VENV)/.torch: | $(BIN)/python
	@$(install_torch)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) install -q -c constraints.txt -e '.[hf]'
	@touch $@

env: $(VENV)/.dev

install: $(VENV)/.torch
	$(PIP) install -q -c constraints.txt '.[torch]'
	@echo "installed: $(BIN)/farflung"

smoke: install
	cd / && OMP_NUM_THREADS=1 $(abspath $(BIN))/python $(abspath scripts/smoke.py)

check-python:
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(MAKE) --no-print-directory smoke VENV="$$folder/venv" PYTHON="$(PYTHON)"

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Both at once: the tests often wait, so that three workers and the linters keep two processors busy.
test: env
	@$(MAKE) --no-print-directory -j2 lint suite

# PYTHONDONTWRITEBYTECODE is unset: the tests start hundreds of programs, and each would compile all sources again.
suite: env
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --hypothesis-profile=gate

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: env
	$(BIN)/python -m benchmarks $(NAME)

docs: env
	$(BIN)/zensical build --strict --clean
	@echo "built: site/index.html"

demo: $(VENV)/.demo
	$(BIN)/farflung demo

# Environments with other tensor libraries. --no-deps leaves CUDA out (several GB for each version); torch_stubs.py puts empty
# stand-ins beside torch, so that it loads without. All other packages are those of $(VENV). The environment with JAX has its own.
ENGINES := $(VENV)/engines

$(ENGINES)/torch-%/.ready: | env
	@$(BIN)/python -m venv $(@D)
	@site=$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  { $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' && echo "$(abspath src)"; } > "$$site/farflung.pth" && \
	  $(@D)/bin/python -m pip install -q --no-deps torch==$* && $(BIN)/python scripts/torch_stubs.py "$$site" "$$site/torch/lib"
	@touch $@

$(ENGINES)/jax/.ready: | env
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip install -q -c constraints.txt -e '.[jax]'
	@touch $@

check-torch: $(ENGINES)/torch-$(TORCH_VERSION)/.ready
	OMP_NUM_THREADS=1 $(<D)/bin/python -m pytest -q $(TESTS)

ENVIRONMENTS = torch$(OTHER_TORCH:%=,torch=$(abspath $(ENGINES))/torch-%/bin/python),jax=$(abspath $(ENGINES))/jax/bin/python

engine-environments: $(OTHER_TORCH:%=$(ENGINES)/torch-%/.ready) $(ENGINES)/jax/.ready
	@echo "environments=$(ENVIRONMENTS)"

check-engines: engine-environments
	OMP_NUM_THREADS=1 FARFLUNG_ENVIRONMENTS="$(ENVIRONMENTS)" $(BIN)/python -m pytest -q -m engines tests

# -- dependencies: what a broker needs, and what a worker needs -----------------------------------------------------------
# The tools have an environment of their own: farflung and its tests need none of them.
TOOLS := $(VENV)/tools
TOOL_VERSIONS := uv==0.13.9 pip-audit==2.10.1 cyclonedx-bom==7.5.0
LOCKS := broker worker
LOCKED_broker := web s3 sql metrics otel
LOCKED_worker := torch hf images datasets s3 upnp metrics otel

$(TOOLS)/.ready: Makefile | $(BIN)/python
	@$(BIN)/python -m venv $(TOOLS) && $(TOOLS)/bin/python -m pip --disable-pip-version-check install -q $(TOOL_VERSIONS) || \
	  { echo "make: cannot install $(TOOL_VERSIONS): the package index does not answer; try again with a network"; exit 1; }
	@touch $@

lock: $(TOOLS)/.ready
	@mkdir -p locks
	@$(foreach name,$(LOCKS),$(TOOLS)/bin/uv pip compile -q pyproject.toml $(LOCKED_$(name):%=--extra %) -c constraints.txt \
	  --generate-hashes --universal --python-version 3.11 --no-annotate --custom-compile-command "make lock" \
	  -o locks/$(name).txt && ) echo "wrote $(LOCKS:%=locks/%.txt)" || \
	  { echo "make lock: the package index does not answer, or a pin is impossible: see above"; exit 1; }

sbom: $(TOOLS)/.ready
	@mkdir -p dist
	@$(foreach name,$(LOCKS),$(TOOLS)/bin/python -W ignore -m cyclonedx_py requirements locks/$(name).txt \
	  --pyproject pyproject.toml --output-reproducible --of JSON -o dist/farflung-$(name).cdx.json && ) echo "wrote $(LOCKS:%=dist/farflung-%.cdx.json)"

audit: $(TOOLS)/.ready
	@$(foreach name,$(LOCKS),$(TOOLS)/bin/pip-audit --strict --progress-spinner off --require-hashes --disable-pip -r locks/$(name).txt && ) \
	  echo "no known vulnerability" || \
	  { echo "make audit: a dependency has a known vulnerability, or https://pypi.org does not answer: see above"; exit 1; }

clean:
	rm -rf build dist site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
