# Two commands do it all on a fresh machine: `make quickstart` and `make test`. `make help` lists
# the rest. Variables: PYTHON, TORCH, VENV, JOBS, as in `make test PYTHON=python3.12 JOBS=4`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
# The torch that `make test-cuda` installs, in an environment of its own.
CUDA_TORCH ?= torch==2.14.1
CUDA_VENV ?= .venv-cuda
# The versions of torch that wheels have adapters for, one for each minor version.
TORCH_VERSIONS ?= 2.11.0 2.12.0 2.13.0 2.14.1 2.15.0
# The Pythons that `make wheels` builds for: those that are here.
WHEEL_PYTHONS ?= $(foreach v,3.10 3.11 3.12 3.13 3.14,$(shell python$(v) -c 'import sys; print(sys.executable)' 2>/dev/null))
# The builds of torch that `make test-wheels` installs a wheel beside. === takes the CUDA build,
# and where pip finds a CPU build, == takes that.
WHEEL_TORCHES ?= torch==2.13.0 torch===2.11.0 torch===2.12.0 torch===2.13.0 torch===2.14.1
# Options of `make test-conformance`, such as "--state native --test pool".
CONFORMANCE ?=
# Options of `make test-saver`: "--source DIR" is a checkout of torch_memory_saver.
SAVER ?=
JOBS ?= $(shell nproc)

override VENV := $(abspath $(VENV))
export PATH := $(VENV)/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CTEST_PARALLEL_LEVEL := $(JOBS)
# ccache, if it is installed, makes builds from scratch cheap. With one name of the compiler, the
# package and the C++ tests share what they compile alike.
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)
ifeq ($(origin CXX),default)
  CXX := c++
endif
export CXX

CXX_FILES = $(shell find csrc tests benchmarks -name '*.h' -o -name '*.cpp')

.PHONY: help
help:  ## Print this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

.PHONY: setup
setup:  ## Install what is missing: system packages, a virtual environment, torch, the tools
	@scripts/setup.sh '$(PYTHON)' '$(TORCH)' '$(VENV)'

.PHONY: build
build: setup  ## Build the package and install it, editable, into the virtual environment
	@scripts/build.sh '$(VENV)'

.PHONY: quickstart
quickstart: build  ## Train a small GPT with and without stalloc
	@python examples/quickstart.py

.PHONY: test
test: lint test-wheel sanitize test-cpp check-odr test-native test-python docs left-out  ## Run the checks and the tests that need no GPU and no framework

.PHONY: left-out
left-out:
	@printf 'test: %s\n' 'all passed. Not run, since they install gigabytes or need a GPU:' \
	  '  make test-cuda         native and compat mode, with a CUDA build of torch on a pretended GPU' \
	  '  make test-conformance  tests of torch, without stalloc and with it, there' \
	  '  make test-saver        tests of torch_memory_saver, without stalloc and beside it, there' \
	  '  make test-wheels       the wheel beside several builds of torch' \
	  '  make test-frameworks   training with Megatron-LM and others' \
	  '  make gpu-test          training on a GPU'

.PHONY: test-cpp
test-cpp: setup  ## Run the C++ tests
	@scripts/test_cpp.sh cpp

.PHONY: check-odr
check-odr: setup  ## Check that no two files of the library define one name in two ways
	@cmake --preset cpp >/dev/null
	@cmake --build --preset cpp --target odr_check

.PHONY: test-native
test-native: build  ## Run native mode beside a CPU build of torch, on stand-ins: seconds
	@scripts/test_native.sh '$(VENV)'

.PHONY: test-python
test-python: build  ## Run the Python tests
	@nice -n 18 python -m pytest -n $(JOBS) --dist worksteal

.PHONY: test-cuda
test-cuda: setup  ## Run both modes with a CUDA build of torch (several GB) on a pretended GPU
	@scripts/test_cuda.sh '$(PYTHON)' '$(CUDA_TORCH)' '$(CUDA_VENV)'

.PHONY: test-conformance
test-conformance: setup  ## Compare what passes of torch's own tests, without stalloc and with it
	@scripts/test_cuda.sh '$(PYTHON)' '$(CUDA_TORCH)' '$(CUDA_VENV)' -- sh -c ' \
	  python -m pip install -qq --disable-pip-version-check -r requirements/conformance.txt && \
	  PYTHONPATH=tests:$$PYTHONPATH python -m conformance --jobs $(JOBS) $(CONFORMANCE)'

.PHONY: test-saver
test-saver: setup  ## Compare what passes of torch_memory_saver's own tests, without stalloc and beside it
	@scripts/test_cuda.sh '$(PYTHON)' '$(CUDA_TORCH)' '$(CUDA_VENV)' -- sh -c ' \
	  python -m pip install -qq --disable-pip-version-check --no-deps -r requirements/saver.txt && \
	  PYTHONPATH=tests:$$PYTHONPATH python -m saver $(SAVER)'

.PHONY: bench-cuda
bench-cuda: setup  ## Measure planned requests, memory on several streams, pinned memory, switches, captured graphs, on a pretended GPU
	@scripts/test_cuda.sh '$(PYTHON)' '$(CUDA_TORCH)' '$(CUDA_VENV)' -- \
	  sh -c 'python benchmarks/cuda && python benchmarks/cuda/fsdp.py && python benchmarks/cuda/recorded.py && python benchmarks/cuda/prefetch.py && python benchmarks/cuda/reducer.py && python benchmarks/cuda/pinned.py && python benchmarks/cuda/switches.py && python benchmarks/cuda/graphs.py'

.PHONY: paper
paper: build  ## The paper's evaluation: benchmarks/results/paper.md, with torch's allocators; PAPER='--gmlake DIR --torch-2.0 DIR --stalloc DIR'
	@python -m pip install -qq --disable-pip-version-check -r requirements/paper.txt
	@cmake --preset cpp >/dev/null
	@cmake --build --preset cpp --target standin_cudart13 standin_cuda standin_nvml
	@if [[ -x '$(CUDA_VENV)/bin/python' ]]; then \
	  scripts/test_cuda.sh '$(PYTHON)' '$(CUDA_TORCH)' '$(CUDA_VENV)' -- true; fi
	@python benchmarks/paper --torch '$(CUDA_VENV)' $(PAPER)

.PHONY: check-torch
check-torch: setup  ## Compile native mode against other versions of torch (half a GB each, once)
	@scripts/check_torch.sh python $(TORCH_VERSIONS)

.PHONY: gpu-test
gpu-test: build  ## On a machine with a GPU: is training right under a plan?
	@python benchmarks/gpu test

.PHONY: gpu-bench
gpu-bench: build  ## On a machine with a GPU: memory and speed of torch's allocators and stalloc
	@python benchmarks/gpu speed
	@python benchmarks/gpu bench

.PHONY: test-frameworks
test-frameworks: build  ## Run the tests that train with Megatron-LM and others, on the CPU
	@scripts/install_frameworks.sh '$(VENV)'
	@python -m pytest tests/frameworks

.PHONY: test-wheel
test-wheel: setup  ## Build the wheel, and run it where nothing else of stalloc is
	@python scripts/test_wheel.py

.PHONY: sanitize
sanitize: setup  ## Run the C++ tests under the address, undefined-behaviour and thread sanitizers
	@scripts/test_cpp.sh asan
	@scripts/test_cpp.sh tsan

.PHONY: lint
lint: setup  ## Check format, types and spelling; changes nothing
	ruff check .
	ruff format --check .
	mypy
	clang-format --dry-run -Werror $(CXX_FILES)
	codespell
	python scripts/check_includes.py

.PHONY: docs
docs: build  ## Build the documentation into build/docs; warnings are errors
	@python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs build/docs

.PHONY: docs-pictures
docs-pictures: build  ## Make the documentation's pictures anew, from reports in a headless browser
	@python scripts/docs_pictures.py docs/pictures

.PHONY: format
format: setup  ## Format all sources
	ruff check --fix-only .
	ruff format .
	clang-format -i $(CXX_FILES)

.PHONY: bench
bench: setup  ## Run the C++ benchmarks
	@scripts/bench.sh

.PHONY: wheel
wheel: setup  ## Build a wheel into dist/, for the torch that is installed
	@python -m build --wheel --no-isolation

.PHONY: wheels
wheels: setup  ## Build wheels into dist/ for all versions of torch (half a GB of headers each, once)
	@scripts/wheels.sh '$(TORCH_VERSIONS)' $(WHEEL_PYTHONS)

.PHONY: test-wheels
test-wheels: wheels  ## Install the wheel beside each torch (several GB each), and run it
	@cmake --preset cpp >/dev/null
	@cmake --build --preset cpp --target standin_cudart13 standin_cuda standin_nvml
	@python scripts/test_wheels.py \
	  dist/stalloc-*-"$$(python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')"-manylinux*.whl \
	  build/cpp/standin/13 $(WHEEL_TORCHES)

.PHONY: clean
clean:  ## Remove what was built; the virtual environment stays
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@rm -f '$(VENV)/.stalloc-build'
