# Two commands to know: `make demo` and `make test`. Each makes .venv and installs what it needs the first time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# A new .venv has no byte code yet: the first process writes it, and all others start in half the time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-deployment check format lint types imports bench wheel clean

demo: $(INSTALLED)
	$(BIN)/fedl2g compare --methods local,fedl2g-l,fedl2g-f --dataset digits --clients 20 --partition dirichlet:0.1 \
	  --models small --rounds 60 --set method.warmup_rounds=10 --engine workers --workers 2 --out runs/demo
	@echo "Look at runs/demo/curves.png, or at one run: $(BIN)/fedl2g show runs/demo/fedl2g-f-s0"

# Files in their order: xdist would keep those with few tests for last, and they are the slow ones.
test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The Flower simulation, every kind of kill, and whatever else starts many processes or builds large networks.
test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

# Real SuperLink and SuperNodes with TLS and authentication: minutes of process starts, so not part of `test`.
test-deployment: $(INSTALLED)
	$(BIN)/python -m pytest -m deployment tests/flower

check: $(INSTALLED) format lint types imports test

format: $(INSTALLED)
	$(BIN)/ruff format --check .

lint: $(INSTALLED)
	$(BIN)/ruff check .

types: $(INSTALLED)
	$(BIN)/mypy

# Imports point one way: the map is in pyproject.toml.
imports: $(INSTALLED)
	$(BIN)/lint-imports

bench: $(INSTALLED)
	$(BIN)/python benchmarks/bench.py

wheel: $(INSTALLED)
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist

# A change of the dependencies installs again; otherwise this is done once.
$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable ".[dev]"
	touch $@
