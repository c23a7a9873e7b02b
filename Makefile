# Floodmark: `make` alone lists the targets. Everything lives in .venv and build/, nothing outside this directory changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DIR ?= .floodmark
SUITE ?=
SEEDS ?= 1000
MINUTES ?= 60
BUG ?=
ARGS ?=

# Most tests wait for servers. A file stays in one process; in the order of their names, the long ones come first. When a
# process ends in the middle of a test, so does the run: xdist would start another and wait for what the first had, for ever.
TWO_AT_A_TIME := --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.DEFAULT_GOAL := help
.PHONY: help setup demo images compose-demo e2e chaos up down status test check schemas scenarios sim bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## install everything into .venv and fetch Kafka (quick when nothing changed)
	@$(BIN)/floodmark fetch

demo: setup ## start the stack, take a table of 3.5 million rides through its life, check every row, stop again
	@$(BIN)/floodmark demo

images: setup ## build the container image of every role (and, without an image registry, what they stand on)
	@deploy/build-images.sh

compose-demo: images ## the tour of `make demo`, on the containers of docker-compose.yml; leaves none behind
	@$(BIN)/floodmark demo --compose docker-compose.yml

# Without an engine there is nothing to build, and the tests say why they are skipped.
e2e: setup ## test the system in containers, two of each, killed, paused, cut off and restarted (ARGS="-k name")
	@if docker info > /dev/null 2>&1; then deploy/build-images.sh; fi
	@$(BIN)/python -m pytest tests/e2e $(ARGS)

chaos: images ## MINUTES=60 of changes, queries and faults on the containers, each answer checked (ARGS="--seed 7")
	@$(BIN)/python -m tests.e2e.chaos --minutes $(MINUTES) $(ARGS)

up: setup ## start ZooKeeper, Kafka and every service on loopback (DIR=.floodmark); Ctrl-C stops them
	@$(BIN)/floodmark up --dir $(DIR) $(ARGS)

down: setup ## stop the stack in DIR
	@$(BIN)/floodmark down --dir $(DIR)

status: setup ## show the stack in DIR
	@$(BIN)/floodmark status --dir $(DIR)

test: setup ## run the tests, two files at a time, against a real ZooKeeper and Kafka (ARGS="-k name")
	@$(BIN)/python -m pytest $(TWO_AT_A_TIME) $(ARGS)

check: $(STAMP) ## ruff, mypy --strict, import-linter, schemas up to date
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m floodmark.contracts.generate --check

schemas: $(STAMP) ## write schemas/ from the message models
	@$(BIN)/python -m floodmark.contracts.generate

scenarios: $(STAMP) ## each row of docs/scenarios.md, who tests it and with what result
	@$(BIN)/python -m tests.support.scenarios $(ARGS)

sim: $(STAMP) ## simulate SEEDS=1000 runs of the whole system (BUG=name puts a known bug back; ARGS="--seed 7 --shrink")
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(if $(BUG),--bug $(BUG)) $(ARGS)

bench: setup ## measure (SUITE=name for one suite); writes build/bench and docs/benchmarks.md
	@$(BIN)/python -m tests.bench $(SUITE) $(ARGS)

lock: $(STAMP) ## resolve requirements/*.txt again from pyproject.toml
	@for row in "dev:--extra dev" "spark:--extra spark -c requirements/dev.txt" "lake:--extra lake -c requirements/dev.txt" "runtime:-c requirements/dev.txt"; do \
	  $(BIN)/uv pip compile pyproject.toml --quiet --python-version 3.11 --universal $${row#*:} \
	    --generate-hashes --no-header --no-annotate --output-file requirements/$${row%%:*}.txt || exit 1; done

clean: ## remove .venv, build/ and caches; a running stack's data in DIR stays
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# The stamp is newer than its inputs exactly when the environment matches the lock.
$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"floodmark needs Python 3.11 or newer, {sys.executable} is {sys.version.split()[0]}")'
	@echo "installing into $(VENV) (Spark is 450 MB the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)
