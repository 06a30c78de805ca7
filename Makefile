# Every target is self-contained: it makes the virtual environment and installs what it needs. A stamp file that
# depends on pyproject.toml remembers that, so a second call starts at once and needs no network.
#
#   make test                          the default interpreter, in .venv
#   make test PYTHON=python3.13        another one, in .venv-<its version>
#   make test ARGS='-k retry -x'       more arguments for the tool behind the target

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# The tests start some hundreds of interpreters; without bytecode on disk each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

ARGS ?=

ifeq ($(origin PYTHON),undefined)
# The first that is new enough and can make virtual environments.
PYTHON := $(shell for python in python3 python python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& echo $$python && break; done)
VENV := .venv
else
VENV := .venv-$(shell $(PYTHON) -c 'import platform, sys; print(platform.python_version() + sys.abiflags)')
endif

BIN := $(VENV)/bin
RUN := $(VENV)/.stamp-run
DEV := $(VENV)/.stamp-dev
BENCH := $(VENV)/.stamp-bench
MUTATION := $(VENV)/.stamp-mutation

$(VENV)/.stamp-venv:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later with venv and pip found; say PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) does not run or is older than Python 3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(RUN): pyproject.toml | $(VENV)/.stamp-venv
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(DEV): pyproject.toml | $(VENV)/.stamp-venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(BENCH): pyproject.toml | $(VENV)/.stamp-venv
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@

$(MUTATION): pyproject.toml | $(VENV)/.stamp-venv
	$(BIN)/python -m pip install --quiet --editable '.[dev,mutation]'
	@touch $@

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: $(RUN) ## Show the scheduler at work: python -m threadsched demo
	$(BIN)/python -m threadsched demo $(ARGS)

.PHONY: test
test: $(DEV) ## Run the whole test suite
	$(BIN)/python -m pytest $(ARGS)

.PHONY: lint
lint: $(DEV) ## Check style and format (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: format
format: $(DEV) ## Rewrite the files in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: types
types: $(DEV) ## Check the types (mypy --strict) of the package and of its typed API sample
	$(BIN)/mypy

.PHONY: cover
cover: $(DEV) ## Run the tests with branch coverage, child interpreters included
	$(BIN)/python -m pytest --timeout=300 --cov --cov-report=term-missing:skip-covered --cov-fail-under=95 $(ARGS)

# The modules without threads are covered whole by the tests that bear their names, and by nothing else. Two are left out:
# the strikes trace the core themselves, and two tracers do not share a run; a hundred thousand cancels take long traced.
CORE := core job heap policy retry
CORE_TESTS := $(filter-out %_strikes.py,$(wildcard $(CORE:%=tests/test_%.py) tests/test_core_*.py tests/test_job_*.py))
empty :=
comma := ,

.PHONY: cover-core
cover-core: $(DEV) ## Branch coverage of the core's modules by their own tests: 100 % or a failure
	$(BIN)/python -m pytest --quiet --timeout=120 --cov --cov-report= $(CORE_TESTS) $(ARGS) \
		--deselect tests/test_core.py::test_a_hundred_thousand_cancels_leave_no_entries
	$(BIN)/python -m coverage report --no-skip-covered --fail-under=100 \
		--include=$(subst $(empty) $(empty),$(comma),$(CORE:%=threadsched/_%.py))

MUTATION_TESTS := $(addprefix tests/test_core,.py _rules.py _broken_off.py _bookkeeping.py _written_out.py)

.PHONY: mutate
mutate: $(MUTATION) ## Change the core in a thousand ways and list what no test notices; takes half an hour
	$(BIN)/mutmut run --max-children 1
	$(BIN)/mutmut results
	-$(BIN)/python .ci/mutate.py threadsched/_core.py $(MUTATION_TESTS)

# What differs between interpreters: threads, locks, futures, the collector, exit and fork, the points at which an
# interrupt can strike, and what becomes of a lack of memory; and that the pages are true.
QUICK := $(patsubst %,tests/test_%.py,asyncio core coroutines docs drop exit exports fork futures job locks \
	machinery memory races reentrancy shutdown stacks stress threads) $(wildcard tests/test_*_strikes.py) tests/faults

.PHONY: quick
quick: $(DEV) ## Run the part of the suite that depends on the interpreter, in about a minute
	$(BIN)/python -m pytest $(QUICK) $(ARGS)

.PHONY: stress
stress: $(DEV) ## Run the tests with threads switching every microsecond (a load that counts each job: make soak)
	THREADSCHED_SWITCH_INTERVAL=1e-6 $(BIN)/python -m pytest --timeout=120 $(ARGS)

.PHONY: proof
proof: $(DEV) ## Run the tests that otherwise sample, on every case (a quarter of an hour on two processors)
	$(BIN)/python .ci/proof.py $(ARGS)

.PHONY: soak
soak: $(RUN) ## Put the scheduler under load for ten minutes, with each job counted and the memory flat (ARGS='--seconds 60')
	$(BIN)/python -m threadsched stress --soak $(ARGS)

.PHONY: bench
bench: $(BENCH) ## Run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-all
bench-all: $(BENCH) ## Measure everything on 3.11 and 3.13, then draw the plots and write the tables of the docs
	@$(BIN)/python -m benchmarks.run_all $(ARGS); status=$$?; \
	$(BIN)/python -m benchmarks.plots && $(BIN)/python -m benchmarks.report && exit $$status

.PHONY: bench-check
bench-check: $(BENCH) ## Measure the main ratios again; fail if one fell below 85 % of the baseline
	$(BIN)/python -m benchmarks.check $(ARGS)

.PHONY: bench-plots
bench-plots: $(BENCH) ## Draw the plots of docs/performance.md from benchmarks/results
	$(BIN)/python -m benchmarks.plots $(ARGS)

.PHONY: bench-env
bench-env: $(BENCH)
	@echo $(BIN)/python

.PHONY: docs
docs: $(DEV) ## Check the documentation: examples run, links and names resolve
	$(BIN)/python -m pytest tests/test_docs.py $(ARGS)

.PHONY: check
check: lint types test ## What must pass before a commit: lint, types, test

.PHONY: conformance
conformance: ## Run CPython 3.13's own thread-pool tests against the scheduler
	@python=$$($(PYTHON) .ci/pythons.py conformance) || exit 1; \
	if [ -n "$$python" ]; then $(MAKE) conformance-with PYTHON="$$python"; fi

.PHONY: conformance-with
conformance-with: $(RUN)
	$(BIN)/python tests/conformance/cf_conformance.py threadsched:Scheduler --exclude-private $(ARGS)
	$(BIN)/python tests/conformance/cf_conformance.py threadsched:Scheduler --exclude-private --worker-count 1 $(ARGS)

.PHONY: wheel
wheel: $(RUN) ## Build the wheel and look into it
	rm -rf build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(BIN)/python .ci/wheel.py build/wheel

.PHONY: pythons
pythons:
	@$(PYTHON) .ci/pythons.py others

.PHONY: clean
clean: ## Remove the virtual environments and everything generated
	rm -rf .venv .venv-* build dist mutants htmlcov .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
