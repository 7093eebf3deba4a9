"""CPU time of the client's machine per request and reply, without sockets: `python -m benchmarks.micro_requester`."""

from __future__ import annotations

import time
from statistics import median

from core.zmtp.decoder import Decoder
from core.zmtp.frames import decode_frames, encode_message
from mdp.client.calls import Call, PendingRequest
from mdp.client.pending import RequesterLimits
from mdp.client.requester import Requester, numbers_from
from mdp.wire.commands import CLIENT_FINAL_03, ID_BYTES

BATCH = 200
ROUNDS = 500
REPEATS = 7


def seconds_per_request(in_flight: int) -> float:
    """Keep `in_flight` requests open and answer the oldest 200 again and again."""
    requester: Requester[PendingRequest] = Requester(numbers_from(1), RequesterLimits(window=in_flight + BATCH))
    requester.joined(0.0)
    call = Call("echo", timeout_s=2.5, attempts=3)
    body = (b"x" * 16,)
    ids = [decode_frames(octets)[0][-ID_BYTES:] for octets in _sent(requester, call, body, in_flight)]
    spent = 0.0
    for turn in range(ROUNDS):
        now = turn * 0.001
        began = time.thread_time()
        for _ in range(BATCH):
            requester.submit(PendingRequest(call, body), now)
        outgoing = requester.take_outgoing()
        spent += time.thread_time() - began
        ids += [decode_frames(octets)[0][-ID_BYTES:] for octets in outgoing if isinstance(octets, bytes)]
        replies = b"".join(encode_message([CLIENT_FINAL_03 + id, b"x" * 16]) for id in ids[:BATCH])
        del ids[:BATCH]
        began = time.thread_time()
        settled = requester.receive(Decoder(on_command=lambda _: None).feed(replies).messages(), now)
        spent += time.thread_time() - began
        if len(settled) != BATCH:
            raise SystemExit("replies were lost")
    return spent / (ROUNDS * BATCH)


def _sent(requester: Requester[PendingRequest], call: Call, body: tuple[bytes, ...], count: int) -> list[bytes]:
    for _ in range(count):
        requester.submit(PendingRequest(call, body), 0.0)
    return [octets for octets in requester.take_outgoing() if isinstance(octets, bytes)]


def main() -> None:
    """Print the median of several runs, in microseconds."""
    for in_flight in (0, 1000, 10_000):
        costs = [seconds_per_request(in_flight) for _ in range(REPEATS)]
        print(f"{in_flight:6d} others in flight: {median(costs) * 1e6:.2f} us per request and reply (best {min(costs) * 1e6:.2f})")


if __name__ == "__main__":
    main()
