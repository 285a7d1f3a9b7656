# Two commands do everything: `make lab` and `make test`. Each sets up what it needs first.
PRESET ?= smoke
PYTHON ?= python3
PORT ?= 8899
PY := .venv/bin/python

.PHONY: help setup engine lab test book serve site mutants lint bench clean

help:
	@echo "make lab [PRESET=smoke|cpu|gpu1|gpu2|gpu8]   run every lab here, build the book, show the results"
	@echo "make test      run the whole test suite"
	@echo "make engine    install vLLM beside the labs, in .engines/vllm (make lab and make book do it too)"
	@echo "make book      build the book (runs the labs that have no executed copy yet)"
	@echo "make serve     open the notebooks in JupyterLab"
	@echo "make site      open the built book in a headless Chromium with the network blocked (needs chromium)"
	@echo "make mutants   plant every known error and demand that a test notices"
	@echo "make lint      ruff and basedpyright"
	@echo "make bench     measure the tools themselves: trace analyzer and load client against others"
	@echo "make clean     remove build/ and caches; keeps .venv, runs/ and data/"

setup:
	@$(PYTHON) labkit/bootstrap.py

engine: setup
	@$(PY) -m labkit engine install || echo "setup: the vLLM labs will show records instead of running" >&2

lab: engine
	@$(PY) -m labkit lab --preset $(PRESET)

test: setup
	@$(PY) -m pytest -q

book: engine
	@$(PY) -m labkit batch --preset $(PRESET) --missing --quiet
	@$(PY) -m labkit book

serve: setup
	@$(PY) -m jupyter lab --ServerApp.root_dir=notebooks --port=$(PORT)

site: setup
	@$(PY) -m pytest -q -m site tests/site

mutants: setup
	@$(PY) tests/mutants/run.py

lint: setup
	@$(PY) -m ruff check .
	@$(PY) -m basedpyright

bench: setup
	@$(PY) benchmarks/trace_speed.py
	@$(PY) benchmarks/load_client.py

clean:
	rm -rf build .pytest_cache .ruff_cache .hypothesis
