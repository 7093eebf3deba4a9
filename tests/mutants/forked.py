"""Runs tests in a fork of this process: modules are imported and tests collected before each mutant."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Allow", "Ended", "in_fork"]

Allow = Callable[[float], None]  # takes the seconds from now on
MEMORY_BYTES = 4 << 30  # more than any test takes
_LIMIT_S = "limit_s"
_RESULT = "result"


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a fork: its last output, or None after a timeout or kill."""

    said: Any
    took_s: float
    timed_out: bool


def in_fork(work: Callable[[Allow], Any], limit_s: float, log: Path) -> Ended:
    """Do `work` in a fork and return what it returns; what it prints goes to `log`.

    Neither it nor what it has started outlives `limit_s`; `work` is given a function that sets the limit anew, for what it does next.
    """
    begun = time.monotonic()
    until = begun + limit_s
    hears, says = os.pipe()
    child = os.fork()
    if not child:
        _run(work, limit_s, says, log)
    os.close(says)
    result: Any = None
    said = b""
    timed_out = False
    try:
        while part := _heard(hears, until):
            *lines, said = (said + part).split(b"\n")
            told = dict(json.loads(line) for line in lines)
            if _RESULT in told:
                result = told[_RESULT]
                break  # without waiting for the end of the pipe: processes that tests have started may hold it
            if _LIMIT_S in told:
                until = time.monotonic() + told[_LIMIT_S]
    except TimeoutError:
        timed_out = True
    finally:  # also when the hunt is interrupted
        os.close(hears)
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(child, signal.SIGKILL)  # it had no time to make a group of its own
        os.waitpid(child, 0)
    return Ended(result, time.monotonic() - begun, timed_out)


def _heard(hears: int, until: float) -> bytes:
    """Return what comes from a fork, b"" at its end."""
    left_s = until - time.monotonic()
    if left_s <= 0 or not select.select([hears], [], [], left_s)[0]:
        raise TimeoutError
    return os.read(hears, 65536)


def _run(work: Callable[[Allow], Any], limit_s: float, says: int, log: Path) -> None:
    """Be the fork: never returns."""

    def allow(limit_s: float) -> None:
        # Also when nobody is left that kills this process.
        used_s = time.process_time()
        _limit(resource.RLIMIT_CPU, int(used_s + limit_s) + 2)
        _say(says, _LIMIT_S, limit_s)

    try:
        os.setsid()
        # A loop without end that keeps something ends by its memory before it takes that of the machine.
        _limit(resource.RLIMIT_AS, _size() + MEMORY_BYTES)
        into = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(into, 1)
        os.dup2(into, 2)
        allow(limit_s)
        _say(says, _RESULT, work(allow))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _say(says: int, name: str, value: Any) -> None:
    line = json.dumps([name, value]).encode() + b"\n"
    while line:
        line = line[os.write(says, line) :]


def _limit(which: int, soft: int) -> None:
    resource.setrlimit(which, (soft, resource.getrlimit(which)[1]))


def _size() -> int:
    """Return the bytes of address space that this process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
