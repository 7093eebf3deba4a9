# Every target sets up what it needs: a fresh machine wants Python 3.11 or later and make, no more.
#   make demo           3,376 airports through Spark and Majordomo, a table and a map in out/demo
#   make demo KILL=1    the same with one worker process killed in the middle
#   make test           lint, types, every test on both event loops: what .ci/run runs
#   make lint | sim | fuzz | soak | bench    one part of it, or longer

SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
SOURCES := $(wildcard core mdp titanic bstar freelance pirate peering tests benchmarks examples deploy)
PYTEST := $(PY) -m pytest
# Two test processes. All Spark tests go to one of them and share its session.
JOBS ?= 2
# What is asked to run for long ends when it is done, and not after the minutes a test may take otherwise.
LONG := --timeout 0 -o faulthandler_timeout=0

.PHONY: help venv java lint types test demo bench soak fuzz sim clean

help:
	@sed -n 's/^#   //p' Makefile

$(STAMP): pyproject.toml .ci/setup
	@.ci/setup venv
	@touch $@

venv: $(STAMP)

java:
	@.ci/setup java

lint: $(STAMP)
	@echo "==> ruff"
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m ruff format --check $(SOURCES)

types: $(STAMP)
	@echo "==> mypy (strict)"
	$(PY) -m mypy

test: lint types
	@without="not soak"; said=""; \
	.ci/setup java || { without="$$without and not spark"; said="$$said The Spark tests did not run: no Java."; }; \
	.ci/setup browser || { without="$$without and not browser"; said="$$said The tests in a browser did not run: no Chromium."; }; \
	.ci/setup strace || true; \
	echo "==> pytest, $(JOBS) processes"; \
	$(PYTEST) -n $(JOBS) --dist loadgroup -m "$$without" && { [ -z "$$said" ] || echo "$$said"; }

demo: $(STAMP) java
	$(VENV)/bin/mdp demo $(if $(filter-out 0 no,$(KILL)),--kill)

bench: $(STAMP)
	$(PY) -m benchmarks

soak: $(STAMP)
	$(PYTEST) -m soak $(LONG) -s

fuzz: $(STAMP)
	$(PYTEST) -m hypothesis --hypothesis-profile fuzz $(LONG) -n $(JOBS)

sim: $(STAMP)
	SIM_STATES=20000000 SIM_DAMAGES=10000000 $(PYTEST) tests/sim tests/titanic/test_*_crash.py tests/titanic/test_*_damage.py -n $(JOBS) $(LONG) --sim-states 3000000

clean:
	rm -rf out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
