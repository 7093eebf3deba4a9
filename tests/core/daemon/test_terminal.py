"""core.daemon.terminal: octets in and out of a command, and fault X3 on a terminal."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING

import click
import pytest

from core.daemon import terminal
from core.option_table import row_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Feed = Callable[[bytes], None]


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Feed:
    return lambda octets: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(octets)))


def test_arguments_are_frames(feed: Feed) -> None:
    feed(b"from\nstdin\xff\n")
    assert terminal.read_frames(["a", "-", "", "ä"]) == [b"a", b"from\nstdin\xff\n", b"", "ä".encode()]


def test_octets_that_are_no_text_survive_the_command_line() -> None:
    assert terminal.read_frames([os.fsdecode(b"\xff\xfe")]) == [b"\xff\xfe"]


def test_standard_input_can_be_read_once() -> None:
    with pytest.raises(click.UsageError):
        terminal.read_frames(["-", "-"])


def test_standard_input_is_bounded(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(b"x" * (int(row_of("max_message_bytes").default) + 1))
    with pytest.raises(click.UsageError):
        terminal.read_frames(["-"])


def test_frames_go_out_as_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    terminal.write_frames([b"a", b"", b"\xff\x1b[31m"])
    assert capfdbinary.readouterr().out == b"a\n\n\xff\x1b[31m\n"


def test_x3_a_terminal_gets_escapes(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    terminal.write_frames([b"ok \xc3\xa4", b"\xff\x1b[31m\n"])
    assert capfd.readouterr().out == "ok ä\n\\xff\\x1b[31m\\n\n"


def test_json(capfd: pytest.CaptureFixture[str]) -> None:
    terminal.write_json([terminal.json_frame(b"text"), terminal.json_frame(b"\xff\x00")])
    assert json.loads(capfd.readouterr().out) == ["text", {"base64": "/wA="}]
