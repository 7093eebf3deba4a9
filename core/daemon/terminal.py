"""Frames on the command line: arguments in, lines or JSON out.

An argument is one frame, its bytes as the shell gave them; `-` reads one frame from standard input to its end. The output is the
bytes of each frame and a line break; on a terminal control characters are escaped. In JSON a frame is text if it is UTF-8, else
`{"base64": ...}`.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from core.daemon.logs import printable
from core.option_table import row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.daemon.option_fields import Decorator


def read_frames(arguments: Sequence[str]) -> list[bytes]:
    """Return one frame per argument; `-`, at most once, is standard input. Raises click.UsageError, also for too much input."""
    if list(arguments).count("-") > 1:
        raise click.UsageError("'-' reads standard input to its end and can be given once")
    return [_standard_input() if argument == "-" else os.fsencode(argument) for argument in arguments]


def _standard_input() -> bytes:
    limit = int(row_of("max_message_bytes").default)
    octets = sys.stdin.buffer.read(limit + 1)
    if len(octets) > limit:
        raise click.UsageError(f"more than {limit} bytes on standard input; that is the most a message may have")
    return octets


def json_frame(frame: bytes) -> str | dict[str, str]:
    try:
        return frame.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(frame).decode("ascii")}


def write_frames(frames: Sequence[bytes]) -> None:
    terminal = sys.stdout.isatty()
    for frame in frames:
        click.echo(printable(frame.decode("utf-8", "backslashreplace")) if terminal else frame)


def write_line(text: str) -> None:
    """Write a line that may have texts of peers: control characters are escaped."""
    click.echo(printable(text))


def json_option(text: str = "Print one JSON object.") -> Decorator:
    """Return an option --json; the function gets `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def write_reply(frames: Sequence[bytes], as_json: bool, **more: Any) -> None:
    """Write the frames of a reply, one a line, or as one JSON object that begins with `more`."""
    if as_json:
        write_json({**more, "frames": [json_frame(frame) for frame in frames]})
    else:
        write_frames(frames)


def write_json(value: Any) -> None:
    click.echo(json.dumps(value))
