# Two commands: `make run` and `make test`. Each builds .venv when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
RUN_DIR ?= runs/reach

.PHONY: run test install lint bench docs soak clean

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("aimrl needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

# What `make run` needs: the package and the fast simulators.
.venv/.run-ready: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[envpool]'
	@touch $@

# Everything: every extra, the test and documentation tools.
.venv/.all-ready: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	@touch $@ .venv/.run-ready

install: .venv/.all-ready

clean:
	rm -rf .venv runs build dist docs/_build
