"""Helpers of the guide's programs: printing a message, and an orderly end on Ctrl-C."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import core

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["dump", "print_logs", "run"]


def dump(frames: list[bytes]) -> None:
    """Print each frame with its length, as text if it is text."""
    print("-" * 40)
    for frame in frames:
        text = frame.decode("ascii") if frame.isascii() and frame.decode("ascii").isprintable() else frame.hex().upper()
        print(f"[{len(frame):03}] {text}".rstrip())


def print_logs() -> None:
    """Print the library's logs in the style of the guide's programs: `W: no response from server, retrying...`."""
    logging.basicConfig(stream=sys.stdout, level="INFO", format="%(levelname).1s: %(message)s")


def run(program: Coroutine[None, None, None]) -> None:
    """Run a program to its end, or to Ctrl-C. Its output is line-buffered, also in a pipe."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with suppress(KeyboardInterrupt):
        core.run(program)
