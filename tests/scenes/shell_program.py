"""A process that stands in a shell for a program which is a fork (`tests/scenes/prefork.py`).

It passes signals on to it, and ends as it ends. It starts without the `site` module and imports next to nothing: some hundredths of a
second, in the place of half a second.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def stand_in(door: str, program: str, arguments: list[str]) -> None:
    """Have `program`, a module or a file, run with our files, folder and environment until it ends; never returns."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(f"\0{door}")
    given = repr(([program, *arguments], os.getcwd(), dict(os.environ)))
    socket.send_fds(line, [given.encode()], [0, 1, 2])
    for number in SIGNALS:
        signal.signal(number, lambda number, _: line.send(b"%d" % number) and None)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for ours in (0, 1, 2):  # a reader of what it prints sees the end when the program ends
        os.dup2(nowhere, ours)
    status = int(line.recv(16) or signal.SIGKILL)
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by in SIGNALS:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    door, module, *rest = sys.argv[1:]
    if module == "python":
        if rest[:1] == ["-m"]:
            rest = rest[1:]
        elif not rest[:1] or not rest[0].endswith(".py"):
            os.execv(sys.executable, [sys.executable, *rest])
        module, *rest = rest
    stand_in(door, module, rest)
