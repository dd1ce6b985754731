.PHONY: setup drill test check bench clean
BIN := .venv/bin

setup: .venv/.installed  ## make .venv with pinned versions, fetch Prometheus and Alertmanager

.venv/.installed: pyproject.toml constraints.txt tools/setup.sh tools/fetch-monitoring.sh
	@tools/setup.sh

drill: setup  ## the first drill: a GPU is lost and reset on the embedded lab
	@$(BIN)/drill run gpu-reset

test: setup  ## all tests that this machine can run
	@$(BIN)/pytest

check: setup  ## lint, format and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

bench: setup  ## figures, printed as ratios within one run
	@$(BIN)/python -m benchmarks

clean:  ## remove what setup made
	rm -rf .venv .cache
