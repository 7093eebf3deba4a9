# Every target sets up what it needs: a new machine needs only Python 3.11 or later and make.
#   make demo           3,376 airports through Spark and Majordomo, a table and a map in out/demo
#   make demo KILL=1    the same with one worker process killed in the middle
#   make pipeline       files, streams, Titanic, workers that come and go, Parquet, a report, in out/pipeline (docs/pipeline.md)
#   make pipeline KILL=1  the same with every part killed once
#   make test           lint, types, every test: what .ci/run runs
#   make spark          every Spark test, also those that kill, submit and wait; make test has the short ones
#   make test-pure | test-compiled  every test on the sources as they are, or on the compiled modules; make test has a part of the second
#   make wheels         compiled wheels in dist/, one for each Python found here (PYTHONS="python3.11 …")
#   make docs           the documentation site, in out/site; open out/site/index.html
#   make lowest         a part of the tests with the oldest allowed dependencies; make test does it too
#   make lint | models | fuzz | soak | bench | differential    one part of it, or longer
#   make sim [SEED=7 HOURS=24 SCENARIO=one_store]  whole clusters in virtual time, until something fails
#   make mutants [FILES=… SAMPLE=40 SEED=1]  mistakes that the tests do not detect, in machines and hot files

SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
LOWEST_STAMP := .venv-lowest/.installed
SOURCES := $(wildcard .ci hatch_build.py majordomo_toolkit core mdp titanic bstar freelance pirate peering tests benchmarks examples deploy docs)
PYTEST := $(PY) -m pytest
# Four test processes on two processors: with fewer, one waits a third of the time for programs that start and for slow answers.
# All Spark tests go to one of them and share its session.
JOBS ?= 4
# If a test process dies, the run ends and names it: with a replacement, pytest-xdist can wait without end.
SPREAD := -n $(JOBS) --dist loadgroup --max-worker-restart 0
# Long runs have no time limit per test.
LONG := --timeout 0 -o faulthandler_timeout=0

# Some hundred programs are started, and each test process imports all modules: 14 s instead of 7 without bytecode files.
unexport PYTHONDONTWRITEBYTECODE

# Parts of `make test`.
.PHONY: set-up-lowest sources beside compiled said
.PHONY: docs spark test-pure test-compiled wheels lowest help venv java lint types test demo pipeline bench soak fuzz models sim differential mutants clean

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
	@$(PY) -m mypy || { echo "==> mypy once more: after a pull, what it has kept may be wrong"; rm -rf .mypy_cache; $(PY) -m mypy; }

$(LOWEST_STAMP): pyproject.toml .ci/setup
	@.ci/setup lowest
	@touch $@

# Programs, security, the web page, and one job of Spark where there is Java: each dependency is used. The warnings are those of old releases.
# Of the programs above sockets, only tests that use a dependency; the others would start the same programs once more.
LOWEST := tests/core/daemon/test_command.py tests/core/test_cli.py tests/core/security/test_key_files.py tests/core/security/test_curve.py tests/core/daemon/test_http.py \
	tests/spec/test_curve_sockets.py tests/mdp/typed tests/mdp/observe/test_tracing.py tests/web/test_daemons.py \
	$(addprefix tests/mdp/commands/test_main.py::, test_wrong_use_is_2 test_worker_serves_the_services_it_is_given test_call_prints_reply_frames_one_a_line \
		test_broker_takes_its_options_from_file_and_shows_them) \
	$(addprefix tests/titanic/commands/test_main.py::, test_a_clean_store_is_0 test_export_writes_msgpack_and_parquet_with_the_bodies_as_they_are) \
	tests/mdp/spark/rows/test_row_frames.py tests/mdp/spark/rows/test_job.py::test_every_row_comes_back_in_order_with_its_reply

lowest: $(LOWEST_STAMP)
	@with="not spark"; ! .ci/setup java >/dev/null 2>&1 || with="spark or not spark"; \
	echo "==> pytest with the lowest versions of all dependencies"; \
	.venv-lowest/bin/python -m pytest -q $(SPREAD) -p no:cacheprovider -W default --disable-warnings -m "$$with" \
		-k "not damaged" $(LOWEST)

# What a peer can send and what machines make of it, the comparison with libzmq, and runs of the simulator that must be one and the same:
# where a compiled module could differ from its source. The long hunts take all their examples here, and a part of them on the sources
# (tests/scenes/hunts.py). Of the rules for compiled modules, which are read in the sources, only the one that looks at the build in use.
COMPILED := tests/core/zmtp tests/core/net/test_inproc.py tests/core/pattern tests/core/machine tests/core/rpc tests/mdp/wire tests/mdp/broker/recordings tests/mdp/worker/test_session.py tests/mdp/worker/test_session_ends.py \
	tests/mdp/client tests/mdp/typed/test_calls.py tests/mdp/typed/test_hash_types.py tests/mdp/typed/test_hostile_cost.py tests/mdp/broker/requests/test_random_walk.py tests/mdp/broker/test_dispatcher.py tests/mdp/broker/test_dispatcher_model.py \
	tests/titanic/store/index tests/titanic/store/test_store.py tests/titanic/wire tests/titanic/journal/test_record.py tests/titanic/journal/test_segment_log.py \
	tests/fuzz tests/interop \
	tests/sim/cluster/test_cluster.py::test_one_seed_is_one_run_in_every_process \
	tests/test_kept_octets.py tests/test_compiled_modules.py::test_the_modules_in_use_are_those_that_were_asked_for
COMPILED_PYTEST := cd out/compiled && ../../.venv-compiled/bin/python -m pytest -p no:cacheprovider
MISSING := without="not soak"; said=""; \
	.ci/setup java || { without="$$without and not spark"; said="$$said The Spark tests did not run: no Java."; }; \
	.ci/setup browser || { without="$$without and not browser"; said="$$said The tests in a browser did not run: no Chromium."; }; \
	.ci/setup strace || true;

# Its parts are below and in .ci/test.py: the set-up, lint and types, then the tests in two rows: most of those on the sources; those with the
# lowest versions, the rest on the sources, and those on the compiled modules.
test:
	@.ci/setup uv || exit 1; exec $(PY) .ci/test.py

set-up-lowest: $(LOWEST_STAMP)

# Tests on the sources that go with the lowest versions and the compiled modules: the row of the others would be longer by half, and its four
# processes alone leave a third of two processors idle. Spark tests stay where the session is.
BESIDE := $(filter-out %/spark %/__pycache__,$(wildcard tests/titanic/*)) tests/sim tests/interop tests/bstar
ON_SOURCES = HUNTS=$$($(PY) -c 'from majordomo_toolkit import extension; print("all" if extension.impediment() else "")') \
	$(PYTEST) $(SPREAD) -m "$$without"

# Those that take minutes are not even imported: each process would do that.
sources: $(STAMP)
	@$(MISSING) echo "==> pytest, $(JOBS) processes"; $(ON_SOURCES) --durations=25 --ignore tests/soak $(addprefix --ignore ,$(BESIDE))

beside: $(STAMP)
	@$(MISSING) echo "==> pytest, the rest on the sources"; $(ON_SOURCES) -q $(BESIDE)

compiled:
	@$(MISSING) echo "==> pytest on the compiled modules"; ( $(COMPILED_PYTEST) -q $(SPREAD) -m "$$without" $(COMPILED) )

said:
	@$(MISSING) [ -z "$$said" ] || echo "$$said"

test-pure: $(STAMP)
	@$(MISSING) export MAJORDOMO_PURE=1 HUNTS=all; $(PYTEST) $(SPREAD) -m "$$without"; status=$$?; [ -z "$$said" ] || echo "$$said"; exit $$status

test-compiled: $(STAMP)
	@.ci/setup compiled
	@$(MISSING) ( $(COMPILED_PYTEST) $(SPREAD) -m "$$without" ); status=$$?; [ -z "$$said" ] || echo "$$said"; exit $$status

# Compiled for each Python; where one has no C compiler or mypyc, its wheel has the sources only.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14 python3.15
wheels:
	@mkdir -p dist; for python in $(PYTHONS); do \
		"$$python" -c '' 2>/dev/null || { echo "no $$python here"; continue; }; \
		echo "==> wheel for $$("$$python" -V)"; \
		"$$python" -m pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir dist . || exit 1; \
	done; ls dist

demo: $(STAMP) java
	$(VENV)/bin/mdp demo $(if $(filter-out 0 no,$(KILL)),--kill)

pipeline: $(STAMP) java
	$(PY) -m examples.pipeline $(if $(filter-out 0 no,$(KILL)),--kill)

docs: $(STAMP)
	$(PY) docs/pictures/draw.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --clean
	@echo "==> out/site/index.html"

bench: $(STAMP)
	$(PY) -m benchmarks

spark: $(STAMP) java
	$(PYTEST) -m "spark or soak" $(LONG) tests/mdp/spark tests/titanic/spark tests/soak/spark

soak: $(STAMP)
	$(PYTEST) -m soak $(LONG) -s

fuzz: $(STAMP)
	$(PYTEST) -m hypothesis --hypothesis-profile fuzz $(LONG) -n $(JOBS)

# Whole clusters in the simulator (specs/simulation.md); a failing seed is shrunk, kept in tests/sim/seeds and drawn in out/sim.
sim: $(STAMP)
	$(PY) -m tests.sim.cluster --hours $(or $(HOURS),24) $(if $(SEED),--seed $(SEED)) $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(MINUTES),--minutes $(MINUTES))

models: $(STAMP)
	HUNTS=all SIM_STATES=20000000 SIM_DAMAGES=10000000 SIM_WALKS=1000000 $(PYTEST) tests/sim tests/mdp/broker/requests/test_random_walk.py \
		$(wildcard tests/titanic/*/test_*crash.py tests/titanic/*/test_*damage.py tests/titanic/journal/test_cut.py tests/titanic/journal/test_faults.py) -n $(JOBS) $(LONG) --sim-states 3000000

mutants: $(STAMP)
	$(if $(FILES),,$(PY) -m tests.mutants --known)
	$(PY) -m tests.mutants $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(BUDGET_S),--budget-s $(BUDGET_S)) \
		$(if $(ONLY),--only "$(ONLY)") $(if $(NEW),--new) $(FILES)

differential: $(STAMP)
	DIFFERENTIAL=100000 $(PYTEST) tests/interop/test_differential.py -n $(JOBS) $(LONG)

clean:
	rm -rf out build dist .venv-compiled .mypy_cache .ruff_cache .pytest_cache .hypothesis
