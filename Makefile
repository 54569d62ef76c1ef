# The commands a newcomer needs. Each does its own set-up; cargo, python3 and a C compiler are enough.

DEMO ?= demo-data
CARGO ?= cargo
PYTHON ?= python3
VENV := target/venv
# `like-tests`: the extension module and the tests share one compilation of what both need (python/Cargo.toml).
DEVELOP = VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --quiet --features like-tests

.DEFAULT_GOAL := help
.PHONY: help demo test test-mpi test-frameworks test-old-torch pytest wheel lint ruff mypy deny advisories docs bench compare chaos chaos-short chaos-torch clean

help:          ## Show this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 20

# The profile `demo` and no optional features: a build of half the time. Measure speed with `cargo build --release`.
demo:          ## Generate click data, train a CTR-DNN on it with two servers and two workers, show AUC and samples/s
	$(CARGO) build --profile demo --no-default-features --package openfleet
	target/demo/openfleet gen criteo --rows 1000000 --test-rows 100000 --ids 1000000 --seed 1 --out $(DEMO)
	target/demo/fleetrun --server_num=2 --worker_num=2 --log_dir=$(DEMO)/log \
	  openfleet train --model ctr_dnn --mode async --train '$(DEMO)/train/*.txt' --test '$(DEMO)/test/*.txt' --json

test: pytest   ## Build everything and run every test
	$(CARGO) test --workspace
	$(CARGO) test --workspace --benches --quiet
	$(MAKE) chaos-short

# The bindings to MPI need `mpicc` and libclang. One test binary, without the other optional features.
LIBCLANG = $(foreach directory,$(LIBCLANG_PATH) /usr/lib/llvm*/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/local/lib \
  /opt/homebrew/opt/llvm/lib /Library/Developer/CommandLineTools/usr/lib,$(wildcard \
  $(directory)/libclang.so* $(directory)/libclang-[0-9]*.so* $(directory)/libclang.dylib))

test-mpi:      ## Run collective jobs under `mpirun -n 2` and `-n 3`, over TCP and by MPI; skipped without mpicc or libclang
	@if ! command -v mpicc > /dev/null; then \
	  echo "skipped: there is no mpicc (Debian and Ubuntu: apt-get install libopenmpi-dev)"; \
	elif [ -z "$(firstword $(LIBCLANG))" ]; then \
	  echo "skipped: there is no libclang (Debian and Ubuntu: apt-get install libclang-dev; elsewhere set LIBCLANG_PATH)"; \
	else \
	  $(CARGO) test --package openfleet --no-default-features --features mpi --test fleet mpirun -- --nocapture; \
	fi

pytest: $(VENV)/ready  ## Build the Python package into target/venv and run its tests
	$(DEVELOP)
	$(VENV)/bin/python -m pytest

# Its own environment: these packages are large. `make test-frameworks FRAMEWORKS='-k smoke'` selects tests.
FRAMEWORKS ?=
FRAMEWORKS_VENV := target/venv-frameworks

test-frameworks: $(FRAMEWORKS_VENV)/ready  ## Test the Python package with the frameworks it works with (Ray, PyTorch)
	VIRTUAL_ENV=$(abspath $(FRAMEWORKS_VENV)) $(FRAMEWORKS_VENV)/bin/maturin develop --quiet --features like-tests
	$(FRAMEWORKS_VENV)/bin/python -m pytest python/tests/frameworks $(FRAMEWORKS)

chaos-torch: $(FRAMEWORKS_VENV)/ready  ## Like chaos-short with 8 jobs of a PyTorch loop
	VIRTUAL_ENV=$(abspath $(FRAMEWORKS_VENV)) $(FRAMEWORKS_VENV)/bin/maturin develop --quiet --features like-tests
	$(FRAMEWORKS_VENV)/bin/python tests/chaos/chaos.py --form torch --runs 8 --seed 3 --dense 0 \
	  --binaries $(FRAMEWORKS_VENV)/bin $(CHAOS)

$(FRAMEWORKS_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(FRAMEWORKS_VENV)
	$(FRAMEWORKS_VENV)/bin/pip install --quiet 'maturin>=1.8,<2' 'numpy>=1.21' 'pytest>=7' 'ray>=2.9' 'torch>=2.5' accelerate lightning onnx onnxruntime
	touch $@

OLD_TORCH_VENV := target/venv-old-torch

test-old-torch: $(OLD_TORCH_VENV)/ready  ## Test the Python package with the oldest PyTorch that it supports, without most jobs
	VIRTUAL_ENV=$(abspath $(OLD_TORCH_VENV)) $(OLD_TORCH_VENV)/bin/maturin develop --quiet --features like-tests
	$(OLD_TORCH_VENV)/bin/python -m pytest python/tests/frameworks \
	  -k 'torch and not (jobs or ranks or other_modes or killed or page or example or averaged or loops)'

$(OLD_TORCH_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(OLD_TORCH_VENV)
	$(OLD_TORCH_VENV)/bin/pip install --quiet 'maturin>=1.8,<2' 'numpy>=1.21' 'pytest>=7' 'torch==2.5.*' onnx onnxruntime
	touch $@

# `ziglang` links against the glibc of 2014, whatever this machine has; a plain build runs only on systems as new as this one.
wheel: $(VENV)/ready   ## Build a wheel that installs on systems since 2014, into target/wheels
	$(VENV)/bin/pip install --quiet 'ziglang>=0.13'
	PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/maturin build --release --zig --compatibility manylinux2014

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet 'maturin>=1.8,<2' 'numpy>=1.21' 'pytest>=7' ruff mypy onnx onnxruntime pyarrow 'tritonclient[http]' 'moto[server]'
	touch $@

lint: ruff mypy deny  ## Formatting, clippy, Python linters and types, licences, documentation
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

ruff: $(VENV)/ready    ## Lint and format check of the Python code
	$(VENV)/bin/ruff check python examples tests comparisons docs/hooks.py docs/doctest_blocks.py
	$(VENV)/bin/ruff format --check python examples tests/chaos comparisons docs/hooks.py docs/doctest_blocks.py

# `stubtest` compares `_native.pyi` with the compiled module, so the module is built first.
mypy: $(VENV)/ready    ## Check the types of the Python package, and the stubs of its compiled module
	$(DEVELOP)
	$(VENV)/bin/python -m mypy
	$(VENV)/bin/python -m mypy.stubtest openfleet._native

# An installed cargo-deny is used; otherwise it is built once, without optimisation.
DENY = $(shell command -v cargo-deny || echo target/tools/bin/cargo-deny)

deny: $(DENY)  ## Licences, sources and duplicate versions of all dependencies
	$(DENY) --all-features check licenses bans sources

advisories: $(DENY)  ## Known vulnerabilities of the dependencies; downloads the list of advisories
	$(DENY) --all-features check advisories

target/tools/bin/cargo-deny:
	$(CARGO) install --quiet --locked --debug --root target/tools --target-dir target/tools/build cargo-deny@0.18.9

docs: $(VENV)/docs-ready  ## Build the documentation site into target/site
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	$(VENV)/bin/mkdocs build --strict --quiet
	cp -r target/doc target/site/rust

$(VENV)/docs-ready: $(VENV)/ready
	$(VENV)/bin/pip install --quiet 'mkdocs<2' 'mkdocs-material<10' 'mkdocstrings[python]<1' 'pymdown-extensions<11'  # mkdocstrings 0.30 calls their old highlighter
	touch $@

bench:         ## Run every benchmark; figures belong into docs/benchmarks.md
	$(CARGO) bench --workspace

# Options of comparisons/compare.py: `make compare COMPARE='--only servers --peers torch'`, `make compare COMPARE=--quick`.
COMPARE ?=

compare:       ## Train the same models with PyTorch, torchrec, PaddlePaddle and gensim; rewrites tables and chart of docs/
	$(CARGO) build --release --package openfleet
	$(PYTHON) comparisons/compare.py $(COMPARE)

# Options of tests/chaos/chaos.py: `make chaos CHAOS='--runs 50 --seed 7 --mode sync --keep'`.
CHAOS ?=

chaos: $(VENV)/ready   ## Kill, freeze and disconnect processes of 300 real jobs and check that every row is trained once
	$(CARGO) build --release --package openfleet
	VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --quiet --release
	$(VENV)/bin/python tests/chaos/chaos.py --runs 300 $(CHAOS)

chaos-short: $(VENV)/ready  ## The same with 20 jobs, on the build of the tests
	$(CARGO) test --workspace --no-run --quiet
	$(DEVELOP)
	$(VENV)/bin/python tests/chaos/chaos.py --runs 20 --dense 2 --binaries target/debug $(CHAOS)

clean:         ## Remove what was built and generated
	$(CARGO) clean
	rm -rf $(DEMO)
