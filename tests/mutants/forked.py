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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Ended", "in_fork"]


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a fork: its last output, or None after a timeout or kill."""

    said: Any
    took_s: float
    timed_out: bool


def in_fork(work: Callable[[], Any], limit_s: float, log: Path) -> Ended:
    """Do `work` in a fork and return what it returns; what it prints goes to `log`.

    Neither it nor what it has started outlives `limit_s`.
    """
    begun = time.monotonic()
    hears, says = os.pipe()
    child = os.fork()
    if not child:
        _run(work, limit_s, says, log)
    os.close(says)
    said = b""
    timed_out = False
    try:
        while part := _heard(hears, begun + limit_s):
            said += part
    except TimeoutError:
        timed_out = True
    finally:  # also when the hunt is interrupted
        os.close(hears)
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(child, signal.SIGKILL)  # it had no time to make a group of its own
        os.waitpid(child, 0)
    whole = said.endswith(b"\n") and not timed_out
    return Ended(json.loads(said) if whole else None, time.monotonic() - begun, timed_out)


def _heard(hears: int, until: float) -> bytes:
    """Return what comes from a fork, b"" at its end."""
    left_s = until - time.monotonic()
    if left_s <= 0 or not select.select([hears], [], [], left_s)[0]:
        raise TimeoutError
    return os.read(hears, 65536)


def _run(work: Callable[[], Any], limit_s: float, says: int, log: Path) -> None:
    """Be the fork: never returns."""
    try:
        os.setsid()
        seconds = int(limit_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        into = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(into, 1)
        os.dup2(into, 2)
        said = json.dumps(work()).encode() + b"\n"
        while said:
            said = said[os.write(says, said) :]
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)
