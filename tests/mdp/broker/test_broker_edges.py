"""The broker's machine at its edges: any peer names, service lengths and options, and messages that are almost commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from core.zmtp.frames import LONG, LONG_HEADER, MORE
from core.zmtp.scan import Batch
from mdp.wire.commands import (
    CLIENT_PROGRESS_03,
    CLIENT_REQUEST_03,
    HEAD_BYTES,
    ID_BYTES,
    WORKER_PARTIAL_03,
    WORKER_REQUEST_03,
    client_final,
    client_heartbeat,
    client_request,
    worker_error,
    worker_final,
    worker_heartbeat,
    worker_partial,
    worker_progress,
    worker_return,
)
from mdp.wire.events import Failure, Final, Partial, Work
from mdp.wire.options import decode_request_options, encode_options
from mdp.wire.progress import Progress, encode_progress
from tests.mdp.broker.recordings.recorded_scene import Tale
from tests.scenes.mdp_dispatcher import DIALECTS, Scene, decoded, number, one_by_one
from tests.scenes.mdp_messages import client_cancel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mdp.wire.commands import Dialect

CLIENT, WORKER = b"client", b"worker"
# Routing ids are the peers' own choice: none of these is taken for what it looks like.
NAMES = (
    b"\x01",
    b"\x01\x00C",
    b"\x00\x01x",
    b"echo",
    b"MDPC01",
    b"MDPW01",
    CLIENT_REQUEST_03 + number(1),
    client_cancel(number(1))[0],
    worker_heartbeat("0.3")[0],
    worker_final("0.3", number(1), [])[0],
    b"\x01\x01\x03\x01\x08" + number(1) + b"\x01\x00",
    b"x" * 255,
)
SOME_OPTIONS: tuple[dict[str, object], ...] = ({}, {"trace": {"a": "b"}})


def story(client: Dialect, worker: Dialect, client_name: bytes, worker_name: bytes) -> list[tuple[bytes, list[list[bytes]]]]:
    """Return all messages that two peers receive."""
    scene = Scene()
    told = []

    def then() -> Work | None:
        to_worker = scene.got(worker_name)
        told.extend([(CLIENT, scene.got(client_name)), (WORKER, to_worker)])
        scene.sent[worker_name] = to_worker
        works = [event for event in scene.at_worker(worker_name) if isinstance(event, Work)]
        return works[-1] if works else None

    scene.ready(worker, worker_name)
    then()
    for body in ([b"x"], [b"", b"two"], [b"long" * 100]):
        for options in SOME_OPTIONS:
            scene.ask(client, client_name, *body, options=options if client == "0.3" else {})
            work = then()
            assert work is not None
            scene.answer(worker_name, work, *body)
            then()
    scene.ask(client, client_name)
    work = then()
    assert work is not None
    if worker != "0.1":
        scene.send(worker_name, worker_partial(worker, work.id, [b"part"]))
        then()
    if worker == "0.3":
        scene.send(worker_name, worker_error(work.id, "HANDLER_ERROR", "no"))
    else:
        scene.answer(worker_name, work)
    then()
    scene.send(client_name, client_heartbeat())
    if client == "0.3":
        scene.send(client_name, client_cancel(scene.ask(client, client_name)))
        then()
    scene.send(worker_name, worker_heartbeat(worker))
    scene.lose(worker_name)
    scene.lose(client_name)
    then()
    return told


@pytest.mark.parametrize("worker", DIALECTS)
@pytest.mark.parametrize("client", DIALECTS)
def test_peers_may_have_any_name(client: Dialect, worker: Dialect) -> None:
    usual = story(client, worker, CLIENT, WORKER)
    assert sum(len(messages) for _, messages in usual) > 12
    # The worker is called like a part of what it is working on, too.
    tokens = [frames[0][HEAD_BYTES:] for role, messages in usual if role == WORKER for frames in messages]
    parts = [WORKER_PARTIAL_03 + token for token in tokens if worker == "0.3" and len(token) == ID_BYTES]
    for name in (*NAMES, *parts):
        assert story(client, worker, name, WORKER) == usual, name
        assert story(client, worker, CLIENT, name) == usual, name


@pytest.mark.parametrize("length", [1, 2, 6, 7, 8, 14, 15, 16, 254, 255])
@pytest.mark.parametrize("client", DIALECTS)
def test_a_service_s_name_may_have_any_length(client: Dialect, length: int) -> None:
    """MDP-05: also that of a command frame."""
    service = b"s" * length
    for worker in DIALECTS:
        scene = Scene()
        scene.ready(worker, WORKER, service)
        for options in SOME_OPTIONS:
            id = scene.ask(client, CLIENT, b"body", service=service, options=options if client == "0.3" else {})
            work = scene.work(WORKER)
            assert [*work.body] == [b"body"]
            scene.answer(WORKER, work, b"well")
            assert scene.got(CLIENT) == [client_final(client, service, id, [b"well"])]


@pytest.mark.parametrize(
    ("options", "at_worker"),
    [
        ({}, {}),
        ({"wait": True}, {"wait": True}),
        ({"once": True}, {"once": True}),
        ({"key": b"k"}, {"key": b"k"}),
        ({"deadline_ms": 1500}, {"deadline_ms": 1500}),
        ({"trace": {"a": "b"}, "later": 1}, {"trace": {"a": "b"}, "later": 1}),
        ({"user": "bob"}, {}),
        ({"user": "bob", "wait": True, "later": 1}, {"wait": True, "later": 1}),
        ({"user": "bob", "deadline_ms": 1500}, {"deadline_ms": 1500}),
    ],
)
@pytest.mark.parametrize("body", [(b"x",), (b"", b"two", b"")])
def test_a_free_worker_gets_options_as_they_came_without_what_a_client_says_of_a_user(
    options: dict[str, Any], at_worker: dict[str, Any], body: tuple[bytes, ...]
) -> None:
    scene = Scene()
    for worker in DIALECTS:
        scene.ready(worker, worker.encode(), worker.encode())
        scene.ask("0.3", CLIENT, *body, service=worker.encode(), options=options)
        (frames,) = scene.sent[worker.encode()]
        work = scene.work(worker.encode())
        assert [*work.body] == [*body]
        if worker == "0.3":
            assert frames == [WORKER_REQUEST_03 + work.id, encode_options(at_worker), *body]
    assert scene.counters.get("users_not_believed", 0) == (3 if "user" in options else 0)


def almost(frames: list[bytes], fixed: int) -> Iterator[list[bytes]]:
    """Yield messages that are an answer but for one thing in the first frames."""
    for place in range(fixed):
        before, frame, after = frames[:place], frames[place], frames[place + 1 :]
        if before or after:
            yield [*before, *after]
        yield [*before, frame + b"\x00", *after]
        if frame:
            yield [*before, frame[:-1], *after]
            yield [*before, b"", *after]
            for at in range(len(frame)):
                yield [*before, frame[:at] + bytes([frame[at] ^ 0x40]) + frame[at + 1 :], *after]


def wrong_answers(what: str, worker: Dialect, id: bytes) -> list[list[bytes]]:
    right = {
        "final": worker_final(worker, id, [b"WRONG"]),
        "partial": worker_partial("0.3" if worker == "0.1" else worker, id, [b"WRONG"]),
        "error": worker_error(id, "WRONG", "WRONG"),
        "return": worker_return(id),
    }[what]
    wrong = [*almost(right, {"0.1": 5, "0.2": 4, "0.3": 1}[worker])]
    if what == "return":
        wrong.append([*right, b"x"])
    elif what == "error":
        wrong += [right[:2], [*right, b"x"], [right[0], b"", b""], [right[0], b"wrong", b""]]
    else:
        wrong.append(right[:-1])
    return wrong


@pytest.mark.parametrize("worker", DIALECTS)
@pytest.mark.parametrize("client", DIALECTS)
@pytest.mark.parametrize("what", ["final", "partial", "error", "return"])
def test_what_is_almost_an_answer_is_none_and_another_worker_gets_the_request(client: Dialect, worker: Dialect, what: str) -> None:
    """MDP-29, MDP-30: nothing later from its sender is believed."""
    if (worker == "0.1" and what == "partial") or (worker != "0.3" and what in {"error", "return"}):
        return
    for place in range(len(wrong_answers(what, worker, bytes(8)))):
        scene = Scene()
        scene.ready(worker, b"W1")
        scene.ask(client, CLIENT)
        id = scene.work(b"W1").id
        wrong = wrong_answers(what, worker, id)
        scene.send(b"W1", wrong[place])
        assert b"W1" not in scene.machine.directory.workers, wrong[place]
        assert scene.got(CLIENT) == [], wrong[place]
        scene.ready("0.3", b"W2")
        scene.answer(b"W2", scene.work(b"W2"), b"right")
        assert scene.reply(CLIENT) == [b"right"], wrong[place]


@pytest.mark.parametrize("octet", [0, 1, 2, 3, 0x78, 0x79, 0x80, 0xFF])
@pytest.mark.parametrize("length", [1, 2, 15, 300])
def test_a_request_without_a_body_is_refused_whatever_it_ends_with(octet: int, length: int) -> None:
    scene = Scene()
    scene.ready("0.3", WORKER)
    told = []
    for options in (b"", bytes([octet]) * length):
        scene.send(CLIENT, [CLIENT_REQUEST_03 + number(1), b"echo", options])
        told += scene.at_client(CLIENT)
    first, second = told
    assert isinstance(first, Failure)
    assert first == second
    assert (first.code, scene.counters["accepted"], scene.got(WORKER)) == ("BAD_REQUEST", 0, [])


def test_limits_of_a_peer_that_is_gone_are_forgotten() -> None:
    """They would be kept for ever, and the next of that name may be another."""
    tale = Tale(narrow=(CLIENT, WORKER))
    narrow = tale.machine.request_table.hops.narrow
    assert narrow == {CLIENT, WORKER}
    tale.goes(CLIENT)
    assert narrow == {WORKER}
    tale.comes("0.3", WORKER)
    tale.goes(WORKER)
    assert narrow == set()


def test_until_a_moment_means_before_it() -> None:
    """While a broker starts, a request for an unknown service waits; after that it is refused."""
    scene = Scene(start_hold_ms=2000)
    for machine in (scene.machine, scene.twin):
        machine.begin(scene.now)
    scene.now += 1.999
    scene.ask("0.3", CLIENT)
    assert scene.got(CLIENT) == []
    scene.now += 0.001
    assert scene.now == scene.machine.held_until
    scene.ask("0.3", b"late")
    assert scene.failure(b"late") == "NO_SERVICE"
    scene.both("tick")
    assert scene.failure(CLIENT) == "NO_SERVICE"


def test_requests_of_a_dialect_are_recognized_by_their_whole_header() -> None:
    scene = Scene()
    scene.ready("0.3", WORKER)
    for dialect in DIALECTS:
        right = client_request(dialect, b"echo", [b"x"], id=number(1) if dialect == "0.3" else b"")
        for wrong in almost(right, {"0.1": 2, "0.2": 2, "0.3": 1}[dialect]):
            before = scene.counters["accepted"]
            same_dialect_and_other_number = dialect == "0.3" and wrong[0][:7] == right[0][:7] and len(wrong[0]) == 15
            scene.send(CLIENT, wrong)
            assert scene.counters["accepted"] - before == same_dialect_and_other_number, wrong


def test_another_try_of_a_dead_letter_is_the_first_client_s_request_and_not_its_who_wants_the_try() -> None:
    """BEY-11: who may see users sees who has asked."""
    tale = Tale(guarded=True, deliveries_max=1)
    tale.comes("0.3", b"W1")
    tale.asks("0.3", b"ANN", b"deadly")
    tale.goes(b"W1")
    tale.comes("0.3", b"W2")
    (letter,) = tale.machine.dead_letters
    tale.got(b"W2")
    tale.asks("0.3", b"BOB", b"%d" % letter.number, service=b"mmi.dlq.retry")
    work = tale.work(b"W2")
    assert (decode_request_options(work.options).user, [*work.body]) == ("ann", [b"deadly"])


class LongScene(Scene):
    """Peers that write the size of every frame in eight bytes, as ZMTP allows."""

    def send(self, peer: bytes, *messages: Sequence[bytes]) -> list[list[bytes]]:
        out: list[list[bytes]] = []
        for frames in messages:
            octets = b"".join(LONG_HEADER(LONG | MORE, len(frame)) + frame for frame in frames[:-1])
            octets += LONG_HEADER(LONG, len(frames[-1])) + frames[-1]
            received = self.machine.receive(Batch([peer], octets, [0], [len(octets)]), self.now)
            out += self.take(decoded(received), one_by_one(self.twin, peer, [frames], self.now))
        return out


@pytest.mark.parametrize("worker", DIALECTS)
@pytest.mark.parametrize("client", DIALECTS)
def test_frames_with_long_headers_are_the_same_commands(client: Dialect, worker: Dialect) -> None:
    scene = LongScene()
    scene.ready(worker, WORKER)
    for _ in range(2):
        scene.ask(client, CLIENT, b"x")
        work = scene.work(WORKER)
        if worker != "0.1":
            scene.send(WORKER, worker_partial(worker, work.id, [b"part"]))
        scene.answer(WORKER, work, b"y")
        events = scene.at_client(CLIENT)
        assert isinstance(events[-1], Final)
        parts = [frame for event in events for frame in (event.body if isinstance(event, Final | Partial) else ())]
        assert parts == ([b"y"] if worker == "0.1" else [b"part", b"y"])
    assert not scene.is_sent_away(WORKER)
    scene.check()


def test_progress_reaches_the_client_that_has_asked_for_it() -> None:
    scene = Scene()
    scene.ready("0.3", WORKER, credit=2)
    wanted, other = scene.ask("0.3", CLIENT, options={"progress": True}), scene.ask("0.3", CLIENT)
    works = [event for event in scene.at_worker(WORKER) if isinstance(event, Work)]
    for work in works:
        scene.send(WORKER, worker_progress(work.id, encode_progress(Progress(0.5, "half"))))
    assert scene.got(CLIENT) == [[CLIENT_PROGRESS_03 + wanted, encode_progress(Progress(0.5, "half"))]]
    for work in works:
        scene.answer(WORKER, work)
    assert [event.id for event in scene.at_client(CLIENT) if isinstance(event, Final)] == [wanted, other]
    scene.check()


def test_each_error_counts_once_against_what_a_worker_seems_to_do() -> None:
    scene = Scene()
    scene.ready("0.3", WORKER, credit=3)
    for _ in range(3):
        scene.ask("0.3", CLIENT)
    first, second, third = (event for event in scene.at_worker(WORKER) if isinstance(event, Work))
    scene.send(WORKER, worker_error(first.id, "NO_STOCK", "none left"))
    scene.send(WORKER, worker_error(second.id, "NO_STOCK", "none left"))
    scene.answer(WORKER, third)
    worker = scene.machine.directory.workers[WORKER]
    assert (worker.done, worker.pace.failures) == (3, 2)
