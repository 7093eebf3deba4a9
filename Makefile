# Every target sets up what it needs: a fresh machine wants Python 3.11 or later and make, no more.
#   make demo           3,376 airports through Spark and Majordomo, a table and a map in out/demo
#   make demo KILL=1    the same with one worker process killed in the middle
#   make test           lint, types, every test: what .ci/run runs
#   make lowest         what a machine with the oldest admitted dependencies would see: a part of the tests; make test does it too
#   make lint | sim | fuzz | soak | bench | differential    one part of it, or longer
#   make mutants [FILES=… SAMPLE=40 SEED=1]  mistakes that the tests would not see, in machines and hot files

SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
LOWEST_STAMP := .venv-lowest/.installed
SOURCES := $(wildcard majordomo_toolkit core mdp titanic bstar freelance pirate peering tests benchmarks examples deploy)
PYTEST := $(PY) -m pytest
# Three test processes: with two, half of two processors waits for programs that start and for answers that take their time.
# All Spark tests go to one of them and share its session.
JOBS ?= 3
# A process of the tests that dies ends the run and is named at its end: with another in its place pytest-xdist can wait for ever.
SPREAD := -n $(JOBS) --dist loadgroup --max-worker-restart 0
# What is asked to run for long ends when it is done, and not after the minutes a test may take otherwise.
LONG := --timeout 0 -o faulthandler_timeout=0

# Some hundred programs are started, and each process of the tests reads all of them: 14 s instead of 7 where no bytecode may be kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: lowest help venv java lint types test demo bench soak fuzz sim differential mutants clean

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

$(LOWEST_STAMP): pyproject.toml .ci/setup
	@.ci/setup lowest
	@touch $@

# Programs, security, the web page, and one job of Spark where there is Java: each dependency is used. The warnings are those of old releases.
# Of the programs above sockets, those tests in which a dependency has the word; the others would start the same programs once more.
LOWEST := tests/core/daemon/test_command.py tests/core/test_cli.py tests/core/security/test_key_files.py tests/core/security/test_curve.py tests/core/daemon/test_http.py \
	tests/spec/test_curve_sockets.py tests/mdp/observe/test_tracing.py tests/web/test_daemons.py \
	$(addprefix tests/mdp/commands/test_main.py::, test_wrong_use_is_2 test_worker_serves_the_services_it_is_given test_call_prints_reply_frames_one_a_line \
		test_broker_takes_its_options_from_file_and_shows_them) \
	$(addprefix tests/titanic/commands/test_main.py::, test_a_clean_store_is_0 test_export_writes_msgpack_and_parquet_with_the_bodies_as_they_are) \
	tests/mdp/spark/rows/test_row_frames.py tests/mdp/spark/rows/test_job.py::test_every_row_comes_back_in_order_with_its_reply

lowest: $(LOWEST_STAMP)
	@with="not spark"; ! .ci/setup java >/dev/null 2>&1 || with="spark or not spark"; \
	echo "==> pytest with the lowest versions of all dependencies"; \
	.venv-lowest/bin/python -m pytest -q $(SPREAD) -p no:cacheprovider -W default --disable-warnings -m "$$with" \
		-k "not damaged" $(LOWEST)

test: lint types lowest
	@without="not soak"; said=""; \
	.ci/setup java || { without="$$without and not spark"; said="$$said The Spark tests did not run: no Java."; }; \
	.ci/setup browser || { without="$$without and not browser"; said="$$said The tests in a browser did not run: no Chromium."; }; \
	.ci/setup strace || true; \
	echo "==> pytest, $(JOBS) processes"; \
	$(PYTEST) $(SPREAD) --durations=25 -m "$$without" && { [ -z "$$said" ] || echo "$$said"; }

demo: $(STAMP) java
	$(VENV)/bin/mdp demo $(if $(filter-out 0 no,$(KILL)),--kill)

bench: $(STAMP)
	$(PY) -m benchmarks

soak: $(STAMP)
	$(PYTEST) -m soak $(LONG) -s

fuzz: $(STAMP)
	$(PYTEST) -m hypothesis --hypothesis-profile fuzz $(LONG) -n $(JOBS)

sim: $(STAMP)
	SIM_STATES=20000000 SIM_DAMAGES=10000000 SIM_WALKS=1000000 $(PYTEST) tests/sim tests/mdp/broker/requests/test_random_walk.py tests/titanic/*/test_*crash.py tests/titanic/*/test_*damage.py -n $(JOBS) $(LONG) --sim-states 3000000

mutants: $(STAMP)
	$(PY) -m tests.mutants $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(BUDGET_S),--budget-s $(BUDGET_S)) \
		$(if $(ONLY),--only "$(ONLY)") $(FILES)

differential: $(STAMP)
	DIFFERENTIAL=100000 $(PYTEST) tests/interop/test_differential.py -n $(JOBS) $(LONG)

clean:
	rm -rf out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
