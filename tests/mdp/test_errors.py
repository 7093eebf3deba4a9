"""Errors of requests: classes by code, numbers as fields, one line of text."""

from __future__ import annotations

import copy

import pytest

from mdp import errors
from mdp.errors import RequestError

CODES = {
    "NO_SERVICE": errors.NoService,
    "BUSY": errors.Busy,
    "TIMEOUT": errors.Timeout,
    "DEADLINE_EXCEEDED": errors.DeadlineExceeded,
    "WORKER_LOST": errors.WorkerLost,
    "DEAD_LETTER": errors.DeadLetter,
    "HANDLER_ERROR": errors.HandlerError,
    "CANCELLED": errors.Cancelled,
    "FORBIDDEN": errors.Forbidden,
    "BAD_REQUEST": errors.BadRequest,
    "BAD_ARGUMENTS": errors.BadArguments,
    "BAD_RESULT": errors.BadResult,
}


@pytest.mark.parametrize(("code", "kind"), CODES.items())
def test_class_of_a_code(code: str, kind: type[RequestError]) -> None:
    error = RequestError.of(code, "echo", attempts=3, after_s=7.5, text="why")
    assert type(error) is kind
    assert (error.code, error.service, error.attempts, error.after_s, error.text) == (code, "echo", 3, 7.5, "why")
    assert str(error).startswith("echo: ")
    assert str(error).endswith("after 7.500 s in 3 attempts (" + code + "): why")
    assert "\n" not in str(error)


def test_every_class_has_its_code() -> None:
    # The client adds kinds of its own, which never come over the wire.
    assert {code: kind for code, kind in RequestError.by_code.items() if kind.__module__ == errors.__name__} == CODES


def test_unknown_code() -> None:
    error = RequestError.of("TEAPOT", "echo")
    assert type(error) is errors.HandlerError
    assert error.code == "TEAPOT"


def test_a_class_of_a_program_stands_for_its_own_code_only() -> None:
    class NotSaid(errors.HandlerError):
        pass

    class Pretends(errors.HandlerError):
        default_code = "BUSY"

    class Odd(errors.HandlerError):
        default_code = "ODD_WAY"

        def __init__(self, item: str) -> None:
            super().__init__(text=item)

    def define() -> type[RequestError]:
        class SoldOut(errors.HandlerError):
            default_code = "SOLD_OUT_HERE"

        return SoldOut

    first, second = define(), define()
    try:
        assert NotSaid().code == "HANDLER_ERROR"
        assert type(RequestError.of("HANDLER_ERROR", "echo")) is errors.HandlerError
        assert type(RequestError.of("BUSY", "echo")) is errors.Busy
        assert (type(RequestError.of("ODD_WAY", "echo")), Odd("x").code) == (errors.HandlerError, "ODD_WAY")
        assert type(RequestError.of("SOLD_OUT_HERE", "echo")) is second is not first
    finally:
        del RequestError.by_code["SOLD_OUT_HERE"]


def test_timeout_is_a_timeout_of_python_too() -> None:
    with pytest.raises(TimeoutError):
        raise errors.Timeout("echo", after_s=1)


def test_errors_cross_process_borders_with_their_fields() -> None:
    error = RequestError.of("BUSY", "echo", attempts=2, after_s=0.5, text="full")
    other = copy.copy(error)
    assert type(other) is errors.Busy
    assert vars(other) == vars(error)
