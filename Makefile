.PHONY: setup drill test check messages bench clean setup-vllm test-vllm test-defects soak cluster-up cluster-down test-cluster test-hosts
BIN := .venv/bin
ROUNDS ?= 5
# Which engine the tests face, and where it and its model are.
VLLM := DRILL_CONTRACT_ENGINE=vllm DRILL_VLLM=$(CURDIR)/.cache/vllm/venv/bin/vllm DRILL_VLLM_MODEL=$(CURDIR)/.cache/vllm/model

setup: .venv/.installed  ## make .venv with pinned versions, fetch Prometheus and Alertmanager

.venv/.installed: pyproject.toml constraints.txt tools/setup.sh tools/fetch-monitoring.sh
	@tools/setup.sh

drill: setup  ## the first drill: a GPU is lost and reset on the embedded lab
	@$(BIN)/drill run gpu-reset

test: setup  ## all tests that this machine can run
	@$(BIN)/pytest

setup-vllm:  ## real vLLM for the CPU in .cache/vllm (6 GB, minutes), for `--engine vllm` and test-vllm
	@tools/setup-vllm.sh

test-vllm: setup setup-vllm  ## the contract suite and the four drills against real vLLM (an hour)
	@$(VLLM) $(BIN)/pytest -n0 -m "not emulator" tests/contract/test_engine_*.py
	@$(VLLM) $(BIN)/pytest -n0 -rP tests/vllm

cluster-up: setup  ## a single-node Kubernetes for the tests, as root; the first time it is built (15 minutes)
	@$(BIN)/python -m tests.cluster.node up

cluster-down: setup  ## takes it down; nothing of it stays on the machine but the cache
	@$(BIN)/python -m tests.cluster.node down

test-cluster: setup  ## the tests on Kubernetes: on the cluster of KUBECONFIG, else on a node of their own
	@[ -n "$$KUBECONFIG" ] || $(BIN)/python -m tests.cluster.node build
	@DRILL_TEST_CLUSTER=1 $(BIN)/pytest -n0 tests/cluster

test-hosts: setup  ## the tests on GPU hosts, as root: machines of their own with systemd and sshd, brought up and taken down
	@DRILL_TEST_HOSTS=1 $(BIN)/pytest -n0 tests/hosts

test-defects: setup  ## every planted defect is found by its own check, and the healthy lab passes (35 minutes)
	@$(BIN)/pytest -n0 -v --durations=0 tests/defects/run_table.py

soak: setup  ## ROUNDS rounds (5) of the four drills on the healthy lab, as root: none may fail (11 minutes each)
	@$(BIN)/python -m tests.soak --rounds $(ROUNDS)

check: setup  ## lint, format and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

messages: setup  ## the catalogues of the reports' languages, brought up to date with the code
	@$(BIN)/python tools/messages.py

bench: setup  ## figures, printed as ratios within one run
	@$(BIN)/python -m benchmarks

clean:  ## remove what setup made
	rm -rf .venv .cache
