"""Log lines of a failed handler, by the side at fault."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

import pytest

import mdp
import mdp.testing
from mdp.request import Request
from mdp.worker.failure_log import INTERVAL_S, LINES_MAX, FailureLog

if TYPE_CHECKING:
    from tests.scenes.programs import Programs

LOG = "mdp.worker"


def traces(caplog: pytest.LogCaptureFixture) -> str:
    """Return the tracebacks that were logged."""
    return "".join("".join(traceback.format_exception(*record.exc_info)) for record in caplog.records if record.exc_info)


@mdp.service("breaks")
async def breaks(what: str) -> str:
    shelf = {"tea": 3}
    return str(shelf[what])


@mdp.service("refuses")
async def refuses(what: str) -> str:
    raise mdp.HandlerError(code="NOT_IN_STOCK", text=f"no {what} left")


@mdp.service("lies")
async def lies() -> int:
    return "text"  # type: ignore[return-value]


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOG and record.levelno == level]


async def test_a_broken_handler_is_an_error_with_message_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with mdp.testing.broker(breaks) as local:
        with caplog.at_level(logging.INFO, LOG), pytest.raises(mdp.HandlerError) as caught:
            await local.client.call("breaks", "coffee")
    (line,) = lines(caplog, logging.ERROR)
    assert line.startswith("breaks: handler breaks failed with KeyError: 'coffee', id ")
    assert caught.value.text == f"KeyError, id {line[-8:]}"
    assert "return str(shelf[what])" in traces(caplog)  # not in the formatted text: another library may have replaced the formatter


async def test_an_error_of_the_caller_is_logged_as_info(caplog: pytest.LogCaptureFixture) -> None:
    async with mdp.testing.broker(breaks, refuses) as local:
        with caplog.at_level(logging.INFO, LOG):
            with pytest.raises(mdp.BadArguments) as wrong:
                await local.client.call("breaks", 7)
            with pytest.raises(mdp.HandlerError) as refused:
                await local.client.call("refuses", "tea")
            counters = local.workers[1].runner_counters
    assert (refused.value.code, refused.value.text) == ("NOT_IN_STOCK", "no tea left")
    assert lines(caplog, logging.ERROR) == lines(caplog, logging.WARNING) == []
    assert f"breaks: arguments of a caller do not fit breaks: BAD_ARGUMENTS: {wrong.value.text}" in caplog.text
    assert "refuses: refuses refused a caller: NOT_IN_STOCK: no tea left" in caplog.text
    assert "Traceback" not in caplog.text
    assert (counters.errors, counters.refusals) == (1, 1)


async def test_an_error_of_the_author_is_logged_as_error(caplog: pytest.LogCaptureFixture) -> None:
    async with mdp.testing.broker(lies) as local:
        with caplog.at_level(logging.INFO, LOG), pytest.raises(mdp.BadResult):
            await local.client.call("lies")
    (line,) = lines(caplog, logging.ERROR)
    assert "expected int, got str" in line
    assert "Traceback" not in caplog.text


async def test_a_text_may_be_given_as_to_any_exception(caplog: pytest.LogCaptureFixture) -> None:
    async def refuses(request: Request) -> bytes:
        raise mdp.HandlerError("no tea left", code="NOT_IN_STOCK")

    async with mdp.testing.broker() as local:
        await local.add_worker("tea", refuses)
        with caplog.at_level(logging.INFO, LOG), pytest.raises(mdp.HandlerError) as caught:
            await local.client.request("tea", b"x")
    assert (caught.value.service, caught.value.code, caught.value.text) == ("tea", "NOT_IN_STOCK", "no tea left")
    assert lines(caplog, logging.ERROR) == []


async def test_an_error_of_another_worker_that_a_handler_did_not_expect_is_its_own_failure(caplog: pytest.LogCaptureFixture) -> None:
    async with mdp.testing.broker(refuses) as local:

        async def asks(request: Request) -> bytes:
            return await local.client.call("refuses", "tea")  # type: ignore[no-any-return]

        worker = await local.add_worker("asks", asks)
        with caplog.at_level(logging.INFO, LOG), pytest.raises(mdp.HandlerError) as caught:
            await local.client.request("asks", b"x")
        assert (caught.value.code, caught.value.text) == ("NOT_IN_STOCK", "no tea left")
        assert worker.runner_counters.refusals == 0
    (line,) = lines(caplog, logging.ERROR)
    assert "asks failed with HandlerError: refuses: the handler failed" in line


async def test_a_result_of_another_type_is_named_without_the_text_for_callers(caplog: pytest.LogCaptureFixture) -> None:
    @mdp.service("count")
    async def count() -> int:
        return "three"  # type: ignore[return-value]  # the mistake

    async with mdp.testing.broker(count) as local:
        with caplog.at_level(logging.INFO, LOG), pytest.raises(mdp.BadResult):
            await local.client.call("count")
    (line,) = lines(caplog, logging.ERROR)
    assert line.startswith("count: handler ")
    assert ".count failed with BadResult: " in line
    assert ".count: expected int, got str, id " in line


@pytest.mark.parametrize("error", [ValueError("why"), mdp.HandlerError(text="why")])
def test_the_number_of_lines_is_limited_and_the_left_out_ones_are_counted(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    now = 100.0
    failures = FailureLog(lines, clock=lambda: now)
    request = Request("any", [b"secret"], b"", b"", None)
    with caplog.at_level(logging.INFO, LOG):
        for _ in range(LINES_MAX + 7):
            failures.note(request, error)
        assert len(caplog.records) == LINES_MAX
        now += INTERVAL_S
        failures.note(request, error)
        failures.note(request, error)
    *_, told, last = caplog.records
    assert (len(caplog.records), vars(told)["left_out"], hasattr(last, "left_out")) == (LINES_MAX + 2, 7, False)
    assert "secret" not in caplog.text


def test_texts_that_are_too_long_or_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise KeyError

    failures = FailureLog(lines)
    request = Request("any", [b"x"], b"", b"", None)
    assert failures.note(request, mdp.HandlerError(text="y" * 5000)) == ("HANDLER_ERROR", "y" * 1000, True)
    assert failures.note(request, mdp.HandlerError(code="no code")) == ("HANDLER_ERROR", "HandlerError", True)
    code, text, deliberate = failures.note(request, Odd())
    assert (code, text.partition(", id ")[0], deliberate) == ("HANDLER_ERROR", "Odd", False)
    assert "failed with Odd: a message that cannot be read: KeyError" in caplog.text
    failures.note(request, ValueError("z" * 5000))
    assert "z" * 1000 in caplog.records[-1].getMessage()
    assert "z" * 1001 not in caplog.records[-1].getMessage()


@pytest.mark.parametrize("error", [ValueError("why"), mdp.HandlerError(text="why")])
def test_payloads_are_logged_if_the_option_says_so(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    failures = FailureLog(lines, payloads=True)
    with caplog.at_level(logging.INFO, LOG):
        failures.note(Request("any", [b"first\n", b"\xff"], b"", b"", None), error)
        failures.note(Request("any", [b"x" * 600, b"y" * 600, b"z"], b"", b"", None), error)
    short, long = (vars(record)["payload"] for record in caplog.records)
    assert short == r"'first\n' '\xff'"
    assert long == f"'{'x' * 600}' '{'y' * 400}' … 1201 bytes"


def test_an_unknown_choice_of_payloads_is_refused() -> None:
    with pytest.raises(ValueError, match="log_payloads is 'always'; it must be one of never, errors"):
        mdp.WorkerOptions(log_payloads="always")


@pytest.mark.parametrize("choice", ["never", "errors"])
def test_the_command_logs_payloads_of_failures_only_if_told(programs: Programs, choice: str) -> None:
    programs.start("mdp", "broker", "--bind", "ipc://broker.sock").said("broker serves")
    worker = programs.start("mdp", "worker", "--broker", "ipc://broker.sock", "--service", "fail", "--log-payloads", choice)
    worker.said("registered")
    assert programs.run("mdp", "call", "--broker", "ipc://broker.sock", "fail", "why", "card 4711").code == 1
    assert ("card 4711" in worker.said("failed")) is (choice == "errors")


def test_the_log_of_the_command_says_what_failed_by_default(programs: Programs) -> None:
    programs.start("mdp", "broker", "--bind", "ipc://broker.sock").said("broker serves")
    worker = programs.start("mdp", "worker", "--broker", "ipc://broker.sock", "--service", "fail")
    worker.said("registered")
    assert programs.run("mdp", "call", "--broker", "ipc://broker.sock", "fail", "no such customer").code == 1
    line = worker.said("failed")
    assert "ERROR" in line
    assert "RuntimeError: no such customer" in line
    assert "builtin_handlers.py" in line
