"""Damaged bytes of a peer at broker, client and worker: nothing is raised."""

from __future__ import annotations

import random

import pytest

from core.zmtp.decoder import Decoder
from core.zmtp.frames import decode_frames, encode_message
from core.zmtp.scan import Batch
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.limits import BrokerOptions
from mdp.broker.requests.invariants import check_invariants
from mdp.client.calls import Call, PendingRequest
from mdp.client.pending import RequesterLimits
from mdp.client.requester import Requester, numbers_from
from mdp.client.requester_01 import LockstepRequester
from mdp.session.broker_search import BrokerSearch, SearchTimes
from mdp.wire.commands import V01, V03, Dialect, client_final, client_request, worker_final, worker_ready
from mdp.worker.session import WorkerSession
from mdp.worker.session_options import SessionOptions
from tests.scenes.hunts import examples
from tests.scenes.mdp_messages import worker_request

INPUTS = examples(4000)


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def messages(chance: random.Random) -> list[bytes]:
    """Return messages of every role, most of them sound."""
    body = [chance.randbytes(chance.choice((0, 1, 16, 255, 256, 3000))) for _ in range(chance.randrange(1, 4))]
    id = number(chance.randrange(1, 40))
    frames = [
        client_request(V03, b"echo", body, id=id),
        client_request(V01, b"echo", body),
        client_final(V03, b"echo", id, body),
        client_final(V01, b"echo", b"", body),
        worker_request(V03, id, body),
        worker_request(V01, id, body),
        worker_final(V03, id, body),
        worker_final(V01, id, body),
    ]
    return [encode_message(chance.choice(frames)) for _ in range(chance.randrange(1, 6))]


def damaged(chance: random.Random) -> bytes:
    octets = bytearray(b"".join(messages(chance)))
    for _ in range(chance.choice((0, 0, 1, 3))):
        octets[chance.randrange(len(octets))] = chance.choice((0, 1, 2, 4, 15, 255, chance.randrange(256)))
    return bytes(octets[: chance.choice((len(octets), chance.randrange(len(octets) + 1)))])


@pytest.mark.parametrize("seed", range(3))
def test_the_broker_answers_with_whole_messages_in_whatever_reads_the_bytes_come(seed: int) -> None:
    """Two brokers that get the same bytes in other reads say the same, and do the same."""
    chance = random.Random(seed)
    brokers = [Dispatcher(BrokerOptions()) for _ in range(2)]
    decoders = [{peer: routed(peer) for peer in (b"W3", b"W1", b"C", b"D")} for _ in brokers]
    for _ in range(INPUTS):
        octets = damaged(chance)
        peer = chance.choice((b"W3", b"W1", b"C", b"D"))
        if peer.startswith(b"W"):
            dialect: Dialect = V03 if peer == b"W3" else V01
            worker = brokers[0].directory.workers.get(peer)
            if worker is None:
                octets = encode_message(worker_ready(dialect, b"echo")) + octets * (chance.random() < 0.2)
            elif chance.random() < 0.8:
                octets = b"".join(encode_message(worker_final(dialect, number(one.number), [b"y"])) for one in worker.in_flight.values())
        said = []
        for broker, known, most in zip(brokers, decoders, (len(octets) + 1, chance.choice((1, 40, 500))), strict=True):
            told: dict[bytes, list[list[bytes]]] = {}
            for at in range(0, len(octets), most):
                for to, pieces in broker.receive(batch_of(known[peer].feed(octets[at : at + most]), peer), 1.0).items():
                    told.setdefault(to, []).extend(decode_frames(piece) for piece in pieces)
                if known[peer].failure is not None:
                    break
            said.append(told)
            if known[peer].failure is not None or known[peer].begun:
                known[peer] = routed(peer)
        assert said[0] == said[1]
        assert brokers[0].stats() == brokers[1].stats()
        check_invariants(brokers[0])
    assert brokers[0].counters.replies > 100


def routed(peer: bytes) -> Decoder:
    made = Decoder(on_command=lambda _: None)
    made.head = [peer]
    return made


def batch_of(batch: Batch, peer: bytes) -> Batch:
    """Return a batch with the name of its peer, also if it is empty."""
    return batch if batch.head else Batch.of([peer], [])


@pytest.mark.parametrize("seed", range(3))
def test_clients_take_damaged_bytes(seed: int) -> None:
    chance = random.Random(seed)
    call = Call("echo", timeout_s=2.5, attempts=3)
    requester: Requester[PendingRequest] = Requester(numbers_from(0), RequesterLimits())
    lockstep: LockstepRequester[PendingRequest] = LockstepRequester(V01, RequesterLimits())
    requester.joined(0.0)
    lockstep.begin()
    lockstep.joined(1)
    for _ in range(INPUTS):
        requester.submit(PendingRequest(call, (b"x",)), 0.0)
        requester.take_outgoing()
        read = Decoder(on_command=lambda _: None).feed(damaged(chance))
        assert all(pending.reply or pending.parts is not None or pending.error for pending in requester.receive(read.messages(), 1.0))
        if not lockstep.in_flight:
            lockstep.submit(PendingRequest(call, (b"x",)), 0.0)
        for pending in lockstep.receive(1, read, 1.0):
            assert pending.reply or pending.parts is not None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dialect", [V01, V03])
def test_workers_take_damaged_bytes(dialect: str, seed: int) -> None:
    chance = random.Random(seed)
    search = BrokerSearch(["tcp://127.0.0.1:1"], V01 if dialect == V01 else V03, SearchTimes(), lambda: 0.0)
    session = WorkerSession("echo", search, SessionOptions(credit=8))
    search.start(0.0)
    session.joined(0.0)
    for _ in range(INPUTS):
        read = Decoder(on_command=lambda _: None).feed(damaged(chance))
        new = session.receive(read, 1.0)
        assert session.in_flight <= (8 if dialect == V03 else 64)
        for request in new:
            session.answer(request, request.body)
        session.take_outgoing(1.0)
