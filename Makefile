# Two commands to know: `make demo` and `make test`. Each makes .venv and installs what it needs the first time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# What is installed, one file each: the package alone, and with the tools of the tests, the site, a release, development.
PACKAGE := $(VENV)/.package
TESTS := $(VENV)/.tests
SITE := $(VENV)/.site
RELEASE := $(VENV)/.release
FUZZ := $(VENV)/.fuzz
TOOLS := $(VENV)/.tools

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable

# A new .venv has no byte code yet: the first process writes it, and all others start in half the time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-deployment test-faults fuzz check format lint types imports docs bench wheel release clean

# Three seeds of twenty clients: local training, FedDistill, and FedL2G as published and with the recommended options.
demo: $(PACKAGE)
	$(BIN)/fedl2g compare --methods local,feddistill,fedl2g-l,fedl2g-l:preset=recommended --dataset digits \
	  --set image_size=16 --partition iid --clients 20 --models small --rounds 20 --set method.warmup_rounds=2 \
	  --seeds 3 --jobs 2 --out runs/demo
	$(BIN)/fedl2g report runs/demo -o runs/demo/report.html
	@echo "Look at runs/demo/curves.png and runs/demo/report.html"

# Files in their order: xdist would keep those with few tests for last, and they are the slow ones.
test: $(TESTS)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The Flower simulation, every kind of kill, and whatever else starts many processes or builds large networks.
test-slow: $(TESTS)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

# Real SuperLink and SuperNodes with TLS and authentication: minutes of process starts, so not part of `test`.
test-deployment: $(TESTS)
	$(BIN)/python -m pytest -m deployment tests/flower

# Random kills, full disks, signals, flipped bits and hostile directories; prints what it counted.
test-faults: $(TESTS)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m faults

# Ten minutes over all parsers of files and messages, by coverage where atheris installs; what it finds becomes a test.
SECONDS := 600
fuzz: $(FUZZ)
	$(BIN)/python tests/fuzz/fuzz.py --seconds $(SECONDS)

check: $(TOOLS) format lint types imports docs test

format: $(TOOLS)
	$(BIN)/ruff format --check .

lint: $(TOOLS)
	$(BIN)/ruff check .

types: $(TOOLS)
	$(BIN)/mypy

# Imports point one way: the map is in pyproject.toml.
imports: $(TOOLS)
	$(BIN)/lint-imports

# The site in build/site. A broken link, or a page that no menu names, is an error (not with --quiet, which hides it).
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(SITE)
	$(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html"

bench: $(TESTS)
	$(BIN)/python benchmarks/bench.py

wheel: $(RELEASE)
	$(BIN)/python -m build --wheel

# Source and wheel in dist/, checked, and tried as a stranger would: an empty environment, another folder.
release: $(RELEASE)
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/python tests/docs/try_release.py dist

clean:
	rm -rf $(VENV) build dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A change of the dependencies installs again; otherwise each is done once.
$(PACKAGE): pyproject.toml | $(BIN)/python
	$(INSTALL) .
	touch $@

$(TESTS): $(PACKAGE)
	$(INSTALL) ".[test]"
	touch $@

$(FUZZ): $(TESTS)
	-$(INSTALL) ".[fuzz]"
	touch $@

$(SITE): $(PACKAGE)
	$(INSTALL) ".[docs]"
	touch $@

$(RELEASE): $(PACKAGE)
	$(INSTALL) ".[release]"
	touch $@

$(TOOLS): $(PACKAGE)
	$(INSTALL) ".[dev]"
	touch $(TESTS) $(SITE) $(RELEASE) $@
