"""What the programs of the guide share: a message on the screen, and an orderly end on Ctrl-C."""

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
    """Print each frame with its length, as text where it is text."""
    print("-" * 40)
    for frame in frames:
        text = frame.decode("ascii") if frame.isascii() and frame.decode("ascii").isprintable() else frame.hex().upper()
        print(f"[{len(frame):03}] {text}".rstrip())


def print_logs() -> None:
    """Print what the library logs the way the guide's programs speak: `W: no response from server, retrying...`."""
    logging.basicConfig(stream=sys.stdout, level="INFO", format="%(levelname).1s: %(message)s")


def run(program: Coroutine[None, None, None]) -> None:
    """Run a program to its end, or to Ctrl-C. What it prints is seen at once, also where the output is a pipe."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with suppress(KeyboardInterrupt):
        core.run(program)
