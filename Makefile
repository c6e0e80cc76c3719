PYTHON ?= python3
# Two sets of releases of torch, FBGEMM and TorchRec work. The default is the set with which the models for CPUs that the
# package brings were measured; NEWEST=1 takes the newest releases, in an environment of its own (about 7 GB).
VENV := .venv$(if $(NEWEST),-newest)
CPU := cpu$(if $(NEWEST),-newest)
TORCHREC := $(if $(NEWEST),1.9.2,1.8.0)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTEST := $(BIN)/pytest --numprocesses=logical --maxprocesses=8 --dist=loadgroup
# Runs a command and says how long it took.
timed = start=$$(date +%s) && $(1) && echo "    took $$(($$(date +%s) - start)) s"
# Python keeps what it compiles: tests start many processes.
export PYTHONDONTWRITEBYTECODE =
METHODS := random,size_greedy,dim_greedy,lookup_greedy,size_lookup_greedy,neuroshard

.PHONY: help install demo test quick test-all test-both golden messages lint types format docs site results bench release-check clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

install: $(INSTALLED)  ## make .venv with everything needed on a CPU

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[$(CPU),torchrec-cpu,dev]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps torchrec==$(TORCHREC)
	$(BIN)/neuroshard compile
	touch $@

demo: $(INSTALLED)  ## measure, pre-train, search and evaluate on this machine's CPU, in a few minutes
	@echo "1/4 measuring table combinations and exchanges on this CPU -> demo/data"
	@$(call timed,$(BIN)/neuroshard collect experiment=collect_demo)
	@echo "2/4 fitting the cost models -> demo/models"
	@$(call timed,$(BIN)/neuroshard pretrain experiment=pretrain_demo)
	@echo "3/4 searching plans with every method -> demo/search"
	@rm -rf demo/search demo/evaluate
	@$(call timed,$(BIN)/neuroshard search -m experiment=search_demo searcher=$(METHODS))
	@echo "4/4 running the plans on this CPU -> demo/evaluate"
	@$(call timed,$(BIN)/neuroshard evaluate experiment=evaluate_demo)
	@echo
	@echo "measurements: demo/data      cost models: demo/models (bundle.json holds their card)"
	@echo "plans:        demo/search    measured:    demo/evaluate (plan.png, results.parquet, devices.parquet)"
	@echo "try next, with your own tables (a CSV with the columns name,rows,dim,pooling_factor):"
	@echo "  $(BIN)/neuroshard search model=demo/models batch_size=1024 tables=YOUR.csv"

test: lint  ## what CI runs: style, types, tests but for the slow ones
	$(MAKE) --no-print-directory --jobs=2 types quick

quick: $(INSTALLED)  ## tests but for the slow ones
	$(PYTEST)

test-all: lint types  ## style, types and every test, slow ones too; files are damaged in more ways
	NEUROSHARD_FUZZ=150 $(PYTEST) -m ""

test-both: test-all  ## every test, with both sets of releases of torch, FBGEMM and TorchRec
	$(MAKE) --no-print-directory test-all NEWEST=1

golden: $(INSTALLED)  ## compare plans, bundles and measurements with tests/golden/golden.json; UPDATE=1 writes it
	$(if $(UPDATE),rm -f tests/golden/golden.json)
	NEUROSHARD_GOLDEN_UPDATE=$(UPDATE) $(BIN)/pytest -m slow tests/golden

messages: $(INSTALLED)  ## write tests/golden/messages.json, the text of every error and warning; review the difference
	rm -rf build/messages && mkdir -p build/messages
	-NEUROSHARD_MESSAGES_UPDATE=$(CURDIR)/build/messages $(PYTEST) -m ""
	$(BIN)/python -m tests.golden.gather_messages build/messages

lint: $(INSTALLED)  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)  ## static types, strictly
	$(BIN)/mypy

format: $(INSTALLED)  ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED)  ## write what is generated: docs/reference, conf/settings, conf/hydra/help
	$(BIN)/python docs/generate.py

site: $(INSTALLED)  ## build the documentation as a site, build/site/index.html; a dead link fails
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[site]"
	$(BIN)/python docs/build_site.py

results: $(INSTALLED)  ## make the tables and pictures of docs/results/, but finished ones; about an hour, let nothing else run
	$(BIN)/python benchmarks/results.py
	$(BIN)/python benchmarks/h100.py

bench: $(INSTALLED)  ## what is measured rather than asserted, and isn't in docs/results/; let nothing else run
	$(BIN)/python benchmarks/training_steps.py bench/steps
	NEUROSHARD_FUZZ=10000 $(BIN)/pytest tests/test_damaged_files.py tests/neuroshard/models/test_bundle_values.py
	NEUROSHARD_FUZZ=10000 $(BIN)/pytest tests/search/space/test_exact.py -k impossible
	$(BIN)/python benchmarks/kill_runs.py

# Run without PYTHONPATH: a checkout on it would pass for the installed package, to pip too.
release-check: export PYTHONPATH :=
release-check: $(INSTALLED)  ## build sdist and from it the wheel, install that into an empty environment, search there
	rm -rf build/release
	$(BIN)/python -m build --outdir build/release/dist
	$(PYTHON) -m venv build/release/venv
	build/release/venv/bin/pip install --quiet --disable-pip-version-check "$$(ls -d build/release/dist/*.whl)[cpu]"
	cd build/release && venv/bin/neuroshard --version
	cd build/release && venv/bin/neuroshard search model=cpu searcher=dim_greedy out=found
	cd build/release && venv/bin/neuroshard evaluate found/plans/task-0000.json hardware=cpu out=measured
	@echo "the wheel works in an empty environment: build/release/dist"

clean:  ## remove the environment, caches and the demo's files
	rm -rf .venv .venv-newest demo build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
