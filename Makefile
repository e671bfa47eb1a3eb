# Everything a newcomer needs. `make demo` and `make test` work from a bare clone: they make a virtual
# environment in .venv, install the project into it and go.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt pyproject.toml $(wildcard kernels/cpu/*.cpp kernels/cpu/*.h kernels/quants/*.h)

.PHONY: demo test slow lint format types check docs arm64 clean

demo: $(VENV)/installed
	$(BIN)/gguflow generate -p "Once upon a time" -n 200 --repeat-penalty 1.1

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -n 2 -m slow

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror kernels/cpu/*.cpp kernels/cpu/*.h kernels/quants/*.h \
		kernels/cuda/*.cu kernels/cuda/*.cuh

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i kernels/cpu/*.cpp kernels/cpu/*.h kernels/quants/*.h \
		kernels/cuda/*.cu kernels/cuda/*.cuh

# mypy follows imports by name; the sources lie at the top level, so give it the installed layout.
types: $(VENV)/installed-dev
	@rm -rf .types && mkdir -p .types/gguflow
	@for f in src/gguflow/*; do ln -s ../../$$f .types/gguflow/; done
	@for p in engine kernels models cli server; do ln -s ../../$$p .types/gguflow/$$p; done
	$(BIN)/mypy -p gguflow

check: lint types test

docs: $(VENV)/installed-dev
	$(BIN)/python -m gguflow.engine.ops --write docs/ops.md

# The kernels of 64-bit ARM, cross compiled and tested under qemu.
arm64: $(BIN)/pip
	PYTHON=$(BIN)/python .ci/arm64

$(VENV)/bin/pip:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'gguflow needs Python 3.11 or later')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

$(VENV)/installed: $(BIN)/pip $(NATIVE)
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/installed-dev: $(BIN)/pip $(NATIVE)
	$(BIN)/python -m pip install -q -e ".[dev]"
	@touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) build .types .pytest_cache .mypy_cache .ruff_cache .hypothesis
