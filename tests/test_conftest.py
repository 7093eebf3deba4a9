"""The net under the other tests: what it must catch, shown on small test files of their own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
LOOPS = 1 if sys.platform == "win32" else 2


@pytest.fixture
def house(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nmarkers =\n  spark: needs Java\n")
    return pytester


def test_an_async_test_runs_on_each_loop_and_a_plain_one_once(house: pytest.Pytester) -> None:
    house.makepyfile(
        """
        import asyncio
        async def test_async():
            assert asyncio.get_running_loop() is not None
        def test_plain():
            assert True
        """
    )
    house.runpytest_inprocess("-p", "no:cacheprovider", "--loops", "both").assert_outcomes(passed=LOOPS + 1)


def test_what_does_not_depend_on_the_loop_runs_on_one_of_them_and_some_on_each(house: pytest.Pytester) -> None:
    body = "    print('loop of', type(asyncio.get_running_loop()).__module__)"
    house.makepyfile("\n".join(["import asyncio", *(f"async def test_{number}():\n{body}" for number in range(20))]))
    result = house.runpytest_inprocess("-p", "no:cacheprovider", "-s")
    result.assert_outcomes(passed=20)
    for loop in ("asyncio", "uvloop")[:LOOPS]:
        assert f"loop of {loop}" in result.stdout.str()


def test_a_task_left_behind_fails_the_test(house: pytest.Pytester) -> None:
    house.makepyfile(
        """
        import asyncio
        kept = []
        async def test_leak():
            kept.append(asyncio.create_task(asyncio.sleep(60)))
        """
    )
    result = house.runpytest_inprocess("-p", "no:cacheprovider", "--loops", "both")
    result.assert_outcomes(passed=LOOPS, errors=LOOPS)
    result.stdout.fnmatch_lines(["*tasks left behind*"])


def test_an_unhandled_error_in_a_callback_fails_the_test(house: pytest.Pytester) -> None:
    house.makepyfile(
        """
        import asyncio
        async def test_callback():
            asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        async def test_never_retrieved():
            async def fail():
                raise ValueError("lost")
            asyncio.ensure_future(fail())
        """
    )
    result = house.runpytest_inprocess("-p", "no:cacheprovider", "--loops", "both")
    result.assert_outcomes(passed=2 * LOOPS, errors=2 * LOOPS)
    result.stdout.fnmatch_lines(["*ZeroDivisionError*", "*ValueError*"])


def test_a_fixture_may_keep_its_tasks_until_its_own_teardown(house: pytest.Pytester) -> None:
    house.makepyfile(
        """
        import asyncio, pytest
        @pytest.fixture
        async def server():
            async with asyncio.TaskGroup() as group:
                task = group.create_task(asyncio.sleep(60))
                yield task
                task.cancel()
        async def test_uses_it(server):
            assert not server.done()
        """
    )
    house.runpytest_inprocess("-p", "no:cacheprovider", "--loops", "both").assert_outcomes(passed=LOOPS)


def test_what_one_test_sets_up_for_the_logs_is_not_there_in_the_next(house: pytest.Pytester) -> None:
    house.makepyfile(
        """
        import logging
        from core.daemon import logs
        def test_sets_up():
            logs.set_up("json", "error")
            for handler in logging.getLogger().handlers:
                handler.setFormatter(logs.JsonFormatter())
        def test_has_its_own(caplog):
            logging.getLogger("some").warning("one %s", "two")
            assert caplog.messages == ["one two"]
            assert not [one for one in logging.getLogger().handlers if isinstance(one.formatter, logs.JsonFormatter)]
        """
    )
    house.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_files_given_by_name_have_the_fixtures_of_their_folders_in_any_order(house: pytest.Pytester) -> None:
    house.mkpydir("inner")
    inner = house.path / "inner"
    (inner / "conftest.py").write_text("import pytest\n@pytest.fixture\ndef needed():\n    return 1\n", encoding="utf-8")
    for name in ("first", "second"):
        (inner / f"test_{name}.py").write_text(f"def test_{name}(needed):\n    assert needed\n", encoding="utf-8")
    house.makepyfile("def test_outer():\n    assert True\n")
    (outer,) = house.path.glob("test_*.py")
    files = (inner / "test_first.py", outer, inner / "test_second.py")
    house.runpytest_inprocess("-p", "no:cacheprovider", *map(str, files)).assert_outcomes(passed=3)


STOPWATCHES = re.compile(r"\b(?:process_time|thread_time|perf_counter)(?:_ns)?\b")
HOLD_STOPWATCHES = {
    "core/sockets/test_many_peers.py": "prints latencies of a long search",
    "mdp/commands/test_open_loop.py": "compares when a request was sent with when it was due, never early",
    "mdp/worker/test_runner_iterations.py": "an idle worker that is awake is seen by its CPU time: all of it or none",
    "mutants/forked.py": "ends a process that loops, by its CPU time, when nobody is left to end it",
    "mutants/hunt.py": "runs the fastest tests first",
    "spec/test_limits.py": "an idle process that is awake is seen by its CPU time: all of it or none",
    "test_conftest.py": "names them",
    "test_runtime_seam.py": "names them",
}


def test_no_other_test_compares_what_something_took() -> None:
    """A busy machine made one of them fail: costs are measured in benchmarks, and counted in tests."""
    tests = Path(__file__).parent
    held = {str(path.relative_to(tests)) for path in tests.rglob("*.py") if STOPWATCHES.search(path.read_text(encoding="utf-8"))}
    assert held - {path for path in held if path.startswith("sim/")} == set(HOLD_STOPWATCHES)


def test_a_name_that_is_another_one_in_each_process_is_refused(house: pytest.Pytester) -> None:
    house.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("made", [object()], ids=str)
        def test_made(made):
            assert made
        """
    )
    result = house.runpytest_inprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*an id without the address*test_made*"])


def test_every_test_runs_once_and_a_group_in_one_process_and_whatever_does_not_pass_is_shown(house: pytest.Pytester) -> None:
    house.makepyfile(
        """
        import os
        import pytest
        def note(name):
            with open("ran", "a") as file:
                file.write(f"{name} {os.getpid()}\\n")
        @pytest.mark.parametrize("number", range(20))
        def test_alone(number):
            note(number)
        @pytest.mark.xdist_group("all")
        @pytest.mark.parametrize("number", range(20, 30))
        def test_together(number):
            note(number)
        @pytest.fixture
        def bad():
            raise ValueError("no set-up")
        def test_not_set_up(bad):
            assert True
        @pytest.fixture
        def worse():
            yield
            raise ValueError("no end")
        def test_not_taken_down(worse):
            assert True
        @pytest.mark.skip(reason="not here")
        def test_elsewhere():
            assert True
        """
    )
    result = house.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", "-rA")
    result.assert_outcomes(passed=31, errors=2, skipped=1)
    result.stdout.fnmatch_lines_random(["*ValueError: no set-up", "*ValueError: no end", "*not here", "PASSED *test_alone*19*"])
    ran = [(int(number), pid) for number, pid in map(str.split, (house.path / "ran").read_text(encoding="utf-8").splitlines())]
    assert sorted(number for number, _ in ran) == [*range(30)]
    assert len({pid for number, pid in ran if number >= 20}) == 1
