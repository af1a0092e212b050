# Stowage. `make` alone lists what there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
RELEASE := $(TARGET)/release
export STOWAGE_BIN_DIR ?= $(RELEASE)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: binaries
binaries: ## the programs, built for release, in target/release
	@echo "==> building the programs"
	cargo build --locked --release --workspace --bins
	@echo "==> building the agent that ends where a test says"
	cargo build --locked --release --workspace --bin stowage-agent-faults --features node-agent/fault-points

.PHONY: controlplane
controlplane: binaries ## a real control plane for tests and demo, built once from Go modules
	@echo "==> control plane: the first build takes some minutes"
	$(RELEASE)/controlplane build

.PHONY: demo
demo: controlplane ## bases and modules on a real control plane, until Ctrl-C; ONCE=1 walks the seven operations and ends
	$(RELEASE)/demo $(if $(filter-out 0,$(ONCE)),--once)

.PHONY: test
test: controlplane ## every test: unit, property, golden, HTTP, and end to end on the real control plane
	@echo "==> tests"
	@mkdir -p $(TARGET)
	@cargo test --locked --workspace --no-fail-fast 2>&1 | tee $(TARGET)/test.log
	@awk '/^test result: ok/ {passed += $$4; ignored += $$8; files++} \
	  END {printf "==> all tests passed: %d tests in %d binaries, %d ignored\n", passed, files, ignored}' $(TARGET)/test.log

.PHONY: test-command
test-command: controlplane ## end-to-end tests that need no faults, with a command as base: STOWAGE_BASE_COMMAND, or the simulator
	STOWAGE_BASE_COMMAND="$${STOWAGE_BASE_COMMAND:-exec $(RELEASE)/arklet-simulator}" \
	  cargo test --locked -p harness --test e2e_path --test e2e_operations --test e2e_placement

.PHONY: test-scheduler
test-scheduler: controlplane ## end-to-end tests of placement with the kube-scheduler of another version: KUBERNETES=v1.33.5
	tests/controlplane/scheduler.sh "$(KUBERNETES)" $(TARGET)/controlplane $(TARGET)/scheduler-$(KUBERNETES)
	STOWAGE_CONTROLPLANE=$(TARGET)/scheduler-$(KUBERNETES) \
	  cargo test --locked -p harness --test e2e_placement --test e2e_extender --test e2e_races

.PHONY: lint
lint: ## formatting, and clippy with warnings as errors
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --bin stowage-agent-faults --features node-agent/fault-points -- -D warnings

.PHONY: deny
deny: ## licences, sources and duplicates of what is built in
	cargo deny --locked check bans licenses sources

.PHONY: doc
doc: ## API documentation, with warnings as errors
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items

.PHONY: bench-extender
bench-extender: ## time of filter and prioritize over HTTP at 100 to 15,000 Nodes, with 50 rules; then bench-scheduler
	cargo bench --locked -p scheduler-extender
	$(MAKE) --no-print-directory bench-scheduler

.PHONY: bench-scheduler
bench-scheduler: controlplane ## Pods per second of kube-scheduler with the extender, with a null one, with none; ARGS="--slots=1 --modules=500"
	$(RELEASE)/bench-scheduler $(ARGS)

.PHONY: bench-agent
bench-agent: controlplane ## memory, processor time and latency of the agent with 1,000 bases; ARGS="--bases=5000"
	$(RELEASE)/bench-agent $(ARGS)

.PHONY: bench-decide
bench-decide: ## instructions of one decision (needs valgrind), against the committed numbers; WRITE=1 commits new ones
	CARGO_INCREMENTAL=0 cargo build --locked --release -p harness --bin bench-decide
	policy/bench/decide.sh $(RELEASE)/bench-decide $(if $(filter-out 0,$(WRITE)),--write)

.PHONY: ci
ci: ## what the build service runs
	bash .ci/run
