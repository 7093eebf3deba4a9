"""Errors of requests: classes by code, numbers as fields, one line of text."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

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
    "TOO_LARGE": errors.TooLarge,
    # Of the client alone: these never come over the wire.
    "UNREACHABLE": errors.Unreachable,
    "NOT_SUPPORTED": errors.NotSupported,
    "OVERRUN": errors.Overrun,
    "CLOSED": errors.ClientClosed,
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
    assert {code: kind for code, kind in RequestError.by_code.items() if kind.__module__ == errors.__name__} == CODES


def test_unknown_code() -> None:
    error = RequestError.of("TEAPOT", "echo")
    assert type(error) is errors.HandlerError
    assert error.code == "TEAPOT"


def test_a_class_of_a_program_stands_for_its_own_code_only() -> None:
    class NotSaid(errors.HandlerError):
        pass

    class Odd(errors.HandlerError):
        default_code = "ODD_WAY"

        def __init__(self, item: str) -> None:
            super().__init__(text=item)

    assert NotSaid().code == "HANDLER_ERROR"
    assert type(RequestError.of("HANDLER_ERROR", "echo")) is errors.HandlerError
    assert (type(RequestError.of("ODD_WAY", "echo")), Odd("x").code) == (errors.HandlerError, "ODD_WAY")


OWN_INIT = "def __init__(self, item=''): super().__init__(text=item)"


def source(name: str, code: str, body: str = "") -> str:
    return f"import mdp\nclass {name}(mdp.HandlerError):\n    default_code = {code!r}\n    {body}\n"


TAKEN = """
import mdp
for code in ("BUSY", "HANDLER_ERROR", "TOO_LARGE", "UNREACHABLE", "CLOSED", "NOT_SUPPORTED", "OVERRUN", "ERROR"):
    try:
        type("Mine", (mdp.HandlerError,), {"default_code": code, "__module__": "shop"})
    except TypeError as error:
        print(error)
"""


def test_a_code_of_the_toolkit_is_refused_where_the_class_is_made() -> None:
    lines = subprocess.run([sys.executable, "-c", TAKEN], capture_output=True, text=True, check=True).stdout.splitlines()
    assert all(line.startswith("error code '") and " of shop.Mine is that of mdp.errors." in line for line in lines)
    assert len(lines) == 8


@pytest.mark.parametrize("bodies", [("", ""), ("", OWN_INIT), (OWN_INIT, ""), (OWN_INIT, OWN_INIT)])
def test_two_classes_of_a_program_have_two_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bodies: tuple[str, str]) -> None:
    code = f"TAKEN_{tmp_path.name}"
    (tmp_path / f"left_{tmp_path.name}.py").write_text(source("Gone", code, bodies[0]))
    (tmp_path / f"right_{tmp_path.name}.py").write_text(source("Gone", code, bodies[1]))
    monkeypatch.syspath_prepend(tmp_path)
    left = importlib.import_module(f"left_{tmp_path.name}").Gone
    with pytest.raises(TypeError, match=rf"error code '{code}' of right_.*\.Gone is that of left_.*\.Gone"):
        importlib.import_module(f"right_{tmp_path.name}")
    assert type(RequestError.of(code, "echo")) is (errors.HandlerError if bodies[0] else left)


def test_a_class_that_is_made_again_takes_its_code_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reloaded module, a module under a second name (a program and its worker processes), a cell that runs again."""
    name, code = f"again_{tmp_path.name}", f"AGAIN_{tmp_path.name}"
    path = tmp_path / f"{name}.py"
    path.write_text(source("Gone", code))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    first = module.Gone
    second = importlib.reload(module).Gone
    assert type(RequestError.of(code, "echo")) is second is not first
    spec = importlib.util.spec_from_file_location(f"other_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    other = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, f"other_{name}", other)
    spec.loader.exec_module(other)
    assert type(RequestError.of(code, "echo")) is other.Gone
    scope: dict[str, object] = {"__name__": f"cells_{tmp_path.name}"}
    for _ in range(2):
        exec(source("Sold", f"SOLD_{tmp_path.name}"), scope)
        assert type(RequestError.of(f"SOLD_{tmp_path.name}", "echo")) is scope["Sold"]


def test_every_error_with_a_code_is_in_one_module() -> None:
    """Else a program could take the code of one that is imported later."""
    here = Path(errors.__file__)
    assert [path for path in here.parent.rglob("*.py") if "\n    default_code = " in path.read_text(encoding="utf-8")] == [here]


def test_timeout_is_a_timeout_of_python_too() -> None:
    with pytest.raises(TimeoutError):
        raise errors.Timeout("echo", after_s=1)


def test_errors_cross_process_borders_with_their_fields() -> None:
    error = RequestError.of("BUSY", "echo", attempts=2, after_s=0.5, text="full")
    other = copy.copy(error)
    assert type(other) is errors.Busy
    assert vars(other) == vars(error)
