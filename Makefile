# Everything a developer types. Each recipe makes the virtual environment it needs.
#
# PYTHON=python3.13 make test    chooses the interpreter of a new environment
# ARGS="-k ring" make test       is handed on to pytest, the server, the benchmark
# JOBS=0 make test               runs the tests one after another

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
JOBS   ?= 2
SEED   ?= 1
SEEDS  ?= 1
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.installed
SOURCES = $(shell find src -name '*.pyx' -o -name '*.pxd')
BUILT   = $(VENV)/.built

.DEFAULT_GOAL := help
.PHONY: help run demo test test-full test-long lint types pure build bench soak soak-durable soak-cluster reconcile-scale simulate simulate-feeds docs clean

help:  ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(BUILT)  ## start the server on its embedded default; Ctrl-C ends it
	@echo "Starting. In another terminal:  . $(VENV)/bin/activate"
	@echo "                                fairlead sub 'demo.>'     and in a third"
	@echo "                                fairlead pub demo.hello world"
	$(BIN)/fairlead serve $(ARGS)

demo: $(BUILT)  ## the tour: everything for real on this machine, counted, and cleaned up; ARGS="--no-spark"
	$(BIN)/fairlead demo $(ARGS)

# A test that fails, on a machine that has others to serve, gets one more try, and is listed (RERUN); those that count
# messages through kills only if they ran out of time (tests/conftest.py).
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --reruns 1 -raR
test: lint types $(BUILT)  ## what has to pass: ruff, strict types, the suite
	$(PYTEST) $(ARGS)

test-full: lint types $(BUILT)  ## the same with every requirement on real processes: most of an hour
	$(PYTEST) -m "not long" $(ARGS)

test-long: $(BUILT)  ## the tests that take minutes each: clusters of Spark, killed jobs
	$(BIN)/python -m pytest -m long $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy --strict

pure: $(STAMP)  ## the suite on the plain-Python twins
	FAIRLEAD_PURE=1 $(BIN)/python -m pytest $(ARGS)

build: $(STAMP)  ## compile the extensions in place
	$(BIN)/python setup.py --quiet build_ext --inplace
	@$(BIN)/python -m fairlead.runtime.extensions
	@touch $(BUILT)

bench: $(BUILT)  ## Fairlead's own benchmark; ARGS="--help" tells more
	$(BIN)/fairlead bench $(ARGS)

soak: $(BUILT)  ## random kills and freezes under load, then the books must balance
	$(BIN)/python -m tests.processes.soak $(ARGS)

soak-durable: $(BUILT)  ## kill -9 and power loss under mixed durable load; ARGS="--seed 1 --rounds 300 --power"
	$(BIN)/python -m tests.processes.durable.crash $(ARGS)

soak-cluster: $(BUILT)  ## a whole cluster killed, frozen, cut, with bad disks, under load; ARGS="--seed 1 --rounds 100"
	$(BIN)/python -m tests.processes.cluster.crashing $(ARGS)

reconcile-scale: $(STAMP)  ## 20 million messages with planted faults: all found, none invented; ARGS="--rows 50_000_000"
	$(BIN)/python -m tests.pipeline.planting --rows 20_000_000 $(ARGS)

simulate: $(STAMP)  ## a group under faults in virtual time; SEED=1 SEEDS=500, ARGS="--wild-clocks"
	$(BIN)/python -m tests.simulation --seed $(SEED) --seeds $(SEEDS) $(ARGS)

simulate-feeds: $(BUILT)  ## a stream with its adapters, administration and clients under faults in virtual time; SEEDS=10000
	$(BIN)/python -m tests.feeds.simulation --seed $(SEED) --seeds $(SEEDS) $(ARGS)

soak-pipeline: $(BUILT)  ## Spark, its tasks and its server killed under streaming queries; ARGS="--seed 1 --rounds 20"
	$(BIN)/python -m tests.pipeline.crashing $(ARGS)

docs: $(BUILT)  ## rewrite the generated pages of docs/ (runs the suite for the requirements table)
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/requirements.py

clean:  ## remove what was built; the environment stays (rm -rf .venv removes that)
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src -name '_*.c' -delete -o -name '*.so' -delete -o -name '__pycache__' -prune -exec rm -rf {} +
	rm -f $(BUILT)

# The environment, made again only when what it is made of has changed. The compiled modules are left to `build`.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Fairlead needs Python 3.11 or newer: rm -rf $(VENV) && make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	FAIRLEAD_PURE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

$(BUILT): $(STAMP) setup.py $(SOURCES)
	@$(MAKE) --no-print-directory build
