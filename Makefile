# SPDX-License-Identifier: Apache-2.0
# Needs make and sh alone: tests/sim/bootstrap installs what else is missing, and says what.

UV := tests/sim/uv
PYTHON := $(UV) run --locked python
PARTS := lint sanity unit browser molecule e2e matrix integration

.DEFAULT_GOAL := help
.PHONY: help demo test $(PARTS) test-faults test-fixes bench docs setup clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: setup ## take a bare test host on this machine to a served and checked model
	@$(PYTHON) -m tests.sim.demo

test: setup ## everything: all of the following parts, each to its end
	@$(PYTHON) -m tests.gates

lint: ## ruff, mypy, yamllint, ansible-lint, recipes, argument specs, reference, changelog
sanity: ## ansible-test sanity
unit: ## the logic
browser: ## the pages of reports, in chromium
molecule: ## each role on a test host
e2e: ## a bare test host to a served model, and all that can go wrong
matrix: ## each check fails for the faults that concern it: a real engine with one behaviour broken
test-faults: setup ## what may break while a host changes, done to one with a real engine
	@$(PYTHON) -m tests.gates faults
test-fixes: setup ## whether the fix packs fit the sources that ENPLACE_VLLM_GAUDI_SRC and ENPLACE_VLLM_SRC name
	@$(PYTHON) -m pytest tests/fixes
integration: ## the test hosts, the simulated hub, the smoke model's build
$(PARTS): setup
	@$(PYTHON) -m tests.gates $@

bench: setup ## figures of a run over the converged demo host, beside an equal deploy with pyinfra
	@$(PYTHON) -m tests.bench

docs: setup ## make the roles' READMEs and docs/reference.md and docs/preflight.md anew from what they tell of
	@$(PYTHON) -m tests.gates.roles write
	@$(PYTHON) -m tests.gates.reference write

setup: ## install what is missing: Debian packages, uv, .venv
	@tests/sim/bootstrap
	@$(UV) sync --locked --quiet

clean: ## remove the test hosts and everything made in this folder; downloads in the user's cache stay
	@if [ -x .venv/bin/python ]; then .venv/bin/python -m tests.sim.lab down --all; fi
	rm -rf .venv .lab .ansible .mypy_cache .pytest_cache .ruff_cache .hypothesis reports
