# Two commands for a newcomer: `make demo` and `make test`. Everything is installed into .venv.
PYTHON ?= python3
VENV ?= .venv
# Where torch is taken from. The default serves CPU-only wheels; set it to another index for a CUDA build,
# or to nothing to use the package index that pip is set up with.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
BIN = $(VENV)/bin
# How many tests run at once: more than the two cores of a small machine, because half of a test's time is waiting,
# and of a variant's two thirds. Files with whole jobs come first, so that none is left for the end.
JOBS ?= 4
FAULT_JOBS ?= 4
VARIANT_JOBS ?= 6
# What is imported is compiled once: a variable that forbids it would cost every process of the suite a second.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 POLARS_MAX_THREADS=1 $(BIN)/pytest -q
# Jobs in a test's own process keep to one core there; `make faults` and whole processes have all of them.
ONE_CORE = SHADOWSYNC_TESTS_ON_ONE_CORE=1
BY_FILE = --dist loadfile --no-loadscope-reorder
WHOLE_JOBS = tests/integration tests/faults
UNIT = $(PYTEST) -n $(JOBS) $(BY_FILE) tests/unit

.PHONY: demo test docs faults variants gpu ray ray-kills install install-dev lint types unit in-one-process clean help

help:
	@echo "make demo   install, generate a click log of 1 million examples, train on it, print the report"
	@echo "make test   install what it needs, lint, check types, run the suite"
	@echo "make faults run the kills that make test leaves out, of each role and more, and a minute of hostile messages"
	@echo "make variants run the variants of jobs and the faults without a kill that make test leaves out"
	@echo "make gpu    run the tests and take the figures that need a GPU; first install a torch for it: make clean gpu TORCH_INDEX="
	@echo "make ray    run the tests of jobs on a Ray cluster of this machine; installs Ray, 240 MB, beside the rest"
	@echo "make ray-kills  of these, the accounts of a job and the kills: some two minutes"
	@echo "make docs   build the site of the documents in build/docs/site; a broken link or a missing page ends it"
	@echo "make clean  remove the virtual environment, the demo's data and its runs"

$(VENV)/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --no-deps --retries 1 $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt torch
	@mkdir -p $(VENV)/src && ln -sfn ../.. $(VENV)/src/shadowsync
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml setup.py constraints.txt
	$(PIP) install -q -c constraints.txt -e '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml setup.py constraints.txt
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.ray: $(VENV)/.dev
	$(PIP) install -q -c constraints.txt -e '.[ray]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	@touch $@

install: $(VENV)/.installed
install-dev: $(VENV)/.dev

demo: install
	@$(BIN)/shadowsync generate demo-data --examples 1000000 --eval-examples 100000 --seed 1 --reuse
	@$(BIN)/shadowsync run examples/demo.toml

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install-dev
	$(BIN)/mypy -p shadowsync

unit: install-dev
	$(UNIT)

# Types are checked beside the tests: that takes a minute of one core.
test: lint
	@$(MAKE) --no-print-directory -j2 types in-one-process
	$(PYTEST) -n $(JOBS) $(BY_FILE) -m "processes and not matrix and not ray" $(WHOLE_JOBS)

in-one-process: install-dev
	$(ONE_CORE) $(PYTEST) -n $(JOBS) $(BY_FILE) -m "not processes and not matrix and not ray"

docs: $(VENV)/.docs
	$(BIN)/python docs/build_site.py

# One test of tests/fuzz takes a quarter of the time, so it begins first; the others are spread over all processes.
faults: install-dev
	$(PYTEST) -n $(FAULT_JOBS) --dist worksteal -m "matrix and not no_kill" tests/fuzz tests/faults

# One file there has a third of the seconds, in tests that mostly wait: they are spread over all.
variants: install-dev
	$(ONE_CORE) $(PYTEST) -n $(VARIANT_JOBS) --dist worksteal -m "matrix and no_kill and not ray" $(WHOLE_JOBS) tests/unit/lab/virtual tests/unit/pipeline/saved_model

gpu: install-dev
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "this torch finds no GPU; one built for CUDA is installed by: make clean gpu TORCH_INDEX=")'
	$(PYTEST) -m gpu tests/unit
	$(BIN)/python benchmarks/speed/steps/gpu.py --seconds 480 --out benchmarks/speed/results/gpu.json
	$(PYTEST) -m gpu tests/integration

ray: $(VENV)/.ray
	$(PYTEST) -m ray tests/integration

ray-kills: $(VENV)/.ray
	$(PYTEST) -m ray -k "accounts or killed" tests/integration/on_ray/test_jobs.py

clean:
	rm -rf $(VENV) build *.egg-info demo-data runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
