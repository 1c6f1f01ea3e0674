# Everything that a newcomer, a developer or CI types. `make help` lists it.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# One target directory serves every clone of a user, so that a fresh clone does not compile the
# dependencies again. Without a home it is the clone's own; `make clean` empties it.
ifndef CARGO_TARGET_DIR
cache := $(or $(XDG_CACHE_HOME),$(addsuffix /.cache,$(HOME)))
export CARGO_TARGET_DIR := $(or $(if $(cache),$(shell \
	mkdir -p '$(cache)/gpuwhy/target' 2>/dev/null && [ -w '$(cache)/gpuwhy/target' ] && \
	echo '$(cache)/gpuwhy/target')),$(CURDIR)/target)
endif

# Network namespaces and probes need privileges; docs/privileges.md has the ways without root.
sudo := $(if $(filter 0,$(shell id -u)),,sudo)
# A copy in the clone: another clone may build into the same target directory.
gpuwhy := target/bin/gpuwhy
PREFIX ?= /usr/local

.PHONY: help
help: ## This list.
	@sed -n 's/^\([a-z%-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

.PHONY: demo
demo: release ## Shows a real verdict about a real slowdown; leaves it in target/demo.
	@mkdir -p target/demo
	$(sudo) $(gpuwhy) demo --output target/demo

.PHONY: test
test: ## Everything that must hold before a change is kept. V=1 shows all output.
	@scripts/test.sh

.PHONY: doctor
doctor: release ## What this machine lets gpuwhy see, and the fix for what it does not.
	$(gpuwhy) doctor

.PHONY: release
release: ## Installs what the build lacks and builds target/bin/gpuwhy.
	@scripts/setup.sh build run
	@scripts/own-target.sh
	cargo build --release --locked --package gpuwhy --package gpuwhy-bench --package gpuwhy-probe --bins
	cargo build --release --locked --package gpuwhy-inject --package gpuwhy-interpose --package gpuwhy-python --lib
	@mkdir -p target/bin
	@install -m 755 '$(CARGO_TARGET_DIR)/release/gpuwhy' $(gpuwhy)
	@install -m 755 '$(CARGO_TARGET_DIR)/release/gpuwhy-bench' target/bin/gpuwhy-bench
	@install -m 755 '$(CARGO_TARGET_DIR)/release/gpuwhy-probe' target/bin/gpuwhy-probe
	@install -m 755 '$(CARGO_TARGET_DIR)/release/libgpuwhy_inject.so' target/bin/libgpuwhy_inject.so
	@install -m 755 '$(CARGO_TARGET_DIR)/release/libgpuwhy_interpose.so' target/bin/libgpuwhy_interpose.so
	@scripts/wheel.py '$(CARGO_TARGET_DIR)/release/libgpuwhy_python.so' target/bin

# `make install DESTDIR=…` stages a package.
.PHONY: install
install: as = $(if $(or $(DESTDIR),$(shell [ -w '$(PREFIX)' ] || [ -w '$(dir $(PREFIX))' ] && echo 1)),,$(sudo))
install: release ## Copies the programs to PREFIX (/usr/local), by sudo if that is not yours.
	$(as) install -d '$(DESTDIR)$(PREFIX)/bin'
	for program in gpuwhy gpuwhy-bench gpuwhy-probe libgpuwhy_inject.so libgpuwhy_interpose.so; do \
		$(as) install -m 755 target/bin/$$program '$(DESTDIR)$(PREFIX)/bin/' || exit; done
	$(as) install -d '$(DESTDIR)$(PREFIX)/lib'
	$(as) cp -r target/bin/gpuwhy-python '$(DESTDIR)$(PREFIX)/lib/'
	[ ! -f target/bin/gpuwhy-query ] || $(as) install -m 755 target/bin/gpuwhy-query '$(DESTDIR)$(PREFIX)/bin/'

.PHONY: pictures
pictures: ## Takes the README's pictures of what `make demo` left; needs Chromium.
	@scripts/setup.sh pictures
	scripts/pictures.sh

.PHONY: query
query: release ## Builds the SQL engine, target/bin/gpuwhy-query: half an hour, once.
	cargo build --release --locked --package gpuwhy-query --bin gpuwhy-query
	@install -m 755 '$(CARGO_TARGET_DIR)/release/gpuwhy-query' target/bin/gpuwhy-query

bench-%: release ## Measures, writes bench/results/%.json and the tables in docs.
	@scripts/setup.sh bench
	@mkdir -p bench/results
	$(sudo) $(if $(wildcard bench/$*.sh),bench/$*.sh $(gpuwhy),$(gpuwhy) bench $*)
	cargo xtask docs

.PHONY: gpu-pack
gpu-pack: ## Builds target/gpu: what gpu-check runs, for a machine that has no cargo.
	@scripts/setup.sh build
	scripts/gpu-pack.sh

.PHONY: gpu-check
gpu-check: ## On a machine with a GPU: proves what docs/unproven.md lists. STANDIN=1: without one.
	@[ -x target/gpu/gpuwhy ] || $(MAKE) gpu-pack
	$(sudo) scripts/gpu-check.sh $(if $(STANDIN),--standin)

.PHONY: gpu-probe-check
gpu-probe-check: ## On a machine with a GPU: device probes on it, in ten minutes. STANDIN=1: without one.
	@[ -x target/gpu/gpuprobe ] || $(MAKE) gpu-pack
	$(sudo) scripts/gpu-probe-check.sh $(if $(STANDIN),--standin)

.PHONY: nccl
nccl: ## Fetches the libnccl of three releases (1.3 GB), which tests of the plug-in drive; `scripts/nccl.sh all`: six.
	scripts/nccl.sh

.PHONY: programs-env
programs-env: ## Installs the programs of Python that `make bench-real` disturbs (3.2 GB): XGBoost, JAX, TensorFlow, llama.cpp and others.
	scripts/programs-env.sh llama more

.PHONY: train-env
train-env: ## Builds the Python of `make bench-train` beside that of `make llm-env` (0.3 GB more): PyTorch, transformers, Lightning.
	scripts/train-env.sh

.PHONY: llm-env
llm-env: ## Builds an environment with a real vLLM on CPUs (5.9 GB), which tests drive if GPUWHY_LLM_ENV names it.
	scripts/llm-env.sh

.PHONY: fuzz
fuzz: ## Runs each fuzz target for FUZZ_SECONDS (60).
	scripts/fuzz.sh $(or $(FUZZ_SECONDS),60)

.PHONY: sanitize
sanitize: ## What lives in other people's processes, under sanitizers (nightly toolchain).
	scripts/sanitize.sh all

.PHONY: loom
loom: ## Every order of events in models of the lock-free code.
	scripts/loom.sh

.PHONY: fmt
fmt: ## Formats all code.
	cargo fmt --all
	@[ ! -f fuzz/Cargo.toml ] || cargo fmt --manifest-path fuzz/Cargo.toml

.PHONY: docs
docs: ## Writes the generated pages again.
	cargo xtask docs

.PHONY: clean
clean: ## Removes what was built, in the target directory that clones share too.
	cargo clean
	rm -rf target
