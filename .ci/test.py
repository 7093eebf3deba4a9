"""What `make test` runs, in parts side by side, so that no processor waits while there is work.

A part begins when those that it needs have ended. Some show what they print while they run. What the others print goes to a file in
`out/`, and is shown at once if they fail, and in the end if they are tests. After a failure of tests the other parts go on; every other
failure ends all of them, and so does a signal.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socketpair

LACKS = 3  # status of a part that cannot run here; the last line that it printed says why
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 30  # with processes that got a signal to end
OUT = Path("out")
NO_TESTS = ("-o", "python_functions=-", "-o", "python_classes=-")


@dataclass(frozen=True)
class Part:
    """A command, and when it runs.

    Args:
        name: also of its file in `out/`.
        command: and its arguments.
        needs: parts that must have ended.
        shows: what it prints is shown while it runs.
        tests: the other parts go on when it fails.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    shows: bool = False
    tests: bool = False


def parts_of_all(python: str) -> list[Part]:
    """Return the parts of `make test`: set-up, checks, and the tests in two rows that take about the same time."""

    def made(*targets: str) -> tuple[str, ...]:
        return ("make", "--no-print-directory", *targets)

    return [
        Part("programs", ("sh", "-c", "for each in ccache java browser strace; do .ci/setup $each; done; true")),
        Part("oldest", made("set-up-lowest")),
        Part("set-up", made("venv"), shows=True),
        Part("compiling", ("nice", ".ci/setup", "compiled"), needs=("set-up",)),
        # The assertions of the test files are rewritten once, or each test process would do that at once with the others. No function is
        # called `-`: the files are imported, and their tests not listed.
        Part("rewriting", (python, "-m", "pytest", "--collect-only", "-q", "--ignore", "tests/soak", *NO_TESTS), needs=("set-up",)),
        Part("checks", made("lint", "types"), needs=("set-up",), shows=True),
        Part("sources", made("sources"), needs=("checks", "programs", "rewriting"), shows=True, tests=True),
        Part("lowest", made("lowest", "JOBS=2"), needs=("checks", "programs", "oldest"), tests=True),
        Part("beside", made("beside", "JOBS=2"), needs=("lowest", "rewriting"), tests=True),
        # Last: they hardly wait for anything, so two processes keep two processors busy, should the others have ended before.
        Part("compiled", made("compiled", "JOBS=2"), needs=("beside", "compiling"), tests=True),
    ]


class Run:
    """The parts of one run.

    Args:
        parts: in the order in which they begin where several may.
    """

    def __init__(self, parts: list[Part]) -> None:
        self._waiting = list(parts)
        self._running: dict[Future[int], Part] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: set[str] = set()
        self._lacks: list[str] = []
        self._in_the_end: list[Part] = []
        self._failed = False

    def go(self) -> int:
        """Run all of them; returns the status of the whole."""
        OUT.mkdir(exist_ok=True)
        signals, told = socketpair()
        told.setblocking(False)
        signal.set_wakeup_fd(told.fileno())
        for number in ENDS:
            signal.signal(number, lambda *_: None)
        with signals, told, ThreadPoolExecutor(len(self._waiting) + 1) as threads:
            signalled = threads.submit(signals.recv, 1)
            try:
                self._begin(threads)
                while self._running:
                    for future in wait([*self._running, signalled], return_when=FIRST_COMPLETED).done:
                        if future is signalled:
                            raise SystemExit(128 + signalled.result()[0])
                        self._end(self._running.pop(future), future.result())
                    self._begin(threads)
            finally:
                self._stop()
                told.send(bytes(1))
                signal.set_wakeup_fd(-1)
        for part in self._in_the_end:
            _show(part)
        for line in self._lacks:
            print(line)
        return 1 if self._failed else 0

    def _begin(self, threads: ThreadPoolExecutor) -> None:
        """Begin those parts whose needs are met."""
        for part in [part for part in self._waiting if self._ended.issuperset(part.needs)]:
            self._waiting.remove(part)
            with (OUT / f"{part.name}.txt").open("wb") as file:
                # In a session of its own: so whatever it starts can be told to end.
                process = subprocess.Popen(
                    part.command,
                    stdin=subprocess.DEVNULL,
                    stdout=None if part.shows else file,
                    stderr=None if part.shows else subprocess.STDOUT,
                    start_new_session=True,
                )
            self._processes[part.name] = process
            self._running[threads.submit(process.wait)] = part

    def _end(self, part: Part, status: int) -> None:
        """Note how a part has ended.

        Raises:
            SystemExit: it failed, and nothing makes sense without it.
        """
        self._ended.add(part.name)
        del self._processes[part.name]
        if status == LACKS and not part.tests:
            self._lacks.append(_printed(part).strip().rpartition("\n")[2])
            self._waiting = [each for each in self._waiting if part.name not in each.needs]
        elif status:
            if not part.shows:
                _show(part)
            print(f"==> {part.name} failed", flush=True)
            self._failed = True
            if not part.tests:
                raise SystemExit(1)
        elif part.tests and not part.shows:
            self._in_the_end.append(part)

    def _stop(self) -> None:
        """End what still runs, as Ctrl-C in a terminal does, and with force what does not end then."""
        for number in (signal.SIGINT, signal.SIGKILL):
            for process in self._processes.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            if number == signal.SIGINT:
                wait(self._running, timeout=PATIENCE_S)


def _printed(part: Part) -> str:
    return (OUT / f"{part.name}.txt").read_text(encoding="utf-8", errors="replace")


def _show(part: Part) -> None:
    print(_printed(part), end="", flush=True)


def main() -> int:
    """Run `make test`; prints how long it took, and how long the processors worked for it."""
    begin = time.monotonic()
    status = Run(parts_of_all(sys.executable)).go()
    subprocess.run(["make", "--no-print-directory", "said"], check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"==> {time.monotonic() - begin:.0f} s; the processors worked for {used.ru_utime + used.ru_stime:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
