# Everything the project needs is made here: `make demo` and `make test` work on a fresh machine with Python >= 3.11, g++ and make.
# ARGS is passed on: `make test ARGS="-k tcp -x"`, `make demo ARGS="--backend tcp"`, `make bench ARGS="put --json"`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
ARGS ?=
VENV := .venv
STAMPS := $(VENV)/stamps
PIP := $(CURDIR)/$(VENV)/bin/python -m pip --disable-pip-version-check --no-input
TORCH := torch==2.13.0
# A CMake or ninja that was installed into the environment is found by name as well.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

CSRC := $(shell find csrc -type f 2>/dev/null)

.PHONY: help demo check test setup native stub lint format types sanitize bench clean

help:
	@echo "make demo      a reinforcement-learning loop: 1 trainer, 2 generators, weights followed live"
	@echo "make check     lint, types and the fast tests, while working"
	@echo "make test      the whole test suite"
	@echo "make setup     $(VENV) with the package (editable), torch's CPU build and the development tools"
	@echo "make native    rebuild the C++ core after a change in csrc/"
	@echo "make stub      the same, and write wtransport/_native.pyi anew"
	@echo "make lint      ruff check, ruff format --check, import rules"
	@echo "make types     mypy --strict"
	@echo "make native-release  the native tests, optimised build"
	@echo "make sanitize  the native tests under ASan/UBSan, then under TSan"
	@echo "make bench     python -m bench (ARGS=\"put --json\")"

demo: $(STAMPS)/installed
	@wtransport demo $(ARGS)

test: $(STAMPS)/installed
	@python -m pytest $(ARGS)

# What takes real processes by the dozen, compiles, or runs the conformance suite once more under a wrapper, is left to `make test`.
check: lint types
	@python -m pytest -q -m 'not slow' tests/structure tests/session tests/weights tests/control tests/recorder tests/memory \
	  tests/backends --ignore tests/backends/test_faults.py -k 'not processes and not stopped and not silence' $(ARGS)

setup: $(STAMPS)/installed
	@echo "==> $(VENV) is ready"

$(STAMPS)/venv:
	@command -v $(PYTHON) >/dev/null || { echo "wtransport: $(PYTHON) is missing; install Python 3.11 or newer, or name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "wtransport: Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "wtransport: $(PYTHON) cannot make virtual environments (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@command -v $${CXX:-g++} >/dev/null || { echo "wtransport: a C++20 compiler is missing (Debian, Ubuntu: apt-get install g++)" >&2; exit 1; }
	@echo "==> making $(VENV) with $$($(PYTHON) -V 2>&1)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(@D) && touch $@

# torch goes first and alone: what is installed after it finds it there and leaves it as it is.
$(STAMPS)/torch: constraints.txt | $(STAMPS)/venv
	@echo "==> installing $(TORCH) (large, once)"
	@$(PIP) install -qq -c constraints.txt '$(TORCH)'
	@touch $@

# CMake 3.25 and ninja are fetched only where the machine has none: an isolated build finds its own, a rebuild without isolation needs these.
$(STAMPS)/tools: | $(STAMPS)/venv
	@if ! command -v ninja >/dev/null; then echo "==> installing ninja"; $(PIP) install -qq -c constraints.txt ninja; fi
	@if ! cmake --version 2>/dev/null | awk 'NR == 1 { split($$3, v, "."); found = v[1] > 3 || (v[1] == 3 && v[2] >= 25) } END { exit !found }'; then echo "==> installing cmake"; $(PIP) install -qq -c constraints.txt cmake; fi
	@touch $@

# One stamp for the package: dependencies and a full build when the project file or the constraints changed, else the core alone.
$(STAMPS)/installed: pyproject.toml constraints.txt $(CSRC) | $(STAMPS)/torch $(STAMPS)/tools
	@if [[ ! -e $(STAMPS)/package || pyproject.toml -nt $(STAMPS)/package || constraints.txt -nt $(STAMPS)/package ]]; then \
	  echo "==> building the C++ core and installing wtransport with its development tools"; \
	  $(PIP) install -qq -c constraints.txt -e '.[dev]'; \
	  touch $(STAMPS)/package; \
	else \
	  echo "==> csrc changed: rebuilding the C++ core"; \
	  $(PIP) install -qq --no-build-isolation --no-deps -e .; \
	fi
	@touch $@

native: $(STAMPS)/installed
	@echo "==> rebuilding the C++ core"
	@$(PIP) install -qq --no-build-isolation --no-deps -e .

stub: native
	@python -m nanobind.stubgen -q -m wtransport._native -o wtransport/_native.pyi

lint: $(STAMPS)/installed
	@ruff check .
	@ruff format --check .
	@lint-imports --no-logo

format: $(STAMPS)/installed
	@ruff check --fix .
	@ruff format .

types: $(STAMPS)/installed
	@mypy

# ThreadSanitizer of older compilers cannot place its shadow under a strongly randomised address space, hence setarch where it is allowed.
native-%: $(STAMPS)/tools
	@echo "==> native tests: $*"
	@cd csrc && cmake --preset $* && cmake --build --preset $* --parallel
	@cd csrc && run=$$(setarch -R true 2>/dev/null && echo "setarch -R" || true) && $$run ctest --preset $*

# One after the other, whatever -j says: each compiles on all cores.
sanitize:
	@$(MAKE) native-asan
	@$(MAKE) native-tsan

bench: $(STAMPS)/installed
	@python -m bench $(ARGS)

clean:
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
