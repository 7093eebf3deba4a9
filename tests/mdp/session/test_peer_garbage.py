"""Nothing a broker sends makes a client's or worker's machine raise, hang or grow.

Seeded, so that a failure can be repeated.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from mdp.client.calls import Call, PendingRequest
from mdp.client.pending import RequesterLimits
from mdp.client.requester import Requester, numbers_from
from mdp.client.requester_01 import LockstepRequester, OpenConnection
from mdp.session.broker_search import BrokerSearch, SearchState, SearchTimes
from mdp.worker.session import WorkerSession
from mdp.worker.session_options import SessionOptions
from tests.scenes.mdp_messages import read, worker_request

PIECES = [
    b"",
    b"MDPC01",
    b"MDPC02",
    b"MDPC03",
    b"MDPW01",
    b"MDPW02",
    b"MDPW03",
    b"echo",
    b"\x01",
    b"\x02",
    b"\x03",
    b"\x04",
    b"\x05",
    b"\x80",
    b"\xc1",
    b"BUSY",
    b"HANDLER_ERROR",
    b"x" * 300,
    bytes(8),
]
HEADS = [header + bytes((command,)) for header in (b"MDPC03", b"MDPW03") for command in range(10)]


def frame(chance: random.Random, numbers: list[bytes]) -> bytes:
    match chance.randrange(5):
        case 0:
            return chance.choice(HEADS) + chance.choice([*numbers, b"", bytes(7), bytes(9)])
        case 1:
            return chance.randbytes(chance.randrange(20))
        case 2:
            octets = bytearray(chance.choice(HEADS) + chance.choice([*numbers, bytes(8)]))
            octets[chance.randrange(len(octets))] ^= 1 << chance.randrange(8)
            return bytes(octets)
        case _:
            return chance.choice(PIECES)


def batch(chance: random.Random, numbers: list[bytes]) -> list[list[bytes]]:
    return [[frame(chance, numbers) for _ in range(chance.randrange(1, 8))] for _ in range(chance.randrange(1, 4))]


@pytest.mark.parametrize("seed", range(10))
def test_a_client_of_0_3_survives(seed: int) -> None:
    chance = random.Random(seed)
    machine: Requester[PendingRequest] = Requester(numbers_from(seed), RequesterLimits(parts_max=10))
    machine.joined(0.0)
    call = Call("echo", timeout_s=5.0, attempts=1)
    requests = [PendingRequest(call, (b"x",)) for _ in range(5)]
    for pending in requests:
        machine.submit(pending, 0.0)
    for _ in range(2000):
        settled = machine.receive(batch(chance, [pending.id for pending in requests]), 1.0)
        for pending in settled:
            assert pending.reply is None or len(pending.reply) >= 1
    machine.tick(10.0)
    assert (machine.in_flight, len(machine.timeouts)) == (0, 0)


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
@pytest.mark.parametrize("seed", range(5))
def test_a_client_of_the_older_dialects_survives(seed: int, dialect: Any) -> None:
    chance = random.Random(seed)
    machine: LockstepRequester[PendingRequest] = LockstepRequester(dialect, RequesterLimits(parts_max=10))
    requests = [PendingRequest(Call("echo", timeout_s=5.0, attempts=1), (b"x",)) for _ in range(5)]
    for pending in requests:
        machine.submit(pending, 0.0)
    for order in machine.take_orders():
        if isinstance(order, OpenConnection):
            machine.joined(order.number)
    for _ in range(2000):
        machine.receive(chance.randrange(8), read(batch(chance, [])), 1.0)
    machine.tick(10.0)
    assert (machine.in_flight, len(machine.timeouts)) == (0, 0)


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
@pytest.mark.parametrize("seed", range(5))
def test_a_worker_survives(seed: int, dialect: Any) -> None:
    chance = random.Random(seed)
    session = WorkerSession("echo", BrokerSearch(["tcp://a:1"], dialect, SearchTimes(), chance.random), SessionOptions(credit=4))
    session.search.start(0.0)
    now = 0.0
    numbers = [bytes(7) + bytes((n,)) for n in range(6)]
    for _ in range(3000):
        if session.search.state is not SearchState.UP:
            session.tick(now := now + 60)
            session.joined(now)
        garbage = batch(chance, numbers)
        garbage.insert(chance.randrange(len(garbage) + 1), worker_request(dialect, chance.choice(numbers), [b"x"]))
        for request in session.receive(read(garbage), now):
            assert len(request.body) >= 1
            match chance.randrange(3):
                case 0:
                    session.answer(request, request.body)
                case 1 if session.can_refuse:
                    session.refuse(request, "HANDLER_ERROR", "")
        if session.in_flight > 2:
            session.lost(now)  # those that were never answered
        session.take_unwanted()
        session.take_outgoing(now)
        assert session.in_flight <= 64
    assert session.counters.received > 10
