# make demo: train three methods on the embedded data and print one table.  make test: lint, types, tests.
# make test-federation: federations of real processes over the loopback, with faults.  make bench: ratios.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

.PHONY: demo test test-federation test-federation-results test-federation-faults bench bench-peers lint install dev clean

demo: $(VENV)/.installed
	$(BIN)/fedprompt compare digits6 --methods head-tune,fedvpt-d,pfedbayespt

test: lint
	$(BIN)/python -m pytest

# Two at once: a federation waits more than it computes.
test-federation: $(VENV)/.installed-federation
	$(MAKE) --jobs 2 --output-sync test-federation-results test-federation-faults

test-federation-results:
	$(BIN)/python -m pytest -m federation tests/flower/test_parity.py tests/flower/test_two_organisations.py \
		tests/flower/test_flower_simulation.py

test-federation-faults:
	$(BIN)/python -m pytest -m federation tests/flower/test_bad_nodes.py tests/flower/test_faults.py \
		tests/flower/test_server_killed.py

# Ratios against textbook code and peers, see benchmarks/README.md; PEERS is empty unless make bench-peers was run.
PEERS = $(wildcard .venv-peers/bin/python)
bench: $(VENV)/.installed-dev
	PYTHONPATH=tests $(BIN)/python benchmarks/run.py $(if $(PEERS),--peers $(abspath $(PEERS)))

bench-peers:
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[flower-simulation]' pfl

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

install: $(VENV)/.installed
dev: $(VENV)/.installed-dev

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,flower]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-federation: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,flower,flower-simulation]'
	touch $@

clean:
	rm -rf $(VENV) runs dist build
