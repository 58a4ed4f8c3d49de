# make demo          install, then tune a small model on this CPU and benchmark it
# make test          install, then lint, type-check and test (CI; nine to fifteen minutes on two cores)
# make test-all      the same with the tests marked slow
# make unit          only the tests that `make test` runs, in WORKERS processes at a time
# make bench-quick   install, then a smaller version of every benchmark's table, in under ten minutes
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Compiled models are linked with a C compiler; where there is none, Zig's linker comes from PyPI.
LINKER := $(if $(shell command -v cc || command -v gcc || command -v clang || command -v g++),,linker)
comma  := ,
# One more than two cores: a third of a worker's time is waiting for other processes, disks and time limits.
WORKERS ?= 3
PYTEST  := $(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

.PHONY: demo test test-all lint types unit unit-all bench-quick clean

demo: $(VENV)/.installed
	rm -rf demo/squeezenet
	$(BIN)/slipstream tune zoo:squeezenet1_1 -o demo/squeezenet --budget 90s
	$(BIN)/slipstream bench demo/squeezenet --against onnxruntime
	@echo "Next: slipstream resume demo/squeezenet --budget 3m, or slipstream tune your-model.onnx -o out --budget 5m"

test: lint types unit

test-all: lint types unit-all

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.installed-dev
	$(BIN)/mypy

unit: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow"

unit-all: $(VENV)/.installed-dev
	$(PYTEST)

bench-quick: $(VENV)/.installed-dev
	rm -rf build/bench-quick
	$(BIN)/python -m benchmarks --quick

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Slipstream needs Python 3.11 or newer: say make PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.$(if $(LINKER),[$(LINKER)])'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,torch$(if $(LINKER),$(comma)$(LINKER))]'
	@touch $@

clean:
	rm -rf $(VENV) demo build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
