# The commands a newcomer needs. Each does its own set-up; cargo, python3 and a C compiler are enough.

DEMO ?= demo-data
CARGO ?= cargo
PYTHON ?= python3
VENV := target/venv

.DEFAULT_GOAL := help
.PHONY: help demo test pytest wheel lint bench chaos chaos-short clean

help:          ## Show this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 20

demo:          ## Generate click data, train a CTR-DNN on it with two servers and two workers, show AUC and samples/s
	$(CARGO) build --release --package openfleet
	target/release/openfleet gen criteo --rows 1000000 --test-rows 100000 --ids 1000000 --seed 1 --out $(DEMO)
	target/release/fleetrun --server_num=2 --worker_num=2 --log_dir=$(DEMO)/log \
	  openfleet train --model ctr_dnn --mode async --train '$(DEMO)/train/*.txt' --test '$(DEMO)/test/*.txt' --json

test: pytest   ## Build everything and run every test
	$(CARGO) test --workspace
	$(MAKE) chaos-short

pytest: $(VENV)/ready  ## Build the Python package into target/venv and run its tests
	VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --quiet
	$(VENV)/bin/python -m pytest

# `ziglang` links against the glibc of 2014, whatever this machine has; a plain build runs only on systems as new as this one.
wheel: $(VENV)/ready   ## Build a wheel that installs on systems since 2014, into target/wheels
	$(VENV)/bin/pip install --quiet 'ziglang>=0.13'
	PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/maturin build --release --zig --compatibility manylinux2014

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet 'maturin>=1.8,<2' 'numpy>=1.21' 'pytest>=7' ruff onnx onnxruntime 'tritonclient[http]' 'moto[server]'
	touch $@

lint: $(VENV)/ready    ## Formatting, clippy with the guards of the rooms, documentation
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(VENV)/bin/ruff check python examples tests
	$(VENV)/bin/ruff format --check python examples tests/chaos
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

bench:         ## Run every benchmark; figures belong into docs/benchmarks.md
	$(CARGO) bench --workspace

# Options of tests/chaos/chaos.py: `make chaos CHAOS='--runs 50 --seed 7 --mode sync --keep'`.
CHAOS ?=

chaos: $(VENV)/ready   ## Kill, freeze and disconnect processes of 300 real jobs and check that every row is trained once
	$(CARGO) build --release --package openfleet
	VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --quiet --release
	$(VENV)/bin/python tests/chaos/chaos.py --runs 300 $(CHAOS)

chaos-short: $(VENV)/ready  ## The same with 20 jobs, on the build of the tests
	$(CARGO) build --package openfleet
	VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --quiet
	$(VENV)/bin/python tests/chaos/chaos.py --runs 20 --dense 2 --binaries target/debug $(CHAOS)

clean:         ## Remove what was built and generated
	$(CARGO) clean
	rm -rf $(DEMO)
