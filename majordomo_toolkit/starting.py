"""Signals while a daemon is imported: SIGTERM and SIGINT end it with exit code 0, SIGHUP is remembered.

`core.daemon.run` handles the signals once the loop runs. Importing takes some tenths of a second, in which a supervisor may stop the
daemon, or have it read files again that it has just read. This module is imported first and does nothing in other programs, nor for our
commands that only print: those end by the signal, so that their caller sees it.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from os.path import basename, splitext
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

__all__ = ["DAEMONS", "is_daemon"]

# Program, as package and as script -> its commands that are daemons.
DAEMONS: Final[Mapping[str, frozenset[str]]] = {
    "bstar": frozenset({"run", "witness"}),
    "core": frozenset({"monitor", "proxy"}),
    "freelance": frozenset({"names serve", "serve"}),
    "mdp": frozenset({"broker", "worker"}),
    "peering": frozenset({"broker"}),
    "pirate": frozenset({"queue", "worker"}),
    "titanic": frozenset({"mirror", "serve"}),
    "zmtp": frozenset({"monitor", "proxy"}),
}


def is_daemon(words: Sequence[str]) -> bool:
    """Return whether a command line (`sys.orig_argv`, interpreter first) starts one of our daemons."""
    for number, word in enumerate(words[1:], 1):
        rest = words[number + 1 :]
        if word == "-m" and rest:
            return _names_daemon(rest[0], rest[1:])
        program = splitext(basename(word))[0]
        if program in DAEMONS and basename(word) != word:
            return _names_daemon(program, rest)
    return False


def _names_daemon(program: str, rest: Sequence[str]) -> bool:
    commands = [word for word in rest if not word.startswith("-")]
    return not {" ".join(commands[:1]), " ".join(commands[:2])}.isdisjoint(DAEMONS.get(program, ()))


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(0)


def _remember(number: int, frame: FrameType | None) -> None:
    vars(_remember)["called"] = True  # `core.daemon.run` reads it when it replaces this handler


if is_daemon(sys.orig_argv) and threading.current_thread() is threading.main_thread():
    for _number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(_number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(_number, _end)
        atexit.register(signal.signal, _number, signal.SIG_IGN)  # the last moments, in which Python ends, change no exit code
    if hasattr(signal, "SIGHUP"):
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
            signal.signal(signal.SIGHUP, _remember)
        atexit.register(signal.signal, signal.SIGHUP, signal.SIG_IGN)
