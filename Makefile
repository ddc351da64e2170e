# make demo: train three methods on the embedded data and print one table.  make test: lint, types, tests.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

.PHONY: demo test lint install dev clean

demo: $(VENV)/.installed
	$(BIN)/fedprompt compare digits6 --methods head-tune,fedvpt-d,pfedbayespt

test: lint
	$(BIN)/python -m pytest

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
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) runs dist build
