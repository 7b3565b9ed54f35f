# `make help` lists the targets. `make eval task=math500 speculative.tree_budget=64` forwards simple KEY=VALUE words;
# anything else (lists, spaces, ~key, +key) goes through ARGS='...'.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Words given as KEY=VALUE on make's command line become make variables: forward all but make's own, so that a misspelt
# key reaches the harness and is refused there.
OWN := PYTHON VENV ARGS RUNS SWEEP DETACH SGLANG_VENV SGLANG_PYTHON SGLANG_DEVICE
TYPED = $(foreach v,$(filter-out $(OWN),$(.VARIABLES)),$(if $(filter command line,$(origin $(v))),$(v)))
FORWARD = $(foreach v,$(TYPED),'$(v)=$(value $(v))')

.DEFAULT_GOAL := help
.PHONY: help install eval certify report drafter check test clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with the exact pins of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

# SGLang pins torch and transformers, so it has an environment of its own; the harness speaks HTTP to it. Editable: the
# plugin in it is the one of this clone.
SGLANG_VENV ?= .venv-sglang
SGLANG_PYTHON ?= $(PYTHON)
SGLANG_DEVICE ?= $(if $(shell command -v nvidia-smi 2>/dev/null),cuda,cpu)

.PHONY: install-sglang
install-sglang: $(SGLANG_VENV)/.installed-$(SGLANG_DEVICE) ## SGLang in .venv-sglang: CUDA where nvidia-smi is, else a CPU build for tests

$(SGLANG_VENV)/.installed-cpu: harness/sglang_plugin/cpu/install.sh harness/sglang_plugin/cpu/requirements.txt
	rm -rf $(SGLANG_VENV)
	harness/sglang_plugin/cpu/install.sh $(SGLANG_VENV) $(SGLANG_PYTHON)
	@touch $@

$(SGLANG_VENV)/.installed-cuda: pyproject.toml
	rm -rf $(SGLANG_VENV)
	$(SGLANG_PYTHON) -m venv $(SGLANG_VENV)
	$(SGLANG_VENV)/bin/python -m pip install --quiet --upgrade pip 'setuptools>=77'
	$(SGLANG_VENV)/bin/python -m pip install --quiet 'sglang==0.5.17'
	$(SGLANG_VENV)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

eval: $(STAMP) ## run one setting, e.g. make eval speculative.tree_budget=64 sampling=t10
	$(BIN)/python -m harness $(FORWARD) $(ARGS)

.PHONY: data
data: $(STAMP) ## fetch what every task and the default model need, so that runs need no network; task=NAME for one
	$(BIN)/python -m harness.data $(FORWARD) $(ARGS)

.PHONY: plan sweep sweep-status sync

plan: $(STAMP) ## a sweep's cells with memory and time, nothing started, e.g. make plan experiment=budget_sweep
	$(BIN)/python -m harness.launch plan $(FORWARD) $(ARGS)

sweep: $(STAMP) ## many settings, e.g. make sweep experiment=budget_sweep hydra/launcher=slurm; DETACH=1 lets go of them
	$(BIN)/python -m harness.launch sweep $(if $(filter-out 0,$(DETACH)),--detach) $(FORWARD) $(ARGS)

sweep-status: $(STAMP) ## how a sweep's cells stand, live: SWEEP=NAME, default the newest; ARGS=--once
	$(BIN)/python -m harness.launch status $(SWEEP) $(ARGS)

sync: $(STAMP) ## upload the offline W&B folders of finished runs; RUNS='outputs/A', default all
	$(BIN)/python -m harness.launch sync $(RUNS) $(ARGS)

.PHONY: rescore
rescore: $(STAMP) ## grade the stored answers of runs again, decoding nothing: RUNS='outputs/A outputs/B'
	$(BIN)/python -m harness.rescore $(RUNS) $(ARGS)

certify: $(STAMP) ## prove on this machine that a setting keeps the target's distribution; same words as for eval
	$(BIN)/python -m harness.certify $(FORWARD) $(ARGS)

REPORT := outputs/report

report: $(STAMP) ## table here, page in outputs/report: SWEEP=NAME or RUNS='outputs/A outputs/B', default the newest and its likes
	$(BIN)/python -m harness.report --html $(REPORT)/index.html --markdown $(REPORT)/report.md \
	  $(if $(SWEEP),--sweep $(SWEEP)) $(RUNS) $(ARGS)

.PHONY: report-wandb
report-wandb: $(STAMP) ## the same runs as a W&B report: saved online where there is a key, else a checked specification
	$(BIN)/python -m harness.report.wandb_report --out $(REPORT)/wandb_report.json \
	  $(if $(SWEEP),--sweep $(SWEEP)) $(RUNS) $(ARGS)

drafter: $(STAMP) ## train a drafter (needs a CUDA device to be worth it)
	$(BIN)/python -m harness.drafters.train $(FORWARD) $(ARGS)

check: $(STAMP) ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Any SGLang environment that is there serves the tests; without one, the CPU build is made for them.
test: $(STAMP) | $(firstword $(wildcard $(SGLANG_VENV)/.installed-*) $(SGLANG_VENV)/.installed-cpu) ## every test
	$(BIN)/python -m pytest $(ARGS)

clean: ## remove the environment; outputs stay
	rm -rf $(VENV) *.egg-info
