# Two commands: `make run` and `make test`. Each builds .venv when it is missing or out of date; a second call starts at once.
PYTHON ?= python3
BIN := .venv/bin
RUN_DIR ?= runs/reach
RUN_STEPS ?= 8000
SOAK_KILLS ?= 50

.PHONY: run test install lint bench docs soak clean

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("aimrl needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

# What `make run` needs: the package and the fast simulators, where there is a wheel of them for this machine.
.venv/.run-ready: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[envpool]' 2>.venv/envpool.log \
	  || { echo 'No EnvPool for this machine: the slower Gymnasium simulators will do.'; \
	       $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .; }
	@touch $@

# Everything: every extra, the test and documentation tools.
.venv/.all-ready: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	@touch $@ .venv/.run-ready

install: .venv/.all-ready

# A robot arm learns to reach without any reward from its environment. Each call starts afresh; only an earlier run's folder is removed.
run: .venv/.run-ready
	@if [ -f '$(RUN_DIR)/config.json' ]; then rm -rf '$(RUN_DIR)'; fi
	$(BIN)/aimrl train FetchReach-v4 --reward aim --preset fast --steps $(RUN_STEPS) --out '$(RUN_DIR)'
	$(BIN)/aimrl eval '$(RUN_DIR)' --episodes 100 --video --figures
	$(BIN)/aimrl report '$(RUN_DIR)' -o report.html
	@echo 'Open report.html; the run, its pictures and its videos (if this machine can draw them) are in $(RUN_DIR).'

lint: .venv/.all-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

test: lint
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder

bench: .venv/.all-ready
	$(BIN)/aimrl bench

docs: .venv/.all-ready
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo 'Open docs/_build/html/index.html.'

# Kills training at random moments and holds what comes of it to an uninterrupted run, bit for bit.
soak: .venv/.all-ready
	$(BIN)/python benchmarks/soak.py --kills $(SOAK_KILLS)

clean:
	rm -rf .venv build dist docs/_build
