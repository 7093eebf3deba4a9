"""core.daemon.logs: one line per record, nothing a terminal acts on (fault X3)."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.daemon.logs import JsonFormatter, TextFormatter, printable

RECORD = {"name": "mdp.broker", "levelno": logging.INFO, "levelname": "INFO", "created": 1_700_000_000.1239}


def record(message: str, *arguments: object, **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord({**RECORD, "msg": message, "args": arguments, **fields})


@pytest.mark.parametrize(
    "text,shown",
    [
        ("plain Zürich 東京", "plain Zürich 東京"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("two\r\nlines\ttab", "two\\r\\nlines\\ttab"),
        ("\u202eevil\u2028", "\\u202eevil\\u2028"),
        ("\x9b31m", "\\x9b31m"),
        ("\ud800", "\\ud800"),
    ],
)
def test_x3_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_x3_printable_whatever_comes(text: str) -> None:
    assert printable(text).isprintable()


def test_text_line() -> None:
    line = TextFormatter().format(record("worker %s", "joined", service=b"echo", credit=16, worker=b"\x00\xff", empty=""))
    assert line == '2023-11-14T22:13:20.123Z INFO mdp.broker worker joined service=echo credit=16 worker=00ff empty=""'


def test_values_a_reader_could_not_tell_apart_are_quoted() -> None:
    line = TextFormatter().format(record("x", reason='no "such" thing', pair="a=b", endpoints=["a", b"b"]))
    assert line.endswith('reason="no \\"such\\" thing" pair="a=b" endpoints="a, b"')


def test_json_line() -> None:
    line = JsonFormatter().format(record("joined\n", service=b"echo", credit=16, odd=object, level="faked", nothing=None))
    assert line.isascii()
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "INFO",
        "logger": "mdp.broker",
        "message": "joined\n",
        "service": "echo",
        "credit": 16,
        "odd": "<class 'object'>",
        "nothing": None,
    }


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_an_exception_is_part_of_its_line(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        line = formatter.format(record("failed", exc_info=sys.exc_info()))
    assert "\n" not in line
    assert "ValueError: bad\\nthing at " in line
    assert f"in {test_an_exception_is_part_of_its_line.__name__}" in line


def test_no_exception_no_field() -> None:
    assert "error" not in TextFormatter().format(record("fine", exc_info=(None, None, None)))


WITHOUT_FILES = """
import logging, resource, sys
from core.daemon.logs import set_up

set_up(sys.argv[1], "info")
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
try:
    open("/dev/null")
except OSError as error:
    logging.exception("two\\nlines", extra={"reason": error})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of open files")
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_is_logged_without_a_file_to_open(log_format: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_FILES, log_format], capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert "two\\nlines" in line
    assert "Too many open files" in line
