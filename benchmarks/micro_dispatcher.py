"""Cost of the broker's machine alone, without sockets: microseconds of CPU for one request and its reply.

    python -m benchmarks.micro_dispatcher [--requests N] [--rounds N]

Bytes of up to 200 messages at a time, as they are read; the frame loop (`core.zmtp.scan`) and the calls of the machine are timed.
Estimate before the first run: 1.5 us for MDP/0.3 with credit (two dictionary operations on each side, one record, one copy each way).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from core.zmtp.decoder import Decoder
from core.zmtp.frames import MORE_HEADERS, decode_frames, encode_message, encode_prefix
from core.zmtp.scan import Batch
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.limits import BrokerOptions
from mdp.wire.commands import CLIENT_REQUEST_03, ID_BYTES, NUMBERED_BYTES, WORKER_FINAL_03, client_request, worker_final, worker_ready
from mdp.wire.options import encode_options

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 200
CREDIT = 100
"""Requests that a worker holds, where more are queued."""
REQUEST_BYTES = 1024
"""More than the broker counts for a queued request of this body."""
BODY = b"0123456789abcdef"
CLIENT = b"client01"


def broker(dialect: str, workers: int, credit: int, window: int) -> Dispatcher:
    usual = BrokerOptions()
    room, memory = max(usual.queue_max, window), max(usual.memory_max_bytes, window * REQUEST_BYTES)
    dispatcher = Dispatcher(replace(usual, queue_max=room, client_queue_max=room, queue_max_bytes=memory, memory_max_bytes=memory))
    options = encode_options({"credit": credit}) if dialect == "0.3" else b""
    for number in range(workers):
        peer = b"w%07d" % number
        dispatcher.receive(Batch.of([peer], [[peer, *worker_ready(dialect, b"echo", options=options)]]), 0.0)  # type: ignore[arg-type]
    return dispatcher


def timed(dispatcher: Dispatcher, peer: bytes, octets: bytes) -> tuple[float, dict[bytes, list[bytes]]]:
    """Deliver the bytes of a read, from the frame loop on; return seconds and the output."""
    decoder = Decoder(on_command=lambda _: None)
    decoder.head = [peer]
    started = time.thread_time()
    pieces = dispatcher.receive(decoder.feed(octets), 1.0)
    return time.thread_time() - started, pieces


def pairs_03(workers: int, credit: int, window: int) -> Callable[[int], tuple[float, float]]:
    """Plain requests of one client of MDP/0.3; `window` in flight."""
    dispatcher = broker("0.3", workers, credit, window)
    ids = iter(range(1 << 62))
    tail = encode_message([b"", BODY])

    def requests(count: int) -> bytes:
        head, name = MORE_HEADERS[NUMBERED_BYTES] + CLIENT_REQUEST_03, encode_prefix([b"echo"])
        return b"".join(head + next(ids).to_bytes(8, "big") + name + tail for _ in range(count))

    def finals(work: list[bytes]) -> bytes:
        head, body = MORE_HEADERS[NUMBERED_BYTES] + WORKER_FINAL_03, encode_message([BODY])
        return b"".join(head + piece[len(head) : len(head) + ID_BYTES] + body for piece in work)

    return walk(dispatcher, requests, finals, window)


def pairs_01(workers: int, window: int) -> Callable[[int], tuple[float, float]]:
    """Strict MDP/0.1 on both sides: one request at a time and worker, the rest queued."""
    dispatcher = broker("0.1", workers, 1, window)
    request = encode_message(client_request("0.1", b"echo", [BODY]))

    def finals(work: list[bytes]) -> bytes:
        return b"".join(encode_message(worker_final("0.1", decode_frames(piece)[3], [BODY])) for piece in work)

    return walk(dispatcher, lambda count: request * count, finals, window)


def walk(
    dispatcher: Dispatcher, requests: Callable[[int], bytes], finals: Callable[[list[bytes]], bytes], window: int
) -> Callable[[int], tuple[float, float]]:
    """Answer up to a batch of each worker's requests and send as many new ones; time the machine only."""
    held: dict[bytes, list[bytes]] = {}
    for sent in range(0, window, BATCH):
        for peer, pieces in timed(dispatcher, CLIENT, requests(min(BATCH, window - sent)))[1].items():
            held.setdefault(peer, []).extend(pieces)

    def run(count: int) -> tuple[float, float]:
        nonlocal held
        spent = 0.0
        done = 0
        while done < count:
            working, held = held, {}
            answered = 0
            for peer, work in working.items():
                seconds, out = timed(dispatcher, peer, finals(work[:BATCH]))
                spent += seconds
                answered += len(out.pop(CLIENT))
                for other, pieces in ((peer, work[BATCH:]), *out.items()):
                    held.setdefault(other, []).extend(pieces)
            seconds, out = timed(dispatcher, CLIENT, requests(answered))
            spent += seconds
            for other, pieces in out.items():
                held.setdefault(other, []).extend(pieces)
            held = {peer: pieces for peer, pieces in held.items() if pieces}
            done += answered
        return spent, done

    return run


CASES: dict[str, Callable[[], Callable[[int], tuple[float, float]]]] = {
    "0.3, 1 worker with credit for all": lambda: pairs_03(1, 1000, 200),
    "0.3, 1 worker, credit 100, 900 queued": lambda: pairs_03(1, CREDIT, 1000),
    "0.3, 10 workers, credit 100": lambda: pairs_03(10, CREDIT, 1000),
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
