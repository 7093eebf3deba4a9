"""First steps of our commands: standard streams, and signals while a daemon is imported.

SIGTERM and SIGINT end a daemon with exit code 0 there, SIGHUP is remembered.

`core.daemon.run` handles the signals once the loop runs. Importing takes some tenths of a second, in which a supervisor may stop the
daemon, or have it read files again that it has just read. This module is imported first and does nothing in other programs, nor for our
commands that only print: those end by the signal, so that their caller sees it.

A command may be started with closed standard streams. Sockets and files would get their numbers: uvloop aborts when it closes one, and what
is printed would go to a peer.
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

__all__ = ["DAEMONS", "command_of", "is_daemon", "open_streams"]

_STDERR: Final = 2
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


def command_of(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return which program of ours a command line (`sys.orig_argv`, interpreter first) starts, with its arguments; "" for none."""
    for number, word in enumerate(words[1:], 1):
        rest = words[number + 1 :]
        module = word == "-m" and bool(rest)
        program = rest[0] if module else splitext(basename(word))[0]
        if module or (program in DAEMONS and basename(word) != word):
            return (program, rest[module:]) if program in DAEMONS else ("", ())
    return "", ()


def is_daemon(words: Sequence[str]) -> bool:
    """Return whether a command line starts one of our daemons."""
    program, rest = command_of(words)
    commands = [word for word in rest if not word.startswith("-")]
    return not {" ".join(commands[:1]), " ".join(commands[:2])}.isdisjoint(DAEMONS.get(program, ()))


def open_streams() -> None:
    """Open the null device in place of closed standard streams."""
    try:
        while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
            os.set_inheritable(number, True)
        os.close(number)
    except OSError:
        return  # no file can be opened at all; what needs one says so
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(0)


def _remember(number: int, frame: FrameType | None) -> None:
    vars(_remember)["called"] = True  # `core.daemon.run` reads it when it replaces this handler


if command_of(sys.orig_argv)[0]:
    open_streams()
if is_daemon(sys.orig_argv) and threading.current_thread() is threading.main_thread():
    for _number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(_number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(_number, _end)
        atexit.register(signal.signal, _number, signal.SIG_IGN)  # the last moments, in which Python ends, change no exit code
    if hasattr(signal, "SIGHUP"):
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
            signal.signal(signal.SIGHUP, _remember)
        atexit.register(signal.signal, signal.SIGHUP, signal.SIG_IGN)
        # The program that started us may have blocked them for itself; a daemon could not be stopped then.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
