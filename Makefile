# make demo: train three methods on the embedded data and print one table.  make test: lint, types, tests.
# make test-federation: federations of real processes over the loopback, with faults.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

.PHONY: demo test test-federation lint install dev clean

demo: $(VENV)/.installed
	$(BIN)/fedprompt compare digits6 --methods head-tune,fedvpt-d,pfedbayespt

test: lint
	$(BIN)/python -m pytest

test-federation: $(VENV)/.installed-federation
	$(BIN)/python -m pytest tests/flower -m federation

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
