"""Bodies with long frames at broker, worker and client, in every place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.zmtp.decoder import Decoder
from core.zmtp.frames import encode_message
from mdp.client.calls import Call, PendingRequest
from mdp.client.pending import RequesterLimits
from mdp.client.requester import SPLICED_BYTES_MAX, Requester, numbers_from
from mdp.client.requester_01 import LockstepRequester
from mdp.session.broker_search import BrokerSearch, SearchTimes
from mdp.wire.commands import V01, V03, client_final, client_request, worker_final
from mdp.worker.session import WorkerSession
from mdp.worker.session_options import SessionOptions
from tests.scenes.mdp_dispatcher import ECHO, Scene, number
from tests.scenes.mdp_messages import worker_request
from tests.scenes.mdp_requester import sent

if TYPE_CHECKING:
    from mdp.request import Request
    from mdp.wire.commands import Dialect

BODIES = [[256], [255], [1900], [1, 300, 0], [300, 1], [0, 256], [700, 256, 300]]
CALL = Call("echo", timeout_s=2.5, attempts=3)


def body_of(sizes: list[int]) -> list[bytes]:
    return [bytes([65 + place]) * size for place, size in enumerate(sizes)]


@pytest.mark.parametrize("sizes", BODIES)
@pytest.mark.parametrize("dialect", [V01, V03])
def test_the_broker_takes_a_request_and_its_answer(dialect: Dialect, sizes: list[int]) -> None:
    scene, body = Scene(), body_of(sizes)
    scene.ready(dialect, b"W1")
    scene.ask(dialect, b"C1", *body)
    work = scene.work(b"W1")
    assert list(work.body) == body
    scene.send(b"W1", worker_final(dialect, work.id, [*reversed(body)]))
    assert scene.reply(b"C1") == [*reversed(body)]


@pytest.mark.parametrize("sizes", [[2048], [1000, 1100], [70_000], [3, 300_000, 1]])
def test_the_broker_takes_what_is_not_small(sizes: list[int]) -> None:
    scene, body = Scene(), body_of(sizes)
    scene.ready(V03, b"W1")
    scene.ask(V03, b"C1", *body)
    assert list(scene.work(b"W1").body) == body


@pytest.mark.parametrize("sizes", BODIES)
@pytest.mark.parametrize("dialect", [V01, V03])
def test_the_worker_takes_a_request_when_it_is_all_there(dialect: Dialect, sizes: list[int]) -> None:
    search = BrokerSearch(["tcp://127.0.0.1:1"], dialect, SearchTimes(), lambda: 0.0)
    session = WorkerSession("echo", search, SessionOptions(credit=8))
    search.start(0.0)
    session.joined(0.0)
    octets = encode_message(worker_request(dialect, number(1), body_of(sizes)))
    new: list[Request] = []
    decoder = Decoder(on_command=lambda _: None)
    for at in range(len(octets)):
        assert new == []
        new += session.receive(decoder.feed(octets[at : at + 1]), 1.0)
    assert [request.body for request in new] == [body_of(sizes)]


@pytest.mark.parametrize("sizes", BODIES)
def test_the_client_takes_a_reply_when_it_is_all_there(sizes: list[int]) -> None:
    requester: Requester[PendingRequest] = Requester(numbers_from(0), RequesterLimits())
    requester.joined(0.0)
    pending = PendingRequest(CALL, (b"x",))
    requester.submit(pending, 0.0)
    octets = encode_message(client_final(V03, ECHO, pending.id, body_of(sizes)))
    news: list[PendingRequest] = []
    decoder = Decoder(on_command=lambda _: None)
    for at in range(len(octets)):
        assert news == []
        news += requester.receive(decoder.feed(octets[at : at + 1]).messages(), 1.0)
    assert news == [pending]
    assert pending.reply == body_of(sizes)


@pytest.mark.parametrize("sizes", BODIES)
def test_the_client_of_0_1_takes_a_reply_when_it_is_all_there(sizes: list[int]) -> None:
    lockstep: LockstepRequester[PendingRequest] = LockstepRequester(V01, RequesterLimits())
    lockstep.begin()
    lockstep.joined(1)
    pending = PendingRequest(CALL, (b"x",))
    lockstep.submit(pending, 0.0)
    octets = encode_message(client_final(V01, ECHO, b"", body_of(sizes)))
    news: list[PendingRequest] = []
    decoder = Decoder(on_command=lambda _: None)
    for at in range(len(octets)):
        assert news == []
        news += lockstep.receive(1, decoder.feed(octets[at : at + 1]), 1.0)
    assert news == [pending]
    assert pending.reply == body_of(sizes)


@pytest.mark.parametrize("size", [255, 256, SPLICED_BYTES_MAX, SPLICED_BYTES_MAX + 1])
def test_a_batch_of_requests_with_a_long_frame_each(size: int) -> None:
    requester: Requester[PendingRequest] = Requester(numbers_from(0), RequesterLimits())
    requester.joined(0.0)
    first, *batch = [PendingRequest(CALL, (b"x" * size,)) for _ in range(3)]
    requester.submit(first, 0.0)  # opens the bucket of its timeout
    taken = requester.submit_many(batch, 0.0)
    assert taken == (2 if size <= SPLICED_BYTES_MAX else 0)
    expected = [client_request(V03, ECHO, [b"x" * size], id=pending.id) for pending in [first, *batch[:taken]]]
    assert sent(requester) == [[*frames] for frames in expected]
