"""Cost of the broker's machine alone, without sockets: microseconds of CPU for one request and its reply.

    python -m benchmarks.micro_dispatcher [--requests N] [--rounds N]

Batches of 200 messages as a ROUTER with `split=3` hands them over; only the calls of the machine are on the clock. Estimate before the
first run: 1.5 us for MDP/0.3 with credit (two dictionary operations on each side, one record), 4 us for strict MDP/0.1 (two more
copies of the octets).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from typing import TYPE_CHECKING

from core.zmtp.framing import Encoded, encode_message
from mdp.dispatcher import Dispatcher
from mdp.limits import BrokerOptions
from mdp.options import encode_options
from mdp.protocol import CLIENT_REQUEST_03, WORKER_FINAL_03, client_request, worker_final, worker_ready

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 200
BODY = b"0123456789abcdef"


def split(peer: bytes, frames: list[bytes]) -> list[bytes]:
    """Return `[peer, frame, frame, Encoded]` as the ROUTER of the broker gives it."""
    return [peer, *frames[:2], Encoded(encode_message(frames[2:]))] if len(frames) > 2 else [peer, *frames]


def broker(dialect: str, workers: int, credit: int) -> Dispatcher:
    dispatcher = Dispatcher(BrokerOptions())
    options = encode_options({"credit": credit}) if dialect == "0.3" else b""
    for number in range(workers):
        ready = split(b"w%07d" % number, worker_ready(dialect, b"echo", options=options))  # type: ignore[arg-type]
        dispatcher.receive([ready], 0.0)
    return dispatcher


def pairs_03(workers: int, credit: int, window: int, batch: int = BATCH) -> Callable[[int], tuple[float, float]]:
    """Plain requests of one client of MDP/0.3; `window` in flight."""
    dispatcher = broker("0.3", workers, credit)
    tail = Encoded(encode_message([b"", BODY]))
    ids = iter(range(1 << 62))

    def requests(count: int) -> list[list[bytes]]:
        return [[b"client01", CLIENT_REQUEST_03 + next(ids).to_bytes(8, "big"), b"echo", tail] for _ in range(count)]

    def finals(work: list[list[bytes]]) -> list[list[bytes]]:
        return [[m[0], WORKER_FINAL_03 + m[1][7:], BODY] for m in work]

    held = dispatcher.receive(requests(window), 1.0)

    def run(count: int) -> tuple[float, float]:
        nonlocal held
        spent = 0.0
        done = 0
        while done < count:
            answers = finals(held[:batch])
            del held[:batch]
            started = time.thread_time()
            out = dispatcher.receive(answers, 1.0)
            spent += time.thread_time() - started
            replies = [m for m in out if m[0] == b"client01"]
            held += [m for m in out if m[0] != b"client01"]
            asked = requests(len(replies))
            started = time.thread_time()
            held += dispatcher.receive(asked, 1.0)
            spent += time.thread_time() - started
            done += len(replies)
        return spent, done

    return run


def pairs_01(workers: int, window: int) -> Callable[[int], tuple[float, float]]:
    """Strict MDP/0.1 on both sides: one request at a time and worker, the rest queued."""
    dispatcher = broker("0.1", workers, 1)
    request = split(b"client01", client_request("0.1", b"echo", [BODY]))
    held = dispatcher.receive([request.copy() for _ in range(window)], 1.0)

    def run(count: int) -> tuple[float, float]:
        nonlocal held
        spent = 0.0
        done = 0
        while done < count:
            answers = [split(m[0], worker_final("0.1", m[-1].frames()[3], [BODY])) for m in held]  # type: ignore[attr-defined]
            started = time.thread_time()
            out = dispatcher.receive(answers, 1.0)
            spent += time.thread_time() - started
            held = [m for m in out if m[0] != b"client01"]
            asked = [request.copy() for _ in range(len(out) - len(held))]
            started = time.thread_time()
            held += dispatcher.receive(asked, 1.0)
            spent += time.thread_time() - started
            done += len(asked)
        return spent, done

    return run


CASES: dict[str, Callable[[], Callable[[int], tuple[float, float]]]] = {
    "0.3, 1 worker with credit for all": lambda: pairs_03(1, 1000, 200),
    "0.3, 1 worker, credit 100, 900 queued": lambda: pairs_03(1, 100, 1000, 100),
    "0.3, 10 workers, credit 100": lambda: pairs_03(10, 100, 1000),
    "0.3, 1,000 workers, credit 10": lambda: pairs_03(1000, 10, 1000),
    "0.3, 10,000 workers, credit 10": lambda: pairs_03(10000, 10, 1000),
    "0.1, 1 worker, 999 queued": lambda: pairs_01(1, 1000),
    "0.1, 200 workers, 800 queued": lambda: pairs_01(200, 1000),
    "0.1, 200 workers, none queued": lambda: pairs_01(200, 200),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    cases = {name: make() for name, make in CASES.items()}
    gc.freeze()
    gc.set_threshold(50_000)  # as the daemon does
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for run in cases.values():
        run(arguments.requests // 4)
    for _ in range(arguments.rounds):
        for name, run in cases.items():
            spent, done = run(arguments.requests)
            figures[name].append(spent / done * 1e6)
    print("microseconds for a request and its reply (median, least, most)")
    for name, values in figures.items():
        print(f"{name:40} {statistics.median(values):6.2f} {min(values):6.2f} {max(values):6.2f}")


if __name__ == "__main__":
    main()
