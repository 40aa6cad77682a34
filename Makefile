BIN ?= .venv/bin

.PHONY: setup fmt check quick test golden slow docs picture notebook long oldest packages cover ci gpu-wheels gpu-check

setup: ## a virtual environment with everything that the other targets need
	python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e '.[dev]'

fmt: ## formatting and mechanical fixes
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format .

check: ## lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.names tmmu

quick: ## under a minute: values, judge, planner, cache; no torch
	$(BIN)/pytest tests/unit/ir tests/unit/judge tests/unit/compare tests/unit/codec tests/unit/eager tests/unit/cache tests/unit/planner

test: ## everything but the slow and long tests
	$(BIN)/pytest

golden: ## every digest of golden/ planned again; a million buffers take a minute of it
	$(BIN)/tmmu golden check

slow: ## the tests that take minutes
	$(BIN)/pytest -m slow

docs: ## the documentation as a site in build/site; what is wrong with a link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

picture: ## the picture of the README, made of its plan
	$(BIN)/python -m tools.picture docs/images/gpt2-training.svg

notebook: ## the notebook of the examples, run and written back with what it prints
	$(BIN)/python -m tools.notebook examples/quickstart.ipynb

long: ## the tests and benchmarks that take hours
	$(BIN)/pytest -m long

oldest: ## the default tests on the oldest torch that the package admits, in an environment of its own
	python3 -m venv build/oldest
	build/oldest/bin/pip install -q -c constraints-oldest.txt -e '.[dev]'
	build/oldest/bin/python -m pytest

packages: ## models of twelve packages, whose newest torch has an environment of its own
	python3 -m venv build/packages
	build/packages/bin/pip install -q -c constraints-packages.txt -e '.[dev,packages]'
	build/packages/bin/python -m pytest -n 0 -m long tests/runtime/test_packages.py
	build/packages/bin/python -m benchmarks.packages

cover: ## branch coverage, line by line where it is missing
	$(BIN)/pytest --cov --cov-report=term-missing:skip-covered

gpu-wheels: ## what gpu-check needs beside Python 3.12 and torch, for a machine that can reach nothing
	$(BIN)/pip download -q --only-binary :all: --python-version 3.12 -d build/gpu-wheels blake3 cbor2 numpy platformdirs

gpu-check: ## one table of at most four minutes: planned runs beside eager ones on this machine's GPU, weights that stream to it, users' steps, fused kernels
	sh benchmarks/gpu_check.sh
	CHECK=gpu_ring sh benchmarks/gpu_check.sh
	CHECK=gpu_steps sh benchmarks/gpu_check.sh
	CHECK=gpu_fused sh benchmarks/gpu_check.sh

ci: ## what decides whether a change lands: a copy of the tree, a new environment, all checks, all tests
	.ci/run
