# Every target sets up what it needs in .venv and installs nothing the second time.
#
# Two steps, each with a stamp named after the content of its pins: .venv/.run-KEY (torch.txt and
# run.txt) is made anew from nothing, .venv/.dev-KEY (dev.txt) is added to it. A stamp is written
# last, and the first one is taken away while the second step runs, so whatever an interrupted
# install left behind is thrown away by the next make and never trusted.

PYTHON ?= python3
CONFIGS ?= configs/fp32.yaml configs/int8.yaml configs/best.yaml configs/auto.yaml
ARGS ?=
# A worker a core; the tests of a file stay together, as they share the ranks that it spawns. In
# their own order: the other one begins with the files of most tests, which are not the longest.
WORKERS ?= -n auto --dist loadfile --no-loadscope-reorder
VERSIONS ?=
RECORDS := examples/bench/results examples/criteo/results
# Processes of one thread each.
JOBS ?= $(shell nproc)
# .venv has a torch for CPUs, so on a machine with a GPU this is one of its own environments.
GPU_PYTHON ?= python3

PY := .venv/bin/python
# pip compiles modules on one core; $(DEV) does so on all.
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile
# As torchrun does: several ranks share the cores. A value from outside wins.
ONE_THREAD := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1}

key = $(shell cat $(1) | cksum | cut -d ' ' -f 1)
RUN := .venv/.run-$(call key,.pins/torch.txt .pins/run.txt)
DEV := .venv/.dev-$(call key,.pins/torch.txt .pins/run.txt .pins/dev.txt)

# The package is put on the path by a .pth file and not by `pip install -e`: nothing to build, no
# egg-info in the tree, spawned ranks see it too, and, being relative, it survives moving the checkout.
define PTH
import os, sysconfig
site = os.path.realpath(sysconfig.get_path("purelib"))
with open(os.path.join(site, "trec_qcomm.pth"), "w") as f:
    f.write(os.path.relpath(os.getcwd(), site) + "\n")
endef
export PTH

.DEFAULT_GOAL := help
.PHONY: help venv demo accuracy bench-net bench-codec report pictures test test-core test-lab test-fast test-gpu gpu-evidence ptx kernels fuzz chaos test-versions check-torch lint types layers docs check format clean

help:  ## List the targets
	@echo "make TARGET [PYTHON=python3.12] [ARGS='-k rowwise'] [CONFIGS='configs/a.yaml ...'] [VERSIONS='1.7.0 ...']"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' Makefile

venv: $(DEV)  ## Create .venv with the pinned run-time and developer packages

demo: $(RUN)  ## Train the Criteo example with each of CONFIGS and compare
	$(ONE_THREAD) $(PY) examples/criteo/compare.py --configs $(CONFIGS) $(ARGS)

bench-net: $(RUN)  ## Measure bytes and step time on emulated networks (root, iproute2; ARGS='--rate 1gbit')
	$(PY) -m examples.bench.net $(ARGS)

bench-codec: $(RUN)  ## Measure all codecs beside FBGEMM's and casts on rows and gradients (ARGS='--rows FILE.pt')
	$(ONE_THREAD) $(PY) -m examples.bench.codecs $(ARGS)

report: $(DEV)  ## Draw the README's records on one page, runs/report.html (ARGS='runs/my.jsonl')
	@mkdir -p runs
	$(PY) -m trec_qcomm report --out runs/report.html $(RECORDS) $(ARGS)

pictures: $(DEV)  ## Draw the pictures of the documents again
	$(PY) -m examples.bench.pictures

accuracy: $(RUN)  ## Run the quality gate over configs/ as its table has it (hours; resumes; ARGS='--data FILE')
	$(ONE_THREAD) $(PY) examples/criteo/studies/accuracy.py --configs $(filter-out configs/fp32.yaml,$(wildcard configs/*.yaml configs/papers/*.yaml)) --jobs $(JOBS) $(ARGS)

test: $(DEV)  ## Run all tests (ARGS='-k rowwise'; one file: .venv/bin/python -m pytest PATH)
	$(ONE_THREAD) $(PY) -m pytest $(WORKERS) $(ARGS)

test-core: $(DEV)  ## Run the tests of what runs in a training, and of the examples
	$(ONE_THREAD) $(PY) -m pytest $(WORKERS) --ignore tests/lab $(ARGS)

test-lab: $(DEV)  ## Run the tests of the tools around a training
	$(ONE_THREAD) $(PY) -m pytest $(WORKERS) tests/lab $(ARGS)

test-fast: $(DEV)  ## Run the tests that are neither slow nor dist
	$(ONE_THREAD) $(PY) -m pytest $(WORKERS) -m "not slow and not dist" $(ARGS)

test-gpu:  ## Run the tests of GPU kernels on a CUDA device, in the environment of GPU_PYTHON
	$(ONE_THREAD) $(GPU_PYTHON) -m pytest -m "triton or gpu" $(ARGS)

gpu-evidence:  ## Run on a CUDA device what shows that all is right there, and how fast (ARGS=--help)
	$(GPU_PYTHON) -m examples.bench.gpu_evidence $(ARGS)

ptx: $(DEV)  ## Run every GPU kernel's PTX on the CPU, in all forms (gcc; long; ARGS=--help)
	$(ONE_THREAD) $(PY) -m tests.ptx $(ARGS)

kernels: $(DEV)  ## Compile every GPU kernel in all its forms and look for spilled registers (minutes)
	$(ONE_THREAD) $(PY) -m tests.ops.kernel_table --all

fuzz: $(DEV)  ## Search for crashes in damaged frames and for broken error bounds (ARGS='--pairs 1000')
	$(ONE_THREAD) $(PY) -m tests.fuzz $(ARGS)

chaos: $(DEV)  ## Train for hours on emulated hosts that lose packets, links and ranks (root; ARGS=--help)
	$(PY) -m tests.chaos $(ARGS)

test-versions: $(DEV)  ## Run what touches TorchRec on each version in .pins/versions.txt, or on VERSIONS
	$(ONE_THREAD) $(PY) .ci/test_versions.py $(VERSIONS) -- $(ARGS)

check-torch: $(DEV)  ## Look for names that torch 2.11, or one of VERSIONS, does not have yet
	$(PY) .ci/check_torch.py $(VERSIONS)

lint: $(DEV)  ## Check style and formatting (ruff), and prose
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) .ci/check_prose.py

types: $(DEV)  ## Check types (mypy, strict)
	$(PY) -m mypy

layers: $(DEV)  ## Check that imports go down only (import-linter)
	$(PY) .venv/bin/lint-imports

docs: $(DEV)  ## Build the site into runs/site; a broken link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --config-file .docs/mkdocs.yml

check: lint types layers docs  ## lint, types, layers and docs

format: $(DEV)  ## Fix what ruff can fix and format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean:  ## Remove .venv and all caches (runs/ stays)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Python 3.11 or newer is needed, and '$(PYTHON)' is not ($$($(PYTHON) --version 2>&1 | head -n 1))." >&2; \
	  echo "       Name another: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	@echo "Creating .venv from .pins/torch.txt and .pins/run.txt (once; a minute and the download of PyTorch)"
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
	@$(PIP) -r .pins/torch.txt -c .pins/run.txt
	@$(PIP) --no-deps -r .pins/run.txt
	@$(PY) -c "$$PTH"
	@touch $@

$(DEV): $(RUN)
	@echo "Adding .pins/dev.txt to .venv"
	@rm -f .venv/.dev-*
	@mv $(RUN) .venv/.unfinished
	@$(PIP) --no-deps -r .pins/dev.txt
	@$(PY) -m compileall -qq -j 0 .venv/lib || true  # some packages have files of other Pythons
	@mv .venv/.unfinished $(RUN)
	@touch $@
