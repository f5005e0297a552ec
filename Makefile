# make setup: the virtual environment; make run: the main job on 16 ranks; make test: everything that CI
# runs; make docs: the documentation as a site; make dist: wheel and source distribution, each tried in a new environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := setup.py pyproject.toml $(shell find taskflow -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
RANKS ?= 16
# One more than there are cores: tests of ranks that fail or hang mostly wait.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 1) + 1)

# Hundreds of programs are started by the tests. Where this variable is set, each of them compiles the whole package again (0.4 s).
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup run test test-slow lint docs dist clean

setup: $(VENV)/.installed $(if $(TORCH),$(VENV)/.torch)

$(VENV)/.installed: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

$(VENV)/.torch: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet 'torch>=2.13,<2.15' 'onnx>=1.23,<2' 'transformers>=5.20,<6' 'peft>=0.21,<1'
	touch $@

run: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" mpirun -n $(RANKS) python examples/rnnlm.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -m 'not slow' -n $(WORKERS) --maxprocesses 8 --dist worksteal

test-slow: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -m slow

dist: setup
	$(BIN)/python tests/distributing.py dist

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html; with search: $(BIN)/mkdocs serve"

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find taskflow \( -name '*.so' -o -name '*.c' -o -name '*.cpp' \) -delete
