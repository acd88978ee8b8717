# Every target does its own set-up. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CLUSTER ?= embedded
PYTEST := $(PY) -m pytest -q --durations=10

.PHONY: help setup demo test unit slow integration browser fuzz faults scale lint types layers generate verify e2e harvest-cpu harvest-check engine-parsers bench accuracy lock clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## Create the virtual environment from the lock file

$(STAMP): requirements.lock pyproject.toml tools/bootstrap.sh
	bash tools/bootstrap.sh $(VENV)
	@touch $@

demo: setup ## From kubectl apply to manifests on a real API server (CLUSTER=embedded or current)
	$(PY) -m e2e.demo --cluster $(CLUSTER)

test: setup ## Unit, property, contract and integration tests (builds the control plane on first use)
	$(PYTEST) -m "not slow" tests e2e/tests

slow: setup ## The long variants: 100 kills, 90 s of silence, whole trace collections
	$(PYTEST) -m slow tests e2e/tests

unit: setup ## Unit, property and contract tests only: under two minutes, no network
	$(PYTEST) tests -m "not integration and not slow"

integration: setup ## Tests on a real API server
	$(PYTEST) -m "not slow" tests/integration e2e/tests

browser: setup ## The pages in a real Chromium (installed as root on Debian; elsewhere skipped, loudly)
	bash tools/chromium.sh
	$(PYTEST) tests/browser

fuzz: setup ## Hostile input to every parser, for minutes; what it finds is kept in tests/fuzz/corpus
	INFERASIM_FUZZ_EXAMPLES=2000 INFERASIM_PROPERTY_PROFILE=thorough $(PYTEST) tests/fuzz

faults: setup ## Faults on a real API server, the long ones too; records the recovery times of docs/faults.md
	INFERASIM_RECORD=1 $(PYTEST) tests/integration/test_faults.py tests/integration/test_fault_answers.py tests/integration/test_fault_live.py tests/integration/test_attacks.py
	$(PY) tools/faultdoc.py

scale: setup ## 10,000 objects after a restart, 1,000 of an idle operator; records the figures of docs/faults.md
	INFERASIM_RECORD=1 $(PYTEST) tests/integration/test_scale.py
	$(PY) tools/faultdoc.py

lint: setup ## Format and style checks
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .

types: setup ## Strict static types
	$(PY) -m mypy simcore operator/inferasim_operator harvester-image/inferasim_harvester e2e tools

layers: setup ## Import layers
	$(VENV)/bin/lint-imports

generate: setup ## Regenerate everything that is generated (CRDs, roles, docs, tables)
	$(PY) tools/generate.py

verify: lint types layers ## Nothing generated is stale, nothing is out of style
	$(PY) tools/generate.py --check

e2e: setup ## Scenarios with the built images on a real cluster: of this machine's own, as root, or CLUSTER=kind
	$(PY) -m e2e packages --install
	CLUSTER=$(if $(filter kind,$(CLUSTER)),kind,local) $(PYTEST) -s e2e/scenarios

harvest-cpu: setup ## Harvest a real vLLM on this machine's CPU and predict from it (installs vLLM on first use)
	$(PY) -m e2e.harvest_cpu

harvest-check: setup ## What must hold of that harvest however busy the machine is (part of CI)
	$(PY) -m e2e.harvest_check
	$(PYTEST) -m slow tests/controllers/test_harvester_phases.py

engine-parsers: setup ## Emitted command lines through the engines' own parsers (installs them on first use)
	$(PY) -m e2e.engine_parsers
	$(PYTEST) -m slow tests/controllers/test_engine_parsers.py

bench: setup ## Speed, as ratios against the reference implementations in the same run (PEERS=1: others' programs too)
	$(PY) -m bench $(if $(PEERS),--peers)

accuracy: setup ## Validate on every corpus at hand, whole and under stress, write both pages, compare with the floors
	$(PY) -m tools.accuracy_stress
	$(PY) -m tools.accuracy

lock: setup ## Re-resolve requirements.lock from pyproject.toml
	bash tools/lock.sh $(VENV)

clean: ## Remove the virtual environment and caches of this tree
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
