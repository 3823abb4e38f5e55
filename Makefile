# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RAY_STAMP := $(VENV)/.installed-ray
OUT ?= out

.PHONY: help setup demo test lint types unit slow ray crash e2e-vllm e2e-campaign nightly bench lock schemas clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## Create .venv with the pinned dependencies and the opprof command

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "OpProf needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: setup ## Rehearse a small campaign, analyse the bundled H200 runs, one HTML report
	$(BIN)/python scripts/demo.py --out $(OUT)/demo

test: setup ## Lint, strict types and tests
	$(MAKE) -j2 lint types unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not ray"

slow: setup ## The end-to-end checks that .ci/run adds to `make test`
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow

ray: $(RAY_STAMP) ## Campaigns over a real Ray cluster of several nodes on this machine
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m ray tests/campaign

$(RAY_STAMP): $(STAMP) requirements-ray.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-ray.lock
	@touch $(RAY_STAMP)

KILLS ?= 200
crash: setup ## Kill a simulated campaign KILLS times, at every state change and at random; compare its results
	$(BIN)/python tests/campaign/crash_harness.py --kills $(KILLS)

e2e-vllm: ## The plugin against a real vLLM 0.24.0 on this CPU (makes its environment: 6 GB)
	scripts/e2e_vllm.sh 0.24.0

e2e-campaign: setup ## A campaign on real vLLM 0.24.0 on this CPU: detached, killed, resumed, packed (15 minutes)
	$(BIN)/python scripts/e2e_campaign_vllm.py --env "$$(scripts/vllm_cpu_env.sh 0.24.0 | tail -n 1)"

nightly: ## The plugin against the newest vLLM that runs here
	scripts/e2e_vllm.sh 0.32.0

bench: setup ## Speed and memory, as ratios against a floor in the same run
	$(BIN)/python bench/trace_read.py
	$(BIN)/python bench/layer1_read.py
	$(BIN)/python bench/client_load.py --rounds 1
	$(BIN)/python bench/recorder_step.py
	$(BIN)/python bench/materialize.py --patterns P03,P08
	$(BIN)/python bench/decide.py
	$(BIN)/python bench/scan.py --rounds 1

lock: ## Re-pin requirements.lock and requirements-ray.lock from pyproject.toml
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --extra dev --python-version 3.11 pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --extra ray --constraint requirements.lock --python-version 3.11 pyproject.toml -o requirements-ray.lock

schemas: setup ## Regenerate schemas/*.json from the Structs
	$(BIN)/python scripts/export_schemas.py schemas

clean: ## Remove what the targets made
	rm -rf $(VENV) $(OUT) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
