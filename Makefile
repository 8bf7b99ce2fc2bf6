# What there is to do in this repository: `make` lists it. Needs make and Python 3.10 or newer with its venv
# module; everything else is installed into .venv, and the demonstration's engine and model into the cache.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
PY := .venv/bin/python
CACHE := $(if $(filter /%,$(XDG_CACHE_HOME)),$(XDG_CACHE_HOME),$(HOME)/.cache)/motor

# What pip downloads is kept in Motor's own cache, so that there are two places to clean and no third.
export PIP_CACHE_DIR ?= $(CACHE)/pip

SEEDS ?= 2000
KILLS ?= 200
FUZZ ?= 20

##@ See it run

.PHONY: demo
demo: .venv ## set everything up, run a real engine over three nodes, ask it a question, shut down
	@$(PY) -m demo.run $(DEMO)

##@ Test it

.PHONY: test
test: lint types unit ## lint, types and every fast test (about eight minutes)

.PHONY: test-vllm
test-vllm: .venv ## tests with the real vLLM (its environment and small models are made on first use)
	@$(PY) -m demo.engine_environment > /dev/null
	@$(PY) -m demo.tiny_model dense > /dev/null
	@$(PY) -m demo.tiny_model moe > /dev/null
	@echo "tests with the real vLLM ..."
	@$(PY) -m pytest -m vllm $(PYTEST)

.PHONY: lint
lint: .venv ## ruff and the import rules
	@echo "ruff and import rules ..."
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@.venv/bin/lint-imports

.PHONY: types
types: .venv ## mypy
	@echo "types ..."
	@$(PY) -m mypy

.PHONY: unit
unit: .venv ## every fast test
	@echo "fast tests ..."
	@$(PY) -m pytest -m "not vllm and not faults" $(PYTEST)

.PHONY: test-faults
test-faults: .venv ## kill, freeze, cut and fill up real daemons (root; at most twenty minutes)
	@echo "faults ..."
	@$(PY) -m pytest -m faults $(PYTEST)

.PHONY: mutations
mutations: .venv ## take each row's mechanism of docs/faults.md out of a copy: its test has to fail (root; an hour)
	@$(PY) -m tests.faults.mutations $(if $(ONLY),--only "$(ONLY)")

.PHONY: soak
soak: .venv ## random kills of real daemons (root); KILLS=1000 takes more, SEED=7 repeats a run
	@echo "$(KILLS) random kills ..."
	@KILLS=$(KILLS) SEED=$(SEED) $(PY) -m pytest -s tests/faults/test_soak.py $(PYTEST)

.PHONY: fuzz
fuzz: .venv ## nonsense for REST, streams and files, property tests with new examples; FUZZ=100 takes more
	@echo "fuzzing, $(FUZZ) times as much as in make test ..."
	@FUZZ=$(FUZZ) $(PY) -m pytest tests/fuzz $(PYTEST)
	@FUZZ=$(FUZZ) $(PY) -m pytest -m hypothesis tests/config tests/core tests/engine_launch tests/store $(PYTEST)

.PHONY: sim
sim: .venv ## random worlds in virtual time over the real core; SEEDS=100000 takes more
	@echo "$(SEEDS) random worlds ..."
	@$(PY) -m simulator --seeds $(SEEDS)

.PHONY: bench
bench: .venv ## every figure of docs/measurements.md (fifteen minutes, idle cores); ONLY="starts storm" takes some
	@$(PY) -m bench $(ONLY)

##@ Work on it

.PHONY: format
format: .venv ## put every file into the project's form
	@$(PY) -m ruff check --fix-only
	@$(PY) -m ruff format

.PHONY: docs
docs: .venv ## write docs/configuration.md again, from the schema and the rules
	@$(PY) -m motorctl.main schema --markdown > docs/configuration.md.new
	@mv docs/configuration.md.new docs/configuration.md

.PHONY: proto
proto: .venv ## generate the stubs of the .proto files again
	@echo "generating stubs (the compiler is installed into .venv-proto on first use) ..."
	@$(PY) proto/generate.py

.PHONY: .venv
.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "Motor needs Python 3.10 or newer; name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m demo.project_environment > /dev/null

.PHONY: clean
clean: ## delete what was made inside the repository, .venv included
	@rm -rf .venv .venv-proto .make .demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  .import_linter_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "the engine and the models in $(CACHE) stay; delete that folder to be rid of them"

##@ Install it

SYSTEM_UNITS := $(DESTDIR)/etc/systemd/system
SETTINGS := $(DESTDIR)/etc/motor

.PHONY: install-systemd
install-systemd: ## put the systemd units, and sample settings where there are none, below DESTDIR
	@install -d $(SYSTEM_UNITS) $(SETTINGS)
	@install -m 644 configs/systemd/*.service $(SYSTEM_UNITS)/
	@test -e $(SETTINGS)/deploy.json || install -m 644 configs/seed.json $(SETTINGS)/deploy.json
	@test -e $(SETTINGS)/nodemanager.yaml || install -m 644 configs/nodemanager.yaml $(SETTINGS)/nodemanager.yaml
	@echo "installed: $(notdir $(wildcard configs/systemd/*.service)) in $(SYSTEM_UNITS)"
	@echo "settings:  $(SETTINGS)/deploy.json and nodemanager.yaml (existing ones were kept)"
	@echo "next:"
	@echo "  1. the units run programs of /opt/motor: python3 -m venv /opt/motor && /opt/motor/bin/pip install $(CURDIR)"
	@echo "  2. on the controller's machine: edit deploy.json, /opt/motor/bin/motorctl validate /etc/motor/deploy.json,"
	@echo "     systemctl daemon-reload, systemctl enable --now motor-controller"
	@echo "  3. on every node: edit nodemanager.yaml, systemctl daemon-reload, systemctl enable --now motor-nodemanager"

.PHONY: help
help:
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.11  another Python     DEMO=--keep  leave the demo running     PYTEST='-k word'  some tests"
